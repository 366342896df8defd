"""The audit log: every change has its entry, with who, what, before and after; no refusal has.

Long because each change that a service can make has its line here.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy as sa

from ebbtide import log
from ebbtide.core.remediations import Mode, Review
from ebbtide.errors import EbbtideError
from ebbtide.log import request_id
from ebbtide.services import Services
from ebbtide.services.audit import AuditDetails
from ebbtide.services.details import (
    Caller,
    ClusterChange,
    ImportChange,
    ImportOrder,
    Replay,
    Role,
    VolumeChange,
    VolumeOrder,
)
from tests.builders import (
    GPU_TYPE,
    POOL,
    REGION,
    SIZE,
    Office,
    a_fleet,
    a_pool,
    all_join,
    all_leave,
    an_office,
    an_order,
    control_planes_are_ready,
    one_plan,
)

FLEET = "regions: {eu-1: {}}\npools:\n  more: {region: eu-1, gpu_type: H100_SXM, blocks: {b1: 1}}\n"
SIZES = ("num_gpus", "num_preemptible_gpus")
# Changes nothing that is anybody's: looking, and noting a key's last use.
READS = {
    "access.authenticate", "access.keys", "access.projects", "audit.read", "claims.list", "claims.retrieve",
    "clusters.events", "clusters.list", "clusters.regions", "clusters.retrieve", "fleet.hosts", "fleet.nodes",
    "fleet.ownership", "fleet.pools", "fleet.regions", "hosts.show", "metrics.snapshot",
    "nodes.show",
    "organizations.list", "remediations.list", "remediations.retrieve",
    "settings.list", "settings.refresh",
    "usage.read", "volumes.list", "volumes.retrieve", "webhooks.deliveries", "webhooks.list",
    "why.node", "why.target", "wipes.list", "receipts.list", "receipts.retrieve", "cluster_settings.read",
    "supply.now", "supply.history", "supply.cluster_history",
}  # fmt: skip


@dataclass
class Desk:
    """An office, its people, and the ids that earlier changes left for later ones."""

    office: Office
    tenant: Caller
    operator: Caller
    ids: dict[str, str] = field(default_factory=dict)

    @property
    def services(self) -> Services:
        return self.office.services


@dataclass(frozen=True)
class Change:
    """A service's method, how it is called, and what its entry must say."""

    method: str
    call: Callable[[Desk], Awaitable[object]]
    action: str
    before: Mapping[str, object] | None = None
    after: Mapping[str, object] | None = None
    by_operator: bool = False
    keeps: str = ""


