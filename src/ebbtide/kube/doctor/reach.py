"""Whether the API server answers, which version it is, what its clock shows, and how long we may come in."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml
from cryptography import x509

from ebbtide.errors import BadInput
from ebbtide.kube import way_in
from ebbtide.kube.client import KubeClient
from ebbtide.kube.doctor.finding import Finding, note, ok, problem, warning

_OLDEST = (1, 30)  # ValidatingAdmissionPolicy, without which the limits cannot be
_POLICIES_FROM = (1, 36)  # MutatingAdmissionPolicy, for placement `explicit`
_SOON = timedelta(days=14)
_CLOCKS_S = 5.0
_RENEW = "make a new kubeconfig, and give it with `ebbtide clusters renew-import`"


async def answers(client: KubeClient, now: Callable[[], datetime]) -> list[Finding]:
    """Raises KubeError when it does not."""
    info = await client.get("/version")
    return [*_version(info), *_clock(client, now())]


def _version(info: dict[str, Any]) -> Iterator[Finding]:
    told = str(info.get("gitVersion", "unknown"))
    digits = ("".join(filter(str.isdigit, str(info.get(part, "")))) for part in ("major", "minor"))
    numbers = tuple(int(each or 0) for each in digits)
    if numbers < _OLDEST:
        yield problem(
            "version",
            f"Kubernetes {told}: Ebbtide needs 1.30 or newer",
            "upgrade it: the policy ebbtide-limits and podFailurePolicy are not all there before",
        )
    elif numbers < _POLICIES_FROM:
        yield note(
            "version",
            f"Kubernetes {told}: placement `explicit` would need MutatingAdmissionPolicy of 1.36",
            "with an older one use placement open, or let a webhook of yours add the toleration",
        )
    else:
        yield ok("version", f"Kubernetes {told} answers")


def _clock(client: KubeClient, now: datetime) -> Iterator[Finding]:
    away_s = abs(client.server_time.difference(now).total_seconds())
    if away_s <= _CLOCKS_S:
        yield ok("clock", "the API server's clock and this machine's agree")
    else:
        yield warning(
            "clock",
            f"the API server's clock and this machine's differ by {away_s:.0f} s",
            "let NTP set both: deadlines are written by Ebbtide's clock and read by people on others",
        )


def credentials(kubeconfig: str, now: datetime) -> Iterator[Finding]:
    """When the certificate or the token of a kubeconfig ends."""
    ends = _ends_at(kubeconfig)
    if ends is None:
        yield ok("credentials", "they do not say that they end")
        return
    told = f"they end at {ends:%Y-%m-%d %H:%M} UTC"
    if ends <= now:
        yield problem("credentials", told, _RENEW)
    elif ends - now < _SOON:
        yield warning("credentials", told, _RENEW)
    else:
        yield ok("credentials", told)


def server(kubeconfig: str) -> str:
    """The address in a kubeconfig; empty where there is none."""
    try:
        return way_in.address(kubeconfig)[0]
    except BadInput:
        return ""


def trust(kubeconfig: str) -> Iterator[Finding]:
    """Whether the API server's certificate is looked at."""
    if "insecure-skip-tls-verify: true" in kubeconfig.replace('"', ""):
        do = "put the cluster's authority into certificate-authority-data: anybody in between could be it"
        yield warning("trust", "the API server's certificate is not checked", do)


def _ends_at(kubeconfig: str) -> datetime | None:
    try:
        config = yaml.safe_load(kubeconfig)
        context = next(
            each["context"] for each in config["contexts"] if each["name"] == config["current-context"]
        )
        user = next(each["user"] for each in config["users"] if each["name"] == context["user"])
        if user.get("client-certificate-data"):
            pem = base64.b64decode(user["client-certificate-data"])
            return x509.load_pem_x509_certificate(pem).not_valid_after_utc
        return _of_token(str(user.get("token") or ""))
    except (yaml.YAMLError, StopIteration, KeyError, TypeError, AttributeError, ValueError, binascii.Error):
        return None


def _of_token(token: str) -> datetime | None:
    """A service account's token says when it ends, unless it does not."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    ends = claims.get("exp")
    return datetime.fromtimestamp(ends, UTC) if isinstance(ends, int) else None
