"""Each rule finds its case and is content after its own fix; then the finer points, scenario by scenario."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lint_cases import (
    CASES,
    CLAIM,
    IGNORE_DISRUPTION,
    LABEL,
    Manifest,
    budget,
    command,
    deployment,
    found,
    job,
    job_set,
    lint,
    of_kind,
    pod,
    pytorch_job,
    ray,
    runtime,
    service,
    spec,
    standard,
    stored,
    train_job,
    without,
)

from ebbtide_workload.lint.model import DOC
from ebbtide_workload.lint.rules import RULES
from ebbtide_workload.lint.workloads import KINDS


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == {rule.id for rule in RULES}


@pytest.mark.parametrize("rule", sorted(CASES))
def test_a_rule_finds_its_case_and_accepts_the_fix(rule: str) -> None:
    bad, good = CASES[rule]
    findings = lint(*bad, select=rule)
    assert findings
    for finding in findings:
        assert finding.path, "a finding names its place"
        assert finding.message and finding.fix
        assert finding.doc == f"{DOC}#{rule}"
    assert lint(*good, select=rule) == []


def test_clean_manifests_are_clean() -> None:
    assert lint(job(), job_set(node=job()), ray(), pytorch_job(), runtime(), train_job()) == []


def test_a9_a_missing_grace_says_how_much_of_the_window_is_left() -> None:
    """A9: a five-minute preStop under the default grace is cut at 30 s."""
    [finding] = lint(job(without(spec(), "terminationGracePeriodSeconds")), select="grace-missing")
    assert "you will get 30 s of the 300 s" in finding.message
    assert finding.fix == "set spec.template.spec.terminationGracePeriodSeconds: 300"


def test_a9_a_five_minute_hook_under_the_default_grace_never_sees_sigterm() -> None:
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "sleep 300"]}}}
    bare = without(spec(), "terminationGracePeriodSeconds")
    bare["containers"][0]["lifecycle"] = hook
    assert {"grace-missing", "prestop-too-long"} <= found(job(bare))
    [finding] = lint(job(bare), select="prestop-too-long")
    assert "300 s of the 30 s" in finding.message


def test_a_grace_above_the_window_says_what_is_granted() -> None:
    [finding] = lint(job(spec(terminationGracePeriodSeconds=900)), select="grace-*")
    assert "asks for 900 s, will get 297 s" in finding.message


def test_a_grace_of_the_whole_window_is_fine() -> None:
    assert found(job(spec(terminationGracePeriodSeconds=300)), select="grace-*") == set()


@pytest.mark.parametrize("kind", ["emptyDir", "hostPath", "ephemeral"])
def test_b4_checkpoints_that_end_with_the_node_are_lost_at_reclaim(kind: str) -> None:
    """B4: emptyDir and hostPath checkpoints are listed as lost at reclaim."""
    [finding] = lint(job(stored({kind: {"path": "/data"}}, at="/checkpoints")), select="checkpoint-*")
    assert finding.message.startswith("lost at reclaim")
    assert finding.path == f"spec.template.spec.volumes[0].{kind}"


def test_b4_the_programs_own_arguments_tell_where_checkpoints_go() -> None:
    told = stored({"emptyDir": {}}, at="/data")
    told["containers"][0]["command"] = ["python", "train.py", "--output-dir", "/data/run1"]
    assert found(job(told), select="checkpoint-*") == {"checkpoint-emptydir"}
    silent = stored({"emptyDir": {}}, at="/data")
    assert found(job(silent), select="checkpoint-*") == set()


def test_b4_shared_memory_is_not_taken_for_checkpoints() -> None:
    memory = stored({"emptyDir": {"medium": "Memory"}}, at="/dev/shm", name="dshm")
    assert found(job(memory), select="checkpoint-*") == set()


def test_b4_a_path_under_a_claim_is_fine_and_one_beside_it_is_not() -> None:
    inside = stored(CLAIM, at="/ckpt")
    inside["containers"][0]["env"] = [{"name": "CHECKPOINT_DIR", "value": "/ckpt/run"}]
    assert found(job(inside), select="checkpoint-*") == set()
    beside = stored(CLAIM, at="/ckpt")
    beside["containers"][0]["env"] = [{"name": "CHECKPOINT_DIR", "value": "/ckpt-other"}]
    assert found(job(beside), select="checkpoint-*") == {"checkpoint-unmounted"}


@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", "train.py"],
        ["python", "-m", "torch.distributed.run", "train.py"],
        ["python3", "-m", "torch.distributed.launch", "train.py"],
        ["accelerate", "launch", "train.py"],
        ["sh", "-c", "exec torchrun --nnodes 2 train.py"],
        ["torchrun", "--shutdown-timeout=30", "train.py"],
    ],
)
def test_j1_the_launchers_own_limit_is_found(words: list[str]) -> None:
    """J1: the agent kills workers 30 s after SIGTERM whatever the pod's grace."""
    [finding] = lint(command(*words), select="torchrun-limit")
    assert "30 s after SIGTERM" in finding.message
    assert "--shutdown-timeout=280" in finding.fix


