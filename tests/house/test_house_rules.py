"""The house rules hold in every tracked file, and each of them would notice."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.house import rules
from tests.house.rules import PYTHON_RULES, TEXT_RULES, File, Rule, tracked


@pytest.fixture(scope="session")
def files(repository: Path) -> list[File]:
    """Every file that git knows or would add; without git (an unpacked archive), every file of source."""
    if (repository / ".git").exists():
        command = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(
            command, cwd=repository, check=True, capture_output=True, text=True
        ).stdout.splitlines()
    else:
        folders = ("src", "tests", "workload", "benchmarks", "docs")
        names = [
            str(path.relative_to(repository))
            for folder in folders
            for path in (repository / folder).rglob("*.*")
        ]
    found = list(tracked(repository, sorted(set(names))))
    assert any(file.path == "src/ebbtide/clock.py" for file in found)
    return found


@pytest.mark.parametrize("rule", PYTHON_RULES, ids=lambda rule: rule.__name__)
def test_python_files_keep(rule: Rule, files: list[File]) -> None:
    broken = [sentence for file in files if file.path.endswith(".py") for sentence in rule(file)]
    assert not broken, f"{rule.__doc__}\n" + "\n".join(broken)


@pytest.mark.parametrize("rule", TEXT_RULES, ids=lambda rule: rule.__name__)
def test_text_files_keep(rule: Rule, files: list[File]) -> None:
    broken = [sentence for file in files for sentence in rule(file)]
    assert not broken, f"{rule.__doc__}\n" + "\n".join(broken)


SERVICE = "src/ebbtide/services/some.py"


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (rules.only_the_clock_reads_time, SERVICE, "datetime.now(UTC)"),
        (rules.only_the_clock_reads_time, SERVICE, "import datetime\ndatetime.datetime.now()"),
        (rules.only_the_clock_reads_time, SERVICE, "time.sleep(1)"),
        (rules.only_the_clock_reads_time, SERVICE, "from time import sleep"),
        (rules.only_the_clock_reads_time, SERVICE, "asyncio.sleep(1)"),
        (rules.only_the_store_moves_nodes, SERVICE, "sa.update(t.nodes).where(x).values(phase='RUNNING')"),
        (rules.only_the_store_moves_nodes, SERVICE, "update(nodes).values({'phase': after})"),
        (rules.only_the_store_moves_nodes, SERVICE, "nodes.insert().values(phase='PENDING')"),
        (rules.only_the_store_moves_nodes, SERVICE, "q = 'UPDATE nodes SET phase = 1'"),
        (rules.only_the_database_commits, SERVICE, "tx.conn.commit()"),
        (rules.distributions_do_not_import_each_other, SERVICE, "import ebbtide_workload.notice"),
        (rules.distributions_do_not_import_each_other, "workload/src/x.py", "from ebbtide.core import drain"),
        (rules.nothing_is_left_for_later, SERVICE, "raise NotImplementedError"),
        (rules.skipped_tests_say_why, "tests/test_x.py", "pytest.importorskip('x')"),
        (rules.skipped_tests_say_why, "tests/test_x.py", "pytest.skip()"),
        (rules.skipped_tests_say_why, "tests/test_x.py", "@pytest.mark.skip\ndef test(): ..."),
        (rules.ignored_types_say_why, SERVICE, "x = 1  # type: " + "ignore[misc]"),
        (rules.files_are_short, SERVICE, "x = 1\n" * 501),
        (rules.no_words_for_later, "README.md", "TO" + "DO: more"),
        (rules.no_registries, "README.md", "see pypi" + ".org"),
        (rules.no_machine_paths, "README.md", "in /work" + "/main/src"),
    ],
)
def test_a_rule_notices(rule: Rule, path: str, text: str) -> None:
    assert rule(File(path, text))


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (rules.only_the_clock_reads_time, "src/ebbtide/clock.py", "datetime.now(UTC)"),
        (rules.only_the_clock_reads_time, SERVICE, "clock.now()"),
        (rules.only_the_store_moves_nodes, SERVICE, "sa.update(t.clusters).values(phase='Ready')"),
        (rules.only_the_store_moves_nodes, SERVICE, "sa.update(t.nodes).values(due_at=now)"),
        (rules.only_the_store_moves_nodes, "src/ebbtide/store/nodes.py", "update(nodes).values(phase=1)"),
        (rules.only_the_database_commits, "src/ebbtide/store/db.py", "connection.commit()"),
        (rules.skipped_tests_say_why, "tests/test_x.py", "pytest.skip('no IPv6 here')"),
        (rules.ignored_types_say_why, SERVICE, "x = 1  # type: " + "ignore[misc]  # stubs are wrong"),
        (rules.files_are_short, SERVICE, '"""Long because one table."""\n' + "x = 1\n" * 501),
        (rules.no_machine_paths, "README.md", "mount it at /work/checkpoints"),
    ],
)
def test_a_rule_lets_pass(rule: Rule, path: str, text: str) -> None:
    assert rule(File(path, text)) == []


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-run.txt"])
def test_pins_are_hashed_and_name_no_address(repository: Path, name: str) -> None:
    text = (repository / name).read_text(encoding="utf-8")
    requirements = re.split(r"\n(?=\S)", text.strip())
    assert len(requirements) > 20
    for requirement in requirements:
        assert re.match(r"[\w.\[\]-]+==[^\s]+", requirement), requirement
        assert "--hash=sha256:" in requirement, requirement
    assert "://" not in text
    assert not re.search(r"^--|--(index|find|extra|trusted)", text, re.MULTILINE)


def test_what_runs_is_pinned_as_it_was_tested(repository: Path) -> None:
    def pins(name: str) -> set[str]:
        text = (repository / name).read_text(encoding="utf-8")
        return set(re.findall(r"^[\w.\[\]-]+==[^\s]+", text, re.MULTILINE))

    assert pins("constraints-run.txt") < pins("constraints.txt")
