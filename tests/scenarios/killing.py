"""Killing the process at a chosen point: at a call to the outside, or at a commit.

A killed process leaves the ledger and the world as they are at that point; everything else is gone.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import StrEnum
from typing import Any, TypeVar, cast

from ebbtide.store.db import Database, Tx

T = TypeVar("T")
_PASSED_OVER = ("contextlib.py", "killing.py", "db.py", "inline.py")


class Killed(BaseException):
    """kill -9. Not an Exception, so that nothing in the code under test can hold it up."""


class Moment(StrEnum):
    """When the process dies at a point: before it has an effect, or after it and before anything is heard."""

    BEFORE = "before"
    AFTER = "after"


Plan = Callable[[int, str, int], Moment | None]  # point's number, its name, how often the name came


def never(number: int, name: str, times: int) -> None:
    """Only counts."""


def at(wanted: int, moment: Moment) -> Plan:
    """Once, at that point."""
    return lambda number, name, times: moment if number == wanted else None


def everywhere(number: int, name: str, times: int) -> Moment | None:
    """After each kind of step, and before it when it is tried again."""
    return {1: Moment.AFTER, 2: Moment.BEFORE}.get(times)


class Killer:
    """Sees every call and commit while armed, and kills as planned. `points` counts what it saw."""

    def __init__(self, plan: Plan = never) -> None:
        self.plan = plan
        self.armed = False
        self.points = 0
        self.kills = 0
        self._times: Counter[str] = Counter()

    def wrap(self, target: T) -> T:
        """A provider or a driver whose calls are points."""
        return cast(T, _Mortal(target, self))

    def watch(self, db: Database) -> None:
        """Let every commit of this database be a point."""
        plain: Callable[[], AbstractAsyncContextManager[Tx]] = db.transaction

        @asynccontextmanager
        async def transaction() -> AsyncIterator[Tx]:
            moment = self.point(_asked_by())
            async with plain() as tx:
                yield tx
                self.strike(moment, Moment.BEFORE)
            self.strike(moment, Moment.AFTER)

        db.transaction = transaction  # type: ignore[method-assign]  # the point of it

    def point(self, name: str) -> Moment | None:
        if not self.armed:
            return None
        self.points += 1
        self._times[name] += 1
        return self.plan(self.points, name, self._times[name])

    def strike(self, moment: Moment | None, now: Moment) -> None:
        if moment is now:
            self.kills += 1
            raise Killed(f"at point {self.points}")


class _Mortal:
    def __init__(self, target: object, killer: Killer) -> None:
        self._target = target
        self._killer = killer

    def __getattr__(self, verb: str) -> Any:
        method: Callable[..., Any] = getattr(self._target, verb)

        async def call(*args: Any, **kwargs: Any) -> Any:
            whom = " ".join(str(getattr(arg, "uid", getattr(arg, "node_uid", arg))) for arg in args[:2])
            moment = self._killer.point(f"{verb} {whom}")
            self._killer.strike(moment, Moment.BEFORE)
            answer = await method(*args, **kwargs)
            self._killer.strike(moment, Moment.AFTER)
            return answer

        return call


def _asked_by() -> str:
    """Where in the code under test the transaction is opened, and for which loop."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.endswith(_PASSED_OVER):
        frame = frame.f_back
    return f"{frame.f_code.co_qualname}:{frame.f_lineno} {frame.f_locals.get('loop', '')}"
