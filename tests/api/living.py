"""A whole Ebbtide in a thread: API on a socket, loops, simulated fleet, over a database of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import uvicorn

from ebbtide import assembly
from ebbtide.api import server
from ebbtide.clock import AnchoredClock
from ebbtide.playground.behaviours import Boots, Habits
from ebbtide.playground.world import World
from ebbtide.services.details import Role
from ebbtide.services.fleet_file import parse
from ebbtide.settings import Settings

FLEET = """
regions:
  local-1: {}
pools:
  h100:
    region: local-1
    gpu_type: H100_SXM
    price_per_gpu_hour: 2.50
    boot_s: 0
    turn_over_s: 0
    hosts: {count: 4, name: "h100-{n:02}"}
  odd:
    region: local-1
    gpu_type: L40_PCIE
    gpus_per_host: 4
    boot_s: 0
    turn_over_s: 0
    hosts: {count: 2, name: "odd-{n:02}"}
"""


@dataclass(frozen=True)
class Living:
    """Where it answers, and keys: a member of project `acme`, one of `other`, an operator."""

    url: str
    member: str
    project_id: str
    other: str
    operator: str


class _Thread:
    def __init__(self, database_url: str, settings: Settings) -> None:
        self.database_url = database_url
        self.settings = settings
        self.listener = server.bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.living: Living | None = None
        self.failure: BaseException | None = None
        self.ready = threading.Event()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        try:
            asyncio.run(self.main())
        except BaseException as error:  # noqa: BLE001  # whatever it was, the test's own thread raises it
            self.failure = error
        finally:
            self.ready.set()

    async def main(self) -> None:
        clock = AnchoredClock()
        world = World(clock, habits=Habits(control_plane_s=0.2))
        system = assembly.build(self.settings, self.database_url, clock=clock, world=world, alone=True)
        await system.apply_fleet(parse(FLEET, "fleet.yaml"))
        world.set_behaviour(Boots((0.1, 0.1), join_s=0.1, gpus_s=0.1), pool="h100")
        member = await system.first_key(Role.MEMBER, "acme", "Acme")
        other = await system.first_key(Role.MEMBER, "other", "Other")
        operator = await system.first_key(Role.OPERATOR, "ops", "Operators")
        await system.begin()
        self.living = Living(
            self.url, member.secret, member.details.project_id, other.secret, operator.secret
        )
        stop = asyncio.Event()
        web = uvicorn.Server(server.config(system.app(), "127.0.0.1", 0))
        loops = asyncio.create_task(system.run(stop))
        serving = asyncio.create_task(web.serve(sockets=[self.listener]))
        self.ready.set()
        await asyncio.to_thread(self.stop.wait)
        web.should_exit = True
        await serving
        stop.set()
        await loops
        await system.close()


@contextmanager
def living(database_url: str, settings: Settings | None = None) -> Iterator[Living]:
    """Start one, stop it at the end. Small spans, so that a node is there within seconds."""
    quick = settings or replace(Settings(), drain_window_s=5, kill_margin_s=1, observe_every_s=1)
    thread = _Thread(database_url, quick)
    thread.thread.start()
    assert thread.ready.wait(30)
    if thread.failure:
        raise thread.failure
    assert thread.living
    try:
        yield thread.living
    finally:
        thread.stop.set()
        thread.thread.join(30)
    assert not thread.thread.is_alive()
    if thread.failure:
        raise thread.failure
