"""Manifests for the linter's tests: a clean one of each kind, and one that each rule finds."""

from __future__ import annotations

import copy
from typing import Any

from ebbtide_workload.lint.engine import check, chosen
from ebbtide_workload.lint.model import Document, Finding

LABEL = "together.ai/compute-class"
Manifest = dict[str, Any]


def spec(**more: Any) -> Manifest:
    """A pod spec that knows what is coming."""
    return {
        "terminationGracePeriodSeconds": 300,
        "nodeSelector": {LABEL: "preemptible"},
        "restartPolicy": "Never",
        "containers": [{"name": "train", "image": "train:1", "command": ["python", "train.py"]}],
        **more,
    }


def without(manifest: Manifest, *keys: str) -> Manifest:
    """A copy with some keys left out."""
    return {k: v for k, v in copy.deepcopy(manifest).items() if k not in keys}


IGNORE_DISRUPTION = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def job(pod: Manifest | None = None, **more: Any) -> Manifest:
    """A batch/v1 Job."""
    policy = {"podFailurePolicy": {"rules": [IGNORE_DISRUPTION]}, "podReplacementPolicy": "Failed"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {**policy, "template": {"spec": spec() if pod is None else pod}, **more},
    }


def command(*words: str, **more: Any) -> Manifest:
    """A Job whose container runs these words."""
    return job(spec(containers=[{"name": "train", "image": "train:1", "command": list(words), **more}]))


def deployment(name: str = "serve", pod: Manifest | None = None, replicas: int = 2) -> Manifest:
    """A Deployment with the label app: its name."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": without(spec(), "restartPolicy") if pod is None else pod,
            },
        },
    }


def budget(name: str = "budget", app: str = "serve", **limits: Any) -> Manifest:
    """A PodDisruptionBudget."""
    selector = {"selector": {"matchLabels": {"app": app}}}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {**selector, **limits},
    }


def service(app: str = "serve") -> Manifest:
    """A Service in front of the pods with label app."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": app},
        "spec": {"selector": {"app": app}},
    }


def standard(pod: Manifest) -> Manifest:
    """The pod, pinned to standard nodes."""
    return {**pod, "nodeSelector": {LABEL: "standard"}}


def stored(volume: Manifest, at: str = "/ckpt", name: str = "work", pod: Manifest | None = None) -> Manifest:
    """A pod spec with one volume mounted."""
    base = copy.deepcopy(spec() if pod is None else pod)
    base["containers"][0]["volumeMounts"] = [{"name": name, "mountPath": at}]
    return {**base, "volumes": [{"name": name, **volume}]}


def train_job(runtime: str = "torch") -> Manifest:
    """A Kubeflow TrainJob."""
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "train"},
        "spec": {"runtimeRef": {"name": runtime}, "trainer": {"command": ["python", "train.py"]}},
    }


def runtime(pod: Manifest | None = None, name: str = "torch") -> Manifest:
    """A Kubeflow ClusterTrainingRuntime."""
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": name},
        "spec": {
            "template": {
                "spec": {"replicatedJobs": [{"name": "node", "template": {"spec": job(pod)["spec"]}}]}
            }
        },
    }


def job_set(**jobs: Manifest) -> Manifest:
    """A JobSet of Jobs by name."""
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train"},
        "spec": {"replicatedJobs": [{"name": n, "template": {"spec": j["spec"]}} for n, j in jobs.items()]},
    }


def ray(head: Manifest | None = None, worker: Manifest | None = None, kind: str = "RayCluster") -> Manifest:
    """A RayCluster, RayJob or RayService."""
    plain = without(spec(), "restartPolicy")
    cluster = {
        "headGroupSpec": {"template": {"spec": standard(plain) if head is None else head}},
        "workerGroupSpecs": [{"groupName": "gpu", "template": {"spec": plain if worker is None else worker}}],
    }
    key = {"RayCluster": None, "RayJob": "rayClusterSpec", "RayService": "rayClusterConfig"}[kind]
    body = cluster if key is None else {key: cluster}
    return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": "ray"}, "spec": body}


def pytorch_job(restart: str = "OnFailure", pod: Manifest | None = None) -> Manifest:
    """A PyTorchJob of the first training operator."""
    replica = {"replicas": 2, "restartPolicy": restart, "template": {"spec": spec() if pod is None else pod}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "train"},
        "spec": {"pytorchReplicaSpecs": {"Master": replica, "Worker": copy.deepcopy(replica)}},
    }


