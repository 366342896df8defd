"""Reading manifests: files, folders, standard input; YAML (with PyYAML) or JSON (without)."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import IO, Any

from .model import Document, Path

SUFFIXES = (".yaml", ".yml", ".json")
_HELP_YAML = 'reading YAML needs PyYAML: pip install "ebbtide-workload[lint]" (JSON works without it)'
_HELP_HELM = "it holds template expressions: render it first, as in `helm template . | ebb lint -`"


class Unreadable(Exception):
    """A source that cannot be read; the message names it."""


def load(sources: Iterable[str], stdin: IO[str], note: Callable[[str], None]) -> list[Document]:
    """All Kubernetes objects in the sources ("-" is standard input). What a folder holds besides manifests
    is left out, with a note where that might surprise. Raises Unreadable for a named file that cannot be
    read."""
    documents: list[Document] = []
    for source in sources:
        if source == "-":
            documents += parse("(stdin)", stdin.read())
        elif FilePath(source).is_dir():
            documents += _folder(FilePath(source), note)
        else:
            documents += parse(source, _text(FilePath(source)))
    return documents


def _text(path: FilePath) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _folder(folder: FilePath, note: Callable[[str], None]) -> Iterator[Document]:
    for path in sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES and p.is_file()):
        try:
            yield from parse(str(path), _text(path))
        except Unreadable as error:
            if path.suffix != ".json" and not _yaml_is_there():
                raise
            note(f"left out {error}")


def _yaml_is_there() -> bool:
    try:
        importlib.import_module("yaml")
    except ImportError:
        return False
    return True


def parse(name: str, text: str) -> list[Document]:
    """The Kubernetes objects in a text; Lists are opened. Other content yields nothing."""
    found = _json(name, text) if text.lstrip().startswith(("{", "[")) else None
    return [d for whole in (found if found is not None else _yaml(name, text)) for d in _open_lists(whole)]


def _json(name: str, text: str) -> list[Document] | None:
    """None when it is not JSON after all: a YAML flow mapping or a template begins the same way."""
    try:
        content = json.loads(text)
    except ValueError:
        return None
    objects = content if isinstance(content, list) else [content]
    return [Document(name, o) for o in objects if isinstance(o, dict)]


def _yaml(name: str, text: str) -> list[Document]:
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError as error:
        raise Unreadable(f"{name}: {_HELP_YAML}") from error
    loader = yaml.SafeLoader(text)
    documents: list[Document] = []
    try:
        while loader.check_node():
            node = loader.get_node()
            content = loader.construct_document(node)
            if isinstance(content, dict):
                start = node.start_mark.line
                lines = {path: line + 1 for path, line in _lines(yaml, node, ())}
                documents.append(Document(_helm_source(text, start) or name, content, lines))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark is not None else name
        raise Unreadable(f"{where}: {_HELP_HELM if '{{' in text else _problem(error)}") from error
    finally:
        loader.dispose()
    return documents


def _problem(error: Any) -> str:
    return f"not valid YAML: {getattr(error, 'problem', None) or error}"


def _lines(yaml: Any, node: Any, path: Path) -> Iterator[tuple[Path, int]]:
    yield path, node.start_mark.line
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*path, str(key.value))
            yield from _lines(yaml, value, below)
            yield below, key.start_mark.line
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _lines(yaml, value, (*path, index))


def _helm_source(text: str, start_line: int) -> str:
    """The template a rendered document came from: Helm writes "# Source: ..." above each."""
    for line in reversed(text.split("\n")[:start_line]):
        if line.startswith("# Source: "):
            return line[len("# Source: ") :].strip()
        if line.startswith("---"):
            break
    return ""


def _open_lists(document: Document) -> Iterator[Document]:
    content = document.content
    if "kind" not in content or "apiVersion" not in content:
        return
    entries = content.get("items")
    if not str(content["kind"]).endswith("List") or not isinstance(entries, list):
        yield document
        return
    for index, entry in enumerate(entries):
        if isinstance(entry, Mapping):
            inner = {p[2:]: n for p, n in document.lines.items() if p[:2] == ("items", index)}
            yield from _open_lists(Document(document.file, dict(entry), inner))


def tell(text: str) -> None:
    """A note for the person, not for the report."""
    print(f"ebb lint: {text}", file=sys.stderr)
