"""Running the rules over the documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from .model import DOC, SEVERITIES, Document, Finding, Found, mapping, show
from .rules import RULES, Rule
from .world import World

IGNORE_ANNOTATION = "ebbtide/lint-ignore"


class UnknownRule(Exception):
    """A name or pattern that fits no rule."""


def chosen(select: Sequence[str], ignore: Sequence[str]) -> list[Rule]:
    """The rules to run; names may be patterns such as grace-*. Raises UnknownRule when one fits nothing."""
    for pattern in (*select, *ignore):
        if not any(fnmatchcase(rule.id, pattern) for rule in RULES):
            raise UnknownRule(f"no rule is called {pattern}; --list-rules names them")
    wanted = [r for r in RULES if not select or _named(r, select)]
    return [r for r in wanted if not _named(r, ignore)]


def _named(rule: Rule, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(rule.id, pattern) for pattern in patterns)


def check(documents: Iterable[Document], rules: Iterable[Rule], window_s: int = 300) -> list[Finding]:
    """All findings, by file and line, then in the order of the rules."""
    world = World(documents, window_s)
    order = {id(document): number for number, document in enumerate(world.documents)}
    found = [
        (order[id(f.doc)], f.doc.line(f.path) or 0, number, f, rule)
        for number, rule in enumerate(rules)
        for f in rule.check(world)
        if not _ignored(f.doc, rule)
    ]
    found.sort(key=lambda entry: (*entry[:3], show(entry[3].path)))
    return [_finding(f, rule) for _, _, _, f, rule in found]


def _ignored(document: Document, rule: Rule) -> bool:
    noted = str(mapping(document.metadata.get("annotations")).get(IGNORE_ANNOTATION, ""))
    return _named(rule, [name.strip() for name in noted.split(",") if name.strip()])


def _finding(found: Found, rule: Rule) -> Finding:
    document = found.doc
    return Finding(
        rule=rule.id,
        severity=found.severity or rule.severity,
        file=document.file,
        line=document.line(found.path),
        kind=document.kind,
        name=document.name,
        namespace=document.namespace,
        path=show(found.path),
        message=found.message,
        fix=found.fix,
        doc=f"{DOC}#{rule.id}",
    )


def at_least(finding: Finding, severity: str) -> bool:
    """Whether a finding weighs as much as `severity` or more."""
    return SEVERITIES.index(finding.severity) <= SEVERITIES.index(severity)
