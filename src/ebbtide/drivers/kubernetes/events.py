"""Kubernetes events: their bodies, and names that say whether one was sent before.

An event's name follows from what it is about, so sending it again finds it there already: repeats cost a
request and show nothing twice.
"""

from __future__ import annotations

import hashlib
from datetime import datetime

from ebbtide.core.events import ALIASES, rfc3339
from ebbtide.drivers.kubernetes import objects
from ebbtide.drivers.kubernetes.objects import Json

NAMESPACE = "default"  # where the events of things without a namespace live
_REPORTER = "ebbtide"
_LONGEST_MESSAGE = 1000
_LONGEST_NAME = 253


def path(namespace: str = NAMESPACE) -> str:
    return f"/api/v1/namespaces/{namespace}/events"


def reasons(reason: str, *, aliases: bool) -> list[str]:
    """The reason and, where handlers may know it by another name, that as well."""
    known = {str(one): alias for one, alias in ALIASES.items()} if aliases else {}
    return [str(reason), known[str(reason)]] if str(reason) in known else [str(reason)]


def about(
    thing: Json, kind: str, reason: str, message: str, at: datetime, key: str, *, warning: bool = True
) -> Json:
    """An event about a Node or a pod.

    key: what makes it this one and no other; the same key and reason never show twice
    """
    namespace = objects.text(thing, "metadata", "namespace")
    digest = hashlib.sha256(f"{key}/{reason}".encode()).hexdigest()[:16]
    subject = objects.name(thing)[: _LONGEST_NAME - len(digest) - 1].rstrip(".-")
    involved = {"apiVersion": "v1", "kind": kind, "name": objects.name(thing), "uid": objects.uid(thing)}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{subject}.{digest}", "namespace": namespace or NAMESPACE},
        "involvedObject": {**involved, "namespace": namespace} if namespace else involved,
        "reason": str(reason),
        "message": message[:_LONGEST_MESSAGE],
        "type": "Warning" if warning else "Normal",
        "source": {"component": _REPORTER},
        "reportingComponent": _REPORTER,
        "reportingInstance": _REPORTER,
        "firstTimestamp": rfc3339(at),
        "lastTimestamp": rfc3339(at),
        "count": 1,
    }
