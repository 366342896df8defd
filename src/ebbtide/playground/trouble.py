"""How the simulated world says no. The adapters translate these into what their seams promise."""

from __future__ import annotations

from ebbtide.errors import EbbtideError


class WorldRefusal(EbbtideError):
    """Base of every refusal of the world."""


class ReplyLost(WorldRefusal):
    """The caller hears nothing; whether there was an effect is for it to find out."""


class NothingDone(WorldRefusal):
    """The call failed and had no effect; the next may do better."""


class NoMachine(WorldRefusal):
    """The host cannot be had now."""


class NeverPossible(WorldRefusal):
    """However often it is tried."""


class ClusterUnreachable(WorldRefusal):
    """The cluster's API server does not answer, or there is none."""
