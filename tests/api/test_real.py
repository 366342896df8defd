"""The API over the real services on a manual clock: what tenants and operators see while a story happens."""

from __future__ import annotations

from collections import Counter

from .conftest import error_of
from .living import FLEET
from .stories import CLUSTERS, CREATE, Story, client_of, strictly


async def test_a_reclaim_as_its_tenant_reads_it(story: Story) -> None:
    cluster = await story.create(num_preemptible_gpus=24, project_id=story.project)
    assert (cluster["status"], cluster["allocated_preemptible_gpus"]) == ("WaitingForControlPlaneNodes", 0)
    await story.simulated.run_for(60)
    ready = await story.see(cluster)
    assert (ready["status"], ready["allocated_preemptible_gpus"], len(ready["gpu_worker_nodes"])) == (
        "Ready",
        24,
        4,
    )
    names = Counter(node["node_id"].rsplit("-", 2)[0] for node in ready["gpu_worker_nodes"])
    assert names == {"gpu-dp": 1, "gpu-preemptible-dp": 3}
    pods = {"count": 3, "gpus": 8, "behaviour": "ignores_sigterm", "grace_s": 300, "class": "preemptible"}
    added = await story.operator.post(f"/v1/playground/clusters/{cluster['cluster_id']}/pods", json=pods)
    assert [pod["state"] for pod in added.json()["pods"]] == ["running"] * 3

    await story.create(story.other, cluster_name="standard")
    noticed = await story.see(cluster)
    marked = [node["node_id"] for node in noticed["gpu_worker_nodes"] if node.get("marked_for_deletion")]
    assert len(marked) == 1
    assert noticed["allocated_preemptible_gpus"] == 24
    reasons = [event["reason"] for event in noticed["node_lifecycle_events"] if event["node_id"] == marked[0]]
    assert reasons[-2:] == ["TogetherPreempted", "TogetherPreemptionNotified"]

    await story.simulated.run_for(301)
    after = await story.see(cluster)
    assert (after["desired_preemptible_gpus"], after["allocated_preemptible_gpus"]) == (24, 16)
    gone = after["deleted_gpu_worker_nodes"]
    assert [node["node_id"] for node in gone] == marked
    assert gone[0]["deleted_at"]
    assert gone[0]["phase_transitions"][-1]["phase"] == "NODE_PHASE_SUCCEEDED"
    usage = (await story.tenant.get("/v1/usage", params={"by": "node"})).json()
    mine = [line for line in usage["lines"] if line["node"] == marked[0]]
    # Half price: what it cost is what it saved, each rounded once.
    assert abs(mine[0]["microdollars"] - mine[0]["saved_microdollars"]) <= 1


async def test_a_tenant_sees_nothing_of_another(story: Story) -> None:
    cluster = await story.create()
    path = f"{CLUSTERS}/{cluster['cluster_id']}"
    for method, where in (
        ("GET", path),
        ("PUT", path),
        ("DELETE", path),
        ("GET", f"/v1/clusters/{cluster['cluster_id']}/events"),
    ):
        answer = await story.other.request(method, where, json={} if method == "PUT" else None)
        assert answer.status_code == 404
        error_of(answer)
    assert (await story.other.get(CLUSTERS)).json() == {"clusters": []}
    assert (await story.other.get(CLUSTERS, params={"projectId": story.project})).json() == {"clusters": []}
    assert (
        len((await story.operator.get(CLUSTERS, params={"projectId": story.project})).json()["clusters"]) == 1
    )
    assert (await story.other.get("/v1/usage", params={"cluster_id": cluster["cluster_id"]})).json()[
        "lines"
    ] == []


async def test_a_create_sent_again_is_the_same_cluster(story: Story) -> None:
    """L1, L2: by the caller's own token, or by the official client's count of its tries."""
    first = await story.tenant.post(CLUSTERS, json=CREATE, headers={"idempotency-key": "k"})
    again = await story.tenant.post(CLUSTERS, json=CREATE, headers={"idempotency-key": "k"})
    assert first.json()["cluster_id"] == again.json()["cluster_id"]
    other = await story.tenant.post(
        CLUSTERS, json={**CREATE, "num_gpus": 16}, headers={"idempotency-key": "k"}
    )
    assert other.status_code == 409
    assert str(error_of(other)["message"]).count("hash") == 1
    retried = await story.tenant.post(CLUSTERS, json=CREATE, headers={"x-stainless-retry-count": "1"})
    assert retried.json()["cluster_id"] == first.json()["cluster_id"]
    anew = await story.tenant.post(CLUSTERS, json=CREATE)
    assert anew.json()["cluster_id"] != first.json()["cluster_id"]


