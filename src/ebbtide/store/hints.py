"""Hints between processes: LISTEN and NOTIFY. A lost one costs a poll's wait, never a visit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import structlog
from sqlalchemy.engine import make_url

log = structlog.get_logger()

CHANNEL = "ebbtide_visits"
RECONNECT_S = 5.0


async def listen(url: str, wake: Callable[[str], None]) -> None:
    """Call `wake(loop)` for every hint that another process commits.

    For ever; it connects again when the server was away.
    """
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    while True:
        try:
            async with await psycopg.AsyncConnection.connect(plain, autocommit=True) as connection:
                await connection.execute(f"LISTEN {CHANNEL}")
                async for notice in connection.notifies():
                    for loop in notice.payload.split(","):
                        wake(loop)
        except psycopg.OperationalError as error:
            log.warning("not listening for hints; polling meanwhile", why=str(error))
        await asyncio.sleep(RECONNECT_S)
