"""All checks of one cluster, in the order in which they are told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime

from ebbtide.kube.client import KubeClient
from ebbtide.kube.doctor import account, admission, joining, nodes, reach, workload
from ebbtide.kube.doctor.finding import AS_ADMIN, Finding, problem, unknown
from ebbtide.kube.doctor.seen import Seen, see
from ebbtide.kube.errors import Forbidden, KubeError

Check = Callable[[KubeClient, Seen], Awaitable[Iterable[Finding]]]
_CHECKS: tuple[tuple[str, Check], ...] = (
    ("rights", account.rights_there),
    ("limits", account.limits_in_force),
    ("seats", account.seats),
    ("GPUs", nodes.gpus),
    ("device plugin", nodes.node_daemons),
    ("kubelets", nodes.kubelets),
    ("other autoscalers", nodes.autoscalers),
    ("system pods", workload.system_pods),
    ("budgets", workload.budgets),
    ("webhooks", admission.webhooks),
    ("placement", admission.placement),
    ("joining", joining.machines_may_join),
)


async def examine(
    client: KubeClient, kubeconfig: str, now: Callable[[], datetime], *, selector: str | None = None
) -> list[Finding]:
    """Look at everything that the account may see. Never raises for what is wrong with the cluster.

    selector: the labels of the nodes that would count as standard, if it is known already
    """
    found = [*reach.credentials(kubeconfig, now()), *reach.trust(kubeconfig)]
    try:
        found += await reach.answers(client, now)
        seen = await see(client, reach.server(kubeconfig))
        found += await nodes.standard(client, selector) if selector else []
    except KubeError as error:
        found.append(_unreachable(error))
        return found
    for name, check in _CHECKS:
        try:
            found += await check(client, seen)
        except Forbidden:
            found.append(unknown(name, "this account may not look", AS_ADMIN))
        except KubeError as error:
            found.append(unknown(name, error.message, "try again; if it stays so, look at the API server"))
    return found


def _unreachable(error: KubeError) -> Finding:
    do = "check the kubeconfig's server, its credentials, and the network between"
    if isinstance(error, Forbidden):
        do = "apply what `ebbtide kube manifests` prints: this account may not even list nodes and pods"
    return problem("API server", error.message, do)
