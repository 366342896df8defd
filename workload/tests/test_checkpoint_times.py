from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide_workload.checkpoint_times import Fit, SaveTimes, interval_s


def history(path: Path, seconds: list[float]) -> SaveTimes:
    times = SaveTimes(path)
    for each in seconds:
        times.add(each, 1000)
    return times


def test_the_p95_is_by_nearest_rank_and_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "save-times.json"
    assert SaveTimes(path).p95_s is None
    history(path, [float(n) for n in range(1, 21)])
    again = SaveTimes(path)
    assert (len(again), again.p95_s, again.last_bytes) == (20, 19.0, 1000)
    history(path, [5.0] * 100)
    assert (len(SaveTimes(path)), SaveTimes(path).p95_s) == (50, 5.0)


def test_a_torn_history_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "save-times.json"
    path.write_text('{"saves": [{"seco')
    assert SaveTimes(path).p95_s is None


@pytest.mark.parametrize(
    ("p95_s", "grace_s", "step_s", "fits"),
    [
        (280.0, 297.0, 1.0, False),  # J8: one save in twenty is longer than that
        (200.0, 297.0, 1.0, True),
        (200.0, 297.0, 90.0, False),  # the step in progress has to end first
        (20.0, 30.0, 1.0, True),
        (29.0, 30.0, 0.0, False),
    ],
)
def test_whether_the_window_fits(
    tmp_path: Path, p95_s: float, grace_s: float, step_s: float, fits: bool
) -> None:
    assert history(tmp_path / "t", [p95_s]).fit(grace_s, step_s).fits is fits


def test_without_history_nothing_is_claimed(tmp_path: Path) -> None:
    fit = SaveTimes(tmp_path / "t").fit(30, 100)
    assert fit.fits
    assert not fit.known


FITS, NOT = Fit(True, 10, 30), Fit(True, 40, 30)


@pytest.mark.parametrize(
    ("wanted_s", "fit", "save_s", "expected_s"),
    [
        (900.0, FITS, 9.0, 900.0),
        (900.0, NOT, None, 900.0),
        (900.0, NOT, 40.0, 450.0),  # twice as often at least
        (7200.0, NOT, 40.0, 758.9),  # Young: sqrt(2 * 40 * 7200)
        (900.0, NOT, 280.0, 560.0),  # never more than a third of the time
        (300.0, NOT, 280.0, 300.0),  # never less often than wanted
    ],
)
def test_saves_come_more_often_where_the_last_one_cannot_be_counted_on(
    wanted_s: float, fit: Fit, save_s: float | None, expected_s: float
) -> None:
    assert interval_s(wanted_s, fit, save_s) == pytest.approx(expected_s, abs=0.1)
