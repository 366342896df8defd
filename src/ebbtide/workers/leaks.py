"""Comparing the provider's list with the ledger, both ways.

Machines nobody asked for, and machines that are missing.
"""

from __future__ import annotations

from datetime import timedelta

import structlog

from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.nodes import Phase
from ebbtide.providers.base import Provider, ProviderError
from ebbtide.settings import Settings
from ebbtide.store import clusters, nodes, visits
from ebbtide.store.db import Database
from ebbtide.store.nodes import NodeRow
from ebbtide.store.visits import Loop, Visit
from ebbtide.workers.outcome import Outcome, finish
from ebbtide.workers.single import SingleVisits

log = structlog.get_logger()

_HAS_INSTANCE = (Phase.BOOTING, Phase.BOOTSTRAPPING, Phase.RUNNING, Phase.DRAINING)
CONTROL_PLANES = "control planes"  # the visit's key beside those of the pools


class Leaks(SingleVisits):
    loop = Loop.LEAKS

    def __init__(self, db: Database, settings: Settings, provider: Provider) -> None:
        super().__init__(db, settings)
        self._provider = provider

    async def visit(self, visit: Visit) -> Outcome:
        found = await (self._control_planes() if visit.key == CONTROL_PLANES else self._instances(visit))
        async with self._db.transaction() as tx:
            again = tx.now + timedelta(seconds=self._settings.leaks_every_s)
            return await finish(tx, visit, Outcome(found, again))

    async def _instances(self, visit: Visit) -> str:
        listed = await self._provider.list(visit.key)
        async with self._db.read() as tx:
            live = {node.uid: node for node in await nodes.of_pool(tx, visit.key)}
            known = await nodes.by_uids(tx, [instance.node_uid for instance in listed])
        # Read after the list: a node placed since is not on the list yet, one removed since is still on it
        # and is done. A provider may list other pools' machines, too: they are somebody's all the same.
        ended = {uid for uid, node in known.items() if node.phase is Phase.REMOVED}
        leaked = [one for one in listed if one.node_uid not in known or one.node_uid in ended]
        for instance in leaked:
            visit.check(self._db.clock.now())
            log.warning("instance without a node", instance=instance.instance_id, host=instance.host_name)
            try:
                if await self._provider.stop(instance.node_uid):
                    await self._provider.delete(instance.node_uid)
            except ProviderError as error:  # the others go all the same; this one is tried again next time
                log.warning("it stays for now", instance=instance.instance_id, why=error.message)
        missing = await self._missing(live, {instance.node_uid for instance in listed})
        return f"{len(listed)} instances; {len(leaked)} nobody's, {missing} missing"

    async def _missing(self, live: dict[str, NodeRow], listed: set[str]) -> int:
        """Wake whoever decides about nodes that the provider does not list; this loop only compares."""
        missing = [node for node in live.values() if node.phase in _HAS_INSTANCE and node.uid not in listed]
        joining = [node.uid for node in missing if node.phase in (Phase.BOOTING, Phase.BOOTSTRAPPING)]
        async with self._db.transaction() as tx:
            await visits.hint(tx, Loop.LIFECYCLE, joining)
            await visits.hint(
                tx, Loop.OBSERVATION, sorted({node.cluster_id for node in missing if node.cluster_id})
            )
        return len(missing)

    async def _control_planes(self) -> str:
        listed = await self._provider.list_control_planes()
        async with self._db.read() as tx:
            rows = {row.id: row for row in await clusters.by_ids(tx, listed)}
        leaked = [one for one in listed if one not in rows or rows[one].phase is ClusterPhase.DELETED]
        for cluster_id in leaked:
            log.warning("control plane without a cluster", cluster=cluster_id)
            await self._provider.delete_control_plane(cluster_id)
        return f"{len(listed)} control planes; {len(leaked)} nobody's"
