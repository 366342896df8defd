"""A training job that takes a preemption as ebbtide-workload's README says: its checkpoints lie on /data."""

import json
import os
import sys
import time
from pathlib import Path

import ebbtide_workload

FOLDER = Path("/data", sys.argv[1])
STEPS = int(sys.argv[2])

model = {"weight": 0}


def save(folder):
    Path(folder, "model.json").write_text(json.dumps(model))


def load(folder):
    model.update(json.loads(Path(folder, "model.json").read_text()))


FOLDER.mkdir(exist_ok=True)
guard = ebbtide_workload.Guard(FOLDER / "checkpoints", every_s=None)
with open(FOLDER / "writers.jsonl", "a", buffering=1) as writers:
    for step in range(guard.resume(load), STEPS):
        assert model["weight"] == step, f"resumed at step {step} with the state of step {model['weight']}"
        time.sleep(0.1)  # stands for the GPU
        model["weight"] += 1
        writers.write(json.dumps({"pod": os.environ["POD_NAME"], "step": step, "at": time.time()}) + "\n")
        if step % 20 == 0:
            print(f"step {step}", flush=True)
        guard.step(step, save)
print(f"done after step {STEPS - 1}", flush=True)
