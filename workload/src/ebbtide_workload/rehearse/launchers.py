"""Launchers that end their workers sooner than the window does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

TORCHRUN_LIMIT_S = 30
TORCHRUN_LIMIT_ENV = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_TORCH_WORDS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")


def torch_launcher(words: Sequence[str]) -> str | None:
    """The torch launcher named in a command (also inside a shell's script), or None.

    `accelerate launch` counts: it starts its workers through the same agent.
    """
    text = " ".join(words)
    for word in _TORCH_WORDS:
        if re.search(rf"(^|[\s/;&|(]){re.escape(word)}([\s;&|)]|$)", text):
            return word
    if re.search(r"(^|[\s/;&|(])accelerate\s+launch\b", text):
        return "accelerate launch"
    return None


def shutdown_timeout_s(words: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """The agent's limit as a command's --shutdown-timeout or the environment sets it; None when neither
    does."""
    match = re.search(r"--shutdown[-_]timeout[=\s]+(\d+)", " ".join(words))
    if match:
        return int(match.group(1))
    set_to = environment.get(TORCHRUN_LIMIT_ENV, "")
    return int(set_to) if set_to.isdigit() else None


def wrapped(words: Sequence[str]) -> bool:
    """Whether `ebb run` stands before the command."""
    text = " ".join(words)
    return bool(re.search(r"(^|[\s/;&|(])(ebb|(-m\s+)?ebbtide_workload)\s+run\b", text))
