"""One machine: containerd, its images, a kubelet and a device plugin, as process 1 of namespaces of its own.

    unshare --pid --fork --mount --uts --ipc --mount-proc --propagation private python machine.py FOLDER

Whatever runs on the machine, containers included, lives in its process namespace, so the end of this process
is a power cut: the kernel ends all the others with it. Mounts, pods' network namespaces and their interfaces
go the same way. What a machine keeps lies in FOLDER/disk; what it writes to the system's own places (/run,
/var/lib, sysctls) it sees and nobody else does.

FOLDER/order.json says what to be; FOLDER/progress is what has been reached, one word and maybe a reason.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_CONTAINERD = "/run/containerd/containerd.sock"
_CONTAINERD_LIMIT_S = 30
_PAUSE_S = 1.0  # before a service that ended is started again

# Both programs insist on these paths, or keep them under names that cannot be changed.
PRIVATE = {
    "kubelet": "/var/lib/kubelet",
    "containerd": "/var/lib/containerd",
    "cni": "/var/lib/cni",
    "log": "/var/log",
}

# What the kubelet and the network plugin set on a machine of their own. Here they find it set, and those of
# the machine that all of this runs on stay as they are.
_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
    "net/ipv4/ip_forward": "1",
}


def main(folder: Path) -> None:
    order: dict[str, Any] = json.loads((folder / "order.json").read_text())
    lab: dict[str, Any] = json.loads((folder.parent.parent / "lab.json").read_text())
    threading.Thread(target=_hang_on_the_cord, args=[folder.parent.parent / "cord"], daemon=True).start()
    socket.sethostname(order["node_name"])
    _arrange(folder)
    _write_configuration(folder, order, lab)
    services = {"containerd": ["containerd", "--config", str(folder / "containerd.toml")]}
    running = {name: _start(folder, name, command) for name, command in services.items()}
    _wait_for_containerd()
    for image in lab["images"]:
        _import(image, _snapshotter(folder))
    services["kubelet"] = _kubelet(folder, order, lab)
    if order["gpus"]:
        plugin = [sys.executable, str(_HERE / "device_plugin.py"), "--count", str(order["gpus"])]
        services["device-plugin"] = plugin
    for name in list(services)[1:]:
        running[name] = _start(folder, name, services[name])
    _say(folder, "up")
    _keep_running(folder, services, running)


def _hang_on_the_cord(cord: Path) -> None:
    """End with whoever holds this lab, if anybody does: after their `kill -9` nobody else would."""
    if cord.exists():
        with cord.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            os._exit(1)


def _arrange(folder: Path) -> None:
    """The machine's own view of the file system."""
    _mount("tmpfs", "/run", kind="tmpfs")
    lab = folder.parent.parent
    opened = {str(lab): os.open(lab, os.O_RDONLY)}  # held open: the lab may lie in what is covered now
    for name, place in PRIVATE.items():
        (folder / "disk" / name).mkdir(parents=True, exist_ok=True)
        opened[place] = os.open(folder / "disk" / name, os.O_RDONLY)
    _cover("/var/lib")
    for place, held in opened.items():
        Path(place).mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{held}", place, flags=_BIND)
        os.close(held)
    values = Path("/run/sysctls")
    values.mkdir()
    for number, (name, value) in enumerate(_SYSCTLS.items()):
        (values / str(number)).write_text(f"{value}\n")
        _mount(str(values / str(number)), f"/proc/sys/{name}", flags=_BIND)


def _cover(place: str) -> None:
    """What is written there from now on stays in the machine's memory: nothing of it is seen outside."""
    upper, work = (
        Path("/run/covers", place.strip("/"), "upper"),
        Path("/run/covers", place.strip("/"), "work"),
    )
    upper.mkdir(parents=True)
    work.mkdir()
    _mount("overlay", place, kind="overlay", options=f"lowerdir={place},upperdir={upper},workdir={work}")


_BIND = 4096
_libc = ctypes.CDLL(None, use_errno=True)


