"""Control planes, Node objects, and what an API server would show of them."""

from __future__ import annotations

from ebbtide.playground import kubelet, scheduler
from ebbtide.playground.behaviours import Boots, GpusMissing, NeverReady, Reregisters
from ebbtide.playground.facts import What
from ebbtide.playground.state import Announcement, Cluster, Machine, Node, NodeView, Outage, Power, State
from ebbtide.playground.trouble import ClusterUnreachable

_KUBECONFIG = """\
# This cluster is simulated: nothing answers at its address.
apiVersion: v1
kind: Config
clusters:
- name: {name}
  cluster:
    server: https://{cluster_id}.playground.invalid:6443
contexts:
- name: {name}
  context:
    cluster: {name}
    user: {cluster_id}-admin
current-context: {name}
users:
- name: {cluster_id}-admin
  user:
    token: simulated
"""


def kubeconfig(cluster: Cluster) -> str:
    """One cluster, one context, one user; the user's name is unique per cluster, so that kubeconfigs can be
    merged.
    """
    return _KUBECONFIG.format(name=cluster.name, cluster_id=cluster.cluster_id)


def ensure(state: State, cluster_id: str) -> Cluster:
    """The cluster, taken as imported (there from the start) if it has no control plane of ours."""
    cluster = state.clusters.get(cluster_id)
    if cluster is None:
        cluster = state.clusters[cluster_id] = Cluster(cluster_id, cluster_id, ready_at=state.now)
    return cluster


def stand_up(state: State, cluster_id: str, standard: dict[str, int]) -> None:
    """A cluster of somebody's with these nodes, under the id that it is imported as."""
    ensure(state, cluster_id).standard = dict(standard)
    state.touch(cluster_id)


def create(state: State, cluster_id: str, name: str) -> Cluster:
    """Start a control plane, or find the one started before."""
    cluster = state.clusters.get(cluster_id)
    if cluster is not None and cluster.made and not cluster.deleted:
        return cluster
    ready_at = state.at(state.habits.control_plane_s)
    if cluster is None or cluster.deleted:
        cluster = state.clusters[cluster_id] = Cluster(cluster_id, name, ready_at, made=True)
    else:  # machines were ordered for it before
        cluster.name, cluster.ready_at, cluster.made = name, ready_at, True
    state.tell(What.CONTROL_PLANE, cluster_id=cluster_id, detail="started")
    if ready_at > state.now:
        state.plan(ready_at, "control_plane_ready", cluster_id)
    return cluster


def on_control_plane_ready(state: State, cluster_id: str) -> None:
    cluster = state.clusters.get(cluster_id)
    if cluster is not None and cluster.made and not cluster.deleted and cluster.ready_at <= state.now:
        state.tell(What.CONTROL_PLANE, cluster_id=cluster_id, detail="ready")
        state.touch(cluster_id)


def delete(state: State, cluster_id: str) -> None:
    """Take the control plane away, and with it every object that lived in it."""
    cluster = state.clusters.get(cluster_id)
    if cluster is None or cluster.deleted:
        return
    cluster.deleted = True
    cluster.nodes, cluster.late, cluster.views = {}, {}, None
    cluster.pending, cluster.budgets, cluster.outages = [], [], []
    cluster.volumes = {}
    state.tell(What.CONTROL_PLANE, cluster_id=cluster_id, detail="deleted")
    state.touch(cluster_id)


def reach(state: State, cluster_id: str, verb: str) -> Cluster:
    """The cluster as its API server; raises ClusterUnreachable where that does not answer."""
    cluster = state.clusters.get(cluster_id)
    if cluster is None or cluster.deleted:
        raise ClusterUnreachable(f"no API server answers for cluster {cluster_id}")
    if cluster.ready_at > state.now:
        raise ClusterUnreachable(f"the API server of cluster {cluster.name} is not up yet")
    if cluster.outages and any(outage.covers(state.now, verb) for outage in cluster.outages):
        raise ClusterUnreachable(f"the API server of cluster {cluster.name} does not answer")
    return cluster


def add_outage(state: State, cluster_id: str, outage: Outage) -> None:
    ensure(state, cluster_id).outages.append(outage)
    state.plan(outage.end, "outage_over", cluster_id)


def on_outage_over(state: State, cluster_id: str) -> None:
    cluster = state.clusters.get(cluster_id)
    if cluster is not None:
        cluster.outages = [outage for outage in cluster.outages if outage.end > state.now]
        state.touch(cluster_id)


def on_register(state: State, node_uid: str) -> None:
    """The machine's kubelet makes its Node object, as soon as there is an API server to take it."""
    machine = state.machines.get(node_uid)
    if machine is None or machine.power is not Power.UP:
        return
    cluster = state.clusters.get(machine.cluster_id)
    if cluster is None or cluster.deleted or node_uid in cluster.nodes:
        return
    if cluster.ready_at > state.now:
        state.plan(cluster.ready_at, "register", node_uid)
        return
    boot = machine.boot
    if isinstance(boot, NeverReady) and not boot.registers:
        return
    cluster.nodes[node_uid] = Node(node_uid, machine.node_name, machine.compute_class)
    state.tell(What.REGISTERED, cluster_id=cluster.cluster_id, node_uid=node_uid, host=machine.host_name)
    state.touch(cluster.cluster_id, node_uid)
    if isinstance(boot, Boots | GpusMissing):
        _soon(state, boot.join_s, "ready", node_uid)


