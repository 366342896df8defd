"""Pod disruption budgets. A reclaim does not ask them; a release waits for them until its deadline."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..model import Document, Found, PodUse, mapping, show
from ..world import World, selects


def _covered(world: World, budget: Document) -> list[PodUse]:
    selector = mapping(budget.content.get("spec")).get("selector")
    same = [u for u in world.pods if u.doc.namespace == budget.namespace and not u.partial]
    return [u for u in same if selects(selector, u.labels)]


def _touches_reclaimable(world: World, covered: list[PodUse]) -> bool:
    reclaimable = {id(u) for u in world.reclaimable()}
    return any(id(u) in reclaimable for u in covered)


def _count(value: int | str | None, of: int | None) -> float | None:
    """An absolute number or a percentage of `of`, rounded up as Kubernetes does; None when unknown."""
    if isinstance(value, int):
        return value
    if isinstance(value, str) and value.endswith("%") and value[:-1].isdigit():
        share = int(value[:-1])
        if share in (0, 100) and of is None:
            return 0 if share == 0 else math.inf
        return None if of is None else math.ceil(of * share / 100)
    return int(value) if isinstance(value, str) and value.isdigit() else None


def unmeetable(world: World) -> Iterator[Found]:
    """A budget that never allows one pod to go."""
    for budget in world.of_kind("PodDisruptionBudget"):
        spec = mapping(budget.content.get("spec"))
        covered = _covered(world, budget)
        if not _touches_reclaimable(world, covered):
            continue
        counts = [u.replicas for u in covered]
        total = sum(c for c in counts if c is not None) if None not in counts else None
        key = "maxUnavailable" if "maxUnavailable" in spec else "minAvailable"
        wanted = _count(spec.get(key), total)
        if wanted is None:
            continue
        blocked = wanted == 0 if key == "maxUnavailable" else (wanted == math.inf or (total or 0) <= wanted)
        if key == "minAvailable" and total is None and wanted != math.inf:
            continue
        if blocked:
            pods = f"{total} pods" if total is not None else "the pods"
            message = (
                f"{key}: {spec.get(key)} of {pods} never lets one go: a scale-down waits for it to its "
                f"end, a reclaim "
                "sends SIGTERM regardless"
            )
            where = ("spec", key)
            yield Found(
                budget,
                where,
                message,
                f"set spec.maxUnavailable: 1 instead of {show(where)}: {spec.get(key)}",
            )


def overlap(world: World) -> Iterator[Found]:
    """The eviction API answers 500 when two budgets cover one pod."""
    budgets = world.of_kind("PodDisruptionBudget")
    covered = {id(b): {id(u) for u in _covered(world, b)} for b in budgets}
    for index, budget in enumerate(budgets):
        for earlier in budgets[:index]:
            if covered[id(budget)] & covered[id(earlier)]:
                message = (
                    f"covers pods that {earlier.name} covers too: every eviction of them fails with an error"
                )
                fix = f"narrow spec.selector, or remove one of {earlier.name} and {budget.name}"
                yield Found(budget, ("spec", "selector"), message, fix)
