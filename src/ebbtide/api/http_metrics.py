"""How many requests, how they ended, how long they took; by route, so that series stay few."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

_requests = Counter("ebbtide_http_requests_total", "Requests answered.", ("method", "route", "status"))
_seconds = Histogram(
    "ebbtide_http_request_seconds",
    "From the request's arrival to the end of its answer.",
    ("method", "route"),
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def observe(method: str, route: str, status: int, seconds: float) -> None:
    """Count one request. `status` 0: the client went away before the answer began."""
    method = method if method in _METHODS else "other"
    _requests.labels(method, route, str(status)).inc()
    _seconds.labels(method, route).observe(seconds)