def pod(pod_spec: Manifest | None = None, name: str = "one", **meta: Any) -> Manifest:
    """A bare pod."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **meta}, "spec": pod_spec or spec()}


def of_kind(kind: str, manifest: Manifest) -> Manifest:
    """The same manifest under another kind."""
    return {**manifest, "kind": kind}


CLAIM = {"persistentVolumeClaim": {"claimName": "ckpt"}}
SLEEP_HOOK = {"preStop": {"sleep": {"seconds": 250}}}
SAVE_HOOK = {"preStop": {"exec": {"command": ["python", "save_checkpoint.py"]}}}
FAIL_ON_137 = {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1]}}

# rule: (what it finds, the same after the fix)
CASES: dict[str, tuple[list[Manifest], list[Manifest]]] = {
    "grace-missing": ([job(without(spec(), "terminationGracePeriodSeconds"))], [job()]),
    "grace-short": ([job(spec(terminationGracePeriodSeconds=30))], [job()]),
    "grace-over-window": ([job(spec(terminationGracePeriodSeconds=900))], [job()]),
    "grace-untold": (
        [command("ebb", "run", "--", "python", "train.py")],
        [
            command(
                "ebb", "run", "--", "python", "train.py", env=[{"name": "EBBTIDE_GRACE_S", "value": "297"}]
            )
        ],
    ),
    "prestop-too-long": (
        [command("python", "train.py", lifecycle=SLEEP_HOOK)],
        [command("python", "train.py", lifecycle={"preStop": {"sleep": {"seconds": 5}}})],
    ),
    "shell-pid1": ([command("sh", "-c", "python train.py")], [command("sh", "-c", "exec python train.py")]),
    "torchrun-limit": (
        [command("torchrun", "--nproc-per-node=8", "train.py")],
        [command("ebb", "run", "--", "torchrun", "--nproc-per-node=8", "train.py")],
    ),
    "prestop-and-handler": (
        [command("ebb", "run", "--", "python", "train.py", lifecycle=SAVE_HOOK)],
        [command("ebb", "run", "--", "python", "train.py")],
    ),
    "job-failure-policy": ([job(podFailurePolicy=None)], [job()]),
    "job-failure-policy-order": (
        [job(podFailurePolicy={"rules": [FAIL_ON_137, IGNORE_DISRUPTION]})],
        [job(podFailurePolicy={"rules": [IGNORE_DISRUPTION, FAIL_ON_137]})],
    ),
    "job-restart-policy": ([job(spec(restartPolicy="OnFailure"))], [job()]),
    "pod-replacement-policy": ([job(podReplacementPolicy="TerminatingOrFailed")], [job()]),
    "two-writers": (
        [deployment(pod=stored(CLAIM))],
        [of_kind("StatefulSet", deployment(pod=stored(CLAIM)))],
    ),
    "exit-code-permanent": ([pytorch_job("ExitCode")], [pytorch_job("OnFailure")]),
    "bare-pod": ([pod()], [job()]),
    "checkpoint-emptydir": ([job(stored({"emptyDir": {}}))], [job(stored(CLAIM))]),
    "checkpoint-hostpath": ([job(stored({"hostPath": {"path": "/data"}}))], [job(stored(CLAIM))]),
    "checkpoint-unmounted": (
        [command("python", "train.py", "--checkpoint-dir=/ckpt/run1")],
        [command("python", "train.py", "--checkpoint-dir=s3://bucket/run1")],
    ),
    "class-missing": ([job(without(spec(), "nodeSelector"))], [job()]),
    "class-unknown": ([job(spec(nodeSelector={LABEL: "preemptable"}))], [job()]),
    "coordinator-on-preemptible": ([ray(head=without(spec(), "restartPolicy"))], [ray()]),
    "server-on-preemptible": (
        [service(), deployment()],
        [service(), deployment(), deployment(pod=standard(without(spec(), "restartPolicy")))],
    ),
    "tolerates-everything": (
        [job(spec(tolerations=[{"operator": "Exists"}]))],
        [job(spec(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}]))],
    ),
    "daemonset-not-signalled": (
        [of_kind("DaemonSet", deployment())],
        [of_kind("DaemonSet", deployment(pod=standard(spec())))],
    ),
    "runtime-unseen": ([train_job()], [train_job(), runtime()]),
    "pdb-unmeetable": ([deployment(), budget(minAvailable=2)], [deployment(), budget(maxUnavailable=1)]),
    "pdb-overlap": (
        [deployment(), budget("a", maxUnavailable=1), budget("b", maxUnavailable=1)],
        [deployment(), budget("a", maxUnavailable=1)],
    ),
}


def lint(*manifests: Manifest, select: str = "*", window_s: int = 300) -> list[Finding]:
    """The findings in these manifests."""
    documents = [Document("test.yaml", m) for m in manifests]
    return check(documents, chosen([select], []), window_s)


def found(*manifests: Manifest, select: str = "*") -> set[str]:
    """The rules that find something."""
    return {f.rule for f in lint(*manifests, select=select)}
