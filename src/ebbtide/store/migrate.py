"""Bringing a database's schema up to date (Alembic).

Run by `up`, `serve` and `worker` at their start, and by tests.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext

from ebbtide.errors import StartupError
from ebbtide.store.all_tables import metadata

_FOLDER = Path(__file__).parent / "migrations"
_LOCK = 0x0EBB_71DE  # of several processes that start at once, one migrates and the others wait


def _config(connection: sa.Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    config.attributes["connection"] = connection
    return config


def upgrade(url: str) -> None:
    """Bring the schema at `url` to the newest revision.

    Raises StartupError when the database cannot be reached.
    """
    engine = sa.create_engine(url)
    try:
        with engine.begin() as connection:
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            command.upgrade(_config(connection), "head")
    except sa.exc.OperationalError as error:
        raise StartupError(
            f"cannot use the database: {error.orig}. Check the URL and that the server runs."
        ) from error
    finally:
        engine.dispose()


def differences(url: str) -> list[object]:
    """What the tables in the code have that the migrated schema has not, or the other way round.

    Empty when they agree.
    """
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            return list(compare_metadata(MigrationContext.configure(connection), metadata))
    finally:
        engine.dispose()
