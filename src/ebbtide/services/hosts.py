"""The operator's hosts, one by one: added, worked on, given back, removed, and who was on them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ebbtide.core.hosts import HostState
from ebbtide.core.nodes import Phase
from ebbtide.errors import BadInput, Conflict, NotFound
from ebbtide.ids import Ids
from ebbtide.services.access import require_operator
from ebbtide.services.audit import record
from ebbtide.services.capacity import Planner
from ebbtide.services.details import Caller, HostDetails
from ebbtide.services.fleet import FILE, host_details, host_named, locked_host
from ebbtide.services.fleet_apply import SYNC
from ebbtide.services.fleet_hosts import DEFAULT_BLOCK, DNS_LABEL, DNS_RULE
from ebbtide.services.maintenance import Maintainer, Wish
from ebbtide.settings import Settings
from ebbtide.store import fleet, maintenance, pools, visits
from ebbtide.store.db import Database, Tx
from ebbtide.store.fleet import HostRow
from ebbtide.store.maintenance import MaintenanceRow, Stay
from ebbtide.store.pools import PoolRow
from ebbtide.store.visits import Loop

BY_API = "api"  # hosts.source of what was added here
HISTORY = 50
_MOST_REASON = 255


@dataclass(frozen=True, slots=True)
class MaintenanceDetails:
    """One time that a host is, or was, out of use.

    state: `draining` until the host is empty, `held`, or `ended`
    disturbed: the nodes that had to go for it, its occupant first
    """

    state: str
    reason: str
    until: datetime | None
    began_at: datetime
    began_by: str | None
    held_at: datetime | None
    ended_at: datetime | None
    ended_how: str | None
    disturbed: tuple[Stay, ...]


@dataclass(frozen=True, slots=True)
class HostReport:
    """A host, its latest maintenance, and who was on it, the latest first.

    dry_run: whether this is only what would be
    """

    host: HostDetails
    maintenance: MaintenanceDetails | None
    history: tuple[Stay, ...]
    dry_run: bool = False


class _Undone(Exception):
    """Carries a report out of a transaction that must leave nothing behind."""

    def __init__(self, report: HostReport) -> None:
        self.report = report


class HostService:
    def __init__(self, db: Database, ids: Ids, settings: Settings, planner: Planner) -> None:
        self._db = db
        self._ids = ids
        self._maintainer = Maintainer(settings, ids, planner)

    async def show(self, caller: Caller, name: str) -> HostReport:
        """A host with its history (operators). Raises NotFound."""
        require_operator(caller)
        async with self._db.read() as tx:
            return await _report(tx, await host_named(tx, name))

    async def add(self, caller: Caller, name: str, pool: str, fabric_block: str | None = None) -> HostDetails:
        """Add a host to a pool (operators). One that was removed comes back with its cordon or quarantine.

        Adding it again as it is changes nothing. Raises BadInput, NotFound (pool), Conflict (another host has
        the name).
        """
        require_operator(caller)
        block = fabric_block or DEFAULT_BLOCK
        for word, param in ((name, "name"), (block, "fabric_block")):
            if not DNS_LABEL.fullmatch(word):
                raise BadInput(f"{param} {word[:80]!r} must be {DNS_RULE}", param=param)

        async def work(tx: Tx) -> HostDetails:
            await fleet.lock_file(tx)  # a file may list the same name at the same moment
            locked = await _pool(tx, pool)
            found = await fleet.hosts_by_names(tx, [name])
            known = found[0] if found else None
            if known is not None and known.state is not HostState.RETIRED:
                if (known.pool, known.fabric_block) == (pool, block):
                    return host_details(known)
                raise Conflict(
                    f"there is a host {name!r} already, in pool {known.pool}, block {known.fabric_block}",
                    param="name",
                    code="host_exists",
                )
            if known is not None and known.node_uid and known.pool != pool:
                raise Conflict(
                    f"{name} left the inventory of pool {known.pool} and is still lent there; add it when it "
                    f"is free (`ebbtide fleet hosts show {name}`)",
                    code="host_busy",
                )
            await self._put(tx, known, name, pool, block)
            await visits.hint(tx, Loop.FULFILLMENT, [locked.name])
            after = {"pool": pool, "fabric_block": block}
            await record(tx, caller, "host.add", name, after=after)
            return host_details(await host_named(tx, name))

        return await self._db.run(work)

    async def _put(self, tx: Tx, known: HostRow | None, name: str, pool: str, block: str) -> None:
        if known is None:
            row = {"id": self._ids.uuid4(), "pool": pool, "name": name, "fabric_block": block}
            await fleet.add_hosts(tx, [{**row, "source": BY_API}])
        else:
            await fleet.bring_back(tx, known.id)
            await fleet.set_host(tx, known.id, pool=pool, fabric_block=block, source=BY_API)

    async def drain(
        self,
        caller: Caller,
        name: str,
        reason: str,
        until: datetime | None = None,
        *,
        dry_run: bool = False,
    ) -> HostReport:
        """Have a host emptied to be worked on, and hold it until it is given back (operators).

        A preemptible node gets its notice. A standard one is replaced: its cluster is promised another host
        first. Asked again, it only takes the new reason and end. dry_run: say what would be, and do nothing.
        Raises NotFound, BadInput, Conflict (see `Maintainer.begin`).
        """
        require_operator(caller)
        if not reason.strip() or len(reason) > _MOST_REASON:
            raise BadInput(f"reason has 1 to {_MOST_REASON} characters", param="reason")
        wish = Wish(reason.strip(), until, caller.key_id)

        async def work(tx: Tx) -> HostReport:
            pool, host = await locked_host(tx, name)
            if until and until <= tx.now:
                raise BadInput("until is in the past", param="until")
            going_on = await maintenance.open_of(tx, host.id)
            if going_on is None:
                await self._maintainer.begin(tx, pool, host, wish)
                before: dict[str, object] = {"state": host.state, "lent_to": host.lent_to}
                await record(tx, caller, "host.drain", name, before=before, after=_told(wish))
            elif (going_on.reason, going_on.until) != (wish.reason, wish.until):
                await self._reword(tx, caller, host, going_on, wish)
            report = await _report(tx, await host_named(tx, name), dry_run=dry_run)
            if dry_run:
                raise _Undone(report)
            return report

        try:
            return await self._db.run(work)
        except _Undone as undone:
            return undone.report

    async def _reword(self, tx: Tx, caller: Caller, host: HostRow, row: MaintenanceRow, wish: Wish) -> None:
        await maintenance.set_fields(tx, row.id, reason=wish.reason, until=wish.until)
        await fleet.set_host(tx, host.id, state_reason=wish.remark)
        before = _told(Wish(row.reason, row.until))
        await record(tx, caller, "host.drain", host.name, before=before, after=_told(wish))

    async def give_back(self, caller: Caller, name: str) -> HostReport:
        """Put a host that was worked on back into service, or call its draining off (operators).

        A node that was noticed goes all the same: a notice is final. Of a host that is in service it changes
        nothing. Raises NotFound, Conflict (cordoned or quarantined without maintenance).
        """
        require_operator(caller)

        async def work(tx: Tx) -> HostReport:
            pool, host = await locked_host(tx, name)
            row = await maintenance.open_of(tx, host.id)
            if row is None:
                if host.state is not HostState.AVAILABLE:
                    raise Conflict(
                        f"{name} is {host.state} and not in maintenance; `ebbtide fleet hosts uncordon "
                        f"{name}` puts it back into service",
                        code="not_in_maintenance",
                    )
                return await _report(tx, host)
            await self._maintainer.end(tx, pool, row, "returned")
            await fleet.set_host(tx, host.id, state=HostState.AVAILABLE, state_reason=None, boot_failures=0)
            await record(tx, caller, "host.return", name, before=_told(Wish(row.reason, row.until)))
            return await _report(tx, await host_named(tx, name))

        return await self._db.run(work)

    async def remove(self, caller: Caller, name: str) -> HostDetails:
        """Take a free or drained host out of the inventory; its history stays (operators).

        Raises NotFound, Conflict (somebody has it, or the fleet file lists it).
        """
        require_operator(caller)

        async def work(tx: Tx) -> HostDetails:
            pool, host = await locked_host(tx, name)
            row = await maintenance.open_of(tx, host.id)
            _check_removable(host, row)
            await self._maintainer.check_removal(tx, pool, host)
            if row:
                await self._maintainer.end(tx, pool, row, "removed")
            await fleet.retire(tx, host.id, "removed by an operator")
            before = {"state": host.state, "pool": host.pool, "fabric_block": host.fabric_block}
            await record(tx, caller, "host.remove", name, before=before)
            await visits.hint(tx, Loop.FULFILLMENT, [pool.name])
            (gone,) = await fleet.hosts_by_names(tx, [name])
            return host_details(gone)

        return await self._db.run(work)


def _check_removable(host: HostRow, row: MaintenanceRow | None) -> None:
    if host.source == SYNC:
        raise Conflict(
            f"{host.name} is listed by the inventory that `ebbtide fleet sync` takes, and would come back "
            f"with it: take it out there. A free or drained host leaves at once.",
            code="host_in_file",
        )
    if host.source == FILE:
        raise Conflict(
            f"{host.name} is listed in the fleet file, which owns which hosts there are: take it out there, "
            f"and reload (`ebbtide fleet apply FILE`). A free or drained host leaves at once.",
            code="host_in_file",
        )
    if row and row.node_phase is Phase.PENDING:
        raise Conflict(
            f"{host.name} is still being drained; `ebbtide fleet hosts show {host.name}` says until when",
            code="host_draining",
        )
    if host.node_uid and row is None:
        raise Conflict(
            f"{host.name} is lent to {host.lent_to or 'somebody'}; drain it first: `ebbtide fleet hosts "
            f'drain {host.name} --reason "..."`',
            code="host_lent",
        )


def _told(wish: Wish) -> dict[str, object]:
    return {"reason": wish.reason, "until": wish.until.isoformat() if wish.until else None}


async def _pool(tx: Tx, name: str) -> PoolRow:
    if name not in {pool.name for pool in await pools.all_(tx)}:
        raise NotFound(f"there is no pool {name[:80]!r}; `ebbtide fleet pools` lists them", param="pool")
    return await pools.lock(tx, name)


async def _report(tx: Tx, host: HostRow, *, dry_run: bool = False) -> HostReport:
    row = await maintenance.latest(tx, host.id)
    stays = await maintenance.stays(tx, host.id, HISTORY)
    return HostReport(host_details(host), await _details(tx, row) if row else None, tuple(stays), dry_run)


async def _details(tx: Tx, row: MaintenanceRow) -> MaintenanceDetails:
    disturbed = {stay.uid: stay for stay in await maintenance.stays_of(tx, row.disturbed)}
    state = "draining" if row.node_phase is Phase.PENDING else "held"
    return MaintenanceDetails(
        state=state if row.ended_at is None else "ended",
        reason=row.reason,
        until=row.until,
        began_at=row.created_at,
        began_by=row.began_by,
        held_at=row.held_at,
        ended_at=row.ended_at,
        ended_how=row.ended_how,
        disturbed=tuple(disturbed[uid] for uid in row.disturbed),
    )
