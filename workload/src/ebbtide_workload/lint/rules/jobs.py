"""What a controller makes of a preempted pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..model import Found, JobView, Path, PodUse, items, mapping, show
from ..world import World
from .storage import claims_for_checkpoints

_PREEMPTED_CODES = frozenset({85, 86, 137, 143})
_POLICY = """podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget, status:
"True"}]}]}"""


def _of_jobs(world: World) -> Iterator[tuple[PodUse, JobView]]:
    for use in world.reclaimable():
        if use.job is not None:
            yield use, use.job


def _rules(job: JobView) -> list[Mapping[str, Any]]:
    return items(mapping(job.spec.get("podFailurePolicy")).get("rules"))


def _on_disruption(rule: Mapping[str, Any]) -> bool:
    """Whether a rule matches pods with the condition DisruptionTarget; the status it asks for defaults to
    True."""
    return any(
        c.get("type") == "DisruptionTarget" and str(c.get("status", "True")) == "True"
        for c in items(rule.get("onPodConditions"))
    )


def failure_policy(world: World) -> Iterator[Found]:
    """Without a rule for DisruptionTarget each preemption counts against backoffLimit."""
    for use, job in _of_jobs(world):
        where: Path = (*job.path, "podFailurePolicy")
        matching = [r for r in _rules(job) if _on_disruption(r)]
        limit = job.spec.get("backoffLimit", 6)
        fix = f"set {show(job.path)}.{_POLICY}" if job.path else f"set {_POLICY}"
        if not matching:
            message = (
                f"every preemption counts as a failure; with backoffLimit {limit}, one more than that "
                f"ends the Job"
            )
            yield Found(use.doc, where, message, fix)
        elif matching[0].get("action") not in ("Ignore", None):
            action = matching[0].get("action")
            message = f"the rule for DisruptionTarget says {action}: a preemption " + (
                "ends the Job" if action == "FailJob" else "still counts as a failure"
            )
            yield Found(use.doc, (*where, "rules"), message, fix)


def failure_policy_order(world: World) -> Iterator[Found]:
    """The first rule that matches wins; an exit code of a preempted pod must not match before its condition
    does."""
    for use, job in _of_jobs(world):
        rules = _rules(job)
        first = next((i for i, r in enumerate(rules) if _on_disruption(r)), len(rules))
        for index, rule in enumerate(rules[:first]):
            caught = sorted(_PREEMPTED_CODES & _codes(mapping(rule.get("onExitCodes"))))
            if rule.get("action") == "Ignore" or not caught or first == len(rules):
                continue
            message = (
                f"this rule catches exit code {', '.join(map(str, caught))} of a preempted pod before the "
                f"rule for "
                f"DisruptionTarget is asked: {rule.get('action')}"
            )
            where = (*job.path, "podFailurePolicy", "rules", index)
            yield Found(use.doc, where, message, f"move the rule for DisruptionTarget above {show(where)}")


def _codes(rule: Mapping[str, Any]) -> set[int]:
    values = {v for v in rule.get("values") or [] if isinstance(v, int)}
    if rule.get("operator") == "In":
        return values & _PREEMPTED_CODES
    return set(_PREEMPTED_CODES - values) if rule.get("operator") == "NotIn" else set()


def restart_policy(world: World) -> Iterator[Found]:
    """The API refuses the one with the other."""
    for use, job in _of_jobs(world):
        if job.spec.get("podFailurePolicy") and use.spec.get("restartPolicy") != "Never":
            where = (*use.path, "restartPolicy")
            given = use.spec.get("restartPolicy") or "left out"
            message = f"podFailurePolicy is refused unless restartPolicy is Never (it is {given})"
            yield Found(use.doc, where, message, f"set {show(where)}: Never")


def replacement_policy(world: World) -> Iterator[Found]:
    """By default the replacement of a terminating pod starts at once: two writers on one checkpoint
    folder."""
    for use, job in _of_jobs(world):
        given = job.spec.get("podReplacementPolicy")
        if given == "Failed" or (given is None and job.spec.get("podFailurePolicy")):
            continue
        where = (*job.path, "podReplacementPolicy")
        message = (
            "the replacement starts while the old pod still saves: the same rank twice, two writers in one "
            "checkpoint folder"
        )
        yield Found(use.doc, where, message, f"set {show(where)}: Failed")


def two_writers(world: World) -> Iterator[Found]:
    """A Deployment replaces a terminating pod at once and has no field to wait."""
    for use in world.reclaimable():
        if use.doc.kind not in ("Deployment", "ReplicaSet"):
            continue
        for path, name in claims_for_checkpoints(use):
            message = (
                f"a {use.doc.kind} starts the replacement while the old pod still saves: two writers on "
                f"volume {name}"
            )
            fix = (
                "make it a Job with podReplacementPolicy: Failed, or a StatefulSet, which waits for the "
                "old pod"
            )
            yield Found(use.doc, path, message, fix)


def exit_code_permanent(world: World) -> Iterator[Found]:
    """restartPolicy ExitCode takes 1-127 for permanent; the guard leaves with 85 or 86."""
    for use in world.reclaimable():
        where: Path = (*use.path[:-2], "restartPolicy")
        replica = mapping(use.doc.content.get("spec"))
        for part in where[1:-1]:
            replica = mapping(replica.get(str(part)))
        if use.doc.kind.endswith("Job") and replica.get("restartPolicy") == "ExitCode":
            message = (
                "restartPolicy ExitCode takes codes 1-127 for permanent failures; the guard leaves with "
                "85 or 86"
            )
            yield Found(use.doc, where, message, f"set {show(where)}: OnFailure")


def bare_pod(world: World) -> Iterator[Found]:
    """A pod without a controller is gone for good."""
    for use in world.reclaimable():
        if use.doc.kind == "Pod" and not use.doc.metadata.get("ownerReferences"):
            message = "nothing makes this pod again after a reclaim"
            yield Found(use.doc, ("kind",), message, "make it a Job (kind: Job, the pod under spec.template)")
