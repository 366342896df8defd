"""What happens around every request: its id, its measure, its path in one form, and a last net under it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ebbtide.api.problems import unexpected
from ebbtide.clock import monotonic
from ebbtide.log import request_id as context_request_id

log = structlog.get_logger(__name__)

Observe = Callable[[str, str, int, float], None]  # method, route, status, seconds

_OWN_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def normal_path(path: str) -> str:
    """The one form of a path that the routes know.

    Some official clients want `/v1` in their base URL and some do not, and one environment variable serves
    them all, so the API answers under `/v1/...`, `/v1/v1/...` and, for `/compute/...`, without it.
    """
    for _ in range(2):
        if path.startswith(("/v1/v1/", "/v1/v3/")):
            path = path[3:]
    if path.startswith("/compute/"):
        path = f"/v1{path}"
    if path.startswith(("/v1/", "/v3/")):
        path = path.rstrip("/")
    return path


def _rate_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    """What the key may still send, where its request was counted."""
    counted = scope["state"].get("rate_limit")
    if counted is None:
        return []
    limit, left = counted
    return [(b"x-ratelimit-limit", str(limit).encode()), (b"x-ratelimit-remaining", str(left).encode())]


class Envelope:
    """The outermost layer. An unexpected fault becomes a 500 in the standard shape, and is logged."""

    def __init__(self, app: ASGIApp, new_id: Callable[[], str], observe: Observe) -> None:
        self.app = app
        self.new_id = new_id
        self.observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = monotonic()
        request_id = _given_id(scope) or self.new_id()
        asked = scope["path"]
        scope = {**scope, "path": normal_path(asked)}
        scope.setdefault("state", {})["request_id"] = request_id
        context_request_id.set(request_id)
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(b"x-request-id", request_id.encode()), *_rate_headers(scope)]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except ClientDisconnect:
            log.info("the client went away", request_id=request_id, method=scope["method"], path=asked)
        except Exception:
            # Without the frames' variables: those hold keys and bodies.
            told = traceback.format_exc()
            log.error(
                "request failed", request_id=request_id, method=scope["method"], path=asked, exception=told
            )
            if status:  # the answer is on its way already; the server cuts the connection
                raise
            await unexpected(request_id)(scope, receive, send_with_id)
        finally:
            took_s = monotonic() - begun
            # FastAPI leaves the matched route in the scope. An unmatched path must not become a label.
            route = getattr(scope.get("route"), "path", "unmatched")
            self.observe(scope["method"], route, status, took_s)
            say = log.debug if status < 400 else log.info
            say(
                "request",
                request_id=request_id,
                method=scope["method"],
                path=asked,
                status=status,
                took_s=round(took_s, 4),
            )


def _given_id(scope: Scope) -> str | None:
    """The caller's own `x-request-id`, so that logs of two systems can be joined, if it is harmless."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            return text if _OWN_ID.fullmatch(text) else None
    return None
