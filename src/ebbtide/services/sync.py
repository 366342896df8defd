"""Taking inventory from the operator's own source: a whole fleet file as JSON, or the hosts of one pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import yaml

from ebbtide.errors import BadInput
from ebbtide.ids import Ids
from ebbtide.services.access import require_operator
from ebbtide.services.audit import record
from ebbtide.services.capacity import Planner
from ebbtide.services.details import Caller
from ebbtide.services.fleet_apply import Applier, FleetChanges
from ebbtide.services.fleet_file import FleetFile, HostSpec, parse
from ebbtide.services.fleet_hosts import read_hosts
from ebbtide.services.fleet_yaml import Fields, Problems, compose, decode, kind
from ebbtide.services.maintenance import Maintainer
from ebbtide.settings import Settings
from ebbtide.store.db import Database, Tx

MOST_REMOVED_PERCENT = 20
_SOURCE = "inventory"


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What was done, or with `dry_run` what would be."""

    done: tuple[str, ...]
    kept: tuple[str, ...]
    dry_run: bool


class _Undone(Exception):
    """Carries what would be done out of a transaction that must leave nothing behind."""

    def __init__(self, changes: FleetChanges) -> None:
        self.changes = changes


class SyncService:
    def __init__(
        self,
        db: Database,
        ids: Ids,
        settings: Settings,
        planner: Planner,
        on_fleet: Callable[[FleetFile], None] | None = None,
    ) -> None:
        self._db = db
        self._on_fleet = on_fleet
        self._applier = Applier(ids, settings, Maintainer(settings, ids, planner))

    async def inventory(
        self,
        caller: Caller,
        text: str | bytes,
        *,
        pool: str | None = None,
        dry_run: bool = False,
        most_removed_percent: int = MOST_REMOVED_PERCENT,
    ) -> SyncReport:
        """Bring the fleet in line with an inventory (operators): all of it, or the hosts of one pool.

        pool: the inventory lists this pool's hosts only; those listed by the fleet file or added one by one
        stay as they are
        most_removed_percent: when more of a pool's hosts would leave at once, or an inventory of one pool
        names hosts of another or of another list, nothing is changed; 100: whatever it says is done
        Raises BadInput (a malformed inventory, too many that leave), NotFound (the pool).
        """
        require_operator(caller)
        if not 0 <= most_removed_percent <= 100:
            raise BadInput(
                f"most_removed_percent is from 0 to 100, got {most_removed_percent}",
                param="most_removed_percent",
            )
        file = parse(text, _SOURCE) if pool is None else None
        hosts = parse_hosts(pool, text) if pool is not None else ()

        async def work(tx: Tx) -> FleetChanges:
            if file is not None:
                changes = await self._applier.file(tx, file, most_removed_percent=most_removed_percent)
            else:
                assert pool is not None
                changes = await self._applier.hosts(
                    tx, pool, hosts, most_removed_percent=most_removed_percent
                )
            if dry_run:
                raise _Undone(changes)
            if changes.done or changes.kept:
                after = {"done": changes.done, "kept": changes.kept}
                await record(tx, caller, "fleet.sync", pool or "fleet", after=after)
            return changes

        try:
            changes = await self._db.run(work)
        except _Undone as undone:
            changes = undone.changes
        if file is not None and self._on_fleet and not dry_run:
            self._on_fleet(file)
        return SyncReport(changes.done, changes.kept, dry_run)


def parse_hosts(pool: str, data: str | bytes) -> tuple[HostSpec, ...]:
    """The hosts of one pool: a list as the fleet file has it, or an object with `hosts` or `blocks`.

    Raises BadInput, once for all problems found.
    """
    problems = Problems(_SOURCE)
    root = compose(decode(data, problems), problems)
    found: tuple[HostSpec, ...] = ()
    if isinstance(root, yaml.SequenceNode):
        key = yaml.ScalarNode("tag:yaml.org,2002:str", "hosts", root.start_mark, root.end_mark)
        root = yaml.MappingNode("tag:yaml.org,2002:map", [(key, root)], root.start_mark, root.end_mark)
    if isinstance(root, yaml.MappingNode):
        fields = Fields(root, f"the inventory of pool {pool}", ("blocks", "hosts"), problems)
        found = read_hosts(pool, fields, problems)
    else:
        what = kind(root) if root is not None else "nothing"
        problems.add(1, f"the inventory must be a list of hosts, or an object with `hosts`, not {what}")
    problems.raise_if_any()
    return found
