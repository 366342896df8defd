"""What Ebbtide may do in a cluster, as objects: its role and bindings, its seats in the API server, and,
where wanted, the policies of placement `explicit` and of the guard.

The files are in `manifests/`: what roles cannot say is said by the policy `ebbtide-limits`. Here the account
is filled in. docs/access-in-clusters.md says what each right is for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from ebbtide.errors import BadInput
from ebbtide.kube.client import KubeClient, PatchKind

Json = dict[str, Any]

FIELD_MANAGER = "ebbtide"
USER = "ebbtide"  # the account's name where nothing else is said
_FILES = Path(__file__).parent / "manifests"
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._@/-]{0,252}")
_DNS = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_RBAC = "rbac.authorization.k8s.io"

_NAMESPACED = frozenset({"Role", "RoleBinding", "ServiceAccount", "Secret"})


@dataclass(frozen=True, slots=True)
class Account:
    """Who Ebbtide is in a cluster: a user, as a client certificate's common name says it, or with a namespace
    a service account.
    """

    name: str = USER
    namespace: str | None = None

    @classmethod
    def service_account(cls, text: str) -> Self:
        """From NAMESPACE/NAME. Raises BadInput."""
        namespace, _, name = text.partition("/")
        if not _DNS.fullmatch(namespace) or not _DNS.fullmatch(name):
            raise BadInput(f"{text!r} is no service account; write NAMESPACE/NAME")
        return cls(name, namespace)

    @classmethod
    def user(cls, name: str) -> Self:
        """A user of that name. Raises BadInput."""
        if not _USER.fullmatch(name):
            raise BadInput(f"{name!r} cannot be the name of Ebbtide's user")
        return cls(name)

    @property
    def username(self) -> str:
        """What the API server calls it."""
        return f"system:serviceaccount:{self.namespace}:{self.name}" if self.namespace else self.name

    def _bound(self) -> Json:
        if self.namespace:
            return {"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}
        return {"kind": "User", "name": self.name, "apiGroup": _RBAC}

    def _in_flows(self) -> Json:
        if self.namespace:
            named = {"name": self.name, "namespace": self.namespace}
            return {"kind": "ServiceAccount", "serviceAccount": named}
        return {"kind": "User", "user": {"name": self.name}}


@dataclass(frozen=True, slots=True)
class Right:
    """One verb on one resource.

    namespace: None is all of them, or a resource without namespaces. name: None is all objects
    """

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        what = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        named = f" {self.name}" if self.name else ""
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {what}{named}{where}"


def manifests(
    account: Account, *, explicit: bool = False, guard: bool = False, joining: bool = False
) -> list[Json]:
    """All objects, in the order in which they are to be applied.

    explicit: with the policy that lets pods which select the class onto tainted preemptible nodes
    guard:    with the policy that keeps our marks on nodes ours
    joining:  with what lets machines join by a bootstrap token, where kubeadm did not set it up
    """
    names = ["rights", "limits", "flow"] + ["placement-explicit"] * explicit + ["guard"] * guard
    names += ["joining"] * joining
    objects = list(_service_account(account)) if account.namespace else []
    for name in names:
        objects += [_filled(each, account) for each in _read(name, account)]
    return objects


def rights() -> list[Right]:
    """Every right of the roles."""
    return list(_rights(_read("rights", Account())))


async def missing(client: KubeClient) -> list[Right]:
    """Rights of the roles that the client's account does not have, by the API server's own word. Raises
    KubeError.
    """
    wanted = rights()
    allowed = await asyncio.gather(*(may(client, each) for each in wanted))
    return [each for each, is_allowed in zip(wanted, allowed, strict=True) if not is_allowed]


async def may(client: KubeClient, right: Right) -> bool:
    """Whether the client's account has this right. Raises KubeError."""
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": right.resource,
        "subresource": right.subresource,
        "namespace": right.namespace or "",
        "name": right.name or "",
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool((answer.get("status") or {}).get("allowed"))


def path_of(thing: Mapping[str, Any]) -> str:
    """The API path of an object of one of our manifests."""
    version, kind, meta = thing["apiVersion"], thing["kind"], thing["metadata"]
    plural = f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    where = f"/namespaces/{meta['namespace']}" if kind in _NAMESPACED else ""
    return f"{root}{where}/{plural}/{meta['name']}"


async def apply_rights(
    client: KubeClient, *, user: str = USER, explicit: bool = False, guard: bool = False
) -> None:
    """Apply all objects for that user with the administrator's `client`; again it changes nothing. Raises
    KubeError, and BadInput for a name that cannot be a user's.
    """
    await apply(client, manifests(Account.user(user), explicit=explicit, guard=guard))


async def apply(client: KubeClient, objects: Iterable[Mapping[str, Any]]) -> None:
    """Apply objects of our manifests in order, taking over fields that others wrote. Raises KubeError."""
    for each in objects:
        await client.patch(
            path_of(each), dict(each), kind=PatchKind.APPLY, fieldManager=FIELD_MANAGER, force=True
        )


def _read(name: str, account: Account) -> Iterator[Json]:
    text = (_FILES / f"{name}.yaml").read_text(encoding="utf-8")
    yield from yaml.safe_load_all(text.replace("EBBTIDE_ACCOUNT", account.username))


def _service_account(account: Account) -> Iterator[Json]:
    text = (_FILES / "service-account.yaml").read_text(encoding="utf-8")
    text = text.replace("NAMESPACE", str(account.namespace)).replace("NAME", account.name)
    yield from yaml.safe_load_all(text)


def _filled(thing: Json, account: Account) -> Json:
    """With the account as its subject, where the place for it is empty."""
    if thing.get("subjects") == []:
        return {**thing, "subjects": [account._bound()]}
    if thing["kind"] == "FlowSchema":
        rules = [{**rule, "subjects": [account._in_flows()]} for rule in thing["spec"]["rules"]]
        return {**thing, "spec": {**thing["spec"], "rules": rules}}
    return thing


def _rights(objects: Iterable[Json]) -> Iterator[Right]:
    for each in objects:
        for rule in each.get("rules", ()):
            for group in rule["apiGroups"]:
                for named in rule["resources"]:
                    resource, _, sub = named.partition("/")
                    (name,) = rule.get("resourceNames", [None])
                    for verb in rule["verbs"]:
                        yield Right(verb, group, resource, sub, each["metadata"].get("namespace"), name)
