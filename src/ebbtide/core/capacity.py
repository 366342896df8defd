"""One pool as its plans see it, read under the pool's lock, and what must always be true of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ebbtide.core.nodes import Phase


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool's hosts as counts. All counts are hosts.

    free:       unoccupied, available hosts per fabric block
    cooling:    the part of `free` that must not be lent to preemptible yet (just given back by standard
                demand)
    leaving:    hosts whose occupant is on its way out and which will be lendable after
    promised:   nodes of claims that have no host yet
    headroom:   hosts that stay unlent; limits lending only
    """

    pool: str
    gpus_per_host: int
    free: Mapping[str, int]
    cooling: int = 0
    leaving: int = 0
    promised: int = 0
    headroom: int = 0
    cooling_until: datetime | None = None

    @property
    def free_total(self) -> int:
        return sum(self.free.values())

    @property
    def unpromised(self) -> int:
        """Free or leaving hosts that no claim waits for; negative when the pool must plan again."""
        return self.free_total + self.leaving - self.promised

    @property
    def lendable(self) -> int:
        """Hosts that preemptible nodes may get now: free, not promised, not cooling, beyond the headroom."""
        return max(0, self.free_total - self.promised - max(self.headroom, 0) - self.cooling)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A preemptible node that a claim could take.

    running_at: when it began to run, None while it still joins
    busy:       whether workload pods were on it at the last observation
    """

    uid: str
    cluster_id: str
    project_id: str
    phase: Phase
    busy: bool
    running_at: datetime | None
    cordoned: bool = False
    block: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one cluster holds of a pool in preemptible GPUs, and what it wants.

    held_gpus:    joining, running and draining nodes
    wanted_gpus:  its target; 0 when it is being deleted
    joining:      nodes on their way in, for the cap on filling
    leaving_gpus: the draining part of `held_gpus`: it still fills the target, and counts as given back
                  in shares
    """

    cluster_id: str
    project_id: str
    held_gpus: int
    wanted_gpus: int = 0
    cluster_weight: int = 1
    project_weight: int = 1
    joining: int = 0
    leaving_gpus: int = 0


@dataclass(frozen=True, slots=True)
class Victim:
    """A node chosen by a claim, and the sentence that says why this one."""

    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class Supply:
    """How a claim of `hosts` is met: from what is free now, from what is leaving, by taking nodes.

    short: hosts that nothing can supply; a claim with short > 0 is refused whole.
    """

    hosts: int
    from_free: int
    from_leaving: int
    to_take: int
    short: int = 0
    victims: tuple[Victim, ...] = field(default=())


def supply(view: PoolView, hosts: int, reclaimable: int) -> Supply:
    """Decide a claim of `hosts` hosts: free first, then leaving, then preemptible nodes. All or nothing.

    reclaimable: preemptible nodes that could be taken (joining or running; draining ones are `leaving`)

    Nodes that older claims will need, because promised hosts did not come back, are not offered to this one.
    """
    unpromised = max(0, view.unpromised)
    from_free = min(hosts, max(0, view.free_total - view.promised))
    from_leaving = min(hosts - from_free, unpromised - from_free)
    to_take = hosts - from_free - from_leaving
    takeable = max(0, reclaimable + min(0, view.unpromised))
    if to_take > takeable:
        return Supply(hosts, from_free, from_leaving, 0, short=to_take - takeable)
    return Supply(hosts, from_free, from_leaving, to_take)
