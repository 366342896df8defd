"""What happened in the simulated world, in order: for tests that assert orders, and for people who watch."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class What(StrEnum):
    """Kinds of facts."""

    CREATED = "created"  # the provider began an instance
    REFUSED = "refused"  # the provider would not
    UP = "up"
    BOOT_FAILED = "boot failed"
    REGISTERED = "registered"  # the Node object exists
    READY = "ready"
    GPUS_SHOWN = "gpus shown"
    ADMITTED = "admitted"  # the initializing taint is gone
    CORDONED = "cordoned"
    NOTICE = "notice"  # an event on the Node; sent twice it would be here twice
    CLOSING = "closing"  # the last event on the Node
    BOUND = "bound"  # a pod started
    EVICTION_REFUSED = "eviction refused"
    SIGTERM = "sigterm"
    SHORTENED = "shortened"  # told again, with an earlier end
    EXITED = "exited"  # a pod ended by itself after SIGTERM
    KILLED = "killed"  # SIGKILL by the kubelet, or with its machine
    FINISHED = "finished"  # a pod completed
    FORCE_DELETED = "force deleted"  # the pod object was taken away
    DETACHED = "detached"
    VANISHED = "vanished"
    STOP_UNCONFIRMED = "stop unconfirmed"
    POWER_OFF = "power off"
    NODE_REMOVED = "node removed"  # the Node object is gone
    DELETE_FAILED = "delete failed"
    WIPING = "wiping"
    WIPED = "wiped"  # the provider has nothing left: the host is free
    REPLY_LOST = "reply lost"
    CONTROL_PLANE = "control plane"
    RESTARTED = "restarted"  # a machine went down to come up again
    NOTICE_TAKEN_BACK = "notice taken back"
    VOLUME_READY = "volume ready"  # made or grown
    VOLUME_SHOWN = "volume shown"  # its PersistentVolume stands in a cluster
    VOLUME_DROPPED = "volume dropped"
    VOLUME_GONE = "volume gone"


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that happened. Empty text where a field has no meaning.

    asked_s, given_s: a pod's own grace and the grace that came with its SIGTERM
    """

    at: datetime
    what: What
    cluster_id: str = ""
    node_uid: str = ""
    host: str = ""
    pod: str = ""
    detail: str = ""
    asked_s: int | None = None
    given_s: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """Something that an observer of the cluster would notice; `number` grows with each in the world."""

    number: int
    cluster_id: str
    node_uid: str
