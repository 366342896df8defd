"""Exit codes that a scheduler can tell apart (Kubernetes `podFailurePolicy`, Slurm, a shell script)."""

from __future__ import annotations

EXIT_PREEMPTED_SAVED = 85
"""Preempted, and a complete checkpoint was published after the notice: requeue, nothing was lost."""

EXIT_PREEMPTED_UNSAVED = 86
"""Preempted, and no checkpoint is known to have been published after the notice: requeue, some work is
lost."""

EXIT_USAGE = 2
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127


def of_signal(signum: int) -> int:
    """The exit code by which shells report a death by signal `signum`."""
    return 128 + signum
