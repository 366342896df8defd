"""A cluster that was there before, in stories."""

from __future__ import annotations

from ebbtide.services.details import ImportOrder, Replay
from tests.scenarios.story import GPU_TYPE, JOINED_BY_S, MINUTE, REGION, Cluster, Story

OWN = {"old-a": 8, "old-b": 8}
SERVER = "https://reef.playground.invalid:6443"


def a_kubeconfig(server: str = SERVER) -> str:
    return f"apiVersion: v1\nclusters:\n- cluster:\n    server: {server}\n"


async def imports(
    story: Story, *, target: int = 0, server: str = SERVER, name: str = "reef", selector: str = "pool=gpu"
) -> Cluster:
    """The operator imports a cluster for the tenant's project."""
    project = (await story.caller("acme")).project_id
    order = ImportOrder(
        name,
        REGION,
        GPU_TYPE,
        a_kubeconfig(server),
        selector,
        num_preemptible_gpus=target,
        project_id=project,
    )
    operator = await story.operator()
    made = await story.asks(
        lambda services: services.imports.create(operator, order, Replay(f"{name}/{server}"))
    )
    return Cluster(story, "acme", made.id)


async def imported(story: Story, **how: int) -> Cluster:
    """Imported, standing, seen, its target met."""
    reef = await imports(story, **how)
    story.world.stand_up(reef.id, OWN)
    await story.passes(JOINED_BY_S + MINUTE)
    return reef
