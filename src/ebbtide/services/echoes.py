"""What a cluster's creator sent and clients read back verbatim, and how an update merges into it.

Terraform sends the whole object on every change, so whatever equals what is there already is welcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ebbtide.errors import BadInput

_MERGED = frozenset({"add_ons", "cluster_config"})


def merged(echo: Mapping[str, Any], sent: Mapping[str, Any]) -> dict[str, Any]:
    """`echo` after an update that sent `sent`: add-ons are merged by name, the configuration by key.

    Raises BadInput for an add-on that the cluster has not, and for what is set at creation only.
    """
    for field, value in sent.items():
        if field not in _MERGED and not _is_same(value, echo.get(field)):
            raise BadInput(f"{field} is set when a cluster is created; leave it as it is", param=field)
    answer = dict(echo)
    if "cluster_config" in sent:
        answer["cluster_config"] = _merge(echo.get("cluster_config", {}), sent["cluster_config"])
    if sent.get("add_ons"):
        answer["add_ons"] = _add_ons(echo.get("add_ons", ()), sent["add_ons"])
    return answer


def _is_same(sent: Any, present: Any) -> bool:
    if isinstance(sent, bool):
        return sent is bool(present)  # an absent flag is an unset one
    if isinstance(sent, Mapping):
        return isinstance(present, Mapping) and _merge(present, sent) == dict(present)
    return bool(sent == present)


def _add_ons(
    present: Sequence[Mapping[str, Any]], changes: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    answer = [dict(add_on) for add_on in present]
    for number, change in enumerate(changes):
        named = [add_on for add_on in answer if add_on["name"] == change["name"]]
        if not named:
            known = ", ".join(repr(add_on["name"]) for add_on in answer) or "none"
            raise BadInput(
                f"the cluster has no add-on {change['name']!r}; it has: {known}. Add-ons are chosen when a "
                f"cluster is created.",
                param=f"add_ons.{number}.name",
            )
        for add_on in named:
            kind = add_on["add_on_type"]
            if change.get("add_on_type", kind) != kind:
                raise BadInput(
                    f"the add-on {change['name']!r} is of type {kind!r}; leave that as it is",
                    param=f"add_ons.{number}.add_on_type",
                )
            if "config" in change:
                add_on["config"] = _merge(add_on.get("config", {}), change["config"])
    return answer


def _merge(present: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """`present` with `change` put over it, objects in objects likewise."""
    answer = dict(present)
    for key, value in change.items():
        inner = answer.get(key)
        answer[key] = (
            _merge(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
        )
    return answer
