"""The command line against a whole server: a cluster watched live, and its events sent to a receiver here."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue
from typing import IO, Any

from ebbtide.client import Client
from ebbtide.settings import Settings

from .living import Living, living
from .stories import CREATE

PROGRAM = "from ebbtide.cli.main import run; run()"


@contextmanager
def _watching(server: Living, *words: str) -> Iterator[subprocess.Popen[str]]:
    paths = os.pathsep.join(each for each in sys.path if each)
    known = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "HOME": "/nonexistent"}
    known |= {"EBBTIDE_URL": server.url, "EBBTIDE_API_KEY": server.member}
    command = [sys.executable, "-c", PROGRAM, "watch", *words]
    with subprocess.Popen(command, env=known, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def _lines(stream: IO[str], count: int) -> list[dict[str, Any]]:
    return [json.loads(stream.readline()) for _ in range(count)]


@contextmanager
def _receiver() -> Iterator[tuple[str, Queue[tuple[bytes, str, str]]]]:
    """Where webhooks may go: its URL, and what it was sent (body, signature, delivery)."""
    taken: Queue[tuple[bytes, str, str]] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            taken.put((body, self.headers["ebbtide-signature"], self.headers["ebbtide-delivery"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the inherited name
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", taken
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_cluster_is_watched_and_told_of(database_url: str) -> None:
    settings = replace(Settings(), drain_window_s=5, kill_margin_s=1, observe_every_s=1, webhook_private=True)
    with living(database_url, settings) as server, _receiver() as (url, taken):
        client = Client(server.url, server.member)
        hook = client.create_webhook(url)
        order = {**CREATE, "num_preemptible_gpus": 16, "project_id": server.project_id}
        cluster_id = client.create_cluster(order)["cluster_id"]
        with _watching(server, "demo", "--json") as running:
            assert running.stdout
            told = _lines(running.stdout, 3)
            client.update_cluster(cluster_id, {"num_preemptible_gpus": 8})
            told += _lines(running.stdout, 1)
            running.send_signal(signal.SIGINT)
            assert running.wait(20) == 0
        assert [each["number"] for each in told] == [1, 2, 3, 4]
        assert {each["cluster_name"] for each in told} == {"demo"}
        assert told[-1]["reason"] == "TogetherScaledDown"
        for event in told:
            body, signed, delivery = taken.get(timeout=20)
            sent = json.loads(body)
            assert (sent["number"], sent["type"], sent["id"]) == (event["number"], event["reason"], delivery)
            at_s = signed.partition(",")[0].removeprefix("t=")
            digest = hmac.new(hook["secret"].encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
            assert signed == f"t={at_s},v1={digest}"
        client.close()
