"""Faults at the seams: calls that die, or whose replies get lost, counted over all that was wrapped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """The `number`-th call (from 1) that went through, to `verb`."""

    number: int
    verb: str


@dataclass(frozen=True, slots=True)
class Fault:
    """error: what is raised instead of an answer; after: the call takes effect first (its reply is lost)."""

    error: BaseException
    after: bool


class Flaky:
    """Wraps providers and drivers alike. `calls` lists what went through, so that a test can strike after
    each single one.

    flaky = Flaky()
    provider, driver = flaky.wrap(provider), flaky.wrap(driver)
    flaky.strike(7, Killed(), after=True)
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._faults: dict[int, Fault] = {}
        self._by_verb: dict[str, list[Fault]] = {}

    def strike(self, number: int, error: BaseException, *, after: bool = False) -> None:
        """Let the `number`-th call from now on (1: the next) raise `error`, before or after its effect."""
        self._faults[len(self.calls) + number] = Fault(error, after)

    def strike_verb(self, verb: str, *errors: BaseException, after: bool = False) -> None:
        """Let the next calls to `verb` raise these errors, one each."""
        self._by_verb.setdefault(verb, []).extend(Fault(error, after) for error in errors)

    def wrap(self, target: T) -> T:
        """`target` with its faults; every public method of it is taken for an async one."""
        return cast(T, _Wrapped(target, self))

    def _next(self, verb: str) -> Fault | None:
        call = Call(len(self.calls) + 1, verb)
        self.calls.append(call)
        waiting = self._by_verb.get(verb)
        return self._faults.pop(call.number, None) or (waiting.pop(0) if waiting else None)


class _Wrapped:
    def __init__(self, target: object, flaky: Flaky) -> None:
        self._target = target
        self._flaky = flaky

    def __getattr__(self, verb: str) -> Any:
        method: Callable[..., Any] = getattr(self._target, verb)

        async def call(*args: Any, **kwargs: Any) -> Any:
            fault = self._flaky._next(verb)
            if fault is not None and not fault.after:
                raise fault.error
            answer = await method(*args, **kwargs)
            if fault is not None:
                raise fault.error
            return answer

        return call
