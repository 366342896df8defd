"""The cluster as a messenger: the drain annotation on our node, or the notice event about it.

Asks the API server every few seconds with the pod's own service account: one small read of one object,
answered from the server's cache. Short requests rather than a watch, because a watch that went silent looks
like a quiet one. Without permission to read nodes the events about the node are read instead; without either
this source says so once, names the permission, and looks again every minute.

The service account needs `get` on `nodes` (or `list` on `events`); with `get` on `pods` the pod's own grace
is known before the first signal, and a grace that wastes most of the window is said at the start.
"""

from __future__ import annotations

import json
import random
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import clock
from .deadline import Heard, after, parse_instant
from .say import say

DEADLINE_ANNOTATION = "ebbtide/drain-deadline"
REASON_ANNOTATION = "ebbtide/drain-reason"
NOTICE_REASONS = ("TogetherPreempted", "TogetherPreemptionNotified")
EVENT_WINDOW_S = 300.0
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
POLL_S = 5.0
RETRY_FORBIDDEN_S = 60.0
TIMEOUT_S = 10.0


class ClusterError(Exception):
    """The API server could not be asked or said no. `forbidden` tells the two apart."""

    def __init__(self, message: str, forbidden: bool = False) -> None:
        super().__init__(message)
        self.forbidden = forbidden


@dataclass(frozen=True)
class Api:
    """How to reach the API server from inside a pod."""

    base_url: str
    account: Path = ACCOUNT

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Api:
        host, port = env["KUBERNETES_SERVICE_HOST"], env.get("KUBERNETES_SERVICE_PORT", "443")
        return cls(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")

    @property
    def namespace(self) -> str:
        """The pod's namespace. Raises ClusterError when no service account is mounted."""
        return self._read("namespace")

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """GET and decode one object. Raises ClusterError."""
        url = f"{self.base_url}{path}?{urllib.parse.urlencode(query)}"
        headers = {"Authorization": f"Bearer {self._read('token')}", "Accept": "application/json"}
        request = urllib.request.Request(url, headers=headers)
        try:
            with self._opener().open(request, timeout=TIMEOUT_S) as reply:
                answer = json.load(reply)
        except urllib.error.HTTPError as error:
            raise ClusterError(f"{path}: HTTP {error.code}", error.code in (401, 403)) from error
        except (OSError, ValueError) as error:
            raise ClusterError(f"{path}: {error}") from error
        if not isinstance(answer, dict):
            raise ClusterError(f"{path}: not an object")
        return answer

    def _opener(self) -> urllib.request.OpenerDirector:
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self.base_url.startswith("https:"):
            try:
                context = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
            except OSError as error:
                raise ClusterError(f"no certificate of the cluster: {error}", forbidden=True) from error
            handlers.append(urllib.request.HTTPSHandler(context=context))
        return urllib.request.build_opener(*handlers)

    def _read(self, name: str) -> str:
        try:  # each time anew: tokens are rotated under us
            return (self.account / name).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ClusterError(f"no service account: {error}", forbidden=True) from error


class KubernetesSource:
    """Asks about one node. `tell` gets each notice; `run` is the body of a thread."""

    def __init__(self, api: Api, node: str, pod: str | None, tell: Callable[[Heard], object]) -> None:
        self._api = api
        self._node = node
        self._pod = pod
        self._tell = tell
        self._complained = False
        self._by_events = False

    def grace_s(self) -> float | None:
        """The grace in our own pod's spec, None when it may not be read."""
        if not self._pod:
            return None
        try:
            pod = self._api.get(f"/api/v1/namespaces/{self._api.namespace}/pods/{self._pod}")
        except ClusterError:
            return None
        value = pod.get("spec", {}).get("terminationGracePeriodSeconds")
        return float(value) if isinstance(value, (int, float)) else None

    def look(self) -> Heard | None:
        """One look at the node. Raises ClusterError when neither the node nor its events can be read."""
        if not self._by_events:
            try:
                return self._from_node(self._api.get(f"/api/v1/nodes/{self._node}", resourceVersion="0"))
            except ClusterError as error:
                if not error.forbidden:
                    raise
                self._by_events = True
        return self._from_events(self._list_events())

    def run(self, wait: Callable[[float], bool]) -> None:
        """Look until `wait(seconds)` answers True (asked to stop)."""
        pause = 0.0
        while not wait(pause):
            pause = POLL_S * random.uniform(0.8, 1.2)
            try:
                heard = self.look()
            except ClusterError as error:
                self._complain(error)
                if error.forbidden:
                    self._by_events, pause = False, RETRY_FORBIDDEN_S
                continue
            if heard is not None:
                self._tell(heard)

    def _complain(self, error: ClusterError) -> None:
        if self._complained:
            return
        self._complained = True
        fix = (
            "; let its service account get nodes or list events in namespace default"
            if error.forbidden
            else ""
        )
        say(f"node {self._node} cannot be watched ({error}){fix}; SIGTERM is still heard")

    def _from_node(self, node: Mapping[str, Any]) -> Heard | None:
        notes = node.get("metadata", {}).get("annotations") or {}
        text = notes.get(DEADLINE_ANNOTATION)
        if not text:
            return None
        now = clock.utc_now()
        reason = notes.get(REASON_ANNOTATION) or f"node {self._node} is draining"
        try:
            return Heard("node", parse_instant(text), reason, now)
        except ValueError:
            return Heard(
                "node", after(EVENT_WINDOW_S, now), f"{reason} (deadline {text!r} not understood)", now
            )

    def _list_events(self) -> list[dict[str, Any]]:
        selector = f"involvedObject.kind=Node,involvedObject.name={self._node}"
        items = self._api.get("/api/v1/namespaces/default/events", fieldSelector=selector).get("items") or []
        return [item for item in items if item.get("reason") in NOTICE_REASONS]

    def _from_events(self, events: list[dict[str, Any]]) -> Heard | None:
        """A notice event counts while its five minutes run; names are never reused, so an old one is
        history."""
        now = clock.utc_now()
        for event in events:
            text = (
                event.get("firstTimestamp")
                or event.get("eventTime")
                or event["metadata"]["creationTimestamp"]
            )
            try:
                deadline = after(EVENT_WINDOW_S, parse_instant(text))
            except (TypeError, ValueError):
                continue
            if deadline > now:
                return Heard("event", deadline, str(event.get("message") or event["reason"]), now)
        return None
