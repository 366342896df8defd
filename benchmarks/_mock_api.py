"""An API server that answers at once and knows nothing: what is left is what the client costs.

python benchmarks/_mock_api.py NODES PODS      prints its port, serves until its standard input ends

Answers are made beforehand. Lists: pods of a node (`fieldSelector=spec.nodeName=...`), nodes, and empty ones
of everything else; pods of all nodes in pages of 500. Whatever is created or patched is answered with an
object of its kind, deletions with the pod. A watch of pods tells at once that each has changed, then that the
last one is gone, and then nothing more.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qsl, unquote

Json = dict[str, Any]
_PAGE = 500


def pod(node: str, at: int) -> Json:
    """A running pod as API servers show them: some 4 kB."""
    name = f"train-{node}-{at}"
    uid = f"00000000-0000-4000-8000-{abs(hash(name)) % 10**12:012}"
    managed = [
        {
            "manager": manager,
            "operation": "Update",
            "apiVersion": "v1",
            "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {f"f:{part}": {f"f:{at}": {} for at in range(24)} for part in ("spec", "status")},
        }
        for manager in ("kube-controller-manager", "kubelet")
    ]
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid,
            "resourceVersion": "1000",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "train", "batch.kubernetes.io/job-name": "train"},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j", "controller": True}
            ],
            "managedFields": managed,
        },
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 300,
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/train:1",
                    "command": ["python", "train.py"],
                    "env": [{"name": f"VARIABLE_{at}", "value": "x" * 20} for at in range(12)],
                    "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}},
                }
            ],
            "tolerations": [
                {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"}
                for key in ("not-ready", "unreachable")
            ],
        },
        "status": {
            "phase": "Running",
            "startTime": "2026-01-01T00:00:01Z",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"}
                for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "containerStatuses": [
                {
                    "name": "main",
                    "image": "registry.example/train:1",
                    "imageID": "sha256:0",
                    "restartCount": 0,
                    "ready": True,
                    "state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}},
                }
            ],
        },
    }


def node(name: str) -> Json:
    """A node of ours, Ready. Its ledger uid is its name."""
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "1000",
            "labels": {"ebbtide/node-uid": name, "together.ai/compute-class": "preemptible"},
        },
        "spec": {},
        "status": {
            "allocatable": {"nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"}],
        },
    }


def names(nodes: int) -> list[str]:
    return [f"gpu-preemptible-dp-{at:04}" for at in range(nodes)]


class Answers:
    """What is answered to which request."""

    def __init__(self, nodes: int, pods: int) -> None:
        named = names(nodes)
        self._all = [(name, at) for name in named for at in range(pods)]
        self._of_node = {
            name: _listed("PodList", "v1", [pod(name, at) for at in range(pods)]) for name in named
        }
        self._nodes = _listed("NodeList", "v1", [node(name) for name in named])
        self._node = {name: _answer(node(name)) for name in named}
        self._pod = _answer(pod(named[0], 0))
        self._version = _answer({"major": "1", "minor": "37", "gitVersion": "v1.37.2"})
        self._none = _listed("List", "v1", [])

    def _page(self, query: str) -> bytes:
        """500 pods of all; `continue` is where the next page begins."""
        begin = int(dict(parse_qsl(query)).get("continue", 0))
        end = min(begin + _PAGE, len(self._all))
        following = {"continue": str(end)} if end < len(self._all) else {}
        items = [pod(*each) for each in self._all[begin:end]]
        return _answer(
            {"kind": "PodList", "metadata": {"resourceVersion": "1000", **following}, "items": items}
        )

    def _events(self, path: str) -> Iterator[bytes]:
        yield b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        if not path.endswith("/pods"):
            return
        for each in self._all:
            yield _chunk("MODIFIED", pod(*each))
        yield _chunk("DELETED", pod(*self._all[-1]))

    def to(self, method: str, target: str) -> bytes:
        path, _, query = target.partition("?")
        if "watch=true" in query:
            return b"".join(self._events(path))
        parts = path.strip("/").split("/")
        if "nodes" in parts and parts[-1] != "nodes":
            return self._node[parts[parts.index("nodes") + 1]]
        if method == "GET" and parts[-1] == "nodes":
            return self._nodes
        if method == "GET" and parts[-1] == "pods":
            if "spec.nodeName=" not in unquote(query):
                return self._page(query)
            node_name = unquote(query).partition("spec.nodeName=")[2].partition("&")[0]
            return self._of_node.get(node_name, self._none)
        if parts[-1] == "version":
            return self._version
        if method == "GET" and "pods" not in parts:
            return self._none
        return self._pod


def _listed(kind: str, version: str, items: list[Json]) -> bytes:
    return _answer(
        {"kind": kind, "apiVersion": version, "metadata": {"resourceVersion": "1000"}, "items": items}
    )


def _answer(content: Json) -> bytes:
    body = json.dumps(content, separators=(",", ":")).encode()
    head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _chunk(kind: str, thing: Json) -> bytes:
    line = json.dumps({"type": kind, "object": thing}, separators=(",", ":")).encode() + b"\n"
    return f"{len(line):x}\r\n".encode() + line + b"\r\n"


def _first_lines(cache: dict[int, bytes] = {}) -> bytes:  # noqa: B006  # one second's are kept
    now = int(time.time())
    if now not in cache:
        cache.clear()
        cache[now] = f"HTTP/1.1 200 OK\r\nDate: {formatdate(now, usegmt=True)}\r\n".encode()
    return cache[now]


class Connection(asyncio.Protocol):
    """As little HTTP as a client needs."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].decode("latin-1")
            length = 0
            for line in head.split("\r\n")[1:]:
                name, _, value = line.partition(":")
                if name.lower() == "content-length":
                    length = int(value)
            if len(self._buffer) < end + 4 + length:
                return
            self._buffer = self._buffer[end + 4 + length :]
            method, target, _ = head.split(" ", 2)
            assert self._transport is not None
            self._transport.write(_first_lines() + self._answers.to(method, target))


async def main() -> None:
    answers = Answers(int(sys.argv[1]), int(sys.argv[2]))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(answers), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
