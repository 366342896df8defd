"""Machines in one JSON file, as a program of the provider `exec`: one for all verbs, in plain Python.

The file's folder is the first argument. `now` in it is the time; `ask` holds what was asked last.
"""

from __future__ import annotations

import fcntl
import json
import sys
from pathlib import Path
from typing import Any

BOOT_S, STOP_S, WIPE_S, RESTART_S = 30, 5, 20, 15


def main() -> None:
    folder = Path(sys.argv[1])
    asked = json.load(sys.stdin)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = folder / "machines.json"
        machines: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        now = float((folder / "now").read_text())
        (folder / "ask").write_text(json.dumps(asked))
        answer = VERBS[asked["verb"]](asked, machines, now)
        path.write_text(json.dumps(machines))
    print(f"{asked['verb']} done", file=sys.stderr)
    print(json.dumps(answer))


def create(asked: dict[str, Any], machines: dict[str, Any], now: float) -> dict[str, Any]:
    uid = asked["node_uid"]
    if uid not in machines:
        if any(one["host"] == asked["host_name"] for one in machines.values()):
            print("the host has another machine", file=sys.stderr)
            sys.exit(69)
        machines[uid] = {"host": asked["host_name"], "pool": asked["pool"], "up_at": now + BOOT_S, "refs": []}
    return _seen(machines[uid], now, uid)


def status(asked: dict[str, Any], machines: dict[str, Any], now: float) -> dict[str, Any]:
    uid = asked["node_uid"]
    return _seen(machines[uid], now, uid) if uid in machines else {"state": "not_found"}


def stop(asked: dict[str, Any], machines: dict[str, Any], now: float) -> dict[str, Any]:
    machine = machines.get(asked["node_uid"])
    if machine is None:
        return {"stopped": True}
    off_at = machine.setdefault("off_at", now + STOP_S)
    return {"stopped": off_at <= now, "why": "powering off"}


def delete(asked: dict[str, Any], machines: dict[str, Any], now: float) -> dict[str, Any]:
    machine = machines.get(asked["node_uid"])
    if machine is not None:
        clean_at = machine.setdefault("clean_at", now + WIPE_S)
        if clean_at > now:
            return {"gone": False, "why": "wiping", "handle": "wipe-1"}
        del machines[asked["node_uid"]]
    return {"gone": True, "wiped_by": "the file was cut"}


def list_(asked: dict[str, Any], machines: dict[str, Any], now: float) -> dict[str, Any]:
    held = [(uid, one) for uid, one in machines.items() if one["pool"] == asked["pool"]]
    return {"instances": [{"node_uid": uid, **_seen(one, now, uid)} for uid, one in held]}


def reboot(asked: dict[str, Any], machines: dict[str, Any], now: float) -> dict[str, Any]:
    uid = asked["node_uid"]
    if uid not in machines:
        return {"state": "not_found"}
    machine = machines[uid]
    if asked["ref"] not in machine["refs"]:
        machine["refs"].append(asked["ref"])
        machine["up_at"] = now + RESTART_S
    return _seen(machine, now, uid)


def _seen(machine: dict[str, Any], now: float, uid: str) -> dict[str, Any]:
    state = "starting" if machine["up_at"] > now else "up"
    if machine.get("off_at", now + 1) <= now:
        state = "stopped"
    return {
        "state": state,
        "instance_id": f"m-{uid[:8]}",
        "host_name": machine["host"],
        "address": "192.0.2.7",
    }


VERBS = {"create": create, "status": status, "stop": stop, "delete": delete, "list": list_, "reboot": reboot}

if __name__ == "__main__":
    main()
