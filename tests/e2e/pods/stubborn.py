"""A job that does not listen: it writes to /data until it is killed. The second one ends by itself."""

import json
import os
import signal
import sys
import time
from pathlib import Path

FOLDER = Path("/data", sys.argv[1])

FOLDER.mkdir(exist_ok=True)
again = (FOLDER / "writers.jsonl").exists()
signal.signal(signal.SIGTERM, lambda *_: print("told to go, staying", flush=True))
with open(FOLDER / "writers.jsonl", "a", buffering=1) as writers:
    for step in range(20 if again else 10_000):
        writers.write(json.dumps({"pod": os.environ["POD_NAME"], "step": step, "at": time.time()}) + "\n")
        time.sleep(0.1)
