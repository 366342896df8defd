"""The scene: a cluster with a machine of its own and a service on it, an Ebbtide with two hosts to lend."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ebbtide.cli import connection
from ebbtide.client import Client
from tests.e2e import objects
from tests.e2e.machines import EXAMPLE, Lab, environment
from tests.e2e.processes import Beside, Json, run, until
from tests.live.kubectl import Kubectl

HERE = Path(__file__).resolve().parent
IMAGE = "ebbtide.example/python:1"
GPUS = 2
POOL, REGION, GPU_TYPE = "lab", "lab-1", "H100_SXM"
HOSTS = ("host-a", "host-b")
CLUSTER, VOLUME = "reef", "demo-data"
WINDOW_S = 20

# Everything sooner than with real fleets, in proportion.
_SETTINGS = {
    "EBBTIDE_DRAIN_WINDOW_S": WINDOW_S,
    "EBBTIDE_CRITICAL_RESERVE_S": 5,
    "EBBTIDE_DRAIN_LOOK_EVERY_S": 2,
    "EBBTIDE_OBSERVE_EVERY_S": 3,
    "EBBTIDE_FILL_EVERY_S": 3,
    "EBBTIDE_FILL_BACKOFF_S": 3,
    "EBBTIDE_LEAKS_EVERY_S": 5,
    "EBBTIDE_COOLDOWN_S": 1,
    "EBBTIDE_RETRY_LIMIT_S": 5,
    "EBBTIDE_STORAGE": "program",
}
_FLEET = EXAMPLE / "fleet.yaml"
# A folder of this machine, which all machines of the lab see: as shared storage, without a server.
_TEMPLATE = {
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "local": {"path": "{handle}"},
        "nodeAffinity": {
            "required": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}
                ]
            }
        },
    }
}


def image_content(root: Path) -> dict[str, Path]:
    """What the image with Python has besides: the jobs, and ebbtide-workload."""
    package = root / "workload" / "src" / "ebbtide_workload"
    return {objects.PODS: HERE / "pods", "/opt/e2e/ebbtide_workload": package}


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that runs, and how to speak to it."""

    lab: Lab
    kubectl: Kubectl
    folder: Path
    poll_file: Path

    def ebbtide(self, *arguments: str) -> Any:
        """What the command line answers, as an operator has it beside `ebbtide up`."""
        command = [_program("ebbtide"), *arguments, "--data", str(self.folder / "data"), "--json"]
        return json.loads(run(command))

    def client(self) -> Client:
        """For looks: they are many, and a command costs half a second of a processor."""
        known = connection.read(self.folder / "data" / connection.FILE_NAME)
        return Client(known["EBBTIDE_URL"], known["EBBTIDE_API_KEY"])

    def doctor(self) -> list[Json]:
        """What `ebbtide doctor` finds."""
        command = [_program("ebbtide"), "doctor", "--json", "--standard-selector", _selector()]
        command += ["--kubeconfig", str(self.folder / "ebbtide.kubeconfig")]
        command += ["--fleet", str(_FLEET)]
        ran = subprocess.run(
            command, capture_output=True, text=True, env={**environment(), **self.lab.settings}
        )
        findings: list[Json] = json.loads(ran.stdout)
        return findings

    def nodes(self, phase: str | None = None) -> list[Json]:
        """Preemptible nodes as the operator sees them."""
        with self.client() as client:
            found = client.nodes()
        lent = [each for each in found if each["cluster_id"]]
        return [each for each in lent if phase in (None, each["phase"])]

    def running_node(self, limit_s: float = 120) -> Json:
        """The one preemptible node, once it runs."""
        return until(lambda: next(iter(self.nodes("RUNNING")), None), "a preemptible node runs", limit_s)

    def volume_folder(self) -> Path:
        """Where the volume's content lies on this machine."""
        return next(iter((self.folder / "volumes").iterdir()))

    def polled(self) -> Json:
        """How often the service was asked, and what failed."""
        answer: Json = json.loads(self.poll_file.read_text())
        return answer


@contextmanager
def scene(lab: Lab) -> Iterator[Scene]:
    """Everything of it, until the end of this."""
    folder = lab.folder / "scene"
    folder.mkdir(mode=0o755)
    with ExitStack() as stack:
        plane = _control_plane(folder)
        stack.callback(plane.stop)
        stack.callback(lab.power_off)  # first: an API server waits for kubelets that listen to it
        kubectl = Kubectl(Path(_program("kubectl")), folder / "plane" / "kubeconfig")
        one = Scene(lab, kubectl, folder, folder / "polled.json")
        _own_machine(one)
        up = _start(one)
        stack.callback(up.stop)
        kubectl.apply(objects.serving(IMAGE))
        kubectl("rollout", "status", "deployment/serving", "--timeout=120s")
        poller = _poll(one)
        stack.callback(poller.stop)
        _import(one)
        try:
            yield one
        finally:
            _keep_logs(one)


