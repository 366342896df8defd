"""Instances on hosts: how they boot, stop, are wiped, and vanish."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from ebbtide.playground import clusters, kubelet
from ebbtide.playground.behaviours import (
    Behaviour,
    Boot,
    BootFails,
    Boots,
    Counted,
    CreateReplyLost,
    DeleteForgets,
    DeleteReplyLost,
    GpusMissing,
    NeverReady,
    OutOfStock,
    StopTakes,
    StopUnconfirmed,
    Vanishes,
    Wipes,
)
from ebbtide.playground.facts import What
from ebbtide.playground.state import Host, Machine, Power, State
from ebbtide.playground.trouble import NeverPossible, NoMachine, NothingDone, ReplyLost

_GIVEN_BACK_KEPT = 100_000
_B = TypeVar("_B", bound=Behaviour)


@dataclass(frozen=True, slots=True)
class Order:
    """What an instance is made from."""

    node_uid: str
    node_name: str
    cluster_id: str
    compute_class: str
    pool: str
    host_name: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the return of a machine is. gone implies wiped, except where the machine vanished."""

    gone: bool
    wiped: bool
    why: str = ""


GONE = Progress(gone=True, wiped=True)


def set_behaviour(state: State, scope: str, behaviour: Behaviour) -> None:
    """Let `behaviour` hold in the scope, counted from now on.

    scope: "node:<uid>", "host:<name>", "pool:<name>", "volume:<name>", or "" for everywhere
    """
    state.behaviours.setdefault(scope, {})[behaviour.slot] = behaviour
    state.used.pop(f"{scope}|{behaviour.slot}", None)
    if isinstance(behaviour, Vanishes) and scope.startswith("host:"):
        state.plan(behaviour.at, "vanish", scope.removeprefix("host:"))


def find(state: State, machine: Machine | Order, kind: type[_B]) -> tuple[str, _B] | None:
    """The nearest behaviour of the kind's slot, if it is of this kind."""
    if not state.behaviours:
        return None
    for scope in (f"node:{machine.node_uid}", f"host:{machine.host_name}", f"pool:{machine.pool}", ""):
        found = state.behaviours.get(scope, {}).get(kind.slot)
        if found is not None:
            return (scope, found) if isinstance(found, kind) else None
    return None


def strikes(state: State, machine: Machine | Order, kind: type[Counted]) -> bool:
    """Whether a counted misbehaviour happens now; if so, one of its times is used up."""
    found = find(state, machine, kind)
    if found is None:
        return False
    scope, behaviour = found
    if behaviour.times is None:
        return True
    key = f"{scope}|{behaviour.slot}"
    state.used[key] = state.used.get(key, 0) + 1
    return state.used[key] <= behaviour.times


def create(state: State, order: Order) -> Machine:
    """Begin an instance, or find the one begun for the same uid."""
    machine = state.machines.get(order.node_uid)
    if machine is None:
        machine = _begin(state, order)
    if strikes(state, order, CreateReplyLost):
        state.tell(What.REPLY_LOST, cluster_id=order.cluster_id, node_uid=order.node_uid, detail="create")
        raise ReplyLost("the reply to the create was lost")
    return machine


def _begin(state: State, order: Order) -> Machine:
    host = state.hosts.setdefault(order.host_name, Host(order.host_name))
    _check_free(state, order, host)
    machine = Machine(
        order.node_uid,
        order.node_name,
        order.cluster_id,
        order.compute_class,
        order.pool,
        order.host_name,
        order.gpus,
        instance_id=f"sim-{order.node_uid[:8]}-{state.number()}",
        boot=_boot_of(state, order),
    )
    state.machines[machine.node_uid] = machine
    state.pools.setdefault(machine.pool, {})[machine.node_uid] = machine.host_name
    host.occupant = machine.node_uid
    clusters.ensure(state, machine.cluster_id)
    _tell(state, What.CREATED, machine)
    _plan_boot(state, machine)
    return machine


