"""The core scenarios, short, to be interrupted anywhere; and what is compared at their end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ebbtide.playground.behaviours import BootFails, KubeletDoublesGrace, Obeys
from ebbtide.playground.facts import What
from ebbtide.settings import Settings
from tests.scenarios.imported import imported
from tests.scenarios.story import GPUS, JOINED_BY_S, Cluster, Story

HOSTS = 4
WINDOW_S = 40
# Times do not matter here: everything happens soon, so that a story has few steps.
SETTINGS = Settings(
    drain_window_s=WINDOW_S,
    release_margin_s=5,
    join_limit_s=60,
    cooldown_s=10,
    fill_backoff_s=5,
    leaks_every_s=300,
    meter_every_s=300,
)


@dataclass(frozen=True, slots=True)
class CoreStory:
    """given: what is there before anything is interrupted. then: what may be interrupted anywhere."""

    given: Callable[[Story], Awaitable[Cluster | None]]
    then: Callable[[Story, Cluster | None], Awaitable[None]]


async def _nothing(story: Story) -> None:
    return None


async def _filled(story: Story) -> Cluster:
    acme = await story.orders("acme", target=2 * GPUS)
    await story.caller("beta")
    await story.passes(JOINED_BY_S)
    assert await acme.allocated() == 2 * GPUS
    return acme


async def _create_and_fill(story: Story, _: Cluster | None) -> None:
    await story.orders("acme", target=2 * GPUS)
    await story.passes(JOINED_BY_S)


async def _reclaim(story: Story, acme: Cluster | None) -> None:
    """One obedient and one stubborn pod; beta's order takes the free host and both nodes."""
    assert acme is not None
    obedient, stubborn = await acme.running()
    acme.runs(obedient, Obeys(12))
    acme.runs(stubborn, KubeletDoublesGrace())
    await story.orders("beta", "standard", gpus=3 * GPUS)
    await story.passes(WINDOW_S + 2 * JOINED_BY_S)


async def _release(story: Story, acme: Cluster | None) -> None:
    """One node's pod is guarded by a budget, the other one goes when asked."""
    assert acme is not None
    guarded, open_ = await acme.running()
    acme.runs(guarded, Obeys(5), grace_s=10, name="guarded")
    acme.runs(open_, Obeys(8), grace_s=20)
    story.world.budget(acme.id, "keep-all", "guarded")
    await acme.changes(target=0)
    await story.passes(WINDOW_S + JOINED_BY_S)


async def _delete(story: Story, acme: Cluster | None) -> None:
    assert acme is not None
    for node in await acme.running():
        acme.runs(node, KubeletDoublesGrace())
    await acme.is_deleted()
    await story.passes(2 * JOINED_BY_S)


async def _lost_host(story: Story, acme: Cluster | None) -> None:
    assert acme is not None
    first, _ = await acme.running()
    acme.runs(first, Obeys(5))
    story.world.vanish(first.host_name or "")
    await story.passes(3 * JOINED_BY_S)


async def _failing_boot(story: Story, acme: Cluster | None) -> None:
    """The last free host does not boot: tried, backed off from, tried again, and set aside."""
    assert acme is not None
    (free,) = [host.name for host in await story.hosts() if host.node_uid is None]
    story.world.set_behaviour(BootFails(10), host=free)
    await acme.changes(target=3 * GPUS)
    await story.passes(5 * JOINED_BY_S)


async def _standard_moves(story: Story) -> Cluster:
    """Two standard nodes, a preemptible one of the same tenant, and one free host."""
    acme = await story.orders("acme", gpus=2 * GPUS, target=GPUS)
    await story.operator()
    await story.passes(JOINED_BY_S)
    assert await acme.allocated() == GPUS
    return acme