def _soon(state: State, seconds: float, what: str, node_uid: str) -> None:
    state.plan(state.at(seconds), what, node_uid)


def _live(state: State, node_uid: str) -> tuple[Machine, Cluster, Node] | None:
    machine = state.machines.get(node_uid)
    if machine is None or machine.power is not Power.UP:
        return None
    cluster = state.clusters.get(machine.cluster_id)
    node = cluster.nodes.get(node_uid) if cluster else None
    return (machine, cluster, node) if cluster and node else None


def on_ready(state: State, node_uid: str) -> None:
    found = _live(state, node_uid)
    if found is None:
        return
    machine, cluster, node = found
    node.ready = True
    state.tell(What.READY, cluster_id=cluster.cluster_id, node_uid=node_uid, host=machine.host_name)
    state.touch(cluster.cluster_id, node_uid)
    if isinstance(machine.boot, Boots):
        _soon(state, machine.boot.gpus_s, "gpus_shown", node_uid)
    elif isinstance(machine.boot, GpusMissing):
        node.gpus = machine.boot.gpus
    scheduler.fill(state, cluster)


def on_gpus_shown(state: State, node_uid: str) -> None:
    found = _live(state, node_uid)
    if found is None:
        return
    machine, cluster, node = found
    node.gpus = machine.gpus
    state.tell(What.GPUS_SHOWN, cluster_id=cluster.cluster_id, node_uid=node_uid, host=machine.host_name)
    state.touch(cluster.cluster_id, node_uid)
    scheduler.fill(state, cluster)


def views(cluster: Cluster) -> tuple[NodeView, ...]:
    """Every Node object. The same tuple again as long as nothing changed."""
    if cluster.views is None:
        cluster.views = tuple(node.view or _see(node) for node in cluster.nodes.values())
    return cluster.views


def _see(node: Node) -> NodeView:
    started = [pod.bound_at for pod in node.pods.values() if pod.counts and pod.bound_at is not None]
    node.view = NodeView(
        node.uid,
        node.name,
        node.ready,
        node.gpus,
        node.cordoned,
        workload_pods=len(started),
        first_pod_at=min(started, default=None),
        deleting=node.deleting,
    )
    return node.view


def admit(state: State, cluster: Cluster, node: Node) -> None:
    """Take the initializing taint away; what waits for a node may come."""
    if node.admitted:
        return
    node.admitted = True
    state.tell(What.ADMITTED, cluster_id=cluster.cluster_id, node_uid=node.uid)
    scheduler.fill(state, cluster)


def cordon(state: State, cluster: Cluster, node: Node, cordoned: bool) -> None:
    if node.cordoned == cordoned:
        return
    node.cordoned = cordoned
    if cordoned:
        state.tell(What.CORDONED, cluster_id=cluster.cluster_id, node_uid=node.uid)
    state.touch(cluster.cluster_id, node.uid)
    if not cordoned:
        scheduler.fill(state, cluster)


def notify(state: State, cluster: Cluster, node: Node, notice: Announcement) -> None:
    """Cordon, deadline annotation, event; once per reason. A deadline that moves later is a violation."""
    cordon(state, cluster, node, True)
    earlier = [known for known in node.notices if known.reason == notice.reason]
    if any(known.deadline != notice.deadline for known in earlier):
        state.violations.append(
            f"{state.now.isoformat()}: the deadline of {node.name} moved "
            f"from {earlier[-1].deadline.isoformat()} to {notice.deadline.isoformat()} "
            f"under the same reason {notice.reason}"
        )
    if earlier:
        return
    node.notices.append(notice)
    state.tell(
        What.NOTICE,
        cluster_id=cluster.cluster_id,
        node_uid=node.uid,
        detail=f"{notice.reason} by {notice.deadline.isoformat()}: {notice.message}",
    )


def conclude(state: State, node: Node, cluster_id: str, reason: str, message: str) -> None:
    """The closing event of a drain on the Node object."""
    node.closings.append(reason)
    state.tell(What.CLOSING, cluster_id=cluster_id, node_uid=node.uid, detail=f"{reason}: {message}")


def remove(state: State, cluster: Cluster, node: Node) -> None:
    """Take the Node object away, with the pods and attachments that are left."""
    machine = state.machines.get(node.uid)
    runs = machine is not None and machine.power is Power.UP
    left = list(node.pods.values())
    if runs and any(pod.counts for pod in left):
        state.violations.append(
            f"{state.now.isoformat()}: pods of {node.name} were force-deleted while their machine still runs"
        )
    forget(state, cluster, node)
    if machine is not None and runs:
        _plan_return(state, machine)


def forget(state: State, cluster: Cluster, node: Node) -> None:
    """The Node object is gone, and its pods with it."""
    del cluster.nodes[node.uid]
    for pod in list(node.pods.values()):
        kubelet.on_taken_away(state, cluster, node, pod)
    state.tell(What.NODE_REMOVED, cluster_id=cluster.cluster_id, node_uid=node.uid)
    state.touch(cluster.cluster_id, node.uid)


def _plan_return(state: State, machine: Machine) -> None:
    for scope in (f"node:{machine.node_uid}", f"host:{machine.host_name}", f"pool:{machine.pool}", ""):
        behaviour = state.behaviours.get(scope, {}).get(Reregisters.slot)
        if isinstance(behaviour, Reregisters):
            _soon(state, behaviour.after_s, "register", machine.node_uid)
            return