def _check_free(state: State, order: Order, host: Host) -> None:
    if order.node_uid in state.given_back:
        raise NeverPossible(
            f"the instance of node {order.node_uid} was given back; a node is never used again"
        )
    if host.occupant is not None:
        _complain(
            state, f"host {host.name} has node {host.occupant} and was ordered for node {order.node_uid}"
        )
        raise NeverPossible(f"host {host.name} still has an instance, of node {host.occupant}")
    if host.dead_since is not None or strikes(state, order, OutOfStock):
        state.tell(What.REFUSED, cluster_id=order.cluster_id, node_uid=order.node_uid, host=host.name)
        raise NoMachine(f"host {host.name} cannot be had now")


def _complain(state: State, what: str) -> None:
    state.violations.append(f"{state.now.isoformat()}: {what}")


def _boot_of(state: State, order: Order) -> Boot:
    kinds: tuple[type[Boot], ...] = (Boots, NeverReady, GpusMissing, BootFails)
    for kind in kinds:
        found = find(state, order, kind)
        if found is not None:
            return found[1]
    return state.habits.boot


def _plan_boot(state: State, machine: Machine) -> None:
    boot = machine.boot
    if isinstance(boot, BootFails):
        state.plan(state.at(boot.after_s), "boot_failed", machine.node_uid)
        return
    span = boot.boot_s if isinstance(boot, Boots) else (boot.boot_s, boot.boot_s)
    state.plan(state.at(state.between(*span, f"boot/{machine.node_uid}")), "up", machine.node_uid)


def on_boot_failed(state: State, node_uid: str) -> None:
    machine = state.machines.get(node_uid)
    if machine is None or machine.power is not Power.STARTING:
        return
    assert isinstance(machine.boot, BootFails)
    machine.power, machine.why = Power.FAILED, machine.boot.why
    _tell(state, What.BOOT_FAILED, machine, machine.why)
    state.touch(machine.cluster_id, node_uid)


def on_up(state: State, node_uid: str) -> None:
    machine = state.machines.get(node_uid)
    if machine is None or machine.power is not Power.STARTING:
        return
    machine.power = Power.UP
    _tell(state, What.UP, machine)
    state.touch(machine.cluster_id, node_uid)
    clusters.on_register(state, node_uid)


def settled_stop(state: State, node_uid: str) -> bool | None:
    """The answer to a stop that would change nothing, None if it would change something."""
    machine = state.machines.get(node_uid)
    if machine is None or machine.power in (Power.STOPPED, Power.FAILED):
        return True
    if machine.stop_asked_at is None:
        return None
    found = find(state, machine, StopUnconfirmed)
    if found is not None and found[1].times is None:
        return False
    takes = find(state, machine, StopTakes)
    if takes is not None and state.now < machine.stop_asked_at + timedelta(seconds=takes[1].seconds):
        return False
    return None


def stop(state: State, node_uid: str) -> bool:
    """Power off. True only if the machine no longer runs."""
    machine = state.machines.get(node_uid)
    if machine is None or machine.power in (Power.STOPPED, Power.FAILED):
        return True
    first = machine.stop_asked_at is None
    machine.stop_asked_at = machine.stop_asked_at or state.now
    if strikes(state, machine, StopUnconfirmed):
        _tell(state, What.STOP_UNCONFIRMED, machine)
        return False
    takes = find(state, machine, StopTakes)
    if takes is not None:
        ends_at = machine.stop_asked_at + timedelta(seconds=takes[1].seconds)
        if first:
            state.plan(ends_at, "stopped", node_uid)
        if state.now < ends_at:
            return False
    _power_off(state, machine, "stopped")
    return True


def on_stopped(state: State, node_uid: str) -> None:
    machine = state.machines.get(node_uid)
    if machine is not None and machine.power in (Power.UP, Power.STARTING):
        _power_off(state, machine, "stopped")


def _power_off(state: State, machine: Machine, why: str) -> None:
    machine.power, machine.why = Power.STOPPED, why
    kubelet.on_machine_dead(state, machine.cluster_id, machine.node_uid, why)
    _tell(state, What.POWER_OFF, machine, why)
    state.touch(machine.cluster_id, machine.node_uid)


