"""A rack of pretended hosts: a Redfish controller over HTTP, `ssh` as a program on PATH, and what a host has.

Each host is a folder that stands for its root. Nothing happens by itself: `pass_time` ends boots and power
cuts and carries out the systemd units that were started. The real `host.sh` runs on them.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
import threading
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

HOST_SH = Path(__file__).resolve().parents[3] / "examples" / "bare-metal" / "host.sh"
LOGIN = "Basic " + base64.b64encode(b"admin:secret").decode()

# Programs of a host. $EBBTIDE_ROOT is the host.
_PROGRAMS = {
    "ssh": """
for target; do before=${last:-}; last=$target; done      # ssh ... TARGET COMMAND
root="$RACK/${before#root@}"
echo "$@" >>"$RACK/ssh.log"
[ "$(cat "$root/power")" = On ] || { echo "connect: No route to host" >&2; exit 255; }
[ ! -e "$root/hung" ] || { echo "connect: timed out" >&2; exit 255; }
EBBTIDE_ROOT=$root; export EBBTIDE_ROOT
eval "exec $last"
""",
    "ebbtide-host": f"""exec sh {shlex.quote(str(HOST_SH))} "$@" """,
    "kubeadm": """
case $1 in
join)
    [ ! -e "$EBBTIDE_ROOT/broken" ] || { echo "error: the CRI endpoint does not answer" >&2; exit 1; }
    cp "$EBBTIDE_ROOT/run/ebbtide/join.json" "$EBBTIDE_ROOT/joined-with"
    cp "$EBBTIDE_ROOT/run/ebbtide/discovery.json" "$EBBTIDE_ROOT/joined-by"
    mkdir -p "$EBBTIDE_ROOT/var/lib/kubelet/pods"
    touch "$EBBTIDE_ROOT/kubelet-enabled" "$EBBTIDE_ROOT/kubelet-active" ;;
reset) rm -f "$EBBTIDE_ROOT/kubelet-active" ;;
esac
""",
    "systemctl": """
case "$*" in
"is-active --quiet kubelet") [ -e "$EBBTIDE_ROOT/kubelet-active" ] ;;
"is-active --quiet "*) [ -e "$EBBTIDE_ROOT/units/$3" ] ;;
"disable --quiet kubelet") rm -f "$EBBTIDE_ROOT/kubelet-enabled" ;;
"start kubelet") touch "$EBBTIDE_ROOT/kubelet-active" ;;
"stop ebbtide-join") rm -f "$EBBTIDE_ROOT/units/ebbtide-join" ;;
esac
""",
    "systemd-run": """
for word; do case $word in --unit=*) unit=${word#--unit=}; shift; break ;; *) shift ;; esac; done
mkdir -p "$EBBTIDE_ROOT/units"
printf '%s\\n' "$@" >"$EBBTIDE_ROOT/units/$unit"
""",
    "blkdiscard": """
[ ! -e "$EBBTIDE_ROOT/disk-broken" ] || { echo "blkdiscard: $2: Input/output error" >&2; exit 1; }
echo "$2" >>"$EBBTIDE_ROOT/discarded"
""",
}


class Rack(AbstractContextManager["Rack"]):
    """hosts: names, each with its pool."""

    def __init__(self, folder: Path, hosts: dict[str, str]) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name, lines in _PROGRAMS.items():
            (self.bin / name).write_text("#!/bin/sh\n" + lines)
            (self.bin / name).chmod(0o755)
        self.tags = dict.fromkeys(hosts, "")
        self.pending: dict[str, str] = {}  # host: what its power is about to be
        self.asked: list[tuple[str, str, Any]] = []
        self.silent: set[str] = set()  # hosts whose controllers do not answer
        for name in hosts:
            self.root(name).mkdir()
            self.write(name, "power", "Off")
            self.write(name, "etc/ebbtide/data-disks", "/dev/nvme1n1\n/dev/nvme2n1\n")
            self._new_boot(name)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _controller(self))
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()
        self.config = folder / "bare-metal.json"
        (folder / "password").write_text("secret\n")
        self.config.write_text(
            json.dumps({"hosts": {name: self._entry(name, pool) for name, pool in hosts.items()}})
        )

    def _entry(self, name: str, pool: str) -> dict[str, str]:
        return {
            "pool": pool,
            "ssh": f"root@{name}",
            "redfish": f"http://127.0.0.1:{self._server.server_port}/redfish/v1/Systems/{name}",
            "bmc_user": "admin",
            "bmc_password_file": str(self.folder / "password"),
        }

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def root(self, host: str) -> Path:
        return self.folder / host

    def read(self, host: str, name: str) -> str:
        return (self.root(host) / name).read_text().strip()

    def has(self, host: str, name: str) -> bool:
        return (self.root(host) / name).exists()

    def write(self, host: str, name: str, text: str = "") -> None:
        path = self.root(host) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def remove(self, host: str, name: str) -> None:
        (self.root(host) / name).unlink(missing_ok=True)

    def resets(self, host: str) -> list[str]:
        return [body["ResetType"] for method, name, body in self.asked if (method, name) == ("POST", host)]

    def pass_time(self) -> None:
        """Power changes are over, and units that run have ended."""
        for host, power in list(self.pending.items()):
            del self.pending[host]
            self.write(host, "power", power)
            if power == "On":
                self._new_boot(host)
        for host in self.tags:
            if self.read(host, "power") == "On":
                for unit in sorted((self.root(host) / "units").glob("*")):
                    argv = unit.read_text().splitlines()
                    unit.unlink()
                    subprocess.run(["sh", *argv], env=self.environment(host), check=False, timeout=20)

    def environment(self, host: str) -> dict[str, str]:
        path = f"{self.bin}:{os.environ['PATH']}"
        return {"PATH": path, "RACK": str(self.folder), "EBBTIDE_ROOT": str(self.root(host))}

    def reset(self, host: str, kind: str) -> None:
        """What a controller does: power off and restarts end everything on the host at once."""
        if kind == "GracefulRestart" and self.has(host, "hung"):
            return
        if kind != "On":
            self.remove(host, "kubelet-active")
            for unit in (self.root(host) / "units").glob("*"):
                unit.unlink()
        self.pending[host] = "Off" if kind == "ForceOff" else "On"
        if kind in ("GracefulRestart", "ForceRestart"):
            self.write(host, "power", "Off")

    def _new_boot(self, host: str) -> None:
        self.write(host, "proc/sys/kernel/random/boot_id", f"{uuid4()}\n")
        if self.has(host, "kubelet-enabled"):
            self.write(host, "kubelet-active")


def _controller(rack: Rack) -> type[BaseHTTPRequestHandler]:
    class Controller(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            parts = self.path.removeprefix("/redfish/v1/Systems/").split("/", 1)
            name, action = parts[0], parts[1] if len(parts) > 1 else ""
            rack.asked.append((self.command, name, body))
            if name in rack.silent:
                self.send_error(503)
                return
            if self.headers.get("authorization") != LOGIN:
                self.send_error(401)
                return
            answer: Any = {}
            match self.command, action:
                case "GET", "":
                    power = rack.read(name, "power")
                    if name in rack.pending:
                        power = f"Powering{rack.pending[name]}"
                    answer = {"PowerState": power, "AssetTag": rack.tags[name]}
                case "PATCH", "":
                    rack.tags[name] = body["AssetTag"]
                case "POST", "Actions/ComputerSystem.Reset":
                    rack.reset(name, body["ResetType"])
                case _:
                    self.send_error(404)
                    return
            text = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = _handle  # noqa: N815  # the names that the library calls

        def log_message(self, *_: object) -> None:
            return

    return Controller
