"""Findings for a person, and for a machine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from textwrap import wrap

from .model import SEVERITIES, Document, Finding
from .rules import RULES
from .workloads import KINDS

WIDTH = 110


def as_json(findings: Sequence[Finding], documents: Sequence[Document]) -> str:
    """One JSON document: the findings, how many of each severity, how many objects were looked at."""
    counts = Counter(f.severity for f in findings)
    summary = {severity: counts[severity] for severity in SEVERITIES}
    whole = {
        "version": 1,
        "findings": [asdict(f) for f in findings],
        "summary": {**summary, "objects": len(documents)},
    }
    return json.dumps(whole, indent=2)


def as_text(findings: Sequence[Finding], documents: Sequence[Document]) -> str:
    """The findings under the object they belong to, each with its fix and where to read on."""
    lines: list[str] = []
    for (kind, name, file), group in groupby(findings, key=lambda f: (f.kind, f.name, f.file)):
        lines.append(f"{kind} {name}   {file}")
        for finding in group:
            lines += [*_finding(finding), ""]
    return "\n".join([*lines, _summary(findings, documents)])


def _finding(finding: Finding) -> Iterator[str]:
    where = finding.path if finding.line is None else f"{finding.path}, line {finding.line}"
    yield f"  {finding.severity} {finding.rule}   {where}"
    yield from wrap(finding.message, WIDTH, initial_indent="    ", subsequent_indent="    ")
    fix = f"fix: {finding.fix}"
    yield from wrap(fix, WIDTH, initial_indent="    ", subsequent_indent="         ", break_long_words=False)
    yield f"    see: {finding.doc}"


def _summary(findings: Sequence[Finding], documents: Sequence[Document]) -> str:
    making_pods = sum(d.kind in KINDS for d in documents)
    looked = f"{len(documents)} object{'s' * (len(documents) != 1)}, {making_pods} with pods"
    if not documents:
        return "No Kubernetes objects found."
    if not findings:
        return f"Clean: {looked}."
    counts = Counter(f.severity for f in findings)
    told = ", ".join(f"{counts[s]} {s}{'s' * (counts[s] != 1)}" for s in SEVERITIES if counts[s])
    return f"{told} in {looked}."


def rules_as_text() -> str:
    """One line for each rule."""
    return "\n".join(f"{rule.id:<28} {rule.severity:<8} {rule.title}" for rule in RULES)
