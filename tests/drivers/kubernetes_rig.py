"""The Kubernetes driver over an API server in memory, with one node."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

from ebbtide.clock import ManualClock
from ebbtide.core.drain import PodOrder
from ebbtide.drivers.base import ClusterRef, NodeRef, Notice
from ebbtide.drivers.kubernetes.driver import KubernetesDriver
from ebbtide.kube.client import Clients
from ebbtide.kube.errors import KubeError, Unreachable
from tests.drivers.fake_api import NODES, PODS, Call, FakeApi, Json, OneApi, refusal

NODE = NodeRef("11111111-1111-4111-8111-111111111111", "gpu-preemptible-dp-aaaaa-bbbbb")
PATH = f"{NODES}/{NODE.name}"
CLUSTER = ClusterRef("c-1", "tidal", "a kubeconfig")
WEBHOOK = refusal(500, 'Internal error occurred: failed calling webhook "no.example.com"', "InternalError")
BUSY = refusal(500, "etcdserver: request timed out", "InternalError")


class Rig:
    def __init__(self, **options: bool | int) -> None:
        self.clock = ManualClock()
        self.api = FakeApi(self.clock)
        self._clients = OneApi(self.api)
        self.driver = KubernetesDriver(cast(Clients, self._clients), self.clock, **options)  # type: ignore[arg-type]  # as they are named there
        self.api.node(NODE.uid, NODE.name)
        self.notice = Notice("TogetherPreempted", "for beta", self.clock.now() + timedelta(seconds=300))

    def forget_api(self) -> None:
        """Let go of the API server, as a cache of clients does."""
        self._clients.api = FakeApi(self.clock)
        self.api = self._clients.api

    @property
    def node(self) -> Json:
        return self.api.things[PATH]

    def order(self, name: str, grace_s: int = 30, *, shorten: bool = False) -> PodOrder:
        uid = self.api.things[f"{PODS}/{name}"]["metadata"]["uid"]
        return PodOrder(uid, name, grace_s, shorten, "default")

    def refuse(self, verb: str, part: str, error: KubeError, times: int = 1000) -> None:
        """Answer calls of that kind with an error, so many times."""
        left = [times]

        def before(call: Call) -> None:
            if call.what.startswith(verb) and part in call.what and left[0]:
                left[0] -= 1
                raise error

        self.api.before = before

    async def notify(self) -> None:
        await self.driver.notify(CLUSTER, NODE, self.notice)


def stop_at(api: FakeApi, number: int, moment: str) -> None:
    """Break the connection at that call: before it has an effect, or after."""

    def hook(call: Call) -> None:
        if len(api.calls) == number:
            raise Unreachable("the connection broke")

    setattr(api, moment, hook)


def go_on(api: FakeApi) -> None:
    api.before = api.after = lambda call: None
