"""How simulated machines and pods behave and misbehave: small, named, frozen, and settable per node, host or
pool.

A behaviour fills one slot (how a machine boots, what becomes of the reply to a create, ...). The nearest one
counts: the node's, then its host's, then its pool's, then the world's.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Protocol, TypeAlias


class Behaviour(Protocol):
    """Anything that fills a slot."""

    slot: ClassVar[str]


# --- machines -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Boots:
    """An ordinary boot: up after a time from the range, registered and Ready `join_s` later, its GPUs
    `gpus_s` after that.
    """

    slot: ClassVar[str] = "boot"
    boot_s: tuple[float, float] = (60.0, 180.0)
    join_s: float = 15.0
    gpus_s: float = 10.0


@dataclass(frozen=True, slots=True)
class NeverReady:
    """The machine is up, but its node never becomes Ready; with registers=False it never even shows."""

    slot: ClassVar[str] = "boot"
    boot_s: float = 60.0
    registers: bool = True


@dataclass(frozen=True, slots=True)
class GpusMissing:
    """The node becomes Ready with so many GPUs, and they never get more."""

    slot: ClassVar[str] = "boot"
    gpus: int = 0
    boot_s: float = 60.0
    join_s: float = 15.0


@dataclass(frozen=True, slots=True)
class BootFails:
    """The machine does not come up; the provider knows after a while."""

    slot: ClassVar[str] = "boot"
    after_s: float = 30.0
    why: str = "the machine did not come up"


@dataclass(frozen=True, slots=True)
class OutOfStock:
    """A create is refused so many times, for ever with None, because the machine cannot be had."""

    slot: ClassVar[str] = "stock"
    times: int | None = None


@dataclass(frozen=True, slots=True)
class CreateReplyLost:
    """A create takes effect, but its reply is lost, so many times."""

    slot: ClassVar[str] = "create_reply"
    times: int | None = 1


@dataclass(frozen=True, slots=True)
class StopUnconfirmed:
    """A stop is not confirmed so many times, for ever with None; the machine runs on meanwhile."""

    slot: ClassVar[str] = "stop"
    times: int | None = None


@dataclass(frozen=True, slots=True)
class StopTakes:
    """A stop is confirmed only so long after it was first asked for."""

    slot: ClassVar[str] = "stop"
    seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class DeleteForgets:
    """A delete fails without any effect, so many times."""

    slot: ClassVar[str] = "delete"
    times: int | None = 3


@dataclass(frozen=True, slots=True)
class DeleteReplyLost:
    """A delete takes effect, but its reply is lost, so many times."""

    slot: ClassVar[str] = "delete_reply"
    times: int | None = 1


@dataclass(frozen=True, slots=True)
class Wipes:
    """Wiping the machine's disks takes so long after it was given back: the pool's turn-over time."""

    slot: ClassVar[str] = "wipe"
    seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Vanishes:
    """The host is gone from that instant. forgotten: the provider knows nothing of the instance any more (a
    cloud).
    """

    slot: ClassVar[str] = "vanish"
    at: datetime
    forgotten: bool = True


@dataclass(frozen=True, slots=True)
class Reregisters:
    """The kubelet puts its Node object back so long after it was removed, if its machine still runs."""

    slot: ClassVar[str] = "reregister"
    after_s: float = 1.0


@dataclass(frozen=True, slots=True)
class RestartReplyLost:
    """A restart takes effect, but its reply is lost, so many times."""

    slot: ClassVar[str] = "restart_reply"
    times: int | None = 1


@dataclass(frozen=True, slots=True)
class RestartHangs:
    """A machine that is restarted does not come up again, so many times."""

    slot: ClassVar[str] = "restart"
    times: int | None = None


# --- storage --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProvisionTakes:
    """A volume is there, or grown, so long after it was ordered."""

    slot: ClassVar[str] = "provision"
    seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class ProvisionFails:
    """Making or growing a volume fails without any effect, so many times."""

    slot: ClassVar[str] = "provision_fails"
    times: int | None = 3


@dataclass(frozen=True, slots=True)
class ProvisionImpossible:
    """Making or growing a volume is refused for good."""

    slot: ClassVar[str] = "provision_impossible"
    why: str = "the storage system has no room for it"


@dataclass(frozen=True, slots=True)
class ProvisionReplyLost:
    """Making a volume takes effect, but the reply is lost, so many times."""

    slot: ClassVar[str] = "provision_reply"
    times: int | None = 1


@dataclass(frozen=True, slots=True)
class VolumeDeleteForgets:
    """Deleting a volume fails without any effect, so many times."""

    slot: ClassVar[str] = "volume_delete"
    times: int | None = 3


@dataclass(frozen=True, slots=True)
class VolumeDeleteReplyLost:
    """Deleting a volume takes effect, but the reply is lost, so many times."""

    slot: ClassVar[str] = "volume_delete_reply"
    times: int | None = 1


Counted: TypeAlias = (
    OutOfStock
    | CreateReplyLost
    | StopUnconfirmed
    | DeleteForgets
    | DeleteReplyLost
    | RestartReplyLost
    | RestartHangs
)
Boot: TypeAlias = Boots | NeverReady | GpusMissing | BootFails


@dataclass(frozen=True, slots=True)
class Habits:
    """What holds where nothing else was set."""

    boot: Boot = Boots()
    wipe_s: float = 0.0
    control_plane_s: float = 5.0
    volume_s: float = 3.0


# --- pods -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Obeys:
    """Ends so long after SIGTERM, or by SIGKILL when its grace is over before."""

    exits_after_s: float = 5.0
    shortening_bites: bool = True


@dataclass(frozen=True, slots=True)
class Dawdles:
    """Works on for most of its grace or beyond; otherwise like one that obeys."""

    exits_after_s: float = 240.0
    shortening_bites: bool = True


@dataclass(frozen=True, slots=True)
class IgnoresSigterm:
    """Only the kubelet's SIGKILL at the end of its grace ends it."""

    shortening_bites: bool = True


