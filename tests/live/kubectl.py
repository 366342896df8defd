"""kubectl as tests call it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbtide.clock import monotonic

Json = dict[str, Any]
_LIMIT_S = 120


class Refused(AssertionError):
    """kubectl ended badly; the message is what it said."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """One kubectl with one kubeconfig. Called with its arguments; returns what it wrote. Raises Refused."""

    program: Path
    kubeconfig: Path

    def __call__(self, *arguments: str | Path, stdin: str | None = None) -> str:
        command = [self.program, f"--kubeconfig={self.kubeconfig}", *arguments]
        ran = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=_LIMIT_S)
        if ran.returncode != 0:
            raise Refused(f"kubectl {' '.join(map(str, arguments))}: {ran.stderr.strip()}")
        return ran.stdout

    def items(self, *arguments: str) -> list[Json]:
        """What `get` finds."""
        found: list[Json] = json.loads(self("get", "--output=json", *arguments))["items"]
        return found

    def one(self, kind: str, name: str) -> Json:
        """One object of the default namespace."""
        found: Json = json.loads(self("get", "--output=json", kind, name))
        return found

    def apply(self, *objects: Json) -> None:
        """Apply objects strictly."""
        if objects:
            content = {"kind": "List", "apiVersion": "v1", "items": objects}
            self("apply", *STRICTLY, "--filename=-", stdin=json.dumps(content))


STRICTLY = ("--server-side", "--validate=strict")


def eventually(look: Callable[[], str | None], limit_s: float = 60) -> None:
    """Look until there is nothing to complain of; then what was complained of last is the failure."""
    import threading

    late = monotonic() + limit_s
    while (complaint := look()) is not None:
        assert monotonic() < late, f"after {limit_s:g} s still: {complaint}"
        threading.Event().wait(0.2)
