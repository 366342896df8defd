"""Asks a service all the time, and writes down what failed. A program of its own: tests reach only loopback.

    python poller.py URL FILE

FILE is one JSON object, written anew at least every second: {"asked": 120, "failed": ["why", ...]}.
"""

import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

EVERY_S = 0.1
LIMIT_S = 2.0


def main(url: str, file: Path) -> None:
    asked, failed, written = 0, [], 0.0
    while True:
        asked += 1
        try:
            with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
                answer.read()
        except (urllib.error.URLError, OSError) as error:
            failed.append(f"{time.strftime('%H:%M:%S')} {error}")
        if time.monotonic() - written > 0.5:
            staging = file.with_suffix(".new")
            staging.write_text(json.dumps({"asked": asked, "failed": failed}))
            staging.replace(file)
            written = time.monotonic()
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
