"""The storage programs of this ring, `volumes.py FOLDER`: a volume is a folder. See docs/storage.md."""

import json
import shutil
import sys
from pathlib import Path


def main(folder: Path) -> None:
    asked = json.load(sys.stdin)
    place = folder / asked["volume_id"]
    if asked["verb"] == "delete":
        shutil.rmtree(place, ignore_errors=True)
        print(json.dumps({"gone": True}))
    else:
        place.mkdir(parents=True, exist_ok=True)
        print(json.dumps({"ready": True, "handle": str(place)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