async def test_counts_are_multiples_of_the_pools_own_hosts(story: Story) -> None:
    """A pool whose hosts have four GPUs takes fours."""
    odd = await story.create(
        gpu_type="L40_PCIE", num_gpus=4, num_preemptible_gpus=4, project_id=story.project
    )
    assert odd["num_gpus"] == 4
    bad = await story.tenant.post(CLUSTERS, json={**CREATE, "gpu_type": "L40_PCIE", "num_gpus": 6})
    assert error_of(bad)["message"] == "num_gpus must be a multiple of 4, got 6"
    for fields, param in (
        ({"num_gpus": 12}, "num_gpus"),
        ({"num_gpus": 0}, "num_gpus"),
        ({"num_preemptible_gpus": 4, "project_id": story.project}, "num_preemptible_gpus"),
        ({"region": "mars-1"}, "region"),
        ({"gpu_type": "H200_SXM"}, "gpu_type"),
        ({"cuda_version": "9.9"}, "cuda_version"),
        ({"nvidia_version_id": "none"}, "nvidia_version_id"),
    ):
        answer = await story.tenant.post(CLUSTERS, json={**CREATE, **fields})
        assert answer.status_code == 400, fields
        assert error_of(answer)["param"] == param


async def test_an_unmet_target_says_why(story: Story) -> None:
    """K10: pending reason, since when, last try, next try; and nothing of it once the target is met."""
    cluster = await story.create(num_gpus=24, num_preemptible_gpus=16, project_id=story.project)
    await story.simulated.run_for(60)
    fill = (await story.see(cluster))["preemptible_fill"]
    assert fill["pending_reason"].startswith("1 of 2 nodes missing")
    assert fill["since"] <= fill["last_try"] <= fill["next_try"]
    await story.tenant.put(f"{CLUSTERS}/{cluster['cluster_id']}", json={"num_preemptible_gpus": 8})
    await story.simulated.run_for(60)
    met = await story.see(cluster)
    assert met["allocated_preemptible_gpus"] == 8
    assert "preemptible_fill" not in met
    await story.tenant.put(f"{CLUSTERS}/{cluster['cluster_id']}", json={"num_preemptible_gpus": 16})
    await story.simulated.run_for(60)
    assert "preemptible_fill" in await story.see(cluster)
    await story.tenant.put(f"{CLUSTERS}/{cluster['cluster_id']}", json={"num_preemptible_gpus": 0})
    await story.simulated.run_for(360)
    none = await story.see(cluster)
    assert (none["allocated_preemptible_gpus"], none.get("preemptible_fill")) == (0, None)


async def test_what_terraform_echoes_survives_the_database(story: Story) -> None:
    add_on = {"add_on_type": "headlamp", "name": "headlamp", "config": {"headlamp": {"enabled": True}}}
    made = await story.create(
        add_ons=[add_on], cluster_config={"load_balancer": "NGINX"}, slurm_shm_size_gib=64
    )
    assert made["cluster_config"] == {"load_balancer": "NGINX"}
    assert (made["slurm_shm_size_gib"], made["add_ons"][0]["config"]) == (64, {"headlamp": {"enabled": True}})
    path = f"{CLUSTERS}/{made['cluster_id']}"
    same = {
        **CREATE,
        "auto_scaled": False,
        "install_traefik": False,
        "add_ons": [add_on],
        "project_id": story.project,
    }
    assert strictly(await story.tenant.put(path, json=same)) == made
    for field, value in (
        ("cluster_name", "new"),
        ("region", "x"),
        ("gpu_type", "x"),
        ("cuda_version", "12.8.0"),
        ("project_id", "x"),
    ):
        answer = await story.tenant.put(path, json={field: value})
        assert (answer.status_code, error_of(answer)["param"]) == (400, field)


