"""Disruption budgets: which of them a reclaim did not ask."""

from __future__ import annotations

from collections.abc import Sequence

from ebbtide.drivers.kubernetes import objects
from ebbtide.drivers.kubernetes.objects import Json

ALL = "/apis/policy/v1/poddisruptionbudgets"


def forbidding(budgets: Sequence[Json], pod: Json) -> str | None:
    """The budget that covers this pod and allows no disruption, as NAMESPACE/NAME; None where none does."""
    namespace = objects.text(pod, "metadata", "namespace")
    for budget in budgets:
        if objects.text(budget, "metadata", "namespace") != namespace:
            continue
        allowed = objects.part(budget, "status").get("disruptionsAllowed", 0)
        if allowed == 0 and selects(objects.part(budget, "spec").get("selector"), objects.labels(pod)):
            return f"{objects.plain(namespace)}/{objects.name(budget)}"
    return None


def selects(selector: object, labels: Json) -> bool:
    """Whether a label selector chooses these labels. An empty one chooses all, none at all nothing."""
    if not isinstance(selector, dict):
        return False
    wanted = objects.part(selector, "matchLabels")
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(one, labels) for one in objects.items(selector, "matchExpressions")
    )


def _holds(expression: Json, labels: Json) -> bool:
    present = labels.get(str(expression.get("key")))
    values = expression.get("values") or []
    match expression.get("operator"):
        case "In":
            return present in values
        case "NotIn":
            return present not in values
        case "Exists":
            return present is not None
        case "DoesNotExist":
            return present is None
    return False
