"""What a tenant whose node is taken may read of the demand behind it."""

from __future__ import annotations

from ebbtide.services.details import ClusterOrder, Replay, Role
from ebbtide.services.fleet_file import parse
from ebbtide.simulation import Simulation

FLEET = """
regions:
  eu-1: {}
pools:
  eu-h100: {region: eu-1, gpu_type: H100_SXM, boot_s: 30, turn_over_s: 20, blocks: {b1: 3}}
"""


async def test_a_claims_holder_is_not_named(database_url: str) -> None:
    simulated = Simulation(database_url, inline=True)
    await simulated.begin(parse(FLEET))
    services = simulated.system.services
    acme, operator = await simulated.caller("acme"), await simulated.caller("ops", Role.OPERATOR)
    order = ClusterOrder("demo", "eu-1", "H100_SXM", 8, num_preemptible_gpus=16)
    cluster = await services.clusters.create(acme, order, Replay("a"))
    await simulated.run_for(120)
    claim = await services.claims.create(operator, "eu-h100", 2, "order-4711", "Secret Customer Ltd")
    assert len(claim.draining) == 2
    await simulated.run_for(30)
    seen = await services.clusters.retrieve(acme, cluster.id)
    told = [event.message for event in seen.events if event.reason == "TogetherPreempted"]
    assert len(told) == 2
    assert all("for a claim of 2 hosts" in message for message in told)
    assert "Secret" not in repr(seen)
    assert "4711" not in repr(seen)
    notices = [fact for fact in simulated.world.facts() if "Secret" in repr(fact)]
    assert notices == []
    await simulated.system.close()
