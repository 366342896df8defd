"""Reading a request's body: bounded, JSON or a clear refusal, and nothing that no database can store."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, NoReturn

from starlette.exceptions import HTTPException
from starlette.requests import Request

from ebbtide.errors import BadInput

_DEPTH_LIMIT = 32


@dataclass(frozen=True, slots=True)
class JSONBody:
    """A JSON object without its nulls (null means "not given"), and the hash of that in canonical form."""

    values: dict[str, Any]
    sha256: str


async def read_bytes(request: Request, limit: int) -> bytes:
    """The body, or 413 as soon as it is known to exceed `limit` bytes."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and (len(announced) > 18 or int(announced) > limit):
        _too_large(limit)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            _too_large(limit)
        parts.append(part)
    return b"".join(parts)


def _too_large(limit: int) -> NoReturn:
    raise HTTPException(413, f"the body is larger than {limit} bytes; send less")


async def read_text(request: Request, limit: int) -> str:
    """The body as UTF-8 text."""
    try:
        text = (await read_bytes(request, limit)).decode()
    except UnicodeDecodeError:
        raise BadInput("the body is not UTF-8 text; save it as UTF-8 and send it again") from None
    if "\0" in text:
        raise BadInput("the body contains a NUL character; remove it")
    return text


async def read_json(request: Request, limit: int) -> JSONBody:
    """The body as a JSON object.

    The content type is not looked at: clients disagree on it, and anything else than JSON is refused anyhow.
    """
    values = parse_object(await read_bytes(request, limit))
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return JSONBody(values, hashlib.sha256(canonical.encode()).hexdigest())


def parse_object(raw: bytes) -> dict[str, Any]:
    """Parse `raw`, drop every null, refuse with BadInput what is not a sane JSON object."""
    try:
        parsed = json.loads(raw, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise BadInput("the body is not UTF-8; send JSON in UTF-8") from None
    except RecursionError:
        raise BadInput("the body is nested too deeply; no field needs that") from None
    except json.JSONDecodeError as error:
        raise BadInput(
            f"the body is not valid JSON ({error.msg}, line {error.lineno}); send a JSON object"
        ) from None
    except ValueError:  # an integer of thousands of digits
        raise BadInput("the body holds a number that is too long; no field needs that") from None
    if not isinstance(parsed, dict):
        raise BadInput("the body must be a JSON object, like {}")
    cleaned: dict[str, Any] = _clean(parsed, "", 0)
    return cleaned


def _no_constant(name: str) -> NoReturn:
    raise BadInput(f"{name} is not valid JSON; send a plain number")


def _clean(value: Any, where: str, depth: int) -> Any:
    if depth > _DEPTH_LIMIT:
        raise BadInput(
            f"{where.split('.')[0]} is nested too deeply; no field needs that", param=where.split(".")[0]
        )
    if isinstance(value, str):
        return check_text(value, where)
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        raise BadInput(f"{where} is too large a number", param=where)
    if isinstance(value, list):
        return [_clean(item, where, depth + 1) for item in value if item is not None]
    if isinstance(value, dict):
        return {
            check_text(key, where or "a field's name"): _clean(
                item, f"{where}.{key}" if where else key, depth + 1
            )
            for key, item in value.items()
            if item is not None
        }
    return value


def check_text(text: str, where: str) -> str:
    """`text` itself, unless it holds a NUL or half of a surrogate pair, which no database stores."""
    if "\0" in text:
        raise BadInput(f"{_shown(where)} contains a NUL character; remove it", param=_shown(where))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{_shown(where)} contains half of a Unicode character", param=_shown(where)) from None
    return text


def _shown(where: str) -> str:
    return where.encode("ascii", "replace").decode().replace("\0", "?")[:100]
