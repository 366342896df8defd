"""House rules that no linter knows. Each takes a file and returns sentences about what breaks it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

MOST_LINES = 500
REASON_FOR_LENGTH = "Long because"


@dataclass(frozen=True)
class File:
    """A tracked text file. `path` is relative to the repository's root."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    def calls(self) -> Iterator[tuple[ast.Call, str]]:
        """Every call with the dotted name of what it calls ("" where it is not a plain name)."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                yield node, dotted(node.func)

    def imports(self) -> Iterator[tuple[int, str]]:
        """Every imported module with its line."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                yield node.lineno, node.module or ""


Rule = Callable[[File], list[str]]


def dotted(node: ast.expr) -> str:
    """`a.b.c` for such an expression; where the root is not a name, only the attributes: `.b.c`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


_CLOCK_READS = re.compile(
    r"(^|\.)(datetime\.(now|utcnow|today)|date\.today)$|^time\.(time|time_ns|sleep|monotonic)$"
)


def only_the_clock_reads_time(file: File) -> list[str]:
    """No datetime.now, time.time or time.sleep outside clock.py; nothing that decides sleeps."""
    if not file.path.startswith("src/ebbtide/") or file.path == "src/ebbtide/clock.py":
        return []
    found = [f"{file.path}:{call.lineno}: {name}" for call, name in file.calls() if _CLOCK_READS.search(name)]
    for node in ast.walk(file.tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found.append(f"{file.path}:{node.lineno}: from time import")
    if file.path.startswith(("src/ebbtide/core/", "src/ebbtide/services/")):
        found += [
            f"{file.path}:{call.lineno}: sleeps" for call, name in file.calls() if name == "asyncio.sleep"
        ]
    return found


_RAW_PHASE_WRITE = re.compile(
    r"\b(update\s+nodes\s+set\b.*\bphase\s*=|insert\s+into\s+nodes\b)", re.IGNORECASE | re.DOTALL
)


def _writes_to_nodes(statement: ast.expr) -> bool:
    """Whether a chain like `sa.update(t.nodes).where(...)` begins with a write to the table of nodes."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] in ("update", "insert"):
            targets = [*node.args, node.func.value] if isinstance(node.func, ast.Attribute) else node.args
            if any(dotted(target).split(".")[-1] == "nodes" for target in targets):
                return True
    return False


def _names_phase(call: ast.Call) -> bool:
    keys = [keyword.arg for keyword in call.keywords]
    keys += [key.value for arg in call.args if isinstance(arg, ast.Dict) for key in arg.keys
             if isinstance(key, ast.Constant)]  # fmt: skip
    return "phase" in keys


def only_the_store_moves_nodes(file: File) -> list[str]:
    """Phases of nodes are written by store/nodes.py alone, through the table of moves."""
    exempt = file.path == "src/ebbtide/store/nodes.py" or "/migrations/" in file.path
    if not file.path.startswith("src/ebbtide/") or exempt:
        return []
    found = []
    for call, _ in file.calls():
        is_values = isinstance(call.func, ast.Attribute) and call.func.attr == "values"
        if is_values and _names_phase(call) and _writes_to_nodes(call.func):
            found.append(f"{file.path}:{call.lineno}: writes a node's phase")
    for node in ast.walk(file.tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and _RAW_PHASE_WRITE.search(node.value)
        ):
            found.append(f"{file.path}:{node.lineno}: SQL that writes a node's phase")
    return found


def only_the_database_commits(file: File) -> list[str]:
    """One place ends transactions: store/db.py."""
    if not file.path.startswith("src/ebbtide/") or file.path == "src/ebbtide/store/db.py":
        return []
    return [f"{file.path}:{call.lineno}: commits" for call, name in file.calls() if name.endswith(".commit")]


def distributions_do_not_import_each_other(file: File) -> list[str]:
    """ebbtide and ebbtide_workload share names by a test, not by an import."""
    if file.path.startswith("src/"):
        other = "ebbtide_workload"
    elif file.path.startswith("workload/src/"):
        other = "ebbtide"
    else:
        return []
    return [
        f"{file.path}:{line}: imports {name}" for line, name in file.imports() if name.split(".")[0] == other
    ]


