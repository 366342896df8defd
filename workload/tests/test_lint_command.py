"""`ebb lint` as a person and as a pipeline meet it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from lint_cases import job, spec, without

from ebbtide_workload.cli import main

YAML = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: train
spec:
  podFailurePolicy:
    rules:
      - action: Ignore
        onPodConditions: [{type: DisruptionTarget, status: "True"}]
  template:
    spec:
      restartPolicy: Never
      nodeSelector:
        together.ai/compute-class: preemptible
      containers:
        - name: train
          image: train:1
"""
GOOD = YAML.replace("      restartPolicy", "      terminationGracePeriodSeconds: 300\n      restartPolicy")


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(YAML)
    return path


def test_a_finding_fails_and_says_place_fix_and_page(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lint", str(manifest)]) == 1
    out = capsys.readouterr().out
    assert "error grace-missing   spec.template.spec.terminationGracePeriodSeconds, line 11" in out
    assert "you will get 30 s of the 300 s" in out
    assert "see: docs/workloads/lint.md#grace-missing" in out


def test_clean_is_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    assert main(["lint", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "Clean: 1 object, 1 with pods.\n"


def test_json_has_every_field(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--json", str(manifest)]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["version"] == 1
    assert said["summary"] == {"error": 1, "warning": 0, "info": 0, "objects": 1}
    [finding] = said["findings"]
    assert finding["rule"] == "grace-missing"
    assert finding["line"] == 11
    assert finding["file"] == str(manifest)
    assert finding["path"] == "spec.template.spec.terminationGracePeriodSeconds"


def test_select_and_ignore(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--ignore", "grace-*", str(manifest)]) == 0
    assert main(["lint", "--select", "class-missing,shell-pid1", str(manifest)]) == 0
    assert main(["lint", "--select", "no-such-rule", str(manifest)]) == 2
    assert "no rule is called no-such-rule" in capsys.readouterr().err


def test_an_annotation_ignores_a_rule_for_one_object(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        YAML.replace(
            "  name: train\nspec", "  name: train\n  annotations: {ebbtide/lint-ignore: grace-missing}\nspec"
        )
    )
    assert main(["lint", str(path)]) == 0


def test_fail_on_chooses_what_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(job(spec(terminationGracePeriodSeconds=30))))
    assert main(["lint", str(path)]) == 1
    assert main(["lint", "--fail-on", "error", str(path)]) == 0


def test_helm_output_on_stdin_names_the_template(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rendered = (
        f"---\n# Source: chart/templates/job.yaml\n{YAML}---\n# Source: chart/templates/ok.yaml\n{GOOD}"
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO(rendered))
    assert main(["lint", "-"]) == 1
    out = capsys.readouterr().out
    assert "Job train   chart/templates/job.yaml" in out
    assert "ok.yaml" not in out


def test_a_template_that_is_not_rendered_says_how(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("{{- if .Values.on }}\nkind: Job\n{{ end }}")
    assert main(["lint", str(path)]) == 2
    assert "helm template . | ebb lint -" in capsys.readouterr().err


def test_a_folder_leaves_out_what_is_no_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "values.yaml").write_text("replicas: 3\n")
    (tmp_path / "package.json").write_text('{"name": "x"}')
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "t.yaml").write_text("{{- if .Values.on }}\nkind: Job\n{{ end }}")
    (tmp_path / "job.yml").write_text(GOOD)
    assert main(["lint", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "1 object" in said.out
    assert "left out" in said.err


def test_unreadable_input_is_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", str(tmp_path / "none.yaml")]) == 2
    (tmp_path / "broken.yaml").write_text("a: [1\nb: 2\n")
    assert main(["lint", str(tmp_path / "broken.yaml")]) == 2
    assert "broken.yaml:2: not valid YAML" in capsys.readouterr().err


def test_a_list_is_opened_and_keeps_its_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = "".join("    " + line + "\n" for line in YAML.splitlines()).replace(
        "    apiVersion", "  - apiVersion", 1
    )
    path = tmp_path / "list.yaml"
    path.write_text("apiVersion: v1\nkind: List\nitems:\n" + body)
    assert main(["lint", "--json", str(path)]) == 1
    [finding] = json.loads(capsys.readouterr().out)["findings"]
    assert finding["line"] == 14
    assert finding["kind"] == "Job"


def test_without_pyyaml_json_works_and_yaml_says_how_to_get_it(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert main(["lint", str(manifest)]) == 2
    assert 'pip install "ebbtide-workload[lint]"' in capsys.readouterr().err
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job(without(spec(), "terminationGracePeriodSeconds"))))
    assert main(["lint", str(path)]) == 1
    assert main(["lint", str(tmp_path)]) == 2, "a folder with YAML cannot be called clean"


def test_odd_manifests_do_not_break_it(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(
        "kind: Job\napiVersion: batch/v1\nmetadata:\nspec:\n---\n"
        "kind: Deployment\napiVersion: apps/v1\nspec: "
        "{template: {spec: {containers: null, volumes: [null, 3]}}}\n---\n"
        "kind: PodDisruptionBudget\napiVersion: policy/v1\nspec: {selector: null, minAvailable: many}\n---\n"
        "kind: RayCluster\napiVersion: ray.io/v1\nspec: []\n---\njust text\n---\n- a\n---\n"
        "kind: Pod\napiVersion: v1\nspec: "
        "{terminationGracePeriodSeconds: soon, containers: [{command: sh, args: [1]}]}\n"
    )
    assert main(["lint", "--fail-on", "info", str(path)]) == 1


def test_list_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--list-rules"]) == 0
    assert "torchrun-limit" in capsys.readouterr().out
