"""The hosts of a lab: folders, each of which can be powered on as one machine.

LAB/lab.json     what all machines are made with, see `Lab.make`
LAB/cord         while somebody holds a lock on it, machines live; without this file they live on their own
LAB/HOST/        one host: instance.json (whose machine it is), order.json, disk/, logs
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

_HERE = Path(__file__).resolve().parent
_CGROUPS = Path("/sys/fs/cgroup")
_NETWORKS = ipaddress.IPv4Network("198.18.0.0/15")  # set aside for tests of networks: nothing real has these
_STOP_LIMIT_S = 15.0
_START_LIMIT_S = 5.0
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_UNSHARE = [
    "unshare",
    "--pid",
    "--fork",
    "--mount",
    "--uts",
    "--ipc",
    "--mount-proc",
    "--propagation",
    "private",
]

WIPED_BY = "removal of the machine's folder"

NEEDED_PROGRAMS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "unshare": "util-linux",
    "ip": "iproute2",
    "ldd": "libc-bin",
}
CNI_PLACES = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))


class NotPossible(Exception):
    """This will not work however often it is tried."""


class Busy(Exception):
    """Not now: another node's machine is there, or something is still under way."""


def missing() -> list[str]:
    """What this machine lacks for local kubelets, in words with what helps; empty when all is there."""
    words = [] if os.geteuid() == 0 else ["root: network namespaces, mounts and cgroups need it"]
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
    packages = {package for program, package in NEEDED_PROGRAMS.items() if shutil.which(program) is None}
    if not any((place / "ptp").exists() for place in CNI_PLACES):
        packages.add("containernetworking-plugins")
    if packages:
        names = " ".join(sorted(packages))
        words.append(
            f"packages, by Debian's names: {names} (apt-get install --no-install-recommends {names})"
        )
    return words


