"""One rank's side of the meeting: hear of a notice anywhere, agree on a step, wait for each other."""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from . import clock
from .deadline import Attention, Heard, parse_instant
from .errors import RanksApart
from .ranks_hub import ROUND_END, Hub, Word, encode, tune
from .say import say
from .settings import Place, running_under_torch

CONNECT_S = 300.0
WAIT_SLICE_S = 0.5
_MEETINGS = itertools.count()
DECISION_S = 30.0


@dataclass(frozen=True)
class Release:
    """How a barrier opened: whether all were well, what rank 0 brought along, and whether to leave."""

    ok: bool
    payload: Any
    lost: tuple[int, ...]
    leave: bool


class Ranks:
    """This process among its peers. `boundary` tells the last step boundary passed, from any thread."""

    def __init__(
        self,
        place: Place,
        attention: Attention,
        boundary: Callable[[], int],
        tell: Callable[[Heard], object],
    ) -> None:
        self._attention = attention
        self._boundary = boundary
        self._tell = tell
        self._hub: Hub | None = None
        self._changed = threading.Condition()
        self._send_lock = threading.Lock()
        self._unsent: list[Word] = []
        self._sock: socket.socket | None = None
        self._released: dict[str, Release] = {}
        self._hold = False
        self._go: int | None = None
        self._broken = ""
        self._closing = False
        self._pid = os.getpid()
        self.place = self._meet(place)
        self._thread = threading.Thread(target=self._run, name="ebbtide-rank", daemon=True)
        self._thread.start()

    @property
    def rank(self) -> int:
        return self.place.rank

    @property
    def world(self) -> int:
        return self.place.world

    @property
    def apart(self) -> str:
        """Why the others cannot be reached any more, "" while they can."""
        return self._broken

    def notice(self, heard: Heard) -> None:
        """Pass a notice on to all."""
        deadline = heard.deadline.isoformat()
        self._say({"word": "notice", "rank": self.rank, "deadline": deadline, "reason": heard.reason})

    def propose(self) -> None:
        """Ask for a save by all, at a step that the hub chooses."""
        self._say({"word": "propose"})

    def decision(self) -> int | None:
        """The step agreed on, None when there is nothing to agree. Waits while a decision is in the making.

        Raises RanksApart when it does not come.
        """
        with self._changed:
            done = self._changed.wait_for(
                lambda: not self._hold or self._go is not None or self._broken, DECISION_S
            )
            if self._broken and self._hold and self._go is None:
                raise RanksApart(self._broken)
            if not done:
                raise RanksApart(f"no decision from rank 0 within {DECISION_S:.0f} s")
            return self._go

    def meet(
        self,
        name: str,
        until: datetime,
        *,
        ok: bool = True,
        payload: object = None,
        give_up: Callable[[], bool] = lambda: False,
    ) -> Release:
        """Wait for all ranks at the barrier `name`.

        Raises RanksApart when they are not there at `until` (UTC), or when `give_up()` says so before.
        """
        self._say({"word": "arrive", "name": name, "ok": ok, "payload": payload})
        while True:
            left = (until - clock.utc_now()).total_seconds()
            with self._changed:
                slice_s = max(0.1, min(WAIT_SLICE_S, left))
                self._changed.wait_for(lambda: name in self._released or self._broken, slice_s)
                if name in self._released:
                    return self._released.pop(name)
            if self._broken or left <= 0 or give_up():
                raise RanksApart(self._broken or f"not all ranks came to {name} in time")

    def close(self) -> None:
        """Say good-bye and hang up."""
        if self._closing or os.getpid() != self._pid:
            return
        self._say({"word": "bye"})
        self._closing = True
        if self._hub is not None:
            self._hub.close()
        if self._sock is not None:
            self._sock.close()

    def _meet(self, place: Place) -> Place:
        """Open the hub on rank 0; where torch.distributed runs, let it tell everybody where that is."""
        torch_place = _torch_place(place)
        if torch_place is None:
            if place.rank == 0:
                self._hub = Hub(place.address, place.port, place.world, place.key)
                self._hub.start()
            return place
        store = sys.modules["torch.distributed"].distributed_c10d._get_default_store()
        name = f"ebbtide/meeting/{next(_MEETINGS)}"
        if torch_place.rank == 0:
            key = os.urandom(16).hex()
            self._hub = Hub(torch_place.address, 0, torch_place.world, key)
            self._hub.start()
            store.set(name, f"{self._hub.port} {key}")
        # the store rather than a broadcast: it needs no tensor, no numpy and no GPU that is set up already
        port, _, key = bytes(store.get(name)).decode().partition(" ")
        return torch_place._replace(port=int(port), key=key)

    def _run(self) -> None:
        sock = self._connect()
        if sock is None:
            return
        buffer = b""
        while not self._closing:
            try:
                data = sock.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                self._break("rank 0 hung up")
                return
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                self._hear(json.loads(line))

    def _connect(self) -> socket.socket | None:
        sock = self._dial()
        if sock is None:
            return None
        sock.settimeout(None)
        tune(sock)
        hello = {"word": "hello", "rank": self.rank, "world": self.world, "key": self.place.key}
        with self._send_lock:
            self._sock = sock
            waiting, self._unsent = [hello, *self._unsent], []
            self._send_now(waiting)
        return sock

    def _dial(self) -> socket.socket | None:
        """Pods of one job start at different times: try for CONNECT_S."""
        since, where = clock.monotonic(), (self.place.address, self.place.port)
        while not self._closing:
            try:
                return socket.create_connection(where, timeout=5.0)
            except OSError as error:
                if clock.monotonic() - since > CONNECT_S:
                    self._break(f"rank 0 cannot be reached at {where[0]} port {where[1]}: {error}")
                    return None
                clock.sleep(0.2)
        return None

    def _hear(self, word: Word) -> None:
        kind = word["word"]
        if kind == "notice":
            if int(word["rank"]) != self.rank:
                source = f"rank {word['rank']}"
                self._tell(
                    Heard(source, parse_instant(word["deadline"]), str(word["reason"]), clock.utc_now())
                )
            return
        if kind == "hold":
            self._hold = True
            self._attention.up = True
            # after raising the flag: a main thread that passes another boundary from here on waits there
            self._say({"word": "at", "round": word["round"], "step": self._boundary()})
            return
        with self._changed:
            if kind == "go":
                self._go = int(word["step"])
                self._attention.up = True
            elif kind == "release":
                if word["name"].startswith(
                    ROUND_END
                ):  # here, in the order of arrival: the next hold may be behind it
                    self._hold, self._go = False, None
                lost = tuple(word["lost"])
                release = Release(bool(word["ok"]), word["payload"], lost, word["leave"] is not None)
                self._released[str(word["name"])] = release
            self._changed.notify_all()

    def _break(self, why: str) -> None:
        if self._closing:
            return
        with self._changed:
            self._broken = why
            self._attention.up = True
            self._changed.notify_all()

    def _say(self, word: Word) -> None:
        with self._send_lock:
            if self._sock is None:
                self._unsent.append(word)
            else:
                self._send_now([word])

    def _send_now(self, words: list[Word]) -> None:
        assert self._sock is not None
        try:
            self._sock.sendall(b"".join(map(encode, words)))
        except OSError as error:
            if not self._closing and not self._broken:
                say(f"rank 0 cannot be told: {error}")


def _torch_place(place: Place) -> Place | None:
    """Rank and world as torch.distributed knows them, None when it is not running here."""
    if not running_under_torch():
        return None
    dist = sys.modules["torch.distributed"]
    address = os.environ.get("MASTER_ADDR") or place.address
    return place._replace(rank=int(dist.get_rank()), world=int(dist.get_world_size()), address=address)