async def test_a_claim_takes_hosts_and_gives_them_back(story: Story) -> None:
    cluster = await story.create(num_preemptible_gpus=24, project_id=story.project)
    await story.simulated.run_for(60)
    body = {"pool": "h100", "hosts": 2, "ref": "train/1", "for": "the batch system"}
    made = await story.operator.post("/v1/fleet/claims", json=body)
    assert made.status_code == 200
    assert (made.json()["state"], made.json()["waiting"], len(made.json()["draining"])) == ("open", 2, 2)
    assert all(each["deadline"] for each in made.json()["draining"])
    assert (await story.operator.post("/v1/fleet/claims", json={**body, "hosts": 3})).status_code == 409
    assert (
        await story.operator.post("/v1/fleet/claims", json={**body, "ref": "b", "hosts": 9})
    ).status_code == 409
    assert (
        await story.operator.post("/v1/fleet/claims", json={**body, "ref": "c", "pool": "no"})
    ).status_code == 404
    await story.simulated.run_for(400)
    served = (await story.operator.get("/v1/fleet/claims/train%2F1")).json()
    assert (served["state"], len(served["given"]), served["waiting"]) == ("served", 2, 0)
    one = await story.operator.delete("/v1/fleet/claims/train/1", params={"hosts": served["given"][0]})
    assert one.json()["given"] == served["given"][1:]
    ended = (await story.operator.delete("/v1/fleet/claims/train/1")).json()
    assert (ended["state"], ended["given"]) == ("ended", [])
    await story.simulated.run_for(600)
    assert (await story.see(cluster))["allocated_preemptible_gpus"] == 24


async def test_the_fleet_as_its_operator_sees_it(story: Story) -> None:
    await story.create(num_preemptible_gpus=8, project_id=story.project)
    await story.simulated.run_for(60)
    pools = {pool["name"]: pool for pool in (await story.operator.get("/v1/fleet/pools")).json()["pools"]}
    assert sum(pools["h100"]["counts"].values()) == pools["h100"]["hosts"] == 4
    hosts = (await story.operator.get("/v1/fleet/hosts", params={"pool": "h100"})).json()["hosts"]
    assert Counter(host["bucket"] for host in hosts) == {"standard": 1, "preemptible": 1, "free": 2}
    free = next(host["name"] for host in hosts if host["bucket"] == "free")
    cordoned = await story.operator.post(f"/v1/fleet/hosts/{free}/cordon", json={"reason": "fans"})
    assert (cordoned.json()["bucket"], cordoned.json()["state_reason"]) == ("cordoned", "fans")
    taken = await story.operator.post(
        "/v1/fleet/reclaims", json={"pool": "h100", "hosts": 1, "reason": "firmware"}
    )
    assert [node["phase"] for node in taken.json()["nodes"]] == ["DRAINING"]
    applied = await story.operator.post(
        "/v1/fleet/file", content=FLEET.replace("count: 2", "count: 3").encode()
    )
    assert any("1 hosts added" in sentence for sentence in applied.json()["done"])
    bad = await story.operator.post("/v1/fleet/file", content=b"pools: [")
    assert bad.status_code == 400
    assert "line 1" in str(error_of(bad)["message"])
    assert (await story.operator.get("/v1/fleet/ownership")).json()["ownership"]


async def test_keys_are_issued_once_and_revoked_at_once(story: Story) -> None:
    project = (await story.operator.post("/v1/projects", json={"slug": "blue", "name": "Blue"})).json()
    assert (await story.operator.post("/v1/projects", json={"slug": "blue"})).status_code == 409
    issued = (await story.operator.post("/v1/keys", json={"project": "blue", "role": "admin"})).json()
    assert issued["project_id"] == project["id"]
    async with client_of(story.simulated.system.app(), issued["key"]) as admin:
        assert (await admin.get("/v3/whoami")).json()["project"]["slug"] == "blue"
        assert (await admin.post("/v1/keys", json={"role": "operator"})).status_code == 403
        member = (await admin.post("/v1/keys", json={})).json()
        keys = (await admin.get("/v1/keys")).json()["keys"]
        assert {key["id"] for key in keys} == {issued["id"], member["id"]}
        assert (await admin.delete(f"/v1/keys/{issued['id']}")).status_code == 200
        assert (await admin.get("/v3/whoami")).status_code == 401
    assert (await story.tenant.post("/v1/keys", json={})).status_code == 403
    assert (await story.tenant.delete(f"/v1/keys/{member['id']}")).status_code in (403, 404)


async def test_the_stream_of_events_has_no_gaps(story: Story) -> None:
    cluster = await story.create(num_preemptible_gpus=16, project_id=story.project)
    await story.simulated.run_for(60)
    path = f"/v1/clusters/{cluster['cluster_id']}/events"
    seen: list[int] = []
    after = 0
    while page := (await story.tenant.get(path, params={"after": after, "limit": 2})).json():
        seen += [event["number"] for event in page["events"]]
        if page["next_after"] == after:
            break
        after = page["next_after"]
    assert seen == [1, 2, 3]
    assert (await story.tenant.get(path, params={"after": 2**63 - 1})).json()["events"] == []
