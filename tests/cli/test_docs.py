"""The documentation says what the program does: commands, options, keys, examples."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from ebbtide.cli import exits, main, reference
from ebbtide.cli.exits import UsageError
from ebbtide.services import fleet_file, fleet_hosts
from ebbtide.services.fleet_file import parse
from tests.cli.test_program import program

ROOT = Path(__file__).parents[2]
CLI = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
FLEET = (ROOT / "docs" / "fleet-file.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
MARK = "<!-- made by `ebbtide reference`; a test compares -->\n"


def test_the_reference_is_the_programs_own() -> None:
    """To renew it: put the output of `ebbtide reference` behind the mark."""
    assert CLI.split(MARK)[1] == reference.markdown(main.app)


def test_every_command_has_a_sentence_and_every_option_a_help() -> None:
    for path, command in reference.commands(typer.main.get_command(main.app), "ebbtide"):
        assert command.help, path
        assert [each.name for each in command.params if not each.help] == [], path


def test_every_exit_code_is_documented() -> None:
    codes = {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", CLI, re.MULTILINE)}
    assert documented == codes
    assert exits.code_of(UsageError("x")) == exits.USAGE


def test_every_key_of_the_fleet_file_is_documented() -> None:
    documented = set(re.findall(r"^\| `([a-z_]+)` \|", FLEET, re.MULTILINE))
    keys = {*fleet_file.POOL_KEYS, *fleet_file.DRIVER_KEYS, *fleet_hosts.HOST_KEYS, "driver_versions"}
    assert documented == keys


@pytest.mark.parametrize("example", re.findall(r"```yaml\n(.*?)```", FLEET, re.DOTALL))
def test_every_example_of_a_fleet_file_is_right(example: str) -> None:
    assert parse(example).pools[0].hosts


def test_the_defaults_are_the_documented_ones() -> None:
    usual = fleet_file.PoolSpec("p", "r", "g")
    rows = dict(re.findall(r"^\| `([a-z_]+)` \|.*\| `?([a-z0-9]+)`? \|$", FLEET, re.MULTILINE))
    for key in (
        "gpus_per_host",
        "headroom_hosts",
        "turn_over_s",
        "boot_s",
        "memory_gib",
        "cpu_cores",
        "provider",
    ):
        assert rows[key] == str(getattr(usual, key)), key


def commands_in(text: str) -> list[str]:
    """The `ebbtide` command lines of a text's indented blocks."""
    found = re.findall(r"^    (?:\$ )?(ebbtide [^|\n]+)", text, re.MULTILINE)
    return [line.strip() for line in found]


@pytest.mark.parametrize("line", commands_in(README))
def test_every_command_of_the_readme_is_one(line: str) -> None:
    """Nobody answers at the address, so what can go wrong is the connection, not the usage."""
    words = re.findall(r'"[^"]*"|\S+', line)[1:]
    ran = program(*(word.strip('"') for word in words), EBBTIDE_URL="http://127.0.0.1:1", EBBTIDE_API_KEY="k")
    assert ran.returncode == exits.UNREACHABLE, ran.stderr


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#:]+)\)", README + FLEET + CLI))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists() or (ROOT / "docs" / link).exists()


def test_every_command_has_an_example_that_can_be_parsed() -> None:
    root = typer.main.get_command(main.app)
    for path, command in reference.commands(root, "ebbtide"):
        assert (command.epilog or "").startswith("Example: "), f"{path} has no example in examples.py"
        example = command.epilog.removeprefix("Example: ").partition(" > ")[0]
        words = shlex.split(example)[len(path.split()) :]
        assert example.startswith(path)
        command.make_context(path, words)  # raises for an option or argument that there is not
