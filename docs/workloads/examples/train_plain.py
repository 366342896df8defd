"""A plain training script: it fits a line, and knows nothing of preemption."""

import json
import random
import time
from pathlib import Path

STEPS = 3000


class Model:
    """y = slope * x + offset, learned one example at a time."""

    def __init__(self):
        self.slope, self.offset = 0.0, 0.0

    def train(self, step):
        x = random.Random(step).uniform(-1, 1)
        error = (self.slope * x + self.offset) - (3 * x + 1)
        self.slope -= 0.1 * error * x
        self.offset -= 0.1 * error
        time.sleep(0.02)  # stands for the GPU
        return error * error

    def save(self, folder):
        (Path(folder) / "model.json").write_text(json.dumps([self.slope, self.offset]))

    def load(self, folder):
        self.slope, self.offset = json.loads((Path(folder) / "model.json").read_text())


model = Model()
for step in range(STEPS):
    loss = model.train(step)
    if step % 10 == 0:
        print(f"step {step}  loss {loss:.4f}", flush=True)

Path("result").mkdir(exist_ok=True)
model.save("result")
print(f"done: y = {model.slope:.2f} x + {model.offset:.2f}")
