"""The fleet file: what an operator writes about regions, pools and hosts, read into plain values.

Pure: text in, values out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import yaml

from ebbtide.core.wipes import WipePolicy
from ebbtide.services.details import DriverVersion
from ebbtide.services.fleet_hosts import DNS_LABEL, DNS_RULE, HostSpec, read_hosts
from ebbtide.services.fleet_yaml import (
    Fields,
    Problems,
    compose,
    decode,
    entries,
    is_nothing,
    kind,
    said,
    text,
)

__all__ = ["FleetFile", "HostSpec", "PoolSpec", "RegionSpec", "parse"]

_MOST_CHARACTERS = 4_000_000
_MOST_DOLLARS_PER_GPU_HOUR = 10_000
_GPU_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,62}")
_WIPE = re.compile("|".join(WipePolicy))
_WIPE_RULE = f"one of {', '.join(WipePolicy)}"
POOL_KEYS = (
    "region", "gpu_type", "gpus_per_host", "price_per_gpu_hour", "headroom_hosts", "turn_over_s", "boot_s",
    "memory_gib", "cpu_cores", "provider", "wipe", "blocks", "hosts",
)  # fmt: skip
DRIVER_KEYS = ("id", "cuda_version", "nvidia_driver_version", "os")
_DEFAULT_DRIVERS = (("12.8", "570", "ubuntu-22.04"), ("13.0", "580", "ubuntu-22.04"))


@dataclass(frozen=True, slots=True)
class RegionSpec:
    """A region and its driver catalogue, in the file's order."""

    name: str
    driver_versions: tuple[DriverVersion, ...]


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool: hosts of one GPU model in one region that can stand in for each other.

    microdollars_per_gpu_hour: the standard price; None means that usage stays unpriced until there is a rate
    headroom_hosts:            free hosts that are never lent
    turn_over_s, boot_s:       how long stopping and wiping, and booting, take (in the simulation exactly)
    wipe:                      when hosts are wiped between nodes
    """

    name: str
    region: str
    gpu_type: str
    gpus_per_host: int = 8
    microdollars_per_gpu_hour: int | None = None
    headroom_hosts: int = 0
    turn_over_s: int = 20
    boot_s: int = 30
    memory_gib: int = 1024
    cpu_cores: int = 96
    provider: str = "simulated"
    wipe: WipePolicy = WipePolicy.ALWAYS
    hosts: tuple[HostSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetFile:
    """The whole file, names unique: regions, pools, and hosts over all pools."""

    regions: tuple[RegionSpec, ...] = ()
    pools: tuple[PoolSpec, ...] = field(default=())


def parse(data: str | bytes, source: str = "fleet.yaml") -> FleetFile:
    """Read a fleet file.

    Raises BadInput that names `source`, the line and what to write instead, once for all problems found.
    A file without an error has at least one region and one pool.
    """
    problems = Problems(source)
    content = decode(data, problems)
    if len(content) > _MOST_CHARACTERS:
        problems.add(
            1,
            f"the file has {len(content)} characters; {_MOST_CHARACTERS} is the limit (use `count`)",
        )
        problems.raise_if_any()
    root = compose(content, problems)
    fleet = FleetFile()
    if root is None or is_nothing(root):
        problems.add(
            1,
            "the file is empty; write `regions:` and `pools:` (see `ebbtide fleet example`)",
        )
    elif not isinstance(root, yaml.MappingNode):
        problems.add(root, f"the file must begin with `regions:` and `pools:`, not {kind(root)}")
    else:
        fleet = _read_fleet(root, problems)
    problems.raise_if_any()
    return fleet


def _read_fleet(root: yaml.MappingNode, problems: Problems) -> FleetFile:
    fields = Fields(root, "a fleet file", ("regions", "pools"), problems)
    region_nodes = _named(fields.require("regions", "regions: {local-1: {}}"), "region", problems)
    regions = tuple(_read_region(name, node, problems) for name, node in region_nodes.items())
    pool_nodes = _named(fields.require("pools", "pools: {h100: {region: local-1, ...}}"), "pool", problems)
    pools: list[PoolSpec] = []
    for name, node in pool_nodes.items():
        pool = _read_pool(name, node, tuple(region_nodes), problems)
        if pool is not None:
            pools.append(pool)
    _refuse_twins(pools, pool_nodes, problems)
    return FleetFile(regions, tuple(pools))


def _named(node: yaml.Node | None, what: str, problems: Problems) -> dict[str, yaml.Node]:
    """A mapping from names to values, the badly named left out."""
    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode):
        problems.add(
            node, f"`{what}s` must be a mapping from each {what}'s name to its settings, not {kind(node)}"
        )
        return {}
    if not node.value:
        problems.add(node, f"`{what}s` is empty; name at least one {what}")
    found: dict[str, yaml.Node] = {}
    for name, (key, value) in entries(node, problems).items():
        if text(key, f"the {what} name", DNS_LABEL, DNS_RULE, problems) is not None:
            found[name] = value
    return found


def _read_region(name: str, node: yaml.Node, problems: Problems) -> RegionSpec:
    defaults = tuple(_driver(name, *versions) for versions in _DEFAULT_DRIVERS)
    if is_nothing(node):
        return RegionSpec(name, defaults)
    if not isinstance(node, yaml.MappingNode):
        problems.add(
            node, f"region {said(name)} must be a mapping (`{name}: {{}}` will do), not {kind(node)}"
        )
        return RegionSpec(name, defaults)
    listed = Fields(node, f"region {said(name)}", ("driver_versions",), problems).value("driver_versions")
    if listed is None:
        return RegionSpec(name, defaults)
    if not isinstance(listed, yaml.SequenceNode) or not listed.value:
        problems.add(listed, f"`driver_versions` must be a list of at least one entry, not {kind(listed)}")
        return RegionSpec(name, defaults)
    drivers = [_read_driver(name, item, problems) for item in listed.value]
    _refuse_repeated_drivers(drivers, listed, problems)
    return RegionSpec(name, tuple(driver for driver in drivers if driver is not None))


def _driver(region: str, cuda: str, driver: str, os: str, id_: str | None = None) -> DriverVersion:
    plain = f"{region}-{driver}-{cuda.replace('.', '')}"
    return DriverVersion(id_ or (plain if os == "ubuntu-22.04" else f"{plain}-{os}"), cuda, driver, os)


def _read_driver(region: str, node: yaml.Node, problems: Problems) -> DriverVersion | None:
    example = '{cuda_version: "12.8", nvidia_driver_version: "570", os: ubuntu-22.04}'
    if not isinstance(node, yaml.MappingNode):
        problems.add(node, f"a driver version looks like {example}, not {kind(node)}")
        return None
    fields = Fields(node, "a driver version", DRIVER_KEYS, problems)
    rule = "letters, digits and `._+-`"
    fields.require("cuda_version", 'cuda_version: "12.8"')
    fields.require("nvidia_driver_version", 'nvidia_driver_version: "570"')
    cuda, driver = (
        fields.text("cuda_version", _VERSION, rule),
        fields.text("nvidia_driver_version", _VERSION, rule),
    )
    os = fields.text("os", _VERSION, rule) or "ubuntu-22.04"
    id_ = fields.text("id", _VERSION, rule)
    return _driver(region, cuda, driver, os, id_) if cuda and driver else None


def _refuse_repeated_drivers(
    drivers: list[DriverVersion | None], listed: yaml.SequenceNode, problems: Problems
) -> None:
    seen: set[str] = set()
    for driver, node in zip(drivers, listed.value, strict=True):
        if driver is not None and driver.id in seen:
            problems.add(
                node,
                f"the driver version id {said(driver.id)} is here twice; remove one or give it another `id`",
            )
        elif driver is not None:
            seen.add(driver.id)


def _read_pool(name: str, node: yaml.Node, regions: tuple[str, ...], problems: Problems) -> PoolSpec | None:
    if not isinstance(node, yaml.MappingNode):
        problems.add(
            node, f"pool {said(name)} must be a mapping with `region`, `gpu_type` and hosts, not {kind(node)}"
        )
        return None
    fields = Fields(node, f"pool {said(name)}", POOL_KEYS, problems)
    region = _read_pools_region(fields, regions, problems)
    fields.require("gpu_type", "gpu_type: H100_SXM")
    gpu_type = fields.text(
        "gpu_type", _GPU_TYPE, "a GPU model of letters, digits and `_.-`, such as H100_SXM"
    )
    usual = PoolSpec(name, region or "", gpu_type or "")
    return PoolSpec(
        name=name,
        region=usual.region,
        gpu_type=usual.gpu_type,
        gpus_per_host=fields.integer("gpus_per_host", usual.gpus_per_host, least=1, most=1024),
        microdollars_per_gpu_hour=fields.micros(
            "price_per_gpu_hour", most=_MOST_DOLLARS_PER_GPU_HOUR * 1_000_000
        ),
        headroom_hosts=fields.integer("headroom_hosts", usual.headroom_hosts, most=1_000_000),
        turn_over_s=fields.integer("turn_over_s", usual.turn_over_s, most=86_400),
        boot_s=fields.integer("boot_s", usual.boot_s, most=86_400),
        memory_gib=fields.integer("memory_gib", usual.memory_gib, least=1, most=1_000_000),
        cpu_cores=fields.integer("cpu_cores", usual.cpu_cores, least=1, most=100_000),
        provider=fields.text("provider", DNS_LABEL, DNS_RULE) or usual.provider,
        wipe=WipePolicy(fields.text("wipe", _WIPE, _WIPE_RULE) or usual.wipe),
        hosts=read_hosts(name, fields, problems),
    )


def _read_pools_region(fields: Fields, regions: tuple[str, ...], problems: Problems) -> str | None:
    node = fields.require("region", f"region: {regions[0] if regions else 'local-1'}")
    region = fields.text("region", DNS_LABEL, DNS_RULE)
    if node is not None and region is not None and region not in regions:
        known = ", ".join(regions) or "none"
        problems.add(
            node,
            f"there is no region {said(region)} in this file (there is: {known}); add it under `regions`",
        )
    return region


def _refuse_twins(pools: list[PoolSpec], nodes: dict[str, yaml.Node], problems: Problems) -> None:
    """An order could not tell two pools of one model in one region apart, nobody two hosts of one name."""
    models: dict[tuple[str, str], str] = {}
    owners: dict[str, str] = {}
    for pool in pools:
        twin = models.setdefault((pool.region, pool.gpu_type), pool.name)
        if twin != pool.name and pool.region and pool.gpu_type:
            problems.add(
                nodes[pool.name],
                f"pools {said(twin)} and {said(pool.name)} both hold {pool.gpu_type} in {pool.region}; "
                "make them one pool with fabric `blocks`, or give one another `gpu_type`",
            )
        for host in pool.hosts:
            owner = owners.setdefault(host.name, pool.name)
            if owner != pool.name:
                problems.add(
                    host.line,
                    f"host {said(host.name)} is in pool {said(owner)} already; a host is in one pool",
                )
