"""A small TCP proxy that can fall silent, as a network does, and ask etcd to forget."""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp


class Proxy:
    """Between clients and one port of this machine."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server: asyncio.Server | None = None
        self._carrying: set[asyncio.Task[None]] = set()
        self._silent: list[asyncio.StreamWriter] = []
        self._open: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = {}
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self.freeze()
        for writer in self._silent:
            writer.close()

    async def freeze(self) -> int:
        """From now on the connections that there are carry nothing, and nobody is told; new ones do.

        How many that were.
        """
        frozen = list(self._open)
        for task in frozen:
            self._silent += self._open.pop(task)
            task.cancel()
        await asyncio.gather(*frozen, return_exceptions=True)
        return len(frozen)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.close()
            return
        task = asyncio.create_task(_both_ways(reader, writer, far_reader, far_writer))
        self._open[task] = (writer, far_writer)
        await asyncio.wait([task])
        if self._open.pop(task, None):
            writer.close()
            far_writer.close()


async def _both_ways(
    near_reader: asyncio.StreamReader,
    near_writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader,
    far_writer: asyncio.StreamWriter,
) -> None:
    """Until either side ends."""
    ways = [
        asyncio.create_task(_carry(near_reader, far_writer)),
        asyncio.create_task(_carry(far_reader, near_writer)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def compact(folder: Path) -> int:
    """Let the etcd of a control plane forget all but the present. The revision that it is at."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)  # the socket's own path may be too long
    try:
        connector = aiohttp.UnixConnector(f"/proc/self/fd/{descriptor}/etcd.sock")
        async with aiohttp.ClientSession("http://etcd", connector=connector) as session:
            key = base64.b64encode(b"/").decode()
            async with session.post("/v3/kv/range", json={"key": key}) as answer:
                revision = int((await answer.json(content_type=None))["header"]["revision"])
            body = {"revision": str(revision), "physical": True}
            async with session.post("/v3/kv/compaction", json=body) as answer:
                assert answer.status == 200, await answer.text()
    finally:
        os.close(descriptor)
    return revision
