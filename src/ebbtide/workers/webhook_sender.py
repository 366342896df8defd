"""One signed POST.

Names are resolved here, and only public addresses are spoken to: a webhook is no way inside.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Mapping
from functools import cached_property
from typing import Protocol
from urllib.parse import urlsplit

import httpx

from ebbtide.errors import EbbtideError

TIMEOUT_S = 10.0
SIGNATURE = "Ebbtide-Signature"
DELIVERY = "Ebbtide-Delivery"


class NotDelivered(EbbtideError):
    """The receiver did not take it: no answer, a refusal, or an address that may not be spoken to."""


class Sender(Protocol):
    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """POST and answer the 2xx status. Raises NotDelivered with a short sentence."""


def signature(secret: str, at_s: int, body: bytes) -> str:
    """`t=<epoch seconds>,v1=<hex>`: HMAC-SHA256 of "<t>.<body>" with the subscription's secret."""
    digest = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


class HttpSender:
    """private_allowed: loopback and private addresses may be spoken to, for receivers beside the server."""

    def __init__(
        self, *, private_allowed: bool = False, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._private_allowed = private_allowed
        self._transport = transport

    @cached_property
    def _http(self) -> httpx.AsyncClient:
        """Made when it is wanted first: reading the certificates takes longer than all of a start."""
        return httpx.AsyncClient(
            timeout=TIMEOUT_S, follow_redirects=False, trust_env=False, transport=self._transport
        )

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._post(url, body, headers)
        except (UnicodeError, httpx.InvalidURL) as error:
            raise NotDelivered("the URL is malformed") from error
        except (httpx.HTTPError, TimeoutError) as error:
            raise NotDelivered(f"no answer: {type(error).__name__}") from error

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        parts = urlsplit(url)
        host = parts.hostname or ""
        address = await self._address(host, parts.port or (443 if parts.scheme == "https" else 80))
        # To the address that was checked, under the name that was asked for: another look-up could answer
        # another.
        target = httpx.URL(url).copy_with(host=address)
        request = self._http.build_request(
            "POST",
            target,
            content=body,
            headers={"host": parts.netloc, "content-type": "application/json", **headers},
            extensions={"sni_hostname": host},
        )
        # Of the answer only the status is read: its body may be without end.
        answer = await self._http.send(request, stream=True)
        await answer.aclose()
        if not answer.is_success:
            raise NotDelivered(f"answered {answer.status_code}")
        return answer.status_code

    async def _address(self, host: str, port: int) -> str:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise NotDelivered(f"no address for {host}") from error
        addresses = [str(one[4][0]) for one in found]
        for address in addresses:
            if self._private_allowed or ipaddress.ip_address(address).is_global:
                return address
        raise NotDelivered(f"{host} is not a public address; set EBBTIDE_WEBHOOK_PRIVATE=true to allow it")

    async def close(self) -> None:
        if "_http" in vars(self):
            await self._http.aclose()
