"""What a request means.

One transaction each. `Services` is the bundle that the API and the console are given.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.ids import Ids
from ebbtide.services.access import AccessService
from ebbtide.services.audit import AuditService
from ebbtide.services.capacity import Planner
from ebbtide.services.claims import ClaimService
from ebbtide.services.clusters import ClusterService
from ebbtide.services.fleet import FleetService
from ebbtide.services.usage import UsageService
from ebbtide.services.volumes import VolumeService
from ebbtide.settings import Settings
from ebbtide.store.db import Database


@dataclass(frozen=True, slots=True)
class Services:
    access: AccessService
    clusters: ClusterService
    claims: ClaimService
    fleet: FleetService
    usage: UsageService
    audit: AuditService
    volumes: VolumeService


def build(db: Database, settings: Settings, ids: Ids) -> Services:
    """The services over one database."""
    planner = Planner(settings, ids)
    return Services(
        access=AccessService(db, ids),
        clusters=ClusterService(db, ids, settings, planner),
        claims=ClaimService(db, planner),
        fleet=FleetService(db, ids, settings, planner),
        usage=UsageService(db),
        audit=AuditService(db),
        volumes=VolumeService(db, ids, settings),
    )
