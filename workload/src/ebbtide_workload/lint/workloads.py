"""Finding the pods in a document: every kind that makes pods, and where it keeps their template."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .model import Document, JobView, Path, PodUse, dig, items, mapping

COORDINATOR_WORDS = frozenset(
    [
        "coordinator",
        "scheduler",
        "launcher",
        "driver",
        "head",
        "controller",
        "rendezvous",
        "rdzv",
        "etcd",
        "redis",
        "login",
        "ssh",
        "bastion",
        "jupyter",
        "notebook",
        "tracker",
        "mlflow",
        "tensorboard",
        "ps",
    ]
)


def pods(document: Document) -> list[PodUse]:
    """The pod templates of a document; empty for kinds that make none."""
    reader = _READERS.get(document.kind)
    return [] if reader is None else list(reader(document))


def sounds_like_coordinator(*names: str) -> bool:
    """Whether a name says that others depend on this pod: "train-coordinator", "login"."""
    return any(
        word in COORDINATOR_WORDS for name in names for word in name.lower().replace("_", "-").split("-")
    )


def _use(document: Document, path: Path, **more: Any) -> PodUse | None:
    """The pod whose spec stands at `path`; its labels stand beside it."""
    spec = dig(document.content, path)
    if not isinstance(spec, Mapping):
        return None
    labels = mapping(dig(document.content, (*path[:-1], "metadata", "labels")))
    return PodUse(document, path, spec, labels, **more)


def _some(*uses: PodUse | None) -> Iterator[PodUse]:
    yield from (use for use in uses if use is not None)


def _pod(document: Document) -> Iterator[PodUse]:
    yield from _some(
        _use(document, ("spec",), coordinates=sounds_like_coordinator(document.name), replicas=1)
    )


def _template(document: Document) -> Iterator[PodUse]:
    replicas = dig(document.content, ("spec", "replicas"))
    known = replicas if isinstance(replicas, int) else (None if document.kind == "DaemonSet" else 1)
    coordinates = document.kind != "DaemonSet" and sounds_like_coordinator(document.name)
    path: Path = ("spec", "template", "spec")
    yield from _some(_use(document, path, coordinates=coordinates, replicas=known))


def _job_at(document: Document, path: Path, **more: Any) -> Iterator[PodUse]:
    spec = dig(document.content, path)
    if isinstance(spec, Mapping):
        view = JobView(path, spec)
        count = spec.get("parallelism", 1)
        replicas = count if isinstance(count, int) else None
        pod_path = (*path, "template", "spec")
        yield from _some(_use(document, pod_path, batch=True, job=view, replicas=replicas, **more))


def _job(document: Document) -> Iterator[PodUse]:
    yield from _job_at(document, ("spec",))


def _cron_job(document: Document) -> Iterator[PodUse]:
    yield from _job_at(document, ("spec", "jobTemplate", "spec"))


def _job_set(document: Document) -> Iterator[PodUse]:
    yield from _replicated_jobs(document, ("spec",))


def _runtime(document: Document) -> Iterator[PodUse]:
    yield from _replicated_jobs(document, ("spec", "template", "spec"))


def _replicated_jobs(document: Document, base: Path) -> Iterator[PodUse]:
    coordinator = dig(document.content, (*base, "coordinator", "replicatedJob"))
    for index, job in enumerate(items(dig(document.content, (*base, "replicatedJobs")))):
        name = str(job.get("name", ""))
        coordinates = name == coordinator or sounds_like_coordinator(name)
        path = (*base, "replicatedJobs", index, "template", "spec")
        yield from _job_at(document, path, role=name, coordinates=coordinates)


def _train_job(document: Document) -> Iterator[PodUse]:
    """A TrainJob names only what differs from its runtime."""
    trainer = mapping(dig(document.content, ("spec", "trainer")))
    if trainer:
        # The trainer's command stands beside, not inside, a list of containers.
        labels = mapping(document.metadata.get("labels"))
        spec = {"trainer": trainer}
        yield PodUse(document, ("spec", "trainer"), spec, labels, role="trainer", batch=True, partial=True)
    for index, _ in enumerate(items(dig(document.content, ("spec", "podTemplateOverrides")))):
        path: Path = ("spec", "podTemplateOverrides", index, "spec")
        yield from _some(_use(document, path, batch=True, partial=True))
    for index, patch in enumerate(items(dig(document.content, ("spec", "runtimePatches")))):
        jobs: Path = ("trainingRuntimeSpec", "template", "spec", "replicatedJobs")
        for job_index, _ in enumerate(items(dig(patch, jobs))):
            below = (
                "spec",
                "runtimePatches",
                index,
                *jobs,
                job_index,
                "template",
                "spec",
                "template",
                "spec",
            )
            yield from _some(_use(document, below, batch=True, partial=True))


def _replica_specs(document: Document) -> Iterator[PodUse]:
    """The training operator's first generation: PyTorchJob, TFJob, MPIJob and their kin."""
    for key, roles in mapping(document.content.get("spec")).items():
        if not key.endswith("ReplicaSpecs"):
            continue
        for role, replica in mapping(roles).items():
            count = mapping(replica).get("replicas", 1)
            coordinates = role in ("Launcher", "PS", "Chief", "Scheduler", "Server")
            path = ("spec", key, role, "template", "spec")
            replicas = count if isinstance(count, int) else None
            yield from _some(
                _use(document, path, role=role, coordinates=coordinates, batch=True, replicas=replicas)
            )


def _ray(document: Document) -> Iterator[PodUse]:
    base: Path = {
        "RayCluster": ("spec",),
        "RayJob": ("spec", "rayClusterSpec"),
        "RayService": ("spec", "rayClusterConfig"),
    }[document.kind]
    head = (*base, "headGroupSpec", "template", "spec")
    yield from _some(_use(document, head, role="head", coordinates=True, replicas=1))
    for index, group in enumerate(items(dig(document.content, (*base, "workerGroupSpecs")))):
        path = (*base, "workerGroupSpecs", index, "template", "spec")
        count = group.get("replicas", 1)
        replicas = count if isinstance(count, int) else None
        yield from _some(_use(document, path, role=str(group.get("groupName", "worker")), replicas=replicas))
    submitter: Path = ("spec", "submitterPodTemplate", "spec")
    yield from _some(_use(document, submitter, role="submitter", coordinates=True, replicas=1))


def _leader_worker_set(document: Document) -> Iterator[PodUse]:
    base: Path = ("spec", "leaderWorkerTemplate")
    for role, key in (("leader", "leaderTemplate"), ("worker", "workerTemplate")):
        yield from _some(_use(document, (*base, key, "spec"), role=role))


_READERS: dict[str, Callable[[Document], Iterator[PodUse]]] = {
    "Pod": _pod,
    "Deployment": _template,
    "StatefulSet": _template,
    "DaemonSet": _template,
    "ReplicaSet": _template,
    "ReplicationController": _template,
    "Job": _job,
    "CronJob": _cron_job,
    "JobSet": _job_set,
    "TrainingRuntime": _runtime,
    "ClusterTrainingRuntime": _runtime,
    "TrainJob": _train_job,
    "PyTorchJob": _replica_specs,
    "TFJob": _replica_specs,
    "MPIJob": _replica_specs,
    "XGBoostJob": _replica_specs,
    "PaddleJob": _replica_specs,
    "JAXJob": _replica_specs,
    "RayCluster": _ray,
    "RayJob": _ray,
    "RayService": _ray,
    "LeaderWorkerSet": _leader_worker_set,
}

KINDS = tuple(_READERS)
