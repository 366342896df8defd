"""What a drain's records say in words."""

from __future__ import annotations

import pytest

from ebbtide.core.receipts import PodEnd, PodRecord, end_of, ended_at, sentence, used_s, used_up
from tests.core.builders import NOW, after


def a_record(name: str = "p", **more: object) -> PodRecord:
    values: dict[str, object] = {
        "pod_uid": f"uid-{name}", "namespace": "lab", "name": name, "kind": "workload", "first_seen_at": NOW,
        "arrived": False, "tolerates": False, "grace_asked_s": 30, **more,
    }  # fmt: skip
    return PodRecord(**values)  # type: ignore[arg-type]  # fields by name


TOLD = {"told_at": after(0), "told_by": "signal", "grace_given_s": 30}


@pytest.mark.parametrize(
    ("record", "left", "end", "used"),
    [
        (a_record(**TOLD), None, PodEnd.THERE, None),
        (a_record(**TOLD, gone_at=after(12.9)), None, PodEnd.EXITED, 12),
        (a_record(**TOLD, killed=True), 300, PodEnd.KILLED, 300),
        (a_record(**TOLD), 300, PodEnd.UNKNOWN, None),
        (a_record(killed=True), 300, PodEnd.KILLED, None),
        (a_record(gone_at=after(5)), 300, PodEnd.EXITED, None),
    ],
)
def test_how_a_pod_ended(record: PodRecord, left: int | None, end: PodEnd, used: int | None) -> None:
    left_at = None if left is None else after(left)
    assert end_of(record, left_at) is end
    assert used_s(record, left_at) == used


def test_the_end_of_what_went_with_the_machine_is_the_nodes_leaving() -> None:
    assert ended_at(a_record(killed=True), after(300)) == after(300)
    assert ended_at(a_record(gone_at=after(7)), after(300)) == after(7)


@pytest.mark.parametrize(
    ("more", "expected"),
    [({"gone_at": after(29)}, False), ({"gone_at": after(30)}, True), ({"shortened_to_s": 10}, False)],
)
def test_grace_is_used_up_when_all_of_it_was_taken(more: dict[str, object], expected: bool) -> None:
    assert used_up(a_record(**TOLD, **more), None) is expected
    assert used_up(a_record(**TOLD, shortened_to_s=10, gone_at=after(10)), None)


def test_one_sentence_tells_the_whole_drain() -> None:
    exited = [a_record(name, gone_at=after(1)) for name in ("a", "b")]
    pods = [*exited, a_record("c", killed=True), a_record("d")]
    assert sentence(pods, noticed_at=NOW, deadline=after(300), left_at=after(300)) == (
        "left 300 s after the notice, of 300 s; "
        "of 4 pods 2 exited, 1 ended with the machine, 1 not seen again"
    )
    assert sentence([], noticed_at=NOW, deadline=after(300), left_at=after(0.4)) == (
        "left 0 s after the notice, of 300 s; it had no pods"
    )


def test_a_pod_is_shown_with_its_namespace_where_there_is_one() -> None:
    assert a_record().shown == "lab/p"
    assert a_record(namespace="").shown == "p"
