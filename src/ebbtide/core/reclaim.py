"""Which preemptible nodes a claim takes, and which ones a cluster gives back when its target is lowered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice

from ebbtide.core.capacity import Candidate, Holding, Victim
from ebbtide.core.nodes import JOINING, Phase
from ebbtide.core.shares import Shares, Take, take_order

_TAKEABLE = JOINING | {Phase.RUNNING}
_JOINING_RANK = {Phase.SCHEDULING: 0, Phase.BOOTING: 1, Phase.BOOTSTRAPPING: 2}

# Classes of candidates in the order in which a claim takes them, with what is said of their nodes.
_CLASSES = ("not running yet", "idle", "idle", "busy", "busy")
_INSIDE_MINIMUM_LIFE = (False, False, True, False, True)


def choose(
    candidates: Sequence[Candidate],
    holdings: Sequence[Holding],
    hosts: int,
    now: datetime,
    min_life_s: int,
    gpus_per_host: int,
) -> tuple[Victim, ...]:
    """The nodes that a claim takes, never more than `hosts`, fewer only if there are no more.

    candidates: joining and running preemptible nodes of the pool; those in other phases are left out
    holdings:   of the pool's clusters; one that has none is taken to hold its candidates
    min_life_s: soft minimum life; it orders, it does not protect

    1. Nodes that do not run yet, then idle ones, then busy ones.
    2. Those past their minimum life before those inside it.
    3. The highest share, by project, then by cluster, counted anew after each node taken.
    4. The youngest: by phase while joining, by the start of running after.
    5. The lower uid.
    """
    classes: list[dict[str, list[tuple[int, str]]]] = [{} for _ in _CLASSES]
    for candidate in candidates:
        if candidate.phase in _TAKEABLE:
            ranked = classes[_class_of(candidate, now, min_life_s)].setdefault(candidate.cluster_id, [])
            ranked.append((_youth(candidate, now), candidate.uid))
    shares = Shares([*holdings, *_unlisted(candidates, holdings, gpus_per_host)])
    victims: list[Victim] = []
    hosts = max(0, hosts)
    for index, nodes in enumerate(classes):
        youth = {uid: rank for ranked in nodes.values() for rank, uid in ranked}
        takes = islice(take_order(nodes, shares, gpus_per_host), hosts - len(victims))
        victims += [Victim(take.uid, _why(take, shares.weighted, index, youth[take.uid])) for take in takes]
    return tuple(victims)


def choose_released(candidates: Sequence[Candidate], hosts: int, now: datetime) -> tuple[Victim, ...]:
    """The nodes that one cluster gives back, never more than `hosts`. All candidates belong to that cluster.

    1. Nodes that do not run yet, then cordoned ones, then idle ones, then busy ones.
    2. The youngest: by phase while joining, by the start of running after.
    3. The lower uid.
    """
    staying = [node for node in candidates if node.phase in _TAKEABLE]
    order = sorted(staying, key=lambda node: (_release_class(node), _youth(node, now), node.uid))
    return tuple(Victim(node.uid, _release_why(node, now)) for node in order[: max(0, hosts)])


def _unlisted(
    candidates: Sequence[Candidate], holdings: Sequence[Holding], gpus_per_host: int
) -> Iterator[Holding]:
    """Holdings of clusters that have candidates and no holding: a standard order never fails on one."""
    weights = {holding.project_id: holding.project_weight for holding in holdings}
    projects = {candidate.cluster_id: candidate.project_id for candidate in candidates}
    nodes = Counter(candidate.cluster_id for candidate in candidates)
    for cluster_id in projects.keys() - {holding.cluster_id for holding in holdings}:
        project_id = projects[cluster_id]
        gpus = nodes[cluster_id] * gpus_per_host
        yield Holding(cluster_id, project_id, gpus, project_weight=weights.get(project_id, 1))


def _class_of(candidate: Candidate, now: datetime, min_life_s: int) -> int:
    if candidate.phase is not Phase.RUNNING:
        return 0
    inside = candidate.running_at is None or now - candidate.running_at < timedelta(seconds=min_life_s)
    return (3 if candidate.busy else 1) + inside


def _youth(candidate: Candidate, now: datetime) -> int:
    """Lower is younger: the step of a joining node, the microseconds that a running one has run."""
    if candidate.phase is not Phase.RUNNING:
        return _JOINING_RANK[candidate.phase]
    if candidate.running_at is None:
        return 0
    return (now - candidate.running_at) // timedelta(microseconds=1)


def _why(take: Take, weighted: bool, index: int, youth: int) -> str:
    said = _CLASSES[index]
    measure = " for its weight" if weighted else ""
    among = "" if take.largest else " among those with such a node"
    share = f"project {take.project_id} held the most{measure}{among} ({take.project_gpus} GPUs)"
    if index == 0:
        return f"{said}; {share}"
    side = "inside" if _INSIDE_MINIMUM_LIFE[index] else "past"
    return f"{said}; {share}; youngest {side} its minimum life ({_span(youth // 1_000_000)})"


def _release_class(candidate: Candidate) -> int:
    if candidate.phase is not Phase.RUNNING:
        return 0
    if candidate.cordoned:
        return 1
    return 3 if candidate.busy else 2


def _release_why(candidate: Candidate, now: datetime) -> str:
    said = ("not running yet", "cordoned", "idle", "busy")[_release_class(candidate)]
    if candidate.phase is not Phase.RUNNING:
        return said
    return f"{said}; the cluster's youngest such node ({_span(_youth(candidate, now) // 1_000_000)})"


def _span(seconds: int) -> str:
    """A span as people say it: the largest unit that it fills, rounded down."""
    for unit, size_s in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size_s:
            return f"{seconds // size_s} {unit}"
    return f"{max(0, seconds)} s"
