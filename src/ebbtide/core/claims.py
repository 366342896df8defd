"""Claims: demands that may displace preemptible nodes. A claim is a count promised in a pool."""

from __future__ import annotations

from enum import StrEnum


class ClaimKind(StrEnum):
    STANDARD = "standard"  # a cluster's standard nodes: first order, scale-up, or replacement of a lost one
    EXTERNAL = "external"  # demand of another system, idempotent by its reference
    MAINTENANCE = "maintenance"  # the operator wants one named host


class ClaimState(StrEnum):
    OPEN = "open"  # some of its hosts are still promised only
    SERVED = "served"  # all of its hosts are there
    ENDED = "ended"  # given back or cancelled
