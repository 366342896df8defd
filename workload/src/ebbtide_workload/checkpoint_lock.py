"""One writer at a time, over a file system that several machines may share.

Locks are numbered files; the highest number owns the folder. A lock is taken by creating the next number,
which only one contender can do. The owner rewrites a counter in its file every few seconds; contenders
compare what they read with what they read before, on their own clock, so no two machines' clocks are ever
compared. An owner that died on this machine is seen at once, one that fell silent after LEASE_S. Who takes
over moves the old owner's unfinished folders away first: a writer that wakes up later finds its folder gone
and cannot publish.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from . import clock
from .say import duration, say

LEASE_S = 20.0
BEATS_PER_LEASE = 5
LOOK_S = 0.25
RELEASED = "released"
_NAME = re.compile(r"lock-(\d{8})")


class AnotherWriter(Exception):
    """Somebody else writes checkpoints here and is alive; the message says who."""


class Fenced(Exception):
    """Another writer took over while we were away: nothing may be published any more."""


class Owner(NamedTuple):
    """Who holds a lock. `started` and `namespace` tell a process from a later one with the same number."""

    id: str
    host: str
    pid: int
    started: str
    namespace: str
    since: str

    def is_dead_here(self) -> bool:
        """True only when surely dead: same machine, same process namespace, and no such process any more."""
        if (self.host, self.namespace) != (_host(), _namespace()):
            return False
        return _start_of(self.pid) != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (since {self.since})"


def this_process() -> Owner:
    """An owner record for this process, with a fresh id."""
    pid = os.getpid()
    since = clock.utc_now().isoformat(timespec="seconds")
    return Owner(os.urandom(6).hex(), _host(), pid, _start_of(pid), _namespace(), since)


class WriterLock:
    """The right to write below one folder, from `acquire` to `release`."""

    def __init__(self, folder: Path, *, lease_s: float = LEASE_S) -> None:
        self._folder = folder
        self._lease_s = lease_s
        self._beat_s = lease_s / BEATS_PER_LEASE
        self._owner = this_process()
        self._number = 0
        self._beats = 0
        self._stop = threading.Event()
        self._fenced = False

    @property
    def held(self) -> bool:
        return self._number > 0 and not self._fenced

    @property
    def owner_id(self) -> str:
        """The id in the names of this owner's unfinished folders."""
        return self._owner.id

    def acquire(self, wait_s: float, give_up: Callable[[], bool], fence: Callable[[], None]) -> None:
        """Take the lock, waiting up to `wait_s` for an owner that is alive.

        `fence` is called after the lock is ours and before anything else, to move unfinished folders away.
        Raises AnotherWriter when the owner still lives after `wait_s`, or as soon as `give_up()` says so.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        waited_from, seen, seen_at = clock.monotonic(), b"", clock.monotonic()
        while not self._try(seen, seen_at):
            content, now = self._content(self._newest()), clock.monotonic()
            if content != seen:
                if not seen:
                    self._say_waiting(content, wait_s)
                seen, seen_at = content, now
            if now - waited_from > wait_s or give_up():
                raise AnotherWriter(f"checkpoints are being written by {_owner_in(content) or 'somebody'}")
            clock.sleep(LOOK_S)
        fence()
        self._forget_older()
        thread = threading.Thread(target=self._beat, name="ebbtide-lock", daemon=True)
        thread.start()

    def check(self) -> None:
        """Raises Fenced unless the lock is still ours. Cheap: one folder listing."""
        if self._number == 0:
            raise Fenced("the lock is not held")
        if self._fenced or self._newest() != self._number:
            self._fenced = True
            raise Fenced("another writer took over these checkpoints while this one was silent")

    def release(self) -> None:
        """Let the next writer in at once. Harmless when not held."""
        self._stop.set()
        if self.held and self._owner.pid == os.getpid():
            path = self._path(self._number)
            try:
                path.replace(path.with_name(f"{path.name}.{RELEASED}"))
            except OSError:
                self._fenced = True
        self._number = 0

    def _try(self, seen: bytes, seen_at: float) -> bool:
        newest = self._newest()
        path = self._path(newest)
        if newest and path.exists():
            content = self._content(newest)
            owner = _owner_in(content)
            silent = bool(seen) and content == seen and clock.monotonic() - seen_at > self._lease_s
            dead = owner is not None and owner.is_dead_here()
            if not silent and not dead:
                return False
            say(f"taking over the checkpoints from {owner or 'an unreadable lock'}, which {_why(dead)}")
        if not self._create(newest + 1):
            return False
        self._number = newest + 1
        return True

    def _create(self, number: int) -> bool:
        """Create lock `number` with its content in one step; False when somebody was faster."""
        temp = self._folder / f".{self._owner.id}"
        temp.write_bytes(self._own_content())
        try:
            os.link(temp, self._path(number))
            return True
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            return self._create_exclusively(number)
        finally:
            temp.unlink()

    def _create_exclusively(self, number: int) -> bool:
        try:
            fd = os.open(self._path(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(fd, "wb") as file:
            file.write(self._own_content())
        return True

    def _beat(self) -> None:
        while not self._stop.wait(self._beat_s):
            self._beats += 1
            try:
                if self._newest() != self._number:
                    self._fenced = True
                    say("another writer took over these checkpoints: nothing more is published from here")
                    return
                with open(self._path(self._number), "r+b") as file:
                    file.write(self._own_content()[:20])
            except OSError as error:
                say(f"cannot renew the lock on the checkpoints: {error}")

    def _own_content(self) -> bytes:
        return f"{self._beats:019d}\n{json.dumps(self._owner._asdict())}\n".encode()

    def _newest(self) -> int:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return 0
        return max((int(match[1]) for match in map(_NAME.match, names) if match), default=0)

    def _path(self, number: int) -> Path:
        return self._folder / f"lock-{number:08d}"

    def _content(self, number: int) -> bytes:
        try:
            return self._path(number).read_bytes()
        except OSError:
            return b""

    def _forget_older(self) -> None:
        for name in os.listdir(self._folder):
            match = _NAME.match(name)
            if match and int(match[1]) < self._number:
                (self._folder / name).unlink(missing_ok=True)

    def _say_waiting(self, content: bytes, wait_s: float) -> None:
        owner = _owner_in(content)
        if owner is not None:
            say(f"checkpoints are being written by {owner}: waiting for it, up to {duration(wait_s)}")


def _why(dead: bool) -> str:
    return "is dead" if dead else "fell silent"


def _owner_in(content: bytes) -> Owner | None:
    _, _, rest = content.partition(b"\n")
    try:
        return Owner(**json.loads(rest))
    except (ValueError, TypeError):
        return None


def _start_of(pid: int) -> str:
    """When a process was started, in the kernel's ticks since boot; "" when there is none or it is a
    zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def _host() -> str:
    return os.uname().nodename


def _namespace() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
