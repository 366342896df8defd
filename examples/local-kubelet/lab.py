"""Make a lab for real kubelets on this machine, or clear it away.

python lab.py check
python lab.py make DIR [--image NAME-IN-IMAGE=FILE ...]     prints the settings that Ebbtide needs
python lab.py clear DIR
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from hosts import Busy, Lab, NotPossible, missing
from images import PAUSE, PYTHON, write_images

from ebbtide.errors import EbbtideError
from ebbtide.kube.places import MissingPrograms, places

_VERBS = ("create", "status", "stop", "delete", "list", "reboot")


def settings(folder: Path) -> dict[str, str]:
    """The settings of Ebbtide's provider `exec` for this lab."""
    program = [sys.executable, str(Path(__file__).resolve().parent / "programs.py"), "--lab", str(folder)]
    return {f"EBBTIDE_EXEC_{verb.upper()}": shlex.join([*program, verb]) for verb in _VERBS}


def _kubelet() -> Path:
    lacking = missing()
    try:
        kubelet = places().require(("kubelet",))["kubelet"]
    except MissingPrograms as error:
        raise NotPossible("\n".join([*lacking, error.message])) from error
    if lacking:
        raise NotPossible("real kubelets need more than this machine has:\n  " + "\n  ".join(lacking))
    return kubelet


def make(folder: Path, more: dict[str, Path]) -> Lab:
    """A lab with the two images of `images.py`. more: further content of the one with Python.

    Raises NotPossible, and MissingPrograms where there is no kubelet.
    """
    kubelet = _kubelet()
    images = write_images(folder / "images", more)
    return Lab.make(folder, kubelet=kubelet, images=[images], pause=PAUSE)


def main() -> int:
    parser = argparse.ArgumentParser(description="a place for real kubelets on this machine")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("check", help="say what this machine lacks")
    making = verbs.add_parser("make", help="make a lab and print the settings that Ebbtide needs")
    making.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="another file or folder in the image, under this name",
    )
    clearing = verbs.add_parser("clear", help="end all machines of a lab and remove it")
    sweeping = verbs.add_parser("sweep", help="clear labs that were tied to a process which is gone")
    making.add_argument("folder", type=Path)
    clearing.add_argument("folder", type=Path)
    sweeping.add_argument("prefix", type=Path, help="what their folders' names begin with")
    options = parser.parse_args()
    try:
        _DO[options.verb](options)
    except (NotPossible, Busy, EbbtideError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _check(_options: argparse.Namespace) -> None:
    _kubelet()


def _make(options: argparse.Namespace) -> None:
    folder: Path = options.folder.resolve()
    pairs = (text.partition("=") for text in options.image)
    make(folder, {name: Path(file) for name, _, file in pairs})
    print("export EBBTIDE_PROVIDER=exec")
    for name, value in settings(folder).items():
        print(f"export {name}={shlex.quote(value)}")
    print(f"# the images on every machine: {PYTHON} and {PAUSE}", file=sys.stderr)


def _clear(options: argparse.Namespace) -> None:
    Lab(options.folder.resolve()).clear()


def _sweep(options: argparse.Namespace) -> None:
    prefix: Path = options.prefix
    for folder in prefix.parent.glob(f"{prefix.name}*"):
        if Lab(folder).abandoned():
            Lab(folder).clear()


_DO = {"check": _check, "make": _make, "clear": _clear, "sweep": _sweep}

if __name__ == "__main__":
    sys.exit(main())
