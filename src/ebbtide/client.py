"""A small client of the HTTP API, for the command line, the demonstration and scripts of one's own.

Answers are the parsed JSON objects, as the API documents them; refusals are `ebbtide.errors`. Long because
there is a method for each endpoint.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from ebbtide.errors import BadInput, Conflict, EbbtideError, Forbidden, NotFound, Unauthenticated

Json = dict[str, Any]

_STREAM_SILENCE_S = 60.0  # a stream says something at least every 15 s; silence means that it is dead
_ORGANIZATIONS = "/v1/access/organizations"
_VOLUMES = "/v1/compute/clusters/storage/volumes"


class Unreachable(EbbtideError):
    """Nothing answers at the address, or not in time. Whether the request had an effect is unknown."""


class ServerFault(EbbtideError):
    """The server had a fault of its own (5xx), or what answers is not Ebbtide."""


_ERRORS: dict[int, type[EbbtideError]] = {
    400: BadInput,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    405: BadInput,
    409: Conflict,
    413: BadInput,
    422: BadInput,
}


class Client:
    """One connection to one server with one key. Use it as a context manager, or call `close`.

    base_url:  scheme, host and port; a trailing `/v1` is fine too
    timeout_s: for each request
    transport: an own httpx transport, for tests

    Every method raises BadInput, Unauthenticated, Forbidden, NotFound, Conflict, Unreachable or ServerFault.
    """

    def __init__(
        self,
        base_url: str,
        key: str,
        *,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.strip().rstrip("/").removesuffix("/v1")
        host = _host_of(self.base_url)
        if host is None:
            raise BadInput(f"{base_url!r} is no address of a server; write for example http://127.0.0.1:8080")
        if not key.isascii() or not key.isprintable():
            raise BadInput("the key has characters that no key has; copy it again")
        self._http = httpx.Client(
            base_url=self.base_url,
            headers={"authorization": f"Bearer {key.strip()}", "accept": "application/json"},
            timeout=timeout_s,
            transport=transport,
            trust_env=not _is_loopback(host),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # --- the caller, regions ---

    def whoami(self) -> Json:
        return self._get("/v3/whoami")

    def regions(self) -> list[Json]:
        return _items(self._get("/v1/compute/regions"), "regions")

    # --- clusters ---

    def create_cluster(self, order: Mapping[str, object], *, token: str | None = None) -> Json:
        """Order a cluster. With a `token` repeating it is harmless: the same one finds the same cluster."""
        headers = {"idempotency-key": token} if token else {}
        return self._send("POST", "/v1/compute/clusters", body=dict(order), headers=headers)

    def clusters(self, project_id: str | None = None) -> list[Json]:
        return _items(self._get("/v1/compute/clusters", projectId=project_id), "clusters")

    def cluster(self, cluster_id: str) -> Json:
        return self._get(f"/v1/compute/clusters/{_part(cluster_id)}")

    def update_cluster(self, cluster_id: str, change: Mapping[str, object]) -> Json:
        return self._send("PUT", f"/v1/compute/clusters/{_part(cluster_id)}", body=dict(change))

    def delete_cluster(self, cluster_id: str) -> Json:
        return self._send("DELETE", f"/v1/compute/clusters/{_part(cluster_id)}")

    def import_cluster(self, order: Mapping[str, object]) -> Json:
        """Take in a cluster that exists (operators)."""
        return self._send("POST", "/v1/clusters/import", body=dict(order))

    def renew_import(self, cluster_id: str, change: Mapping[str, object]) -> Json:
        """Another kubeconfig, or another selector, for an imported cluster (operators)."""
        return self._send("PUT", f"/v1/clusters/{_part(cluster_id)}/import", body=dict(change))

    def events(self, cluster_id: str, *, after: int = 0, limit: int = 500) -> Json:
        """Events with a number above `after`, oldest first: `{events: [...], next_after}`."""
        return self._get(f"/v1/clusters/{_part(cluster_id)}/events", after=after, limit=limit)

    def drains(self, cluster_id: str, *, before: str | None = None, limit: int = 50) -> Json:
        """Receipts without their pods, the newest node first: `{drains: [...], next_before}`."""
        return self._get(f"/v1/clusters/{_part(cluster_id)}/drains", before=before, limit=limit)

    def drain(self, cluster_id: str, node: str) -> Json:
        """The receipt of a node (by its name or uid) that drained."""
        return self._get(f"/v1/clusters/{_part(cluster_id)}/drains/{_part(node)}")

    def cluster_settings(self, cluster_id: str) -> Json:
        return self._get(f"/v1/clusters/{_part(cluster_id)}/settings")

    def set_cluster(self, cluster_id: str, change: Mapping[str, object]) -> Json:
        """Change `warn_first_s` or `placement`; what is left out stays."""
        return self._send("PATCH", f"/v1/clusters/{_part(cluster_id)}/settings", body=dict(change))

    # --- capacity ---

    def capacity(self, *, region: str | None = None, gpu_type: str | None = None) -> Json:
        """What one cluster could get now: `{at, offers: [...], quota_left}`."""
        return self._get("/v1/capacity", region=region, gpu_type=gpu_type)

    def capacity_history(self, *, region: str | None = None, gpu_type: str | None = None) -> list[Json]:
        """Fill times and node lives as observed, by region and GPU model."""
        return _items(self._get("/v1/capacity/history", region=region, gpu_type=gpu_type), "history")

    def cluster_history(self, cluster_id: str) -> Json:
        """The same of one cluster."""
        return self._get(f"/v1/clusters/{_part(cluster_id)}/history")

    # --- storage volumes ---

    def create_volume(self, order: Mapping[str, object]) -> Json:
        return self._send("POST", _VOLUMES, body=dict(order))

    def volumes(self, project_id: str | None = None) -> list[Json]:
        return _items(self._get(_VOLUMES, projectId=project_id), "volumes")

    def volume(self, volume_id: str) -> Json:
        return self._get(f"{_VOLUMES}/{_part(volume_id)}")

    def grow_volume(self, volume_id: str, size_tib: int) -> Json:
        return self._send("PUT", _VOLUMES, body={"volume_id": volume_id, "size_tib": size_tib})

    def delete_volume(self, volume_id: str) -> Json:
        return self._send("DELETE", f"{_VOLUMES}/{_part(volume_id)}")

    # --- remediations ---

    def remediate(self, cluster_id: str, instance_id: str, body: Mapping[str, object]) -> Json:
        """Ask for a remediation: `{mode, reason}`."""
        return self._send("POST", _remediations(cluster_id, instance_id), body=dict(body))

    def remediations(
        self, cluster_id: str, instance_id: str = "-", *, state: str | None = None
    ) -> list[Json]:
        """Every remediation of an instance, or with "-" of the cluster; newest first, all pages."""
        found: list[Json] = []
        token: str | None = None
        while True:
            path = _remediations(cluster_id, instance_id)
            page = self._get(path, state=state, page_size=500, page_token=token)
            found += _items(page, "remediations")
            token = str(page.get("next_page_token") or "") or None
            if token is None:
                return found

    def review(
        self, cluster_id: str, instance_id: str, remediation_id: str, verb: str, body: Json | None = None
    ) -> Json:
        """verb: approve, reject or cancel."""
        path = f"{_remediations(cluster_id, instance_id)}/{_part(remediation_id)}/{_part(verb)}"
        return self._send("POST", path, body=body)

    def follow(self, cluster_id: str, *, after: int = 0) -> Iterator[Json]:
        """Events above `after` as they happen, over one connection, until the server ends it.

        To go on, call it again with the last number seen. Raises Unreachable when the connection breaks.
        """
        path = f"/v1/clusters/{_part(cluster_id)}/events/stream"
        headers = {"last-event-id": str(after), "accept": "text/event-stream"}
        limits = httpx.Timeout(_STREAM_SILENCE_S, connect=10.0)
        try:
            with self._http.stream("GET", path, headers=headers, timeout=limits) as answer:
                if not answer.is_success:
                    answer.read()
                    self._read(answer)
                yield from _stream_events(answer.iter_lines())
        except httpx.TransportError as error:
            raise Unreachable(f"the event stream of {self.base_url} broke off: {error}") from error

    # --- the fleet ---

    def pools(self) -> list[Json]:
        return _items(self._get("/v1/fleet/pools"), "pools")

    def hosts(self, pool: str | None = None) -> list[Json]:
        return _items(self._get("/v1/fleet/hosts", pool=pool), "hosts")

    def cordon(self, host: str, reason: str | None = None) -> Json:
        """Keep a host from new occupants; the present one stays."""
        return self._send("POST", f"/v1/fleet/hosts/{_part(host)}/cordon", body={"reason": reason})

    def uncordon(self, host: str) -> Json:
        """Let a host have occupants again; ends a quarantine too."""
        return self._send("POST", f"/v1/fleet/hosts/{_part(host)}/uncordon", body={})

    def host(self, host: str) -> Json:
        """A host, its latest maintenance, and who was on it: `{host, maintenance, history}`."""
        return self._get(f"/v1/fleet/hosts/{_part(host)}")

    def add_host(self, name: str, pool: str, fabric_block: str | None = None) -> Json:
        body = {"name": name, "pool": pool, "fabric_block": fabric_block}
        return self._send("POST", "/v1/fleet/hosts", body=body)

    def drain_host(self, host: str, reason: str, *, until: str | None = None, dry_run: bool = False) -> Json:
        """Have a host emptied and held for maintenance; answers as `host` does."""
        body = {"reason": reason, "until": until, "dry_run": dry_run}
        return self._send("POST", f"/v1/fleet/hosts/{_part(host)}/drain", body=body)

    def return_host(self, host: str) -> Json:
        """Put a host back into service after maintenance."""
        return self._send("POST", f"/v1/fleet/hosts/{_part(host)}/return", body={})

    def remove_host(self, host: str) -> Json:
        """Take a free or drained host out of the inventory."""
        return self._send("DELETE", f"/v1/fleet/hosts/{_part(host)}")

    def nodes(self, cluster_id: str | None = None) -> list[Json]:
        return _items(self._get("/v1/fleet/nodes", cluster_id=cluster_id), "nodes")

    def node(self, node: str) -> Json:
        """A node's whole story, by name or uid: `{stay, why, timeline, events, machine, wipes}`."""
        return self._get(f"/v1/fleet/nodes/{_part(node)}")

    def fleet_regions(self) -> list[Json]:
        """Regions with their pools and driver versions."""
        return _items(self._get("/v1/fleet/regions"), "regions")

    def settings(self) -> list[Json]:
        """Every setting with its value and where that comes from; those that can change first."""
        return _items(self._get("/v1/fleet/settings"), "settings")

    def change_settings(self, values: Mapping[str, object], reset: Sequence[str] = ()) -> Json:
        """Set settings for every process, let others have the processes' own: `{settings: [...]}`."""
        body: Json = {"set": dict(values), "reset": list(reset)}
        return self._send("PATCH", "/v1/fleet/settings", body=body)

    def reclaim(self, pool: str, hosts: int, reason: str) -> Json:
        """Take preemptible nodes back now; answers the nodes that got notice."""
        return self._send("POST", "/v1/fleet/reclaims", body={"pool": pool, "hosts": hosts, "reason": reason})

    def why_node(self, node: str) -> Json:
        """Why a node, by name or uid, is where it is."""
        return self._get(f"/v1/fleet/why/node/{_part(node)}")

    def why_target(self, cluster_id: str) -> Json:
        """Why a cluster's preemptible target is not met."""
        return self._get(f"/v1/fleet/why/target/{_part(cluster_id)}")

    def apply_fleet_file(self, text: str | bytes) -> Json:
        return self._send(
            "POST",
            "/v1/fleet/file",
            content=text.encode() if isinstance(text, str) else text,
            headers={"content-type": "application/yaml"},
        )

    def sync_inventory(
        self, text: str | bytes, *, pool: str | None, dry_run: bool, most_removed_percent: int
    ) -> Json:
        """Apply an inventory, or that of one pool: `{done, kept, dry_run}`."""
        query = {"pool": pool, "dry_run": dry_run, "most_removed_percent": most_removed_percent}
        return self._send(
            "POST",
            "/v1/fleet/sync",
            content=text.encode() if isinstance(text, str) else text,
            headers={"content-type": "application/yaml"},
            query=query,
        )

    def wipes(self, *, host: str | None = None, node: str | None = None, limit: int = 100) -> Json:
        """Who wiped which host, the newest first, and hosts that carry somebody's data."""
        return self._get("/v1/fleet/wipes", host=host, node=node, limit=limit)

    def ownership(self) -> list[Json]:
        return _items(self._get("/v1/fleet/ownership"), "ownership")

    # --- demand from other systems ---

    def claim(self, pool: str, hosts: int, ref: str, for_whom: str) -> Json:
        """Claim hosts. Repeating it with the same `ref` finds the same claim."""
        return self._send(
            "POST", "/v1/fleet/claims", body={"pool": pool, "hosts": hosts, "ref": ref, "for": for_whom}
        )

    def claims(self, pool: str | None = None) -> list[Json]:
        return _items(self._get("/v1/fleet/claims", pool=pool), "claims")

    def find_claim(self, ref: str) -> Json:
        return self._get(f"/v1/fleet/claims/{_part(ref)}")

    def give_back(self, ref: str, hosts: Sequence[str] | None = None) -> Json:
        """Give back some hosts of a claim, or (None) all and the claim with them."""
        query = {"hosts": ",".join(hosts) if hosts else None}
        return self._send("DELETE", f"/v1/fleet/claims/{_part(ref)}", query=query)

    # --- usage ---

    def usage(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        cluster_id: str | None = None,
        by: str | None = None,
    ) -> Json:
        """The bill's lines. Instants in RFC 3339; by: `cluster` (the default) or `node`."""
        query = {"from": since, "to": until, "cluster_id": cluster_id, "by": by}
        return self._get("/v1/usage", **query)

    # --- projects and keys ---

    def projects(self) -> list[Json]:
        return _items(self._get("/v1/projects"), "data")

    def create_project(
        self,
        slug: str,
        name: str | None = None,
        weight: int | None = None,
        organization: str | None = None,
    ) -> Json:
        """Make a project. slug: lower-case, digits, dashes, unique; weight: its share of spare hosts."""
        body = {"slug": slug, "name": name or slug, "weight": weight, "organization": organization}
        return self._send("POST", "/v1/projects", body=body)

    def organizations(self) -> list[Json]:
        return _items(self._get(_ORGANIZATIONS), "organizations")

    def create_organization(self, name: str) -> Json:
        return self._send("POST", _ORGANIZATIONS, body={"name": name})

    def change_organization(
        self, organization: str, *, name: str | None = None, disabled: bool | None = None
    ) -> Json:
        """Rename it, disable or enable it; named by id or name."""
        body = {"name": name, "disabled": disabled}
        return self._send("PATCH", f"{_ORGANIZATIONS}/{_part(organization)}", body=body)

    def set_project(self, project: str, changes: Mapping[str, int]) -> Json:
        """Set weight, standard_gpus_limit or preemptible_gpus_limit (below 0: no limit) of a project."""
        return self._send("PATCH", f"/v1/fleet/projects/{_part(project)}", body=dict(changes))

    def keys(self) -> list[Json]:
        return _items(self._get("/v1/keys"), "keys")

    def create_key(
        self, project: str, role: str, *, name: str | None = None, expires_in_days: int | None = None
    ) -> Json:
        """Issue a key for a project (its id or slug); its `key` is in this answer and never again."""
        wishes = {"name": name, "expires_in_days": expires_in_days}
        given = {field: value for field, value in wishes.items() if value is not None}
        return self._send("POST", "/v1/keys", body={"project": project, "role": role, **given})

    def rotate_key(self, key_id: str, overlap_s: int | None = None) -> Json:
        """Issue a key in place of another, which works on for `overlap_s` (an hour if not given)."""
        body = {} if overlap_s is None else {"overlap_s": overlap_s}
        return self._send("POST", f"/v1/keys/{_part(key_id)}/rotate", body=body)

    def revoke_key(self, key_id: str) -> Json:
        return self._send("DELETE", f"/v1/keys/{_part(key_id)}")

    def audit(self, *, before: int | None = None, limit: int = 100) -> Json:
        """Changes below number `before`, the newest first: `{entries: [...], next_before}`."""
        return self._get("/v1/audit", before=before, limit=limit)

    # --- webhooks ---

    def webhooks(self) -> list[Json]:
        return _items(self._get("/v1/webhooks"), "webhooks")

    def create_webhook(self, url: str, reasons: Sequence[str] | None = None) -> Json:
        """Subscribe a URL to all events, or to some; its `secret` is in this answer and never again."""
        body: Json = {"url": url} if not reasons else {"url": url, "reasons": list(reasons)}
        return self._send("POST", "/v1/webhooks", body=body)

    def delete_webhook(self, webhook_id: str) -> Json:
        return self._send("DELETE", f"/v1/webhooks/{_part(webhook_id)}")

    def deliveries(self, webhook_id: str, *, limit: int = 50) -> list[Json]:
        """What became of the latest events, the newest first."""
        return _items(self._get(f"/v1/webhooks/{_part(webhook_id)}/deliveries", limit=limit), "deliveries")

    # --- the simulated world ---

    def add_pods(self, cluster_id: str, spec: Mapping[str, object]) -> Json:
        return self._send("POST", f"/v1/playground/clusters/{_part(cluster_id)}/pods", body=dict(spec))

    def pods(self, cluster_id: str) -> list[Json]:
        return _items(self._get(f"/v1/playground/clusters/{_part(cluster_id)}/pods"), "pods")

    def delete_node(self, cluster_id: str, node: str) -> Json:
        path = f"/v1/playground/clusters/{_part(cluster_id)}/nodes/{_part(node)}/delete"
        return self._send("POST", path, body={})

    def vanish(self, host: str) -> Json:
        return self._send("POST", f"/v1/playground/hosts/{_part(host)}/vanish", body={})

    # --- transport ---

    def _get(self, path: str, **query: object) -> Json:
        return self._send("GET", path, query=query)

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: Json | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, object] | None = None,
    ) -> Json:
        params = {name: str(value) for name, value in (query or {}).items() if value is not None}
        try:
            answer = self._http.request(
                method, path, params=params, json=body, content=content, headers=dict(headers or {})
            )
        except httpx.TimeoutException as error:
            raise Unreachable(f"{self.base_url} did not answer in time ({method} {path})") from error
        except httpx.TransportError as error:
            raise Unreachable(f"nothing answers at {self.base_url}: {error}") from error
        return self._read(answer)

    def _read(self, answer: httpx.Response) -> Json:
        try:
            body = answer.json()
        except ValueError:
            body = None
        if answer.is_success and isinstance(body, dict):
            return body
        message, param, code = _told(body)
        if answer.is_success or message is None:
            raise ServerFault(
                f"{self.base_url} answered {answer.status_code} with something that Ebbtide does not say"
            )
        kind = ServerFault if answer.is_server_error else _ERRORS.get(answer.status_code, EbbtideError)
        raise kind(message, param=param, code=code)


