"""Every route, with the other tenant's keys and with none: nothing of the first one's, not even that it is.

The routes are taken from the app's own document. One that is added fails here until `ROUTES` says what it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import Enum, auto
from itertools import product
from typing import Any
from uuid import UUID

import httpx
import pytest
from fastapi import FastAPI

from .stories import CLUSTERS, CREATE, Story, client_of


class Kind(Enum):
    OPEN = auto()  # needs no key, and says nothing about anybody
    COMMON = auto()  # the same for everybody, or about the caller only
    OPERATOR = auto()  # 403, whatever it is asked about
    OBJECT = auto()  # its path names something: 404, as for an id that nobody has
    LIST = auto()  # filters that name the first tenant's things find nothing
    BODY = auto()  # its body can name the first tenant's things: as for ids that nobody has


# A field of a body that names nothing is a field that is wrong.
REFUSED = {Kind.OPERATOR: {403}, Kind.OBJECT: {403, 404}, Kind.BODY: {400, 403, 404}}

_ONE = "/v1/compute/clusters/{cluster_id}"
_ORGANIZATIONS = "/v1/access/organizations"
_VOLUMES = "/v1/compute/clusters/storage/volumes"
_REMEDIATIONS = f"{_ONE}/instances/{{instance_id}}/remediations"
ROUTES = {
    "GET /healthz": Kind.OPEN,
    "GET /readyz": Kind.OPEN,
    "GET /metrics": Kind.OPEN,
    "GET /v3/whoami": Kind.COMMON,
    "GET /v1/compute/regions": Kind.COMMON,
    "GET /v1/access/organizations": Kind.LIST,
    "POST /v1/access/organizations": Kind.OPERATOR,
    "PATCH /v1/access/organizations/{organization}": Kind.OPERATOR,
    "GET /v1/projects": Kind.LIST,
    "POST /v1/projects": Kind.OPERATOR,
    "GET /v1/audit": Kind.LIST,
    "GET /v1/keys": Kind.LIST,
    "POST /v1/keys": Kind.BODY,
    "POST /v1/keys/{key_id}/rotate": Kind.OBJECT,
    "DELETE /v1/keys/{key_id}": Kind.OBJECT,
    f"POST {CLUSTERS}": Kind.BODY,
    f"GET {CLUSTERS}": Kind.LIST,
    f"GET {_ONE}": Kind.OBJECT,
    f"PUT {_ONE}": Kind.OBJECT,
    f"DELETE {_ONE}": Kind.OBJECT,
    f"POST {_VOLUMES}": Kind.BODY,
    f"GET {_VOLUMES}": Kind.LIST,
    f"PUT {_VOLUMES}": Kind.BODY,
    f"GET {_VOLUMES}/{{volume_id}}": Kind.OBJECT,
    f"DELETE {_VOLUMES}/{{volume_id}}": Kind.OBJECT,
    f"POST {_REMEDIATIONS}": Kind.OBJECT,
    f"GET {_REMEDIATIONS}": Kind.OBJECT,
    f"GET {_REMEDIATIONS}/{{remediation_id}}": Kind.OBJECT,
    f"POST {_REMEDIATIONS}/{{remediation_id}}/approve": Kind.OBJECT,
    f"POST {_REMEDIATIONS}/{{remediation_id}}/reject": Kind.OBJECT,
    f"POST {_REMEDIATIONS}/{{remediation_id}}/cancel": Kind.OBJECT,
    "POST /v1/clusters/import": Kind.OPERATOR,
    "PUT /v1/clusters/{cluster_id}/import": Kind.OPERATOR,
    "GET /v1/clusters/{cluster_id}/events": Kind.OBJECT,
    "GET /v1/clusters/{cluster_id}/events/stream": Kind.OBJECT,
    "GET /v1/clusters/{cluster_id}/drains": Kind.OBJECT,
    "GET /v1/clusters/{cluster_id}/drains/{node}": Kind.OBJECT,
    "GET /v1/clusters/{cluster_id}/settings": Kind.OBJECT,
    "PATCH /v1/clusters/{cluster_id}/settings": Kind.OBJECT,
    "GET /v1/clusters/{cluster_id}/history": Kind.OBJECT,
    "GET /v1/capacity": Kind.COMMON,
    "GET /v1/capacity/history": Kind.COMMON,
    "GET /v1/usage": Kind.LIST,
    "GET /v1/webhooks": Kind.LIST,
    "POST /v1/webhooks": Kind.COMMON,
    "DELETE /v1/webhooks/{webhook_id}": Kind.OBJECT,
    "GET /v1/webhooks/{webhook_id}/deliveries": Kind.OBJECT,
}
OPERATORS = ("/v1/fleet/", "/v1/playground/")  # all of it is Kind.OPERATOR

_WEBHOOK = {"url": "https://hooks.example/events", "reasons": ["TogetherScaledDown"]}  # none happens here
_VOLUME = {"region": "local-1", "volume_name": "data", "size_tib": 1}
# Bodies that are good as far as their form goes. {words} in them are replaced like those of paths.
BODIES: dict[str, list[Any]] = {
    f"PUT {_ONE}": [{}, {"num_gpus": 8, "num_preemptible_gpus": 0}, {"cluster_name": "mine"}],
    f"POST {CLUSTERS}": [
        {**CREATE, "project_id": "{project}"},
        {**CREATE, "volume_id": "{volume_id}"},
        {**CREATE, "shared_volume": {**_VOLUME, "project_id": "{project}"}},
    ],
    f"POST {_VOLUMES}": [
        {**_VOLUME, "volume_name": "another", "project_id": "{project}"},
        {**_VOLUME, "volume_name": "another", "instance_cluster_id": "{cluster_id}"},
    ],
    f"PUT {_VOLUMES}": [{"volume_id": "{volume_id}", "size_tib": 2}, {"volume_id": "{volume_id}"}],
    "POST /v1/keys": [{"project": "{project}"}, {"project": "{slug}", "role": "admin"}],
    "POST /v1/keys/{key_id}/rotate": [{}, {"overlap_s": 0}],
    "POST /v1/webhooks": [_WEBHOOK],
    "PATCH /v1/clusters/{cluster_id}/settings": [{}, {"warn_first_s": 60}, {"placement": "explicit"}],
    f"POST {_REMEDIATIONS}": [{"mode": "REMEDIATION_MODE_VM_ONLY"}],
}
# Names of query parameters for what `Things` calls otherwise.
FILTERS = {"projectId": "project", "project_id": "project", "cluster_id": "cluster_id"}
NOT_FILTERS = frozenset(
    {"after", "before", "limit", "from", "to", "by", "last-event-id", "region", "gpu_type"}
    | {"mode", "state", "trigger", "page_size", "page_token", "order_by"}
)

Things = Mapping[str, str]  # what a path's {word} stands for: an id, or a name
NOBODYS: Things = {
    **{
        name: str(UUID(int=number, version=4))
        for number, name in enumerate(
            ("cluster_id", "instance_id", "remediation_id", "volume_id", "webhook_id", "key_id", "project"),
            77,
        )
    },
    "organization": "nobodys",
    "slug": "nobodys",
    "ref": "nobodys",
    "name": "nobodys",
    "node": "nobodys",
}


def operations(app: FastAPI) -> dict[str, dict[str, Any]]:
    """Every operation of the app, by its method and path."""
    return {
        f"{method.upper()} {path}": operation
        for path, methods in app.openapi()["paths"].items()
        for method, operation in methods.items()
    }


def kind_of(route: str) -> Kind | None:
    path = route.split()[1]
    return Kind.OPERATOR if path.startswith(OPERATORS) else ROUTES.get(route)


def uncovered(app: FastAPI) -> list[str]:
    """Routes, and words of paths and queries, that this test knows nothing about."""
    found = []
    for route, operation in operations(app).items():
        kind = kind_of(route)
        if kind is None:
            found.append(route)
        else:
            known = {"path": set(NOBODYS), "query": set(FILTERS) | NOT_FILTERS, "header": NOT_FILTERS}
            found += [
                f"{route}: {parameter['name']}"
                for parameter in operation.get("parameters", [])
                if parameter["name"] not in known[parameter["in"]]
                and not (kind is Kind.OPERATOR and parameter["in"] != "path")
            ]
            asks = kind is not Kind.OPERATOR and operation.get("requestBody", {}).get("required", True)
            if "requestBody" in operation and asks and route not in BODIES:
                found += [f"{route}: its body"]
    return found


@dataclass(frozen=True)
class Two:
    """first: what the first tenant has. own: what the other has. others: its clients, by role."""

    story: Story
    app: FastAPI
    first: Things
    own: Things
    others: Mapping[str, httpx.AsyncClient]


async def _things(story: Story, client: httpx.AsyncClient, slug: str) -> dict[str, str]:
    """Make one of everything."""
    who = (await client.get("/v3/whoami")).json()
    project = who["project"]["id"]
    cluster = await story.create(
        client, cluster_name=f"of-{slug}", num_preemptible_gpus=8, project_id=project
    )
    volume = await client.post(_VOLUMES, json=_VOLUME)
    webhook = await client.post("/v1/webhooks", json=_WEBHOOK)
    key = await story.operator.post("/v1/keys", json={"project": slug, "name": f"key-{slug}"})
    organization = await story.operator.post(_ORGANIZATIONS, json={"name": f"Friends of {slug}"})
    await story.simulated.run_for(60)
    seen = (await client.get(f"{CLUSTERS}/{cluster['cluster_id']}")).json()
    instance = seen["gpu_worker_nodes"][0]["instance_id"]
    where = f"{CLUSTERS}/{cluster['cluster_id']}/instances/{instance}/remediations"
    remediation = await client.post(where, json={"mode": "REMEDIATION_MODE_HOST_AWARE"})
    for answer in (volume, webhook, key, remediation, organization):
        assert answer.status_code == 200, answer.text
    return {
        "cluster_id": cluster["cluster_id"],
        "instance_id": instance,
        "remediation_id": remediation.json()["id"],
        "volume_id": volume.json()["volume_id"],
        "webhook_id": webhook.json()["id"],
        "key_id": key.json()["id"],
        "project": project,
        "slug": slug,
        "ref": f"claim-of-{slug}",
        "name": "h100-01",
        "organization": organization.json()["id"],
        "node": seen["gpu_worker_nodes"][0]["node_id"],
    }


@pytest.fixture
async def two(story: Story) -> AsyncIterator[Two]:
    first = await _things(story, story.tenant, "acme")
    own = await _things(story, story.other, "other")
    admin = await story.operator.post("/v1/keys", json={"project": "other", "role": "admin"})
    app = story.simulated.system.app()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(client_of(app, admin.json()["key"]))
        yield Two(story, app, first, own, {"member": story.other, "admin": client})


def filled(value: Any, things: Things) -> Any:
    """`value` with every {word} of its texts replaced."""
    if isinstance(value, dict):
        return {name: filled(each, things) for name, each in value.items()}
    return value.format_map(things) if isinstance(value, str) else value


def words(route: str) -> list[str]:
    return [part[1:-1] for part in route.split("/") if part.startswith("{")]


def mixtures(route: str, first: Things, own: Things) -> Iterator[Things]:
    """For a path of several words: the first tenant's things, alone and under the other's own."""
    named = words(route)
    for whose in product((first, own), repeat=len(named)):
        if any(things is first for things in whose):
            yield {**first, **{word: things[word] for word, things in zip(named, whose, strict=True)}}


def without(text: str, things: Things) -> str:
    """An answer with what the request itself named taken out."""
    for name, value in sorted(things.items(), key=lambda pair: -len(pair[1])):
        text = text.replace(value, f"<{name}>")
    return text


async def ask(
    client: httpx.AsyncClient, route: str, things: Things, body: Any = None, **query: str
) -> httpx.Response:
    method, path = route.split()
    return await client.request(
        method, path.format_map(things), json=filled(body, things), params=query or None
    )


def told(answer: httpx.Response, things: Things) -> tuple[int, str, dict[str, str]]:
    """All that an answer tells, except its own id, its size and the limit's countdown."""
    varying = ("x-request-id", "x-ratelimit-remaining", "content-length")
    return (
        answer.status_code,
        without(answer.text, things),
        {name: value for name, value in answer.headers.items() if name not in varying},
    )


