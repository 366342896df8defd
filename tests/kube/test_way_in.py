"""Kubeconfigs of strangers: what is taken, and what is refused because it would reach into this machine."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import BadInput
from ebbtide.kube.certificates import Authority, Pair, Subject
from ebbtide.kube.client import KubeClient
from ebbtide.kube.errors import Unreachable
from ebbtide.kube.kubeconfig import Access
from ebbtide.kube.way_in import address, way_in
from tests.kube.misbehaving import http, kubeconfig

URL = "https://kubernetes.example:6443"


def refused(text: str) -> str:
    with pytest.raises(BadInput) as caught:
        way_in(text)
    assert caught.value.param == "kubeconfig"
    assert caught.value.code == "bad_kubeconfig"
    return caught.value.message


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_a_token() -> None:
    way = way_in(kubeconfig(f"{URL}/k8s/clusters/c-1/", user={"token": "abc.def-_~+/="}))
    assert way.server == f"{URL}/k8s/clusters/c-1"
    assert way.headers == {"Authorization": "Bearer abc.def-_~+/="}
    assert way.tls is not None
    assert way.tls.verify_mode is ssl.CERT_REQUIRED
    assert way.tls.check_hostname
    assert not way.tls.verify_flags & ssl.VERIFY_X509_STRICT
    assert "abc" not in repr(way)


def test_yaml_with_several_contexts_and_only_one_of_them_is_read() -> None:
    way = way_in(
        """
        apiVersion: v1
        kind: Config
        current-context: good
        contexts:
        - {name: bad, context: {cluster: b, user: b}}
        - {name: good, context: {cluster: g, user: g, namespace: x}}
        clusters:
        - {name: b, cluster: {server: "ftp://x"}}
        - {name: g, cluster: {server: "https://[::1]:6443", tls-server-name: api.internal, extensions: []}}
        users:
        - {name: b, user: {exec: {command: rm}}}
        - {name: g, user: {token: t}}
        preferences: {}
        """
    )
    assert (way.server, way.server_name) == ("https://[::1]:6443", "api.internal")


def test_the_only_context_needs_no_name() -> None:
    text = json.loads(kubeconfig(URL))
    del text["current-context"]
    assert way_in(json.dumps(text)).server == URL


@pytest.mark.parametrize(
    ("cluster", "user", "named"),
    [
        ({}, {"exec": {"command": "/bin/sh"}}, "exec"),
        ({}, {"auth-provider": {"name": "gcp"}}, "auth-provider"),
        ({}, {"tokenFile": "/etc/shadow"}, "tokenFile"),
        ({}, {"client-certificate": "/a", "client-key": "/b"}, "client-certificate"),
        ({}, {"client-key": "/b"}, "client-key"),
        ({}, {"username": "a", "password": "b"}, "username"),
        ({}, {"as": "admin", "token": "t"}, "as"),
        ({}, {"token": "a\r\nHost: b"}, "token"),
        ({}, {"token": 7}, "token"),
        ({"certificate-authority": "/etc/passwd"}, {}, "certificate-authority"),
        ({"proxy-url": "http://169.254.169.254"}, {}, "proxy-url"),
        ({"certificate-authority-data": "%%"}, {}, "certificate-authority-data"),
        ({"certificate-authority-data": b64("no PEM")}, {}, "certificate-authority-data"),
        ({"certificate-authority-data": b64("é")}, {}, "certificate-authority-data"),
        ({}, {"client-certificate-data": b64("x")}, "client-certificate-data"),
        ({}, {"client-certificate-data": b64("x"), "client-key-data": b64("y")}, "client-certificate-data"),
    ],
)
def test_refused(cluster: dict[str, Any], user: dict[str, Any], named: str) -> None:
    message = refused(kubeconfig(URL, cluster, user))
    assert named in message
    assert "shadow" not in message


@pytest.mark.parametrize(
    "server",
    [
        *("", "kubernetes.example:6443", "file:///etc/passwd", "https://", "https://u:p@h", "https://h/?a=b"),
        *("https://h:99999", "https://h:x", "https://h/a b", "https://h/\n", "http://kubernetes.example"),
        *("http://169.254.169.254", "https://[::1"),
    ],
)
def test_servers_that_are_none(server: str) -> None:
    assert "server" in refused(kubeconfig(server))


def test_plain_http_is_for_this_machine_and_takes_no_certificate() -> None:
    for host in ("127.0.0.1:8001", "localhost:8001", "[::1]:8001"):
        assert way_in(kubeconfig(f"http://{host}")).tls is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "just words", "[]", "{", "a: b: c", "\x00", "kind: Secret", "{}", "[" * 50_000, "- " * 50_000),
        *('{"a":' * 20_000, "x" * 300_000, "a: &a [*a]", "!!python/object/apply:os.system ['true']"),
        '{"current-context": "x", "contexts": {"x": 1}}',
        '{"current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "-"}}], "clusters": [1]}',
        '{"current-context": ["x"]}',
    ],
)
def test_texts_that_are_none(text: str) -> None:
    refused(text)


def test_secrets_are_not_quoted_in_complaints() -> None:
    text = 'users:\n- name: u\n  user: {token: "hunter2\n'
    assert "hunter2" not in refused(text)
    with pytest.raises(BadInput) as caught:
        way_in(text)
    assert caught.value.__suppress_context__


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki", datetime.now(UTC))


class Door:
    """A server with TLS that lets in who shows a certificate of its authority. seen: the last common name."""

    def __init__(self, authority: Authority, names: tuple[str, ...]) -> None:
        pair = authority.issue("server", Subject("server", names=names))
        self._context = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH, cafile=str(authority.pair.certificate)
        )
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._context.load_cert_chain(pair.certificate, pair.key)
        self.seen = ""

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            subject = writer.get_extra_info("peercert")["subject"]
            self.seen = dict(part[0] for part in subject)["commonName"]
            writer.write(http(200, b'{"kind": "Pod"}', "Connection: close"))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # it was not let in
        writer.close()


def with_access(url: str, authority: Authority, pair: Pair) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Access("c", url, authority.pair.certificate, pair).kubeconfig())
    return found


async def ask(config: dict[str, Any]) -> object:
    client = KubeClient(json.dumps(config), limit_s=5)
    try:
        return await client.create("/x", {})
    finally:
        await client.close()


async def test_a_certificate_opens_the_door(authority: Authority) -> None:
    me = authority.issue("me", Subject("ebbtide"))
    door = Door(authority, ("127.0.0.1",))
    async with door as url:
        config = with_access(url, authority, me)
        assert await ask(config) == {"kind": "Pod"}
        assert door.seen == "ebbtide"

        del config["users"][0]["user"]["client-certificate-data"]
        with pytest.raises(BadInput):
            await ask(config)
        config["users"][0]["user"] = {"token": "t"}
        with pytest.raises(Unreachable):
            await ask(config)


async def test_whom_we_trust(authority: Authority, tmp_path: Path) -> None:
    me = authority.issue("me", Subject("ebbtide"))
    other = Authority(tmp_path / "other", datetime.now(UTC))
    door = Door(authority, ("api.internal",))
    async with door as url:
        config = with_access(url, authority, me)
        cluster = config["clusters"][0]["cluster"]
        with pytest.raises(Unreachable, match="Certificate"):
            await ask(config)  # the address is not in its certificate
        cluster["tls-server-name"] = "api.internal"
        assert await ask(config) == {"kind": "Pod"}

        cluster["certificate-authority-data"] = base64.b64encode(other.pair.certificate.read_bytes()).decode()
        with pytest.raises(Unreachable, match="Certificate"):
            await ask(config)
        cluster["insecure-skip-tls-verify"] = True
        assert "leave one out" in refused(json.dumps(config))
        del cluster["certificate-authority-data"]
        assert await ask(config) == {"kind": "Pod"}, "only because it says so"
        cluster["insecure-skip-tls-verify"] = "true"
        with pytest.raises((Unreachable, BadInput)):
            await ask(config)


def test_a_key_with_a_password_asks_nobody(authority: Authority) -> None:
    from cryptography.hazmat.primitives import serialization

    me = authority.issue("me", Subject("ebbtide"))
    key = serialization.load_pem_private_key(me.key.read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.BestAvailableEncryption(b"hunter2"),
    )
    user = {
        "client-certificate-data": base64.b64encode(me.certificate.read_bytes()).decode(),
        "client-key-data": base64.b64encode(locked).decode(),
    }
    assert "no pair" in refused(kubeconfig(URL, user=user))


def test_the_address_that_kubeadm_announces() -> None:
    """Its file has a cluster without a name, and no context."""
    announced = (
        "clusters: [{name: '', cluster: {server: 'https://a.example:6443'}}]\ncontexts: null\nusers: null\n"
    )
    assert address(announced + "current-context: ''\n") == ("https://a.example:6443", None)
    for bad in ("clusters: []", "clusters: [1]", "clusters: [{name: a}]", announced.replace("https", "ftp")):
        with pytest.raises(BadInput):
            address(bad)
