"""What may come of a call to a Kubernetes API server, when it is not the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ebbtide.errors import EbbtideError

BUDGET_CAUSE = "DisruptionBudget"


class KubeError(EbbtideError):
    """Base of all that a call may raise (but BadInput, for a kubeconfig that cannot be used)."""


class Unreachable(KubeError):
    """Nothing sensible came back in time: no connection, no answer, half an answer, 5xx, a redirect,
    something that is no JSON, or a refusal by priority and fairness. A write may or may not have happened.

    status:        the HTTP status, None where there was no answer at all
    detail:        what the API server itself said of it, empty where it was not the API server that spoke
    retry_after_s: what the server asked to wait, None if it did not
    """

    def __init__(
        self, message: str, *, status: int | None = None, detail: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, code="kube_unreachable")
        self.status = status
        self.detail = detail
        self.retry_after_s = retry_after_s


class Rejected(KubeError):
    """The API server understood and said no (a 4xx with its Status object); nothing has changed.

    status: the HTTP status. reason: its one word. causes: the causes' words.
    detail: its sentence, empty if it said none.
    """

    def __init__(
        self, what: str, status: int, reason: str = "", detail: str = "", causes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(f"{what}: {status} {reason}: {detail}".rstrip(": "), code="kube_rejected")
        self.status = status
        self.reason = reason
        self.detail = detail
        self.causes = causes


class Unauthorized(Rejected):
    """401: the credentials are not known, or have ended."""


class Forbidden(Rejected):
    """403: known, but without this right; or refused by an admission rule."""


class NotFound(Rejected):
    """404."""


class Conflict(Rejected):
    """409: it is there already, or has another version or uid than was named."""


class Expired(Rejected):
    """410: the version asked for is no longer kept; list again."""


class Invalid(Rejected):
    """422: it breaks the object's rules."""


class BudgetRefused(Rejected):
    """429 to an eviction, by a disruption budget (and not by an API server with too much to do)."""


_KINDS: Mapping[int, type[Rejected]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
    422: Invalid,
}


def from_status(
    what: str, status: Mapping[str, Any], *, code: int | None = None, retry_after_s: float | None = None
) -> KubeError:
    """The error that a Status object means.

    what: the call, for the message. code: the HTTP status if there was one; else the object's own is taken.
    """
    code = code if code is not None else _number(status.get("code"))
    reason, detail = _text(status.get("reason")), _text(status.get("message"))
    details = status.get("details")
    found = details.get("causes") if isinstance(details, Mapping) else None
    listed = [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []
    causes = tuple(_text(each.get("reason")) for each in listed)
    if code == 429 and BUDGET_CAUSE in causes:
        # Which budget it is, only the cause's own sentence says.
        said = [_text(each.get("message")) for each in listed if each.get("reason") == BUDGET_CAUSE]
        detail = said[0] or detail
        return BudgetRefused(what, code, reason, detail, causes)
    if code == 429 or not 400 <= code < 500:
        message = f"{what}: {code} {reason}: {detail}".rstrip(": ")
        return Unreachable(message, status=code, detail=detail, retry_after_s=retry_after_s)
    return _KINDS.get(code, Rejected)(what, code, reason, detail, causes)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
