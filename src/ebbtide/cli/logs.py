"""Where a server process writes its log: one JSON object per line, to a file or to standard error."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import structlog
from structlog.typing import EventDict

from ebbtide.log import request_id

_MOST_BYTES = 50_000_000


def to_file(path: Path) -> None:
    """Append to a private file; one that has grown large is set aside first."""
    if path.exists() and path.stat().st_size > _MOST_BYTES:
        path.replace(path.with_suffix(".log.1"))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    # Open for the process's whole life, like the standard streams; lines reach the file as they are written.
    stream = os.fdopen(descriptor, "w", buffering=1, encoding="utf-8")
    _configure(structlog.WriteLoggerFactory(stream), logging.StreamHandler(stream))


def to_stderr() -> None:
    """For processes that are watched by something that keeps their output."""
    _configure(structlog.WriteLoggerFactory(sys.stderr), logging.StreamHandler(sys.stderr))


def _add_request(_: object, __: str, event: EventDict) -> EventDict:
    """Lines that are written for a request carry its id."""
    request = request_id.get()
    return event if request is None else {"request": request, **event}


class _JSONLines(logging.Formatter):
    """Libraries' own log records in the same form as ours."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat()
        line = {
            "at": at,
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _configure(factory: structlog.WriteLoggerFactory, handler: logging.Handler) -> None:
    level = logging.DEBUG if os.environ.get("EBBTIDE_DEBUG") else logging.INFO
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _add_request,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=factory,
    )
    handler.setFormatter(_JSONLines())
    logging.basicConfig(level=max(level, logging.INFO), handlers=[handler], force=True)
    for noisy in ("alembic", "httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
