"""The documentation says what the code does: settings, events, metrics, phases, loops; no dead links."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

import pytest

from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.events import Reason
from ebbtide.core.nodes import EndReason, Phase
from ebbtide.store.visits import Loop
from tests.docs import blocks

_LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def test_every_part_that_follows_from_the_code_is_up_to_date(repository: Path) -> None:
    stale = []
    for page in blocks.pages(repository):
        text = page.read_text(encoding="utf-8")
        if blocks.renewed(text) != text:
            stale.append(str(page.relative_to(repository)))
    assert not stale, f"run `python -m tests.docs.blocks` to renew {stale}"


def test_every_such_part_stands_on_a_page(repository: Path) -> None:
    shown = {
        name for page in blocks.pages(repository) for name in blocks.names(page.read_text(encoding="utf-8"))
    }
    assert shown == set(blocks.BLOCKS)


def test_a_stale_part_would_be_seen() -> None:
    stale = "# x\n<!-- written from the code: settings -->\nold\n<!-- end -->\nrest\n"
    renewed = blocks.renewed(stale)
    assert "EBBTIDE_DRAIN_WINDOW_S" in renewed
    assert renewed.endswith("<!-- end -->\nrest\n")
    assert blocks.renewed(renewed) == renewed


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("events.md", Reason),
        ("architecture.md", Loop),
        ("architecture.md", Phase),
        ("architecture.md", ClusterPhase),
        ("architecture.md", EndReason),
    ],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_every_word_of_the_code_is_explained(repository: Path, page: str, words: type[StrEnum]) -> None:
    """In a row of a table that begins with it."""
    text = (repository / "docs" / page).read_text(encoding="utf-8")
    rows = {match[1] for match in re.finditer(r"^\| `([^`]+)`", text, re.MULTILINE)}
    missing = [str(word) for word in words if str(word) not in rows]
    assert not missing, f"docs/{page} has no row for {missing}"


def _pages(root: Path) -> list[Path]:
    found = [*blocks.pages(root), *sorted(root.glob("*.md")), *sorted((root / "workload").glob("*.md"))]
    assert len(found) > 10
    return found


def test_links_lead_somewhere(repository: Path) -> None:
    dead = []
    for page in _pages(repository):
        text = _CODE.sub("", page.read_text(encoding="utf-8"))
        for target in _LINK.findall(text):
            path, _, anchor = target.partition("#")
            if "://" in target or target.startswith("mailto:"):
                continue
            there = (page.parent / path).resolve() if path else page
            if not there.exists():
                dead.append(f"{page.relative_to(repository)}: {target}")
            elif anchor and there.suffix == ".md" and anchor not in _anchors(there):
                dead.append(f"{page.relative_to(repository)}: {target} (no such heading)")
    assert not dead, "\n".join(dead)


def _anchors(page: Path) -> set[str]:
    """Headings as links name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_decisions_are_numbered_without_gaps_and_have_their_parts(repository: Path) -> None:
    pages = sorted((repository / "docs" / "decisions").glob("*.md"))
    numbers = [int(page.name[:4]) for page in pages]
    assert numbers == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# {int(page.name[:4])}. "), page.name
        for part in ("## Context", "## Decision", "## Consequences", "## Held by"):
            assert part in text, f"{page.name} has no part {part!r}"


@pytest.mark.parametrize("page", ["architecture.md", "events.md"])
def test_what_is_named_as_a_file_is_there(repository: Path, page: str) -> None:
    """Paths in code font that begin with a folder of the repository."""
    text = (repository / "docs" / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:src|tests|docs)/[\w./-]+)`", text)
    missing = [name for name in named if not (repository / name).exists()]
    assert named
    assert not missing
