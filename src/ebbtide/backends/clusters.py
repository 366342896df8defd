"""The driver of backends whose clusters are Kubernetes in earnest."""

from __future__ import annotations

from ebbtide.backends.base import Setup
from ebbtide.drivers.kubernetes.driver import KubernetesDriver
from ebbtide.kube.client import Clients


def kubernetes(clients: Clients, setup: Setup, *, joins: bool = True) -> KubernetesDriver:
    """The Kubernetes driver as the settings want it. joins: whether machines join by bootstrap tokens."""
    settings = setup.settings
    return KubernetesDriver(
        clients,
        setup.clock,
        aliases=settings.event_aliases,
        pod_events=settings.pod_events_limit,
        joins=joins,
    )
