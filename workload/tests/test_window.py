"""`ebb window`: the arithmetic of five minutes."""

from __future__ import annotations

import json
import math
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from ebbtide_workload.checkpoint_times import SaveTimes
from ebbtide_workload.cli import main
from ebbtide_workload.window import observed, plan, sizing, units


def window(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON answer."""
    code = main(["window", "--json", *words])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, answer


@pytest.mark.parametrize(
    ("rate", "takes_s", "said", "code"),
    [
        ("159GB/s", 22, "A save takes 22 s", 0),
        ("14.6GB/s", 240, "A save takes 4 min", 0),
        ("11GB/s", 318, "It does not fit.", 1),
    ],
)
def test_the_announcements_figures(
    capsys: pytest.CaptureFixture[str], rate: str, takes_s: int, said: str, code: int
) -> None:
    assert main(["window", "--bytes", "3.5TB", "--rate", rate]) == code
    assert said in capsys.readouterr().out
    got, answer = window(capsys, "--bytes", "3.5TB", "--rate", rate)
    assert got == code
    assert answer["fit"]["takes_s"] == pytest.approx(takes_s, abs=0.5)
    assert answer["needed_bytes_per_s"] == pytest.approx(3.5e12 / 270, abs=1)


def test_what_fits_the_grace_but_not_the_margin_is_no_promise(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = window(capsys, "--bytes", "3.5TB", "--rate", "12GB/s")
    assert (code, answer["fit"]["verdict"]) == (1, plan.TIGHT)


def test_the_step_in_progress_comes_off_the_window(capsys: pytest.CaptureFixture[str]) -> None:
    assert window(capsys, "--save", "260s")[0] == 0
    assert window(capsys, "--save", "260s", "--step", "20s")[0] == 1


def test_j8_slow_saves_of_280_s_do_not_fit_and_are_to_be_made_more_often(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """J8: a p95 of 280 s is no promise in a window of 300 s; save on your own instead."""
    assert main(["window", "--save", "280", "--preempted-every", "6h"]) == 1
    out = capsys.readouterr().out
    assert "Barely, and not safely" in out
    assert "the notice is too short to wait for it" in out


def test_without_a_rate_it_says_which_one_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["window", "--bytes", "3TB"]) == 0
    assert "11.1 GB/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("optimizer", "precision", "per_parameter"),
    [
        ("adamw", "bf16", 14),
        ("adamw", "fp32", 12),
        ("none", "bf16", 2),
        ("sgd", "fp32", 4),
        ("adamw", "bf16-pure", 6),
    ],
)
def test_bytes_from_parameters(optimizer: str, precision: str, per_parameter: int) -> None:
    assert sizing.checkpoint_bytes(70 * 10**9, optimizer, precision) == 70 * 10**9 * per_parameter


def test_parameters_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert window(capsys, "--parameters", "250B", "--rate", "159GB/s")[1]["bytes"] == 3_500_000_000_000


def test_young_and_daly() -> None:
    assert plan.young_s(22, 6 * 3600) == pytest.approx(math.sqrt(2 * 22 * 21600))
    assert plan.daly_s(22, 6 * 3600) == pytest.approx(plan.young_s(22, 21600) - 22, abs=8)
    assert plan.daly_s(500, 100) == 100, "saves longer than the life between them: once per life"


def test_dalys_interval_is_cheaper_than_its_neighbours() -> None:
    save_s, life_s = 240.0, 3 * 3600.0

    def waste(interval_s: float) -> float:
        """Daly's own model: exponential failures, no restart, in units of useful time."""
        return life_s * (math.exp((interval_s + save_s) / life_s) - 1) / interval_s

    best = plan.daly_s(save_s, life_s)
    assert waste(best) < min(waste(best * 0.8), waste(best * 1.25))


def test_cost_counts_saves_redone_work_and_restarts() -> None:
    cost = plan.cost(save_s=60, life_s=36_000, restart_s=120, fits=True)
    assert cost.noticed == pytest.approx(180 / 36_000)
    share = 60 / (cost.interval_s + 60) + (cost.interval_s / 2 + 120) / 36_000
    assert cost.periodic == pytest.approx(share)
    assert plan.cost(60, 36_000, 120, fits=False).noticed is None


def test_money_is_whole_micro_dollars() -> None:
    assert plan.micro_dollars_a_day(0.01, 64, 1_750_000) == 26_880_000
    assert plan.show_dollars(26_880_000) == "$26.88"
    assert plan.show_dollars(1_234_567_000_000) == "$1,234,567.00"


def test_the_cost_in_money(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--bytes",
        "3.5TB",
        "--rate",
        "159GB/s",
        "--observed",
        "5/72h",
        "--gpus",
        "64",
        "--price",
        "1.75",
    ]
    assert main(["window", *words]) == 0
    out = capsys.readouterr().out
    assert "preempted       every 14 h 24 min" in out
    assert "a day" in out


def test_the_observed_rate_comes_from_a_clusters_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def event(node: str, reason: str, hour: int) -> dict[str, str]:
        return {
            "node_id": node,
            "reason": reason,
            "message": "",
            "timestamp": f"2026-01-02T{hour:02d}:00:00Z",
        }

    events = [
        event("a", "TogetherPreemptionNotified", 4),
        event("a", "TogetherPreempted", 4),
        event("b", "TogetherPreempted", 20),
        event("c", "TogetherNodeAdded", 3),
    ]
    text = json.dumps({"node_lifecycle_events": events, "created_at": "2026-01-02T00:00:00Z"})
    rate = observed.read_cluster(text)
    assert (rate.count, rate.span_s) == (2, 20 * 3600), "an event and its alias are one preemption"
    monkeypatch.setattr(sys, "stdin", StringIO(text))
    assert window(capsys, "--save", "22", "--cluster", "-")[1]["rate"]["count"] == 2


def test_a_checkpoint_folders_own_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / ".ebbtide"
    own.mkdir()
    times = SaveTimes(own / "save-times.json")
    for seconds in (200.0, 280.0):
        times.add(seconds, 10**12)
    stamps = [("resumed", "00:00"), ("left", "06:00"), ("resumed", "06:10"), ("left", "12:00")]
    lines = [json.dumps({"event": e, "at": f"2026-01-02T{t}:00.000+00:00", "rank": 0}) for e, t in stamps]
    (own / "timeline.jsonl").write_text("\n".join(lines) + "\n")
    code, answer = window(capsys, "--history", str(tmp_path))
    assert code == 1
    assert answer["fit"]["takes_s"] == 280.0
    assert answer["bytes"] == 10**12
    assert (answer["rate"]["count"], answer["rate"]["span_s"]) == (2, 12 * 3600)


def test_measuring_writes_flushes_and_cleans_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--bytes", "1MB", "--measure", str(tmp_path), "--measure-bytes", "4MB", "--writers", "2"]
    code, answer = window(capsys, *words)
    assert code == 0
    assert answer["measured"]["bytes_written"] == 4_000_000
    assert answer["bytes_per_s"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "count"), [("3.5TB", 3_500_000_000_000), ("1TiB", 2**40), ("10", 10), ("2.5 GB", 2_500_000_000)]
)
def test_sizes(text: str, count: int) -> None:
    assert units.parse_bytes(text) == count


