"""What is remembered of machines that programs of the operator's make: facts, handles, who is at work.

A provider remembers nothing itself: any worker may be asked for a node that another one created. What this
port keeps survives all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ebbtide.providers.base import Instance, InstanceOrder


@dataclass(frozen=True, slots=True)
class Remembered:
    """A node's machine, held for one run.

    order:          the facts that its programs are told
    handle:         what a program last asked to be told again
    state:          an `InstanceState` as last answered; None: nothing was answered, or that there is none
    wiped_first_by: what wiped the host before this machine started, if that was said
    gone:           nothing is left of it; wiped_by says what wiped it then
    held_until:     by when the run is over, however it ends
    """

    order: InstanceOrder
    handle: str | None
    state: str | None
    instance_id: str
    address: str
    wiped_first_by: str
    gone: bool
    wiped_by: str
    held_until: datetime


@dataclass(frozen=True, slots=True)
class Noted:
    """What one run leaves. None: as it was.

    code:   the program's exit code, None when it took too long
    output: the last of its standard error
    """

    verb: str
    code: int | None = None
    output: str = ""
    handle: str | None = None
    instance_id: str | None = None
    address: str | None = None
    state: str | None = None
    wiped_first_by: str | None = None
    gone: bool = False
    wiped_by: str = ""


class Memory(Protocol):
    """Raises Transient when it cannot be reached, or when a run for the same node is under way elsewhere."""

    async def remember(self, order: InstanceOrder, hold_s: int) -> Remembered:
        """The node's machine, held for one run of at most so long; new, or the one known with this order."""

    async def recall(self, node_uid: str, hold_s: int) -> Remembered | None:
        """The same for a machine that is known. None: it never was."""

    async def note(self, held: Remembered, noted: Noted) -> None:
        """End the hold with what the run left. One that lasted too long writes nothing."""

    async def let_go(self, held: Remembered) -> None:
        """End the hold; there was no run."""

    async def bury(self, node_uid: str) -> None:
        """Remember of a machine that never was that none may be made any more."""

    async def listed(self, pool: str) -> list[Remembered]:
        """Every machine of the pool that is not gone, as last answered; none of them is held."""

    async def found(self, pool: str, instances: Sequence[Instance]) -> None:
        """Remember machines that exist and are not known, or were thought gone, so that they can be ended."""
