"""What the account may do: enough, and not too much; and whether its calls have seats."""

from __future__ import annotations

from ebbtide.kube.client import KubeClient
from ebbtide.kube.doctor.finding import Finding, note, ok, problem, some, warning
from ebbtide.kube.doctor.seen import Seen, name
from ebbtide.kube.errors import Forbidden, NotFound
from ebbtide.kube.rights import Right, may, missing

_APPLY = "apply what `ebbtide kube manifests` prints, for this account"
_LIMITS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/ebbtide-limits"
_FLOWS = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/ebbtide"
_EVERYTHING = Right("*", "*", "*")


async def rights_there(client: KubeClient, _seen: Seen) -> list[Finding]:
    lacking = await missing(client)
    if lacking:
        return [problem("rights", f"missing: {some([str(each) for each in lacking], 5)}", _APPLY)]
    if await may(client, _EVERYTHING):
        return [
            note(
                "rights",
                "this account may do everything: an administrator's",
                "give Ebbtide one of its own, with no more than `ebbtide kube manifests` grants",
            )
        ]
    return [ok("rights", "all that Ebbtide needs")]


async def limits_in_force(client: KubeClient, seen: Seen) -> list[Finding]:
    """An administrator sees the policy; Ebbtide's own account sees what it does, by a dry run that changes
    nothing.
    """
    try:
        await client.get(_LIMITS)
        return [ok("limits", "the policy ebbtide-limits is there")]
    except NotFound:
        return [warning("limits", "the policy ebbtide-limits is not there", _APPLY)]
    except Forbidden:
        pass
    others = [each for each in seen.nodes if each not in seen.ours]
    if not others:
        return [note("limits", "no node of anybody else's to try them on")]
    try:
        await client.patch(f"/api/v1/nodes/{name(others[0])}", {}, dryRun="All")
    except Forbidden as error:
        if "ebbtide-limits" in error.detail:
            return [ok("limits", "nodes of others are out of Ebbtide's reach")]
        raise
    return [warning("limits", f"Ebbtide could change {name(others[0])}, which is not its own", _APPLY)]


async def seats(client: KubeClient, _seen: Seen) -> list[Finding]:
    try:
        await client.get(_FLOWS)
    except NotFound:
        do = f"{_APPLY}: notices then do not queue behind other clients of the API server"
        return [warning("seats", "Ebbtide's calls have no seats of their own in the API server", do)]
    return [ok("seats", "Ebbtide's calls have seats of their own in the API server")]
