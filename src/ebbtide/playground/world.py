"""The simulated world: hosts, instances, control planes, nodes and pods, as providers, clusters and people
meet them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ebbtide.clock import Clock
from ebbtide.core.drain import PodKind, PodSeen
from ebbtide.errors import BadInput, NotFound
from ebbtide.playground import clusters, machines, people, pods, restarts, storage
from ebbtide.playground.behaviours import Behaviour, Habits, Obeys, PodBehaviour, Vanishes, Volume
from ebbtide.playground.engine import Engine
from ebbtide.playground.facts import Fact, What
from ebbtide.playground.machines import Order, Progress
from ebbtide.playground.state import (
    Announcement,
    Budget,
    Cluster,
    Disk,
    Machine,
    Node,
    NodeView,
    Outage,
    Pod,
    PodPlan,
    State,
)
from ebbtide.playground.trouble import NothingDone


class World(Engine):
    """See the package's documentation. Instants are aware UTC datetimes; nothing here waits, sleeps or ticks.

    seed:    whatever is random follows from it and from names
    journal: a file through which the world survives its process; None keeps it in memory only
    habits:  what holds where nothing else was set
    """

    def __init__(
        self, clock: Clock, *, seed: int = 0, journal: Path | None = None, habits: Habits | None = None
    ) -> None:
        super().__init__(clock, seed=seed, journal=journal, habits=habits or Habits())

    # --- as a provider meets it: raises WorldRefusal kinds only -----------------------------------

    def create_instance(self, order: Order) -> Machine:
        """Begin an instance, or find the one begun for the same uid. Never two on one host: that is a
        violation.
        """
        self._ask_provider("create")
        machine: Machine = self._act("create", order=order)
        return machine

    def instance(self, node_uid: str) -> Machine | None:
        return self._ask_provider("status").machines.get(node_uid)

    def stop_instance(self, node_uid: str) -> bool:
        """True only when it is confirmed that the machine no longer runs."""
        settled = machines.settled_stop(self._ask_provider("stop"), node_uid)
        if settled is not None:
            return settled
        confirmed: bool = self._act("stop", node_uid=node_uid)
        return confirmed

    def delete_instance(self, node_uid: str) -> Progress:
        """Give the machine back; ask again until it is gone."""
        settled = machines.settled_delete(self._ask_provider("delete"), node_uid)
        if settled is not None:
            return settled
        progress: Progress = self._act("delete", node_uid=node_uid)
        return progress

    def restart_instance(self, node_uid: str, ref: str, *, hard: bool) -> Machine | None:
        """Restart the machine, or its host; once per reference. None where there is no instance."""
        known = restarts.settled(self._ask_provider("restart"), node_uid, ref)
        if known is not None:
            return known
        machine: Machine | None = self._act("restart", node_uid=node_uid, ref=ref, hard=hard)
        return machine

    def instances(self, pool: str) -> list[Machine]:
        state = self._ask_provider("list")
        return [state.machines[node_uid] for node_uid in state.pools.get(pool, {})]

    def create_control_plane(self, cluster_id: str, name: str) -> Cluster:
        known = self._ask_provider("create_control_plane").clusters.get(cluster_id)
        if known is not None and known.made and not known.deleted:
            return known
        cluster: Cluster = self._act("create_control_plane", cluster_id=cluster_id, name=name)
        return cluster

    def control_plane(self, cluster_id: str) -> Cluster | None:
        cluster = self._ask_provider("control_plane").clusters.get(cluster_id)
        return cluster if cluster is not None and cluster.made and not cluster.deleted else None

    def control_plane_ready(self, cluster: Cluster) -> bool:
        return cluster.ready_at <= self._look().now

    def delete_control_plane(self, cluster_id: str) -> None:
        known = self._ask_provider("delete_control_plane").clusters.get(cluster_id)
        if known is not None and known.made and not known.deleted:
            self._act("delete_control_plane", cluster_id=cluster_id)

    def control_planes(self) -> list[str]:
        known = self._ask_provider("list_control_planes").clusters.values()
        return [cluster.cluster_id for cluster in known if cluster.made and not cluster.deleted]

    def _ask_provider(self, verb: str) -> State:
        state = self._look()
        if state.outages and any(outage.covers(state.now, verb) for outage in state.outages):
            raise NothingDone("the provider does not answer")
        return state

    # --- as storage: raises WorldRefusal kinds only -----------------------------------------------

    def provision_volume(self, volume_id: str, name: str, region: str, size_tib: int) -> Disk:
        """Begin to make or grow a volume, or find it as it is."""
        known = storage.settled(self._ask_provider("provision_volume"), volume_id, size_tib)
        if known is not None:
            return known
        disk: Disk = self._act(
            "provision_volume", volume_id=volume_id, name=name, region=region, size_tib=size_tib
        )
        return disk

    def delete_volume(self, volume_id: str) -> bool:
        """Delete a volume; ask again until it is gone."""
        disk = self._ask_provider("delete_volume").disks.get(volume_id)
        if disk is None:
            return True
        gone: bool = self._act("delete_volume", volume_id=volume_id) if disk.gone_at is None else False
        return gone

    def disks(self) -> list[Disk]:
        """Every volume that the storage system has."""
        return list(self._look().disks.values())

    # --- as a cluster shows it: raises ClusterUnreachable only ------------------------------------

    def nodes(self, cluster_id: str) -> tuple[NodeView, ...]:
        """Every Node object. The same tuple object as long as nothing changed."""
        return clusters.views(clusters.reach(self._look(), cluster_id, "observe"))

    def pods(self, cluster_id: str, node_uid: str) -> tuple[tuple[PodSeen, ...], int]:
        """The node's pods, and how many volume attachments name it."""
        node = clusters.reach(self._look(), cluster_id, "pods").nodes.get(node_uid)
        if node is None:
            return (), 0
        seen = tuple(
            PodSeen(
                uid=pod.uid,
                name=pod.name,
                kind=PodKind.FINISHED if pod.finished else pod.plan.kind,
                grace_s=pod.plan.grace_s,
                ends_by=pod.ends_by,
                tolerates_cordon=pod.plan.tolerates_everything,
                containers=(pod.plan.name,),
            )
            for pod in node.pods.values()
        )
        return seen, len(node.attached)

    def standard(self, cluster_id: str) -> dict[str, int]:
        """GPUs by name of the nodes that were there before us."""
        return dict(clusters.reach(self._look(), cluster_id, "standard").standard)

    def admit(self, cluster_id: str, node_uid: str) -> None:
        """Take the initializing taint away."""
        node = self._node(cluster_id, node_uid, "admit")
        if node is not None and not node.admitted:
            self._act("admit", cluster_id=cluster_id, node_uid=node_uid)

    def notify(self, cluster_id: str, node_uid: str, reason: str, message: str, deadline: datetime) -> None:
        """Cordon, annotate, send the event; once per reason."""
        node = self._node(cluster_id, node_uid, "notify")
        if node is None:
            return
        if node.cordoned and any(n.reason == reason and n.deadline == deadline for n in node.notices):
            return
        notice = Announcement(reason, message, deadline, at=self._state.now)
        self._act("notify", cluster_id=cluster_id, node_uid=node_uid, notice=notice)

    def conclude(self, cluster_id: str, node_uid: str, reason: str, message: str) -> None:
        """The closing event of a drain; once per reason."""
        node = self._node(cluster_id, node_uid, "conclude")
        if node is not None and reason not in node.closings:
            self._act("conclude", cluster_id=cluster_id, node_uid=node_uid, reason=reason, message=message)

    def take_back_notice(self, cluster_id: str, node_uid: str, reason: str) -> None:
        """Uncordon, and take the annotation of that reason away."""
        node = self._node(cluster_id, node_uid, "take_back_notice")
        if node is not None and (node.cordoned or any(known.reason == reason for known in node.notices)):
            self._act("take_back_notice", cluster_id=cluster_id, node_uid=node_uid, reason=reason)

    def put_volume(self, cluster_id: str, manifest: Mapping[str, Any]) -> None:
        """Apply a PersistentVolume."""
        shown = clusters.reach(self._look(), cluster_id, "put_volume").volumes
        if shown.get(manifest["metadata"]["name"]) != manifest:
            self._act("put_volume", cluster_id=cluster_id, manifest=dict(manifest))

    def drop_volume(self, cluster_id: str, name: str) -> None:
        """Delete a PersistentVolume."""
        if name in clusters.reach(self._look(), cluster_id, "drop_volume").volumes:
            self._act("drop_volume", cluster_id=cluster_id, name=name)

    def volumes(self, cluster_id: str) -> dict[str, dict[str, Any]]:
        """The cluster's PersistentVolumes by name, as manifests. Raises NotFound."""
        return dict(people.cluster_of(self._look(), cluster_id).volumes)

    def signal(self, cluster_id: str, node_uid: str, graces: Mapping[str, int]) -> dict[str, str]:
        """DELETE pods of the node, with a grace in seconds by pod uid. Which budgets would have kept them."""
        node = self._node(cluster_id, node_uid, "signal")
        if node is None:
            return {}
        found = [node.pods[uid] for uid in graces if uid in node.pods]
        keepers = people.keepers(self._state.clusters[cluster_id], found)
        due = {
            uid: grace_s
            for uid, grace_s in graces.items()
            if uid in node.pods and pods.would_tell(self._state, node.pods[uid], grace_s)
        }
        if due:
            self._act("signal", cluster_id=cluster_id, node_uid=node_uid, graces=due)
        return keepers

    def evict(self, cluster_id: str, node_uid: str, graces: Mapping[str, int]) -> dict[str, str | None]:
        """Evict pods of the node. By pod uid: why it was refused, None where the pod was told or is gone."""
        node = self._node(cluster_id, node_uid, "evict")
        if node is None:
            return dict.fromkeys(graces)
        answers = {uid: self._eviction_settled(cluster_id, node, uid) for uid in graces}
        due = {uid: graces[uid] for uid, (settled, _) in answers.items() if not settled}
        fresh = self._act("evict", cluster_id=cluster_id, node_uid=node_uid, graces=due) if due else {}
        return {uid: why for uid, (_, why) in answers.items()} | fresh

    def _eviction_settled(self, cluster_id: str, node: Node, pod_uid: str) -> tuple[bool, str | None]:
        pod = node.pods.get(pod_uid)
        if pod is None or pod.told_at is not None or pod.finished:
            return True, None
        why = people.refusal(self._state.clusters[cluster_id], pod)
        return why is not None and why == pod.refused, why

    def remove(self, cluster_id: str, node_uid: str) -> bool:
        """Take the Node object away with whatever is left on it."""
        if self._node(cluster_id, node_uid, "remove") is not None:
            self._act("remove", cluster_id=cluster_id, node_uid=node_uid)
        return True

    def _node(self, cluster_id: str, node_uid: str, verb: str) -> Node | None:
        return clusters.reach(self._look(), cluster_id, verb).nodes.get(node_uid)

    # --- as people treat it -----------------------------------------------------------------------

    def stand_up(self, cluster_id: str, standard: Mapping[str, int]) -> None:
        """A cluster of somebody's, with nodes by name and their GPUs, to be imported under this id."""
        self._act("stand_up", cluster_id=cluster_id, standard=dict(standard))

    def set_behaviour(
        self,
        *behaviours: Behaviour,
        host: str | None = None,
        pool: str | None = None,
        node_uid: str | None = None,
        volume: str | None = None,
    ) -> None:
        """Let behaviours hold for a node, a host, a pool, a volume (its name), or (none named) everywhere."""
        named = [("node", node_uid), ("host", host), ("pool", pool), ("volume", volume)]
        scopes = [f"{kind}:{name}" for kind, name in named if name is not None]
        if len(scopes) > 1:
            raise BadInput("a behaviour holds for a node, a host, a pool or a volume: name one")
        for behaviour in behaviours:
            if isinstance(behaviour, Vanishes) and host is None:
                raise BadInput("it is hosts that vanish: name one", param="host")
            self._act("set_behaviour", scope=scopes[0] if scopes else "", behaviour=behaviour)

    def run_pods(
        self,
        cluster_id: str,
        node_name: str | None = None,
        count: int = 1,
        behaviour: PodBehaviour | None = None,
        grace_s: int = 30,
        name: str = "job",
        *,
        kind: PodKind = PodKind.WORKLOAD,
        gpus: int = 0,
        on: str = "",
        volumes: Sequence[Volume] = (),
        reschedule: bool = False,
        tolerates_everything: bool = False,
        bind_at: datetime | None = None,
    ) -> list[str]:
        """Make `count` pods and say their uids. Raises NotFound for a cluster or a node that is not there.

        node_name: a node's name or uid, which takes them whatever its taints say; None leaves it to the
        scheduler,
                   where pods that fit nowhere wait for a node
        bind_at:   they start on the named node only then
        The rest is described at `PodPlan`.
        """
        plan = PodPlan(
            name,
            behaviour or Obeys(),
            kind,
            grace_s,
            gpus,
            on,
            tuple(volumes),
            reschedule,
            tolerates_everything,
        )
        if node_name is None:
            people.cluster_of(self._look(), cluster_id)
        else:
            people.node_of(self._look(), cluster_id, node_name)
        uids: list[str] = self._act(
            "run_pods", cluster_id=cluster_id, plan=plan, count=count, node_name=node_name, bind_at=bind_at
        )
        return uids

    def budget(self, cluster_id: str, name: str, pods_named: str, min_available: int | None = None) -> None:
        """A disruption budget over the pods run under that name; with None it never allows a disruption."""
        self._act("add_budget", cluster_id=cluster_id, budget=Budget(name, pods_named, min_available))

    def cordon(self, cluster_id: str, node_name: str, cordoned: bool = True) -> None:
        """What `kubectl cordon` and `kubectl uncordon` do. Raises NotFound."""
        people.node_of(self._look(), cluster_id, node_name)
        self._act("cordon", cluster_id=cluster_id, node_name=node_name, cordoned=cordoned)

    def delete_node(self, cluster_id: str, node_name: str) -> None:
        """What `kubectl delete node` does. Raises NotFound."""
        people.node_of(self._look(), cluster_id, node_name)
        self._act("delete_node", cluster_id=cluster_id, node_name=node_name)

    def vanish(self, host: str, *, forgotten: bool = True) -> None:
        """The host is gone now. forgotten: its provider knows nothing of the instance any more."""
        self._act("vanish", host_name=host, forgotten=forgotten)

    def vanish_used(self, host: str) -> str | None:
        """Like `vanish`, for a name that a person typed. The uid of the node that was on it, if any.

        Raises NotFound for a host that never had an instance.
        """
        known = self._look().hosts.get(host)
        if known is None:
            raise NotFound(f"no instance was ever on a host named {host}", param="name")
        occupant = known.occupant
        self.vanish(host)
        return occupant

    def restore(self, host: str) -> None:
        """A vanished host is back and can be had again."""
        self._act("restore", host_name=host)

    def unreachable(self, cluster_id: str, start: datetime, end: datetime, verbs: Sequence[str] = ()) -> None:
        """The cluster's API server is silent from `start` until `end`; with `verbs`, only to these."""
        self._act("add_outage", cluster_id=cluster_id, outage=Outage(start, end, tuple(verbs)))

    def provider_unreachable(self, start: datetime, end: datetime, verbs: Sequence[str] = ()) -> None:
        """The provider is silent from `start` until `end`; with `verbs`, only to these."""
        self._act("add_provider_outage", outage=Outage(start, end, tuple(verbs)))

    # --- as tests and consoles look at it ---------------------------------------------------------

    @property
    def violations(self) -> list[str]:
        """What must never happen and did. Empty in a right system."""
        return list(self._look().violations)

    def facts(
        self, *, what: What | None = None, cluster_id: str | None = None, node_uid: str | None = None
    ) -> list[Fact]:
        """What happened, in order, as far back as it is kept."""
        return [
            fact
            for fact in self._look().facts
            if (what is None or fact.what is what)
            and (cluster_id is None or fact.cluster_id == cluster_id)
            and (node_uid is None or fact.node_uid == node_uid)
        ]

    def cluster_pods(self, cluster_id: str) -> list[tuple[Node | None, Pod]]:
        """Every pod of the cluster with its node, None for those that wait. Raises NotFound."""
        cluster = people.cluster_of(self._look(), cluster_id)
        bound: list[tuple[Node | None, Pod]] = [
            (node, pod) for node in cluster.nodes.values() for pod in node.pods.values()
        ]
        return bound + [(None, pod) for pod in cluster.pending]

    def occupants(self) -> dict[str, str]:
        """Which node's instance is on which host, by host name."""
        return {host.name: host.occupant for host in self._look().hosts.values() if host.occupant is not None}
