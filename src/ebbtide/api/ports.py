"""What the API needs of the rest: the services behind each noun, as one bundle.

Structural types, so that small doubles and the real services alike can stand behind the app. All methods
raise `ebbtide.errors` only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from ebbtide.services.details import (
    Caller,
    ClaimDetails,
    ClusterChange,
    ClusterDetails,
    ClusterOrder,
    EventDetails,
    HostDetails,
    NodeDetails,
    PoolDetails,
    RegionDetails,
    Replay,
    Usage,
)


class AccessPort(Protocol):
    async def authenticate(self, bearer: str | None) -> Caller: ...


class ClustersPort(Protocol):
    async def regions(self) -> tuple[RegionDetails, ...]: ...

    async def create(self, caller: Caller, order: ClusterOrder, replay: Replay) -> ClusterDetails: ...

    async def list(self, caller: Caller, project_id: str | None) -> tuple[ClusterDetails, ...]: ...

    async def retrieve(self, caller: Caller, cluster_id: str) -> ClusterDetails: ...

    async def update(self, caller: Caller, cluster_id: str, change: ClusterChange) -> ClusterDetails: ...

    async def delete(self, caller: Caller, cluster_id: str) -> None: ...

    async def events(
        self, caller: Caller, cluster_id: str, after: int, limit: int
    ) -> tuple[EventDetails, ...]: ...


class ClaimsPort(Protocol):
    async def create(
        self, caller: Caller, pool: str, hosts: int, ref: str, for_whom: str
    ) -> ClaimDetails: ...

    async def list(self, caller: Caller, pool: str | None = None) -> tuple[ClaimDetails, ...]: ...

    async def retrieve(self, caller: Caller, ref: str) -> ClaimDetails: ...

    async def give_back(self, caller: Caller, ref: str, hosts: tuple[str, ...] | None) -> ClaimDetails: ...


class FleetPort(Protocol):
    async def pools(self, caller: Caller) -> tuple[PoolDetails, ...]: ...

    async def hosts(self, caller: Caller, pool: str | None = None) -> tuple[HostDetails, ...]: ...

    async def nodes(self, caller: Caller, cluster_id: str | None = None) -> tuple[NodeDetails, ...]: ...

    async def reclaim(
        self, caller: Caller, pool: str, hosts: int, reason: str
    ) -> tuple[NodeDetails, ...]: ...

    # What a file changed and who owns which field are the service's own dataclasses, rendered as they are.
    async def apply(self, caller: Caller, text: str) -> Any: ...

    async def ownership(self, caller: Caller) -> Any: ...


class UsagePort(Protocol):
    async def read(
        self,
        caller: Caller,
        since: datetime,
        until: datetime,
        cluster_id: str | None = None,
        by: str = "cluster",
    ) -> Usage: ...


class ServicesPort(Protocol):
    @property
    def access(self) -> AccessPort: ...

    @property
    def clusters(self) -> ClustersPort: ...

    @property
    def claims(self) -> ClaimsPort: ...

    @property
    def fleet(self) -> FleetPort: ...

    @property
    def usage(self) -> UsagePort: ...


class PlaygroundPort(Protocol):
    """The simulated world's levers, for trying things out. `spec` and answers are plain JSON values."""

    async def add_pods(self, cluster_id: str, spec: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]: ...

    async def pods(self, cluster_id: str) -> Sequence[Mapping[str, Any]]: ...

    async def vanish(self, host: str) -> Mapping[str, Any]: ...
