"""The story: a borrower, a standard order, the notice, two ways to leave, the refill, and the bill."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ebbtide.cli import output
from ebbtide.cli.demo import stage as on
from ebbtide.cli.demo.narrator import Narrator
from ebbtide.cli.demo.scene import PodPlan, PodTold, Scene
from ebbtide.cli.demo.stage import Json, Stage, Tenant, require

_TICK_S = 5  # how far a removal may trail what it waited for, on a busy machine
_EARLY_EXIT_S = 4
_CLEAR_S = 30.0
_POD_GRACE_S = 300


@dataclass(slots=True)
class Cast:
    """What the acts hand on to each other: the scene, cluster ids, and the nodes that were taken."""

    scene: Scene
    reef: str = ""
    tide: str = ""
    early: str = ""
    late: str = ""
    deadlines: dict[str, datetime] = field(default_factory=dict)


def play(stage: Stage, narrator: Narrator, scene: Scene) -> None:
    """Play all acts. Raises StoryFailed at the first step that does not happen as promised."""
    cast = Cast(scene)
    left = on.clear(stage, scene.join_limit_s + _CLEAR_S)
    if left:
        narrator.remark(f"cleared the stage: {left} clusters of an earlier story are gone")
    _borrow(stage, narrator, cast)
    _work(stage, narrator, cast)
    _order(stage, narrator, cast)
    _drain(stage, narrator, cast)
    _serve(stage, narrator, cast)
    _refill(stage, narrator, cast)
    _bill(stage, narrator, cast)


def _order_body(tenant: Tenant, name: str, driver: str, gpus: int, target: int) -> Json:
    return {
        "cluster_name": name,
        "billing_type": "ON_DEMAND",
        "region": on.REGION,
        "gpu_type": on.GPU_TYPE,
        "num_gpus": gpus,
        "num_preemptible_gpus": target,
        "nvidia_version_id": driver,
        "project_id": tenant.project_id,
    }


def _driver(tenant: Tenant) -> str:
    regions = {region["name"]: region for region in tenant.client.regions()}
    return str(regions[on.REGION]["driver_versions"][0]["id"])


def _borrow(stage: Stage, narrator: Narrator, cast: Cast) -> None:
    """One standard node, then preemptible ones up to a target of three."""
    who = stage.lender
    narrator.chapter("Idle hosts are lent")
    narrator.act(
        who.name, "orders cluster reef: 1 standard node, and a target of 1 preemptible node", who.style
    )
    made = who.client.create_cluster(_order_body(who, "story-reef", _driver(who), 8, 8))
    cast.reef = made["cluster_id"]
    require(made["desired_preemptible_gpus"] == 8, "the answer shows the target of 8 GPUs")
    _await_preemptible(stage, narrator, cast, 1)
    narrator.act(who.name, "raises the target to 3 nodes; the cluster stays up", who.style)
    changed = who.client.update_cluster(cast.reef, {"num_preemptible_gpus": 24})
    require(changed["desired_preemptible_gpus"] == 24, "the answer shows the new target of 24 GPUs")
    cluster = _await_preemptible(stage, narrator, cast, 3)
    require(cluster["status"] == "Ready" and cluster["num_gpus"] == 8, "reef is Ready with 8 standard GPUs")
    narrator.checked("reef is Ready: 8 standard GPUs, 24 of 24 preemptible GPUs at half the price")
    narrator.commands("see it yourself, in other terminals:", cast.scene.watch(cluster))
    if cast.scene.watch_s:
        narrator.remark(f"it goes on in {cast.scene.watch_s:g} s ...")
        stage.pause(cast.scene.watch_s)


def _await_preemptible(stage: Stage, narrator: Narrator, cast: Cast, nodes: int) -> Json:
    seen: set[str] = set()

    def look() -> Json | None:
        cluster = stage.lender.client.cluster(cast.reef)
        for node in cluster["gpu_worker_nodes"]:
            if node["status"] == "Running" and node["node_id"] not in seen:
                seen.add(node["node_id"])
                narrator.sees(f"{node['node_id']} joined")
        ready = cluster["status"] == "Ready" and len(on.preemptible_running(cluster)) == nodes
        return cluster if ready and cluster["allocated_preemptible_gpus"] == 8 * nodes else None

    before = stage.lender.client.cluster(cast.reef)
    seen |= {node["node_id"] for node in before["gpu_worker_nodes"] if node["status"] == "Running"}
    return stage.until(f"{nodes} preemptible nodes run in reef", look, cast.scene.join_limit_s)


def _work(stage: Stage, narrator: Narrator, cast: Cast) -> None:
    """A pod on every preemptible node. The two youngest nodes are the ones that a claim takes."""
    cluster = stage.lender.client.cluster(cast.reef)
    nodes = sorted(on.preemptible_running(cluster), key=_running_since)
    oldest, cast.early, cast.late = (node["node_id"] for node in nodes)
    plans = [
        PodPlan("trainer-0", oldest, _POD_GRACE_S, _EARLY_EXIT_S),
        PodPlan("trainer-1", cast.early, _POD_GRACE_S, _EARLY_EXIT_S),
        PodPlan("stubborn", cast.late, _POD_GRACE_S, None),
    ]
    cast.scene.run(cluster, plans)
    where = {plan.node for plan in plans}
    stage.until("all three pods run", lambda: where <= cast.scene.running(cluster), 30)
    narrator.sees(
        f"pods run on all three: two trainers that save within {_EARLY_EXIT_S} s, and one pod deaf to SIGTERM"
    )
    stage.pause(3)  # let an observation see that the nodes are busy


def _running_since(node: Json) -> str:
    """When it began to run; the nodes that came after the target was raised are the younger ones."""
    return next(
        str(change["transition_time"])
        for change in node["phase_transitions"]
        if change["phase"] == "NODE_PHASE_RUNNING"
    )


def _order(stage: Stage, narrator: Narrator, cast: Cast) -> None:
    """A standard order that needs two hosts: promised at once, and two nodes get notice."""
    who = stage.standard
    narrator.chapter("A standard order needs two of them back")
    narrator.act(who.name, "orders cluster tide: 2 standard nodes. No host is free", who.style)
    before = narrator.since_begin_s()
    made = who.client.create_cluster(_order_body(who, "story-tide", _driver(who), 16, 0))
    cast.tide = made["cluster_id"]
    took_ms = round((narrator.since_begin_s() - before) * 1000)
    require(str(made["status"]).startswith("WaitingFor"), "tide waits for its hosts")
    narrator.checked(f"promised inside the request, in {took_ms} ms; tide is {made['status']}")
    cluster = stage.lender.client.cluster(cast.reef)
    taken = {node["node_id"] for node in on.draining(cluster)}
    require(taken == {cast.early, cast.late}, f"the two youngest nodes got notice, not {sorted(taken)}")
    require(cluster["desired_preemptible_gpus"] == 24, "the target stays")
    for node in taken:
        require("TogetherPreempted" in on.reasons(cluster, node), f"{node} has its TogetherPreempted event")
    _read_deadlines(stage, narrator, cast)


def _read_deadlines(stage: Stage, narrator: Narrator, cast: Cast) -> None:
    for node in stage.operator.nodes(cast.reef):
        if node["phase"] == "DRAINING":
            deadline, noticed = on.instant(node["deadline"]), on.instant(node["draining_at"])
            span_s = round((deadline - noticed).total_seconds())
            require(
                abs(span_s - stage.drain_window_s) <= 1,
                f"{node['name']} has the whole window, not {span_s} s",
            )
            cast.deadlines[node["name"]] = deadline
            narrator.sees(f"{node['name']} got notice: TogetherPreempted, {span_s} s until removal")
    require(set(cast.deadlines) == {cast.early, cast.late}, "both nodes have a deadline")
    seen: dict[str, PodTold] = {}
    cluster = stage.lender.client.cluster(cast.reef)
    limit_s = 0.75 * stage.drain_window_s  # far beyond what it takes: a busy machine is no failure
    told = stage.until("the pods on both nodes got SIGTERM", lambda: _told(cluster, cast, seen), limit_s)
    grace_s = min((pod.ends_by - pod.told_at).total_seconds() for pod in told)
    if cast.scene.shows_notices:
        late, deadline = cast.late, cast.deadlines[cast.late]
        shown = stage.until(
            f"{late} shows its notice", lambda: cast.scene.announced(cluster, late, deadline), limit_s
        )
        narrator.sees(shown)
    narrator.sees(
        f"their pods got SIGTERM, their own grace of {_POD_GRACE_S} s cut to the {grace_s:.0f} s that fit"
    )


def _told(cluster: Json, cast: Cast, seen: dict[str, PodTold]) -> list[PodTold] | None:
    """A pod of each node that has been told.

    Kept over several looks: one that was told may be gone at the next.
    """
    for pod in cast.scene.told(cluster):
        if pod.node in (cast.early, cast.late):
            seen[pod.node] = pod
    return list(seen.values()) if len(seen) == 2 else None


def _drain(stage: Stage, narrator: Narrator, cast: Cast) -> None:
    """One node leaves when its pod has saved its work, the other at the deadline. Not before, not later."""
    narrator.chapter("Two ways to leave")
    window_s = stage.drain_window_s
    early = _await_left(stage, cast, cast.early, window_s)
    require(
        early < cast.deadlines[cast.early] - timedelta(seconds=2),
        "the early node left well before its deadline",
    )
    spare_s = round((cast.deadlines[cast.early] - early).total_seconds())
    narrator.sees(f"{cast.early}: its trainer saved and exited; removed at once, {spare_s} s early")
    cluster = stage.lender.client.cluster(cast.reef)
    require(
        cast.late in {node["node_id"] for node in on.draining(cluster)}, "the other node still has its time"
    )
    narrator.remark(f"the deaf pod keeps the other node until its deadline ({window_s} s after the notice)")
    late = _await_left(stage, cast, cast.late, window_s + 2 * _TICK_S)
    off_s = (late - cast.deadlines[cast.late]).total_seconds()
    require(-1 <= off_s <= _TICK_S, f"the late node left at its deadline, not {off_s:+.0f} s off")
    narrator.sees(f"{cast.late}: deadline reached; removed, whatever its pod does")
    narrator.checked("nobody was cut short, and nobody overstayed; the target is still 24 GPUs")


def _await_left(stage: Stage, cast: Cast, node: str, limit_s: float) -> datetime:
    """When the node left the cluster."""

    def look() -> datetime | None:
        for gone in stage.lender.client.cluster(cast.reef).get("deleted_gpu_worker_nodes", []):
            if gone["node_id"] == node and gone.get("deleted_at"):
                return on.instant(gone["deleted_at"])
        return None

    return stage.until(f"{node} leaves reef", look, limit_s)


def _serve(stage: Stage, narrator: Narrator, cast: Cast) -> None:
    """The order is served with the hosts that came free."""
    cluster = stage.until("tide is Ready", lambda: _ready(stage.standard, cast.tide), cast.scene.join_limit_s)
    running = [node for node in cluster["gpu_worker_nodes"] if node["status"] == "Running"]
    require(len(running) == 2 and not any(map(on.is_preemptible, running)), "tide runs on two standard nodes")
    narrator.act(stage.standard.name, "has tide Ready on 2 standard nodes", stage.standard.style)
    reef = stage.lender.client.cluster(cast.reef)
    require(reef["status"] == "Ready", "reef stayed Ready all the time")
    require(reef["desired_preemptible_gpus"] == 24, "reef kept its target")
    require(reef["allocated_preemptible_gpus"] == 8, "reef has one preemptible node left")
    standard = [node for node in reef["gpu_worker_nodes"] if not on.is_preemptible(node)]
    require(
        len(standard) == 1 and standard[0]["status"] == "Running", "reef's standard node was never touched"
    )
    narrator.checked(
        "reef stayed Ready: its standard node was never touched, 8 of 24 preemptible GPUs are left"
    )


def _ready(tenant: Tenant, cluster_id: str) -> Json | None:
    cluster = tenant.client.cluster(cluster_id)
    return cluster if cluster["status"] == "Ready" else None


def _refill(stage: Stage, narrator: Narrator, cast: Cast) -> None:
    """A host comes free, and goes to the unmet target by itself."""
    who = stage.standard
    narrator.chapter("A host comes free")
    narrator.act(who.name, "scales tide down to 1 node", who.style)
    changed = who.client.update_cluster(cast.tide, {"num_gpus": 8})
    require(changed["num_gpus"] == 8, "the answer shows 8 GPUs")
    limit_s = cast.scene.join_limit_s + stage.cooldown_s
    cluster = stage.until("reef is refilled to 16 GPUs", lambda: _refilled(stage, cast), limit_s)
    known = {cast.early, cast.late}
    names = {node["node_id"] for node in on.preemptible_running(cluster)}
    require(not names & known, "node names are never used again")
    narrator.sees("reef got it back as a preemptible node, without being asked: 16 of 24 GPUs")
    narrator.checked("the refill took nothing from anybody; tide keeps its node")
    tide = who.client.cluster(cast.tide)
    require(tide["status"] == "Ready" and tide["num_gpus"] == 8, "tide is Ready with 8 GPUs")


def _refilled(stage: Stage, cast: Cast) -> Json | None:
    cluster = stage.lender.client.cluster(cast.reef)
    return cluster if cluster["allocated_preemptible_gpus"] == 16 else None


def _bill(stage: Stage, narrator: Narrator, cast: Cast) -> None:
    """Every node's time to the second, preemptible time at half the price."""
    narrator.chapter("The bill")
    lines = stage.until("the meter has sealed the story's time", lambda: _metered(stage, cast), 30)
    for line in lines:
        _check_line(line)
    early = next(line for line in lines if line["node"] == cast.early)
    ran_s = _ran_s(stage, cast, cast.early)
    require(
        abs(early["node_seconds"] - ran_s) <= 1, f"{cast.early} ran {ran_s} s and is billed that, exactly"
    )
    standard = next(line for line in lines if line["compute_class"] == "standard")
    lent = next(line for line in lines if line["compute_class"] == "preemptible")
    rates = (standard["microdollars_per_gpu_hour"], lent["microdollars_per_gpu_hour"])
    require(rates[0] == 2 * rates[1], "preemptible time costs half of standard time")
    for line in lines:
        span = output.span(line["node_seconds"])
        narrator.sees(f"{line['node']:<32} {span:>7}  {output.dollars(line['microdollars'])}")
    saved = sum(line["saved_microdollars"] for line in lines)
    narrator.checked(
        f"{output.dollars(rates[0])} and {output.dollars(rates[1])} per GPU-hour, to the second; "
        f"reef saved {output.dollars(saved)}"
    )


def _metered(stage: Stage, cast: Cast) -> list[Json] | None:
    usage = stage.lender.client.usage(cluster_id=cast.reef, by="node")
    lines: list[Json] = [line for line in usage["lines"] if line["gpu_seconds"] > 0]
    return lines if {cast.early, cast.late} <= {line["node"] for line in lines} and len(lines) >= 5 else None


def _check_line(line: Json) -> None:
    rate, charge = line["microdollars_per_gpu_hour"], line["microdollars"]
    require(rate is not None and charge is not None, f"{line['node']} has a price")
    require(
        abs(charge * 3600 - line["gpu_seconds"] * rate) <= 3600, f"{line['node']}: charge is time times rate"
    )
    require(line["gpu_seconds"] == 8 * line["node_seconds"], f"{line['node']}: eight GPUs all the time")


def _ran_s(stage: Stage, cast: Cast, node: str) -> int:
    gone = stage.lender.client.cluster(cast.reef)["deleted_gpu_worker_nodes"]
    found = next(each for each in gone if each["node_id"] == node)
    return round((on.instant(found["deleted_at"]) - on.instant(_running_since(found))).total_seconds())