async def snapshot(two: Two) -> list[Any]:
    """All that the first tenant has."""
    one = two.first["cluster_id"]
    paths = (CLUSTERS, f"{CLUSTERS}/{one}", _VOLUMES, "/v1/webhooks", "/v1/projects")
    seen = [(await two.story.tenant.get(path)).json() for path in paths]
    keys = (await two.story.tenant.get("/v1/keys")).json()["keys"]
    where = f"{CLUSTERS}/{one}/instances/-/remediations"
    remediations = (await two.story.tenant.get(where)).json()
    return [*seen, remediations, [{**key, "last_used_at": None} for key in keys]]


async def test_another_tenants_things_are_as_if_they_were_not(two: Two) -> None:
    assert uncovered(two.app) == []
    before = await snapshot(two)
    asked = 0
    for role, client in two.others.items():
        for route, operation in operations(two.app).items():
            kind = kind_of(route)
            if kind is Kind.OBJECT:
                assert words(route), route
            empty: list[Any] = [{}] if "requestBody" in operation else [None]
            for body in BODIES.get(route, empty):
                if kind in (Kind.OBJECT, Kind.BODY, Kind.OPERATOR):
                    asked += await _as_nobodys(two, client, f"{role} {route}", route, body, kind)
            if kind is Kind.LIST:
                asked += await _lists_nothing(two, client, route, operation)
    assert asked > 100
    assert await snapshot(two) == before