def _changes() -> list[Change]:
    """In the order of their telling: each may rest on what those before it made."""
    sizes = [dict(zip(SIZES, numbers, strict=True)) for numbers in ((SIZE, 0), (SIZE, SIZE))]
    return [
        Change(
            "access.create_project",
            lambda d: d.services.access.create_project(d.operator, "lab"),
            "project.create",
            after={"slug": "lab", "weight": 1, "organization": "Local"},
            by_operator=True,
        ),
        Change(
            "organizations.create",
            lambda d: d.services.organizations.create(d.operator, "Acme Corp"),
            "organization.create",
            after={"name": "Acme Corp"},
            by_operator=True,
            keeps="organization",
        ),
        Change(
            "organizations.change",
            lambda d: d.services.organizations.change(
                d.operator, d.ids["organization"], name="Acme", disabled=True
            ),
            "organization.update",
            before={"name": "Acme Corp", "disabled": False},
            after={"name": "Acme", "disabled": True},
            by_operator=True,
        ),
        Change(
            "access.set_project",
            lambda d: d.services.access.set_project(
                d.operator, "lab", {"weight": 3, "standard_gpus_limit": 8}
            ),
            "project.update",
            before={"weight": 1, "standard_gpus_limit": None},
            after={"weight": 3, "standard_gpus_limit": 8},
            by_operator=True,
        ),
        Change(
            "access.issue_key",
            lambda d: d.services.access.issue_key(d.operator, "lab", Role.MEMBER),
            "key.create",
            after={"project": "lab", "role": "member"},
            by_operator=True,
            keeps="key",
        ),
        Change(
            "access.rotate_key",
            lambda d: d.services.access.rotate_key(d.operator, d.ids["key"]),
            "key.rotate",
            by_operator=True,
        ),
        Change(
            "access.revoke_key",
            lambda d: d.services.access.revoke_key(d.operator, d.ids["key"]),
            "key.revoke",
            by_operator=True,
        ),
        Change(
            "clusters.create",
            lambda d: d.services.clusters.create(d.tenant, an_order(), Replay("a")),
            "cluster.create",
            after={"name": "demo", **sizes[0]},
            keeps="cluster",
        ),
        Change(
            "clusters.update",
            lambda d: d.services.clusters.update(
                d.tenant, d.ids["cluster"], ClusterChange(num_preemptible_gpus=SIZE)
            ),
            "cluster.update",
            before=sizes[0],
            after=sizes[1],
        ),
        Change(
            "cluster_settings.update",
            lambda d: d.services.cluster_settings.update(d.tenant, d.ids["cluster"], warn_first_s=60),
            "cluster.settings",
            before={"warn_first_s": 0},
            after={"warn_first_s": 60},
        ),
        Change(
            "remediations.create",
            _remediate,
            "remediation.create",
            keeps="remediation",
        ),
        Change(
            "remediations.review",
            lambda d: d.services.remediations.review(
                d.tenant, d.ids["cluster"], "i-1", d.ids["remediation"], Review.CANCEL
            ),
            "remediation.cancel",
        ),
        Change(
            "fleet.reclaim",
            lambda d: d.services.fleet.reclaim(d.operator, POOL, 1, "why not"),
            "fleet.reclaim",
            by_operator=True,
        ),
        Change(
            "clusters.delete",
            lambda d: d.services.clusters.delete(d.tenant, d.ids["cluster"]),
            "cluster.delete",
            before={"name": "demo", **sizes[1]},
        ),
        Change(
            "claims.create",
            lambda d: d.services.claims.create(d.operator, POOL, 1, "order-1", "shop"),
            "claim.create",
            after={"ref": "order-1", "pool": POOL, "hosts": 1, "for": "shop"},
            by_operator=True,
        ),
        Change(
            "claims.give_back",
            lambda d: d.services.claims.give_back(d.operator, "order-1"),
            "claim.give_back",
            by_operator=True,
        ),
        Change(
            "fleet.set_cordon",
            lambda d: d.services.fleet.set_cordon(d.operator, f"{POOL}-00003", cordoned=True, reason="fan"),
            "host.cordon",
            before={"state": "available"},
            after={"state": "cordoned", "reason": "fan"},
            by_operator=True,
        ),
        Change(
            "hosts.add",
            lambda d: d.services.hosts.add(d.operator, "spare-1", POOL),
            "host.add",
            after={"pool": POOL, "fabric_block": "default"},
            by_operator=True,
        ),
        Change(
            "hosts.drain",
            lambda d: d.services.hosts.drain(d.operator, "spare-1", "fan"),
            "host.drain",
            before={"state": "available", "lent_to": None},
            after={"reason": "fan", "until": None},
            by_operator=True,
        ),
        Change(
            "hosts.give_back",
            lambda d: d.services.hosts.give_back(d.operator, "spare-1"),
            "host.return",
            before={"reason": "fan", "until": None},
            by_operator=True,
        ),
        Change(
            "hosts.remove",
            _remove,
            "host.remove",
            before={"state": "available", "pool": POOL, "fabric_block": "default"},
            by_operator=True,
        ),
        Change(
            "imports.create",
            lambda d: d.services.imports.create(
                d.operator, ImportOrder("reef", REGION, GPU_TYPE, "https://a", "pool=gpu"), Replay("i")
            ),
            "cluster.import",
            after={
                "name": "reef",
                "server": "https://a",
                "standard_selector": "pool=gpu",
                "num_preemptible_gpus": 0,
            },
            by_operator=True,
            keeps="imported",
        ),
        Change(
            "imports.renew",
            lambda d: d.services.imports.renew(
                d.operator, d.ids["imported"], ImportChange("https://b", "pool=gpu")
            ),
            "cluster.renew",
            before={"server": "https://a"},
            after={"server": "https://b"},
            by_operator=True,
        ),
        Change(
            "settings.change",
            lambda d: d.services.settings.change(d.operator, {"cooldown_s": 300}),
            "settings.update",
            before={"cooldown_s": None},
            after={"cooldown_s": 300},
            by_operator=True,
        ),
        Change(
            "volumes.create",
            lambda d: d.services.volumes.create(d.tenant, VolumeOrder("data", REGION, 1), Replay("v")),
            "volume.create",
            after={"name": "data", "size_tib": 1},
            keeps="volume",
        ),
        Change(
            "volumes.update",
            lambda d: d.services.volumes.update(d.tenant, d.ids["volume"], VolumeChange(size_tib=2)),
            "volume.update",
            before={"size_tib": 1},
            after={"size_tib": 2},
        ),
        Change(
            "volumes.delete",
            lambda d: d.services.volumes.delete(d.tenant, d.ids["volume"]),
            "volume.delete",
            before={"name": "data", "size_tib": 2},
        ),
        Change(
            "webhooks.create",
            lambda d: d.services.webhooks.create(d.tenant, "https://hooks.example/x", None),
            "webhook.create",
            after={"url": "https://hooks.example/x"},
            keeps="webhook",
        ),
        Change(
            "webhooks.delete",
            lambda d: d.services.webhooks.delete(d.tenant, d.ids["webhook"]),
            "webhook.delete",
            before={"url": "https://hooks.example/x"},
        ),
        Change(
            "fleet.apply",
            lambda d: d.services.fleet.apply(d.operator, FLEET),
            "fleet.apply",
            by_operator=True,
        ),
        Change(
            "sync.inventory",
            lambda d: d.services.sync.inventory(d.operator, '["from-elsewhere"]', pool="more"),
            "fleet.sync",
            by_operator=True,
        ),
    ]


