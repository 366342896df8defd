"""What the authority signs, and for how long."""

from __future__ import annotations

import base64
import ipaddress
import json
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store

from ebbtide.kube.certificates import Authority, Pair, Subject, signing_key, write_private
from ebbtide.kube.kubeconfig import Access

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SERVER = Subject("kube-apiserver", names=("127.0.0.1", "kubernetes.default.svc"))
ADMIN = Subject("me", organization="system:masters")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki", NOW)


def load(pair: Pair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate.read_bytes())


def test_what_a_name_names_is_on_the_disk_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "x.json", os.fsync
    path.write_bytes(b"before")
    seen: list[tuple[bytes, bytes]] = []

    def fsync(number: int) -> None:
        real(number)
        seen.append((path.with_name("x.json.new").read_bytes(), path.read_bytes()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_private(path, b"after")
    assert seen == [(b"after", b"before")]
    assert path.read_bytes() == b"after"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_server_is_trusted_under_its_names_only(authority: Authority) -> None:
    certificate = load(authority.issue("server", SERVER))
    policy = PolicyBuilder().store(Store([load(authority.pair)])).time(NOW)
    for name in (x509.DNSName("kubernetes.default.svc"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))):
        assert policy.build_server_verifier(name).verify(certificate, [])
    with pytest.raises(x509.verification.VerificationError):
        policy.build_server_verifier(x509.DNSName("example.com")).verify(certificate, [])


def test_a_client_says_user_and_group_and_is_no_server(authority: Authority) -> None:
    certificate = load(authority.issue("admin", ADMIN))
    subject = certificate.subject
    assert subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "me"
    assert subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value == "system:masters"
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_what_is_there_stays(authority: Authority, tmp_path: Path) -> None:
    first = authority.issue("admin", ADMIN).certificate.read_bytes()
    again = Authority(tmp_path / "pki", NOW + timedelta(days=300))
    assert again.issue("admin", ADMIN).certificate.read_bytes() == first
    assert load(again.pair) == load(authority.pair)


@pytest.mark.parametrize("lost", ["nothing", "key", "certificate"])
def test_what_ends_soon_or_is_half_is_made_again(authority: Authority, tmp_path: Path, lost: str) -> None:
    pair = authority.issue("admin", ADMIN)
    first = pair.certificate.read_bytes()
    later = NOW if lost != "nothing" else NOW + timedelta(days=336)
    if lost != "nothing":
        getattr(pair, lost).unlink()
    again = Authority(tmp_path / "pki", later).issue("admin", ADMIN)
    assert again.certificate.read_bytes() != first
    ssl.create_default_context().load_cert_chain(again.certificate, again.key)  # they belong together
    assert load(again).not_valid_after_utc == later + timedelta(days=365)


def test_nobody_else_may_read_anything(authority: Authority, tmp_path: Path) -> None:
    authority.issue("admin", ADMIN)
    signing_key(tmp_path / "pki", "accounts")
    assert (tmp_path / "pki").stat().st_mode & 0o077 == 0
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "pki").iterdir()} == {0o600}


def test_the_key_for_tokens_stays(tmp_path: Path) -> None:
    first = signing_key(tmp_path, "accounts")
    public = first.certificate.read_bytes()
    assert public.startswith(b"-----BEGIN PUBLIC KEY-----")
    assert signing_key(tmp_path, "accounts").certificate.read_bytes() == public


def test_a_kubeconfig_holds_all_it_needs(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("admin", ADMIN)
    path = Access("reef", "https://127.0.0.1:6443", authority.pair.certificate, pair).write(
        tmp_path / "config"
    )
    assert path.stat().st_mode & 0o777 == 0o600
    content = json.loads(path.read_text())
    (context,) = content["contexts"]
    assert content["current-context"] == context["name"] == "reef"
    cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
    assert cluster["server"] == "https://127.0.0.1:6443"
    assert base64.b64decode(cluster["certificate-authority-data"]) == authority.pair.certificate.read_bytes()
    assert base64.b64decode(user["client-key-data"]) == pair.key.read_bytes()
