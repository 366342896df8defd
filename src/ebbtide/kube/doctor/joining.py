"""Whether machines can join with a bootstrap token, as `kubeadm join` does it."""

from __future__ import annotations

from urllib.parse import urlsplit

from ebbtide.kube.client import KubeClient
from ebbtide.kube.doctor.finding import AS_ADMIN, Finding, note, ok, unknown, warning
from ebbtide.kube.doctor.seen import Seen
from ebbtide.kube.errors import Forbidden, NotFound

_GROUP = "system:bootstrappers:kubeadm:default-node-token"  # of the tokens that Ebbtide makes
_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_KUBEADM = (
    "`ebbtide kube manifests --joining` prints what is missing; machines that join otherwise need it not"
)


async def machines_may_join(client: KubeClient, seen: Seen) -> list[Finding]:
    return [await _announced(client, seen.server), await _approved(client)]


async def _announced(client: KubeClient, server: str) -> Finding:
    try:
        await client.get(_INFO)
    except NotFound:
        if urlsplit(server).hostname in ("127.0.0.1", "::1", "localhost"):
            do = "write one that machines reach into Ebbtide's kubeconfig, or into kube-public/cluster-info"
            return warning("address to join", f"machines are told {server}, which to them is themselves", do)
        do = "it must be one that they reach; kubeadm would write another into kube-public/cluster-info"
        return note("address to join", f"machines are told {server}", do)
    return ok("address to join", "kube-public/cluster-info says where machines join")


async def _approved(client: KubeClient) -> Finding:
    """May the tokens' group ask for a certificate, and is it approved by itself?"""
    try:
        asks = await _group_may(client, "")
        approved = asks and await _group_may(client, "nodeclient")
    except Forbidden:
        return unknown("joining", "this account may not look whether tokens lead to certificates", AS_ADMIN)
    if asks and approved:
        return ok("joining", "a bootstrap token is enough to join: certificates are approved")
    what = "are not approved by themselves" if asks else "may not be asked for"
    return warning("joining", f"certificates of nodes that join by a token {what}", _KUBEADM)


async def _group_may(client: KubeClient, subresource: str) -> bool:
    attributes = {
        "verb": "create",
        "group": "certificates.k8s.io",
        "resource": "certificatesigningrequests",
        "subresource": subresource,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"groups": [_GROUP, "system:bootstrappers"], "resourceAttributes": attributes},
    }
    answer = await client.create(_REVIEWS, review)
    return bool((answer.get("status") or {}).get("allowed"))