def _told(body: object) -> tuple[str | None, str | None, str | None]:
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return None, None, None
    return error["message"], error.get("param"), error.get("code")


def _stream_events(lines: Iterator[str]) -> Iterator[Json]:
    """The events of a server-sent stream, whose data is one line of JSON each."""
    data = ""
    for line in lines:
        if line.startswith("data:"):
            data = line.removeprefix("data:").strip()
        elif not line and data:
            try:
                event = json.loads(data)
            except ValueError as error:
                raise ServerFault("the event stream holds something that is no event") from error
            yield event
            data = ""


def _items(answer: Json, name: str) -> list[Json]:
    items = answer.get(name)
    if not isinstance(items, list):
        raise ServerFault(
            f"the server's answer has no list {name!r}; is it a newer version than this client?"
        )
    return items


def _part(text: str) -> str:
    """A path parameter. Empty ones and dots would reach another path, so they are refused here."""
    if text in ("", ".", ".."):
        raise BadInput(f"{text!r} is no id or name")
    return quote(text, safe="")


def _remediations(cluster_id: str, instance_id: str) -> str:
    return f"/v1/compute/clusters/{_part(cluster_id)}/instances/{_part(instance_id)}/remediations"


def _host_of(url: str) -> str | None:
    """The host of an http address; None when it is not one."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        return None
    good = parsed.scheme in ("http", "https") and 0 < (parsed.port or 80) < 65_536
    return parsed.host if good and parsed.host else None


def _is_loopback(host: str) -> bool:
    """Requests to this machine never go through a proxy of the environment."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