async def _remove(desk: Desk) -> object:
    async with desk.office.db.transaction() as tx:
        await all_leave(tx)  # what held the host lets go of it
    return await desk.services.hosts.remove(desk.operator, "spare-1")


async def _remediate(desk: Desk) -> object:
    cluster = desk.ids["cluster"]
    async with desk.office.db.transaction() as tx:
        named = sa.text("UPDATE nodes SET instance_id = 'i-1' WHERE compute_class = 'standard'")
        await tx.conn.execute(named)  # as its provider would have
    return await desk.services.remediations.create(
        desk.tenant, cluster, "i-1", Mode.HOST_AWARE, None, Replay("r")
    )


async def _let_nodes_join(office: Office) -> None:
    async with office.db.transaction() as tx:
        await control_planes_are_ready(tx)
    await one_plan(office)
    async with office.db.transaction() as tx:
        await all_join(tx)


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[Desk]:
    async with an_office(database_url, a_fleet(a_pool(4))) as office:
        yield Desk(office, await office.caller("acme"), await office.operator())


@pytest.fixture
def requests() -> Iterator[Callable[[], str]]:
    """Each call begins another request, as the API does, and gives its id."""
    numbers = count(1)

    def begin() -> str:
        made = f"req-{next(numbers)}"
        request_id.set(made)
        return made

    yield begin
    request_id.set(None)


async def _newest(desk: Desk) -> AuditDetails:
    return (await desk.services.audit.read(desk.operator, limit=1))[0]


async def test_every_change_is_told_with_before_after_and_request(
    desk: Desk, requests: Callable[[], str]
) -> None:
    last = (await _newest(desk)).number
    for change in _changes():
        request = requests()
        await change.call(desk)
        entries = [each for each in await desk.services.audit.read(desk.operator) if each.number > last]
        assert [each.action for each in entries] == [change.action], change.method
        entry, who = entries[0], desk.operator if change.by_operator else desk.tenant
        assert (entry.key_id, entry.project_id, entry.role) == (who.key_id, who.project_id, who.role)
        assert (entry.request_id, entry.at) == (request, desk.office.clock.now())
        assert change.before is None or entry.before == change.before, change.method
        assert change.after is None or entry.after == change.after, change.method
        assert entry.before or entry.after, change.method
        if change.keeps:
            desk.ids[change.keeps] = entry.subject
        last = entry.number
        if change.method in ("clusters.create", "clusters.update"):
            await _let_nodes_join(desk.office)


def test_no_method_of_a_service_was_forgotten() -> None:
    """A new method either only reads, and is in READS, or is told of above."""
    known = READS | {change.method for change in _changes()} | {"fleet.apply_file"}
    found = {
        f"{room}.{name}"
        for room, service in typing.get_type_hints(Services).items()
        for name, _ in inspect.getmembers(service, inspect.isfunction)
        if not name.startswith("_")
    }
    assert found == known


def test_the_docs_list_every_action() -> None:
    page = (Path(__file__).parents[2] / "docs" / "access.md").read_text(encoding="utf-8")
    assert {change.action for change in _changes() if f"`{change.action}`" not in page} == set()


async def test_what_is_refused_leaves_no_entry(desk: Desk) -> None:
    before = (await _newest(desk)).number
    access, clusters = desk.services.access, desk.services.clusters
    refused: list[Callable[[], Awaitable[object]]] = [
        lambda: access.create_project(desk.tenant, "lab"),
        lambda: access.set_project(desk.operator, "nobody", {"weight": 2}),
        lambda: access.set_project(desk.operator, "acme", {"weight": 0}),
        lambda: access.issue_key(desk.tenant, "acme", Role.OPERATOR),
        lambda: clusters.create(desk.tenant, an_order(gpus=99 * SIZE), Replay("big")),
        lambda: clusters.delete(desk.tenant, "00000000-0000-4000-8000-000000000000"),
        lambda: desk.services.webhooks.create(desk.tenant, "nonsense", None),
        lambda: desk.services.claims.create(desk.operator, POOL, 99, "r", "w"),
        lambda: desk.services.hosts.drain(desk.operator, "nowhere", "x"),
        lambda: desk.services.hosts.remove(desk.operator, f"{POOL}-00000"),
    ]
    for call in refused:
        with pytest.raises(EbbtideError):
            await call()
    assert (await _newest(desk)).number == before


