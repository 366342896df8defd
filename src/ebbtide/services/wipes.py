"""Who wiped which host, for whoever has to prove it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ebbtide.errors import BadInput
from ebbtide.services.access import require_operator
from ebbtide.services.details import Caller
from ebbtide.store import wipes
from ebbtide.store.db import Database

MOST_WIPES = 1_000


@dataclass(frozen=True, slots=True)
class Wipe:
    """moment: `after` the node left the host, or `before` it started. wiped_by: in its provider's words."""

    host: str
    pool: str
    node: str
    node_uid: str
    project_id: str | None
    moment: str
    wiped_by: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Carrying:
    """A host that nothing has wiped since. project_id: whose data it carries, or `several`."""

    host: str
    project_id: str


@dataclass(frozen=True, slots=True)
class Wipes:
    """wipes: the newest first. carrying: hosts that are not wiped."""

    wipes: tuple[Wipe, ...]
    carrying: tuple[Carrying, ...]


class WipeService:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def list(
        self, caller: Caller, *, host: str | None = None, node: str | None = None, limit: int = 100
    ) -> Wipes:
        """Wipes of all hosts, of one by its name, or around one node by its name or uid (operators)."""
        require_operator(caller)
        if not 1 <= limit <= MOST_WIPES:
            raise BadInput(f"limit is from 1 to {MOST_WIPES}, got {limit}", param="limit")
        async with self._db.read() as tx:
            rows = await wipes.read(tx, host=host, node=node, limit=limit)
            carried = await wipes.carried(tx, host) if node is None else {}
        return Wipes(
            tuple(
                Wipe(
                    row.host_name,
                    row.pool,
                    row.node_name,
                    row.node_uid,
                    row.project_id,
                    row.moment,
                    row.wiped_by,
                    row.at,
                )
                for row in rows
            ),
            tuple(Carrying(name, project_id) for name, project_id in carried.items()),
        )