@dataclass(frozen=True, slots=True)
class KubeletDoublesGrace:
    """Ignores SIGTERM, and its kubelet sends SIGKILL only after twice the grace (a hanging preStop hook)."""

    shortening_bites: bool = False


@dataclass(frozen=True, slots=True)
class FinishesAt:
    """Completes by itself at that instant; obeys SIGTERM before."""

    at: datetime
    exits_after_s: float = 5.0
    shortening_bites: bool = True


@dataclass(frozen=True, slots=True)
class FinishesAfter:
    """Completes by itself so long after its start; obeys SIGTERM before. Its replacement begins again."""

    seconds: float
    exits_after_s: float = 5.0
    shortening_bites: bool = True


PodBehaviour: TypeAlias = Obeys | Dawdles | IgnoresSigterm | KubeletDoublesGrace | FinishesAt | FinishesAfter


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume attached for a pod; the attachment stays so long after the pod, for ever with None."""

    lingers_s: float | None = 0.0


MACHINE_BEHAVIOURS: tuple[type[Behaviour], ...] = (
    Boots,
    NeverReady,
    GpusMissing,
    BootFails,
    OutOfStock,
    CreateReplyLost,
    StopUnconfirmed,
    StopTakes,
    DeleteForgets,
    DeleteReplyLost,
    Wipes,
    Vanishes,
    Reregisters,
    RestartReplyLost,
    RestartHangs,
    ProvisionTakes,
    ProvisionFails,
    ProvisionImpossible,
    ProvisionReplyLost,
    VolumeDeleteForgets,
    VolumeDeleteReplyLost,
)
POD_BEHAVIOURS: tuple[type[PodBehaviour], ...] = (
    Obeys,
    Dawdles,
    IgnoresSigterm,
    KubeletDoublesGrace,
    FinishesAt,
    FinishesAfter,
)
