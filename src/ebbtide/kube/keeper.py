"""Child processes that never outlive this one, even when it ends by `kill -9`.

Each child runs under a small shell, its keeper, which waits for the end of a pipe that only this process
holds. When the pipe ends, for whatever reason, the keeper asks the child to stop, and after a while kills
what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

STOP_LIMIT_S = 10

# Arguments: seconds from SIGTERM to SIGKILL, then the command. Standard input is the pipe. The keeper leads a
# process group of its own, which is what `kill -KILL 0` ends.
_KEEPER = """
exec 3<&0
limit=$1; shift
"$@" </dev/null 3<&- &
child=$!
{
  trap 'kill "$nap" 2>/dev/null; exit' TERM
  read -r _ <&3
  kill -TERM "$child" 2>/dev/null
  sleep "$limit" >/dev/null 2>&1 &
  nap=$!
  wait "$nap"
  kill -KILL 0
} &
watcher=$!
exec 3<&-
wait "$child"; code=$?
kill -TERM "$watcher" 2>/dev/null
wait "$watcher"
exit "$code"
"""


class Kept:
    """One child, running from the moment this is made. Not bound to an event loop."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        output: IO[bytes],
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        stop_limit_s: int = STOP_LIMIT_S,
    ) -> None:
        """name: what messages call it. output: takes its standard output and error. Raises OSError."""
        self.name = name
        self._stop_limit_s = stop_limit_s
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, f"keeper of {name}", str(stop_limit_s), *map(str, command)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=folder,
            env=None if environment is None else dict(environment),
            start_new_session=True,  # Ctrl-C in the terminal reaches us only; we stop them in the right order
        )

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + N where signal N ended it."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    async def stop(self) -> None:
        """SIGTERM, SIGKILL after the limit; returns when it is gone. Gone already: nothing."""
        self.ask_to_stop()
        try:
            await asyncio.to_thread(self._process.wait, self._stop_limit_s + 5)
        except subprocess.TimeoutExpired:  # the keeper itself hangs
            self.kill()
            await asyncio.to_thread(self._process.wait)

    def ask_to_stop(self) -> None:
        """What `stop` does first, without waiting; it happens by itself when this process ends."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def kill(self) -> None:
        """SIGKILL to the child and all it started, at once. Gone already: nothing."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
