"""Reading YAML with line numbers.

Every problem is noted with its line and reading goes on, so that all are told at once.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from decimal import Decimal, InvalidOperation

import yaml

from ebbtide.errors import BadInput

_TELL_AT_MOST = 50
_MERGE_TAG = "tag:yaml.org,2002:merge"
_NULL_TAG = "tag:yaml.org,2002:null"
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_DECIMAL = re.compile(r"[+-]?[0-9]{1,12}(\.[0-9]{1,12})?")


class Problems:
    """What was found wrong so far, each with its line (from 1)."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._found: list[tuple[int, str]] = []

    def add(self, where: yaml.Node | int, text: str) -> None:
        line = where if isinstance(where, int) else where.start_mark.line + 1
        if (line, text) not in self._found:
            self._found.append((line, text))

    def raise_if_any(self) -> None:
        """Raise one BadInput that tells all problems in line order, one to a line of the message."""
        if not self._found:
            return
        found = sorted(self._found, key=lambda problem: problem[0])
        told = [f"{self._source} line {line}: {text}" for line, text in found[:_TELL_AT_MOST]]
        if len(found) > _TELL_AT_MOST:
            told.append(f"... and {len(found) - _TELL_AT_MOST} more")
        raise BadInput("\n".join(told), param="fleet", code="bad_fleet_file")


def decode(data: str | bytes, problems: Problems) -> str:
    """The text of a file's bytes; not UTF-8 is a problem with its line."""
    if isinstance(data, str):
        return data
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        problems.add(line, f"byte {data[error.start]:#04x} is not UTF-8; save the file as UTF-8")
        problems.raise_if_any()
        raise  # unreachable: there is one problem at least


def compose(text: str, problems: Problems) -> yaml.Node | None:
    """The document's root with line marks, None when there is none; BadInput when it is not YAML."""
    root: yaml.Node | None = None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        problems.add(*_told_syntax_error(text, error))
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        problems.add(line, f"the character {_shown(error.character)} is not allowed in YAML; remove it")
    except RecursionError:
        problems.add(1, "brackets or blocks are nested too deeply; a fleet file needs four levels")
    except ValueError as error:  # PyYAML lets a few malformed escapes and directives through as these
        problems.add(1, f"this is not YAML: {error}")
    problems.raise_if_any()
    return root


def _shown(character: object) -> str:
    return f"U+{character:04X}" if isinstance(character, int) else repr(character)


def _told_syntax_error(text: str, error: yaml.MarkedYAMLError) -> tuple[int, str]:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    lines = text.splitlines()
    here = lines[line - 1] if line <= len(lines) else ""
    if "\t" in here[: len(here) - len(here.lstrip())]:
        return line, "the line is indented with a tab; YAML indents with spaces only"
    if "single document" in str(error.context):
        return line, "a second document begins here; a fleet file is one document, remove the `---`"
    return line, f"this is not YAML: {error.problem or error.context or 'it cannot be read'}"


def said(text: str) -> str:
    """A user's own words in a message: quoted, and cut when long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if node.tag == _NULL_TAG:
        return "nothing"
    return said(str(node.value))


def is_nothing(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == _NULL_TAG


def entries(node: yaml.MappingNode, problems: Problems) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """A mapping's own and merged (`<<`) entries by key, as (key, value). Of a repeated key, the first."""
    return _entries(node, problems, frozenset())


def _entries(
    node: yaml.MappingNode, problems: Problems, outer: frozenset[int]
) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            problems.add(key, f"a key must be a word, not {kind(key)}")
        elif key.tag == _MERGE_TAG:
            for source in _merge_sources(key, value, problems, outer | {id(node)}):
                for name, entry in _entries(source, problems, outer | {id(node)}).items():
                    merged.setdefault(name, entry)
        elif key.value in own:
            first = own[key.value][0].start_mark.line + 1
            problems.add(key, f"{said(key.value)} is here twice (first on line {first}); keep one")
        else:
            own[key.value] = (key, value)
    return {**merged, **own}


