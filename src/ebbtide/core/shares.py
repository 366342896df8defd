"""Weighted max-min shares on GPUs held, per project, then per cluster. One measure, used both ways.

Refill gives to the lowest share, reclaim takes from the highest; a target only caps what a cluster gets and
has no part in the measure, so inflating it gains nothing. A GPU whose node is leaving already counts as given
back: two claims in a row do not both take from the same project for what it held before the first. Shares
compare exactly: held times the least common multiple of all weights, divided by the own weight, is a whole
number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from math import lcm

from ebbtide.core.capacity import Holding


class Shares:
    """Who holds how much while a plan is being made; gives and takes change it.

    All clusters of a project must state the same project weight. Weights below 1 raise ValueError.
    """

    def __init__(self, holdings: Iterable[Holding]) -> None:
        self._project_of: dict[str, str] = {}
        self._cluster_gpus: dict[str, int] = {}
        self._project_gpus: dict[str, int] = {}
        cluster_weights: dict[str, int] = {}
        project_weights: dict[str, int] = {}
        for holding in holdings:
            gpus = holding.held_gpus - holding.leaving_gpus
            self._project_of[holding.cluster_id] = holding.project_id
            self._cluster_gpus[holding.cluster_id] = gpus
            self._project_gpus[holding.project_id] = self._project_gpus.get(holding.project_id, 0) + gpus
            cluster_weights[holding.cluster_id] = holding.cluster_weight
            project_weights[holding.project_id] = holding.project_weight
        self._cluster_scale = _scales(cluster_weights)
        self._project_scale = _scales(project_weights)

    def project_of(self, cluster_id: str) -> str:
        return self._project_of[cluster_id]

    def project_gpus(self, project_id: str) -> int:
        """GPUs that the project holds and keeps."""
        return self._project_gpus[project_id]

    def of_project(self, project_id: str) -> int:
        """The project's share, comparable with those of other projects only."""
        return self._project_gpus[project_id] * self._project_scale[project_id]

    def of_cluster(self, cluster_id: str) -> int:
        """The cluster's share, comparable with those of other clusters only."""
        return self._cluster_gpus[cluster_id] * self._cluster_scale[cluster_id]

    @property
    def weighted(self) -> bool:
        """Whether projects differ in weight, so that the highest share need not be the most GPUs."""
        return len(set(self._project_scale.values())) > 1

    def largest(self) -> int:
        """The highest share of any project; 0 without projects."""
        return max(map(self.of_project, self._project_gpus), default=0)

    def change(self, cluster_id: str, gpus: int) -> None:
        """The cluster, and so its project, holds `gpus` more; fewer when negative."""
        self._cluster_gpus[cluster_id] += gpus
        self._project_gpus[self._project_of[cluster_id]] += gpus


def _scales(weights: Mapping[str, int]) -> dict[str, int]:
    for name, weight in weights.items():
        if weight < 1:
            raise ValueError(f"the weight of {name} is {weight}; weights are whole numbers from 1")
    common = lcm(*weights.values())
    return {name: common // weight for name, weight in weights.items()}


def fill_order(holdings: Sequence[Holding], hosts: int, gpus_per_host: int, max_joining: int) -> list[str]:
    """Cluster ids in the order in which the next `hosts` hosts are given; fewer if nobody wants more.

    Each host goes to
    1. a cluster whose target has room for it (nodes on their way out still fill it) and that has fewer than
       `max_joining` nodes on their way in,
    2. of the project with the lowest share,
    3. in it, to the cluster with the lowest share;
    4. ties go to the lower id.

    A cluster at its cap of joining nodes is passed over: hosts do not idle behind one whose nodes are slow to
    boot.
    """
    shares = Shares(holdings)
    room = {holding.cluster_id: _room(holding, gpus_per_host, max_joining) for holding in holdings}
    queues: dict[str, list[tuple[int, str]]] = {}
    for holding in holdings:
        if room[holding.cluster_id] > 0:
            entry = (shares.of_cluster(holding.cluster_id), holding.cluster_id)
            queues.setdefault(holding.project_id, []).append(entry)
    for queue in queues.values():
        heapify(queue)
    projects = [(shares.of_project(project_id), project_id) for project_id in queues]
    heapify(projects)
    order: list[str] = []
    while projects and len(order) < hosts:
        project_id = projects[0][1]
        queue = queues[project_id]
        cluster_id = queue[0][1]
        order.append(cluster_id)
        shares.change(cluster_id, gpus_per_host)
        room[cluster_id] -= 1
        if room[cluster_id] > 0:
            heapreplace(queue, (shares.of_cluster(cluster_id), cluster_id))
        else:
            heappop(queue)
        if queue:
            heapreplace(projects, (shares.of_project(project_id), project_id))
        else:
            heappop(projects)
    return order


def _room(holding: Holding, gpus_per_host: int, max_joining: int) -> int:
    """How many more hosts the cluster may be given now."""
    return min((holding.wanted_gpus - holding.held_gpus) // gpus_per_host, max_joining - holding.joining)


@dataclass(frozen=True, slots=True)
class Take:
    """One node taken, with what its project held just before.

    largest: whether no project at all had a higher share; those that had may have no such node
    """

    uid: str
    cluster_id: str
    project_id: str
    project_gpus: int
    largest: bool


def take_order(
    nodes: Mapping[str, Sequence[tuple[int, str]]], shares: Shares, gpus_per_host: int
) -> Iterator[Take]:
    """The order in which nodes are taken, all of them if asked for; `shares` shrinks with each.

    nodes: per cluster, its nodes as (rank, uid), lowest taken first

    Each is
    1. of the project with the highest share,
    2. of the cluster with the highest share,
    3. the one with the lowest rank,
    4. the one with the lower uid.
    """
    waiting = {cluster_id: sorted(ranked, reverse=True) for cluster_id, ranked in nodes.items() if ranked}
    clusters: dict[str, list[_ClusterKey]] = {}
    for cluster_id, ranked in waiting.items():
        key = (-shares.of_cluster(cluster_id), *ranked[-1], cluster_id)
        clusters.setdefault(shares.project_of(cluster_id), []).append(key)
    for keys in clusters.values():
        heapify(keys)
    projects = [(-shares.of_project(name), keys[0], name) for name, keys in clusters.items()]
    heapify(projects)
    largest = shares.largest()
    while projects:
        negative_share, (_, _, uid, cluster_id), project_id = projects[0]
        if -negative_share < largest:
            largest = shares.largest()  # takes since the last look may have brought it down
        gpus = shares.project_gpus(project_id)
        take = Take(uid, cluster_id, project_id, gpus, largest=-negative_share >= largest)
        shares.change(cluster_id, -gpus_per_host)
        keys = clusters[project_id]
        waiting[cluster_id].pop()
        if waiting[cluster_id]:
            heapreplace(keys, (-shares.of_cluster(cluster_id), *waiting[cluster_id][-1], cluster_id))
        else:
            heappop(keys)
        if keys:
            heapreplace(projects, (-shares.of_project(project_id), keys[0], project_id))
        else:
            heappop(projects)
        yield take


_ClusterKey = tuple[int, int, str, str]  # share (negative), then rank and uid of its next node, then its id
