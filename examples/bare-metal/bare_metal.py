#!/usr/bin/env python3
"""Bare metal for Ebbtide's provider `exec`: kubeadm over ssh, power by Redfish. One program for all verbs.

    bare_metal.py CONFIG < question.json

Whose machine a host is, its management controller says: the node's uid is the system's AssetTag. That can
be read and written while the host is off, or hangs. On the host itself, `ebbtide-host` (host.sh beside this
file) does the work; it is asked over ssh and answers at once, slow work goes on in the background there.
"""

from __future__ import annotations

import base64
import json
import shlex
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

NO_CAPACITY, LATER, NEVER = 69, 75, 78
Json = dict[str, Any]


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    asked = json.load(sys.stdin)
    if asked["verb"] == "list":
        answer = list_(config, asked["pool"])
    else:
        machine = Machine(the_host(config, asked["host_name"]), config, asked)
        answer = VERBS[asked["verb"]](machine)
    print(json.dumps(answer))


def give_up(code: int, why: str) -> NoReturn:
    print(why, file=sys.stderr)
    sys.exit(code)


def the_host(config: Json, name: str) -> Json:
    hosts: dict[str, Json] = config["hosts"]
    if name not in hosts:
        give_up(NEVER, f"host {name} is not in the configuration")
    return hosts[name]


# --- the management controller


class Redfish:
    """One system of a management controller."""

    def __init__(self, host: Json, config: Json) -> None:
        self._url = host["redfish"]
        word = f"{host['bmc_user']}:{Path(host['bmc_password_file']).read_text(encoding='utf-8').strip()}"
        self._login = "Basic " + base64.b64encode(word.encode()).decode()
        self._tls = ssl.create_default_context(cafile=config.get("bmc_ca"))

    def system(self) -> Json:
        return self._call("GET", "")

    def reset(self, kind: str) -> None:
        self._call("POST", "/Actions/ComputerSystem.Reset", {"ResetType": kind})

    def tag(self, text: str) -> None:
        self._call("PATCH", "", {"AssetTag": text})

    def _call(self, method: str, path: str, body: Json | None = None) -> Json:
        request = urllib.request.Request(self._url + path, method=method)  # noqa: S310  # the operator's URL
        request.add_header("Authorization", self._login)
        request.add_header("Content-Type", "application/json")
        data = json.dumps(body).encode() if body is not None else None
        tls = self._tls if self._url.startswith("https:") else None
        try:
            with urllib.request.urlopen(request, data, timeout=8, context=tls) as answer:  # noqa: S310
                text = answer.read()
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            give_up(LATER, f"the management controller {self._url} does not answer: {error}")
        found = json.loads(text) if text.strip() else {}
        return found if isinstance(found, dict) else {}


# --- a host and the node that is to be on it


@dataclass(frozen=True)
class HostState:
    """What `ebbtide-host` says: a word, which boot of the host said it, and details."""

    word: str
    boot: str
    detail: str


class Machine:
    def __init__(self, host: Json, config: Json, asked: Json) -> None:
        self.asked = asked
        self.uid: str = asked["node_uid"]
        self.memory: Json = json.loads(asked["handle"] or "{}")
        self.redfish = Redfish(host, config)
        self._ssh: str = host["ssh"]
        self._options: list[str] = config.get("ssh_options", [])
        system = self.redfish.system()
        self.tag = str(system.get("AssetTag") or "")
        self.on = system.get("PowerState") != "Off"  # a state in between is not off

    @property
    def is_ours(self) -> bool:
        return self.tag == short(self.uid)

    def answer(self, **found: Any) -> Json:
        """An answer with all that the next call must know."""
        return {"address": self._ssh.rpartition("@")[2], "handle": json.dumps(self.memory), **found}

    def host(self, verb: str, words: str = "") -> HostState | None:
        """Ask the host; None while it cannot be reached."""
        command = shlex.join(["ebbtide-host", verb, self.uid])
        argv = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", *self._options, self._ssh, command]
        try:
            run = subprocess.run(argv, input=words, capture_output=True, text=True, timeout=12, check=False)
        except subprocess.TimeoutExpired:
            return None
        print(run.stderr.strip(), file=sys.stderr)  # it is kept with the node
        if run.returncode == 255:  # ssh's own
            return None
        if run.returncode != 0:
            give_up(LATER, f"ebbtide-host {verb} ended with {run.returncode}")
        word, boot, *detail = run.stdout.strip().split(" ", 2)
        return HostState(word, boot, detail[0] if detail else "")


def short(uid: str) -> str:
    return uid.replace("-", "")


def long(tag: str) -> str | None:
    """The node's uid that an asset tag holds, if it is one of ours."""
    if len(tag) != 32 or set(tag) - set("0123456789abcdef"):
        return None
    return f"{tag[:8]}-{tag[8:12]}-{tag[12:16]}-{tag[16:20]}-{tag[20:]}"


# --- verbs


def create(machine: Machine) -> Json:
    if long(machine.tag) and not machine.is_ours:
        give_up(NO_CAPACITY, f"the host still has node {long(machine.tag)}")
    if not machine.is_ours:
        machine.redfish.tag(short(machine.uid))
    machine.memory["phase"] = "coming"
    return _advance(machine)


def status(machine: Machine) -> Json:
    if not machine.is_ours:
        return {"state": "not_found"}
    if machine.memory.get("phase") == "coming":
        return _advance(machine)
    if not machine.on:
        return machine.answer(state="stopped")
    return _running(machine)


