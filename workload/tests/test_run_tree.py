"""Whom to tell, on tables of processes."""

from __future__ import annotations

from ebbtide_workload.run_processes import Process
from ebbtide_workload.run_tree import Telling

ROOT = 1


def process(pid: int, parent: int = ROOT, what: str = "", *, start: str = "0") -> Process:
    """`what`: letters c (catches), i (ignores), z (zombie), e (has torch's elastic mark)."""
    return Process(pid, parent, start, f"p{pid}", "c" in what, "i" in what, "z" in what, "e" in what)


def table(*processes: Process) -> dict[int, Process]:
    return {each.pid: each for each in processes}


def telling(impatient: bool = False) -> Telling:
    return Telling(ROOT, lambda _: impatient)


def pids(processes: list[Process]) -> list[int]:
    return [each.pid for each in processes]


def test_a_shell_in_the_way_is_passed_over() -> None:
    """J9."""
    assert pids(telling().next(table(process(2), process(3, 2, "c")))) == [3]


def test_a_launcher_that_does_not_handle_it_has_all_its_children_told_once() -> None:
    """J10."""
    now = table(process(2), *(process(pid, 2, "c") for pid in (3, 4, 5)))
    told = telling()
    assert pids(told.next(now)) == [3, 4, 5]
    assert told.next(now) == []
    assert pids(told.last_call(now)) == [2]


def test_a_launcher_that_handles_it_is_told_and_its_children_are_its_business() -> None:
    now = table(process(2, what="c"), process(3, 2, "c"), process(4, 3))
    told = telling()
    assert pids(told.next(now)) == [2]
    assert told.last_call(now) == []


def test_data_loaders_of_a_trainer_are_left_alone() -> None:
    now = table(process(2), process(3, 2, "c"), process(4, 3), process(5, 3))
    told = telling()
    assert pids(told.next(now)) == [3]
    assert pids(told.last_call(now)) == [2]


def test_orphans_of_a_told_process_are_not_told_again() -> None:
    told = telling()
    told.next(table(process(2, what="c"), process(3, 2, "c")))
    assert told.next(table(process(3, ROOT, "c"))) == []


def test_the_other_end_of_a_pipe_is_left_alone() -> None:
    """`python train.py | tee log`: tee ends when the trainer does, not before."""
    assert pids(telling().next(table(process(2), process(3, 2, "c"), process(4, 2)))) == [3]


def test_where_nobody_handles_it_everybody_is_told() -> None:
    assert pids(telling().next(table(process(2), process(3, 2), process(4, 2, "z")))) == [2, 3]


def test_what_a_shell_starts_after_the_notice_is_told_too() -> None:
    told = telling()
    shell = process(2)
    assert pids(told.next(table(shell, process(3, 2, "c")))) == [3]
    later = table(shell, process(4, 2))
    assert told.next(later) == [], "it may be about to install its handler"
    assert pids(told.next(table(shell, process(4, 2, "c")))) == [4]


def test_a_later_process_with_the_same_number_is_another_one() -> None:
    told = telling()
    shell = process(2)
    told.next(table(shell, process(3, 2, "c")))
    assert pids(told.next(table(shell, process(3, 2, "c", start="9")))) == [3]


def test_who_ignores_it_is_passed_over() -> None:
    told = telling()
    now = table(process(2, what="i"), process(3, 2, "c"))
    assert pids(told.next(now)) == [3]
    assert told.last_call(now) == []


def test_an_impatient_torch_launcher_is_passed_over_and_its_workers_are_told() -> None:
    """J1."""
    workers = [process(pid, 2, "ce") for pid in (3, 4)]
    loaders = [process(pid, 3, "e") for pid in (5, 6)]
    now = table(process(2, what="c"), *workers, *loaders)
    hasty = telling(impatient=True)
    assert pids(hasty.next(now)) == [3, 4]
    assert hasty.next(table(process(2, what="c"))) == [], "it ends by itself when its workers have"
    assert pids(telling(impatient=False).next(now)) == [2]
