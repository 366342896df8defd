"""Machines by the operator's own programs: one for each verb. docs/exec-provider.md has the protocol.

What a program says counts only as far as it can be checked: "gone" without saying what wiped the host, or
"up" without the wipe that was asked for, is no answer. At most one program at a time runs for a node,
whichever worker started it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, replace
from math import ceil
from typing import Any, TypeVar

from ebbtide.providers.answers import Changes, read_deletion, read_list, read_machine, read_stopped
from ebbtide.providers.base import (
    ControlPlane,
    Deletion,
    Instance,
    InstanceOrder,
    InstanceState,
    OutOfCapacity,
    Permanent,
    Transient,
)
from ebbtide.providers.memory import Memory, Noted, Remembered
from ebbtide.providers.programs import Program, Run, one_line

T = TypeVar("T")

NO_CAPACITY, NEVER = 69, 78  # exit codes, as sysexits.h has them; 75 and every other: try again later
NEEDED = ("create", "delete")  # the others make it better
VERBS = ("create", "status", "stop", "delete", "list", "reboot")
SLOT_WAIT_S = 5
HOLD_MARGIN_S = 5  # a run that is killed at its limit is over by then, and what it left is written
MOST_LIST_BYTES = 16_777_216
NO_CONTROL_PLANES = "programs make no control planes: import clusters with `ebbtide clusters import`"


class ExecProvider:
    """A `Provider` that runs a program for each verb.

    programs: by verb; create and delete are needed. Without `status`, create is asked again until the machine
              is up, and is believed from then on. Without `stop`, delete stops. Without `list`, what is
              remembered is listed. Without `reboot` machines are not restarted in place.
    at_once:  so many programs that act may run at once, and so many that look
    slot_wait_s: how long one waits for its place while so many run
    """

    def __init__(
        self,
        programs: Mapping[str, Program],
        memory: Memory,
        *,
        at_once: int,
        slot_wait_s: float = SLOT_WAIT_S,
    ) -> None:
        self._programs = programs
        self._memory = memory
        self._at_once = at_once
        self._slot_wait_s = slot_wait_s
        self._acts = asyncio.Semaphore(at_once)
        self._looks = asyncio.Semaphore(at_once)

    async def create(self, order: InstanceOrder) -> Instance:
        held = await self._memory.remember(order, self._hold_s("create"))
        if held.gone:
            await self._memory.let_go(held)
            raise Permanent("the node was given back already; no machine is started for it any more")
        return await self._start(held)

    async def _start(self, held: Remembered) -> Instance:
        made = await self._ask("create", held, read_machine, join=dict(held.order.join))
        if made is None:
            raise Transient(f"{self._programs['create'].what} answered not_found; it is to start the machine")
        return made

    async def status(self, node_uid: str) -> Instance | None:
        verb = "status" if "status" in self._programs else "create"
        held = await self._recall(node_uid, verb)
        if held is None:
            return None
        if verb == "status":
            return await self._ask("status", held, read_machine, join=dict(held.order.join))
        if held.state in (None, InstanceState.STARTING):
            return await self._start(held)
        await self._memory.let_go(held)
        return as_remembered(held)

    async def stop(self, node_uid: str) -> bool:
        verb = "stop" if "stop" in self._programs else "delete"
        held = await self._recall(node_uid, verb)
        if held is None:
            return True
        if verb == "stop":
            return await self._ask("stop", held, read_stopped)
        return (await self._ask("delete", held, read_deletion)).gone

    async def reboot(self, node_uid: str, ref: str) -> Instance | None:
        return await self._restart(node_uid, ref, power=False)

    async def power_cycle(self, node_uid: str, ref: str) -> Instance | None:
        return await self._restart(node_uid, ref, power=True)

    async def _restart(self, node_uid: str, ref: str, *, power: bool) -> Instance | None:
        verb = "reboot" if "reboot" in self._programs else "status"
        held = await self._recall(node_uid, verb)
        if held is None:
            return None
        if verb != "reboot":
            await self._memory.let_go(held)
            raise Permanent(
                "machines of this fleet are not restarted in place: EBBTIDE_EXEC_REBOOT names no program"
            )
        return await self._ask("reboot", held, read_machine, ref=ref, power=power)

    async def delete(self, node_uid: str) -> Deletion:
        held = await self._memory.recall(node_uid, self._hold_s("delete"))
        if held is None:
            await self._memory.bury(node_uid)
            return Deletion(gone=True, wiped=True, untouched=True)
        if held.gone:
            await self._memory.let_go(held)
            never_was = not held.order.node_name  # it was buried, not deleted
            return Deletion(gone=True, wiped=True, wiped_by=held.wiped_by, untouched=never_was)
        return await self._ask("delete", held, read_deletion)

    async def create_control_plane(self, cluster_id: str, name: str) -> ControlPlane:
        raise Permanent(NO_CONTROL_PLANES)

    async def control_plane(self, cluster_id: str) -> ControlPlane | None:
        return None

    async def delete_control_plane(self, cluster_id: str) -> bool:
        return True

    async def list_control_planes(self) -> list[str]:
        return []

    async def list(self, pool: str) -> list[Instance]:
        if "list" not in self._programs:
            return [as_remembered(one) for one in await self._memory.listed(pool)]
        program = self._programs["list"]
        async with self._slot(self._looks):
            run = await program.run({"verb": "list", "pool": pool, "limit_s": program.limit_s})
        check_end("list", run, program.limit_s)
        instances = read_list(run.what, run.answer())
        await self._memory.found(pool, instances)
        return instances

    async def _recall(self, node_uid: str, verb: str) -> Remembered | None:
        """The node's machine, held for a run; None when it never was, or is gone."""
        held = await self._memory.recall(node_uid, self._hold_s(verb))
        if held is None or not held.gone:
            return held
        await self._memory.let_go(held)
        return None

    async def _ask(
        self,
        verb: str,
        held: Remembered,
        read: Callable[[str, Mapping[str, object], Remembered], tuple[T, Changes]],
        **more: object,
    ) -> T:
        """One run for a held node. What it says is kept with the node, also where it is no answer."""
        program = self._programs[verb]
        noted: Noted | None = None
        try:
            async with self._slot(self._looks if verb == "status" else self._acts):
                run = await program.run({**facts(verb, held), "limit_s": program.limit_s, **more})
            noted = Noted(verb, run.code, run.said)
            check_end(verb, run, program.limit_s)
            value, changes = read(run.what, run.answer(), held)
            noted = replace(noted, **changes)
            return value
        finally:
            if noted is None:
                await self._memory.let_go(held)
            else:
                await self._memory.note(held, noted)

    def _hold_s(self, verb: str) -> int:
        return self._programs[verb].limit_s + ceil(self._slot_wait_s) + HOLD_MARGIN_S

    @contextlib.asynccontextmanager
    async def _slot(self, slots: asyncio.Semaphore) -> AsyncIterator[None]:
        """One of the places for programs. Raises Transient when none comes free in time."""
        try:
            async with asyncio.timeout(self._slot_wait_s):
                await slots.acquire()
        except TimeoutError:
            raise Transient(f"{self._at_once} programs run already, and none ended in time") from None
        try:
            yield
        finally:
            slots.release()


