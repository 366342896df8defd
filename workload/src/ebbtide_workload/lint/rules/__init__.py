"""The rules, in the order in which they are told. A rule's id is stable and is its heading in the
documentation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..model import Found
from ..world import World
from . import budgets, grace, jobs, placing, signals, storage


@dataclass(frozen=True)
class Rule:
    """One thing to look for. `severity` is its usual weight; a finding may weigh less."""

    id: str
    severity: str
    title: str
    check: Callable[[World], Iterator[Found]]


RULES = (
    Rule("grace-missing", "error", "no terminationGracePeriodSeconds: 30 s of the window", grace.missing),
    Rule("grace-short", "warning", "a batch pod asks for little of the window", grace.short),
    Rule("grace-over-window", "warning", "more grace than the window has", grace.over_window),
    Rule("grace-untold", "warning", "the program does not know its grace", grace.untold),
    Rule("prestop-too-long", "error", "the preStop hook uses up the grace", grace.prestop_too_long),
    Rule("shell-pid1", "error", "a shell as process 1 keeps SIGTERM to itself", signals.shell_pid1),
    Rule("torchrun-limit", "error", "torchrun kills its workers after 30 s", signals.torchrun_limit),
    Rule(
        "prestop-and-handler",
        "warning",
        "preStop and SIGTERM handler do the work twice",
        signals.prestop_twice,
    ),
    Rule("job-failure-policy", "error", "a preemption counts as a failure of the Job", jobs.failure_policy),
    Rule("job-failure-policy-order", "error", "a rule for exit codes comes first", jobs.failure_policy_order),
    Rule("job-restart-policy", "error", "podFailurePolicy needs restartPolicy Never", jobs.restart_policy),
    Rule(
        "pod-replacement-policy",
        "warning",
        "the replacement starts beside the old pod",
        jobs.replacement_policy,
    ),
    Rule(
        "two-writers", "warning", "a Deployment starts the replacement beside the old pod", jobs.two_writers
    ),
    Rule(
        "exit-code-permanent",
        "error",
        "leaving after a save counts as permanent failure",
        jobs.exit_code_permanent,
    ),
    Rule("bare-pod", "warning", "nothing makes the pod again", jobs.bare_pod),
    Rule("checkpoint-emptydir", "error", "checkpoints in an emptyDir: lost at reclaim", storage.empty_dir),
    Rule(
        "checkpoint-hostpath", "error", "checkpoints on the node's disk: lost at reclaim", storage.host_path
    ),
    Rule(
        "checkpoint-unmounted",
        "error",
        "checkpoints inside the container: lost at reclaim",
        storage.unmounted,
    ),
    Rule("class-missing", "warning", "nothing says which compute class", placing.class_missing),
    Rule("class-unknown", "error", "a compute class that does not exist", placing.class_unknown),
    Rule("coordinator-on-preemptible", "error", "a coordinator may be preempted", placing.coordinator),
    Rule("server-on-preemptible", "warning", "a Service with preemptible replicas only", placing.server),
    Rule(
        "tolerates-everything",
        "warning",
        "comes back to the node that is being drained",
        placing.tolerates_all,
    ),
    Rule("daemonset-not-signalled", "warning", "a DaemonSet gets no notice", placing.daemonset),
    Rule("runtime-unseen", "info", "a TrainJob's runtime is not in the input", placing.runtime_unseen),
    Rule("pdb-unmeetable", "warning", "a disruption budget that can never be met", budgets.unmeetable),
    Rule("pdb-overlap", "error", "two disruption budgets for one pod", budgets.overlap),
)
