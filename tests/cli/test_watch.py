"""The live timeline: what was, what comes, and that a break loses and repeats nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ebbtide.cli import watch
from tests.cli import samples
from tests.cli.conftest import Ran
from tests.cli.samples import CLUSTER_ID, event
from tests.cli.stub import Stub

Run = Callable[..., Ran]
STREAM = f"GET /v1/clusters/{CLUSTER_ID}/events/stream"
GONE = {"error": {"message": "cluster not found", "type": "not_found_error"}}


def streamed(*events: dict[str, Any]) -> str:
    told = (f"id: {each['number']}\nevent: {each['reason']}\ndata: {json.dumps(each)}\n\n" for each in events)
    return "retry: 2000\n\n: nothing new\n\n" + "".join(told)


def past(stub: Stub, *events: dict[str, Any]) -> None:
    path, last = f"GET /v1/clusters/{CLUSTER_ID}/events?after=", len(events)
    stub.on(f"{path}0&limit=500", {"events": list(events), "next_after": last})
    stub.on(f"{path}{last}&limit=500", {"events": [], "next_after": last})


@pytest.fixture
def known(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Stub:
    monkeypatch.setattr(watch, "_WAITS_S", (0.01,))
    stub.on("GET /v1/compute/clusters", {"clusters": [samples.cluster()]})
    stub.on(f"GET /v1/compute/clusters/{CLUSTER_ID}", samples.cluster())
    past(stub, event(1), event(2), event(3))
    return stub


def test_past_and_new_events_until_the_cluster_is_gone(known: Stub, online: Run) -> None:
    known.answers[STREAM] = [(200, streamed(event(4), event(5))), (200, streamed(event(6))), (404, GONE)]
    ran = online("watch", "reef", "--last", "2", "--json")
    assert ran.code == 0, ran.err
    told = [json.loads(line) for line in ran.lines]
    assert [each["number"] for each in told] == [2, 3, 4, 5, 6]
    assert told[0] == {"cluster_id": CLUSTER_ID, "cluster_name": "reef"} | event(2)
    assert "reef is gone" in ran.err
    asked = [each.headers["last-event-id"] for each in known.asked if each.path.endswith("/stream")]
    assert asked == ["3", "5", "6"]


def test_a_server_that_is_away_is_asked_again(known: Stub, online: Run) -> None:
    away = {"error": {"message": "the database is away", "type": "x"}}
    known.answers[STREAM] = [(503, away)] * 3 + [(200, streamed(event(4))), (404, GONE)]
    ran = online("watch", "reef", "--last", "0")
    assert ran.code == 0
    assert [line.split()[1:4] for line in ran.lines] == [["reef", "TogetherPreempted", event(4)["node_id"]]]
    notes = ["reef: the database is away; trying again", "reef: the stream is back", "reef is gone"]
    assert ran.err.splitlines() == notes


def test_a_key_that_ends_meanwhile_ends_it(known: Stub, online: Run) -> None:
    known.refuse(STREAM, 401, "this API key is not known, or no longer valid")
    ran = online("watch", "reef")
    assert ran.code == 4
    assert "no longer valid" in ran.err


def test_all_clusters_and_those_made_later(known: Stub, online: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_LOOK_FOR_NEW_EVERY_S", 0.0)
    late = samples.cluster(cluster_id="late", cluster_name="tide")
    known.on("GET /v1/compute/clusters", {"clusters": [samples.cluster()]}, {"clusters": [late]})
    known.answers[STREAM] = [(200, streamed(event(4))), (404, GONE)]
    enough = {"error": {"message": "enough", "type": "x"}}
    known.answers["GET /v1/clusters/late/events/stream"] = [(200, streamed(event(9))), (401, enough)]
    ran = online("watch", "--last", "1", "--json")
    told = [(line["cluster_name"], line["number"]) for line in map(json.loads, ran.lines)]
    assert sorted(told) == [("reef", 3), ("reef", 4), ("tide", 9)]
    assert "enough" in ran.err


def test_ctrl_c_ends_it_with_0(known: Stub, online: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch, "_listen", interrupt)
    known.answers[STREAM] = [(404, GONE)]
    ran = online("watch", "reef")
    assert ran.code == 0
    assert len(ran.lines) == 3


def test_an_unknown_cluster(known: Stub, online: Run) -> None:
    assert online("watch", "nobody").code == 1


def test_a_stream_of_something_else(known: Stub, online: Run) -> None:
    known.answers[STREAM] = [(200, "data: <html>\n\n"), (200, "data: <html>\n\n"), (404, GONE)]
    ran = online("watch", "reef", "--last", "0")
    assert (ran.code, ran.out) == (0, "")
    assert "holds something that is no event" in ran.err
