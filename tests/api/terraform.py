"""The official Terraform provider's resource `together_beta_cluster`, as far as its requests and plans go.

Which attributes there are and how each is sent, refreshed and compared, follows the provider's schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

REPLACES = frozenset(
    {
        "capacity_pool_id",
        "cluster_name",
        "cuda_version",
        "gpu_type",
        "install_traefik",
        "nvidia_driver_version",
        "oidc_config",
        "project_id",
        "region",
        "reservation_start_time",
        "slurm_image",
        "slurm_shm_size_gib",
        "volume_id",
    }
)
CHANGES = frozenset(
    {
        "acceptance_tests_params",
        "add_ons",
        "auto_scale",
        "auto_scale_max_gpus",
        "cluster_config",
        "cluster_type",
        "num_capacity_pool_gpus",
        "num_gpus",
        "num_preemptible_gpus",
        "num_reserved_gpus",
        "reservation_end_time",
    }
)
NOT_REFRESHED = frozenset(
    {
        "acceptance_tests_params",
        "auto_scale",
        "auto_scale_max_gpus",
        "auto_scaled",
        "gpu_node_failover_enabled",
        "num_capacity_pool_gpus",
        "num_preemptible_gpus",
        "num_reserved_gpus",
        "slurm_image",
        "volume_id",
    }
)
DEFAULTS = {"auto_scaled": False, "gpu_node_failover_enabled": False, "install_traefik": False}
_ADD_ON = ("add_on_type", "name", "config")
_ADD_ON_CONFIG = ("dashboard", "ingress")  # all that its schema knows of an add-on's config


@dataclass
class Terraform:
    """client: its base URL ends in /v1. state: what the last apply or refresh left, None if nothing."""

    client: httpx.AsyncClient
    state: dict[str, Any] | None = None
    sent: list[tuple[str, str, Any]] = field(default_factory=list)

    async def apply(self, configuration: Mapping[str, Any]) -> list[str]:
        """Refresh, then create or change; gives the methods that were sent. A replacement is refused."""
        wanted = {**DEFAULTS, **configuration}
        before = len(self.sent)
        await self.refresh()
        if self.state is None:
            answer = await self._send("POST", "compute/clusters", {**wanted, "billing_type": "ON_DEMAND"})
        else:
            differing = self.plan(configuration)
            assert not differing & REPLACES, f"would replace the cluster: {sorted(differing & REPLACES)}"
            if differing:
                removed = {name: None for name in self.state if name in CHANGES and name not in wanted}
                answer = await self._send("PUT", self._path(), {**wanted, **removed})
            else:
                answer = {"cluster_id": self.state["cluster_id"]}
        # The plan becomes the state; of the answer only computed attributes are taken.
        self.state = {**wanted, "cluster_id": answer["cluster_id"]}
        return [method for method, _, _ in self.sent[before:]]

    async def refresh(self) -> None:
        """Read the cluster. A 404 drops it from the state."""
        if self.state is None:
            return
        seen = await self.client.get(self._path())
        self.sent.append(("GET", self._path(), None))
        if seen.status_code == 404:
            self.state = None
            return
        assert seen.status_code == 200, seen.text
        answer = seen.json()
        kept = {name: value for name, value in self.state.items() if name in NOT_REFRESHED}
        read = {
            name: _known(name, answer[name])
            for name in (CHANGES | REPLACES | {"cluster_id"}) - NOT_REFRESHED
            if answer.get(name) is not None
        }
        self.state = {**kept, **read}

    def plan(self, configuration: Mapping[str, Any]) -> set[str]:
        """Attributes whose value in the state differs from the configuration's, absence included."""
        assert self.state is not None
        wanted = {**DEFAULTS, **configuration}
        return {name for name in CHANGES | REPLACES if self.state.get(name) != wanted.get(name)}

    async def destroy(self) -> None:
        """Refresh, and delete what is still there. Any error is one, also 404."""
        await self.refresh()
        if self.state is not None:
            await self._send("DELETE", self._path(), None)
            self.state = None

    def _path(self) -> str:
        assert self.state is not None
        return f"compute/clusters/{self.state['cluster_id']}"

    async def _send(self, method: str, path: str, body: Any) -> dict[str, Any]:
        self.sent.append((method, path, body))
        answer = await self.client.request(
            method, path, json=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 200, answer.text
        read: dict[str, Any] = answer.json()
        return read


def _known(name: str, value: Any) -> Any:
    """What the provider's schema can hold of an answer's attribute."""
    if name != "add_ons":
        return value
    return [
        {
            key: {kind: one["config"][kind] for kind in _ADD_ON_CONFIG if kind in one["config"]}
            if key == "config"
            else one[key]
            for key in _ADD_ON
        }
        for one in value
    ]
