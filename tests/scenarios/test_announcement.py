"""The announcement, as an operator would say it, in virtual time."""

from __future__ import annotations

from datetime import timedelta

from ebbtide.core.nodes import Phase
from ebbtide.playground.behaviours import IgnoresSigterm, Obeys
from ebbtide.services.details import ClusterOrder, Replay
from ebbtide.services.fleet_file import parse
from ebbtide.simulation import Simulation

FLEET = """
regions:
  eu-1: {}
pools:
  eu-h100:
    region: eu-1
    gpu_type: H100_SXM
    price_per_gpu_hour: 2.00
    boot_s: 30
    turn_over_s: 20
    blocks: {b1: 4}
"""


def order(name="demo", gpus=8, target=24):
    return ClusterOrder(
        cluster_name=name, region="eu-1", gpu_type="H100_SXM", num_gpus=gpus, num_preemptible_gpus=target,
        cuda_version=None, nvidia_driver_version=None,
    )


async def test_story(database_url):
    sim = Simulation(database_url)
    await sim.begin(parse(FLEET))
    acme = await sim.caller("acme")
    beta = await sim.caller("beta")
    clusters = sim.system.services.clusters
    made = await clusters.create(acme, order(), Replay("h1"))
    await sim.run_for(120)
    seen = await clusters.retrieve(acme, made.id)
    print(seen.phase, seen.allocated_preemptible_gpus, [(n.name, n.phase, n.outcome) for n in seen.nodes])
    assert seen.phase == "READY"
    assert seen.allocated_preemptible_gpus == 24
    early, never = [n for n in seen.nodes if n.compute_class == "preemptible"][:2]
    await sim.run_for(600)
    sim.world.run_pods(made.id, early.name, 1, Obeys(60), 300, "early")
    sim.world.run_pods(made.id, never.name, 1, IgnoresSigterm(), 300, "never")
    for n in [n for n in seen.nodes if n.compute_class == "preemptible"][2:]:
        sim.world.run_pods(made.id, n.name, 1, Obeys(60), 300, "third")
    await sim.run_for(30)
    t0 = sim.now
    other = await clusters.create(beta, order("other", gpus=16, target=0), Replay("h2"))
    await sim.run_for(400)
    seen = await clusters.retrieve(acme, made.id)
    print(seen.phase, seen.allocated_preemptible_gpus, [(n.name, n.phase, n.outcome, (n.removed_at - t0)) for n in seen.deleted_nodes])
    print([(e.reason, e.message, e.at - t0) for e in seen.events])
    o = await clusters.retrieve(beta, other.id)
    print(o.phase, [(n.name, n.phase, n.outcome) for n in o.nodes])
    u = await sim.system.services.usage.read(acme, t0 - timedelta(days=1), t0 + timedelta(days=1))
    for line in u.lines: print(line)
    assert o.phase == "READY"
    await sim.system.close()
