"""The JSON answer of hot paths: plain dicts, dumped once, no model in between."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse

# A prepared encoder: `json.dumps` with non-default arguments would build one per call.
_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode


class FastJSON(JSONResponse):
    """A JSONResponse (FastAPI then documents it as JSON) that encodes with the prepared encoder."""

    def __init__(self, content: Any, status_code: int = 200, headers: dict[str, str] | None = None) -> None:
        super().__init__(content, status_code, headers)

    def render(self, content: Any) -> bytes:
        return _encode(content).encode()
