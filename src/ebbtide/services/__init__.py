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
from ebbtide.services.cluster_settings import ClusterSettingsService
from ebbtide.services.clusters import ClusterService
from ebbtide.services.fleet import FleetService
from ebbtide.services.fleet_file import FleetFile
from ebbtide.services.hosts import HostService
from ebbtide.services.imports import CheckKubeconfig, ImportService, no_imports
from ebbtide.services.live_settings import SettingsService
from ebbtide.services.metrics import MetricsService
from ebbtide.services.node_report import NodeService
from ebbtide.services.organizations import OrganizationService
from ebbtide.services.receipts import ReceiptService
from ebbtide.services.remediations import RemediationService
from ebbtide.services.supply import SupplyService
from ebbtide.services.sync import SyncService
from ebbtide.services.usage import UsageService
from ebbtide.services.volumes import VolumeService
from ebbtide.services.webhooks import WebhookService
from ebbtide.services.why import WhyService
from ebbtide.services.wipes import WipeService
from ebbtide.settings import LiveSettings, Settings
from ebbtide.store.db import Database


@dataclass(frozen=True, slots=True)
class Services:
    access: AccessService
    clusters: ClusterService
    imports: ImportService
    claims: ClaimService
    fleet: FleetService
    hosts: HostService
    nodes: NodeService
    organizations: OrganizationService
    settings: SettingsService
    sync: SyncService
    wipes: WipeService
    usage: UsageService
    audit: AuditService
    webhooks: WebhookService
    volumes: VolumeService
    metrics: MetricsService
    remediations: RemediationService
    why: WhyService
    receipts: ReceiptService
    cluster_settings: ClusterSettingsService
    supply: SupplyService


def build(
    db: Database,
    settings: Settings,
    ids: Ids,
    *,
    on_fleet: Callable[[FleetFile], None] | None = None,
    check_kubeconfig: CheckKubeconfig = no_imports,
) -> Services:
    """The services over one database.

    on_fleet:         told of every fleet file that was applied
    check_kubeconfig: looks at the kubeconfig of a cluster that is to be imported
    """
    live = settings if isinstance(settings, LiveSettings) else LiveSettings(settings)
    planner = Planner(live, ids)
    clusters = ClusterService(db, ids, live, planner)
    return Services(
        access=AccessService(db, ids),
        clusters=clusters,
        imports=ImportService(db, ids, clusters, check_kubeconfig),
        claims=ClaimService(db, planner),
        fleet=FleetService(db, ids, live, planner, on_fleet),
        hosts=HostService(db, ids, live, planner),
        nodes=NodeService(db),
        organizations=OrganizationService(db, ids),
        settings=SettingsService(db, live),
        sync=SyncService(db, ids, live, planner, on_fleet),
        wipes=WipeService(db),
        usage=UsageService(db),
        audit=AuditService(db),
        webhooks=WebhookService(db, ids, live),
        volumes=VolumeService(db, ids, live),
        metrics=MetricsService(db),
        remediations=RemediationService(db, ids, live),
        why=WhyService(db),
        receipts=ReceiptService(db),
        cluster_settings=ClusterSettingsService(db, live),
        supply=SupplyService(db, live),
    )
