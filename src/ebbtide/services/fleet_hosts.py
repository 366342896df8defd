"""The hosts of a pool in the fleet file: listed, counted by a name pattern, or counted per fabric block."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from ebbtide.services.fleet_yaml import Fields, Problems, entries, integer, kind, said, text

DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
DNS_RULE = "lower-case letters, digits and dashes (at most 63, no dash at either end)"
DEFAULT_BLOCK = "default"
MOST_HOSTS_IN_A_POOL = 200_000

HOST_KEYS = ("name", "fabric_block", "count", "first")
_PATTERN = re.compile(r"(?P<before>[a-z0-9-]*)\{n(:0(?P<width>[1-9]))?\}(?P<after>[a-z0-9-]*)")
_PATTERN_RULE = "a name with `{n}` or `{n:03}` where the number goes, such as gpu-a-{n:03}"


@dataclass(frozen=True, slots=True)
class HostSpec:
    """A host; `fabric_block` is its InfiniBand island, `line` where the file names it (not compared)."""

    name: str
    fabric_block: str = DEFAULT_BLOCK
    line: int = field(default=0, compare=False, repr=False)


def read_hosts(pool: str, fields: Fields, problems: Problems) -> tuple[HostSpec, ...]:
    """The pool's hosts from `blocks` and `hosts` together, in the file's order, names unique."""
    blocks, listed = fields.value("blocks"), fields.value("hosts")
    if blocks is None and listed is None:
        problems.add(
            fields.node,
            f"pool {said(pool)} has no hosts; write for example `blocks: {{b1: 4}}`, or list `hosts`",
        )
        return ()
    found: dict[str, HostSpec] = {}
    for host in _all_hosts(pool, blocks, listed, problems):
        if host.name in found:
            problems.add(
                host.line, f"host {said(host.name)} is here twice (first on line {found[host.name].line})"
            )
        elif len(found) == MOST_HOSTS_IN_A_POOL:
            problems.add(host.line, f"pool {said(pool)} has more than {MOST_HOSTS_IN_A_POOL} hosts; split it")
            break
        else:
            found[host.name] = host
    return tuple(found.values())


def _all_hosts(
    pool: str, blocks: yaml.Node | None, listed: yaml.Node | None, problems: Problems
) -> Iterator[HostSpec]:
    if isinstance(blocks, yaml.MappingNode):
        yield from _from_blocks(pool, blocks, problems)
    elif blocks is not None:
        problems.add(
            blocks,
            f"`blocks` must be a mapping from block to host count, like {{b1: 16}}, not {kind(blocks)}",
        )
    if isinstance(listed, yaml.SequenceNode):
        for item in listed.value:
            yield from _from_item(item, problems)
    elif isinstance(listed, yaml.MappingNode):
        yield from _from_item(listed, problems)
    elif listed is not None:
        problems.add(
            listed,
            f"`hosts` must be a list of names, or {{count: 4, name: gpu-{{n:02}}}}, not {kind(listed)}",
        )


def _from_blocks(pool: str, node: yaml.MappingNode, problems: Problems) -> Iterator[HostSpec]:
    """Names never change when a count grows: the number is padded to three digits whatever the count."""
    for block, (key, value) in entries(node, problems).items():
        named = text(key, "the fabric block", DNS_LABEL, DNS_RULE, problems)
        count = integer(value, f"the host count of block {said(block)}", 0, MOST_HOSTS_IN_A_POOL, problems)
        if named is not None and count:
            yield from _numbered(f"{pool}-{block}-", "", 3, range(1, count + 1), block, key, problems)


def _from_item(node: yaml.Node, problems: Problems) -> Iterator[HostSpec]:
    if not isinstance(node, yaml.MappingNode):
        name = text(node, "a host name", DNS_LABEL, DNS_RULE, problems)
        if name is not None:
            yield HostSpec(name, line=node.start_mark.line + 1)
        return
    fields = Fields(node, "a host", HOST_KEYS, problems)
    block = fields.text("fabric_block", DNS_LABEL, DNS_RULE) or DEFAULT_BLOCK
    name_node = fields.require("name", "name: gpu-a-{n:03}" if fields.value("count") else "name: gpu-a-001")
    if fields.value("count") is not None:
        yield from _counted(fields, name_node, block, problems)
        return
    if fields.value("first") is not None:
        problems.add(node, "`first` numbers the hosts of a `count`; add `count`, or remove it")
    name = fields.text("name", DNS_LABEL, DNS_RULE)
    if name is not None:
        yield HostSpec(name, block, node.start_mark.line + 1)


def _counted(
    fields: Fields, name_node: yaml.Node | None, block: str, problems: Problems
) -> Iterator[HostSpec]:
    count = fields.integer("count", 0, most=MOST_HOSTS_IN_A_POOL)
    first = fields.integer("first", 1, most=10_000_000)
    if name_node is None:
        return
    match = _PATTERN.fullmatch(name_node.value) if isinstance(name_node, yaml.ScalarNode) else None
    if match is None:
        problems.add(name_node, f"with `count`, `name` must be {_PATTERN_RULE}, not {kind(name_node)}")
        return
    numbers = range(first, first + count)
    yield from _numbered(
        match["before"], match["after"], int(match["width"] or 1), numbers, block, name_node, problems
    )


def _numbered(
    before: str, after: str, width: int, numbers: range, block: str, where: yaml.Node, problems: Problems
) -> Iterator[HostSpec]:
    line = where.start_mark.line + 1
    for number in numbers:
        name = f"{before}{number:0{width}}{after}"
        if not DNS_LABEL.fullmatch(name):
            problems.add(where, f"the generated host name {said(name)} is not {DNS_RULE}; use a shorter one")
            return
        yield HostSpec(name, block, line)
