"""How answers look: money, spans, tables on terminals and in pipes."""

from __future__ import annotations

import pytest

from ebbtide.cli import output
from ebbtide.cli.output import Column, clock, dollars, span


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (None, None),
        (0, "$0.00"),
        (2_500_000, "$2.50"),
        (1, "$0.000001"),
        (123_400, "$0.123400"),
        (123_456, "$0.123456"),
        (1_234_567, "$1.23"),
        (1_235_000, "$1.24"),
        (1_234_567_890_000, "$1,234,567.89"),
        (-2_500_000, "-$2.50"),
    ],
)
def test_dollars(micros: int | None, text: str | None) -> None:
    assert dollars(micros) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, None), (0, "0s"), (59, "59s"), (60, "1m 00s"), (720, "12m 00s"), (3_661, "1h 01m 01s")],
)
def test_spans(seconds: int | None, text: str | None) -> None:
    assert span(seconds) == text


def test_instants() -> None:
    assert clock("2026-01-02T03:04:05Z") == "2026-01-02 03:04:05 UTC"
    assert clock(None) is None


class TestTables:
    @pytest.fixture(autouse=True)
    def fresh(self) -> None:
        output.forget_consoles()

    def test_columns_line_up_and_nothing_is_cut_in_a_pipe(self, capsys: pytest.CaptureFixture[str]) -> None:
        long = "x" * 300
        rows = [{"a": "one", "n": 5, "z": long}, {"a": "twenty-two", "n": 1234, "z": None}]
        output.print_table(rows, [Column("a", "a"), Column("n", "n", right=True), Column("z", "z")], empty="")
        lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        assert lines == ["A              N  Z", f"one            5  {long}", "twenty-two  1234  -"]

    def test_rare_columns_are_left_out_where_nothing_is_in_them(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        columns = [Column("a", "a"), Column("b", "b", rare=True), Column("c", "c", rare=True)]
        output.print_table([{"a": 0, "b": 0, "c": 1}, {"a": 0, "b": None, "c": 0}], columns, empty="")
        assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == ["A  C", "0  1", "0  0"]

    def test_no_rows_say_what_that_means(self, capsys: pytest.CaptureFixture[str]) -> None:
        output.print_table([], [Column("a", "a")], empty="nothing [yet]")
        assert capsys.readouterr().out == "nothing [yet]\n"

    def test_brackets_are_text_not_markup(self, capsys: pytest.CaptureFixture[str]) -> None:
        output.print_table([{"a": "[red]x[/red]"}], [Column("a", "a")], empty="")
        output.say("[bold]y")
        output.complain("[dim]z\nmore", "do [this]")
        caught = capsys.readouterr()
        assert "[red]x[/red]" in caught.out
        assert "[bold]y" in caught.out
        assert caught.err.splitlines() == ["error: [dim]z", "       more", "  try: do [this]"]

    def test_no_colour_in_a_pipe(self, capsys: pytest.CaptureFixture[str]) -> None:
        output.print_table([{"a": "Ready"}], [Column("a", "a")], empty="")
        output.print_facts([("status", "Ready"), ("gone", None), ("empty", "")])
        caught = capsys.readouterr().out
        assert "\x1b" not in caught
        assert "status  Ready" in caught
        assert "gone" not in caught