def as_remembered(one: Remembered) -> Instance:
    """A machine as its programs last answered."""
    return Instance(
        instance_id=one.instance_id or one.order.host_name,
        node_uid=one.order.node_uid,
        host_name=one.order.host_name,
        state=InstanceState(one.state or InstanceState.STARTING),
        address=one.address,
        wiped_by=one.wiped_first_by,
    )


def facts(verb: str, held: Remembered) -> dict[str, Any]:
    """What a program is told of a node. The join data is left to the verbs that need it."""
    order = asdict(held.order)
    order.pop("join")
    known = {"instance_id": held.instance_id, "address": held.address, "handle": held.handle}
    return {"verb": verb, **order, **known}


def check_end(verb: str, run: Run, limit_s: int) -> None:
    """Raises what a program's end says, unless it ended well."""
    if run.code == 0:
        return
    said = one_line(next((line for line in reversed(run.said.splitlines()) if line.strip()), ""))
    if run.code is None:
        raise Transient(f"{run.what} took longer than {limit_s} s{': ' + said if said else ''}")
    if run.code == NEVER:
        raise Permanent(said or f"{run.what} says that this will never work")
    if run.code == NO_CAPACITY and verb == "create":
        raise OutOfCapacity(said or f"{run.what} says that there is no machine")
    if run.out is not None:
        raise Transient(f"{run.what} ended with {run.code}{': ' + said if said else ''}")