async def _as_nobodys(
    two: Two, client: httpx.AsyncClient, label: str, route: str, body: Any, kind: Kind
) -> int:
    mixed = [two.first] if kind is not Kind.OBJECT else list(mixtures(route, two.first, two.own))
    for things in mixed:
        # What is one's own stays in the comparison; what is the first tenant's becomes nobody's.
        other = {name: NOBODYS[name] if value == two.first[name] else value for name, value in things.items()}
        answer, nobodys = await ask(client, route, things, body), await ask(client, route, other, body)
        assert answer.status_code in REFUSED[kind], (label, answer.text)
        assert told(answer, things) == told(nobodys, other), label
    return len(mixed)


async def _lists_nothing(
    two: Two, client: httpx.AsyncClient, route: str, operation: Mapping[str, Any]
) -> int:
    names = [each["name"] for each in operation.get("parameters", []) if each["name"] in FILTERS]
    queries = [{}, *({name: two.first[FILTERS[name]]} for name in names)]
    for query in queries:
        answer = await ask(client, route, two.first, **query)
        assert answer.status_code == 200, answer.text
        hidden = {name: value for name, value in two.first.items() if name not in ("slug", "name", "ref")}
        assert not [
            name for name, value in hidden.items() if value in answer.text and value not in query.values()
        ]
        assert '"acme"' not in answer.text
        assert "of-acme" not in answer.text
        if query:
            lists = [value for value in answer.json().values() if isinstance(value, list)]
            assert lists
            assert not any(lists), (route, query)
    return len(queries)


