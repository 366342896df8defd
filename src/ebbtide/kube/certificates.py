"""Certificates of a local control plane: one authority, and what it signs. ECDSA on P-256 throughout."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_AUTHORITY_LIFE = timedelta(days=3650)
_LEAF_LIFE = timedelta(days=365)
_RENEW_BEFORE = timedelta(days=30)
_CLOCKS_DIFFER = timedelta(hours=1)

_DIGITAL_SIGNATURE_ONLY = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)
_SIGNS_OTHERS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, both PEM files."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a certificate is for. To Kubernetes the common name is a user, the organization a group.

    names:  what a server is reached as: DNS names and IP addresses; empty for a client
    """

    common_name: str
    organization: str | None = None
    names: tuple[str, ...] = ()


class Authority:
    """A certificate authority in a folder; made there at the first use, read from there later."""

    def __init__(self, folder: Path, now: datetime) -> None:
        """now: an aware instant, from which lives are counted."""
        self._folder = folder
        self._now = now
        self.pair = Pair(folder / "ca.crt", folder / "ca.key")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.pair.certificate.exists():
            self._found()
        self._key = _read_key(self.pair.key)
        self._certificate = x509.load_pem_x509_certificate(self.pair.certificate.read_bytes())

    def issue(self, name: str, subject: Subject) -> Pair:
        """The pair `name` for this subject: the one that is there, or a new one if it ends within 30 days."""
        pair = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        if pair.certificate.exists() and pair.key.exists():
            old = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
            if old.not_valid_after_utc - self._now > _RENEW_BEFORE:
                return pair
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(subject), key, _LEAF_LIFE)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_DIGITAL_SIGNATURE_ONLY, critical=True)
        usage = ExtendedKeyUsageOID.SERVER_AUTH if subject.names else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if subject.names:
            names = x509.SubjectAlternativeName([_general_name(each) for each in subject.names])
            builder = builder.add_extension(names, critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        _write_key(pair.key, key)
        write_private(pair.certificate, _pem(builder.sign(self._key, hashes.SHA256())))
        return pair

    def _found(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(Subject("ebbtide local control plane"))
        builder = self._builder(name, key, _AUTHORITY_LIFE, issuer=name)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_SIGNS_OTHERS, critical=True)
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(own, critical=False)
        _write_key(self.pair.key, key)
        write_private(
            self.pair.certificate, _pem(builder.sign(key, hashes.SHA256()))
        )  # last: its sight means all is there

    def _builder(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        life: timedelta,
        issuer: x509.Name | None = None,
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer or self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - _CLOCKS_DIFFER)
            .not_valid_after(self._now + life)
        )


def signing_key(folder: Path, name: str) -> Pair:
    """A bare key pair (no certificate: the public key stands in its place), for service accounts' tokens."""
    pair = Pair(folder / f"{name}.pub", folder / f"{name}.key")
    if not pair.certificate.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        _write_key(pair.key, key)
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        write_private(pair.certificate, public)
    return pair


def _name(subject: Subject) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, subject.common_name)]
    if subject.organization:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, subject.organization))
    return x509.Name(parts)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    # "SEC 1" form: what Kubernetes' own tools write for keys on curves.
    write_private(
        path,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        ),
    )


def write_private(path: Path, content: bytes) -> None:
    """Whole or not at all, also if the power fails meanwhile, and readable by the owner alone."""
    staging = path.with_name(f"{path.name}.new")
    staging.unlink(missing_ok=True)
    with open(os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # else the name may be on the disk before what it names
    staging.replace(path)
