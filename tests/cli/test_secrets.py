"""Keys that seal secrets at rest: made, put in front, and everything stored sealed again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ebbtide import assembly
from ebbtide.errors import StartupError
from ebbtide.services.details import Role
from ebbtide.settings import Settings
from ebbtide.store import access, webhooks
from ebbtide.store.seal import Sealer, new_key
from tests.cli.conftest import Ran

Run = Callable[..., Ran]


async def _one_webhook(database_url: str, key: str) -> None:
    system = assembly.build(Settings(), database_url, secret_keys=[key])
    issued = await system.first_key(Role.MEMBER, "acme", "Acme")
    acme = await system.services.access.authenticate(issued.secret)
    await system.services.webhooks.create(acme, "https://hooks.example/", None)
    await system.close()


def test_a_new_key_seals(run: Run) -> None:
    ran = run("secrets", "new-key")
    sealer = Sealer([ran.out.strip()])
    assert sealer.open(sealer.seal("x")) == "x"
    assert run("secrets", "new-key").out != ran.out


def test_after_a_reseal_the_old_key_may_go(
    run: Run, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = new_key(), new_key()
    asyncio.run(_one_webhook(database_url, old))
    monkeypatch.setenv("EBBTIDE_SECRET_KEYS", f"{new},{old}")
    ran = run("secrets", "reseal", "--database", database_url)
    assert (ran.code, ran.out) == (0, "1 secrets are sealed with the newest key\n")
    assert asyncio.run(assembly.reseal(database_url, [new])) == 1
    with pytest.raises(StartupError, match="EBBTIDE_SECRET_KEYS"):
        asyncio.run(_open_all(database_url, old))


async def _open_all(database_url: str, key: str) -> None:
    system = assembly.build(Settings(), database_url, secret_keys=[key])
    try:
        async with system.db.read() as tx:
            for project in await access.all_projects(tx):
                for row in await webhooks.of_project(tx, project.id):
                    tx.sealer.open(row.secret)
    finally:
        await system.close()


@pytest.mark.parametrize("keys", [None, "", "nonsense"])
def test_without_a_key_it_says_how_to_make_one(
    run: Run, database_url: str, monkeypatch: pytest.MonkeyPatch, keys: str | None
) -> None:
    monkeypatch.delenv("EBBTIDE_SECRET_KEYS", raising=False)
    if keys is not None:
        monkeypatch.setenv("EBBTIDE_SECRET_KEYS", keys)
    ran = run("secrets", "reseal", "--database", database_url)
    assert (ran.code, ran.out) == (2, "")
    assert "ebbtide secrets new-key" in ran.err
