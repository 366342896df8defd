"""What a tenant may choose for a cluster beside the contract: a warning before SIGTERM, and the placement."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.drain import longest_warning_s
from ebbtide.errors import BadInput, Conflict
from ebbtide.services.audit import record
from ebbtide.services.details import Caller
from ebbtide.services.visible import cluster_of
from ebbtide.settings import Settings
from ebbtide.store import clusters
from ebbtide.store.clusters import ClusterRow
from ebbtide.store.db import Database, Tx

PLACEMENTS = ("open", "explicit")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """warn_first_s: seconds from the notice to SIGTERM; the deadline does not move for it
    placement: `open`, or `explicit`: only pods that ask for it come onto new preemptible nodes
    longest_warn_first_s: the most that `warn_first_s` may be
    """

    cluster_id: str
    warn_first_s: int
    placement: str
    longest_warn_first_s: int


class ClusterSettingsService:
    def __init__(self, db: Database, settings: Settings) -> None:
        self._db = db
        self._settings = settings

    async def read(self, caller: Caller, cluster_id: str) -> ClusterSettings:
        """A cluster's settings. Raises NotFound, for another tenant's cluster as for none."""
        async with self._db.read() as tx:
            return self._details(await cluster_of(tx, caller, cluster_id))

    async def update(
        self,
        caller: Caller,
        cluster_id: str,
        *,
        warn_first_s: int | None = None,
        placement: str | None = None,
    ) -> ClusterSettings:
        """Change what is given; None stays. For drains and nodes that begin from now on.

        Raises BadInput, NotFound, Conflict (the cluster is being deleted).
        """
        longest = longest_warning_s(self._settings.drain)
        if warn_first_s is not None and not 0 <= warn_first_s <= longest:
            raise BadInput(
                f"warn_first_s must be between 0 and {longest}, got {warn_first_s}: SIGTERM has to come "
                f"early enough for pods to use what is left of the {self._settings.drain_window_s} s",
                param="warn_first_s",
            )
        if placement is not None and placement not in PLACEMENTS:
            raise BadInput(f"placement must be 'open' or 'explicit', got {placement!r}", param="placement")

        async def work(tx: Tx) -> ClusterSettings:
            row = await cluster_of(tx, caller, cluster_id, for_update=True)
            wanted = {"warn_first_s": warn_first_s, "placement": placement}
            present = {"warn_first_s": row.warn_first_s, "placement": row.placement}
            changed = {name: value for name, value in wanted.items() if value not in (None, present[name])}
            if not changed:
                return self._details(row)
            if row.phase in (ClusterPhase.DELETING, ClusterPhase.DELETED):
                raise Conflict(
                    "the cluster is being deleted; its settings cannot change any more",
                    code="cluster_deleting",
                )
            await clusters.set_fields(tx, row.id, **changed)
            before = {name: present[name] for name in changed}
            await record(
                tx, caller, "cluster.settings", row.id, before=before, after=changed, of=row.project_id
            )
            return self._details(await cluster_of(tx, caller, cluster_id))

        return await self._db.run(work)

    def _details(self, row: ClusterRow) -> ClusterSettings:
        return ClusterSettings(
            row.id, row.warn_first_s, row.placement, longest_warning_s(self._settings.drain)
        )
