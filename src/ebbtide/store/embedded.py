"""A private PostgreSQL server in a data folder, for people who have none.

It listens on a Unix socket in a folder of its own (mode 0700) and nowhere else. What lies in the data folder:

    postgres/       the database itself; moving or deleting the data folder moves or deletes it
    postgres.log    what the server says
    postgres.lock   held while a process uses the folder

The server lives as long as the process that started it. A small shell, the keeper, waits for the end of a
pipe that only that process holds, and then stops the server: at a clean exit, and just so after `kill -9`. A
server that was left behind all the same (the keeper died too) is stopped by the next start. Whatever was
committed is there again.

Root cannot run PostgreSQL; `embedded_programs` says who does instead. That account need not be able to reach
the data folder (say, below /root): it is handed the open folder, not its path.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from urllib.parse import quote

import psycopg

from ebbtide.clock import monotonic
from ebbtide.errors import StartupError
from ebbtide.store.embedded_programs import Account, Programs, find_programs, server_account, spawn

DATABASE = "ebbtide"
_ROLE = "ebbtide"
_SOCKET_FOLDER_PREFIX = "ebbtide-pg-"
_SOCKET_PATH_LIMIT_BYTES = 103  # macOS; Linux allows 107
_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 20.0
_LOG_LIMIT_BYTES = 10_000_000
_LOG_LINES_SHOWN = 12

# Arguments: the socket folder, then the server's command. Its standard input is the pipe.
_KEEPER = """
exec 3<&0
sockets=$1; shift
"$@" </dev/null 3<&- &
server=$!
{ read -r _ <&3; kill -INT "$server"; } &
reader=$!
exec 3<&-
wait "$server"; code=$?
kill "$reader" 2>/dev/null
rmdir "$sockets" 2>/dev/null
exit "$code"
"""

_SETTINGS = {
    "listen_addresses": "",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    # Parallel queries need shared memory files, and containers give 64 MB for them. Our queries are small.
    "max_parallel_workers_per_gather": "0",
}
_SETTINGS_NOT_DURABLE = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}

# What a server says when another one has not quite left its folder yet.
_STILL_LEAVING = ("lock file", "shared memory block")


class EmbeddedPostgres:
    """A PostgreSQL server of our own. `start` returns the URL; a context manager stops it at the end.

    data_dir: created if missing. One process at a time may use it; several servers in several folders are
              fine.
    durable:  False trades safety for speed, for tests: a crash of the machine may lose everything.
    """

    def __init__(self, data_dir: Path, *, durable: bool = True) -> None:
        self.data_dir = data_dir.absolute()
        self.log_file = self.data_dir / "postgres.log"
        self._cluster = self.data_dir / "postgres"
        self._durable = durable
        self._lock: IO[str] | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._sockets: Path | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """SQLAlchemy's URL of the database. Raises StartupError while the server is not running."""
        if self._keeper is None or self._sockets is None:
            raise StartupError("the embedded PostgreSQL has not been started")
        return f"postgresql+psycopg://{_ROLE}@/{DATABASE}?host={quote(str(self._sockets))}"

    def start(self) -> str:
        """Start the server, creating the database at the first time, and return its SQLAlchemy URL.

        Started already: returns the URL. Raises StartupError, with the last lines of the log if any.
        """
        if self._keeper is not None:
            return self.url
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take_lock()
            account = server_account(self._cluster)
            programs = find_programs(account, self._major())
            self._rotate_log()
            self._create_cluster(programs, account)
            self._retire_leftover()
            self._launch(programs, account)
            self._create_database()
        except OSError as error:
            self.stop()
            raise StartupError(f"Cannot use {self.data_dir} for the database: {error}") from error
        except BaseException:
            self.stop()
            raise
        return self.url

    def stop(self) -> None:
        """Stop the server and wait until it is gone. Stopped already: does nothing."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            assert keeper.stdin is not None
            keeper.stdin.close()
            try:
                keeper.wait(_STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(
                    keeper.pid, signal.SIGQUIT
                )  # PostgreSQL's immediate stop: recovers at the next start
                keeper.wait()
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
            self._sockets = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _take_lock(self) -> None:
        lock = (self.data_dir / "postgres.lock").open("a+", encoding="ascii")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise StartupError(f"{self.data_dir} is in use by another ebbtide (process {holder}).") from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def _major(self) -> int | None:
        """The major version that wrote the data; None when there is none yet."""
        try:
            return int((self._cluster / "PG_VERSION").read_text(encoding="ascii"))
        except FileNotFoundError:
            if self._cluster.exists() and any(self._cluster.iterdir()):
                raise StartupError(f"{self._cluster} is not empty and not a PostgreSQL database.") from None
            return None
        except ValueError as error:
            raise StartupError(f"{self._cluster / 'PG_VERSION'} is damaged: {error}") from error

    def _rotate_log(self) -> None:
        if self.log_file.exists() and self.log_file.stat().st_size > _LOG_LIMIT_BYTES:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))

    def _create_cluster(self, programs: Programs, account: Account | None) -> None:
        """initdb beside the final place, then rename: an interrupted one never looks finished."""
        if self._major() is not None:
            if account and self._cluster.stat().st_uid == 0:  # copied or restored by root
                for path in [self._cluster, *self._cluster.rglob("*")]:
                    os.chown(path, account.uid, account.gid, follow_symlinks=False)
            return
        staging = self.data_dir / "postgres.new"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(mode=0o700)
        if account:
            os.chown(staging, account.uid, account.gid)
        command: list[str | Path] = [programs.folder / "initdb", f"--username={_ROLE}", "--encoding=UTF8"]
        command += ["--no-locale", "--auth=trust", *([] if self._durable else ["--no-sync"])]
        with self._log() as log, _handed_over(staging, account) as (name, fds):
            code = spawn([*command, "-D", name], account, output=log, keep_fds=fds).wait()
        if code != 0:
            raise self._failure("PostgreSQL could not create its database")
        if self._cluster.exists():
            self._cluster.rmdir()
        staging.rename(self._cluster)

    def _retire_leftover(self) -> None:
        """Stop a server that outlived its process. We hold the lock, so nobody uses it any more."""
        pid_file = self._cluster / "postmaster.pid"
        try:
            lines = pid_file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return
        pid = int(lines[0]) if lines and lines[0].isdigit() else None
        if pid is None:
            pid_file.unlink()  # the machine crashed while it was being written; PostgreSQL would refuse it
        elif _is_running_in(pid, self._cluster):
            _end(pid)
        elif sys.platform == "linux" and Path(f"/proc/{pid}").exists():
            # The number now belongs to another program; PostgreSQL would take that for its older self.
            pid_file.unlink(missing_ok=True)
        old = Path(lines[4]) if len(lines) > 4 else None
        if old is not None and old.name.startswith(_SOCKET_FOLDER_PREFIX):
            shutil.rmtree(old, ignore_errors=True)

    def _launch(self, programs: Programs, account: Account | None) -> None:
        self._sockets = _make_socket_folder(account)
        settings = _SETTINGS | {"unix_socket_directories": str(self._sockets)}
        settings |= {} if self._durable else _SETTINGS_NOT_DURABLE
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        deadline = monotonic() + _START_LIMIT_S
        while True:
            with self._log() as log, _handed_over(self._cluster, account) as (name, fds):
                position = log.tell()
                command: list[str | Path] = [programs.folder / "postgres", "-D", name, *options]
                self._keeper = spawn(
                    ["/bin/sh", "-c", _KEEPER, "ebbtide-keeper", self._sockets, *command],
                    account,
                    stdin=subprocess.PIPE,
                    output=log,
                    keep_fds=fds,
                )
            if self._await_ready(self._keeper, deadline):
                return
            said = self.log_file.read_bytes()[position:].decode(errors="replace")
            if monotonic() > deadline or not any(words in said for words in _STILL_LEAVING):
                raise self._failure("PostgreSQL did not start")
            self._sockets.mkdir(mode=0o700, exist_ok=True)  # the keeper took it away when it left
            if account:
                os.chown(self._sockets, account.uid, account.gid)
            threading.Event().wait(0.2)

    def _await_ready(self, keeper: subprocess.Popen[bytes], deadline: float) -> bool:
        """Whether the server takes connections before the deadline; False as soon as it has ended."""
        pid_file = self._cluster / "postmaster.pid"
        while monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                lines = pid_file.read_text(encoding="utf-8").splitlines()
                if len(lines) > 7 and lines[4] == str(self._sockets) and lines[7].strip() == "ready":
                    return True
            with contextlib.suppress(subprocess.TimeoutExpired):
                keeper.wait(0.01)
                return False
        return False

    def _create_database(self) -> None:
        try:
            with psycopg.connect(
                host=str(self._sockets), user=_ROLE, dbname="postgres", autocommit=True, connect_timeout=10
            ) as connection:
                found = connection.execute(
                    "SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]
                ).fetchone()
                if found is None:
                    connection.execute(f"CREATE DATABASE {DATABASE}")
        except psycopg.Error as error:
            raise self._failure(f"PostgreSQL started but does not answer ({error})") from error

    def _log(self) -> IO[bytes]:
        return self.log_file.open("ab")

    def _failure(self, what: str) -> StartupError:
        lines = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
        return StartupError("\n".join([f"{what}. The last lines of {self.log_file}:", *lines]))


@contextlib.contextmanager
def _handed_over(folder: Path, account: Account | None) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A name under which a program run as `account` reaches `folder`, and descriptors that it must inherit.

    Through an open descriptor the folders above need not be open to that account.
    """
    if account is None or not Path("/proc/self/fd").exists():
        yield str(folder), ()
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}", (fd,)
    finally:
        os.close(fd)