async def test_what_changes_nothing_leaves_no_entry(desk: Desk) -> None:
    made = await desk.services.clusters.create(desk.tenant, an_order(), Replay("a", token="t"))
    before = (await _newest(desk)).number
    assert (
        await desk.services.clusters.create(desk.tenant, an_order(), Replay("a", token="t"))
    ).id == made.id
    await desk.services.clusters.update(desk.tenant, made.id, ClusterChange(num_gpus=SIZE))
    assert (await _newest(desk)).number == before
    await desk.services.clusters.delete(desk.tenant, made.id)
    await desk.services.clusters.delete(desk.tenant, made.id)
    assert (await _newest(desk)).number == before + 1


async def test_tenants_read_their_own_and_operators_all(desk: Desk) -> None:
    other = await desk.office.caller("beta")
    await desk.services.webhooks.create(desk.tenant, "https://hooks.example/1", None)
    await desk.services.webhooks.create(other, "https://hooks.example/2", None)
    read = desk.services.audit.read
    for caller in (desk.tenant, other):
        assert {each.project_id for each in await read(caller)} == {caller.project_id}
        assert len(await read(caller)) == 1
    assert {desk.tenant.project_id, other.project_id} <= {
        each.project_id for each in await read(desk.operator)
    }


async def test_pages_meet_and_do_not_overlap(desk: Desk) -> None:
    for number in range(5):
        await desk.services.webhooks.create(desk.tenant, f"https://hooks.example/{number}", None)
    whole = await desk.services.audit.read(desk.tenant)
    first = await desk.services.audit.read(desk.tenant, limit=2)
    second = await desk.services.audit.read(desk.tenant, first[-1].number, 2)
    third = await desk.services.audit.read(desk.tenant, second[-1].number, 2)
    assert [*first, *second, *third] == list(whole)
    assert [each.number for each in whole] == sorted((each.number for each in whole), reverse=True)


async def test_no_secret_is_told(desk: Desk) -> None:
    key = await desk.services.access.issue_key(desk.operator, "acme", Role.MEMBER)
    turned = await desk.services.access.rotate_key(desk.operator, key.details.id)
    hook = await desk.services.webhooks.create(desk.tenant, "https://hooks.example/x", None)
    told = str(await desk.services.audit.read(desk.operator))
    assert [secret for secret in (key.secret, turned.secret, hook.secret) if secret in told] == []


async def test_a_fleet_file_that_only_lets_lent_hosts_go_is_told(desk: Desk) -> None:
    made = await desk.services.clusters.create(desk.tenant, an_order(gpus=4 * SIZE), Replay("a"))
    hosts = [node.host_name or "" for node in made.nodes]
    changes = await desk.services.fleet.apply_file(a_fleet(a_pool(hosts[1:])), desk.operator)
    assert (changes.done, changes.kept) == ((), (f"host {hosts[0]} leaves when it is free",))
    entry = await _newest(desk)
    assert (entry.action, entry.after) == ("fleet.apply", {"done": [], "kept": list(changes.kept)})


async def test_a_tenant_reads_that_a_cluster_was_imported_for_it(desk: Desk) -> None:
    order = ImportOrder("reef", REGION, GPU_TYPE, "https://a", "pool=gpu", project_id=desk.tenant.project_id)
    made = await desk.services.imports.create(desk.operator, order, Replay("i"))
    (entry,) = await desk.services.audit.read(desk.tenant)
    assert (entry.action, entry.subject, entry.key_id) == ("cluster.import", made.id, None)


async def test_a_tenant_reads_what_an_operator_did_to_its_things_and_not_who(desk: Desk) -> None:
    other = await desk.office.caller("beta")
    made = await desk.services.clusters.create(desk.tenant, an_order(), Replay("a"))
    log.request_id.set("req-of-an-operator")
    await desk.services.clusters.update(desk.operator, made.id, ClusterChange(num_preemptible_gpus=SIZE))
    log.request_id.set(None)
    entry = (await desk.services.audit.read(desk.tenant, limit=1))[0]
    assert (entry.action, entry.subject, entry.role) == ("cluster.update", made.id, "operator")
    assert (entry.key_id, entry.project_id, entry.request_id) == (None, None, None)
    assert entry.after == {"num_gpus": SIZE, "num_preemptible_gpus": SIZE}
    seen_by_operator = (await desk.services.audit.read(desk.operator, limit=1))[0]
    assert (seen_by_operator.key_id, seen_by_operator.request_id) == (
        desk.operator.key_id,
        "req-of-an-operator",
    )
    assert all(one.subject != made.id for one in await desk.services.audit.read(other))
