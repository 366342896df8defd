"""The schema: code and migrations say the same, and going up twice is harmless."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa
from alembic import command

from ebbtide.errors import Conflict, StartupError
from ebbtide.store import migrate
from ebbtide.store.tables import metadata


def _tables(url: str) -> set[str]:
    engine = sa.create_engine(url)
    try:
        return set(sa.inspect(engine).get_table_names())
    finally:
        engine.dispose()


def test_the_migrations_make_what_the_code_says(database_url: str) -> None:
    assert migrate.differences(database_url) == []
    assert _tables(database_url) == {*metadata.tables, "alembic_version"}


def test_a_difference_would_be_seen(database_url: str) -> None:
    engine = sa.create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE nodes ADD COLUMN mood text"))
        connection.execute(sa.text("DROP INDEX uq_nodes_one_occupant"))
    engine.dispose()
    assert len(migrate.differences(database_url)) == 2


def test_upgrading_again_changes_nothing(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url)
    tables = _tables(empty_database_url)
    migrate.upgrade(empty_database_url)
    assert _tables(empty_database_url) == tables
    assert migrate.differences(empty_database_url) == []


def test_down_and_up_again_is_the_same_schema(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url)
    engine = sa.create_engine(empty_database_url)
    with engine.begin() as connection:
        command.downgrade(migrate._config(connection), "base")
    engine.dispose()
    assert _tables(empty_database_url) == {"alembic_version"}
    migrate.upgrade(empty_database_url)
    assert migrate.differences(empty_database_url) == []


async def test_of_processes_that_start_at_once_one_migrates_and_the_others_wait(
    empty_database_url: str,
) -> None:
    await asyncio.gather(*(asyncio.to_thread(migrate.upgrade, empty_database_url) for _ in range(4)))
    assert migrate.differences(empty_database_url) == []


def test_a_database_that_is_not_there_is_said_plainly(database_url: str) -> None:
    elsewhere = database_url.replace("/test_", "/no_such_")
    with pytest.raises(StartupError, match="cannot use the database"):
        migrate.upgrade(elsewhere)


def test_organisations_of_projects_become_rows_and_are_fields_again_on_the_way_down(
    empty_database_url: str,
) -> None:
    """Two of one name were possible: names are unique now, and nobody loses its own id."""
    engine = sa.create_engine(empty_database_url)
    with engine.begin() as connection:
        command.upgrade(migrate._config(connection), "0003")
        connection.execute(
            sa.text("""
            INSERT INTO projects (id, slug, name, organization_id, organization_name, created_at)
            VALUES ('p1', 'a', 'A', 'one-0001', 'Acme', '2026-01-01'),
                   ('p2', 'b', 'B', 'one-0001', 'Acme', '2026-01-02'),
                   ('p3', 'c', 'C', 'two-0002', 'Acme', '2026-01-03'),
                   ('p4', 'd', 'D', 'six-0003', 'Else', '2026-01-04')
            """)
        )
    migrate.upgrade(empty_database_url)
    read = """
        SELECT p.slug, o.id, o.name FROM projects p JOIN organizations o ON o.id = p.organization_id
        ORDER BY p.slug
    """
    with engine.begin() as connection:
        assert [tuple(row) for row in connection.execute(sa.text(read))] == [
            ("a", "one-0001", "Acme"),
            ("b", "one-0001", "Acme"),
            ("c", "two-0002", "Acme two-0002"),
            ("d", "six-0003", "Else"),
        ]
        command.downgrade(migrate._config(connection), "0003")
        fields = connection.execute(sa.text("SELECT slug, organization_name FROM projects ORDER BY 1"))
        assert [tuple(row) for row in fields][2] == ("c", "Acme two-0002")
    engine.dispose()


def test_going_down_deletes_what_the_old_schema_cannot_hold_and_keeps_live_imports(
    empty_database_url: str,
) -> None:
    migrate.upgrade(empty_database_url)
    engine = sa.create_engine(empty_database_url)
    with engine.begin() as connection:
        for statement in (
            "INSERT INTO organizations (id, name, created_at) VALUES ('o', 'O', '2026-01-01')",
            """INSERT INTO projects (id, slug, name, organization_id, created_at)
               VALUES ('p', 'p', 'P', 'o', '2026-01-01')""",
            "INSERT INTO regions (name, position, driver_versions) VALUES ('eu-1', 0, '[]')",
            """INSERT INTO pools (name, region, gpu_type, gpus_per_host, headroom_hosts, turn_over_s, boot_s,
                                  memory_gib, cpu_cores, provider, created_at)
               VALUES ('h100', 'eu-1', 'H100_SXM', 8, 0, 5, 5, 8, 8, '', '2026-01-01')""",
            """INSERT INTO clusters (id, project_id, name, region, pool, gpu_type, billing_type, cluster_type,
                                     cuda_version, nvidia_driver_version, node_group, gpus_per_host,
                                     standard_hosts, target_hosts, phase, created_at, imported)
               VALUES ('c', 'p', 'reef', 'eu-1', 'h100', 'H100_SXM', 'ON_DEMAND', 'KUBERNETES', '12', '570',
                       'g', 8, 0, 0, 'READY', '2026-01-01', true)""",
            """INSERT INTO lifecycle_events (cluster_id, number, node_uid, node_name, reason, message, at,
                                             ref)
               VALUES ('c', 1, 'n', 'n', 'Restarting', 'one', '2026-01-01', 'r1'),
                      ('c', 2, 'n', 'n', 'Restarting', 'two', '2026-01-02', 'r2'),
                      ('c', 3, 'n', 'n', 'Preempted', 'end', '2026-01-03', '')""",
        ):
            connection.execute(sa.text(statement))
    with pytest.raises(Conflict, match=r"detach them first.*: reef"), engine.begin() as connection:
        command.downgrade(migrate._config(connection), "0003")
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE clusters SET phase = 'DELETED', deleted_at = '2026-01-04'"))
        command.downgrade(migrate._config(connection), "0003")
        left = connection.execute(sa.text("SELECT message FROM lifecycle_events ORDER BY number"))
        assert [row.message for row in left] == ["one", "end"]
        assert connection.execute(sa.text("SELECT standard_hosts FROM clusters")).scalar_one() == 1
    engine.dispose()
    migrate.upgrade(empty_database_url)
    assert migrate.differences(empty_database_url) == []