def _make_socket_folder(account: Account | None) -> Path:
    """A new folder with a short name that only the server's account may enter."""
    for base in dict.fromkeys([tempfile.gettempdir(), "/tmp", "/var/tmp"]):  # noqa: S108 mkdtemp makes it private
        longest = f"{base}/{_SOCKET_FOLDER_PREFIX}12345678/.s.PGSQL.5432.lock"
        closed = account and not all(
            folder.stat().st_mode & 0o001 for folder in [Path(base), *Path(base).parents]
        )
        if closed or len(longest.encode()) > _SOCKET_PATH_LIMIT_BYTES or not os.access(base, os.W_OK):
            continue
        made = Path(tempfile.mkdtemp(prefix=_SOCKET_FOLDER_PREFIX, dir=base))
        if account:
            os.chown(made, account.uid, account.gid)
        return made
    raise StartupError(
        "No temporary folder is short, writable and open enough for the database's socket; set TMPDIR."
    )


def _is_running_in(pid: int, cluster: Path) -> bool:
    """Whether process `pid` is a server of this database: PostgreSQL works inside its data folder."""
    try:
        return os.path.samefile(f"/proc/{pid}/cwd", cluster)
    except OSError:
        return False


def _end(pid: int) -> None:
    """Stop a server that is not our child, and wait for it."""
    try:
        watch = os.pidfd_open(pid)
    except OSError:  # gone meanwhile, or an old kernel: then the launch waits for it
        return
    try:
        poll = select.poll()
        poll.register(watch, select.POLLIN)
        for how in (signal.SIGINT, signal.SIGQUIT):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
            if poll.poll(_STOP_LIMIT_S * 1000):
                return
    finally:
        os.close(watch)
    raise StartupError(
        f"An older database server (process {pid}) still runs in the data folder and does not stop."
    )
