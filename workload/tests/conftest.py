from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import Jobs


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    folder = tmp_path / "jobs"
    folder.mkdir()
    started = Jobs(folder)
    yield started
    started.stop_all()
