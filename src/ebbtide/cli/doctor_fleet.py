"""What `ebbtide doctor` looks at besides a cluster: a fleet file, the operator's programs, a server."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ebbtide.errors import BadInput, StartupError
from ebbtide.kube.doctor.finding import Finding, note, ok, problem, some, unknown, warning

if TYPE_CHECKING:
    from ebbtide.client import Client, Json
    from ebbtide.providers.programs import Program

# Verbs that are not needed, and what it means to be without.
_WITHOUT = {
    "status": "a machine that dies is noticed only when its Node falls silent",
    "stop": "a node past its deadline stays, cordoned, until its host is wiped",
    "list": "machines that nobody remembers are not found",
    "reboot": "remediations that restart a machine fail with a sentence",
}
_ANY_POOL = "default"  # what `list` is asked for where no fleet file names pools


def fleet_file(text: str) -> tuple[list[Finding], list[str]]:
    """Whether a fleet file can be used, and its pools' names."""
    from ebbtide.services.fleet_file import parse

    try:
        file = parse(text)
    except BadInput as error:
        return [
            problem("fleet file", error.message, "`ebbtide fleet check FILE` lists all that is wrong")
        ], []
    found: list[Finding] = []
    count = sum(len(pool.hosts) for pool in file.pools)
    found.append(ok("fleet file", f"{len(file.pools)} pools with {count} hosts"))
    empty = [pool.name for pool in file.pools if not pool.hosts]
    if empty:
        do = "name hosts in the file, or bring them in by `ebbtide fleet sync`"
        found.append(note("hosts", f"pools without hosts: {some(empty)}", do))
    unpriced = [pool.name for pool in file.pools if pool.microdollars_per_gpu_hour is None]
    if unpriced:
        do = "set price_per_gpu_hour; until then usage is recorded and not priced"
        found.append(note("prices", f"pools without a price: {some(unpriced)}", do))
    kept = [pool.name for pool in file.pools if pool.hosts and pool.headroom_hosts >= len(pool.hosts)]
    if kept:
        do = "lower headroom_hosts: as it is, none of their hosts is ever lent"
        found.append(warning("headroom", f"pools whose headroom is all they have: {some(kept)}", do))
    return found, [pool.name for pool in file.pools]


async def programs(environment: Mapping[str, str], pools: Sequence[str]) -> list[Finding]:
    """Whether each program can be started, and what `list` answers for each pool. Nothing else is run."""
    from ebbtide.backends import exec as exec_backend
    from ebbtide.settings import from_environment

    try:
        settings = from_environment(environment)
        named = exec_backend.programs(settings)
    except StartupError as error:
        return [problem("programs", error.message, "set what is missing in the server's environment")]
    found = [_executable(verb, str(getattr(settings, f"exec_{verb}"))) for verb in named]
    found += [
        note(verb, "there is no program for it", f"{why}; EBBTIDE_EXEC_{verb.upper()} names one")
        for verb, why in _WITHOUT.items()
        if verb not in named
    ]
    if settings.provider != "exec":
        do = "set EBBTIDE_PROVIDER=exec for the server: it uses no programs otherwise"
        found.append(warning("provider", f"EBBTIDE_PROVIDER is {settings.provider}", do))
    if "list" not in named:
        do = "set EBBTIDE_EXEC_LIST, so that machines that nobody asked for are found and ended"
        return [*found, note("list", "there is no program for it", do)]
    if "list" not in named or any(each.check == "list" and each.do for each in found):
        return found
    return found + [await _list(named["list"], pool) for pool in pools or [_ANY_POOL]]


def _executable(verb: str, line: str) -> Finding:
    path = shlex.split(line)[0]
    if shutil.which(path):
        return ok(verb, f"{path} can be started")
    if Path(path).is_file():
        return problem(verb, f"{path} is not executable", f"chmod +x {shlex.quote(path)}")
    return problem(verb, f"there is no {path}", f"correct EBBTIDE_EXEC_{verb.upper()}")


async def _list(program: Program, pool: str) -> Finding:
    from ebbtide.providers.answers import read_list
    from ebbtide.providers.base import ProviderError

    check = f"list {pool}"
    try:
        run = await program.run({"verb": "list", "pool": pool, "limit_s": program.limit_s})
        if run.code != 0:
            how = f"took longer than {program.limit_s} s" if run.code is None else f"exited with {run.code}"
            told = f"; it said: {run.said.splitlines()[-1]}" if run.said else ""
            do = 'it must print {"instances": [...]} and exit with 0, also when there are none'
            return problem(check, f"{program.what} {how}{told}", do)
        listed = read_list(program.what, run.answer())
    except ProviderError as error:
        return problem(check, error.message, 'it must print one JSON object: {"instances": [...]}')
    return ok(check, f"answers; {len(listed)} instances")


def server(client: Client) -> tuple[list[Finding], list[str]]:
    """What a running server knows of: its imported clusters, its hosts, its prices; and its pools' names.
    Raises what a client raises when nobody answers, or the key is not known.
    """
    me = client.whoami()
    found = [ok("server", f"{client.base_url} answers; the key is {me['project']['slug']}'s, {me['role']}")]
    found += [_cluster(each) for each in client.clusters()]
    if me["role"] != "operator":
        do = "give an operator's key to see the fleet"
        return [*found, unknown("hosts", "only operators see the fleet", do)], []
    pools = client.pools()
    return [*found, *_hosts(client.hosts()), *_pools(pools)], [str(each["name"]) for each in pools]


def _cluster(cluster: Json) -> Finding:
    name, status = str(cluster["cluster_name"]), str(cluster["status"])
    imported = cluster.get("imported") or {}
    if imported.get("problem"):
        do = "put it right in the cluster, or give another kubeconfig: `ebbtide clusters renew-import`"
        return problem(name, str(imported["problem"]), do)
    fill = cluster.get("preemptible_fill") or {}
    if fill.get("pending_reason"):
        return note(name, f"{status}; {fill['pending_reason']}", "`ebbtide fleet why` tells more")
    if status in ("Ready", "Deleting"):
        return ok(name, status)
    return note(name, status, f"`ebbtide clusters get {name}` tells more")


def _hosts(hosts: list[Json]) -> list[Finding]:
    aside = [
        f"{each['name']} ({each.get('state_reason') or each['state']})" for each in hosts if _is_aside(each)
    ]
    if not aside:
        return [ok("hosts", f"{len(hosts)} hosts, none of them set aside")]
    do = "look at the machines, then `ebbtide fleet uncordon HOST`"
    return [warning("hosts", f"set aside: {some(aside)}", do)]


def _is_aside(host: Json) -> bool:
    return str(host["state"]) == "quarantined"


def _pools(pools: list[Json]) -> list[Finding]:
    unpriced = [str(each["name"]) for each in pools if each.get("microdollars_per_gpu_hour") is None]
    if not pools:
        return [problem("pools", "the server has no pool", "`ebbtide fleet apply FILE`")]
    if unpriced:
        do = "set price_per_gpu_hour in the fleet file; until then usage is recorded and not priced"
        return [note("prices", f"pools without a price: {some(unpriced)}", do)]
    return [ok("pools", f"{len(pools)} pools, all with a price")]
