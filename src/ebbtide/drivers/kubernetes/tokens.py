"""Bootstrap tokens: how a machine that Kubernetes does not know yet may ask for a certificate.

One per node, as kubeadm makes them: a Secret in kube-system. Its id follows from the node's uid, so that it
is found again; its secret is random and stands in the Secret only.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import string
from datetime import datetime, timedelta

from ebbtide.core import marks
from ebbtide.core.events import rfc3339
from ebbtide.drivers.base import NodeRef
from ebbtide.drivers.kubernetes import objects
from ebbtide.drivers.kubernetes.objects import Json
from ebbtide.kube.client import KubeClient
from ebbtide.kube.errors import Conflict, NotFound

NAMESPACE = "kube-system"
LIFE_S = 3600  # longer than a node may take to join; renewed when it is asked for again in its last half
_GROUP = "system:bootstrappers:kubeadm:default-node-token"  # whose requests kubeadm's clusters approve
_LETTERS = string.ascii_lowercase + string.digits
_ID_LENGTH = 6
_SECRET_LENGTH = 16


def token_id(node_uid: str) -> str:
    """Six letters and digits that follow from the uid."""
    number = int.from_bytes(hashlib.sha256(f"ebbtide/{node_uid}".encode()).digest()[:8])
    letters = []
    for _ in range(_ID_LENGTH):
        number, at = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[at])
    return "".join(letters)


def path(node_uid: str | None = None) -> str:
    """The Secret's address, or where Secrets are made."""
    base = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    return f"{base}/bootstrap-token-{token_id(node_uid)}" if node_uid is not None else base


async def token(client: KubeClient, node: NodeRef, now: datetime) -> str:
    """The node's token; the same again while it is good. now: by the API server's clock. Raises KubeError."""
    present = await _read(client, node)
    if present is None:
        secret = "".join(secrets.choice(_LETTERS) for _ in range(_SECRET_LENGTH))
        try:
            present = await client.create(path(), _secret(node, secret, now))
        except Conflict:  # another worker made it meanwhile
            present = await client.patch(path(node.uid), {})
    elif _ends_at(present) < now + timedelta(seconds=LIFE_S // 2):
        body = {"data": {"expiration": _encoded(rfc3339(now + timedelta(seconds=LIFE_S)))}}
        present = await client.patch(path(node.uid), body)
    return f"{token_id(node.uid)}.{_decoded(present, 'token-secret')}"


async def _read(client: KubeClient, node: NodeRef) -> Json | None:
    try:
        return await client.patch(path(node.uid), {})  # the right to get would be one to all Secrets
    except NotFound:
        return None


async def drop(client: KubeClient, node: NodeRef) -> None:
    """The token is not good any more. Gone already: done."""
    try:
        await client.delete(path(node.uid))
    except NotFound:
        return


def _secret(node: NodeRef, secret: str, now: datetime) -> Json:
    values = {
        "token-id": token_id(node.uid),
        "token-secret": secret,
        "expiration": rfc3339(now + timedelta(seconds=LIFE_S)),
        "description": f"lets {node.name} join; made by Ebbtide",
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
        "auth-extra-groups": _GROUP,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": {
            "name": f"bootstrap-token-{token_id(node.uid)}",
            "namespace": NAMESPACE,
            "labels": {marks.LABEL_NODE_UID: node.uid},
        },
        "data": {key: _encoded(value) for key, value in values.items()},
    }


def _ends_at(secret: Json) -> datetime:
    ends_at = objects.instant(_decoded(secret, "expiration"))
    assert ends_at is None or ends_at.tzinfo is not None
    return ends_at or datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def _encoded(value: str) -> str:
    return base64.b64encode(value.encode()).decode("ascii")


def _decoded(secret: Json, key: str) -> str:
    try:
        return base64.b64decode(objects.text(secret, "data", key)).decode("ascii", "replace")
    except (binascii.Error, ValueError):
        return ""