def _merge_sources(
    key: yaml.Node, value: yaml.Node, problems: Problems, outer: frozenset[int]
) -> Iterator[yaml.MappingNode]:
    sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
    for source in sources:
        if not isinstance(source, yaml.MappingNode):
            problems.add(key, f"`<<` takes a mapping, not {kind(source)}")
        elif id(source) in outer or len(outer) > 4:
            problems.add(key, "`<<` merges run in a circle or too deep; write the keys out")
        else:
            yield source


class Fields:
    """A mapping whose keys are known. Each reader notes what is wrong, answers None and goes on."""

    def __init__(self, node: yaml.MappingNode, what: str, known: Collection[str], problems: Problems) -> None:
        self.node = node
        self._what = what
        self._problems = problems
        self._entries = entries(node, problems)
        for name, (key, _) in self._entries.items():
            if name not in known:
                problems.add(key, f"{what} has no key {said(name)}; {_suggestion(name, known)}")

    def value(self, name: str) -> yaml.Node | None:
        """The value's node, or None when the key is absent or has nothing after it."""
        entry = self._entries.get(name)
        return None if entry is None or is_nothing(entry[1]) else entry[1]

    def require(self, name: str, example: str) -> yaml.Node | None:
        """As `value`; an absent one is a problem that shows what to write."""
        node = self.value(name)
        if node is None:
            where = self._entries[name][0] if name in self._entries else self.node
            self._problems.add(where, f"{self._what} needs `{name}`; write for example `{example}`")
        return node

    def text(self, name: str, pattern: re.Pattern[str], rule: str) -> str | None:
        node = self.value(name)
        return None if node is None else text(node, f"`{name}`", pattern, rule, self._problems)

    def integer(self, name: str, default: int, *, least: int = 0, most: int) -> int:
        """A whole number within bounds; the default when absent, or wrong and noted."""
        node = self.value(name)
        if node is None:
            return default
        found = integer(node, f"`{name}`", least, most, self._problems)
        return default if found is None else found

    def micros(self, name: str, *, most: int) -> int | None:
        """A decimal of at most six places, exactly, in millionths; None when absent, or wrong and noted."""
        node = self.value(name)
        if node is None:
            return None
        rule = f"`{name}` is dollars with at most six decimals, such as 2.50"
        raw = node.value if isinstance(node, yaml.ScalarNode) else ""
        if not _DECIMAL.fullmatch(raw):
            self._problems.add(node, f"{rule}, not {kind(node)}")
            return None
        micros = _millionths(raw)
        if micros is None or not 0 <= micros <= most:
            self._problems.add(node, f"{rule}, from 0 to {most // 1_000_000}, not {said(raw)}")
            return None
        return micros


def _millionths(raw: str) -> int | None:
    try:
        scaled = Decimal(raw) * 1_000_000
    except InvalidOperation:
        return None
    return int(scaled) if scaled == scaled.to_integral_value() else None


def _suggestion(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return (
        f"did you mean `{near[0]}`?"
        if near
        else f"it may have {', '.join(f'`{key}`' for key in sorted(known))}"
    )


def text(node: yaml.Node, what: str, pattern: re.Pattern[str], rule: str, problems: Problems) -> str | None:
    """A word that matches the pattern, taken as it is written (`no` and `1.20` stay what they are)."""
    if not isinstance(node, yaml.ScalarNode) or not pattern.fullmatch(node.value):
        problems.add(node, f"{what} must be {rule}, not {kind(node)}")
        return None
    return str(node.value)


def integer(node: yaml.Node, what: str, least: int, most: int, problems: Problems) -> int | None:
    """A whole number from `least` to `most`."""
    raw = node.value if isinstance(node, yaml.ScalarNode) else ""
    number = int(raw) if _WHOLE_NUMBER.fullmatch(raw) else None
    if number is None or not least <= number <= most:
        problems.add(node, f"{what} must be a whole number from {least} to {most}, not {kind(node)}")
        return None
    return number
