"""Signals in real processes."""

from __future__ import annotations

import signal

import pytest
from jobs import Jobs

from ebbtide_workload.notice import Notice


def test_the_watcher_hears_while_the_main_thread_is_in_native_code(jobs: Jobs) -> None:
    """Peers must hear within seconds although this rank's step takes a minute."""
    job = jobs.python(
        """
        import hashlib
        notice = ebbtide_workload.Notice(grace_s=100).open()
        notice.listen(lambda heard: os.write(1, b"heard " + heard.source.encode() + b"\\n"))
        os.write(1, b"ready\\n")
        hashlib.pbkdf2_hmac("sha256", b"x", b"y", 10**9)  # minutes without one Python instruction
        """
    )
    job.until("ready")
    job.signal()
    job.until("heard SIGTERM")


def test_a_notice_says_deadline_seconds_left_and_reason(jobs: Jobs) -> None:
    job = jobs.python(
        """
        notice = ebbtide_workload.Notice(grace_s=100).open()
        assert not notice.noticed and notice.deadline is None and notice.seconds_left() is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert notice.noticed, "heard at once in the main thread"
        assert 60 < notice.seconds_left() <= 100
        first = notice.deadline
        os.kill(os.getpid(), signal.SIGTERM)
        assert notice.noticed and notice.deadline == first, "a second signal moves nothing"
        assert notice.tell("mine", reason="told by hand")
        print(notice.reason, [h.source for h in notice.heard])
        notice.close()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        """
    )
    assert job.end() == 0, job.out
    assert "signal SIGTERM; told by hand ['SIGTERM', 'mine']" in job.out


@pytest.mark.parametrize(("host", "grace_s"), [("10.0.0.1", 297.0), (None, 900.0)])
def test_a_drain_cuts_a_long_grace_to_its_window(
    monkeypatch: pytest.MonkeyPatch, host: str | None, grace_s: float
) -> None:
    """A10: a grace above the window is silently useless in Kubernetes; elsewhere it is what it is."""
    if host:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    else:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert Notice(grace_s=900, file="none").grace_s == grace_s


def test_slurms_signal_is_a_notice(jobs: Jobs) -> None:
    job = jobs.python(
        """
        notice = ebbtide_workload.Notice(grace_s=100).open()
        print("ready")
        while not notice.noticed:
            time.sleep(0.01)
        print("heard", notice.heard[0].source)
        """,
        SLURM_JOB_ID="12",
    )
    job.until("ready")
    job.signal(signal.SIGUSR1)
    assert job.end() == 0
    assert "heard SIGUSR1" in job.out


def test_a_forked_data_loader_can_still_be_ended_by_its_parent(jobs: Jobs) -> None:
    """A handler that is inherited by forks would make them immortal, and their wakeups would be ours."""
    job = jobs.python(
        """
        notice = ebbtide_workload.Notice(grace_s=100).open()
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(7)
        time.sleep(0.2)
        os.kill(pid, signal.SIGTERM)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM, status
        time.sleep(1.2)  # two looks of the watcher
        assert not notice.noticed, "the child's signal is not ours"
        """
    )
    assert job.end() == 0, job.out


def test_who_took_our_handler_is_named_and_the_signal_still_heard(jobs: Jobs) -> None:
    """J4: a framework that installs its own handler after us."""
    job = jobs.python(
        """
        class Framework:
            def bypass(self, signum, frame):
                print("bypassing SIGTERM")
        notice = ebbtide_workload.Notice(grace_s=100).open()
        signal.signal(signal.SIGTERM, Framework().bypass)
        print("ready")
        while not notice.noticed:
            time.sleep(0.01)
        print("heard all the same")
        """
    )
    job.until("Framework.bypass")
    job.signal()
    assert job.end() == 0, job.out
    assert "SIGTERM is now handled by __main__.Framework.bypass" in job.out
    assert "the guard still hears it" in job.out
    assert "heard all the same" in job.out


def test_the_signals_can_be_taken_back_from_a_framework(jobs: Jobs) -> None:
    job = jobs.python(
        """
        def harmful(signum, frame):
            print("harm")
        notice = ebbtide_workload.Notice(grace_s=100).open()
        signal.signal(signal.SIGTERM, harmful)
        notice.retake_signals()
        os.kill(os.getpid(), signal.SIGTERM)
        assert notice.noticed
        notice.close()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        """
    )
    assert job.end() == 0, job.out
    assert "harm" not in job.out


def test_a_signal_that_is_ignored_from_now_on_is_said_to_be_lost(jobs: Jobs) -> None:
    """J4."""
    job = jobs.python(
        """
        notice = ebbtide_workload.Notice(grace_s=100).open()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
        """
    )
    job.until("cannot hear it any more")
    assert "nobody: it is ignored" in job.out


def test_a_handler_that_was_there_before_is_given_back(jobs: Jobs) -> None:
    job = jobs.python(
        """
        def mine(signum, frame): pass
        signal.signal(signal.SIGTERM, mine)
        notice = ebbtide_workload.Notice(grace_s=100).open()
        notice.close()
        assert signal.getsignal(signal.SIGTERM) is mine
        """
    )
    assert job.end() == 0, job.out


def test_an_event_loops_wakeup_descriptor_is_left_alone(jobs: Jobs) -> None:
    job = jobs.python(
        """
        import asyncio
        async def main():
            got = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, got.set)
            notice = ebbtide_workload.Notice(grace_s=100).open()
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.wait_for(got.wait(), 20)
            os.kill(os.getpid(), signal.SIGTERM)
            while not notice.noticed:
                await asyncio.sleep(0.01)
            notice.close()
        asyncio.run(main())
        """
    )
    assert job.end() == 0, job.out


def test_outside_the_main_thread_it_says_what_cannot_be_heard(jobs: Jobs) -> None:
    job = jobs.python(
        """
        import threading
        def work():
            notice = ebbtide_workload.Notice(file=sys.argv[1]).open()
            Path(sys.argv[1]).write_text("")
            while not notice.noticed:
                time.sleep(0.01)
            print("heard", notice.heard[0].source)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        """,
        jobs.folder / "notice",
    )
    assert job.end() == 0, job.out
    assert "signals cannot be heard" in job.out
    assert "heard file" in job.out