def test_bits_are_not_taken_for_bytes() -> None:
    assert units.parse_rate("14.6GB/s") == units.parse_rate("14.6GBps") == 14_600_000_000
    for text in ("100Gb/s", "100Gbps", "400Gbit/s"):
        with pytest.raises(units.BadQuantity, match="bits"):
            units.parse_rate(text)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.25, "0.25 s"),
        (22.01, "22 s"),
        (239.7, "4 min"),
        (318, "5 min 18 s"),
        (51_840, "14 h 24 min"),
        (259_200, "3 d"),
    ],
)
def test_times_are_said_as_people_say_them(seconds: float, said: str) -> None:
    assert units.show_seconds(seconds) == said


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--rate", "14GB/s"],
        ["--bytes", "3TB", "--parameters", "70B"],
        ["--save", "20", "--margin", "300"],
        ["--save", "20", "--price", "cheap"],
        ["--save", "20", "--preempted-every", "0"],
        ["--history", "no-such-folder"],
        ["--bytes", "1MB", "--measure", "no-such-folder"],
    ],
)
def test_wrong_usage_is_2_and_says_why(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["window", *words]) == 2
    assert capsys.readouterr().err.startswith("ebb window: ")


def test_a_bad_quantity_names_a_good_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["window", "--bytes", "lots"])
    assert stop.value.code == 2
    assert "such as 3.5TB" in capsys.readouterr().err
