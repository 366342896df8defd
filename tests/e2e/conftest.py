"""The ring with real kubelets: `make e2e`. Everything in this folder is marked `e2e` and runs as root.

Where something is missing, the tests are skipped and the summary says how to get it; with CI=true they fail.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.machines import ROOT, Lab, lab, lacking
from tests.e2e.scene import Scene, image_content, scene

_HERE = Path(__file__).parent
_missing: list[str] = []


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for message in dict.fromkeys(_missing):
        terminalreporter.section("not tested with real kubelets", yellow=True)
        terminalreporter.write_line(message)


@pytest.fixture(scope="session", name="lab")
def _lab() -> Iterator[Lab]:
    """A place for machines, whose image has this ring's jobs."""
    if message := lacking():
        if os.environ.get("CI") == "true":
            pytest.fail(message, pytrace=False)
        _missing.append(message)
        pytest.skip(reason=message.splitlines()[0])
    with lab(image_content(ROOT)) as one:
        yield one


@pytest.fixture(scope="session", name="scene")
def _scene(lab: Lab) -> Iterator[Scene]:
    """One scene for all tests. They clean up behind themselves."""
    with scene(lab) as one:
        yield one