def _advance(machine: Machine) -> Json:
    """The next step on the way up; each is begun here and looked at by the next call."""
    if not machine.on:
        machine.redfish.reset("On")
        return machine.answer(state="starting", why="powering on")
    found = machine.host("state")
    if found is None:
        return machine.answer(state="starting", why="waiting for ssh")
    if found.word == "failed":
        return machine.answer(state="failed", why=found.detail)
    wiped_by = found.detail if found.word in ("wiped", "joining", "joined") else ""
    if found.word in ("none", "wiped"):
        first = machine.asked["wipe_first"] and not wiped_by
        found = machine.host("wipe") if first else machine.host("join", _join(machine.asked))
    if found is not None and found.word == "down":
        found = machine.host("start")
    if found is not None and found.word == "joined":
        machine.memory["phase"] = "joined"
        return machine.answer(state="up", wiped_by=wiped_by)
    return machine.answer(state="starting", wiped_by=wiped_by, why=found.word if found else "")


def _running(machine: Machine) -> Json:
    """One that has joined; after a restart its kubelet has to be started again: it is not by itself."""
    found = machine.host("state")
    back = found is not None and found.boot != machine.memory.get("boot_before")
    if found is not None and back and found.word == "down":
        found = machine.host("start")
    if found is None or not back:
        state = "starting" if "boot_before" in machine.memory else "up"  # whether it hangs, Ebbtide sees
        return machine.answer(state=state, why="it does not answer")
    return machine.answer(state="up")


def _join(asked: Json) -> str:
    """Two lines: kubeadm's configuration, and the kubeconfig by which it finds and trusts the cluster."""
    join = asked["join"]
    taints = []
    for text in asked["taints"]:
        mark, _, effect = text.rpartition(":")
        key, _, value = mark.partition("=")
        taints.append({"key": key, "value": value, "effect": effect})
    labels = ",".join(f"{key}={value}" for key, value in asked["labels"].items())
    config = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "JoinConfiguration",
        "discovery": {
            "file": {"kubeConfigPath": "/run/ebbtide/discovery.json"},
            "tlsBootstrapToken": join["token"],
        },
        "nodeRegistration": {
            "name": asked["node_name"],
            "taints": taints,
            "kubeletExtraArgs": [{"name": "node-labels", "value": labels}],
        },
    }
    authority = base64.b64encode(join["ca"].encode()).decode()
    cluster = {"server": join["server"], "certificate-authority-data": authority}
    discovery = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "join", "cluster": cluster}],
        "contexts": [{"name": "join", "context": {"cluster": "join", "user": ""}}],
        "current-context": "join",
    }
    return f"{json.dumps(config)}\n{json.dumps(discovery)}\n"


def stop(machine: Machine) -> Json:
    if not machine.is_ours:
        return {"stopped": True}
    machine.memory["phase"] = "stopped"
    if machine.on:
        machine.redfish.reset("ForceOff")
        machine.on = machine.redfish.system().get("PowerState") != "Off"
    return machine.answer(stopped=not machine.on, why="the power is not off yet")


def delete(machine: Machine) -> Json:
    """Wipe while it is still marked as this node's; the mark goes last."""
    if not machine.is_ours:
        return {"gone": True, "wiped_by": "nothing of this node is on the host"}
    machine.memory["phase"] = "leaving"
    if not machine.on:
        machine.redfish.reset("On")
        return machine.answer(gone=False, why="powering on, to be wiped")
    always = machine.asked["wipe"] == "always"
    found = machine.host("wipe" if always else "reset")
    if found is None or not (found.word == "wiped" or (found.word == "none" and not always)):
        return machine.answer(gone=False, why=found.word if found else "waiting for ssh")
    machine.redfish.tag("")
    return {"gone": True, "wiped_by": found.detail if found.word == "wiped" else None}


def reboot(machine: Machine) -> Json:
    """A restart once for each `ref`; it is over when another boot of the host answers."""
    if not machine.is_ours:
        return {"state": "not_found"}
    if machine.memory.get("ref") == machine.asked["ref"]:
        return _running(machine)
    found = machine.host("state")
    machine.memory |= {"ref": machine.asked["ref"], "boot_before": found.boot if found else "hung"}
    machine.redfish.reset("ForceRestart" if machine.asked["power"] else "GracefulRestart")
    return machine.answer(state="starting", why="restarting")


def list_(config: Json, pool: str) -> Json:
    """Hosts of the pool that are marked; one whose controller is silent is left out and said."""
    hosts = {name: host for name, host in config["hosts"].items() if host["pool"] == pool}

    def look(name: str) -> Json | None:
        try:
            system = Redfish(hosts[name], config).system()
        except SystemExit:  # it was said why
            return None
        uid = long(str(system.get("AssetTag") or ""))
        state = "stopped" if system.get("PowerState") == "Off" else "up"
        return {"node_uid": uid, "instance_id": name, "host_name": name, "state": state} if uid else None

    with ThreadPoolExecutor(32) as threads:
        return {"instances": [found for found in threads.map(look, hosts) if found]}


VERBS: dict[str, Callable[[Machine], Json]] = {
    "create": create,
    "status": status,
    "stop": stop,
    "delete": delete,
    "reboot": reboot,
}

if __name__ == "__main__":
    main()