def nothing_is_left_for_later(file: File) -> list[str]:
    """No stubs."""
    return [
        f"{file.path}:{node.lineno}: a stub"
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Raise)
        and node.exc is not None
        and "NotImplementedError" in ast.dump(node.exc)
    ]


def skipped_tests_say_why(file: File) -> list[str]:
    """A skip has a reason, and a missing module is an error: what the tests need is installed."""
    found = []
    for call, name in file.calls():
        said = bool(call.args) or any(keyword.arg == "reason" for keyword in call.keywords)
        if name == "pytest.importorskip":
            found.append(f"{file.path}:{call.lineno}: importorskip")
        elif name in ("pytest.skip", "pytest.mark.skip", "pytest.mark.xfail") and not said:
            found.append(f"{file.path}:{call.lineno}: a skip without a reason")
    for node in ast.walk(file.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            bare = {"pytest.mark.skip", "pytest.mark.xfail"} & {dotted(mark) for mark in node.decorator_list}
            found += [f"{file.path}:{node.lineno}: {mark} without a reason" for mark in sorted(bare)]
    return found


_IGNORE_WITHOUT_REASON = re.compile(r"#\s*type:\s*ignore(\[[^\]]*\])?\s*$", re.MULTILINE)


def ignored_types_say_why(file: File) -> list[str]:
    """`# type: ignore[code]  # the reason`."""
    return [f"{file.path}: {match[0]}" for match in _IGNORE_WITHOUT_REASON.finditer(file.text)]


def files_are_short(file: File) -> list[str]:
    """At most 500 lines, or the first lines say why not."""
    lines = file.text.splitlines()
    if len(lines) <= MOST_LINES or any(REASON_FOR_LENGTH in line for line in lines[:10]):
        return []
    return [f'{file.path}: {len(lines)} lines; split it, or say "{REASON_FOR_LENGTH} ..." at its top']


# Joined from parts, so that this file does not break its own rules.
_LATER = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")
_REGISTRIES = tuple(".".join(parts) for parts in (
    ("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("npmjs", "com"), ("anaconda", "org"),
    ("proxy", "golang", "org"), ("crates", "io"),
))  # fmt: skip
_HERE = ("work/main", "work/shared", "work/.library", "tmp/w", "opt/wheels", "root/.pyenv")
_MACHINE = re.compile(
    rf"(?<![\w.}}])/(?:{'|'.join(map(re.escape, _HERE))})\b|/(?:home|Users)/(?!you|user|me|alice|bob)\w+/"
)


def no_words_for_later(file: File) -> list[str]:
    """What is not done is an issue, not a comment."""
    return [f"{file.path}: {match[0]}" for match in _LATER.finditer(file.text)]


def no_registries(file: File) -> list[str]:
    """Packages come from wherever the reader's tools are set to look."""
    return [f"{file.path}: names {host}" for host in _REGISTRIES if host in file.text]


def no_machine_paths(file: File) -> list[str]:
    """Nothing knows where it was written."""
    return [f"{file.path}: {match[0]}" for match in _MACHINE.finditer(file.text)]


PYTHON_RULES: tuple[Rule, ...] = (
    only_the_clock_reads_time,
    only_the_store_moves_nodes,
    only_the_database_commits,
    distributions_do_not_import_each_other,
    nothing_is_left_for_later,
    skipped_tests_say_why,
    ignored_types_say_why,
    files_are_short,
)
TEXT_RULES: tuple[Rule, ...] = (no_words_for_later, no_registries, no_machine_paths)


def tracked(root: Path, names: list[str]) -> Iterator[File]:
    """The text files among `names`; what is not UTF-8 is no text."""
    for name in names:
        path = root / name
        if path.is_file():
            try:
                yield File(name, path.read_text(encoding="utf-8"))
            except UnicodeDecodeError:
                continue
