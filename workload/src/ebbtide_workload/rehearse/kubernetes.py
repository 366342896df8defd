"""Rehearsing in a cluster: a running pod of the Job gets what a reclaimed node would give it.

The pod's status gets the condition DisruptionTarget and the pod is deleted with its own grace, cut to the
window; the kubelet sends SIGTERM and kills at the end. The replacement that the Job's controller makes is
the next life.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from ..clock import monotonic, sleep
from .kubectl import Kubectl, KubectlFailed
from .listen import Patterns
from .model import RehearsalError, Run
from .pods import NeverCame, Pod, PodRun

_LOOK_EVERY_S = 1.0


class ClusterJob:
    """A Job (or a set of pods by label) whose pods are preempted one by one."""

    def __init__(
        self,
        kubectl: Kubectl,
        job: str | None,
        selector: str | None,
        patterns: Patterns,
        seed: int,
        first_step_s: float,
        window_s: float,
        own_grace_s: float | None,
        tell: Callable[[str], None],
    ) -> None:
        """Raises RehearsalError when the Job cannot be found."""
        self._kubectl, self._job, self._patterns, self._tell = kubectl, job, patterns, tell
        self._first_step_s, self._window_s, self._own_grace_s = first_step_s, window_s, own_grace_s
        self._chance = random.Random(seed)
        self._seen: set[str] = set()
        self._index: str | None = None
        self._selector = selector or self._selector_of_job()
        self._victim: Pod | None = None

    def describe(self) -> str:
        """What is rehearsed, for the report."""
        return f"job/{self._job}" if self._job else f"pods with {self._selector}"

    def command(self) -> list[str]:
        """The command of the pods, as far as the manifest names it; empty when no pod runs yet."""
        pods = self._pods()
        return pods[0].command() if pods else []

    def environment(self) -> dict[str, str]:
        """The variables that the pods' manifest sets to plain values."""
        pods = self._pods()
        return pods[0].environment() if pods else {}

    def _selector_of_job(self) -> str:
        try:
            job = self._kubectl.get("job", str(self._job))
        except KubectlFailed as error:
            raise RehearsalError(f"cannot read the Job {self._job}: {error}") from error
        labels: Mapping[str, str] = job.get("spec", {}).get("selector", {}).get("matchLabels", {})
        if not labels:
            return f"job-name={self._job}"
        return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))

    def _pods(self) -> list[Pod]:
        try:
            found = self._kubectl.get("pods", "-l", self._selector)
        except KubectlFailed as error:
            raise RehearsalError(f"cannot list the pods: {error}") from error
        return sorted((Pod(item) for item in found.get("items", [])), key=lambda pod: pod.name)

    def failures(self) -> int | None:
        """How many failed pods the Job counts against its backoffLimit; None when there is no Job to ask."""
        if self._job is None:
            return None
        status = self._job_status()
        return None if status is None else int(status.get("failed") or 0)

    def _job_status(self) -> Mapping[str, Any] | None:
        try:
            return dict(self._kubectl.get("job", str(self._job)).get("status", {}))
        except KubectlFailed:
            return None

    def start(self, number: int) -> Run:
        """Life 0 is a pod that runs already; each later life is the replacement of the one before."""
        deadline = monotonic() + self._first_step_s
        while monotonic() < deadline:
            ready = [pod for pod in self._pods() if self._fits(pod)]
            if ready:
                return self._begin(self._chance.choice(ready), first=number == 0)
            if self._over():
                return NeverCame(f"job/{self._job} has failed", None)
            sleep(_LOOK_EVERY_S)
        if number == 0:
            raise RehearsalError(f"no running pod of {self.describe()} after {self._first_step_s:g} s")
        return NeverCame(f"no new pod ran within {self._first_step_s:g} s", None)

    def _fits(self, pod: Pod) -> bool:
        same_rank = self._index is None or pod.index == self._index
        return pod.running and pod.uid not in self._seen and same_rank

    def _over(self) -> bool:
        status = self._job_status() if self._job else None
        conditions = (status or {}).get("conditions", [])
        return any(c.get("type") == "Failed" and c.get("status") == "True" for c in conditions)

    def _begin(self, pod: Pod, *, first: bool) -> Run:
        self._seen.update(p.uid for p in self._pods())
        self._seen.add(pod.uid)
        self._index = pod.index
        self._tell(f"  watching pod {pod.name}")
        granted_s = self._granted_s(pod)
        return PodRun(self._kubectl, pod, self._patterns, granted_s, self.failures, follow_from_now=first)

    def _granted_s(self, pod: Pod) -> int:
        longest_s = max(1, int(self._window_s) - 3)
        asked_s = pod.grace_s if self._own_grace_s is None else int(self._own_grace_s)
        return max(1, min(asked_s, longest_s))
