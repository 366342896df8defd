"""imported clusters, our own way in, wiping, two restarts of one node"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from ebbtide.errors import Conflict

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def _check(table: str, name: str, condition: str) -> None:
    """Replace a check: what it allows is compared by nobody but the database."""
    op.drop_constraint(op.f(name), table, type_="check")
    op.create_check_constraint(op.f(name), table, condition)


def _receipts_up() -> None:
    """Each pod's part in a drain, warnings before SIGTERM, and how long targets take."""
    instant = sa.DateTime(timezone=True)
    op.add_column("clusters", sa.Column("warn_first_s", sa.Integer(), server_default="0", nullable=False))
    op.create_check_constraint(op.f("ck_clusters_warn_first_not_negative"), "clusters", "warn_first_s >= 0")
    for name in ("signal_from", "drain_looked_at", "concluded_at"):
        op.add_column("nodes", sa.Column(name, instant, nullable=True))
    op.create_index(
        "ix_nodes_drained",
        "nodes",
        ["cluster_id", "no"],
        postgresql_where=sa.text("draining_at IS NOT NULL"),
    )
    for name, column in (("ran", "running_at"), ("left", "left_at")):
        op.create_index(
            f"ix_nodes_preemptible_{name}",
            "nodes",
            ["pool", column],
            postgresql_where=sa.text("compute_class = 'preemptible'"),
        )
    op.create_table(
        "drain_pods",
        sa.Column("node_uid", sa.Text(), nullable=False),
        sa.Column("pod_uid", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("first_seen_at", instant, nullable=False),
        sa.Column("arrived", sa.Boolean(), nullable=False),
        sa.Column("tolerates", sa.Boolean(), nullable=False),
        sa.Column("grace_asked_s", sa.Integer(), nullable=False),
        sa.Column("told_at", instant, nullable=True),
        sa.Column("told_by", sa.Text(), nullable=True),
        sa.Column("grace_given_s", sa.Integer(), nullable=True),
        sa.Column("shortened_to_s", sa.Integer(), nullable=True),
        sa.Column("refused", sa.Text(), nullable=True),
        sa.Column("overrode", sa.Text(), nullable=True),
        sa.Column("gone_at", instant, nullable=True),
        sa.Column("killed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.CheckConstraint(
            "told_by IN ('signal', 'eviction', 'others')", name=op.f("ck_drain_pods_told_by_known")
        ),
        sa.CheckConstraint(
            "(told_at IS NULL) = (COALESCE(told_by, 'others') = 'others')",
            name=op.f("ck_drain_pods_told_by_somebody"),
        ),
        sa.CheckConstraint(
            "gone_at IS NULL OR NOT killed AND gone_at >= first_seen_at",
            name=op.f("ck_drain_pods_ended_once"),
        ),
        sa.ForeignKeyConstraint(["node_uid"], ["nodes.uid"], name=op.f("fk_drain_pods_node_uid")),
        sa.PrimaryKeyConstraint("node_uid", "pod_uid", name=op.f("pk_drain_pods")),
    )
    op.create_table(
        "target_changes",
        sa.Column("no", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("hosts", sa.Integer(), nullable=False),
        sa.Column("at", instant, nullable=False),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.id"], name=op.f("fk_target_changes_cluster_id")),
        sa.PrimaryKeyConstraint("no", name=op.f("pk_target_changes")),
    )
    op.create_index("ix_target_changes_cluster", "target_changes", ["cluster_id", "at"])


def _receipts_down() -> None:
    op.drop_index("ix_target_changes_cluster", table_name="target_changes")
    op.drop_table("target_changes")
    op.drop_table("drain_pods")
    for name in ("left", "ran"):
        op.drop_index(f"ix_nodes_preemptible_{name}", table_name="nodes")
    op.drop_index("ix_nodes_drained", table_name="nodes")
    for name in ("concluded_at", "drain_looked_at", "signal_from"):
        op.drop_column("nodes", name)
    op.drop_constraint(op.f("ck_clusters_warn_first_not_negative"), "clusters", type_="check")
    op.drop_column("clusters", "warn_first_s")


def _instances_up() -> None:
    """Machines that the operator's programs make, and who wiped which host."""
    instant = sa.DateTime(timezone=True)
    op.create_table(
        "instances",
        sa.Column("node_uid", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("host_name", sa.Text(), nullable=False),
        sa.Column("facts", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("join_data", sa.Text(), nullable=True),
        sa.Column("handle", sa.Text(), nullable=True),
        sa.Column("instance_id", sa.Text(), server_default="", nullable=False),
        sa.Column("address", sa.Text(), server_default="", nullable=False),
        sa.Column("state", sa.Text(), nullable=True),
        sa.Column("wiped_first_by", sa.Text(), nullable=True),
        sa.Column("held_until", instant, nullable=True),
        sa.Column("verb", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("output", sa.Text(), server_default="", nullable=False),
        sa.Column("ran_at", instant, nullable=True),
        sa.Column("created_at", instant, nullable=False),
        sa.Column("gone_at", instant, nullable=True),
        sa.Column("wiped_by", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("node_uid", name=op.f("pk_instances")),
    )
    op.create_index(
        "ix_instances_gone_at", "instances", ["gone_at"], postgresql_where=sa.text("gone_at IS NOT NULL")
    )
    op.create_table(
        "host_wipes",
        sa.Column("no", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("host_id", sa.Text(), nullable=False),
        sa.Column("node_uid", sa.Text(), nullable=False),
        sa.Column("moment", sa.Text(), nullable=False),
        sa.Column("wiped_by", sa.Text(), nullable=False),
        sa.Column("at", instant, nullable=False),
        sa.CheckConstraint("moment IN ('before', 'after')", name=op.f("ck_host_wipes_moment_known")),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name=op.f("fk_host_wipes_host_id")),
        sa.ForeignKeyConstraint(["node_uid"], ["nodes.uid"], name=op.f("fk_host_wipes_node_uid")),
        sa.PrimaryKeyConstraint("no", name=op.f("pk_host_wipes")),
        sa.UniqueConstraint("node_uid", "moment", name=op.f("uq_host_wipes_node_uid_moment")),
    )
    op.create_index(op.f("ix_host_wipes_host_id"), "host_wipes", ["host_id"], unique=False)


def _instances_down() -> None:
    op.drop_index(op.f("ix_host_wipes_host_id"), table_name="host_wipes")
    op.drop_table("host_wipes")
    op.drop_index("ix_instances_gone_at", table_name="instances")
    op.drop_table("instances")


def upgrade() -> None:
    # ### commands auto generated by Alembic - please adjust! ###
    _organizations()
    _operators_tables()
    op.add_column("clusters", sa.Column("driver_kubeconfig", sa.Text(), nullable=True))
    op.add_column(
        "clusters", sa.Column("imported", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )
    op.add_column("clusters", sa.Column("standard_selector", sa.Text(), nullable=True))
    op.add_column(
        "clusters", sa.Column("standard_seen", postgresql.JSONB(astext_type=sa.Text()), nullable=True)
    )
    op.add_column("clusters", sa.Column("import_problem", sa.Text(), nullable=True))
    op.add_column("clusters", sa.Column("placement", sa.Text(), server_default="open", nullable=False))
    op.add_column("hosts", sa.Column("unwiped_project", sa.Text(), nullable=True))
    op.add_column("lifecycle_events", sa.Column("ref", sa.Text(), server_default="", nullable=False))
    op.drop_constraint(op.f("uq_lifecycle_events_node_uid_reason"), "lifecycle_events", type_="unique")
    op.create_unique_constraint(
        op.f("uq_lifecycle_events_node_uid_reason_ref"), "lifecycle_events", ["node_uid", "reason", "ref"]
    )
    op.add_column("pools", sa.Column("wipe", sa.Text(), server_default="always", nullable=False))
    # ### end Alembic commands ###
    _receipts_up()
    _instances_up()
    _check("clusters", "ck_clusters_one_standard_node", "standard_hosts >= 1 OR imported")
    op.create_check_constraint(
        op.f("ck_clusters_placement_known"), "clusters", "placement IN ('open', 'explicit')"
    )
    op.create_check_constraint(
        op.f("ck_pools_wipe_known"), "pools", "wipe IN ('always', 'between_projects', 'never')"
    )


def _organizations() -> None:
    """Organisations become rows. Two of one name were possible before; the name gets its id's beginning then."""
    op.create_table(
        "organizations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_organizations")),
        sa.UniqueConstraint("name", name=op.f("uq_organizations_name")),
    )
    op.execute("""
        INSERT INTO organizations (id, name, created_at)
        SELECT id, CASE WHEN row_number() OVER (PARTITION BY name ORDER BY created_at, id) = 1 THEN name
                        ELSE name || ' ' || left(id, 8) END, created_at
        FROM (SELECT organization_id AS id, min(organization_name) AS name, min(created_at) AS created_at
              FROM projects GROUP BY organization_id) AS o
    """)
    op.create_foreign_key(
        op.f("fk_projects_organization_id"), "projects", "organizations", ["organization_id"], ["id"]
    )
    op.drop_column("projects", "organization_name")


def _operators_tables() -> None:
    op.add_column("audit_log", sa.Column("of_project_id", sa.Text(), nullable=True))
    op.create_index("ix_audit_log_of_project", "audit_log", ["of_project_id", "no"])
    op.create_index("ix_audit_log_at", "audit_log", ["at"])
    op.create_index("ix_nodes_host", "nodes", ["host_id", "no"])
    op.add_column("hosts", sa.Column("state_before", sa.Text(), nullable=True))
    op.add_column("hosts", sa.Column("reason_before", sa.Text(), nullable=True))
    op.create_table(
        "maintenances",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("no", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("host_id", sa.Text(), nullable=False),
        sa.Column("claim_id", sa.Text(), nullable=False),
        sa.Column("node_uid", sa.Text(), nullable=False),
        sa.Column("disturbed", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("began_by", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_how", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "ended_how IN ('returned', 'removed')", name=op.f("ck_maintenances_ended_how_known")
        ),
        sa.CheckConstraint(
            "(ended_at IS NULL) = (ended_how IS NULL)", name=op.f("ck_maintenances_ended_somehow")
        ),
        sa.ForeignKeyConstraint(["claim_id"], ["claims.id"], name=op.f("fk_maintenances_claim_id")),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name=op.f("fk_maintenances_host_id")),
        sa.ForeignKeyConstraint(["node_uid"], ["nodes.uid"], name=op.f("fk_maintenances_node_uid")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_maintenances")),
        sa.UniqueConstraint("no", name=op.f("uq_maintenances_no")),
        sa.UniqueConstraint("node_uid", name=op.f("uq_maintenances_node_uid")),
    )
    op.create_index("ix_maintenances_host", "maintenances", ["host_id", "no"])
    op.create_index(
        "uq_maintenances_one_at_a_time",
        "maintenances",
        ["host_id"],
        unique=True,
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "stored_settings",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("changed_by", sa.Text(), nullable=True),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_stored_settings")),
    )


def _without_operators_tables() -> None:
    op.drop_table("stored_settings")
    op.drop_table("maintenances")
    op.drop_column("hosts", "reason_before")
    op.drop_column("hosts", "state_before")
    op.drop_index("ix_nodes_host", table_name="nodes")
    op.drop_index("ix_audit_log_at", table_name="audit_log")
    op.drop_index("ix_audit_log_of_project", table_name="audit_log")
    op.drop_column("audit_log", "of_project_id")


def _without_organizations() -> None:
    op.add_column("projects", sa.Column("organization_name", sa.Text(), nullable=True))
    op.execute("""
        UPDATE projects p SET organization_name = o.name FROM organizations o WHERE o.id = p.organization_id
    """)
    op.alter_column("projects", "organization_name", nullable=False)
    op.drop_constraint(op.f("fk_projects_organization_id"), "projects", type_="foreignkey")
    op.drop_table("organizations")


def _what_the_old_schema_cannot_hold() -> None:
    """Raise Conflict while there are imported clusters: without their kubeconfigs nobody could let go of them."""
    live = op.get_bind().execute(
        sa.text("SELECT name FROM clusters WHERE imported AND phase <> 'DELETED' ORDER BY name")
    )
    if names := [str(row.name) for row in live]:
        raise Conflict(
            f"version 0003 knows no imported clusters; detach them first, with `ebbtide clusters delete`: "
            f"{', '.join(names)}"
        )
    # Detached ones stay for their bills, as clusters of one standard node that are gone.
    op.execute("UPDATE clusters SET standard_hosts = 1 WHERE imported AND standard_hosts < 1")
    # Of a node's events of one reason only the first can stay: what told of its later restarts is deleted.
    op.execute("""
        DELETE FROM lifecycle_events later USING lifecycle_events first
        WHERE later.node_uid = first.node_uid AND later.reason = first.reason AND later.number > first.number
    """)


def downgrade() -> None:
    _what_the_old_schema_cannot_hold()
    _instances_down()
    _receipts_down()
    op.drop_constraint(op.f("ck_pools_wipe_known"), "pools", type_="check")
    op.drop_constraint(op.f("ck_clusters_placement_known"), "clusters", type_="check")
    _check("clusters", "ck_clusters_one_standard_node", "standard_hosts >= 1")
    # ### commands auto generated by Alembic - please adjust! ###
    op.drop_column("pools", "wipe")
    op.drop_constraint(op.f("uq_lifecycle_events_node_uid_reason_ref"), "lifecycle_events", type_="unique")
    op.create_unique_constraint(
        op.f("uq_lifecycle_events_node_uid_reason"),
        "lifecycle_events",
        ["node_uid", "reason"],
        postgresql_nulls_not_distinct=False,
    )
    op.drop_column("lifecycle_events", "ref")
    op.drop_column("hosts", "unwiped_project")
    op.drop_column("clusters", "placement")
    op.drop_column("clusters", "import_problem")
    op.drop_column("clusters", "standard_seen")
    op.drop_column("clusters", "standard_selector")
    op.drop_column("clusters", "imported")
    op.drop_column("clusters", "driver_kubeconfig")
    # ### end Alembic commands ###
    _without_operators_tables()
    _without_organizations()