@pytest.mark.parametrize(
    "words",
    [
        ["ebb", "run", "--", "torchrun", "train.py"],
        ["python", "-m", "ebbtide_workload", "run", "--", "torchrun", "train.py"],
        ["torchrun", "--shutdown-timeout", "280", "train.py"],
        ["python", "train_torchrun_style.py"],
    ],
)
def test_j1_a_launcher_with_a_longer_limit_is_fine(words: list[str]) -> None:
    assert found(command(*words), select="torchrun-limit") == set()


def test_j1_the_limit_may_stand_in_the_environment() -> None:
    def limited(seconds: str) -> set[str]:
        env = [{"name": "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "value": seconds}]
        return found(command("torchrun", "train.py", env=env), select="torchrun-limit")

    assert limited("280") == set()
    assert limited("30") == {"torchrun-limit"}


@pytest.mark.parametrize(
    "words",
    [
        ["sh", "-c", "python train.py"],
        ["/bin/bash", "-lc", "source env.sh && python train.py"],
        ["bash", "-c", "exec python train.py | tee log"],
        ["bash", "-c", "python train.py; exit $?"],
        ["/usr/bin/env", "A=1", "sh", "-c", "python train.py"],
        ["tini", "--", "sh", "-c", "python train.py"],
        ["sh", "-c", "ebb run -- python train.py"],
    ],
)
def test_j9_a_shell_that_keeps_sigterm_is_found(words: list[str]) -> None:
    """J9: with a shell as process 1 the trainer never sees SIGTERM."""
    [finding] = lint(command(*words), select="shell-pid1")
    assert finding.severity == "error"


@pytest.mark.parametrize(
    "words",
    [
        ["python", "train.py"],
        ["sh", "-c", "exec python train.py"],
        ["bash", "-c", "cd /app\nexport A=1\nexec python train.py"],
        ["bash", "-c", "trap 'kill -TERM $pid' TERM; python train.py & pid=$!; wait $pid"],
        ["bash", "-c", "if [ -f a ]; then exec python a.py; else exec python b.py; fi"],
        ["dumb-init", "sh", "-c", "python train.py"],
        ["tini", "-g", "--", "sh", "-c", "python train.py"],
        ["ebb", "run", "--", "sh", "-c", "python train.py"],
    ],
)
def test_j9_a_program_that_gets_sigterm_is_fine(words: list[str]) -> None:
    assert found(command(*words), select="shell-pid1") == set()


def test_j9_a_script_file_cannot_be_read_and_is_only_a_warning() -> None:
    [finding] = lint(command("bash", "/app/start.sh"), select="shell-pid1")
    assert finding.severity == "warning"


def test_i2_a_replacement_beside_the_old_pod_is_found() -> None:
    """I2: lint suggests podReplacementPolicy: Failed."""
    bare = without(job()["spec"], "podFailurePolicy", "podReplacementPolicy")
    [finding] = lint({**job(), "spec": bare}, select="pod-replacement-policy")
    assert finding.fix == "set spec.podReplacementPolicy: Failed"


def test_i2_a_failure_policy_makes_failed_the_default() -> None:
    assert found({**job(), "spec": without(job()["spec"], "podReplacementPolicy")}) == set()


def test_a_failure_policy_that_counts_or_fails_is_no_help() -> None:
    for action in ("Count", "FailJob"):
        rule = {**IGNORE_DISRUPTION, "action": action}
        assert found(job(podFailurePolicy={"rules": [rule]})) == {"job-failure-policy"}


def test_ebb_notice_in_a_hook_is_not_work_done_twice() -> None:
    hook = {"preStop": {"exec": {"command": ["ebb", "notice", "/ckpt/notice"]}}}
    assert found(command("python", "train.py", lifecycle=hook), select="prestop-and-handler") == set()


def test_affinity_states_the_class_as_well_as_a_selector() -> None:
    def placed(operator: str, *values: str) -> set[str]:
        term = {"matchExpressions": [{"key": LABEL, "operator": operator, "values": list(values)}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        bare = without(
            spec(affinity={"nodeAffinity": required}), "nodeSelector", "terminationGracePeriodSeconds"
        )
        return found(job(bare))

    assert placed("NotIn", "preemptible") == set(), "standard only: nothing to say about grace"
    assert placed("In", "preemptible") == {"grace-missing"}
    assert placed("In", "preemptible", "standard") == {"grace-missing"}
    assert placed("In", "spot") == {"grace-missing", "class-unknown"}


def test_a_queue_states_the_class_and_its_flavor_decides_it() -> None:
    bare = without(spec(), "nodeSelector", "terminationGracePeriodSeconds")
    queued = {**job(bare), "metadata": {"name": "train", "labels": {"kueue.x-k8s.io/queue-name": "q"}}}
    assert found(queued) == {"grace-missing"}, "a queue not in the input may lead anywhere"

    def queue(name: str) -> list[dict[str, object]]:
        return [
            {"kind": "LocalQueue", "metadata": {"name": "q"}, "spec": {"clusterQueue": "c"}},
            {
                "kind": "ClusterQueue",
                "metadata": {"name": "c"},
                "spec": {"resourceGroups": [{"flavors": [{"name": "f"}]}]},
            },
            {"kind": "ResourceFlavor", "metadata": {"name": "f"}, "spec": {"nodeLabels": {LABEL: name}}},
        ]

    assert found(queued, *queue("standard")) == set()
    assert found(queued, *queue("preemptible")) == {"grace-missing"}


def test_a_jobs_coordinator_is_found_by_name_and_by_the_jobset_field() -> None:
    assert "coordinator-on-preemptible" in found(job_set(launcher=job(), node=job()))
    named = job_set(zero=job(), node=job())
    named["spec"]["coordinator"] = {"replicatedJob": "zero", "jobIndex": 0, "podIndex": 0}
    assert "coordinator-on-preemptible" in found(named)
    assert found(job_set(launcher=job(standard(spec())), node=job())) == set()


def test_login_and_store_pods_are_coordinators_and_headless_is_not() -> None:
    for name in ("login", "train-etcd", "team-jupyter"):
        assert "coordinator-on-preemptible" in found(deployment(name))
    assert "coordinator-on-preemptible" not in found(deployment("headless"))


def test_batch_workers_without_a_service_are_no_servers() -> None:
    assert found(deployment("batch")) == set()
    assert found(service(), deployment(), select="server-*") == {"server-on-preemptible"}


@pytest.mark.parametrize(
    ("limits", "wrong"),
    [
        ({"maxUnavailable": 0}, True),
        ({"maxUnavailable": "0%"}, True),
        ({"minAvailable": "100%"}, True),
        ({"minAvailable": 2}, True),
        ({"minAvailable": 1}, False),
        ({"minAvailable": "50%"}, False),
        ({"maxUnavailable": "50%"}, False),
    ],
)
def test_budgets_that_never_let_a_pod_go(limits: Manifest, wrong: bool) -> None:
    assert (found(deployment(), budget(**limits), select="pdb-*") == {"pdb-unmeetable"}) is wrong


def test_a_budget_for_standard_pods_is_not_our_business() -> None:
    assert found(deployment(pod=standard(spec())), budget(maxUnavailable=0), select="pdb-*") == set()


def test_standard_pods_are_left_alone() -> None:
    bare = standard(without(spec(), "terminationGracePeriodSeconds"))
    assert found(job(bare, podFailurePolicy=None), deployment("login", bare)) == set()


SHAPES: dict[str, Callable[[Manifest], Manifest]] = {
    "Pod": pod,
    "Job": job,
    "CronJob": lambda s: {
        "kind": "CronJob",
        "metadata": {"name": "c"},
        "spec": {"jobTemplate": {"spec": job(s)["spec"]}},
    },
    "Deployment": lambda s: deployment(pod=s),
    "StatefulSet": lambda s: of_kind("StatefulSet", deployment(pod=s)),
    "ReplicaSet": lambda s: of_kind("ReplicaSet", deployment(pod=s)),
    "ReplicationController": lambda s: of_kind("ReplicationController", deployment(pod=s)),
    "JobSet": lambda s: job_set(node=job(s)),
    "TrainingRuntime": lambda s: of_kind("TrainingRuntime", runtime(s)),
    "ClusterTrainingRuntime": runtime,
    "PyTorchJob": lambda s: pytorch_job(pod=s),
    "TFJob": lambda s: {"kind": "TFJob", "spec": {"tfReplicaSpecs": {"Worker": {"template": {"spec": s}}}}},
    "MPIJob": lambda s: {
        "kind": "MPIJob",
        "spec": {"mpiReplicaSpecs": {"Worker": {"template": {"spec": s}}}},
    },
    "XGBoostJob": lambda s: {
        "kind": "XGBoostJob",
        "spec": {"xgbReplicaSpecs": {"Worker": {"template": {"spec": s}}}},
    },
    "PaddleJob": lambda s: {
        "kind": "PaddleJob",
        "spec": {"paddleReplicaSpecs": {"Worker": {"template": {"spec": s}}}},
    },
    "JAXJob": lambda s: {
        "kind": "JAXJob",
        "spec": {"jaxReplicaSpecs": {"Worker": {"template": {"spec": s}}}},
    },
    "RayCluster": lambda s: ray(worker=s),
    "RayJob": lambda s: ray(worker=s, kind="RayJob"),
    "RayService": lambda s: ray(worker=s, kind="RayService"),
    "LeaderWorkerSet": lambda s: {
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "lws"},
        "spec": {"leaderWorkerTemplate": {"leaderTemplate": {"spec": s}, "workerTemplate": {"spec": s}}},
    },
}


@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_every_kind_is_understood(kind: str) -> None:
    bare = without(spec(), "terminationGracePeriodSeconds")
    findings = lint(SHAPES[kind](bare), select="grace-missing")
    assert findings
    assert {f.kind for f in findings} == {kind}
    assert all(f.path.endswith("spec.terminationGracePeriodSeconds") for f in findings)


def test_no_kind_is_forgotten_above() -> None:
    assert set(SHAPES) | {"DaemonSet", "TrainJob"} == set(KINDS)


def test_a_train_jobs_command_and_overrides_are_read() -> None:
    launched = train_job()
    launched["spec"]["trainer"]["command"] = ["torchrun", "train.py"]
    assert found(launched, runtime()) == {"torchrun-limit"}
    patched = train_job()
    over = {"template": {"spec": {"terminationGracePeriodSeconds": 900}}}
    patch = {"template": {"spec": {"replicatedJobs": [{"name": "node", "template": {"spec": over}}]}}}
    patched["spec"]["runtimePatches"] = [{"manager": "me", "trainingRuntimeSpec": patch}]
    assert found(patched, runtime()) == {"grace-over-window"}
    overridden = train_job()
    overridden["spec"]["podTemplateOverrides"] = [{"spec": {"terminationGracePeriodSeconds": 900}}]
    assert found(overridden, runtime()) == {"grace-over-window"}
