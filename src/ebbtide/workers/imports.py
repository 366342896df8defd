"""Looking at an imported cluster: whether we may work there, which nodes it has, what is wrong."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import structlog

from ebbtide.drivers.base import Driver, DriverError, NodeRef, StandardNode
from ebbtide.store import nodes
from ebbtide.store.clusters import ClusterRow
from ebbtide.store.db import Database
from ebbtide.workers.refs import ref_of

log = structlog.get_logger()

LOOK_S = 60  # between two looks at nodes that are somebody else's
_RIGHTS_NAMED = 5


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look found. problem: why nothing may be made of it."""

    standard: list[StandardNode] = field(default_factory=list)
    problem: str | None = None

    @property
    def told(self) -> list[dict[str, object]]:
        """The nodes as the cluster's row keeps them."""
        return [asdict(each) for each in self.standard]

    @property
    def sentence(self) -> str:
        return self.problem or f"{len(self.standard)} standard nodes seen"


async def look(db: Database, driver: Driver, row: ClusterRow) -> Seen:
    """Look once. Rights are asked for until the first look that went well, and after each that did not."""
    try:
        ref = ref_of(db, row)
        doubtful = not row.control_plane_ready or row.import_problem
        if doubtful and (missing := await driver.missing_rights(ref)):
            return Seen(problem=_without(missing))
        standard = await driver.standard(ref, row.standard_selector or "")
    except DriverError as error:
        return Seen(problem=error.message)
    if not standard:
        return Seen(problem=f"no node of the cluster has the labels {row.standard_selector}")
    return Seen(standard)


def _without(missing: list[str]) -> str:
    named = ", ".join(missing[:_RIGHTS_NAMED])
    more = f" and {len(missing) - _RIGHTS_NAMED} more" if len(missing) > _RIGHTS_NAMED else ""
    return f"Ebbtide may not {named}{more} there; apply what `ebbtide kube manifests` prints"


async def sweep(db: Database, driver: Driver, row: ClusterRow) -> str | None:
    """Take Node objects away that a detached cluster still has of us: nobody looks at it any more afterwards.
    Answer what keeps one there.
    """
    try:
        ref = ref_of(db, row)
        seen = {each.uid: each for each in await driver.observe(ref)}
        async with db.read() as tx:
            gone = await nodes.gone_among(tx, row.id, {uid: one.name for uid, one in seen.items()})
        for uid in gone:
            if not await driver.remove(ref, NodeRef(uid, seen[uid].name)):
                return f"waiting for node {seen[uid].name} to leave the cluster"
            log.warning("zombie node removed", cluster=row.id, node=seen[uid].name)
    except DriverError as error:
        return error.message
    return None
