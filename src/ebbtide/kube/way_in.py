"""Reading a kubeconfig that somebody else wrote.

It may come from a stranger, so it is data and nothing else: what would run a program or read a file of this
machine is refused, and so is what would send credentials in the clear.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from ebbtide.errors import BadInput

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ends at a depth at which Python's takes seconds
_LARGEST = 256 * 1024
_TOKEN = re.compile(r"[\x21-\x7e]+")
_CLUSTER_REFUSED = {
    "certificate-authority": "put the certificate itself into certificate-authority-data",
    "proxy-url": "reach the API server directly",
}
_USER_REFUSED = {
    "exec": "it would run a program here; use a service account's token or a client certificate",
    "auth-provider": "use a service account's token or a client certificate",
    "client-certificate": "put the certificate itself into client-certificate-data",
    "client-key": "put the key itself into client-key-data",
    "tokenFile": "put the token itself into token",
    "username": "Kubernetes knows no passwords any more; use a token or a client certificate",
    "password": "Kubernetes knows no passwords any more; use a token or a client certificate",
    "as": "impersonation is not supported; use credentials of its own",
    "as-uid": "impersonation is not supported; use credentials of its own",
    "as-groups": "impersonation is not supported; use credentials of its own",
    "as-user-extra": "impersonation is not supported; use credentials of its own",
}


@dataclass(frozen=True, slots=True)
class WayIn:
    """What a client needs to speak to one API server.

    server:      its URL, without a slash at the end
    headers:     what goes along with every request
    tls:         whom we trust and who we are, None for plain HTTP
    server_name: whose certificate is expected, where it is not the URL's host's
    """

    server: str
    headers: Mapping[str, str] = field(repr=False)
    tls: ssl.SSLContext | None = None
    server_name: str | None = None


def way_in(kubeconfig: str) -> WayIn:
    """The way into the cluster of the current context. Raises BadInput."""
    config = _parsed(kubeconfig)
    cluster, user = _chosen(config)
    _refuse(cluster, _CLUSTER_REFUSED, "the cluster")
    _refuse(user, _USER_REFUSED, "the user")
    server = _server(cluster)
    token = _string(user, "token")
    if token is not None and not _TOKEN.fullmatch(token):
        raise _bad("its token has characters that no token has")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if server.startswith("http:"):
        if not _is_loopback(server):
            raise _bad(f"server {server}: plain http is for this machine only; write https")
        return WayIn(server, headers)
    return WayIn(server, headers, _tls(cluster, user), _string(cluster, "tls-server-name"))


def address(kubeconfig: str) -> tuple[str, str | None]:
    """The API server's URL, and the authority that it is trusted by as PEM (None: the machine's own ones).

    Of a file without contexts, as kubeadm announces clusters to machines, it is the only cluster's. Raises
    BadInput.
    """
    config = _parsed(kubeconfig)
    clusters = config.get("clusters")
    if not config.get("contexts") and isinstance(clusters, list) and len(clusters) == 1:
        only = clusters[0].get("cluster") if isinstance(clusters[0], Mapping) else None
        cluster: Mapping[str, Any] = only if isinstance(only, Mapping) else {}
    else:
        cluster, _ = _chosen(config)
    authority = _pem(cluster, "certificate-authority-data")
    return _server(cluster), authority.decode("ascii", "replace") if authority else None


def _parsed(text: str) -> Mapping[str, Any]:
    if len(text) > _LARGEST:
        raise _bad(f"it is longer than {_LARGEST // 1024} kB")
    try:
        content = json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        content = None
    try:
        content = yaml.load(text, Loader=_LOADER) if content is None else content  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise _bad(f"it is no YAML{where}") from None  # the cause would quote secrets
    if not isinstance(content, Mapping) or content.get("kind", "Config") != "Config":
        raise _bad("it is no object of kind Config")
    return content


def _chosen(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The cluster and the user of the current context, or of the only one."""
    name = _string(config, "current-context")
    contexts = config.get("contexts")
    if not name and isinstance(contexts, list) and len(contexts) == 1 and isinstance(contexts[0], Mapping):
        name = _string(contexts[0], "name")
    if not name:
        raise _bad("it names no current-context")
    context = _named(config, "contexts", "context", name)
    cluster = _named(config, "clusters", "cluster", _string(context, "cluster") or "")
    user = _string(context, "user")
    return cluster, _named(config, "users", "user", user) if user else {}


def _named(config: Mapping[str, Any], list_name: str, key: str, name: str) -> Mapping[str, Any]:
    listed = config.get(list_name)
    for each in listed if isinstance(listed, list) else []:
        if isinstance(each, Mapping) and each.get("name") == name:
            found = each.get(key)
            return found if isinstance(found, Mapping) else {}
    raise _bad(f"the {key} {name!r} is not in {list_name}")


def _refuse(part: Mapping[str, Any], refused: Mapping[str, str], whose: str) -> None:
    for name, instead in refused.items():
        if part.get(name):
            raise _bad(f"{whose} has {name}, which cannot be used here: {instead}")


def _server(cluster: Mapping[str, Any]) -> str:
    server = _string(cluster, "server") or ""
    try:
        url = urlsplit(server)
        good = (
            url.scheme in ("https", "http")
            and bool(url.hostname)
            and url.port != 0
            and not (url.username or url.password or url.query or url.fragment)
            and server.isprintable()
            and " " not in server
        )
    except ValueError:
        good = False
    if not good:
        raise _bad("its cluster has no usable server: write https://HOST:PORT")
    return server.rstrip("/")


def _is_loopback(server: str) -> bool:
    host = urlsplit(server).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    authority = _pem(cluster, "certificate-authority-data")
    try:
        context = ssl.create_default_context(cadata=authority.decode("ascii") if authority else None)
    except (ssl.SSLError, ValueError):
        raise _bad("certificate-authority-data is no certificate in PEM form") from None
    # Python 3.13 sets it by itself; authorities in use lack extensions that it asks for.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if cluster.get("insecure-skip-tls-verify") is True:
        if authority:
            raise _bad("it has certificate-authority-data and insecure-skip-tls-verify: leave one out")
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = _pem(user, "client-certificate-data"), _pem(user, "client-key-data")
    if bool(certificate) != bool(key):
        raise _bad("client-certificate-data and client-key-data only go together")
    if certificate and key:
        _load_pair(context, certificate, key)
    return context


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="ebbtide-") as folder:  # ssl takes files only; mode 0700
        file = Path(folder) / "pair"
        file.write_bytes(key + b"\n" + certificate)
        try:
            context.load_cert_chain(file, password="")  # one that is asked for would be asked of a terminal
        except (ssl.SSLError, ValueError):
            raise _bad("client-certificate-data and client-key-data are no pair in PEM form") from None


def _pem(part: Mapping[str, Any], name: str) -> bytes | None:
    text = _string(part, name)
    if not text:
        return None
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise _bad(f"{name} is no base64") from None


def _string(part: Mapping[str, Any], name: str) -> str | None:
    value = part.get(name)
    if value is not None and not isinstance(value, str):
        raise _bad(f"{name} is no text")
    return value or None


def _bad(what: str) -> BadInput:
    return BadInput(f"This kubeconfig cannot be used: {what}.", param="kubeconfig", code="bad_kubeconfig")
