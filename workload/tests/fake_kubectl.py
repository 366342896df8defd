"""A kubectl for tests: a cluster of one Job whose pods are local processes, kept in the folder FAKE_CLUSTER.

`python fake_kubectl.py --kubelet N` runs pod N to its end and, when it was deleted, makes the next one, as a
Job's controller does. Everything else is called the way the rehearsal calls kubectl.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(os.environ["FAKE_CLUSTER"])
TICK_S = 0.02
LONGEST_S = 60.0


def settings() -> dict[str, Any]:
    """command, grace_s, mode ("good", "counts", "fails", "gone")."""
    return dict(json.loads((ROOT / "settings.json").read_text()))


def kubelet(number: int) -> None:
    """Run one pod; obey its deletion; then let the controller act."""
    pod = ROOT / f"pod-{number}"
    pod.mkdir()
    with (pod / "log").open("wb") as log:
        env = {**os.environ, "EBBTIDE_REHEARSAL_FILE": "/dev/stdout"}
        child = subprocess.Popen(
            settings()["command"], stdout=log, stderr=log, env=env, start_new_session=True
        )
    (pod / "running").touch()
    born, asked = time.monotonic(), None
    grace_s = 0.0
    while child.poll() is None:
        now = time.monotonic()
        if (ROOT / "stop").exists() or now - born > LONGEST_S:
            child.kill()
        if asked is None and (pod / "delete").exists():
            asked, grace_s = now, float((pod / "delete").read_text())
            child.send_signal(signal.SIGTERM)
        if asked is not None and now - asked > grace_s:
            child.kill()
        time.sleep(TICK_S)
    code = child.returncode
    (pod / "exit").write_text(str(128 - code if code < 0 else code))
    if asked is not None and not (ROOT / "stop").exists() and settings()["mode"] != "fails":
        start_kubelet(number + 1)


def start_kubelet(number: int) -> None:
    """A kubelet of its own, which outlives the caller."""
    subprocess.Popen([sys.executable, __file__, "--kubelet", str(number)], start_new_session=True)


def pod_object(pod: Path) -> dict[str, Any]:
    """The pod as the API shows it."""
    ended = (pod / "exit").exists()
    meta: dict[str, Any] = {
        "name": pod.name,
        "uid": f"uid-{pod.name}",
        "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
    }
    if (pod / "delete").exists():
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    state: dict[str, Any] = {"running": {}}
    if ended:
        state = {"terminated": {"exitCode": int((pod / "exit").read_text())}}
    return {
        "metadata": meta,
        "spec": {
            "terminationGracePeriodSeconds": settings()["grace_s"],
            "containers": [{"name": "train", "command": settings()["command"]}],
        },
        "status": {
            "phase": "Failed" if ended else "Running" if (pod / "running").exists() else "Pending",
            "containerStatuses": [{"name": "train", "state": state}],
        },
    }


def job_object() -> dict[str, Any]:
    """The Job; in mode "counts" each preemption is a failure, in mode "fails" the first one ends it."""
    ended = sum(1 for pod in ROOT.glob("pod-*") if (pod / "exit").exists())
    mode = settings()["mode"]
    status: dict[str, Any] = {"failed": ended if mode in ("counts", "fails") else 0}
    if mode == "fails" and ended:
        status["conditions"] = [{"type": "Failed", "status": "True"}]
    return {"spec": {"selector": {"matchLabels": {"job-name": "train"}}}, "status": status}


def follow(pod: Path) -> None:
    """`logs --follow`: until the pod has ended and everything is told."""
    until = time.monotonic() + LONGEST_S
    with (pod / "log").open("rb") as log:
        while time.monotonic() < until:
            ended = (pod / "exit").exists() or (ROOT / "stop").exists()
            sys.stdout.buffer.write(log.read())
            sys.stdout.buffer.flush()
            if ended:
                return
            time.sleep(TICK_S)


def main(words: list[str]) -> int:
    """One call of kubectl."""
    with (ROOT / "calls").open("a") as calls:
        calls.write(" ".join(words) + "\n")
    while words and words[0] in ("--context", "--namespace"):
        words = words[2:]
    verb, rest = words[0], words[1:]
    if settings()["mode"] == "gone" or (verb == "get" and rest[0] == "job" and rest[1] != "train"):
        print('Error from server (NotFound): jobs.batch "x" not found', file=sys.stderr)
        return 1
    if verb == "get" and rest[0] == "job":
        print(json.dumps(job_object()))
    elif verb == "get" and rest[0] == "pods":
        print(json.dumps({"items": [pod_object(p) for p in sorted(ROOT.glob("pod-*"))]}))
    elif verb == "get":
        print(json.dumps(pod_object(ROOT / rest[1])))
    elif verb == "patch":
        (ROOT / rest[1] / "condition").write_text(rest[-1])
    elif verb == "delete":
        grace = next(w.split("=")[1] for w in rest if w.startswith("--grace-period="))
        (ROOT / rest[1] / "delete.new").write_text(grace)
        (ROOT / rest[1] / "delete.new").rename(ROOT / rest[1] / "delete")
    elif verb == "logs":
        follow(ROOT / rest[1])
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "--kubelet":
        kubelet(int(sys.argv[2]))
    else:
        sys.exit(main(sys.argv[1:]))
