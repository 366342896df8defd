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

from dataclasses import asdict
from typing import Any

from ebbtide.errors import StartupError
from ebbtide.providers.base import Permanent, Transient
from ebbtide.providers.programs import Program, Run, is_plain, one_line
from ebbtide.providers.storage import Provisioned, StorageDeletion, VolumeOrder

NEVER = 3  # the exit code for "this will not work however often it is tried"


class ProgramStorage:
    """A `Storage` that runs two programs.

    provision, delete: their paths
    limit_s: how long one run may take; then it and its children are killed
    """

    def __init__(self, provision: str, delete: str, limit_s: int) -> None:
        paths = {"provision": _path("provision", provision), "delete": _path("delete", delete)}
        self._programs = {
            verb: Program(f"the {verb} program", [path], limit_s) for verb, path in paths.items()
        }

    async def provision(self, order: VolumeOrder) -> Provisioned:
        answer = await self._run("provision", order)
        handle, why = answer.get("handle"), answer.get("why", "")
        if not (handle is None or is_plain(handle)) or not isinstance(answer.get("ready"), bool):
            raise Transient("the provision program answered no true or false `ready`, or a wrong `handle`")
        return Provisioned(answer["ready"], handle or order.handle, one_line(why))

    async def delete(self, order: VolumeOrder) -> StorageDeletion:
        answer = await self._run("delete", order)
        if not isinstance(answer.get("gone"), bool):
            raise Transient("the delete program's answer has no true or false `gone`")
        return StorageDeletion(answer["gone"], one_line(answer.get("why", "")))

    async def _run(self, verb: str, order: VolumeOrder) -> dict[str, Any]:
        program = self._programs[verb]
        return _answer(await program.run({"verb": verb, **asdict(order)}), program.limit_s)


def _answer(run: Run, limit_s: int) -> dict[str, Any]:
    said = one_line(run.said)
    if run.code is None:
        raise Transient(f"{run.what} took longer than {limit_s} s")
    if run.code == NEVER:
        raise Permanent(said or f"{run.what} says that this will never work")
    if run.code != 0 and run.out is not None:
        raise Transient(f"{run.what} ended with {run.code}{': ' + said if said else ''}")
    return run.answer()


def _path(verb: str, path: str) -> str:
    """Its path. Raises StartupError when none was given; whether it runs is seen when it is needed."""
    if not path:
        name = f"EBBTIDE_STORAGE_{verb.upper()}_PROGRAM"
        raise StartupError(f"EBBTIDE_STORAGE=program needs {name}: the path of an executable")
    return path
