"""examples/local-kubelet: the suite that every provider passes, with machines that are mere processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.exec_rig import ExecProviderRig
from tests.e2e.machines import EXAMPLE, Lab
from tests.e2e.processes import run
from tests.examples.contract import RESTARTS, SUITE

VERBS = ("create", "status", "stop", "delete", "list", "reboot")
globals().update(SUITE)
globals().update(RESTARTS)

# Instead of namespaces: a process that says at once that the machine is up. The folder is the last argument.
_UNSHARE = """\
#!/bin/sh
for folder; do :; done
sh -c 'sleep 0.5; printf up >"$1/progress"; exec sleep 600' sh "$folder" &
wait
"""


@pytest.fixture
def rig(lab: Lab, tmp_path: Path) -> Iterator[ExecProviderRig]:
    """The programs in a lab of the test's own."""
    folder = tmp_path / "lab"
    folder.mkdir()
    (folder / "lab.json").write_text((lab.folder / "lab.json").read_text())
    unshare = tmp_path / "bin" / "unshare"
    unshare.parent.mkdir()
    unshare.write_text(_UNSHARE)
    unshare.chmod(0o755)
    path = f"PATH={unshare.parent}:/usr/local/bin:/usr/bin:/bin"
    argv = ["env", path, sys.executable, str(EXAMPLE / "programs.py"), "--lab", str(folder)]
    yield ExecProviderRig({verb: [*argv, verb] for verb in VERBS})
    run([sys.executable, EXAMPLE / "lab.py", "clear", folder])


@pytest.fixture
def machines(rig: ExecProviderRig) -> ExecProviderRig:
    return rig
