"""A small HTTP server with canned answers, so that the command line is tested through real sockets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any]


@dataclass
class Request:
    """What the server was asked. `body` is parsed if it is JSON, else text."""

    method: str
    path: str
    key: str
    body: Any
    headers: dict[str, str]


@dataclass
class Stub:
    """Answers by `METHOD /path?query`, each a list used up but for its last; and what was asked so far."""

    answers: dict[str, list[Answer]] = field(default_factory=dict)
    asked: list[Request] = field(default_factory=list)
    url: str = ""

    def on(self, request: str, *bodies: Any, status: int = 200) -> None:
        """Answer `request` with each body in turn, and with the last one from then on."""
        self.answers[request] = [(status, body) for body in bodies]

    def refuse(self, request: str, status: int, message: str, code: str | None = None) -> None:
        error = {"message": message, "type": "x", "param": None, "code": code}
        self.on(request, {"error": error}, status=status)

    def answer(self, request: str) -> Answer:
        known = self.answers.get(request)
        if known is None:
            return 404, {"error": {"message": f"no answer for {request}", "type": "not_found_error"}}
        return known.pop(0) if len(known) > 1 else known[0]

    @property
    def last(self) -> Request:
        return self.asked[-1]


@contextmanager
def serving() -> Iterator[Stub]:
    """A stub that listens on a free loopback port."""
    stub = Stub()

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            size = int(self.headers.get("content-length") or 0)
            raw = self.rfile.read(size).decode()
            is_json = "json" in (self.headers.get("content-type") or "")
            body = json.loads(raw) if raw and is_json else raw
            key = (self.headers.get("authorization") or "").removeprefix("Bearer ")
            headers = {name.lower(): value for name, value in self.headers.items()}
            stub.asked.append(Request(self.command, self.path, key, body, headers))
            status, answer = stub.answer(f"{self.command} {self.path}")
            data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815  the names that http.server looks for

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the inherited name
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
