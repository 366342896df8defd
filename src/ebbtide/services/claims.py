"""Demand from other systems: hosts asked for by reference, handed over by name, given back by name."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime

from ebbtide.core.claims import ClaimKind
from ebbtide.core.nodes import EndReason, Phase
from ebbtide.core.words import many
from ebbtide.errors import BadInput, Conflict, NotFound
from ebbtide.services.access import require_operator
from ebbtide.services.audit import record
from ebbtide.services.capacity import Demand, Planner
from ebbtide.services.details import Caller, ClaimDetails, DrainingHost
from ebbtide.store import claims, nodes, pools, visits
from ebbtide.store.claims import ClaimRow
from ebbtide.store.db import Database, Tx
from ebbtide.store.nodes import Move, NodeRow
from ebbtide.store.visits import Loop

_MOST_HOSTS = 100_000


class ClaimService:
    def __init__(self, db: Database, planner: Planner) -> None:
        self._db = db
        self._planner = planner

    async def create(self, caller: Caller, pool: str, hosts: int, ref: str, for_whom: str) -> ClaimDetails:
        """Claim hosts of a pool (operators). The same reference with the same arguments answers the same
        claim.

        Raises NotFound (pool), BadInput, Conflict (not enough hosts; the reference means something else).
        """
        require_operator(caller)
        if not 1 <= hosts <= _MOST_HOSTS:
            raise BadInput(f"hosts is between 1 and {_MOST_HOSTS:,}, got {hosts}", param="hosts")
        args_hash = hashlib.sha256(json.dumps([pool, hosts, for_whom]).encode()).hexdigest()[:16]

        async def work(tx: Tx) -> ClaimDetails:
            await claims.lock_ref(tx, ref)
            locked = await pools.lock(tx, pool)
            seen = await claims.by_ref(tx, ref)
            if seen and seen.ended_at is None:
                if seen.args_hash != args_hash:
                    raise Conflict(
                        f"the reference {ref!r} is in use for another claim: that one is {_told(seen)}, "
                        f"this one would be {many(hosts, 'host')} of {pool} for {for_whom!r}. Ask for the "
                        f"same again, or use another reference. (Their arguments have the hashes "
                        f"{seen.args_hash} and {args_hash}.)",
                        code="ref_reused",
                    )
                return await _details(tx, seen)
            demand = Demand(
                ClaimKind.EXTERNAL,
                hosts,
                for_whom,
                caller.project_id,
                node_group="claim",
                ref=ref,
                args_hash=args_hash,
            )
            claim_id = await self._planner.promise(tx, locked, demand)
            after = {"ref": ref, "pool": pool, "hosts": hosts, "for": for_whom}
            await record(tx, caller, "claim.create", claim_id, after=after)
            row = await claims.load(tx, claim_id)
            assert row is not None
            return await _details(tx, row)

        return await self._db.run(work)

    async def list(self, caller: Caller, pool: str | None = None) -> tuple[ClaimDetails, ...]:
        """Claims in force, standard ones too, oldest first (operators)."""
        require_operator(caller)
        async with self._db.read() as tx:
            return tuple([await _details(tx, row) for row in await claims.in_force(tx, pool)])

    async def retrieve(self, caller: Caller, ref: str) -> ClaimDetails:
        """The claim under a reference, the last ended one if none is in force (operators).

        Raises NotFound.
        """
        require_operator(caller)
        async with self._db.read() as tx:
            return await _details(tx, await _by_ref(tx, ref))

    async def give_back(self, caller: Caller, ref: str, hosts: tuple[str, ...] | None = None) -> ClaimDetails:
        """Give back hosts by name, or everything: what was promised but not handed over is cancelled
        (operators).

        Repeated it changes nothing. Raises NotFound (reference, or a host that the claim never had).
        """
        require_operator(caller)

        async def work(tx: Tx) -> ClaimDetails:
            pool = await pools.lock(tx, (await _by_ref(tx, ref)).pool)
            row = await _by_ref(tx, ref)
            held = await nodes.of_claim(tx, row.id)
            ending = [node for node in _chosen(held, hosts, ref) if _in_force(node)]
            await nodes.move(tx, [_end(node) for node in ending])
            if ending:
                before = {"ref": ref, "hosts": [node.host_name for node in ending if node.host_name]}
                await record(tx, caller, "claim.give_back", row.id, before=before)
            await claims.settle(tx, pool.name)
            await visits.hint(tx, Loop.FULFILLMENT, [pool.name])
            return await _details(tx, await _by_ref(tx, ref))

        return await self._db.run(work)


def _told(row: ClaimRow) -> str:
    return f"{many(row.hosts, 'host')} of {row.pool} for {row.for_whom!r}"


async def _by_ref(tx: Tx, ref: str) -> ClaimRow:
    row = await claims.by_ref(tx, ref)
    if row is None:
        raise NotFound(f"there is no claim with the reference {ref[:80]!r}", code="claim_not_found")
    return row


def _chosen(held: list[NodeRow], hosts: tuple[str, ...] | None, ref: str) -> list[NodeRow]:
    if hosts is None:
        return held
    strangers = set(hosts) - {node.host_name for node in held}
    if strangers:
        raise NotFound(f"claim {ref!r} never had: {', '.join(sorted(strangers))}", param="hosts")
    return [node for node in held if node.host_name in hosts]


def _in_force(node: NodeRow) -> bool:
    return node.phase not in (Phase.REMOVING, Phase.REMOVED)


def _end(node: NodeRow) -> Move:
    after = Phase.REMOVED if node.phase is Phase.PENDING else Phase.REMOVING
    reason = EndReason.CANCELLED if node.phase is Phase.PENDING else EndReason.SCALED_DOWN
    return Move(node.uid, node.phase, after, end_reason=reason, why="given back")


async def _details(tx: Tx, row: ClaimRow) -> ClaimDetails:
    held = await nodes.of_claim(tx, row.id)
    leaving = await nodes.taken_for(tx, row.id)
    return ClaimDetails(
        id=row.id,
        kind=row.kind,
        pool=row.pool,
        hosts=row.hosts,
        ref=row.ref,
        for_whom=row.for_whom,
        state=row.state,
        given=tuple(node.host_name for node in held if node.host_name and _in_force(node)),
        draining=tuple(DrainingHost(node.host_name, _until(node)) for node in leaving if node.host_name),
        waiting=sum(node.phase is Phase.PENDING for node in held),
        created_at=row.created_at,
        served_at=row.served_at,
        ended_at=row.ended_at,
    )


def _until(node: NodeRow) -> datetime | None:
    return node.deadline if node.phase is Phase.DRAINING else None