def _keep_logs(one: Scene) -> None:
    """For whoever looks for what went wrong: what everybody wrote, in build/e2e."""
    kept = HERE.parent.parent / "build" / "e2e"
    shutil.rmtree(kept, ignore_errors=True)
    for pattern in (
        "hosts/*/*.log",
        "journal.jsonl",
        "scene/*.log",
        "scene/data/*.log",
        "scene/plane/logs/*",
    ):
        for file in one.lab.folder.glob(pattern):
            place = kept / file.relative_to(one.lab.folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)


def _control_plane(folder: Path) -> Beside:
    """The example's, until its kubeconfig is told."""
    command: list[str | Path] = [sys.executable, EXAMPLE / "control_plane.py", folder / "plane"]
    plane = Beside("control plane", command, folder / "plane.log", environment())

    def answers() -> bool | None:
        assert not plane.ended, f"the control plane ended:\n{plane.text()}"
        return True if plane.text().endswith("\n") else None

    until(answers, "the control plane answers", limit_s=120)
    return plane


def join(one: Scene, name: str, host: str, labels: Mapping[str, str]) -> None:
    """A machine joins by hand."""
    command: list[str | Path] = [
        sys.executable,
        EXAMPLE / "join.py",
        "--lab",
        one.lab.folder,
        "--host",
        host,
        "--gpus",
        str(GPUS),
    ]
    command += ["--kubeconfig", one.kubectl.kubeconfig]
    run([*command, *(f"--label={key}={value}" for key, value in labels.items()), name])


def _own_machine(one: Scene) -> None:
    """The cluster's own node, which Ebbtide has nothing to do with."""
    join(one, "own-1", "own-1", objects.STANDARD)
    until(lambda: "own-1" in one.kubectl("get", "nodes") or None, "the cluster's own machine joins")
    one.kubectl("wait", "--for=condition=Ready", "node/own-1", "--timeout=120s")


def _start(one: Scene) -> Beside:
    """`ebbtide up`, with the lab's programs, and storage that is folders."""
    settings = {name: str(value) for name, value in _SETTINGS.items()} | one.lab.settings
    for verb in ("provision", "delete"):
        program = one.folder / f"volume-{verb}"
        program.write_text(
            f"#!/bin/sh\nexec {sys.executable} {HERE / 'volumes.py'} {one.folder / 'volumes'}\n"
        )
        program.chmod(0o755)
        settings[f"EBBTIDE_STORAGE_{verb.upper()}_PROGRAM"] = str(program)
    template = one.folder / "volume.yaml"
    template.write_text(yaml.safe_dump(_TEMPLATE))
    settings["EBBTIDE_STORAGE_TEMPLATE"] = str(template)
    data = one.folder / "data"
    command: list[str | Path] = [_program("ebbtide"), "up", "--data", data, "--fleet", _FLEET, "--port", "0"]
    up = Beside("ebbtide up", command, one.folder / "up.log", {**environment(), **settings})

    def answers() -> bool | None:
        assert not up.ended, f"ebbtide up ended:\n{up.text()}"
        return True if (data / "connection.env").exists() else None

    until(answers, "ebbtide up is there")
    return up


def _poll(one: Scene) -> Beside:
    pods = one.kubectl.items("pods", "--selector=app=serving")
    address = pods[0]["status"]["podIP"]
    command: list[str | Path] = [sys.executable, HERE / "poller.py", f"http://{address}:8080/", one.poll_file]
    poller = Beside("poller", command, one.folder / "poller.log")
    until(lambda: True if one.poll_file.exists() else None, "the service is asked")
    return poller


def _import(one: Scene) -> None:
    """Lend the cluster a node: a volume, the cluster as it is, and a target of one."""
    one.ebbtide("storage", "create", VOLUME, "--size-tib", "1", "--region", REGION, "--wait")
    one.ebbtide(
        *(
            "clusters",
            "import",
            CLUSTER,
            "--kubeconfig",
            str(_account(one)),
            "--standard-selector",
            _selector(),
        ),
        *("--region", REGION, "--gpu-type", GPU_TYPE, "--preemptible-gpus", str(GPUS)),
        *("--volume", VOLUME, "--wait"),
    )


def _account(one: Scene) -> Path:
    """The kubeconfig of an account with the rights that Ebbtide asks for, and no others."""
    one.kubectl("apply", "--filename=-", stdin=run([_program("ebbtide"), "kube", "manifests"]))
    secret = (
        "get",
        "secret",
        "ebbtide-token",
        "--namespace=ebbtide-system",
        "--output=jsonpath={.data.token}",
    )
    token = until(lambda: one.kubectl(*secret) or None, "the account has a token")
    config = json.loads(one.kubectl.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": base64.b64decode(token).decode()}
    file = one.folder / "ebbtide.kubeconfig"
    file.touch(mode=0o600)
    file.write_text(json.dumps(config))
    return file


def _selector() -> str:
    return ",".join(f"{name}={value}" for name, value in objects.STANDARD.items())


def _program(name: str) -> str:
    return str(Path(sysconfig.get_path("scripts")) / name)
