"""The programs of Ebbtide's provider `exec` for real kubelets on this machine: `programs.py --lab DIR VERB`.

One JSON object comes on standard input, one goes to standard output. What each answered, and when, is kept in
DIR/journal.jsonl. Exit codes: 0; 75 try again later; 78 this never works.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hosts import WIPED_BY, Busy, Instance, Lab, NotPossible, missing

Json = dict[str, Any]
TRY_AGAIN, NEVER = 75, 78


def _facts(lab: Lab, instance: Instance) -> Json:
    state, why = lab.state(instance)
    return {
        "state": state,
        "why": why,
        "instance_id": instance.host,
        "address": instance.address,
        "wiped_by": WIPED_BY if instance.wiped_first else None,
        "handle": instance.host,
    }


def create(lab: Lab, asked: Json) -> Json:
    return _facts(lab, lab.create(asked))


def status(lab: Lab, asked: Json) -> Json:
    instance = lab.find(asked["node_uid"])
    return {"state": "not_found"} if instance is None else _facts(lab, instance)


def stop(lab: Lab, asked: Json) -> Json:
    instance = lab.find(asked["node_uid"])
    return {"stopped": instance is None or lab.stop(instance)}


def reboot(lab: Lab, asked: Json) -> Json:
    """A restart of such a machine and a power cycle are the same."""
    instance = lab.find(asked["node_uid"])
    return {"state": "not_found"} if instance is None else _facts(lab, lab.restart(instance, asked["ref"]))


def delete(lab: Lab, asked: Json) -> Json:
    instance = lab.find(asked["node_uid"])
    if instance is None:  # an answer that was lost: a host is free only once it was treated as its pool asks
        return {"gone": True, "wiped_by": WIPED_BY if asked.get("wipe") == "always" else None}
    return {"gone": True, "wiped_by": lab.delete(instance)}


def list_all(lab: Lab, asked: Json) -> Json:
    """Every machine of a pool. Those that were started by hand are in none: nobody else's to clear away."""
    instances = (lab.instance(host) for host in lab.hosts())
    found = [each for each in instances if each is not None and each.pool == asked["pool"]]
    facts = [{**_facts(lab, each), "node_uid": each.node_uid, "host_name": each.host} for each in found]
    return {"instances": facts}


VERBS: dict[str, Callable[[Lab, Json], Json]] = {
    "create": create,
    "status": status,
    "stop": stop,
    "reboot": reboot,
    "delete": delete,
    "list": list_all,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="machines with real kubelets, on this one")
    parser.add_argument("--lab", type=Path, required=True, help="the lab's folder, as lab.py made it")
    parser.add_argument("verb", choices=VERBS)
    options = parser.parse_args()
    lacking = missing()
    if lacking:
        print("; ".join(lacking), file=sys.stderr)
        return NEVER
    asked = json.load(sys.stdin)
    lab = Lab(options.lab.resolve())
    try:
        with lab.alone():
            answer = VERBS[options.verb](lab, asked)
            _note(lab, options.verb, asked, answer)
    except (Busy, NotPossible) as error:
        print(error, file=sys.stderr)
        return TRY_AGAIN if isinstance(error, Busy) else NEVER
    json.dump(answer, sys.stdout)
    return 0


def _note(lab: Lab, verb: str, asked: Json, answer: Json) -> None:
    if verb not in ("status", "list"):
        line = {
            "at": time.time(),
            "verb": verb,
            "node": asked.get("node_name"),
            "host": asked.get("host_name"),
            **answer,
        }
        with (lab.folder / "journal.jsonl").open("a") as journal:
            journal.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main())
