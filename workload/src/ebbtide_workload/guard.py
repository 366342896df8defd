"""The guard of a training loop: three lines that turn a preemption into a pause.

    guard = ebbtide_workload.Guard("/checkpoints")
    for step in range(guard.resume(load), total_steps):
        train_one(step)
        guard.step(step, save)

`save(folder)` writes files into a folder, `load(folder)` reads them back. Everything else happens in here:
the notice is heard from wherever it comes, the save happens once, at a step boundary, on all ranks at the
same step, the process leaves with an exit code that says so, and the next start goes on from there.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Union

from . import checkpoint_times, clock, progress, settings
from .checkpoint import AnotherWriter, Checkpoint, Checkpoints, told
from .deadline import Attention, Heard, after
from .errors import RanksApart
from .exits import EXIT_PREEMPTED_SAVED, EXIT_PREEMPTED_UNSAVED
from .notice import Notice
from .say import Journal, duration, say
from .store import Store, open_store

DEFAULT_EVERY_S = 900.0
STUCK_S = 15.0
LAST_MOMENT_S = 2.0
_NEVER = sys.maxsize
_FOREVER_S = float("inf")

Save = Callable[[Path], object]
Load = Callable[[Path], object]
Where = Union[str, "os.PathLike[str]", Checkpoints, Store]


if TYPE_CHECKING:
    from .together import Together


class Preempted(SystemExit):
    """Leaves the program with EXIT_PREEMPTED_SAVED or EXIT_PREEMPTED_UNSAVED unless somebody catches it.

    `step` is the last step saved, None when there is none; `saved` whether nothing was lost.
    """

    def __init__(self, step: int | None, saved: bool) -> None:
        super().__init__(EXIT_PREEMPTED_SAVED if saved else EXIT_PREEMPTED_UNSAVED)
        self.step = step
        self.saved = saved


class Guard:
    """Watches over one training loop.

    `checkpoints`: a folder, a URL that fsspec knows (`s3://bucket/run`), or a `Checkpoints` with settings of
    its own. `every_s`: seconds between saves while nothing is wrong; None leaves saving to the notice alone.
    Where saves do not fit the window it saves more often by itself. `every_steps`: save after each so many
    steps as well. `writes`: with several ranks, "rank0" calls `save` on rank 0 alone (data parallel), "all"
    on every rank with one shared folder (sharded). `grace_s`: seconds from signal to kill, if the environment
    does not say.

    Make it in the main thread, after torch.distributed is initialised where that is used.
    """

    def __init__(
        self,
        checkpoints: Where,
        *,
        every_s: float | None = DEFAULT_EVERY_S,
        every_steps: int | None = None,
        writes: str = "rank0",
        grace_s: float | None = None,
        notice: Notice | None = None,
    ) -> None:
        if writes not in ("rank0", "all"):
            raise ValueError(f"writes is {writes!r}; it is 'rank0' or 'all'")
        self.checkpoints: Store = open_store(checkpoints)
        self._every_s = every_s
        self._every_steps = every_steps
        self._attention = notice.attention if notice else Attention()
        self.notice = notice or Notice(grace_s=grace_s, attention=self._attention)
        self._boundary = -1
        self._saved: int | None = None
        self._due_s = _FOREVER_S
        self._due_step = _NEVER
        self._clock = clock.monotonic
        self._since = (self._clock(), -1)
        self._step_s = 0.0
        self._watched = progress.ENV in os.environ
        self._warned = False
        self._said_stuck = False
        self._left = False
        self._pid = os.getpid()
        self._together = self._meet(writes)
        self.rank = self._together.rank if self._together else 0
        self.world = self._together.world if self._together else 1
        self._journal = Journal.from_environment(self.checkpoints.timeline_path if self.rank == 0 else None)
        self.notice.listen(self._heard)
        for heard in self.notice.heard:
            self._heard(heard)
        self.notice.every_look(self._look)
        if notice is None:
            self.notice.open()
        atexit.register(self.close)

    def resume(self, load: Load) -> int:
        """Load the newest whole checkpoint with `load(folder)` and return the first step to do; 0 when there
        is none.

        Becomes the writer first: waits for one that is still saving, takes over from one that died. With
        several ranks, all load the same. Raises AnotherWriter when another job keeps writing here.
        """
        try:
            found = self._find()
        except (AnotherWriter, RanksApart) as error:
            if not self.notice.noticed:
                raise
            say(f"preempted before the start: {error}")
            self._leave(saved=True)
        first = 0
        if found is not None:
            load(found.path)
            self._saved = self._boundary = found.step
            first = found.step + 1
            say(f"resumed after step {found.step}, saved at {found.saved_at[:19]}Z")
        self._journal.write("resumed", step=first, rank=self.rank)
        if self._watched:
            progress.record("resume", first)
        self._plan_next()
        if self._together is None and self.notice.noticed:
            self._leave(saved=True)
        return first

    def step(self, step: int, save: Save) -> None:
        """Say that step `step` is done. Nearly always returns at once; saves when it is time to.

        After a notice: saves with `save(folder)`, then raises Preempted. Call it on every rank.
        """
        self._boundary = step
        if self._watched:
            progress.record("step", step + 1)
        if self._attention.up or step >= self._due_step or self._clock() >= self._due_s:
            self._attend(step, save)

    def steps(self, total: int, *, load: Load, save: Save) -> Iterator[int]:
        """`for step in guard.steps(1000, load=load, save=save):` does `resume` before, `step` after each turn
        and `close` at the end, so that a notice during what follows ends the process as it would without a
        guard."""
        for step in range(self.resume(load), total):
            yield step
            self.step(step, save)
        self.close()

    @property
    def noticed(self) -> bool:
        """Whether we are being preempted."""
        return self.notice.noticed

    def save_now(self, step: int, save: Save) -> None:
        """Save at once, notice or not; with several ranks, on all of them at the same step."""
        self._save(step, save)
        self._plan_next()

    def close(self) -> None:
        """End of the loop: let other writers in, give the signal handlers back. Done at exit if you do
        not."""
        if os.getpid() != self._pid:
            return
        atexit.unregister(self.close)
        if not self._left:
            self._journal.write("closed", step=self._boundary, rank=self.rank)
        self._left = True
        if self._together:
            self._together.close()
        try:
            self.checkpoints.release()
        except Exception as error:  # noqa: BLE001 - a store's driver may raise anything; the exit code must not change
            say(f"the checkpoints could not be released, the next writer waits out the lease: {error!r}")
        self.notice.close()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _meet(self, writes: str) -> Together | None:
        place = settings.place()
        if place.world == 1 and not settings.running_under_torch():
            return None
        from .together import Together  # sockets and selectors, only where there are ranks to meet

        return Together.of(
            place, writes, self.checkpoints, self._attention, lambda: self._boundary, self._tell
        )

    def _find(self) -> Checkpoint | None:
        def give_up() -> bool:
            return self.notice.noticed

        if self._together:
            return self._together.resume(give_up)
        self.checkpoints.acquire(give_up)
        return self.checkpoints.newest()

    def _attend(self, step: int, save: Save) -> None:
        """Something is up: a notice, a save that is due, or an agreement among the ranks."""
        self._attention.up = False
        self.notice.settle()
        if self._together:
            self._attend_together(self._together, step, save)
        elif self.notice.noticed:
            self._save_and_leave(step, save)
        elif step >= self._due_step or self._clock() >= self._due_s:
            self.save_now(step, save)
            if self._attention.up:  # the notice came during the save: leave from this very boundary
                self._attend(step, save)

    def _attend_together(self, together: Together, step: int, save: Save) -> None:
        try:
            agreed = together.agreed()
        except RanksApart as error:
            self._lose(step, error)
            return
        if together.apart and self.notice.noticed:
            self._lose(step, RanksApart(together.apart))
        if agreed is not None and step < agreed:
            self._attention.up = True
        elif agreed is not None or step >= self._due_step:
            self._save_together(together, step, save)
        elif self._clock() >= self._due_s:
            self._due_s = _FOREVER_S  # the round that rank 0 asks for plans the next one
            if self.rank == 0:
                together.propose()

    def _save_together(self, together: Together, step: int, save: Save) -> None:
        """Whether to leave is what the ranks were told together, not what this one knows by now."""
        try:
            self._save(step, save)
        except Exception as error:
            if not together.leaving and not (self.notice.noticed and isinstance(error, RanksApart)):
                raise
            _print_error()
            self._leave(saved=False)
        if together.leaving:
            self._leave(saved=True)
        self._plan_next()

    def _save_and_leave(self, step: int, save: Save) -> None:
        if self._saved != step:
            try:
                self._save(step, save)
            except Exception:  # noqa: BLE001 - whatever it was, what matters now is to say so and leave
                _print_error()
                self._leave(saved=False)
        self._leave(saved=True)

    def _leave(self, saved: bool) -> NoReturn:
        left = self.notice.seconds_left()
        step = self._saved
        if saved:
            what = "nothing was begun" if step is None else f"step {step} is saved"
        else:
            what = "NOT SAVED since " + ("the start" if step is None else f"step {step}")
        say(f"leaving: {what}, {duration(left or 0.0)} before the deadline")
        self._journal.write("left", saved=saved, step=step, rank=self.rank, seconds_left=left)
        if self._watched:
            progress.record("exit", None if step is None else step + 1)
        self._left = True
        self.close()
        raise Preempted(step, saved)

    def _lose(self, step: int, error: Exception) -> None:
        """The ranks cannot agree any more. Without a notice that is the training's own trouble, told but not
        ours."""
        say(f"the ranks are apart: {error}")
        self._journal.write("apart", step=step, rank=self.rank, error=str(error))
        if self.notice.noticed:
            self._leave(saved=False)

    def _save(self, step: int, save: Save) -> None:
        """Save and tell; raises what the save raised."""
        begun = self._clock()
        since, first = self._since
        if step > first:
            self._step_s = (begun - since) / (step - first)
        if self._watched:
            progress.record("save_begin", step + 1)
        try:
            if self._together:
                done = self._together.save(step, save, self._until())
            else:
                done = self.checkpoints.save(step, save)
        except BaseException as error:
            self._journal.write("save_failed", step=step, rank=self.rank, error=repr(error))
            raise
        self._saved = step
        if self._watched:
            progress.record("save_end", step + 1)
        if done is not None:
            say(told(done))
            seconds = round(self._clock() - begun, 3)
            self._journal.write("saved", step=step, rank=self.rank, seconds=seconds, bytes=done.bytes)

    def _until(self) -> datetime:
        deadline = self.notice.deadline
        return after(1800.0) if deadline is None else deadline - timedelta(seconds=LAST_MOMENT_S)

    def _plan_next(self) -> None:
        """When to save next; says when the window stops or begins to fit."""
        now = self._clock()
        self._since = (now, self._boundary)
        times = self.checkpoints.times
        fit = times.fit(self.notice.grace_s, self._step_s)
        if not fit.fits and not self._warned and self.rank == 0:
            self._warn(fit)
        self._warned = not fit.fits
        if self._every_s is not None:
            self._due_s = now + checkpoint_times.interval_s(self._every_s, fit, times.p95_s)
        if self._every_steps:
            done = self._boundary + 1
            self._due_step = (done // self._every_steps + 1) * self._every_steps - 1

    def _warn(self, fit: checkpoint_times.Fit) -> None:
        p95 = duration(self.checkpoints.times.p95_s or 0.0)
        assumed = "" if self.notice.grace_is_known else " (assumed; set EBBTIDE_GRACE_S to what the pod gets)"
        every = "" if self._every_s is None else ", saving more often instead"
        say(
            f"the window does not fit: slow saves take {p95} (p95), with the step in progress and a margin "
            f"{duration(fit.needed_s)} of {duration(fit.grace_s)}{assumed}{every}"
        )
        self._journal.write(
            "window_too_short", needed_s=round(fit.needed_s, 1), grace_s=fit.grace_s, rank=self.rank
        )

    def _tell(self, heard: Heard) -> object:
        return self.notice.tell(heard.source, heard.deadline, heard.reason)

    def _heard(self, heard: Heard) -> None:
        """A new message, in whatever thread: pass it on and write it down."""
        left = (heard.deadline - clock.utc_now()).total_seconds()
        if len(self.notice.heard) == 1:
            within = duration(max(0.0, left))
            say(
                f"notice from {heard.source}: {heard.reason}; {within} left, saving at the next step boundary"
            )
        if self._together and not heard.source.startswith("rank "):
            self._together.notice(heard)
        deadline = heard.deadline.isoformat()
        self._journal.write(
            "noticed", source=heard.source, deadline=deadline, reason=heard.reason, rank=self.rank
        )
        if self._watched and len(self.notice.heard) == 1:
            progress.record("notice", self._boundary + 1)

    def _look(self) -> None:
        """Shortly before the kill, show where the main thread is if it never came to a step boundary."""
        left = self.notice.seconds_left()
        if left is None or left > min(STUCK_S, self.notice.grace_s / 4) or self._left or self._said_stuck:
            return
        self._said_stuck = True
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        import traceback

        stack = "".join(traceback.format_stack(frame)) if frame else ""
        where = f"last step boundary {self._boundary}; the main thread is here:\n{stack}"
        say(f"{duration(left)} left and not gone; {where}")
        self._journal.write("stuck", step=self._boundary, rank=self.rank)


def _print_error() -> None:
    import traceback

    traceback.print_exc()