async def test_without_a_key_nothing_is_told(two: Two) -> None:
    """401 on every route that needs a key, the same for what is there as for what is not."""
    async with client_of(two.app, None) as stranger, client_of(two.app, "ebb_wrong") as wrong:
        for route, operation in operations(two.app).items():
            if kind_of(route) is Kind.OPEN:
                assert "security" not in operation, route
                answer = await ask(stranger, route, two.first)
                assert answer.status_code == 200
                assert not [
                    name for name, value in two.first.items() if value in answer.text and name != "name"
                ]
                continue
            assert "security" in operation, route
            for client in (stranger, wrong):
                for body in BODIES.get(route, [None]):
                    answer = await ask(client, route, two.first, body)
                    assert answer.status_code == 401, (route, answer.text)
                    assert told(answer, two.first) == told(await ask(client, route, NOBODYS, body), NOBODYS)


async def test_names_and_repetitions_are_each_projects_own(two: Two) -> None:
    """A name that another project uses is free, and its creates are not answered to a stranger."""
    both = {"volume_name": "same", "region": "local-1", "size_tib": 1}
    header = {"idempotency-key": "one"}
    mine = await two.story.tenant.post(_VOLUMES, json=both, headers=header)
    theirs = await two.story.other.post(_VOLUMES, json=both, headers=header)
    retried = await two.others["admin"].post(_VOLUMES, json=both, headers={"x-stainless-retry-count": "1"})
    assert (mine.status_code, theirs.status_code, retried.status_code) == (200, 200, 409)
    assert mine.json()["volume_id"] != theirs.json()["volume_id"]
    assert mine.json()["volume_id"] not in retried.text


def test_a_route_that_nobody_thought_of_is_found(app: FastAPI) -> None:
    other = FastAPI()

    @other.get("/v1/diaries/{diary_id}")
    def diary(diary_id: str) -> None: ...

    @other.get("/v1/fleet/secrets/{secret_id}")
    def secret(secret_id: str) -> None: ...

    @other.get(f"{CLUSTERS}")
    def list_clusters(owner: str) -> None: ...

    assert uncovered(other) == [
        "GET /v1/diaries/{diary_id}",
        "GET /v1/fleet/secrets/{secret_id}: secret_id",
        f"GET {CLUSTERS}: owner",
    ]
    assert uncovered(app) == []
    assert {route for route in ROUTES if route not in operations(app)} == set()
