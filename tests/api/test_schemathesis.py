"""Every operation of the OpenAPI document, with what its schemas allow and what they forbid: it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from ebbtide.settings import Settings

from .living import Living, living
from .stories import CLUSTERS, CREATE

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES = 12  # of each operation
ENDLESS = "/events/stream"  # asked only about clusters that are not: its answer for others does not end


@dataclass(frozen=True)
class Target:
    """things: what a path's words may stand for, so that more than 404 is answered."""

    url: str
    key: str
    things: Mapping[str, str]


@pytest.fixture
def target(database_url: str) -> Iterator[Target]:
    quick = replace(Settings(), drain_window_s=5, kill_margin_s=1, observe_every_s=1, rate_limit_per_s=0)
    with living(database_url, quick) as running:
        yield Target(running.url, running.operator, _made(running))


def _made(running: Living) -> dict[str, str]:
    """One of most things, made with the operator's key."""
    headers = {"authorization": f"Bearer {running.operator}"}
    with httpx.Client(base_url=running.url, headers=headers) as client:

        def post(path: str, **body: Any) -> dict[str, Any]:
            answer = client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            made: dict[str, Any] = answer.json()
            return made

        volume = {"region": "local-1", "volume_name": "data", "size_tib": 1}
        return {
            "cluster_id": post(CLUSTERS, **CREATE)["cluster_id"],
            "instance_id": "-",
            "volume_id": post(f"{CLUSTERS}/storage/volumes", **volume)["volume_id"],
            "key_id": post("/v1/keys", project="other")["id"],
            "project": "other",
            "ref": str(post("/v1/fleet/claims", pool="h100", hosts=1, ref="batch-1")["ref"]),
            "name": "h100-02",
        }


@pytest.mark.slow
def test_no_operation_breaks_its_promises(target: Target) -> None:
    schema = schemathesis.openapi.from_url(f"{target.url}/openapi.json")
    schema.config.generation.update(modes=list(GenerationMode))
    tried = 0
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found.err()
        _check(target, found.ok())
        tried += 1
    assert tried > 40


def _cases(operation: Any) -> st.SearchStrategy[Any]:
    """What the schemas allow; where there is a body to get wrong, also what they forbid."""
    good: st.SearchStrategy[Any] = operation.as_strategy()
    if not operation.body:  # a forbidden query may be longer than any server reads
        return good
    return st.one_of(good, operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))


def _check(target: Target, operation: Any) -> None:
    answered = 0

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=_cases(operation), real=st.booleans())
    def check(case: Any, real: bool) -> None:
        nonlocal answered
        if real and ENDLESS not in case.path:
            case.path_parameters = {
                name: target.things.get(name, value) for name, value in (case.path_parameters or {}).items()
            }
        case.call_and_validate(checks=CHECKS, headers={"authorization": f"Bearer {target.key}"}, timeout=20)
        answered += 1

    check()
    assert answered, operation.label
