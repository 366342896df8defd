"""What a webhook is told does not change between tries, whatever becomes of the node meanwhile."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ebbtide.services.details import ClusterOrder, Replay, Role
from ebbtide.services.fleet_file import parse
from ebbtide.simulation import Simulation
from ebbtide.workers.webhook_sender import DELIVERY, NotDelivered

FLEET = """
regions:
  eu-1: {}
pools:
  eu-h100: {region: eu-1, gpu_type: H100_SXM, boot_s: 30, turn_over_s: 20, blocks: {b1: 2}}
"""


class Away:
    """Refuses everything while it is away; keeps every body under its id."""

    def __init__(self) -> None:
        self.away = True
        self.bodies: dict[str, set[bytes]] = {}

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        self.bodies.setdefault(headers[DELIVERY], set()).add(body)
        if self.away:
            raise NotDelivered("answered 503")
        return 200


async def test_an_event_before_the_notice_is_retried_after_it_unchanged(database_url: str) -> None:
    receiver = Away()
    simulated = Simulation(database_url, sender=receiver)
    await simulated.begin(parse(FLEET))
    services = simulated.system.services
    acme, operator = await simulated.caller("acme"), await simulated.caller("ops", Role.OPERATOR)
    await services.webhooks.create(acme, "https://hooks.example/", None)
    await services.clusters.create(
        acme, ClusterOrder("demo", "eu-1", "H100_SXM", 8, num_preemptible_gpus=8), Replay("a")
    )
    await simulated.run_for(120)
    await services.fleet.reclaim(operator, "eu-h100", 1, "why not")
    await simulated.run_for(240)
    receiver.away = False
    await simulated.run_for(900)
    await simulated.system.close()
    told = [json.loads(body) for bodies in receiver.bodies.values() for body in bodies]
    assert [len(bodies) for bodies in receiver.bodies.values()] == [1] * len(receiver.bodies)
    assert {each["type"] for each in told} >= {"TogetherPreempted"}
    for each in told:
        assert (each["deadline"] is not None) == (each["type"] != "TogetherScaledUp"), each
