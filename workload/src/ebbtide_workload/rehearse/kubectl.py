"""Speaking to a cluster through the kubectl program on PATH."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from .model import RehearsalError

TIMEOUT_S = 30.0


class KubectlFailed(Exception):
    """One call failed; it may work the next time."""


class Kubectl:
    """kubectl with its context and namespace chosen once."""

    def __init__(self, program: str, options: Sequence[str]) -> None:
        self._start = [program, *options]

    @classmethod
    def find(cls, namespace: str | None, context: str | None) -> Kubectl:
        """Raises RehearsalError when kubectl is not on PATH."""
        program = shutil.which("kubectl")
        if program is None:
            raise RehearsalError(
                "kubectl is not on PATH; it is how --job and --selector reach the cluster "
                "(install it, or rehearse the command itself: ebb rehearse -- CMD)"
            )
        options = [] if context is None else ["--context", context]
        return cls(program, options if namespace is None else [*options, "--namespace", namespace])

    def run(self, *words: str) -> str:
        """The output of one call. Raises KubectlFailed with kubectl's own message."""
        try:
            done = subprocess.run(
                [*self._start, *words], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise KubectlFailed(f"kubectl {words[0]}: {error}") from error
        if done.returncode != 0:
            raise KubectlFailed(done.stderr.strip() or f"kubectl {words[0]} failed ({done.returncode})")
        return done.stdout

    def get(self, *words: str) -> Mapping[str, Any]:
        """An object (or list) as JSON; empty when `--ignore-not-found` finds nothing."""
        text = self.run("get", *words, "-o", "json")
        try:
            return dict(json.loads(text)) if text.strip() else {}
        except ValueError as error:
            raise KubectlFailed(f"kubectl get {words[0]} did not answer with JSON") from error

    def follow_logs(self, pod: str, *, tail: int | None) -> subprocess.Popen[str]:
        """`kubectl logs --follow` as a running process with its output as a pipe."""
        limit = [] if tail is None else [f"--tail={tail}"]
        return subprocess.Popen(
            [*self._start, "logs", "--follow", pod, *limit],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
