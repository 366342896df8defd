"""More tables: storage, remediations, webhooks, the audit log.

Same rules as in `tables`, whose metadata they share.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from ebbtide.store.tables import INSTANT, metadata

__all__ = [
    "audit_log",
    "metadata",
    "remediations",
    "volumes",
    "webhook_deliveries",
    "webhooks",
]

volumes = sa.Table(
    "volumes",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("project_id", sa.Text, sa.ForeignKey("projects.id"), nullable=False),
    sa.Column("region", sa.Text, sa.ForeignKey("regions.name"), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("size_tib", sa.Integer, nullable=False),  # the wish; `provisioned_tib` is the fact
    sa.Column("provisioned_tib", sa.Integer, nullable=False, server_default="0"),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("cluster_id", sa.Text, sa.ForeignKey("clusters.id"), index=True),  # attached to
    sa.Column("made_with_cluster", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("is_lifecycle_independent", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("handle", sa.Text),  # the storage system's own name for it
    sa.Column("shown_tib", sa.Integer),  # the size of its PersistentVolume in the cluster; null: none there
    sa.Column("why", sa.Text),
    sa.Column("created_at", INSTANT, nullable=False),
    sa.Column("deleted_at", INSTANT),
    sa.CheckConstraint("size_tib >= 1", name="size_positive"),
    sa.CheckConstraint(
        "status IN ('scheduled', 'provisioning', 'available', 'bound', 'deleting', 'failed')",
        name="status_known",
    ),
    sa.Index(
        "uq_volumes_name_in_use",
        "project_id",
        "name",
        unique=True,
        postgresql_where=sa.text("deleted_at IS NULL"),
    ),
)

remediations = sa.Table(
    "remediations",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("no", sa.BigInteger, sa.Identity(always=True), nullable=False, unique=True),
    sa.Column("cluster_id", sa.Text, sa.ForeignKey("clusters.id"), nullable=False, index=True),
    sa.Column("node_uid", sa.Text, sa.ForeignKey("nodes.uid"), nullable=False, index=True),
    sa.Column("instance_id", sa.Text, nullable=False),
    sa.Column("instance_name", sa.Text, nullable=False),
    sa.Column("mode", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("trigger", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("requested_by", sa.Text),
    sa.Column("reviewed_by", sa.Text),
    sa.Column("review_comment", sa.Text),
    sa.Column("error_message", sa.Text),
    sa.Column("linked_alerts", JSONB, nullable=False, server_default="[]"),
    sa.Column("created_at", INSTANT, nullable=False),
    sa.Column("started_at", INSTANT),
    sa.Column("reviewed_at", INSTANT),
    sa.Column("updated_at", INSTANT, nullable=False),
    sa.Column("ended_at", INSTANT),
    # Of a restart in place: until when pods are asked politely, and when the machine was sent down.
    sa.Column("deadline", INSTANT),
    sa.Column("restarted_at", INSTANT),
    # One at a time per node: two that restart each other's machine would never end.
    sa.Index(
        "uq_remediations_open",
        "node_uid",
        unique=True,
        postgresql_where=sa.text("state IN ('PENDING_APPROVAL', 'PENDING', 'RUNNING', 'QUARANTINING')"),
    ),
)

webhooks = sa.Table(
    "webhooks",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("project_id", sa.Text, sa.ForeignKey("projects.id"), nullable=False, index=True),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("secret", sa.Text, nullable=False),  # sealed
    sa.Column("reasons", JSONB),  # null: every reason
    sa.Column("created_at", INSTANT, nullable=False),
    sa.Column("deleted_at", INSTANT),
)

webhook_deliveries = sa.Table(
    "webhook_deliveries",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),  # the same for every try
    sa.Column("no", sa.BigInteger, sa.Identity(always=True), nullable=False, unique=True),
    sa.Column("webhook_id", sa.Text, sa.ForeignKey("webhooks.id"), nullable=False),
    sa.Column("cluster_id", sa.Text, nullable=False),
    sa.Column("event_number", sa.BigInteger, nullable=False),
    sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
    sa.Column("next_try_at", INSTANT),  # null: delivered or given up
    sa.Column("last_answer", sa.Text),
    sa.Column("created_at", INSTANT, nullable=False),
    sa.Column("delivered_at", INSTANT),
    sa.UniqueConstraint("webhook_id", "cluster_id", "event_number"),
    sa.Index(
        "ix_webhook_deliveries_due",
        "webhook_id",
        "next_try_at",
        postgresql_where=sa.text("next_try_at IS NOT NULL"),
    ),
)

audit_log = sa.Table(
    "audit_log",
    metadata,
    sa.Column("no", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("at", INSTANT, nullable=False),
    sa.Column("key_id", sa.Text),  # null: the system itself
    sa.Column("project_id", sa.Text),  # the key's
    sa.Column("of_project_id", sa.Text),  # whose thing it is; null: nobody's but the operator's
    sa.Column("role", sa.Text),
    sa.Column("request_id", sa.Text),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("before", JSONB),
    sa.Column("after", JSONB),
    sa.Index("ix_audit_log_project", "project_id", "no"),
    sa.Index("ix_audit_log_of_project", "of_project_id", "no"),
    sa.Index("ix_audit_log_at", "at"),
)
