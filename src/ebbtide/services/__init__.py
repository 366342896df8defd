"""What a request means.

One transaction each. `Services` is the bundle that the API and the console are given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ebbtide.ids import Ids
from ebbtide.services.access import AccessService
from ebbtide.services.audit import AuditService
from ebbtide.services.capacity import Planner
from ebbtide.services.claims import ClaimService
from ebbtide.services.clusters import ClusterService
from ebbtide.services.fleet import FleetService
from ebbtide.services.fleet_file import FleetFile
from ebbtide.services.metrics import MetricsService
from ebbtide.services.remediations import RemediationService
from ebbtide.services.usage import UsageService
from ebbtide.services.volumes import VolumeService
from ebbtide.services.webhooks import WebhookService
from ebbtide.services.why import WhyService
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
    webhooks: WebhookService
    volumes: VolumeService
    metrics: MetricsService
    remediations: RemediationService
    why: WhyService


def build(
    db: Database,
    settings: Settings,
    ids: Ids,
    *,
    on_fleet: Callable[[FleetFile], None] | None = None,
) -> Services:
    """The services over one database. on_fleet: told of every fleet file that was applied."""
    planner = Planner(settings, ids)
    return Services(
        access=AccessService(db, ids),
        clusters=ClusterService(db, ids, settings, planner),
        claims=ClaimService(db, planner),
        fleet=FleetService(db, ids, settings, planner, on_fleet),
        usage=UsageService(db),
        audit=AuditService(db),
        webhooks=WebhookService(db, ids),
        volumes=VolumeService(db, ids, settings),
        metrics=MetricsService(db),
        remediations=RemediationService(db, ids, settings),
        why=WhyService(db),
    )
