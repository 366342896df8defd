"""The operator takes nodes back for no claim: the hosts rest before they are lent again."""

from __future__ import annotations

from dataclasses import replace

from ebbtide.services.details import ClusterOrder, Replay, Role
from ebbtide.services.fleet_file import parse
from ebbtide.settings import Settings
from ebbtide.simulation import Simulation

FLEET = """
regions:
  eu-1: {}
pools:
  eu-h100: {region: eu-1, gpu_type: H100_SXM, boot_s: 30, turn_over_s: 20, blocks: {b1: 3}}
"""


async def test_hosts_taken_for_no_claim_rest_for_the_cooldown(database_url: str) -> None:
    settings = replace(Settings(), cooldown_s=600)
    simulated = Simulation(database_url, inline=True, settings=settings)
    await simulated.begin(parse(FLEET))
    services = simulated.system.services
    acme, operator = await simulated.caller("acme"), await simulated.caller("ops", Role.OPERATOR)
    order = ClusterOrder("demo", "eu-1", "H100_SXM", 8, num_preemptible_gpus=16)
    cluster = await services.clusters.create(acme, order, Replay("a"))
    await simulated.run_for(120)
    (taken,) = await services.fleet.reclaim(operator, "eu-h100", 1, "maintenance in rack 3")
    await simulated.run_for(300)
    seen = await services.clusters.retrieve(acme, cluster.id)
    assert seen.allocated_preemptible_gpus == 8
    assert seen.fill is not None
    assert "rest" in seen.fill.pending_reason
    (pool,) = await services.fleet.pools(operator)
    assert pool.counts["free"] == 1
    await simulated.run_for(600)
    assert (await services.clusters.retrieve(acme, cluster.id)).allocated_preemptible_gpus == 16
    assert taken.why is not None
    assert taken.why.startswith("maintenance in rack 3")
    await simulated.system.close()
