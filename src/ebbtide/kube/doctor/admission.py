"""Webhooks that could stop us, and the policy of placement `explicit`."""

from __future__ import annotations

from typing import Any

from ebbtide.kube.client import KubeClient
from ebbtide.kube.doctor.finding import Finding, note, ok, problem, some, warning
from ebbtide.kube.doctor.seen import Seen
from ebbtide.kube.errors import Forbidden, NotFound

_API = "/apis/admissionregistration.k8s.io/v1"
_PLACEMENT = f"{_API}/mutatingadmissionpolicies/ebbtide-placement-explicit"
# What Ebbtide does to what: a webhook that fails stops it.
_OUR_CALLS = (
    ("", "nodes", "UPDATE"),
    ("", "nodes", "DELETE"),
    ("", "nodes/status", "UPDATE"),
    ("", "pods", "DELETE"),
    ("", "pods/status", "UPDATE"),
    ("", "pods/eviction", "CREATE"),
    ("", "events", "CREATE"),
)


async def webhooks(client: KubeClient, _seen: Seen) -> list[Finding]:
    risky: list[str] = []
    count = 0
    for kind in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations"):
        for config in (await client.list(f"{_API}/{kind}")).items:
            for hook in config.get("webhooks") or ():
                count += 1
                calls = _calls(hook)
                if hook.get("failurePolicy", "Fail") == "Fail" and calls:
                    risky.append(f"{hook.get('name')} ({', '.join(calls)})")
    if not risky:
        return [ok("webhooks", f"{count} webhooks, none of which stops Ebbtide when it is away")]
    do = (
        "exclude Ebbtide's account by a matchCondition, or set failurePolicy: Ignore; else nodes "
        "drain without it while it is away, and leave at their deadline all the same"
    )
    return [warning("webhooks", f"stop Ebbtide's calls while they are away: {some(risky)}", do)]


async def placement(client: KubeClient, seen: Seen) -> list[Finding]:
    try:
        await client.get(_PLACEMENT)
        return [ok("placement", "explicit: pods that select the class get the toleration")]
    except Forbidden:
        if not seen.is_explicit:
            return [note("placement", "no preemptible node here is tainted")]
        raise
    except NotFound:
        pass
    if seen.is_explicit:
        do = "apply what `ebbtide kube manifests --placement explicit` prints, or let pods tolerate it"
        return [problem("placement", "preemptible nodes are tainted, and no pod is given the toleration", do)]
    do = "with placement explicit only pods that ask for preemptible nodes get there; see docs"
    return [note("placement", "open: any pod may be placed on preemptible nodes", do)]


def _calls(hook: dict[str, Any]) -> list[str]:
    """Which of our calls a webhook is asked about."""
    if hook.get("matchConditions"):
        return []  # its own affair; a condition that excludes us cannot be told from one that does not
    found = []
    for group, resource, operation in _OUR_CALLS:
        for rule in hook.get("rules") or ():
            if (
                _matches(rule.get("apiGroups"), group)
                and _matches(rule.get("operations"), operation)
                and _covers(rule.get("resources"), resource)
            ):
                found.append(f"{operation} {resource}")
                break
    return found


def _matches(listed: list[str] | None, wanted: str) -> bool:
    return any(each in ("*", wanted) for each in listed or ())


def _covers(listed: list[str] | None, wanted: str) -> bool:
    whole, _, sub = wanted.partition("/")
    patterns = {wanted, "*/*"} | ({"*", whole} if not sub else {f"{whole}/*", f"*/{sub}"})
    return any(each in patterns for each in listed or ())