def _mount(source: str, place: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    texts = [text.encode() for text in (source, place, kind)]
    if _libc.mount(*texts, ctypes.c_ulong(flags), options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {source} at {place}")


def _snapshotter(folder: Path) -> str:
    """`overlayfs` where the disk can do it; the slower `native` where the disk is an overlay itself."""
    disk = folder / "disk" / "try"
    for name in ("lower", "upper", "work", "merged"):
        (disk / name).mkdir(parents=True, exist_ok=True)
    where = f"lowerdir={disk / 'lower'},upperdir={disk / 'upper'},workdir={disk / 'work'}"
    try:
        _mount("overlay", str(disk / "merged"), kind="overlay", options=where)
    except OSError:
        return "native"
    _libc.umount(str(disk / "merged").encode())
    return "overlayfs"


def _write_configuration(folder: Path, order: dict[str, Any], lab: dict[str, Any]) -> None:
    disk = folder / "disk"
    for name in ("cni-configuration", "manifests", "volume-plugins"):
        (disk / name).mkdir(parents=True, exist_ok=True)
    containerd = (_HERE / "containerd.toml").read_text()
    filled = {"snapshotter": _snapshotter(folder), "pause": lab["pause"], "plugins": lab["cni_plugins"]}
    for name, value in {**filled, "configuration": str(disk / "cni-configuration")}.items():
        containerd = containerd.replace(f"@{name}@", value)
    (folder / "containerd.toml").write_text(containerd)
    address_range = [[{"subnet": order["subnet"]}]]
    network = {
        "cniVersion": "0.4.0",
        "name": "machine",
        "plugins": [{"type": "ptp", "mtu": 1400, "ipam": {"type": "host-local", "ranges": address_range}}],
    }
    (disk / "cni-configuration" / "10-machine.conflist").write_text(json.dumps(network))
    (disk / "resolv.conf").write_text("nameserver 127.0.0.1\n")  # nobody answers: pods here look up no names
    (disk / "authority.crt").write_text(order["join"]["ca"])
    cluster = {"server": order["join"]["server"], "certificate-authority": str(disk / "authority.crt")}
    join = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "join", "cluster": cluster}],
        "users": [{"name": "join", "user": {"token": order["join"]["token"]}}],
        "contexts": [{"name": "join", "context": {"cluster": "join", "user": "join"}}],
        "current-context": "join",
    }
    (disk / "join.kubeconfig").write_text(json.dumps(join))
    (disk / "join.kubeconfig").chmod(0o600)


def _kubelet(folder: Path, order: dict[str, Any], lab: dict[str, Any]) -> list[str]:
    """The kubelet's command line. Writes its configuration; the port is free now."""
    disk = folder / "disk"
    address = order["address"]
    nothing_is_scarce = {"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%"}
    nothing_is_scarce |= {"imagefs.available": "0%", "imagefs.inodesFree": "0%"}
    configuration = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "port": _free_port(address),
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(disk / "authority.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "rotateCertificates": True,
        "registerWithTaints": [taint(text) for text in order["taints"]],
        "containerRuntimeEndpoint": f"unix://{_CONTAINERD}",
        "resolvConf": str(disk / "resolv.conf"),
        "staticPodPath": str(disk / "manifests"),
        "volumePluginDir": str(disk / "volume-plugins"),
        # No cgroups but the containers' own: the machine does not have the host's tree to itself.
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        # Several machines share one memory and one disk: none of them may judge that these run out.
        "evictionHard": nothing_is_scarce,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "nodeStatusUpdateFrequency": "2s",
    }
    (folder / "kubelet.json").write_text(json.dumps(configuration, indent=2))
    labels = ",".join(f"{name}={value}" for name, value in order["labels"].items())
    return [
        lab["kubelet"],
        f"--config={folder / 'kubelet.json'}",
        f"--bootstrap-kubeconfig={disk / 'join.kubeconfig'}",
        f"--kubeconfig={PRIVATE['kubelet']}/kubeconfig",
        f"--hostname-override={order['node_name']}",
        f"--node-ip={address}",
        f"--node-labels={labels}",
    ]


def taint(text: str) -> dict[str, str]:
    """`key=value:Effect` as the kubelet wants it."""
    rest, _, effect = text.rpartition(":")
    key, _, value = rest.partition("=")
    return {"key": key, "value": value, "effect": effect}


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for_containerd() -> None:
    late = time.monotonic() + _CONTAINERD_LIMIT_S
    while time.monotonic() < late:
        with socket.socket(socket.AF_UNIX) as probe:
            if Path(_CONTAINERD).exists() and probe.connect_ex(_CONTAINERD) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"containerd did not answer within {_CONTAINERD_LIMIT_S} s")


def _import(image: str, snapshotter: str) -> None:
    command = ["ctr", "--address", _CONTAINERD, "--namespace", "k8s.io", "images", "import"]
    subprocess.run([*command, "--snapshotter", snapshotter, image], check=True, timeout=120)


def _start(folder: Path, name: str, command: list[str]) -> int:
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/").pid


def _keep_running(folder: Path, services: dict[str, list[str]], running: dict[str, int]) -> None:
    """What process 1 does: bury the dead, and start services again that ended."""
    while True:
        ended, _ = os.wait()
        for name, pid in list(running.items()):
            if pid == ended:
                print(f"{name} ended; starting it again", flush=True)
                time.sleep(_PAUSE_S)
                running[name] = _start(folder, name, services[name])


def _say(folder: Path, text: str) -> None:
    staging = folder / "progress.new"
    staging.write_text(text)
    staging.replace(folder / "progress")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Exception as error:
        _say(Path(sys.argv[1]), f"failed {error}")
        raise
