"""The control planes of this machine: a folder each, named by its cluster's id."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from ebbtide.clock import Clock
from ebbtide.kube.certificates import write_private
from ebbtide.kube.places import Places
from ebbtide.providers.base import ControlPlane, Transient
from ebbtide.providers.kwok.machines import Machine
from ebbtide.providers.kwok.plane import Plane

log = structlog.get_logger()

_FACTS = "cluster.json"
_GOING = "deleted"  # a folder with this file is never started again
_STARTING_AT_ONCE = 2  # a start keeps a processor busy for seconds


class Planes:
    """Starts, watches, stops and removes them. All calls answer at once; work goes on in tasks."""

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        *,
        most: int,
        machines_of: Callable[[str], list[Machine]],
        on_ready: Callable[[str], object],
        where: Places | None = None,
        durable: bool = True,
        arguments: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        """most: how many there may be. machines_of: a cluster's machines, as of now.
        on_ready: told the id of a cluster whose control plane is up, each time it is. The rest: see `Plane`.
        """
        self._folder = folder
        self._clock = clock
        self._most = most
        self._machines_of = machines_of
        self._on_ready = on_ready
        self._where = where
        self._durable = durable
        self._arguments = dict(arguments or {})
        self._planes: dict[str, Plane] = {}
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._going: dict[str, asyncio.Task[None]] = {}
        self._starting = asyncio.Semaphore(_STARTING_AT_ONCE)

    def begin(self) -> None:
        """Start what an earlier process left; finish what it was deleting."""
        for cluster_id in self.listed():
            folder = self._folder / cluster_id
            if (folder / _GOING).exists() or not (folder / _FACTS).exists():
                self.delete(cluster_id)
            else:
                self._keep(cluster_id, _name_in(folder / _FACTS) or cluster_id)

    async def close(self) -> None:
        """Stop everything; nothing is lost."""
        for task in self._keeping.values():
            task.cancel()
        await asyncio.gather(*self._keeping.values(), *self._going.values(), return_exceptions=True)
        for error in await asyncio.gather(
            *(one.stop() for one in self._planes.values()), return_exceptions=True
        ):
            if error is not None:
                log.warning("a control plane did not stop", why=str(error))
        self._planes.clear()

    def create(self, cluster_id: str, name: str) -> ControlPlane:
        """Start one, or find the one started before. Raises Transient when there is no room for another."""
        if cluster_id in self._going:
            raise Transient("the cluster's last control plane is still being removed")
        if cluster_id not in self._planes:
            if len(self.listed()) >= self._most:
                raise Transient(
                    f"this machine runs {self._most} control planes at most (EBBTIDE_KWOK_CLUSTERS_LIMIT); "
                    "the cluster waits until one of them is deleted"
                )
            folder = self._folder / cluster_id
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(folder / _FACTS, json.dumps({"cluster_id": cluster_id, "name": name}).encode())
            self._keep(cluster_id, name)
        return self._planes[cluster_id].told()

    def told(self, cluster_id: str) -> ControlPlane | None:
        """As it is now. None: there is none, or it is going."""
        plane = self._planes.get(cluster_id)
        return plane.told() if plane else None

    def get(self, cluster_id: str) -> Plane | None:
        return self._planes.get(cluster_id)

    def listed(self) -> list[str]:
        """The ids of all that exist, those that are going included."""
        if not self._folder.is_dir():
            return []
        return sorted(path.name for path in self._folder.iterdir() if path.is_dir() and _is_id(path.name))

    def delete(self, cluster_id: str) -> bool:
        """Remove one; whether nothing is left."""
        folder = self._folder / cluster_id
        if not _is_id(cluster_id) or (not folder.exists() and cluster_id not in self._planes):
            return cluster_id not in self._going
        if cluster_id not in self._going:
            with contextlib.suppress(FileNotFoundError):
                (folder / _GOING).touch()
            task = asyncio.create_task(self._remove(cluster_id), name=f"removal of {cluster_id}")
            self._going[cluster_id] = task
            task.add_done_callback(lambda _: self._going.pop(cluster_id, None))
        return False

    async def _remove(self, cluster_id: str) -> None:
        keeping = self._keeping.pop(cluster_id, None)
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        plane = self._planes.pop(cluster_id, None)
        if plane is not None:
            await plane.delete()
        await asyncio.to_thread(shutil.rmtree, self._folder / cluster_id, ignore_errors=True)

    def _keep(self, cluster_id: str, name: str) -> None:
        plane = Plane(
            cluster_id,
            name,
            self._folder / cluster_id,
            self._clock,
            machines=lambda: self._machines_of(cluster_id),
            where=self._where,
            durable=self._durable,
            arguments=self._arguments,
        )
        self._planes[cluster_id] = plane
        keeping = plane.keep(self._starting, self._on_ready)
        self._keeping[cluster_id] = asyncio.create_task(keeping, name=f"control plane of {name}")


def _name_in(facts: Path) -> str | None:
    """The name written there, which is for people; None where the file cannot be read."""
    try:
        name = json.loads(facts.read_text(encoding="utf-8"))["name"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.error("a control plane's file cannot be read", path=str(facts), why=repr(error))
        return None
    return name if isinstance(name, str) else None


def _is_id(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
