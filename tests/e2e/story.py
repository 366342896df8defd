"""What the tests of this ring do and look at, in their words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from tests.e2e import objects
from tests.e2e.machines import Mounts
from tests.e2e.processes import Beside, Json, Lines, json_lines, until
from tests.e2e.scene import GPUS, HOSTS, IMAGE, POOL, VOLUME, Scene


@dataclass(frozen=True, slots=True)
class Story:
    """One preemptible node lent, the other host claimed by somebody, a job to come.

    name:   of the job, and of its folder on the volume
    node:   the preemptible node, as the operator sees it
    watch:  the cluster's nodes as kubectl sees them come and go
    mounts: which machines had the volume at once
    """

    scene: Scene
    name: str
    node: Json
    watch: Lines
    mounts: Mounts

    def start(self, program: str, *more: str, grace_s: int) -> str:
        """Start the job; returns its pod's name, once it has begun to write."""
        arguments = [f"{objects.PODS}/{program}", self.name, *more]
        job = objects.job(self.name, IMAGE, arguments, gpus=GPUS, grace_s=grace_s)
        self.scene.kubectl.apply(job)
        return until(lambda: next(iter(self.pods_that_wrote()), None), "the job writes")

    def written(self) -> list[Json]:
        """Every line that pods of the job have written to the volume."""
        return json_lines(self.scene.volume_folder() / self.name / "writers.jsonl")

    def pods_that_wrote(self) -> list[str]:
        """In the order of their first lines."""
        return list(dict.fromkeys(line["pod"] for line in self.written()))

    def log_of(self, pod: str) -> Beside:
        """The pod's log from its beginning, followed to its end."""
        kubectl = self.scene.kubectl
        command: list[str | Path] = [
            kubectl.program,
            f"--kubeconfig={kubectl.kubeconfig}",
            "logs",
            "--follow",
            pod,
        ]
        return Beside(f"log of {pod}", command, self.scene.folder / f"{pod}.log")

    def claim(self) -> float:
        """Somebody who may displace claims the host that is lent; answers the deadline."""
        claim = self.scene.ebbtide("fleet", "claim", "--pool", POOL, "--ref", f"{self.name}-displacing")
        (draining,) = claim["draining"]
        assert draining["host"] == self.node["host"]
        return datetime.fromisoformat(draining["deadline"]).timestamp()

    def give_back_the_other(self) -> None:
        """The host that was claimed from the beginning is free again."""
        self.scene.ebbtide("fleet", "return", f"{self.name}-before")

    def ended(self) -> Json:
        """The node's row, once its host was handed over."""
        return until(self._gone, f"{self.node['name']} is gone")

    def _gone(self) -> Json | None:
        there = {each["uid"]: each for each in self.scene.nodes()}
        row = there.get(self.node["uid"])
        if row is not None and row["phase"] != "REMOVED":
            return None
        with self.scene.client() as client:
            displacing = client.find_claim(f"{self.name}-displacing")
        return displacing if displacing["given"] == [self.node["host"]] else None

    def node_went_at(self) -> float:
        """When kubectl saw the Node object go."""
        return until(lambda: self.watch.first("DELETED", self.node["name"]), "kubectl sees the node go")

    def stopped_at(self) -> float:
        """When the program said for the first time that the machine is off."""
        stops = [line for line in self.scene.lab.said("stop", self.node["name"]) if line["stopped"]]
        deletes = self.scene.lab.said("delete", self.node["name"])
        return float((stops or deletes)[0]["at"])

    def job_status(self) -> Json:
        status: Json = self.scene.kubectl.one("job", self.name)["status"]
        return status

    def completes(self) -> None:
        """Wait until the job has done its work, with no failure counted."""

        def done() -> bool | None:
            status = self.job_status()
            assert not status.get("failed"), status
            return True if status.get("succeeded") == 1 else None

        until(done, "the job is done")


@contextmanager
def story(scene: Scene, name: str) -> Iterator[Story]:
    """Set up, and cleared away again so that the next may begin."""
    with ExitStack() as stack:
        stack.callback(_clear, scene, name)
        node = scene.running_node()
        claim = scene.ebbtide("fleet", "claim", "--pool", POOL, "--ref", f"{name}-before")
        assert claim["given"] == [host for host in HOSTS if host != node["host"]], claim
        kubectl = scene.kubectl
        ready = '.object.status.conditions[?(@.type=="Ready")].status'
        columns = f"--output=custom-columns=TYPE:.type,NAME:.object.metadata.name,READY:{ready}"
        command: list[str | Path] = [
            kubectl.program,
            f"--kubeconfig={kubectl.kubeconfig}",
            "get",
            "nodes",
            "--watch",
        ]
        watch = Lines([*command, "--output-watch-events", columns])
        stack.callback(watch.stop)
        kubectl.apply(objects.claim(VOLUME))
        mounts = Mounts(scene.lab, VOLUME)
        with mounts.watched():
            yield Story(scene, name, node, watch, mounts)


def _clear(scene: Scene, name: str) -> None:
    for ref in (f"{name}-before", f"{name}-displacing"):
        with scene.client() as client:
            claims = client.claims()
        if any(each["ref"] == ref and each["state"] != "ended" for each in claims):
            scene.ebbtide("fleet", "return", ref)
    kubectl = scene.kubectl
    kubectl("delete", "job", name, "--ignore-not-found", "--cascade=foreground", "--timeout=60s")


def orderly(lines: list[Json]) -> bool:
    """Whether one pod after the other wrote, never two in turn."""
    pods = [line["pod"] for line in lines]
    changes = sum(1 for before, after in pairwise(pods) if before != after)
    return changes == len(set(pods)) - 1
