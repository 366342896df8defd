"""Every table. Constraints carry the invariants: what the code must never do, the database refuses.

Instants are timestamptz, billable seconds whole epoch seconds (int8), money micro-dollars (int8). Ids are
text: UUIDs in
their canonical form, except for what the operator names (pools, regions).
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, ExcludeConstraint

from ebbtide.core.claims import ClaimKind, ClaimState
from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.hosts import HostState
from ebbtide.core.nodes import OCCUPYING, ComputeClass, DrainKind, EndReason, Phase

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

INSTANT = sa.DateTime(timezone=True)


def _one_of(column: str, values: type) -> sa.CheckConstraint:
    """The column holds a member of the enum, or null."""
    listed = ", ".join(f"'{value}'" for value in values)  # type: ignore[attr-defined]  # an enum class is iterable
    return sa.CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


def _quoted(values: frozenset[Phase]) -> str:
    return ", ".join(f"'{value}'" for value in sorted(values))


organizations = sa.Table(
    "organizations",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("created_at", INSTANT, nullable=False),
    sa.Column("disabled_at", INSTANT),  # its keys are refused; what it has goes on
)

projects = sa.Table(
    "projects",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("slug", sa.Text, nullable=False, unique=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("organization_id", sa.Text, sa.ForeignKey("organizations.id"), nullable=False),
    sa.Column("weight", sa.Integer, nullable=False, server_default="1"),
    sa.Column("standard_gpus_limit", sa.Integer),  # quotas; null: none
    sa.Column("preemptible_gpus_limit", sa.Integer),
    sa.Column("created_at", INSTANT, nullable=False),
    sa.CheckConstraint("weight > 0", name="weight_positive"),
    sa.CheckConstraint(
        "standard_gpus_limit >= 0 AND preemptible_gpus_limit >= 0", name="limits_not_negative"
    ),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("project_id", sa.Text, sa.ForeignKey("projects.id"), nullable=False, index=True),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("secret_hash", sa.Text, nullable=False, unique=True),  # SHA-256: the secret has 256 random bits
    sa.Column("hint", sa.Text, nullable=False),
    sa.Column("created_at", INSTANT, nullable=False),
    sa.Column("expires_at", INSTANT),
    sa.Column("revoked_at", INSTANT),
    sa.Column("last_used_at", INSTANT),  # to the minute
    sa.Column("name", sa.Text),
    sa.CheckConstraint("role IN ('member', 'admin', 'operator')", name="role_known"),
)

regions = sa.Table(
    "regions",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("driver_versions", JSONB, nullable=False),
    sa.Column("retired_at", INSTANT),
)

pools = sa.Table(
    "pools",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("region", sa.Text, sa.ForeignKey("regions.name"), nullable=False, index=True),
    sa.Column("gpu_type", sa.Text, nullable=False),
    sa.Column("gpus_per_host", sa.Integer, nullable=False),
    sa.Column("headroom_hosts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("turn_over_s", sa.Integer, nullable=False),
    sa.Column("boot_s", sa.Integer, nullable=False),
    sa.Column("memory_gib", sa.Integer, nullable=False),
    sa.Column("cpu_cores", sa.Integer, nullable=False),
    sa.Column("provider", sa.Text, nullable=False),
    sa.Column("wipe", sa.Text, nullable=False, server_default="always"),
    sa.Column("generation", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("created_at", INSTANT, nullable=False),
    sa.Column("retired_at", INSTANT),
    sa.CheckConstraint("gpus_per_host > 0", name="gpus_positive"),
    sa.CheckConstraint("headroom_hosts >= 0", name="headroom_not_negative"),
    sa.CheckConstraint("wipe IN ('always', 'between_projects', 'never')", name="wipe_known"),
)

hosts = sa.Table(
    "hosts",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("pool", sa.Text, sa.ForeignKey("pools.name"), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("fabric_block", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("state_reason", sa.Text),
    sa.Column("source", sa.Text, nullable=False),
    # The present occupant, so that "free" is an index scan. Written by store/nodes.move only, with the node's
    # phase.
    sa.Column("node_uid", sa.Text, unique=True),
    sa.Column("boot_failures", sa.Integer, nullable=False, server_default="0"),
    sa.Column("unwiped_project", sa.Text),  # whose data its disks still carry; null: nobody's
    sa.Column("lendable_at", INSTANT),  # not lent to preemptible before this; standard may have it at once
    sa.Column("created_at", INSTANT, nullable=False),
    sa.Column("retired_at", INSTANT),
    # What it was when it was retired, and is again when it comes back: a cordon outlives the fleet file.
    sa.Column("state_before", sa.Text),
    sa.Column("reason_before", sa.Text),
    _one_of("state", HostState),
    sa.Index("uq_hosts_name_in_use", "name", unique=True, postgresql_where=sa.text("state <> 'retired'")),
    sa.Index(
        "ix_hosts_free",
        "pool",
        "fabric_block",
        "name",
        postgresql_where=sa.text("state = 'available' AND node_uid IS NULL"),
    ),
)

clusters = sa.Table(
    "clusters",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("project_id", sa.Text, sa.ForeignKey("projects.id"), nullable=False, index=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("region", sa.Text, sa.ForeignKey("regions.name"), nullable=False),
    sa.Column("pool", sa.Text, sa.ForeignKey("pools.name"), nullable=False, index=True),
    sa.Column("gpu_type", sa.Text, nullable=False),
    sa.Column("billing_type", sa.Text, nullable=False),
    sa.Column("cluster_type", sa.Text, nullable=False),
    sa.Column("cuda_version", sa.Text, nullable=False),
    sa.Column("nvidia_driver_version", sa.Text, nullable=False),
    sa.Column("nvidia_version_id", sa.Text),
    sa.Column("echo", JSONB, nullable=False, server_default="{}"),
    sa.Column("node_group", sa.Text, nullable=False),  # the first five characters of its nodes' names
    sa.Column("gpus_per_host", sa.Integer, nullable=False),  # fixed for its life
    sa.Column("standard_hosts", sa.Integer, nullable=False),  # the wish; facts are nodes
    sa.Column("target_hosts", sa.Integer, nullable=False),  # the preemptible wish
    sa.Column("weight", sa.Integer, nullable=False, server_default="1"),
    sa.Column("phase", sa.Text, nullable=False),
    sa.Column("control_plane_ready", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("kubeconfig", sa.Text),  # sealed; what its tenant gets
    sa.Column("driver_kubeconfig", sa.Text),  # sealed; what we use ourselves; null: the tenant's
    # An imported cluster was there before us: its own nodes count as standard and are never touched.
    sa.Column("imported", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("standard_selector", sa.Text),  # imported: the labels that its standard nodes have
    sa.Column("standard_seen", JSONB),  # imported: those nodes as last seen; null: never seen
    sa.Column("import_problem", sa.Text),  # imported: why it could not be looked at last; null: it could
    sa.Column("placement", sa.Text, nullable=False, server_default="open"),
    sa.Column("warn_first_s", sa.Integer, nullable=False, server_default="0"),  # from notice to SIGTERM
    sa.Column("event_number", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("observed_until", INSTANT),  # the last time that all was seen; bills are sealed up to here
    sa.Column("fill_reason", sa.Text),
    sa.Column("fill_since", INSTANT),
    sa.Column("fill_last_try", INSTANT),
    sa.Column("fill_next_try", INSTANT),
    sa.Column("fill_backoff_until", INSTANT),
    sa.Column("created_at", INSTANT, nullable=False),
    sa.Column("first_ready_at", INSTANT),
    sa.Column("deleting_at", INSTANT),
    sa.Column("deleted_at", INSTANT),
    _one_of("phase", ClusterPhase),
    sa.CheckConstraint("standard_hosts >= 1 OR imported", name="one_standard_node"),
    sa.CheckConstraint("placement IN ('open', 'explicit')", name="placement_known"),
    sa.CheckConstraint("warn_first_s >= 0", name="warn_first_not_negative"),
    sa.CheckConstraint("target_hosts >= 0", name="target_not_negative"),
    sa.CheckConstraint("weight > 0", name="weight_positive"),
)

claims = sa.Table(
    "claims",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("no", sa.BigInteger, sa.Identity(always=True), nullable=False, unique=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("pool", sa.Text, sa.ForeignKey("pools.name"), nullable=False, index=True),
    sa.Column("cluster_id", sa.Text, sa.ForeignKey("clusters.id"), index=True),
    sa.Column("ref", sa.Text),
    sa.Column("for_whom", sa.Text, nullable=False),
    sa.Column("args_hash", sa.Text),
    sa.Column("hosts", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("created_at", INSTANT, nullable=False),
    sa.Column("served_at", INSTANT),
    sa.Column("ended_at", INSTANT),
    _one_of("kind", ClaimKind),
    _one_of("state", ClaimState),
    sa.CheckConstraint("hosts > 0", name="hosts_positive"),
    sa.Index(
        "uq_claims_ref_in_use",
        "ref",
        unique=True,
        postgresql_where=sa.text("ref IS NOT NULL AND ended_at IS NULL"),
    ),
)

nodes = sa.Table(
    "nodes",
    metadata,
    sa.Column("uid", sa.Text, primary_key=True),
    sa.Column("no", sa.BigInteger, sa.Identity(always=True), nullable=False, unique=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("cluster_id", sa.Text, sa.ForeignKey("clusters.id"), index=True),
    sa.Column("project_id", sa.Text, sa.ForeignKey("projects.id")),
    sa.Column("pool", sa.Text, sa.ForeignKey("pools.name"), nullable=False),
    sa.Column("claim_id", sa.Text, sa.ForeignKey("claims.id"), index=True),
    sa.Column("taken_for", sa.Text, sa.ForeignKey("claims.id"), index=True),  # the claim that took this node
    sa.Column("host_id", sa.Text, sa.ForeignKey("hosts.id")),
    sa.Column("compute_class", sa.Text, nullable=False),
    sa.Column("gpus", sa.Integer, nullable=False),
    sa.Column("phase", sa.Text, nullable=False),
    sa.Column("phase_since", INSTANT, nullable=False),
    sa.Column("created_at", INSTANT, nullable=False),
    sa.Column("placed_at", INSTANT),  # it got its host
    sa.Column("running_at", INSTANT),
    # The drain. `deadline` is written once with DRAINING; `ends_at` differs from it only after a late notice.
    sa.Column("drain_kind", sa.Text),
    sa.Column("draining_at", INSTANT),
    sa.Column("deadline", INSTANT),
    sa.Column("ends_at", INSTANT),
    sa.Column("signal_from", INSTANT),  # SIGTERM not before this: its cluster wants to be warned first
    sa.Column("why", sa.Text),
    sa.Column("drain_attempted_at", INSTANT),  # a worker set to work on the drain; before any outside call
    sa.Column("notified_at", INSTANT),  # cordon, annotation and event are out
    sa.Column("drain_looked_at", INSTANT),  # the first fresh read of its pods after the notice
    sa.Column("first_signal_at", INSTANT),
    sa.Column("left_at", INSTANT),  # its pods were gone, or its time was over
    sa.Column(
        "left_empty", sa.Boolean, nullable=False, server_default=sa.false()
    ),  # a fresh read saw no pods
    sa.Column("end_reason", sa.Text),
    sa.Column("removed_at", INSTANT),
    # What the outside says.
    sa.Column("instance_id", sa.Text),
    sa.Column("address", sa.Text),
    sa.Column("stopped_at", INSTANT),  # power-off confirmed
    sa.Column("concluded_at", INSTANT),  # the closing event was sent, or could not be
    sa.Column("out_of_cluster_at", INSTANT),  # no Node object left
    sa.Column("admitted_at", INSTANT),
    sa.Column("workload_pods", sa.Integer, nullable=False, server_default="0"),
    sa.Column("cordoned", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column(
        "healthy_until", INSTANT
    ),  # set while unhealthy: the last healthy observation; null means healthy
    sa.Column("restart_until", INSTANT),  # set while we restart its machine: unhealthy till then is not lost
    _one_of("phase", Phase),
    _one_of("compute_class", ComputeClass),
    _one_of("drain_kind", DrainKind),
    _one_of("end_reason", EndReason),
    sa.CheckConstraint(
        "end_reason <> 'preempted' OR compute_class = 'preemptible'", name="standard_never_preempted"
    ),
    sa.CheckConstraint("phase IN ('PENDING', 'REMOVED') OR host_id IS NOT NULL", name="has_a_host"),
    sa.CheckConstraint(
        "phase <> 'DRAINING' OR (deadline IS NOT NULL AND draining_at IS NOT NULL)", name="has_a_deadline"
    ),
    sa.CheckConstraint("ends_at >= deadline AND deadline >= draining_at", name="deadline_after_notice"),
    sa.CheckConstraint(
        "phase NOT IN ('REMOVING', 'REMOVED') OR end_reason IS NOT NULL", name="ended_with_a_reason"
    ),
    # Invariant 1: one occupant.
    sa.Index(
        "uq_nodes_one_occupant",
        "host_id",
        unique=True,
        postgresql_where=sa.text(f"phase IN ({_quoted(OCCUPYING)})"),
    ),
    sa.Index("ix_nodes_pool_live", "pool", "phase", postgresql_where=sa.text("phase <> 'REMOVED'")),
    sa.Index("ix_nodes_host", "host_id", "no"),  # who was on a host
    sa.Index("ix_nodes_cluster_live", "cluster_id", postgresql_where=sa.text("phase <> 'REMOVED'")),
    sa.Index("ix_nodes_drained", "cluster_id", "no", postgresql_where=sa.text("draining_at IS NOT NULL")),
    sa.Index(
        "ix_nodes_preemptible_left",
        "pool",
        "left_at",
        postgresql_where=sa.text("compute_class = 'preemptible'"),
    ),
    sa.Index(
        "ix_nodes_preemptible_ran",
        "pool",
        "running_at",
        postgresql_where=sa.text("compute_class = 'preemptible'"),
    ),
)

phase_transitions = sa.Table(
    "phase_transitions",
    metadata,
    sa.Column("no", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("cluster_id", sa.Text),
    sa.Column("node_uid", sa.Text),
    sa.Column("phase", sa.Text, nullable=False),
    sa.Column("at", INSTANT, nullable=False),
    sa.Index("ix_phase_transitions_node", "node_uid", postgresql_where=sa.text("node_uid IS NOT NULL")),
    sa.Index("ix_phase_transitions_cluster", "cluster_id", postgresql_where=sa.text("node_uid IS NULL")),
)

lifecycle_events = sa.Table(
    "lifecycle_events",
    metadata,
    sa.Column("cluster_id", sa.Text, sa.ForeignKey("clusters.id"), primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("node_uid", sa.Text, nullable=False),
    sa.Column("node_name", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("at", INSTANT, nullable=False),
    sa.Column("ref", sa.Text, nullable=False, server_default=""),  # tells two restarts of one node apart
    sa.UniqueConstraint("node_uid", "reason", "ref"),
)

intervals = sa.Table(
    "intervals",
    metadata,
    sa.Column("no", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("node_no", sa.BigInteger, nullable=False),
    sa.Column("node_uid", sa.Text, sa.ForeignKey("nodes.uid"), nullable=False, index=True),
    sa.Column("cluster_id", sa.Text, nullable=False),
    sa.Column("project_id", sa.Text, nullable=False),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("compute_class", sa.Text, nullable=False),
    sa.Column("gpus", sa.Integer, nullable=False),
    sa.Column("start_s", sa.BigInteger, nullable=False),
    sa.Column("end_s", sa.BigInteger),
    sa.CheckConstraint("end_s >= start_s", name="forwards"),
    # Invariant 6, without extensions: the node's number as a one-point range, its time as another.
    ExcludeConstraint(
        (sa.text("int8range(node_no, node_no, '[]')"), "&&"),
        (sa.text("int8range(start_s, end_s)"), "&&"),
        name="ex_intervals_no_overlap",
        using="gist",
    ),
    sa.Index("ix_intervals_open", "start_s", postgresql_where=sa.text("end_s IS NULL")),
    sa.Index("ix_intervals_project", "project_id", "start_s"),
)

rates = sa.Table(
    "rates",
    metadata,
    sa.Column("pool", sa.Text, sa.ForeignKey("pools.name"), primary_key=True),
    sa.Column("compute_class", sa.Text, primary_key=True),
    sa.Column("effective_from_s", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("microdollars_per_gpu_hour", sa.BigInteger, nullable=False),
    sa.CheckConstraint("microdollars_per_gpu_hour >= 0", name="not_negative"),
)

# What is not derivable from intervals and rates: credits and corrections, each once by its reference.
ledger_entries = sa.Table(
    "ledger_entries",
    metadata,
    sa.Column("no", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("ref", sa.Text, nullable=False, unique=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("project_id", sa.Text, nullable=False, index=True),
    sa.Column("cluster_id", sa.Text, nullable=False),
    sa.Column("node_uid", sa.Text),
    sa.Column("gpu_seconds", sa.BigInteger, nullable=False),
    # Null: not priced yet. Credits are negative.
    sa.Column("microdollars", sa.BigInteger),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("at", INSTANT, nullable=False),
    sa.CheckConstraint("kind IN ('credit', 'correction')", name="kind_known"),
)

visits = sa.Table(
    "visits",
    metadata,
    sa.Column("loop", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("cluster_id", sa.Text),  # for the cap per cluster
    sa.Column("urgent", sa.Boolean, nullable=False, server_default=sa.false()),  # draining: claimed first
    sa.Column("due_at", INSTANT),  # null: settled
    sa.Column("hints", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("lease_owner", sa.Text),
    sa.Column("lease_until", INSTANT),
    sa.Column("fence", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
    sa.Column("outcome", sa.Text),
    sa.Column("outcome_at", INSTANT),
    sa.Index(
        "ix_visits_due",
        "loop",
        sa.text("urgent DESC"),
        "due_at",
        postgresql_where=sa.text("due_at IS NOT NULL"),
    ),
)

create_requests = sa.Table(
    "create_requests",
    metadata,
    sa.Column("no", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("key_id", sa.Text, nullable=False),
    sa.Column("token", sa.Text),
    sa.Column("body_hash", sa.Text, nullable=False),
    sa.Column("cluster_id", sa.Text, nullable=False),
    sa.Column("at", INSTANT, nullable=False),
    sa.Index(
        "uq_create_requests_token",
        "key_id",
        "token",
        unique=True,
        postgresql_where=sa.text("token IS NOT NULL"),
    ),
    sa.Index("ix_create_requests_body", "key_id", "body_hash", "at"),
)

# One row for each life of a worker process. A row without `stopped_at` whose heartbeat is old was killed.
worker_runs = sa.Table(
    "worker_runs",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("started_at", INSTANT, nullable=False),
    sa.Column("seen_at", INSTANT, nullable=False),
    sa.Column("stopped_at", INSTANT),
    sa.Column("ended_how", sa.Text),  # "stopped", or "killed" as found by a later start
)
