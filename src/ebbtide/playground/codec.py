"""The world's plain data as JSON and back: dataclasses by name, instants in ISO form, enums by class and
value.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum, StrEnum
from typing import Any

from ebbtide.core.drain import PodKind
from ebbtide.playground import behaviours, facts, machines, state

_DATA: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *behaviours.MACHINE_BEHAVIOURS,
        *behaviours.POD_BEHAVIOURS,
        behaviours.Habits,
        behaviours.Volume,
        facts.Change,
        facts.Fact,
        machines.Order,
        state.Announcement,
        state.Budget,
        state.Cluster,
        state.Disk,
        state.Due,
        state.Host,
        state.Machine,
        state.Node,
        state.NodeView,
        state.Outage,
        state.Pod,
        state.PodPlan,
        state.State,
    )
}
_ENUMS: dict[str, Any] = {kind.__name__: kind for kind in (PodKind, facts.What, state.Power)}


def encode(value: Any) -> Any:
    """`value` as JSON-able data. Raises TypeError for anything that the world does not store."""
    if isinstance(value, Enum) and type(value).__name__ in _ENUMS:
        return {"$enum": type(value).__name__, "value": value.value}
    if isinstance(value, StrEnum):  # other rooms' words (a compute class, a reason) are text to the world
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, datetime):
        return {"$at": value.isoformat()}
    if is_dataclass(value) and type(value).__name__ in _DATA:
        content = {field.name: encode(getattr(value, field.name)) for field in fields(value)}
        return {"$data": type(value).__name__, **content}
    return _encode_many(value)


def _encode_many(value: Any) -> Any:
    if isinstance(value, tuple):
        return {"$tuple": [encode(item) for item in value]}
    if isinstance(value, deque):
        return {"$deque": [encode(item) for item in value]}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        name = "$ordered" if isinstance(value, OrderedDict) else "$dict"
        return {name: [[encode(key), encode(item)] for key, item in value.items()]}
    raise TypeError(f"{type(value).__name__} has no form in the journal")


def decode(value: Any) -> Any:
    """The inverse of `encode`."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$data" in value:
        kind = _DATA[value["$data"]]
        return kind(**{name: decode(item) for name, item in value.items() if name != "$data"})
    if "$enum" in value:
        return _ENUMS[value["$enum"]](value["value"])
    return _decode_many(value)


def _decode_many(value: dict[str, Any]) -> Any:
    (name, content), *_ = value.items()
    match name:
        case "$at":
            return datetime.fromisoformat(content)
        case "$tuple":
            return tuple(decode(item) for item in content)
        case "$deque":
            return deque(decode(item) for item in content)
        case "$ordered":
            return OrderedDict((decode(key), decode(item)) for key, item in content)
        case "$dict":
            return {decode(key): decode(item) for key, item in content}
    raise ValueError(f"unknown form {name!r} in the journal")
