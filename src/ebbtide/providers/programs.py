"""Running the operator's own programs: one run at a time limit, in a group of its own, with bounded output.

A program gets one JSON object on standard input and answers with one on standard output. What it says on
standard error is for people. Nothing of a run stays behind: when it ends, is cancelled or takes too long, its
whole process group is killed, and where the machine has coreutils' `timeout` also when this process is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide.errors import StartupError
from ebbtide.providers.base import Transient

MOST_ANSWER_BYTES = 65_536
MOST_SAID_BYTES = 4_096  # of standard error, the last of it is kept
_MOST_WORDS = 500
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
_PIPES_S = 0.5  # for reading what is left in the pipes of a program that has ended
_OUTLIVED_S = 2  # how much longer than the limit a run may last when nobody is left to end it


@dataclass(frozen=True, slots=True)
class Run:
    """One run that ended.

    what: the program as its operator knows it, for messages
    code: its exit code, below 0 a signal's number; None when it took too long and was killed
    out:  standard output; None when that was more than is read
    said: the last of standard error
    """

    what: str
    code: int | None
    out: bytes | None
    said: str

    def answer(self) -> dict[str, Any]:
        """The JSON object that it answered with. Raises Transient."""
        if self.out is None:
            raise Transient(f"{self.what} answered more than is read")
        try:
            answer = json.loads(self.out)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise Transient(f"{self.what} did not answer with a JSON object")
        return answer


class Program:
    """An executable with its arguments.

    what:    what messages call it, such as "the create program"
    limit_s: how long one run may take
    """

    def __init__(
        self, what: str, argv: Sequence[str], limit_s: int, *, most_bytes: int = MOST_ANSWER_BYTES
    ) -> None:
        self.what = what
        self.limit_s = limit_s
        self._argv = tuple(argv)
        self._most_bytes = most_bytes

    async def run(self, asked: Mapping[str, object]) -> Run:
        """One run to its end. Raises Transient when it cannot be started."""
        heard = _Heard(self._most_bytes)
        transport = await self._start(heard)
        try:
            _tell(transport, json.dumps(asked).encode())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.limit_s):
                    await asyncio.wait([heard.exited, heard.too_much], return_when=asyncio.FIRST_COMPLETED)
            in_time = heard.exited.done() or heard.too_much.done()
        finally:
            await _end(transport, heard)
        out = None if heard.too_much.done() else bytes(heard.out)
        said = heard.said.decode(errors="replace").strip()
        return Run(self.what, transport.get_returncode() if in_time else None, out, said)

    async def _start(self, heard: _Heard) -> asyncio.SubprocessTransport:
        found = shutil.which(self._argv[0])
        if found is None:
            there = os.path.exists(self._argv[0])  # noqa: ASYNC240  # one look at a local file
            why = "it is not executable" if there else "No such file or directory"
            raise Transient(f"{self.what} cannot be run: {why}: {self._argv[0]}")
        argv = [found, *self._argv[1:]]
        if keeper := shutil.which("timeout"):
            argv = [keeper, "-s", "KILL", str(self.limit_s + _OUTLIVED_S), *argv]
        try:
            transport, _ = await asyncio.get_running_loop().subprocess_exec(
                lambda: heard,
                *argv,
                start_new_session=True,
                env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            )
        except OSError as error:
            raise Transient(f"{self.what} cannot be run: {error.strerror}") from error
        return transport


class _Heard(asyncio.SubprocessProtocol):
    """What a running program says, as far as it is kept."""

    def __init__(self, most_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        self.out, self.said = bytearray(), bytearray()
        self.exited: asyncio.Future[None] = loop.create_future()
        self.too_much: asyncio.Future[None] = loop.create_future()
        self.silent: asyncio.Future[None] = loop.create_future()
        self._most_bytes = most_bytes
        self._open = {1, 2}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self.said += data
            del self.said[:-MOST_SAID_BYTES]
        elif len(self.out) + len(data) > self._most_bytes:
            _done(self.too_much)
        else:
            self.out += data

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if not self._open:
            _done(self.silent)

    def process_exited(self) -> None:
        _done(self.exited)


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _tell(transport: asyncio.SubprocessTransport, asked: bytes) -> None:
    """Write to its standard input and close it; a program that does not read it may do so."""
    pipe = transport.get_pipe_transport(0)
    assert isinstance(pipe, asyncio.WriteTransport)
    pipe.write(asked)
    pipe.close()


async def _end(transport: asyncio.SubprocessTransport, heard: _Heard) -> None:
    """Leave nothing behind: the program and whatever it started and did not wait for.

    What left its process group on purpose may keep the pipes open; it is not waited for.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(transport.get_pid(), signal.SIGKILL)
    await asyncio.wait([heard.exited])
    await asyncio.wait([heard.silent], timeout=_PIPES_S)
    transport.close()


def one_line(text: object) -> str:
    """A program's own words as one line that may be stored and shown."""
    plain = str(text).encode("utf-8", "replace").decode()  # JSON may hold half a character
    return " ".join(plain.replace("\0", " ").split())[:_MOST_WORDS]


def is_plain(text: object, *, most: int = _MOST_WORDS) -> bool:
    """Whether it is a text that may be stored and shown: not empty, on one line."""
    return isinstance(text, str) and 0 < len(text) <= most and text.isprintable()


def command_line(setting: str, text: str) -> tuple[str, ...]:
    """A path, or a command line as a shell would split it. Raises StartupError that names the setting."""
    try:
        argv = tuple(shlex.split(text))
    except ValueError as error:
        raise StartupError(f"{setting}={text!r} cannot be read as a command line: {error}") from error
    if not argv:
        raise StartupError(f"{setting} is needed: the path of an executable, or a command line")
    return argv