@dataclass(frozen=True, slots=True)
class Instance:
    """One node's machine on a host.

    wiped_first: its host was wiped before it, as was asked
    pid, begun: the process that holds its namespaces (0: none) and when that started, in the kernel's ticks
    inner:      process 1 of its namespaces, as the host numbers it
    refs:       restarts that were asked for
    """

    node_uid: str
    node_name: str
    pool: str
    host: str
    address: str
    subnet: str
    wipe: str = "always"
    wiped_first: bool = False
    pid: int = 0
    begun: int = 0
    inner: int = 0
    refs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lab:
    """All hosts in one folder."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, *, kubelet: Path, images: Sequence[Path], pause: str) -> Self:
        """A lab in a folder on a disk (not in memory: containers' file systems are stacked there).

        images: archives of images that every machine has from its start
        pause:  the name of the one that holds pods together
        """
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        places = [place for place in CNI_PLACES if (place / "ptp").exists()]
        if not places:
            raise NotPossible("; ".join(missing()))
        facts = {"kubelet": str(kubelet), "images": list(map(str, images)), "pause": pause}
        _write(folder / "lab.json", {**facts, "cni_plugins": str(places[0])})
        return cls(folder)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Tie its machines to this process: they go when it ends, however it ends."""
        with (self.folder / "cord").open("w") as cord:
            fcntl.flock(cord, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    def abandoned(self) -> bool:
        """Whether it was tied to a process that is not there any more."""
        try:
            with (self.folder / "cord").open() as cord:
                fcntl.flock(cord, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (FileNotFoundError, BlockingIOError):
            return False
        return True

    def hosts(self) -> list[str]:
        """Names of the hosts that have been used."""
        return sorted(path.parent.name for path in (self.folder / "hosts").glob("*/instance.json"))

    def find(self, node_uid: str) -> Instance | None:
        """The machine of this node."""
        found = (self.instance(host) for host in self.hosts())
        return next((each for each in found if each is not None and each.node_uid == node_uid), None)

    def instance(self, host: str) -> Instance | None:
        """The machine that has this host."""
        try:
            facts = json.loads((self._host(host) / "instance.json").read_text())
        except FileNotFoundError:
            return None
        return Instance(**{**facts, "refs": tuple(facts["refs"])})

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """One change at a time in the whole lab. Raises Busy at once when another one is under way."""
        with (self.folder / "lock").open("w") as lock:
            late = time.monotonic() + _STOP_LIMIT_S
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > late:
                        raise Busy("another program works in this lab") from None
                    time.sleep(0.05)
            yield

    def create(self, order: Mapping[str, Any]) -> Instance:
        """Power a host on as this node's machine, or find the one that is there. Raises Busy, NotPossible."""
        host = order["host_name"]
        if not _NAME.fullmatch(host):
            raise NotPossible(f"a host's name is a DNS label, not {host!r}")
        join = order["join"]
        if not {"server", "ca", "token"} <= set(join):
            raise NotPossible("the order has no join data: server, ca and token")
        there = self.instance(host)
        if there is not None and there.node_uid != order["node_uid"]:
            raise Busy(f"{host} is the machine of node {there.node_name}")
        if there is not None:
            return there
        folder = self._host(host)
        if order.get("wipe_first") and folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "progress").unlink(missing_ok=True)
        wipe = order.get("wipe", "always")
        instance = Instance(
            order["node_uid"],
            order["node_name"],
            order.get("pool", ""),
            host,
            address(),
            self._subnet(),
            wipe,
            wiped_first=bool(order.get("wipe_first")),
        )
        facts = {name: order[name] for name in ("node_uid", "node_name", "gpus", "labels", "taints", "join")}
        _write(folder / "order.json", {**facts, "subnet": instance.subnet, "address": instance.address})
        _write(folder / "instance.json", asdict(instance))
        return self._power_on(instance)

    def state(self, instance: Instance) -> tuple[str, str]:
        """Its state as the programs call it, and why."""
        file = self._host(instance.host) / "progress"
        progress = file.read_text() if file.exists() else ""
        if runs(instance):
            return ("up", "") if progress == "up" else ("starting", "")
        if progress.startswith("failed"):
            return "failed", progress
        return "stopped", ""

    def stop(self, instance: Instance) -> bool:
        """Cut its power. True when nothing of it runs any more."""
        if runs(instance):
            with contextlib.suppress(ProcessLookupError):
                os.kill(instance.inner, signal.SIGKILL)
        late = time.monotonic() + _STOP_LIMIT_S
        while runs(instance):  # the holder ends when the kernel has ended everything inside
            if time.monotonic() > late:
                return False
            time.sleep(0.02)
        _remove_cgroups(self._host(instance.host) / "disk" / "containerd")
        return True

    def restart(self, instance: Instance, ref: str) -> Instance:
        """Power off and on; the same `ref` again begins no second restart."""
        if ref in instance.refs:
            return instance
        if not self.stop(instance):
            raise Busy("it does not stop")
        (self._host(instance.host) / "progress").unlink(missing_ok=True)
        return self._power_on(replace(instance, refs=(*instance.refs, ref)))

    def delete(self, instance: Instance) -> str | None:
        """Stop it and give the host back. Returns what wiped its disk, None if it was left. Raises Busy."""
        if not self.stop(instance):
            raise Busy("it does not stop")
        folder = self._host(instance.host)
        if instance.wipe == "always":
            shutil.rmtree(folder)
            return WIPED_BY
        shutil.rmtree(
            folder / "disk" / "kubelet", ignore_errors=True
        )  # who it was in its cluster always goes
        (folder / "instance.json").unlink()
        return None

    def clear(self) -> None:
        """End all machines and remove the lab."""
        for host in self.hosts():
            instance = self.instance(host)
            if instance is not None and not self.stop(instance):
                raise Busy(f"{host} does not stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _host(self, host: str) -> Path:
        return self.folder / "hosts" / host

    def _power_on(self, instance: Instance) -> Instance:
        folder = self._host(instance.host)
        with (folder / "console.log").open("ab") as log:
            holder = subprocess.Popen(
                [*_UNSHARE, sys.executable, str(_HERE / "machine.py"), str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
            )
        late = time.monotonic() + _START_LIMIT_S
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        while not (inner := children.read_text().split() if holder.poll() is None else []):
            if holder.poll() is not None or time.monotonic() > late:
                holder.kill()
                raise Busy(f"the machine did not start: {(folder / 'console.log').read_text()[-500:]}")
            time.sleep(0.01)
        begun = _begun(holder.pid)
        assert begun is not None
        running = replace(instance, pid=holder.pid, begun=begun, inner=int(inner[0]))
        _write(folder / "instance.json", asdict(running))
        return running

    def _subnet(self) -> str:
        """64 addresses for a machine's pods that nobody on this host has a route to."""
        listed = subprocess.run(
            ["ip", "-json", "route"], capture_output=True, text=True, check=True, timeout=10
        )
        routes = (route["dst"] for route in json.loads(listed.stdout) if route["dst"] != "default")
        used = [ipaddress.IPv4Network(text, strict=False) for text in routes]
        mine = (self.instance(host) for host in self.hosts())
        used += [ipaddress.IPv4Network(each.subnet) for each in mine if each is not None]
        choices = list(_NETWORKS.subnets(new_prefix=26))
        first = hash_of(self.folder.name) % len(choices)
        for subnet in (*choices[first:], *choices[:first]):
            if not any(subnet.overlaps(other) for other in used):
                return str(subnet)
        raise NotPossible("all networks for machines' pods are taken")


def runs(instance: Instance) -> bool:
    """Whether anything of it may still run."""
    return instance.pid != 0 and _begun(instance.pid) == instance.begun


def _begun(pid: int) -> int | None:
    """When a process started, in the kernel's ticks; None when it has ended."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if after_name[0] in "ZX" else int(after_name[19])


def address() -> str:
    """This machine's own address towards the outside; nothing is sent. Raises NotPossible without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            raise NotPossible(
                "kubelets need an address of this machine besides loopback; it has none"
            ) from None
        found: str = probe.getsockname()[0]
        return found


def hash_of(text: str) -> int:
    """The same number for the same text in every process."""
    return int.from_bytes(text.encode(), "big")


def _remove_cgroups(containerd: Path) -> None:
    """The empty cgroups that ended containers leave, in one tree (v2) or in a tree per controller (v1)."""
    ids = [path.name for path in containerd.glob("io.containerd.runtime.v2.task/k8s.io/*")]
    for root in (_CGROUPS, *(path for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink())):
        for name in ids:
            tree = root / "k8s.io" / name
            for path in (*sorted(tree.rglob("*/"), reverse=True), tree) if tree.exists() else ():
                with contextlib.suppress(OSError):
                    path.rmdir()
        with contextlib.suppress(OSError):  # not empty: another containerd's
            (root / "k8s.io").rmdir()


def _write(path: Path, content: Mapping[str, Any]) -> None:
    staging = path.with_suffix(".new")
    with open(os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(content, file, indent=2)
    staging.replace(path)
