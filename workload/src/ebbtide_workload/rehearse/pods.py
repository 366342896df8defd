"""One pod's life as a run of the job."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from ..clock import monotonic, sleep, utc_now
from .kubectl import Kubectl, KubectlFailed
from .listen import LineReader, Patterns
from .model import Delivery, Ending, Event, ProcessFact, RehearsalError

DEFAULT_GRACE_S = 30
_KILLED = 137
_LOOK_EVERY_S = 0.5
_SILENCE_S = 60.0
_FOLLOW_AGAIN_S = 2.0
_AFTER_DEADLINE_S = 60.0


class Pod:
    """The few fields of a pod that matter here."""

    def __init__(self, item: Mapping[str, Any]) -> None:
        meta, spec, status = item.get("metadata", {}), item.get("spec", {}), item.get("status", {})
        labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
        key = "batch.kubernetes.io/job-completion-index"
        self.name: str = meta.get("name", "")
        self.uid: str = meta.get("uid", "")
        self.index: str | None = labels.get(key) or notes.get(key)
        self.grace_s: int = int(spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S))
        self.phase: str = status.get("phase", "")
        self.running: bool = self.phase == "Running" and not meta.get("deletionTimestamp")
        self._containers: list[Mapping[str, Any]] = list(spec.get("containers", []))
        self._states: list[Mapping[str, Any]] = list(status.get("containerStatuses", []))

    @property
    def container(self) -> str:
        """The name of the first container, which is taken for the job."""
        return str(self._containers[0].get("name", "container")) if self._containers else "container"

    def command(self) -> list[str]:
        """Command and arguments of the first container; empty when the image decides."""
        if not self._containers:
            return []
        first = self._containers[0]
        return [*map(str, first.get("command") or []), *map(str, first.get("args") or [])]

    def environment(self) -> dict[str, str]:
        """Plain variables of the first container."""
        variables = self._containers[0].get("env") or [] if self._containers else []
        return {str(v.get("name")): str(v.get("value", "")) for v in variables}

    def exit_code(self) -> int | None:
        """The exit code of the first container once it has ended."""
        for state in self._states:
            ended = state.get("state", {}).get("terminated")
            if ended and state.get("name", self.container) == self.container:
                return int(ended.get("exitCode", 0))
        return None


class NeverCame:
    """The next life that never began."""

    def __init__(self, why: str, exit_code: int | None) -> None:
        self.started_t = monotonic()
        self._ending = Ending(exit_code, killed=False, why=why)

    def poll(self, timeout_s: float) -> list[Event]:
        return []

    def running(self) -> bool:
        return False

    def notify(self) -> Delivery:
        raise RehearsalError(self._ending.why)

    def expire(self) -> None:
        return

    def ending(self) -> Ending:
        return self._ending

    def processes(self) -> tuple[ProcessFact, ...]:
        return ()

    def left_behind(self) -> tuple[str, ...]:
        return ()

    def counted_as_failure(self) -> bool:
        return False


class PodRun:
    """Watches one pod, deletes it as a drain would, and waits for it to go."""

    def __init__(
        self,
        kubectl: Kubectl,
        pod: Pod,
        patterns: Patterns,
        granted_s: int,
        failures: Callable[[], int | None],
        *,
        follow_from_now: bool,
    ) -> None:
        self.started_t = monotonic()
        self._kubectl, self._pod, self._granted_s, self._failures = kubectl, pod, granted_s, failures
        self._patterns = patterns
        self._follow(tail=20 if follow_from_now else None)
        self._notified_t: float | None = None
        self._gone_t: float | None = None
        self._exit_code: int | None = None
        self._next_look_t = 0.0
        self._answered_t = monotonic()
        self._failures_before: int | None = None

    def _follow(self, *, tail: int | None) -> None:
        self._logs = self._kubectl.follow_logs(self._pod.name, tail=tail)
        assert self._logs.stdout is not None
        self._reader = LineReader(self._logs.stdout, self._patterns)
        self._followed_t = monotonic()

    def poll(self, timeout_s: float) -> list[Event]:
        """What the log told; followed anew when the stream was cut, as API servers do after some time."""
        cut = self._logs.poll() is not None and self._gone_t is None
        if cut and monotonic() - self._followed_t > _FOLLOW_AGAIN_S:
            events = self._reader.wait(0)
            self._reader.join()
            self._follow(tail=20)
            return events
        return self._reader.wait(timeout_s)

    def running(self) -> bool:
        now = monotonic()
        if self._gone_t is None and now >= self._next_look_t:
            self._next_look_t = now + _LOOK_EVERY_S
            self._look()
        return self._gone_t is None

    def _look(self) -> None:
        """Ask for the pod. No answer is not "gone"; a minute without any answer ends the rehearsal."""
        try:
            found = Pod(self._kubectl.get("pod", self._pod.name, "--ignore-not-found"))
        except KubectlFailed as error:
            if monotonic() - self._answered_t > _SILENCE_S:
                raise RehearsalError(f"the cluster no longer answers: {error}") from error
            return
        self._answered_t = monotonic()
        if found.uid == self._pod.uid:
            code = found.exit_code()
            if code is None and found.phase not in ("Succeeded", "Failed"):
                return
            self._exit_code = code
        self._gone_t = monotonic()

    def notify(self) -> Delivery:
        """Mark the pod as disrupted, then delete it with the granted grace."""
        self._failures_before = self._failures()
        try:
            self._kubectl.run(
                "patch",
                "pod",
                self._pod.name,
                "--subresource=status",
                "--type=strategic",
                "-p",
                disruption_patch(),
            )
            self._notified_t = monotonic()
            self._kubectl.run(
                "delete", "pod", self._pod.name, f"--grace-period={self._granted_s}", "--wait=false"
            )
        except KubectlFailed as error:
            raise RehearsalError(f"cannot preempt pod {self._pod.name}: {error}") from error
        return Delivery(True, f"pod {self._pod.name}", float(self._granted_s), self._notified_t)

    def expire(self) -> None:
        """Stop listening; after a notice, first wait for the kubelet to finish what it has to do anyway."""
        if self._notified_t is not None:
            until = monotonic() + _AFTER_DEADLINE_S
            while self.running() and monotonic() < until:
                sleep(_LOOK_EVERY_S)
        if self._logs.poll() is None:
            self._logs.terminate()
            try:
                self._logs.wait(5)
            except subprocess.TimeoutExpired:
                self._logs.kill()
                self._logs.wait()
        self._reader.join()

    def ending(self) -> Ending:
        return Ending(self._exit_code, self._killed())

    def _killed(self) -> bool:
        if self._notified_t is None:
            return False
        if self._gone_t is None:
            return True
        at_deadline = self._gone_t - self._notified_t >= self._granted_s - 1
        return at_deadline and self._exit_code in (None, _KILLED)

    def processes(self) -> tuple[ProcessFact, ...]:
        if self._notified_t is None:
            return ()
        gone = None if self._killed() or self._gone_t is None else self._gone_t - self._notified_t
        name = f"container {self._pod.container}"
        return (ProcessFact(1, name, True, "unknown", gone, told=True),)

    def left_behind(self) -> tuple[str, ...]:
        return ()

    def counted_as_failure(self) -> bool:
        """Whether the Job took the preemption for a failure of the pod."""
        before, now = self._failures_before, self._failures()
        return before is not None and now is not None and now > before


def disruption_patch() -> str:
    """The status patch that tells a Job's controller that the pod was disrupted, not broken."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EbbtideRehearsal",
        "message": "preempted on purpose by ebb rehearse",
        "lastTransitionTime": utc_now().strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return json.dumps({"status": {"conditions": [condition]}})