async def _maintenance(story: Story, acme: Cluster | None) -> None:
    """A preemptible node's host, then two standard ones' (a free host first, then one that was lent), and
    back.
    """
    assert acme is not None
    (lent,) = await acme.running()
    acme.runs(lent, Obeys(8))
    first, second = await acme.running_standard()
    await story.drains(lent.host_name or "")
    await story.passes(WINDOW_S + 20)
    await story.returns(lent.host_name or "")
    await story.passes(2 * JOINED_BY_S)
    await story.drains(first.host_name or "")
    await story.passes(5)
    await story.drains(second.host_name or "")
    await story.passes(WINDOW_S + 2 * JOINED_BY_S)
    await story.returns(first.host_name or "")
    await story.returns(second.host_name or "")
    await story.passes(2 * JOINED_BY_S)


async def _imported(story: Story) -> Cluster:
    """A cluster that was there before, with two preemptible nodes of ours."""
    await story.caller("acme")
    reef = await imported(story, target=2 * GPUS)
    assert await reef.allocated() == 2 * GPUS
    return reef


async def _detach(story: Story, reef: Cluster | None) -> None:
    """Nodes drain, one in time and one not; then nothing of ours is left in it."""
    assert reef is not None
    obedient, stubborn = await reef.running()
    reef.runs(obedient, Obeys(8), grace_s=20)
    reef.runs(stubborn, KubeletDoublesGrace())
    await reef.is_deleted()
    await story.passes(WINDOW_S + 2 * JOINED_BY_S)
    assert story.world.nodes(reef.id) == ()


CORE = {
    "create and fill": CoreStory(_nothing, _create_and_fill),
    "reclaim": CoreStory(_filled, _reclaim),
    "release": CoreStory(_filled, _release),
    "delete": CoreStory(_filled, _delete),
    "detach": CoreStory(_imported, _detach),
    "lost host": CoreStory(_filled, _lost_host),
    "failing boot": CoreStory(_filled, _failing_boot),
    "maintenance": CoreStory(_standard_moves, _maintenance),
}


Summary = dict[str, object]


def summary(story: Story) -> Summary:
    """What must come out the same, whatever happened on the way. No ids, no names."""
    ask = story.watch.ask
    world = Counter(fact.what for fact in story.world.facts())
    counted = (What.CREATED, What.NOTICE, What.SIGTERM, What.POWER_OFF, What.WIPED, What.ADMITTED)
    return {
        "clusters": ask("SELECT name, phase FROM clusters ORDER BY name"),
        "nodes": ask("""
            SELECT c.name, n.compute_class, n.phase, n.end_reason, n.drain_kind, count(*) AS n
            FROM nodes n LEFT JOIN clusters c ON c.id = n.cluster_id
            GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
        """),
        "drains": ask("""
            SELECT extract(epoch FROM deadline - draining_at)::int AS window_s, ends_at = deadline AS in_time,
                   count(*) AS n
            FROM nodes WHERE draining_at IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2
        """),
        "events": ask("""
            SELECT c.name, e.reason, count(*) AS n
            FROM lifecycle_events e JOIN clusters c ON c.id = e.cluster_id
            GROUP BY 1, 2 ORDER BY 1, 2
        """),
        "bill": ask("""
            SELECT c.name, i.compute_class, i.end_s - i.start_s AS seconds_of_an_ended_one, count(*) AS n
            FROM intervals i JOIN clusters c ON c.id = i.cluster_id GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
        """),
        "ledger": ask("SELECT kind, count(*) AS n FROM ledger_entries GROUP BY 1"),
        # One whose nodes are all gone is ended now and then, and at each start.
        "claims": ask("""
            SELECT CASE WHEN EXISTS (SELECT 1 FROM nodes n WHERE n.claim_id = c.id AND n.phase NOT IN
                                     ('REMOVING', 'REMOVED')) THEN state ELSE 'ended' END AS state,
                   hosts, count(*) AS n
            FROM claims c GROUP BY 1, 2 ORDER BY 1, 2
        """),
        "maintenances": ask(
            "SELECT ended_how, jsonb_array_length(disturbed) AS n FROM maintenances ORDER BY no"
        ),
        "hosts": ask(
            "SELECT state, node_uid IS NULL AS free, count(*) AS n FROM hosts GROUP BY 1, 2 ORDER BY 1, 2"
        ),
        "world": {what.value: world[what] for what in counted},
    }
