"""The pages say what the commands do: every rule, finding and option is there, and our own manifests are
clean."""

from __future__ import annotations

import argparse
import importlib
import re
from pathlib import Path

import pytest

from ebbtide_workload.lint.engine import check, chosen
from ebbtide_workload.lint.rules import RULES
from ebbtide_workload.lint.sources import parse
from ebbtide_workload.lint.workloads import KINDS, pods
from ebbtide_workload.rehearse import grade

DOCS = Path(__file__).parents[2] / "docs" / "workloads"
MANIFESTS = sorted((DOCS / "manifests").glob("*.yaml"))


def test_every_rule_has_its_section_and_no_section_is_left_over() -> None:
    headings = re.findall(r"^## (\S+)$", (DOCS / "lint.md").read_text(), re.MULTILINE)
    assert headings == [rule.id for rule in RULES], "in the order of the rules"


def test_every_kind_is_named() -> None:
    page = (DOCS / "lint.md").read_text()
    related = {"TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob"}  # "PyTorchJob and its kin"
    covered = {"TrainingRuntime", "ClusterTrainingRuntime", "ReplicationController"}
    assert {kind for kind in KINDS if not re.search(rf"\b{kind}\b", page)} <= related | covered


def test_every_grade_finding_is_in_the_table() -> None:
    source = Path(str(grade.__file__)).read_text()
    rules = set(re.findall(r'Finding\(\s*"([a-z-]+)"', source))
    assert len(rules) > 10
    table = set(re.findall(r"^\| ([a-z-]+) \| [A-F] \|", (DOCS / "rehearse.md").read_text(), re.MULTILINE))
    assert table == rules


@pytest.mark.parametrize("command", ["rehearse", "lint", "window"])
def test_every_option_is_on_its_page(command: str) -> None:
    parser = argparse.ArgumentParser()
    importlib.import_module(f"ebbtide_workload.{command}").add_arguments(parser)
    page = (DOCS / f"{command}.md").read_text()
    options = re.findall(r"(--[a-z][a-z0-9-]+)", parser.format_help().replace("--help", ""))
    assert {o for o in options if o not in page} == set()


def test_there_is_a_manifest_for_each_way_of_working() -> None:
    kinds = {d.kind for path in MANIFESTS for d in parse(str(path), path.read_text())}
    assert {
        "Job",
        "JobSet",
        "TrainJob",
        "ClusterTrainingRuntime",
        "RayCluster",
        "ClusterQueue",
        "Deployment",
    } <= kinds


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_our_manifests_are_clean_each_by_itself(path: Path) -> None:
    documents = parse(str(path), path.read_text())
    assert any(pods(document) for document in documents)
    assert check(documents, chosen([], [])) == []


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_our_manifests_are_explained(path: Path) -> None:
    assert f"manifests/{path.name}" in (DOCS / "README.md").read_text()


def test_taking_a_line_out_of_a_manifest_is_noticed() -> None:
    """The manifests are clean because they are right, not because the linter looks away."""
    for path in MANIFESTS:
        text = path.read_text()
        if "terminationGracePeriodSeconds: 300" not in text:
            continue
        broken = re.sub(r" +terminationGracePeriodSeconds: 300\n", "", text)
        assert "grace-missing" in {f.rule for f in check(parse(path.name, broken), chosen([], []))}, path.name


def test_links_between_the_pages_lead_somewhere() -> None:
    elsewhere = {"checkpoint.md", "run.md"}
    for page in DOCS.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith("http") and target not in elsewhere:
                assert (page.parent / target).exists(), f"{page.name} -> {target}"
