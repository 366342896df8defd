"""Storage by the operator's own programs: one executable per verb, JSON on standard input and output.

    input   {"verb": "provision", "volume_id": "...", "name": "...", "project_id": "...", "region": "...",
             "size_tib": 2, "handle": null}
    output  {"ready": true, "handle": "exports/demo-data"}     provision; not ready yet: "ready": false, "why"
            {"gone": true}                                     delete; not gone yet: "gone": false, "why"

A program that ends with 0 has answered. Any other end, a wrong answer or a time-out counts as "try again
later"; exit code 3 says that it will never work, with the reason on standard error. Programs are called again
after a lost answer, so both must be repeatable.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from dataclasses import asdict
from typing import Any

from ebbtide.errors import StartupError
from ebbtide.providers.base import Permanent, Transient
from ebbtide.providers.storage import Provisioned, StorageDeletion, VolumeOrder

NEVER = 3  # the exit code for "this will not work however often it is tried"
_MOST_OUTPUT = 65_536
_MOST_WORDS = 500
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")


class ProgramStorage:
    """A `Storage` that runs two programs.

    provision, delete: their paths
    limit_s: how long one run may take; then it and its children are killed
    """

    def __init__(self, provision: str, delete: str, limit_s: int) -> None:
        self._programs = {"provision": _program("provision", provision), "delete": _program("delete", delete)}
        self._limit_s = limit_s

    async def provision(self, order: VolumeOrder) -> Provisioned:
        answer = await self._run("provision", order)
        handle, why = answer.get("handle"), answer.get("why", "")
        wrong = not isinstance(handle, str | None) or (handle is not None and not _storable(handle))
        if wrong or not isinstance(answer.get("ready"), bool):
            raise Transient("the provision program answered no true or false `ready`, or a wrong `handle`")
        return Provisioned(answer["ready"], handle or order.handle, _words(why))

    async def delete(self, order: VolumeOrder) -> StorageDeletion:
        answer = await self._run("delete", order)
        if not isinstance(answer.get("gone"), bool):
            raise Transient("the delete program's answer has no true or false `gone`")
        return StorageDeletion(answer["gone"], _words(answer.get("why", "")))

    async def _run(self, verb: str, order: VolumeOrder) -> dict[str, Any]:
        asked = json.dumps({"verb": verb, **asdict(order)}).encode()
        try:
            process = await asyncio.create_subprocess_exec(
                self._programs[verb],
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            )
        except OSError as error:
            raise Transient(f"the {verb} program cannot be run: {error.strerror}") from error
        try:
            async with asyncio.timeout(self._limit_s):
                out, err = await process.communicate(asked)
        except TimeoutError:
            raise Transient(f"the {verb} program took longer than {self._limit_s} s") from None
        finally:
            await _end(process)
        return _answer(verb, process.returncode or 0, out, err)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Leave nothing behind: the program and whatever it started and did not wait for."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _answer(verb: str, code: int, out: bytes, err: bytes) -> dict[str, Any]:
    said = _words(err.decode(errors="replace"))
    if code == NEVER:
        raise Permanent(said or f"the {verb} program says that this will never work")
    if code != 0:
        raise Transient(f"the {verb} program ended with {code}{': ' + said if said else ''}")
    try:
        answer = json.loads(out) if len(out) <= _MOST_OUTPUT else None
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise Transient(f"the {verb} program did not answer with a JSON object")
    return answer


def _storable(handle: str) -> bool:
    return 0 < len(handle) <= _MOST_WORDS and handle.isprintable()


def _words(text: object) -> str:
    """A program's own words as one line that may be stored and shown."""
    return " ".join(str(text).replace("\0", " ").split())[:_MOST_WORDS]


def _program(verb: str, path: str) -> str:
    """Its path. Raises StartupError when none was given; whether it runs is seen when it is needed."""
    if not path:
        name = f"EBBTIDE_STORAGE_{verb.upper()}_PROGRAM"
        raise StartupError(f"EBBTIDE_STORAGE=program needs {name}: the path of an executable")
    return path
