"""Reading what the operator's programs answer: each key looked at, what is wrong said by name.

Every reader answers the value and what is to be remembered of it. All raise Transient: a program that answers
wrongly is mended by its operator, and then the same call works.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ebbtide.providers.base import Deletion, Instance, InstanceState, Transient
from ebbtide.providers.memory import Remembered
from ebbtide.providers.programs import is_plain, one_line

NOT_FOUND = "not_found"
MOST_HANDLE = 4_000  # characters: room for a handle that is a small JSON object of the program's own
_STATES = (*(state.value for state in InstanceState), NOT_FOUND)

Changes = dict[str, Any]


def read_machine(
    what: str, answer: Mapping[str, object], held: Remembered
) -> tuple[Instance | None, Changes]:
    """An answer to create, status or reboot; None is "not found"."""
    keys = _Keys(what, answer)
    state = keys.one_of("state", _STATES)
    instance_id = keys.plain("instance_id") or held.instance_id or held.order.host_name
    address = keys.plain("address") or held.address
    wiped_first_by = keys.plain("wiped_by") or held.wiped_first_by
    changes: Changes = {
        "state": state,
        "handle": keys.handle(),
        "instance_id": instance_id,
        "address": address,
        "wiped_first_by": wiped_first_by or None,
    }
    if state == NOT_FOUND:
        return None, changes
    if state == InstanceState.UP and held.order.wipe_first and not wiped_first_by:
        raise Transient(f"{what} answered up, was told `wipe_first`, and named nothing as `wiped_by`")
    instance = Instance(
        instance_id=instance_id,
        node_uid=held.order.node_uid,
        host_name=held.order.host_name,
        state=InstanceState(state),
        why=keys.why(),
        address=address,
        wiped_by=wiped_first_by,
    )
    return instance, changes


def read_stopped(what: str, answer: Mapping[str, object], held: Remembered) -> tuple[bool, Changes]:
    """An answer to stop: whether it is confirmed that the machine no longer runs."""
    keys = _Keys(what, answer)
    stopped = keys.true_or_false("stopped")
    return stopped, {"handle": keys.handle(), "state": InstanceState.STOPPED.value if stopped else None}


def read_deletion(what: str, answer: Mapping[str, object], held: Remembered) -> tuple[Deletion, Changes]:
    """An answer to delete. Gone counts only with what wiped the host, where the pool's policy asks for it."""
    keys = _Keys(what, answer)
    gone, wiped_by, why = keys.true_or_false("gone"), keys.plain("wiped_by"), keys.why()
    changes: Changes = {"handle": keys.handle()}
    if not gone:
        return Deletion(gone=False, wiped=False, why=why or "the machine is not gone yet"), changes
    if held.order.wipe == "always" and not wiped_by:
        why = f"{what} answered gone and named nothing as `wiped_by`; the pool's policy is to wipe always"
        return Deletion(gone=True, wiped=False, why=why), changes
    changes |= {"gone": True, "wiped_by": wiped_by, "state": NOT_FOUND}
    return Deletion(gone=True, wiped=True, why=why, wiped_by=wiped_by), changes


def read_list(what: str, answer: Mapping[str, object]) -> list[Instance]:
    """An answer to list."""
    entries = answer.get("instances")
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise Transient(f"{what} answered no list of objects as `instances`")
    found: dict[str, Instance] = {}
    for entry in entries:
        keys = _Keys(what, entry)
        node_uid, host_name = keys.plain("node_uid", needed=True), keys.plain("host_name")
        if node_uid in found:
            raise Transient(f"{what} listed node {node_uid} twice")
        found[node_uid] = Instance(
            instance_id=keys.plain("instance_id") or host_name or node_uid,
            node_uid=node_uid,
            host_name=host_name,
            state=InstanceState(keys.one_of("state", tuple(InstanceState))),
            why=keys.why(),
            address=keys.plain("address"),
        )
    return list(found.values())


class _Keys:
    """The keys of one answer. A key that is missing or null is left out, unless it is needed."""

    def __init__(self, what: str, answer: Mapping[str, object]) -> None:
        self._what = what
        self._answer = answer

    def _wrong(self, key: str, rule: str) -> Transient:
        if key not in self._answer:
            return Transient(f"{self._what} answered without `{key}`; it must be {rule}")
        return Transient(
            f"{self._what} answered `{key}`: {one_line(repr(self._answer[key]))[:80]}; it must be {rule}"
        )

    def true_or_false(self, key: str) -> bool:
        value = self._answer.get(key)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def one_of(self, key: str, words: tuple[str, ...]) -> str:
        value = self._answer.get(key)
        if not isinstance(value, str) or value not in words:
            raise self._wrong(key, f"one of {', '.join(words)}")
        return value

    def plain(self, key: str, *, needed: bool = False) -> str:
        value = self._answer.get(key)
        if (value is None or value == "") and not needed:
            return ""
        if not isinstance(value, str) or not is_plain(value):
            raise self._wrong(key, "a text of one line, of 500 characters at most")
        return value

    def handle(self) -> str | None:
        value = self._answer.get("handle")
        if value is None:
            return None
        if not isinstance(value, str) or not is_plain(value, most=MOST_HANDLE):
            raise self._wrong("handle", f"a text of one line, of {MOST_HANDLE} characters at most")
        return value

    def why(self) -> str:
        value = self._answer.get("why")
        if not isinstance(value, str | None):
            raise self._wrong("why", "a text")
        return one_line(value or "")
