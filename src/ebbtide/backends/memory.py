"""What the provider `exec` remembers, kept in the store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from ebbtide.errors import Unavailable
from ebbtide.providers.base import Instance, InstanceOrder, Transient
from ebbtide.providers.memory import Noted, Remembered
from ebbtide.store import instances
from ebbtide.store.db import Database, Tx
from ebbtide.store.instances import InstanceRow


class StoredMemory:
    """A `Memory` in the table `instances`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def remember(self, order: InstanceOrder, hold_s: int) -> Remembered:
        async def work(tx: Tx) -> InstanceRow | None:
            plain = asdict(order)
            join = plain.pop("join")
            await instances.put(tx, order.node_uid, order.pool, order.host_name, plain, join)
            return await instances.hold(tx, order.node_uid, hold_s)

        with _reached():
            row = await self._db.run(work)
        if row is None:
            raise _busy()
        return _remembered(row)

    async def recall(self, node_uid: str, hold_s: int) -> Remembered | None:
        async def work(tx: Tx) -> InstanceRow | None:
            row = await instances.hold(tx, node_uid, hold_s)
            # Whoever had it may have let go since; that there is a row never changes back.
            if row is None and await instances.is_known(tx, node_uid):
                raise _busy()
            return row

        with _reached():
            row = await self._db.run(work)
        return None if row is None else _remembered(row)

    async def note(self, held: Remembered, noted: Noted) -> None:
        kept = ("handle", "instance_id", "address", "state", "wiped_first_by", "wiped_by")
        values = {name: value for name in kept if (value := getattr(noted, name))}

        async def work(tx: Tx) -> None:
            await instances.release(
                tx,
                held.order.node_uid,
                held.held_until,
                gone=noted.gone,
                verb=noted.verb,
                exit_code=noted.code,
                output=noted.output.replace("\0", " "),
                ran_at=tx.now,
                **values,
            )

        with _reached():
            await self._db.run(work)

    async def let_go(self, held: Remembered) -> None:
        async def work(tx: Tx) -> None:
            await instances.release(tx, held.order.node_uid, held.held_until)

        with _reached():
            await self._db.run(work)

    async def bury(self, node_uid: str) -> None:
        with _reached():
            await self._db.run(lambda tx: instances.bury(tx, node_uid))

    async def listed(self, pool: str) -> list[Remembered]:
        with _reached():
            async with self._db.read() as tx:
                return [_remembered(row) for row in await instances.listed(tx, pool)]

    async def found(self, pool: str, listed: Sequence[Instance]) -> None:
        if not listed:
            return

        async def work(tx: Tx) -> None:
            unknown = await instances.unknown_among(tx, [one.node_uid for one in listed])
            await instances.reopen(
                tx, pool, [_as_found(pool, one) for one in listed if one.node_uid in unknown]
            )

        with _reached():
            await self._db.run(work)


@contextlib.contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except Unavailable as away:
        raise Transient(away.message) from away


def _busy() -> Transient:
    return Transient("another program runs for this node")


def _as_found(pool: str, one: Instance) -> dict[str, object]:
    order = InstanceOrder(
        node_uid=one.node_uid,
        node_name="",
        compute_class="",
        cluster_id="",
        project_id="",
        pool=pool,
        host_id="",
        host_name=one.host_name,
        gpus=0,
    )
    facts = asdict(order)
    facts.pop("join")
    return {
        "node_uid": one.node_uid,
        "host_name": one.host_name,
        "instance_id": one.instance_id,
        "address": one.address,
        "facts": facts,
    }


def _remembered(row: InstanceRow) -> Remembered:
    facts = dict(row.facts)
    facts["taints"] = tuple(facts.get("taints", ()))
    order = InstanceOrder(**facts, join=row.join_data) if row.facts else _nothing(row.node_uid)
    return Remembered(
        order=order,
        handle=row.handle,
        state=row.state,
        instance_id=row.instance_id,
        address=row.address,
        wiped_first_by=row.wiped_first_by,
        gone=row.gone,
        wiped_by=row.wiped_by,
        held_until=row.held_until,
    )


def _nothing(node_uid: str) -> InstanceOrder:
    """The order of a node that never had a machine."""
    return InstanceOrder(node_uid, "", "", "", "", "", "", "", 0)
