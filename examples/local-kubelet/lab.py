"""Make a lab for real kubelets on this machine, or clear it away.

python lab.py make DIR [--image NAME-IN-IMAGE=FILE ...]     prints the settings that Ebbtide needs
python lab.py clear DIR
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from hosts import Lab, NotPossible, missing
from images import PAUSE, PYTHON, write_images

from ebbtide.errors import EbbtideError
from ebbtide.kube.places import places

_VERBS = ("create", "status", "stop", "delete", "list", "reboot")


def settings(folder: Path) -> dict[str, str]:
    """The settings of Ebbtide's provider `exec` for this lab."""
    program = [sys.executable, str(Path(__file__).resolve().parent / "programs.py"), "--lab", str(folder)]
    return {f"EBBTIDE_EXEC_{verb.upper()}": shlex.join([*program, verb]) for verb in _VERBS}


def make(folder: Path, more: dict[str, Path]) -> Lab:
    """A lab with the two images of `images.py`. more: further content of the one with Python.

    Raises NotPossible, and MissingPrograms where there is no kubelet.
    """
    lacking = missing()
    if lacking:
        raise NotPossible("this machine lacks " + "; ".join(lacking))
    kubelet = places().require(("kubelet",))["kubelet"]
    images = write_images(folder / "images", more)
    return Lab.make(folder, kubelet=kubelet, images=[images], pause=PAUSE)


def main() -> int:
    parser = argparse.ArgumentParser(description="a place for real kubelets on this machine")
    parser.add_argument("verb", choices=("make", "clear"))
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--image", action="append", default=[], metavar="NAME=FILE", help="more in the Python image"
    )
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.verb == "clear":
        Lab(folder).clear()
        return 0
    pairs = (text.partition("=") for text in options.image)
    try:
        make(folder, {name: Path(file) for name, _, file in pairs})
    except (NotPossible, EbbtideError) as error:
        print(error, file=sys.stderr)
        return 1
    print("export EBBTIDE_PROVIDER=exec")
    for name, value in settings(folder).items():
        print(f"export {name}={shlex.quote(value)}")
    print(f"# the images on every machine: {PYTHON} and {PAUSE}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
