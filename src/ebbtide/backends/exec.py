"""Machines by the operator's own programs, in clusters that are imported."""

from __future__ import annotations

from ebbtide.backends.base import Backend, Setup, server_of
from ebbtide.backends.clusters import kubernetes
from ebbtide.backends.memory import StoredMemory
from ebbtide.backends.storage import storage_of
from ebbtide.drivers.kubernetes.watcher import KubernetesWatcher
from ebbtide.errors import StartupError
from ebbtide.kube.client import Clients
from ebbtide.playground.world import World
from ebbtide.providers.exec import HOLD_MARGIN_S, MOST_LIST_BYTES, NEEDED, SLOT_WAIT_S, VERBS, ExecProvider
from ebbtide.providers.programs import MOST_ANSWER_BYTES, Program, command_line
from ebbtide.settings import Settings, variable

_JOIN_DATA_S = 10  # what a visit may take to ask a cluster before it runs a program
_MARGIN_S = SLOT_WAIT_S + HOLD_MARGIN_S + _JOIN_DATA_S


def make(setup: Setup) -> Backend:
    """Programs as the settings name them. Raises StartupError."""
    clients, settings = Clients(), setup.settings
    return Backend(
        ExecProvider(
            programs(settings),
            StoredMemory(setup.db),
            at_once=max(1, settings.exec_at_once),
            slot_wait_s=settings.lease_s - settings.exec_limit_s - HOLD_MARGIN_S - _JOIN_DATA_S,
        ),
        kubernetes(clients, setup),
        storage_of(setup.settings, World(setup.clock)),
        watcher=KubernetesWatcher(clients),
        check_kubeconfig=server_of,
        close=clients.close,
    )


def programs(settings: Settings) -> dict[str, Program]:
    """The program for each verb. Raises StartupError naming every setting that is missing."""
    lines = {verb: getattr(settings, f"exec_{verb}") for verb in VERBS}
    if missing := [variable(f"exec_{verb}") for verb in NEEDED if not lines[verb]]:
        raise StartupError(
            f"EBBTIDE_PROVIDER=exec needs programs that start and end machines: set {', '.join(missing)} to "
            "the path of an executable, or a command line"
        )
    limit_s = settings.exec_limit_s
    if not 1 <= limit_s <= settings.lease_s - _MARGIN_S:
        raise StartupError(
            f"EBBTIDE_EXEC_LIMIT_S={limit_s} must be from 1 to {_MARGIN_S} s less than the lease of a visit, "
            f"EBBTIDE_LEASE_S={settings.lease_s}"
        )
    found = {}
    for verb, line in lines.items():
        if line:
            argv = command_line(variable(f"exec_{verb}"), line)
            most_bytes = MOST_LIST_BYTES if verb == "list" else MOST_ANSWER_BYTES
            found[verb] = Program(f"the {verb} program ({argv[0]})", argv, limit_s, most_bytes=most_bytes)
    return found
