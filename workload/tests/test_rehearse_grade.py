"""Grades, as a table: facts in, grade and findings out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ebbtide_workload.rehearse import grade, launchers
from ebbtide_workload.rehearse.model import ProcessFact, RoundFacts

GOOD = RoundFacts(
    number=1,
    moment="10.0 s after the first step",
    window_s=300,
    grace_s=297,
    delivered=True,
    notified="python train.py (pid 1)",
    began_at_step=0,
    step_at_notice=100,
    last_step=101,
    steps_after_notice=1,
    noticed_after_s=0.4,
    save_took_s=21.0,
    saved_after_s=22.0,
    saved_step=101,
    newest_save=101,
    exited_after_s=22.5,
    exit_code=85,
    resumed_step=101,
    returned=True,
    return_note="",
    back_after_s=30.0,
    processes=(ProcessFact(1, "python train.py", True, "handles", 22.5, True),),
    says_itself=True,
)
MAIN_LEFT_ALIVE = (ProcessFact(1, "python train.py", True, "handles", None, True),)


def graded(**changes: object) -> tuple[str, set[str]]:
    verdict = grade.verdict(replace(GOOD, **changes))  # type: ignore[arg-type]  # names and types are RoundFacts'
    return verdict.grade, {f.rule for f in verdict.findings}


def test_a_round_without_findings_is_an_a() -> None:
    assert graded() == ("A", set())


@pytest.mark.parametrize(
    ("changes", "wanted", "rule"),
    [
        ({"resumed_step": 100}, "F", "stale"),
        (
            {"resumed_step": 0, "newest_save": None, "saved_step": None, "saved_after_s": None},
            "F",
            "from-scratch",
        ),
        ({"returned": False, "return_note": "it ended with exit code 1"}, "F", "no-return"),
        ({"exited_after_s": None, "processes": MAIN_LEFT_ALIVE}, "D", "ignored-sigterm"),
        ({"resumed_step": None, "saved_step": None}, "D", "blind"),
        ({"last_step": 107}, "B", "lost-steps"),
        ({"last_step": 150}, "C", "lost-steps"),
        ({"exited_after_s": 160.0}, "B", "slow-leave"),
        ({"exited_after_s": 280.0}, "C", "slow-leave"),
        ({"exit_code": 0}, "C", "exit-code"),
        ({"counted_as_failure": True}, "C", "counted-as-failure"),
        ({"noticed_after_s": 25.0}, "B", "slow-notice"),
        ({"left_behind": ("python loader.py",)}, "B", "left-behind"),
        ({"grace_s": 30.0, "exited_after_s": 10.0}, "B", "short-grace"),
        ({"launcher": "torchrun"}, "B", "launcher-limit"),
    ],
)
def test_each_finding_holds_the_grade_down(changes: dict[str, object], wanted: str, rule: str) -> None:
    got, rules = graded(**changes)
    assert got == wanted
    assert rule in rules


def test_j8_a_save_that_nearly_fills_the_window_is_no_a() -> None:
    """J8: 280 s of 297 s is no promise."""
    got, rules = graded(save_took_s=280.0, saved_after_s=281.0, exited_after_s=281.0)
    assert (got, rules) == ("C", {"slow-leave"})


def test_a_job_that_was_done_at_its_next_start_lost_nothing() -> None:
    assert graded(resumed_step=None, return_note="it started again and said that all was done") == (
        "A",
        set(),
    )


def test_one_step_done_again_is_within_an_a() -> None:
    assert graded(last_step=102) == ("A", set())


def test_the_rehearsal_is_worth_its_worst_round_and_tells_each_finding_once() -> None:
    rounds = (GOOD, replace(GOOD, last_step=107), replace(GOOD, last_step=190))
    whole = grade.overall(rounds, tuple(grade.verdict(r) for r in rounds))
    assert whole.grade == "C"
    assert [f.rule for f in whole.findings] == ["lost-steps"]
    assert "reached 190" in whole.findings[0].text


def test_j7_an_older_save_of_an_earlier_round_counts_too() -> None:
    """J7: no round may resume before what any earlier round had saved."""
    later = replace(GOOD, number=2, last_step=90, saved_step=90, newest_save=90, resumed_step=90)
    whole = grade.overall((GOOD, later), tuple(grade.verdict(r) for r in (GOOD, later)))
    assert (whole.grade, [f.rule for f in whole.findings]) == ("F", ["stale"])


def test_grades_are_ordered() -> None:
    assert grade.at_least("A", "B") and grade.at_least("B", "B") and not grade.at_least("C", "B")


@pytest.mark.parametrize(
    ("words", "launcher"),
    [
        (["torchrun", "train.py"], "torchrun"),
        (["/opt/venv/bin/torchrun", "train.py"], "torchrun"),
        (["python", "-m", "torch.distributed.run", "train.py"], "torch.distributed.run"),
        (["bash", "-c", "cd /x;torchrun train.py"], "torchrun"),
        (["accelerate", "launch", "train.py"], "accelerate launch"),
        (["python", "torchrun_helper.py"], None),
        (["python", "train.py"], None),
    ],
)
def test_launchers_are_known_by_their_command(words: list[str], launcher: str | None) -> None:
    assert launchers.torch_launcher(words) == launcher
