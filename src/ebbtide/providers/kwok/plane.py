"""One cluster's control plane, with its kwok, kept running for as long as this process lives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import structlog

from ebbtide.clock import Clock
from ebbtide.errors import EbbtideError
from ebbtide.kube.certificates import Authority, Subject
from ebbtide.kube.client import KubeClient, PatchKind
from ebbtide.kube.controlplane import ControlPlane
from ebbtide.kube.errors import KubeError
from ebbtide.kube.kubeconfig import Access
from ebbtide.kube.places import Places, places
from ebbtide.kube.rights import USER, apply_rights
from ebbtide.kube.servers import Options
from ebbtide.providers import base
from ebbtide.providers.kwok import kubelet
from ebbtide.providers.kwok.machines import Machine
from ebbtide.providers.kwok.player import Player

log = structlog.get_logger()

LOOK_EVERY_S = 1.0
BEAT_EVERY_S = 10.0
LONGEST_WAIT_S = 60.0
OFF_LIMIT_S = 2.0  # how long a power-off waits for the API server before kwok is killed instead
_TENANTS = "ebbtide-tenants"
_NAME_LIMIT = 50  # a certificate's common name has at most 64 characters
_RBAC = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


class Plane:
    """Started by `keep`, which runs until it is cancelled; then `stop`, or `delete`."""

    def __init__(
        self,
        cluster_id: str,
        name: str,
        folder: Path,
        clock: Clock,
        *,
        machines: Callable[[], list[Machine]],
        where: Places | None = None,
        durable: bool = True,
        arguments: dict[str, tuple[str, ...]] | None = None,
    ) -> None:
        """folder: its own. machines: the cluster's, as of now. arguments: see `kube.servers.Options`."""
        self.cluster_id = cluster_id
        self.name = name
        self.folder = folder
        self.why = "its control plane waits for its turn to start"
        self._clock = clock
        self._machines = machines
        self._where = where or places()
        options = Options(name=name, durable=durable, arguments=arguments or {})
        self.control = ControlPlane(folder, options, where=self._where, clock=clock)
        self.client: KubeClient | None = None
        self._ways_in: tuple[str, str] | None = None
        self._player: Player | None = None
        self._silent: set[tuple[str, int]] = set()
        self._door = asyncio.Lock()  # kwok does not start while a Node gets its label

    @property
    def ready(self) -> bool:
        return self._ways_in is not None

    def told(self) -> base.ControlPlane:
        """The control plane as it is now."""
        if self._ways_in is None:
            return base.ControlPlane(self.cluster_id, ready=False, why=self.why)
        tenant, ours = self._ways_in
        return base.ControlPlane(self.cluster_id, ready=True, kubeconfig=tenant, driver_kubeconfig=ours)

    async def keep(self, starting: asyncio.Semaphore, on_ready: Callable[[str], object]) -> None:
        """Start it, and start again what ends, with growing waits; for ever.

        starting: bounds how many start at once. on_ready: called with the cluster's id each time it is up.
        """
        failures = 0
        while True:
            try:
                async with starting:
                    self.why = "its control plane is starting"
                    await self._bring_up()
                on_ready(self.cluster_id)
                up_at = self._clock.now()
                await self._watch()
                if self._clock.now() - up_at > timedelta(seconds=LONGEST_WAIT_S):
                    failures = 0
            except (EbbtideError, OSError) as error:
                self._say_down(error)
                log.warning("control plane does not start", cluster=self.cluster_id, why=str(error))
            except Exception as error:  # a fault of ours: nobody else would start it again
                self._say_down(error)
                log.exception("control plane does not start", cluster=self.cluster_id)
            failures += 1
            await asyncio.sleep(min(LONGEST_WAIT_S, 2.0 ** min(failures - 1, 10)))

    def _say_down(self, error: Exception) -> None:
        self._ways_in = None
        first, *_ = str(error).splitlines() or [type(error).__name__]  # a server's log may follow
        self.why = f"its control plane does not start, and is tried again: {first}"

    async def _bring_up(self) -> None:
        ended = self.control.ended
        try:
            for name in ended:
                await self.control.stop_server(name)
                await self.control.start_server(name)
        except EbbtideError:
            await self.control.stop()  # all anew, on another port if need be
        await self.control.start()
        await self._open()
        await self._start_player()

    async def _open(self) -> None:
        """Make the ways in, and give each what it may do."""
        authority = await asyncio.to_thread(Authority, self.folder / "pki", self._clock.now())
        url = self.control.url
        subject = Subject(f"{self.name[:_NAME_LIMIT]}-admin", organization=_TENANTS)
        pair = authority.issue("tenant", subject)
        tenant = Access(self.name, url, authority.pair.certificate, pair, f"{self.cluster_id}-admin")
        ours = Access(self.name, url, authority.pair.certificate, authority.issue(USER, Subject(USER)), USER)
        if self.client is not None:
            await self.client.close()
        self.client = KubeClient(self.control.access.kubeconfig())
        await self.client.patch(
            f"{_RBAC}/{_TENANTS}",
            _binding(),
            kind=PatchKind.APPLY,
            fieldManager="ebbtide",
            force=True,
        )
        await apply_rights(self.client, explicit=True, guard=True)
        self._ways_in = (tenant.kubeconfig(), ours.kubeconfig())

    async def _start_player(self) -> None:
        assert self.client is not None
        if self._player is None:
            self._player = Player(self._where.require(("kwok",))["kwok"], self.folder)
        if not self._player.running:
            async with self._door:
                await self._player.start(self.control.kubeconfig, self._silent_ones, self._unlabel)

    def _silent_ones(self) -> list[Machine]:
        """Machines without a running kubelet: off, or starting."""
        return [one for one in self._machines() if not (one.on and one.registered)]

    async def _unlabel(self, machine: Machine) -> None:
        assert self.client is not None
        await kubelet.fall_silent(self.client, machine)
        self._silent.add((machine.node_uid, machine.boots))

    async def _watch(self) -> None:
        """Until a server has ended; kwok alone is started again, and leases are renewed."""
        since_beat_s = BEAT_EVERY_S
        while not self.control.ended:
            with contextlib.suppress(KubeError):  # the API server is asked again at the next look
                await self._start_player()
                if since_beat_s >= BEAT_EVERY_S:
                    since_beat_s = 0.0
                    await self._beat()
            await asyncio.sleep(LOOK_EVERY_S)
            since_beat_s += LOOK_EVERY_S
        log.warning("servers ended", cluster=self.cluster_id, servers=self.control.ended)

    async def _beat(self) -> None:
        """Renew the leases of machines that are on, as their kubelets would.

        Not by kwok: a kwok that has just started takes a pod for another kwok's if it meets it before its own
        lease, and does not look again.
        """
        assert self.client is not None
        now = self._clock.now()
        there = [one for one in self._machines() if one.registered and one.on]
        await asyncio.gather(*(kubelet.beat(self.client, one, now) for one in there))

    # -- machines

    async def register(
        self, machine: Machine, is_on: Callable[[], bool], note: Callable[[str], object]
    ) -> None:
        """Put the machine's Node into the cluster while it is on, and note the Node's uid.

        Raises KubeError, also while there is no cluster, and NameTaken.
        """
        async with self._door:
            if self.client is None or not self.ready:
                raise KubeError("the control plane is not there yet")
            if not is_on():
                return
            object_uid = await kubelet.register(self.client, machine, self._clock.now())
            if is_on():
                note(object_uid)
                return
        self._silent.discard((machine.node_uid, machine.boots))  # it was switched off meanwhile
        await self.silence(machine)

    async def silence(self, machine: Machine) -> None:
        """The machine is off: when this returns, nothing is done in its name any more. Never takes long."""
        mark = (machine.node_uid, machine.boots)
        if mark in self._silent or self._player is None or not self._player.running:
            return  # kwok starts only without it
        try:
            assert self.client is not None
            async with asyncio.timeout(OFF_LIMIT_S):
                planned = await kubelet.fall_silent(self.client, machine)
        except (KubeError, TimeoutError):
            planned = True
        if planned:
            await self._player.kill()  # what it has planned for the machine's pods it would do; see `_watch`
        else:
            self._silent.add(mark)

    # -- the end

    async def stop(self) -> None:
        """Stop all processes; what they know stays in the folder."""
        self._ways_in = None
        if self._player is not None:
            await self._player.kill()
        if self.client is not None:
            await self.client.close()
            self.client = None
        await self.control.stop()

    async def delete(self) -> None:
        """Stop, and leave nothing."""
        await self.stop()
        await self.control.delete()


def _binding() -> kubelet.Json:
    """Tenants are administrators of their own cluster."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": _TENANTS},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": _TENANTS}],
    }
