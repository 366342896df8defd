"""What goes into every log line and every audit entry: which request this is."""

from __future__ import annotations

from contextvars import ContextVar

# Set by the API for the time of a request; None in loops.
request_id: ContextVar[str | None] = ContextVar("ebbtide_request_id", default=None)
