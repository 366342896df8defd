"""The meeting point of all ranks, a thread in rank 0: it gathers, decides and releases, and knows no
checkpoint.

Words are JSON objects, one a line. From a rank: `hello`, `notice`, `propose`, `at`, `arrive`, `bye`. To a
rank: `notice`, `hold`, `go`, `release`.

How a step is agreed on. `hold` asks each rank which step boundary it has passed last; whoever answers b
promises to wait at its next boundary for the decision. The hub takes S = max(b) + 1. No rank can be past S,
and none waits for another's main thread, so ranks that are inside a collective with each other cannot block
the decision. Each then goes on to its first boundary at or past S, saves there, and meets the others at
barriers. A notice that arrived by the time the last barrier opens makes that release say `leave`: to all, or
to none.
"""

from __future__ import annotations

import hmac
import json
import selectors
import socket
import threading
from dataclasses import dataclass, field
from typing import Any

from . import clock
from .deadline import parse_instant
from .say import say

GATHER_S = 10.0
MAX_LINE = 1 << 16
SEND_TIMEOUT_S = 5.0
ROUND_END = "committed:"
"""Barriers with this prefix end a round: their release says whether to leave."""

Word = dict[str, Any]


@dataclass(eq=False)
class _Caller:
    """One connection; `rank` is -1 until it said hello."""

    sock: socket.socket
    rank: int = -1
    buffer: bytes = b""


@dataclass
class _Round:
    """A decision in the making: the boundaries told so far, and the step once decided."""

    number: int
    since_s: float
    boundaries: dict[int, int] = field(default_factory=dict)
    step: int | None = None


