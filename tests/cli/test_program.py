"""The program as it is started: quick, quiet in pipes, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ebbtide import __version__

HEAVY = ("sqlalchemy", "psycopg", "fastapi", "uvicorn", "starlette", "alembic", "structlog")
PROGRAM = "from ebbtide.cli.main import run; run()"


def program(*words: str, code: str = PROGRAM, **environment: str) -> subprocess.CompletedProcess[str]:
    # The test's own sys.path reaches the program, so that it runs the same sources.
    paths = os.pathsep.join(each for each in sys.path if each)
    known = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "HOME": "/nonexistent"}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, env=known | environment, capture_output=True, text=True, timeout=60)


def test_version() -> None:
    ran = program("--version")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"ebbtide {__version__}\n", "")


@pytest.mark.parametrize("words", [["--help"], ["clusters", "--help"], ["fleet", "claim", "--help"]])
def test_help_is_help(words: list[str]) -> None:
    ran = program(*words)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "Usage: " in ran.stdout
    assert "\x1b" not in ran.stdout


@pytest.mark.parametrize("words", [["--help"], ["clusters", "list"], ["fleet", "apply", __file__]])
def test_clients_do_not_load_the_server(words: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom ebbtide.cli.main import run\ntry:\n    run()\nfinally:\n"
        f"    print('LOADED', sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    ran = program(*words, code=code, EBBTIDE_URL="http://127.0.0.1:1", EBBTIDE_API_KEY="k")
    assert "LOADED []" in ran.stdout


def test_a_fault_of_our_own_is_one_sentence() -> None:
    code = "from ebbtide.cli import fleet, main\nfleet.packaged_fleet_file = lambda: 1 / 0\nmain.run()"
    ran = program("fleet", "example", code=code)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.splitlines()[0] == (
        "error: ebbtide has a fault of its own: ZeroDivisionError: division by zero"
    )
    assert "EBBTIDE_DEBUG=1" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "Traceback" in program("fleet", "example", code=code, EBBTIDE_DEBUG="1").stderr


def test_a_reader_that_goes_away() -> None:
    code = "import os\nr, w = os.pipe()\nos.dup2(w, 1)\nos.close(w)\nos.close(r)\n" + PROGRAM
    ran = program("fleet", "example", code=code)
    assert "Traceback" not in ran.stderr
    assert ran.stderr == ""


def test_an_argument_that_is_not_text() -> None:
    ran = program("clusters", "get", "\udcff")
    assert (ran.returncode, ran.stderr) == (2, "error: an argument is not UTF-8; nothing was done\n")
