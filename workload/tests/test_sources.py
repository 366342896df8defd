"""A notice file, and the cluster behind a small HTTP server."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ebbtide_workload import clock
from ebbtide_workload.deadline import Heard
from ebbtide_workload.sources_file import FileSource, write_notice
from ebbtide_workload.sources_kubernetes import Api, ClusterError, KubernetesSource

SOON = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(seconds=300)


@pytest.mark.parametrize(
    ("content", "deadline", "reason"),
    [
        (SOON.isoformat(), SOON, "notice file"),
        (json.dumps({"deadline": SOON.isoformat(), "reason": "maintenance"}), SOON, "maintenance"),
        (json.dumps({"reason": "maintenance"}), None, "maintenance"),
        ("", None, "notice file"),
        ("{torn", None, "notice file"),
        (json.dumps({"deadline": "later"}), None, "notice file"),
    ],
)
def test_a_notice_file_of_any_content_is_a_notice(
    tmp_path: Path, content: str, deadline: datetime | None, reason: str
) -> None:
    path = tmp_path / "notice"
    source = FileSource(path)
    assert source.look(30) is None
    path.write_text(content)
    heard = source.look(30)
    assert heard is not None
    assert reason in heard.reason
    if deadline is not None:
        assert heard.deadline == deadline
    else:
        assert abs((heard.deadline - clock.utc_now()).total_seconds() - 30) < 10
    assert source.look(30) is None, "the same file is news once"


def test_a_grace_in_the_file_counts_from_its_writing(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    path.write_text(json.dumps({"grace_s": 120}))
    heard = FileSource(path).look(30)
    assert heard is not None
    written = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
    assert heard.deadline == written + timedelta(seconds=120)


def test_a_leftover_of_an_earlier_preemption_is_no_notice(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    write_notice(path, clock.utc_now() - timedelta(seconds=600), "yesterday")
    assert FileSource(path).look(30) is None
    path.write_text("")
    long_ago = time.time() - 3600
    os.utime(path, (long_ago, long_ago))
    assert FileSource(path).look(30) is None


class FakeCluster:
    """Answers GETs from `answers`: path to (status, object)."""

    def __init__(self, account: Path) -> None:
        self.answers: dict[str, tuple[int, dict[str, Any]]] = {}
        self.seen: list[tuple[str, str]] = []
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                cluster.seen.append((self.path, str(self.headers["Authorization"])))
                status, body = cluster.answers.get(path, (404, {}))
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        account.mkdir()
        (account / "token").write_text("secret\n")
        (account / "namespace").write_text("team")
        self.api = Api(f"http://127.0.0.1:{self._server.server_address[1]}", account)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def node(self, **annotations: str) -> None:
        marked = {
            key.replace("_", "-").replace("ebbtide-", "ebbtide/"): value for key, value in annotations.items()
        }
        self.answers["/api/v1/nodes/gpu-1"] = (200, {"metadata": {"name": "gpu-1", "annotations": marked}})

    def source(self, told: list[Heard] | None = None) -> KubernetesSource:
        return KubernetesSource(self.api, "gpu-1", "trainer-0", (told if told is not None else []).append)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    fake = FakeCluster(tmp_path / "account")
    yield fake
    fake.close()


def test_the_annotation_on_the_node_is_a_notice_with_its_own_deadline(cluster: FakeCluster) -> None:
    cluster.node()
    source = cluster.source()
    assert source.look() is None
    cluster.node(ebbtide_drain_deadline=SOON.isoformat(), ebbtide_drain_reason="standard claim of cluster a")
    heard = source.look()
    assert heard is not None
    assert (heard.deadline, heard.reason) == (SOON, "standard claim of cluster a")
    assert cluster.seen[-1] == ("/api/v1/nodes/gpu-1?resourceVersion=0", "Bearer secret")


def test_a_deadline_that_cannot_be_read_still_is_a_notice(cluster: FakeCluster) -> None:
    cluster.node(ebbtide_drain_deadline="at five")
    heard = cluster.source().look()
    assert heard is not None
    assert "at five" in heard.reason


@pytest.mark.parametrize("reason", ["TogetherPreempted", "TogetherPreemptionNotified"])
def test_without_the_right_to_read_nodes_the_event_is_heard(cluster: FakeCluster, reason: str) -> None:
    cluster.answers["/api/v1/nodes/gpu-1"] = (403, {})
    now = clock.utc_now().replace(microsecond=0)
    old = (now - timedelta(hours=2)).isoformat()
    events: list[dict[str, Any]] = [
        {"reason": reason, "message": "old", "firstTimestamp": old},
        {"reason": "NodeNotReady", "message": "not ours", "firstTimestamp": now.isoformat()},
    ]
    cluster.answers["/api/v1/namespaces/default/events"] = (200, {"items": events})
    source = cluster.source()
    assert source.look() is None, "an event of two hours ago is history"
    events.append(
        {"reason": reason, "message": "reclaimed", "firstTimestamp": None, "eventTime": now.isoformat()}
    )
    heard = source.look()
    assert heard is not None
    assert heard.deadline == now + timedelta(seconds=300)
    assert heard.reason == "reclaimed"
    assert "involvedObject.name%3Dgpu-1" in cluster.seen[-1][0]


def test_a_silent_cluster_is_asked_again_and_a_missing_right_is_named_once(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.answers["/api/v1/nodes/gpu-1"] = (403, {})
    cluster.answers["/api/v1/namespaces/default/events"] = (403, {})
    told: list[Heard] = []
    source = cluster.source(told)
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 4:
            cluster.node(ebbtide_drain_deadline=SOON.isoformat())
        return len(waits) > 4

    source.run(wait)
    said = capsys.readouterr().err
    assert said.count("cannot be watched") == 1
    assert "get nodes" in said
    assert waits[1] == 60.0, "a missing right is not asked for every five seconds"
    assert [one.deadline for one in told] == [SOON]


def test_an_api_server_that_is_away_is_an_error_to_try_again(cluster: FakeCluster) -> None:
    cluster.answers["/api/v1/nodes/gpu-1"] = (500, {})
    with pytest.raises(ClusterError) as caught:
        cluster.source().look()
    assert not caught.value.forbidden


def test_the_pods_own_grace_is_read_where_allowed(cluster: FakeCluster) -> None:
    source = cluster.source()
    assert source.grace_s() is None
    pod = {"spec": {"terminationGracePeriodSeconds": 45}}
    cluster.answers["/api/v1/namespaces/team/pods/trainer-0"] = (200, pod)
    assert source.grace_s() == 45.0