def settled_delete(state: State, node_uid: str) -> Progress | None:
    """The answer to a delete that would change nothing, None if it would change something."""
    machine = state.machines.get(node_uid)
    if machine is None:
        return GONE
    if any(find(state, machine, kind) for kind in (DeleteForgets, DeleteReplyLost)):
        return None
    if machine.wiped_at is not None:
        return _progress(state, machine)
    if state.hosts[machine.host_name].dead_since is not None:
        return Progress(gone=False, wiped=False, why="the host does not answer, so that it cannot be wiped")
    return Progress(gone=False, wiped=False, why=_NOT_OFF) if settled_stop(state, node_uid) is False else None


_NOT_OFF = "it is not confirmed that the machine stopped"


def delete(state: State, node_uid: str) -> Progress:
    """Give the machine back: off, then wiped, then gone."""
    machine = state.machines.get(node_uid)
    if machine is None:
        return GONE
    if strikes(state, machine, DeleteForgets):
        _tell(state, What.DELETE_FAILED, machine)
        raise NothingDone("the machine could not be given back")
    progress = _give_back(state, machine)
    if strikes(state, machine, DeleteReplyLost):
        _tell(state, What.REPLY_LOST, machine, "delete")
        raise ReplyLost("the reply to the delete was lost")
    return progress


def _give_back(state: State, machine: Machine) -> Progress:
    if machine.wiped_at is not None:
        return _progress(state, machine)
    if state.hosts[machine.host_name].dead_since is not None:
        return Progress(gone=False, wiped=False, why="the host does not answer, so that it cannot be wiped")
    if not stop(state, machine.node_uid):
        return Progress(gone=False, wiped=False, why=_NOT_OFF)
    wipes = find(state, machine, Wipes)
    wipe_s = wipes[1].seconds if wipes else state.habits.wipe_s
    machine.wiped_at = state.at(wipe_s)
    _tell(state, What.WIPING, machine)
    if wipe_s <= 0:
        on_wiped(state, machine.node_uid)
        return GONE
    state.plan(machine.wiped_at, "wiped", machine.node_uid)
    return _progress(state, machine)


def _progress(state: State, machine: Machine) -> Progress:
    assert machine.wiped_at is not None
    left_s = (machine.wiped_at - state.now).total_seconds()
    return Progress(gone=False, wiped=False, why=f"being wiped, {left_s:.0f} s left")


def on_wiped(state: State, node_uid: str) -> None:
    machine = state.machines.get(node_uid)
    if machine is None or machine.wiped_at is None or machine.wiped_at > state.now:
        return
    _forget(state, machine)
    _tell(state, What.WIPED, machine)
    state.touch(machine.cluster_id, node_uid)


def _forget(state: State, machine: Machine) -> None:
    del state.machines[machine.node_uid]
    state.pools[machine.pool].pop(machine.node_uid, None)
    host = state.hosts[machine.host_name]
    if host.occupant == machine.node_uid:
        host.occupant = None
    state.given_back[machine.node_uid] = machine.host_name
    while len(state.given_back) > _GIVEN_BACK_KEPT:
        del state.given_back[next(iter(state.given_back))]


def vanish(state: State, host_name: str, forgotten: bool) -> None:
    """The host is gone now, with whatever ran on it."""
    host = state.hosts.setdefault(host_name, Host(host_name))
    if host.dead_since is not None:
        return
    host.dead_since = state.now
    machine = state.machines.get(host.occupant or "")
    if machine is None:
        return
    _tell(state, What.VANISHED, machine)
    if machine.power in (Power.UP, Power.STARTING):
        machine.power, machine.why = Power.STOPPED, "the host vanished"
    kubelet.on_machine_dead(state, machine.cluster_id, machine.node_uid, "host vanished")
    state.touch(machine.cluster_id, machine.node_uid)
    if forgotten:
        _forget(state, machine)


def on_vanish(state: State, host_name: str) -> None:
    behaviour = state.behaviours.get(f"host:{host_name}", {}).get(Vanishes.slot)
    if isinstance(behaviour, Vanishes) and behaviour.at <= state.now:
        vanish(state, host_name, behaviour.forgotten)


def restore(state: State, host_name: str) -> None:
    """A vanished host answers again, powered off."""
    host = state.hosts.setdefault(host_name, Host(host_name))
    host.dead_since = None


def _tell(state: State, what: What, machine: Machine, detail: str = "") -> None:
    state.tell(
        what, cluster_id=machine.cluster_id, node_uid=machine.node_uid, host=machine.host_name, detail=detail
    )
