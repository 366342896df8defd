"""Benchmarks on a real control plane still run. Speed is judged elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.test_quick import ON_KUBERNETES, run_quickly


@pytest.mark.parametrize("name", ON_KUBERNETES)
def test_runs_quickly(
    name: str,
    repository: Path,
    tmp_path: Path,
    programs: dict[str, Path],
    kwok_program: Path,
    kubectl_program: Path,
) -> None:
    run_quickly(name, repository, tmp_path)