class Hub:
    """Listens at `address`:`port` (0: any free one) for `world` ranks that know `key`."""

    def __init__(self, address: str, port: int, world: int, key: str) -> None:
        self._world = world
        self._key = key
        self._server = _listen(address, port)
        self._select = selectors.DefaultSelector()
        self._select.register(self._server, selectors.EVENT_READ)
        self._ranks: dict[int, _Caller] = {}
        self._left: set[int] = set()
        self._lost: set[int] = set()
        self._barriers: dict[str, dict[int, Word]] = {}
        self._round: _Round | None = None
        self._rounds = 0
        self._notice: Word | None = None
        self._noticed_at = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ebbtide-hub", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.getsockname()[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop listening and hang up. What was sent before still arrives."""
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            for ready, _ in self._select.select(timeout=0.2):
                if ready.fileobj is self._server:
                    self._accept()
                else:
                    self._read(ready.data)
            self._decide_late()
        for caller in [key.data for key in self._select.get_map().values() if key.data is not None]:
            caller.sock.close()
        self._server.close()
        self._select.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._server.accept()
        except OSError:
            return
        sock.settimeout(SEND_TIMEOUT_S)
        tune(sock)
        self._select.register(sock, selectors.EVENT_READ, _Caller(sock))

    def _read(self, caller: _Caller) -> None:
        try:
            data = caller.sock.recv(MAX_LINE)
        except OSError:
            data = b""
        caller.buffer += data
        *lines, caller.buffer = caller.buffer.split(b"\n")
        for line in lines:
            if not self._hear(caller, line):
                self._hang_up(caller)
                return
        if not data or len(caller.buffer) > MAX_LINE:
            self._hang_up(caller)

    def _hear(self, caller: _Caller, line: bytes) -> bool:
        """Act on one word; False when the caller is no rank of ours or speaks nonsense."""
        try:
            word = json.loads(line)
            kind = word["word"]
            if caller.rank < 0:
                return kind == "hello" and self._welcome(caller, word)
            if kind == "notice":
                self._noticed(word)
            elif kind == "propose":
                if self._complete():
                    self._begin_round()
            elif kind == "at":
                self._told_boundary(caller.rank, int(word["round"]), int(word["step"]))
            elif kind == "arrive":
                self._barriers.setdefault(str(word["name"]), {})[caller.rank] = word
                self._open_barriers()
            elif kind == "bye":
                self._left.add(caller.rank)
        except (ValueError, KeyError, TypeError):
            return False
        return True

    def _welcome(self, caller: _Caller, word: Word) -> bool:
        rank = int(word["rank"])
        known = hmac.compare_digest(str(word["key"]).encode(), self._key.encode())
        if not known or int(word["world"]) != self._world or not 0 <= rank < self._world:
            say(f"turned away one that says to be rank {rank} of {word['world']}; this job has {self._world}")
            return False
        caller.rank = rank
        self._ranks[rank] = caller
        self._lost.discard(rank)
        if self._notice is not None:
            self._send(caller, self._notice)
        if self._round is not None:
            self._send(caller, {"word": "hold", "round": self._round.number})
            if self._round.step is not None:
                self._send(caller, {"word": "go", "step": self._round.step})
        elif self._notice is not None and self._complete():
            self._begin_round()
        return True

    def _noticed(self, word: Word) -> None:
        if self._notice is None or parse_instant(word["deadline"]) < parse_instant(self._notice["deadline"]):
            self._noticed_at = self._noticed_at or clock.monotonic()
            self._notice = word
            self._tell_all(word)
        if self._complete():
            self._begin_round()

    def _complete(self) -> bool:
        """Whether every rank has come at some time."""
        return len(set(self._ranks) | self._left | self._lost) >= self._world

    def _begin_round(self) -> None:
        if self._round is None:
            self._rounds += 1
            self._round = _Round(self._rounds, clock.monotonic())
            self._tell_all({"word": "hold", "round": self._rounds})

    def _told_boundary(self, rank: int, number: int, step: int) -> None:
        if self._round is not None and self._round.number == number and self._round.step is None:
            self._round.boundaries[rank] = step
            self._decide_if_all_told(self._round)

    def _decide_if_all_told(self, waiting: _Round) -> None:
        if waiting.boundaries and self._present() <= set(waiting.boundaries):
            self._decide(waiting)

    def _decide_late(self) -> None:
        """A rank whose answer does not come must not use up the others' window."""
        waiting = self._round
        if waiting is None and self._noticed_at and clock.monotonic() - self._noticed_at > GATHER_S:
            self._begin_round()  # some rank never came: the others must not miss their window for it
        if waiting is None or waiting.step is not None or not waiting.boundaries:
            return
        if clock.monotonic() - waiting.since_s > GATHER_S:
            silent = sorted(self._present() - set(waiting.boundaries))
            say(f"ranks {silent} did not say where they are within {GATHER_S:.0f} s: deciding without them")
            self._decide(waiting)

    def _decide(self, waiting: _Round) -> None:
        waiting.step = max(waiting.boundaries.values()) + 1
        self._tell_all({"word": "go", "step": waiting.step})

    def _open_barriers(self) -> None:
        for name in list(self._barriers):
            arrived = self._barriers[name]
            if not self._complete() or not self._present() <= set(arrived):
                continue
            del self._barriers[name]
            first = arrived.get(0, {})
            release: Word = {
                "word": "release",
                "name": name,
                "ok": all(word["ok"] for word in arrived.values()),
                "payload": first.get("payload"),
                "lost": sorted(self._lost),
                "leave": None,
            }
            if name.startswith(ROUND_END):
                self._round = None
                release["leave"] = self._notice
            self._tell_all(release)

    def _present(self) -> set[int]:
        return set(self._ranks) - self._left - self._lost

    def _hang_up(self, caller: _Caller) -> None:
        self._select.unregister(caller.sock)
        caller.sock.close()
        if caller.rank < 0 or self._ranks.get(caller.rank) is not caller:
            return
        del self._ranks[caller.rank]
        if caller.rank not in self._left:
            self._lost.add(caller.rank)
            say(f"rank {caller.rank} is gone without a word")
        if self._round is not None and self._round.step is None:
            self._decide_if_all_told(self._round)
        self._open_barriers()

    def _tell_all(self, word: Word) -> None:
        for caller in list(self._ranks.values()):
            if caller.rank not in self._left:
                self._send(caller, word)

    def _send(self, caller: _Caller, word: Word) -> None:
        try:
            caller.sock.sendall(encode(word))
        except OSError as error:
            say(f"rank {caller.rank} cannot be told {word['word']}: {error}")
            _shut(caller.sock)  # half a word may be on its way: the next read hangs up


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # gone already


def encode(word: Word) -> bytes:
    """A word as it goes over the wire."""
    return json.dumps(word).encode() + b"\n"


def _listen(address: str, port: int) -> socket.socket:
    """A listening socket: on loopback where rank 0 is met there, else on every interface."""
    local = address in ("127.0.0.1", "localhost", "::1", "")
    family = socket.AF_INET6 if address == "::1" else socket.AF_INET
    host = ("::1" if family == socket.AF_INET6 else "127.0.0.1") if local else ""
    server = socket.socket(family, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((host, port))
    except OSError as error:
        server.close()
        raise OSError(
            error.errno, f"rank 0 cannot meet the others at port {port} (EBBTIDE_PORT): {error}"
        ) from error
    server.listen(512)
    return server


def tune(sock: socket.socket) -> None:
    """Send small words at once, and notice within 20 s that the other end is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
