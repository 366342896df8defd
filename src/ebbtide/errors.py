"""What can go wrong, said so that the reader knows what to do next.

The API turns each kind into one HTTP status.
"""

from __future__ import annotations


class EbbtideError(Exception):
    """Base of every error that a user may see.

    message: a sentence that says what is wrong and, where there is one, the next step.
    param:   the field at fault, as its user writes it.
    code:    a stable word for programs.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class BadInput(EbbtideError):
    """The request cannot be right as it stands (400)."""


class Unauthenticated(EbbtideError):
    """No key, or one that is not known, expired or revoked (401)."""


class Forbidden(EbbtideError):
    """The key is good, the act is not its to do (403)."""


class NotFound(EbbtideError):
    """There is no such thing, or it is not the caller's (404)."""


class Conflict(EbbtideError):
    """Right in itself but not possible now: no capacity, another meaning for a used token (409)."""


class TooManyRequests(EbbtideError):
    """The key sends faster than it may (429)."""

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message, code="rate_limited")
        self.retry_after_s = retry_after_s


class Unavailable(EbbtideError):
    """Something we rest on is away for the moment; the same request may work in a second (503)."""


class LeaseLost(EbbtideError):
    """Somebody else works on this row now; whatever this visit wanted to write is dropped."""


class StartupError(EbbtideError):
    """A process cannot start; the message says what to change."""
