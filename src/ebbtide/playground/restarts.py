"""Machines that go down to come up again on the same host, under the same name."""

from __future__ import annotations

from ebbtide.playground import clusters, kubelet, machines, scheduler
from ebbtide.playground.behaviours import Boots, GpusMissing, RestartHangs, RestartReplyLost
from ebbtide.playground.facts import What
from ebbtide.playground.state import Machine, Node, Power, State
from ebbtide.playground.trouble import NoMachine, ReplyLost

_POWER_CYCLE_EXTRA_S = 30.0  # firmware's own tests, on top of a boot


def settled(state: State, node_uid: str, ref: str) -> Machine | None:
    """The machine, if a restart under that reference was begun before and nothing is set to go wrong."""
    machine = state.machines.get(node_uid)
    if machine is None or machine.restart_ref != ref or machines.find(state, machine, RestartReplyLost):
        return None
    return machine


def restart(state: State, node_uid: str, ref: str, hard: bool) -> Machine | None:
    """Restart a machine, or its host (hard). Under the same reference again nothing more happens."""
    machine = state.machines.get(node_uid)
    if machine is None:
        return None
    if machine.restart_ref != ref:
        _go_down(state, machine, ref, hard)
    if machines.strikes(state, machine, RestartReplyLost):
        state.tell(What.REPLY_LOST, cluster_id=machine.cluster_id, node_uid=node_uid, detail="restart")
        raise ReplyLost("the reply to the restart was lost")
    return machine


def _go_down(state: State, machine: Machine, ref: str, hard: bool) -> None:
    if state.hosts[machine.host_name].dead_since is not None:
        raise NoMachine(f"host {machine.host_name} does not answer")
    machine.restart_ref, machine.power, machine.why = ref, Power.STARTING, "restarting"
    kubelet.on_machine_dead(state, machine.cluster_id, machine.node_uid, "restart")
    state.tell(
        What.RESTARTED,
        cluster_id=machine.cluster_id,
        node_uid=machine.node_uid,
        host=machine.host_name,
        detail="host" if hard else "machine",
    )
    state.touch(machine.cluster_id, machine.node_uid)
    if machines.strikes(state, machine, RestartHangs):
        return
    boot = machine.boot
    span = boot.boot_s if isinstance(boot, Boots) else (30.0, 30.0)
    boot_s = state.between(*span, f"restart/{ref}") + (_POWER_CYCLE_EXTRA_S if hard else 0.0)
    state.plan(state.at(boot_s), "restarted", machine.node_uid, ref)


def on_restarted(state: State, node_uid: str, ref: str) -> None:
    machine = state.machines.get(node_uid)
    if machine is None or machine.power is not Power.STARTING or machine.restart_ref != ref:
        return
    machine.power, machine.why = Power.UP, ""
    state.tell(What.UP, cluster_id=machine.cluster_id, node_uid=node_uid, host=machine.host_name)
    state.touch(machine.cluster_id, node_uid)
    cluster = state.clusters.get(machine.cluster_id)
    node = cluster.nodes.get(node_uid) if cluster else None
    if node is None:
        clusters.on_register(state, node_uid)
        return
    _revive(state, machine.cluster_id, node)
    if isinstance(machine.boot, Boots | GpusMissing):
        state.plan(state.at(machine.boot.join_s), "ready", node_uid)


def _revive(state: State, cluster_id: str, node: Node) -> None:
    """The kubelet starts what is still meant to run, and finishes the deletion of what was told to go."""
    cluster = state.clusters[cluster_id]
    for pod in list(node.pods.values()):
        if pod.dead and pod.told_at is None:
            pod.dead = False
        elif pod.dead:
            del node.pods[pod.uid]
            scheduler.replace(state, cluster, pod, node)


def take_back_notice(state: State, cluster_id: str, node_uid: str, reason: str) -> None:
    """What was announced under that reason is over: the annotation goes, and work may come again."""
    cluster = state.clusters[cluster_id]
    node = cluster.nodes[node_uid]
    node.notices = [known for known in node.notices if known.reason != reason]
    state.tell(What.NOTICE_TAKEN_BACK, cluster_id=cluster_id, node_uid=node_uid, detail=reason)
    clusters.cordon(state, cluster, node, False)
