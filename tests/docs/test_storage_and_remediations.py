"""docs/storage.md and docs/remediations.md name every state and mode, and their templates are right."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from ebbtide.core.remediations import MOVES, Mode, State
from ebbtide.core.volumes import PLACEHOLDERS, VolumeFacts, VolumeStatus, check_template, render
from ebbtide.providers.storage import VolumeOrder
from ebbtide.store.remediations import ORDERS

DOCS = Path(__file__).parents[2] / "docs"
STORAGE = (DOCS / "storage.md").read_text(encoding="utf-8")
REMEDIATIONS = (DOCS / "remediations.md").read_text(encoding="utf-8")
_TEMPLATES = [
    text for text in re.findall(r"```yaml\n(.*?)```", STORAGE, re.DOTALL) if text.startswith("spec:")
]


def rows(page: str) -> dict[str, str]:
    """The rows of the page's tables by each code word of their first cell."""
    found = {}
    for first, rest in re.findall(r"^\| (`[^|]+`) \|(.*)\|$", page, re.MULTILINE):
        found.update(dict.fromkeys(re.findall(r"`([^`]+)`", first), rest))
    return found


def test_every_status_mode_and_state_is_explained() -> None:
    assert set(VolumeStatus) <= rows(STORAGE).keys()
    assert {*Mode, *State} <= rows(REMEDIATIONS).keys()


@pytest.mark.parametrize("state", [state for state in State if MOVES[state]])
def test_where_a_state_leads_to(state: State) -> None:
    told = set(re.findall(r"`([A-Z_]+)`", rows(REMEDIATIONS)[state]))
    assert told == set(MOVES[state])


def test_there_are_templates_for_nfs_and_csi() -> None:
    sources = {source for text in _TEMPLATES for source in ("nfs", "csi") if f"{source}:" in text}
    assert sources == {"nfs", "csi"}


@pytest.mark.parametrize("text", _TEMPLATES)
def test_templates_can_be_used(text: str) -> None:
    facts = VolumeFacts("demo-data", "v", "vol-1", 2, "eu-1", "p", "c")
    manifest = render(check_template(yaml.safe_load(text)), facts)
    assert not re.search(r"\{[a-z_]+\}", str(manifest)), "everything is filled in"


def test_placeholders_and_orders_are_named() -> None:
    assert all(f"`{{{name}}}`" in STORAGE for name in PLACEHOLDERS)
    assert all(f"`{name}`" in REMEDIATIONS for name in ORDERS)


def test_what_a_program_is_told_is_what_the_page_says() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", STORAGE, re.DOTALL)
    assert set(json.loads(example)) == {"verb", *VolumeOrder.__slots__}
