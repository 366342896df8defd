"""How anything that goes wrong reaches a client: one JSON shape on every path, which the CLI can read."""

from __future__ import annotations

from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Scope

from ebbtide.api.responses import FastJSON
from ebbtide.errors import (
    BadInput,
    Conflict,
    EbbtideError,
    Forbidden,
    NotFound,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
)

log = structlog.get_logger(__name__)

_STATUS: tuple[tuple[type[EbbtideError], int], ...] = (
    (BadInput, 400),
    (Unauthenticated, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (Conflict, 409),
    (TooManyRequests, 429),
    (Unavailable, 503),
)
_TYPE = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
_HEADERS = {
    401: {"www-authenticate": "Bearer"},
    409: {"x-should-retry": "false"},
    503: {"retry-after": "1"},
}
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def problem(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> FastJSON:
    """An error answer. `code` is a word or null: a number there makes the CLI print the raw dictionary."""
    kind = _TYPE.get(status, "invalid_request_error" if status < 500 else "internal_error")
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return FastJSON(body, status, headers)


def from_error(error: EbbtideError) -> FastJSON:
    """The answer for an error of ours. 409 says not to retry: clients would repeat it for three seconds."""
    for kind, status in _STATUS:
        if isinstance(error, kind):
            headers = _HEADERS.get(status)
            if isinstance(error, TooManyRequests):
                headers = {"retry-after": str(error.retry_after_s)}
            return problem(status, error.message, param=error.param, code=error.code, headers=headers)
    raise error


def unexpected(request_id: str) -> FastJSON:
    """The answer for a fault of ours. What happened is in the log, under the same request id."""
    return problem(500, f"something went wrong on our side; quote request {request_id} when you report it")


async def _on_ours(request: Request, error: Exception) -> FastJSON:
    assert isinstance(error, EbbtideError)
    return from_error(error)


async def _on_http(request: Request, error: Exception) -> FastJSON:
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path
    if error.status_code == 404:
        return problem(
            404, f"no such path: {method} {path}; the base URL is http(s)://HOST:PORT, or that and /v1"
        )
    if error.status_code == 405:
        allowed = _allowed(request.app, request.scope)
        message = f"{path} does not take {method}; it takes {allowed or 'nothing else'}"
        return problem(405, message, headers={"allow": allowed})
    return problem(error.status_code, str(error.detail), headers=dict(error.headers or {}))


def _allowed(app: FastAPI, scope: Scope) -> str:
    def takes(method: str) -> bool:
        tried = {**scope, "method": method}
        return any(route.matches(tried)[0] is Match.FULL for route in app.router.routes)

    return ", ".join(method for method in _METHODS if takes(method))


async def _on_parameters(request: Request, error: Exception) -> FastJSON:
    """Query and path parameters that FastAPI refused. Bodies are read by `body.py` and never come here."""
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = dict(error.errors()[0])
    name = ".".join(str(part) for part in first["loc"][1:]) or None
    said = str(first["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return problem(400, f"{name}: {said[:1].lower()}{said[1:]}", param=name)


def install(app: FastAPI) -> None:
    """Register the handlers on `app`. Unexpected exceptions are the middleware's."""
    app.add_exception_handler(EbbtideError, _on_ours)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_parameters)
