"""Tables of what is told afterwards: each pod's part in a drain, and when a cluster's target changed.

Same rules as in `tables`, whose metadata they share. Kept as long as invoices need them: no loop clears them.
"""

from __future__ import annotations

import sqlalchemy as sa

from ebbtide.store.tables import INSTANT, metadata

__all__ = ["drain_pods", "metadata", "target_changes"]

drain_pods = sa.Table(
    "drain_pods",
    metadata,
    sa.Column("node_uid", sa.Text, sa.ForeignKey("nodes.uid"), primary_key=True),
    sa.Column("pod_uid", sa.Text, primary_key=True),
    sa.Column("namespace", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("first_seen_at", INSTANT, nullable=False),
    sa.Column("arrived", sa.Boolean, nullable=False),  # not there at the first look: it came after the notice
    sa.Column("tolerates", sa.Boolean, nullable=False),  # a cordon does not keep it away
    sa.Column("grace_asked_s", sa.Integer, nullable=False),
    # Written before it is sent, and again as long as the pod is seen untold: a crash between leaves no gap.
    sa.Column("told_at", INSTANT),
    sa.Column("told_by", sa.Text),
    sa.Column("grace_given_s", sa.Integer),
    sa.Column("shortened_to_s", sa.Integer),  # told again with less, because it would have ended too late
    sa.Column("refused", sa.Text),  # the last budget that refused its eviction, in the cluster's words
    sa.Column("overrode", sa.Text),  # the budget that was not asked, NAMESPACE/NAME
    sa.Column("gone_at", INSTANT),  # the first fresh read without it
    sa.Column("killed", sa.Boolean, nullable=False, server_default=sa.false()),  # still there at the end
    sa.CheckConstraint("told_by IN ('signal', 'eviction', 'others')", name="told_by_known"),
    sa.CheckConstraint(
        "(told_at IS NULL) = (COALESCE(told_by, 'others') = 'others')", name="told_by_somebody"
    ),
    sa.CheckConstraint("gone_at IS NULL OR NOT killed AND gone_at >= first_seen_at", name="ended_once"),
)

# A row for each change of a cluster's preemptible target: with it, how long targets take to be met.
target_changes = sa.Table(
    "target_changes",
    metadata,
    sa.Column("no", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("cluster_id", sa.Text, sa.ForeignKey("clusters.id"), nullable=False),
    sa.Column("hosts", sa.Integer, nullable=False),
    sa.Column("at", INSTANT, nullable=False),
    sa.Index("ix_target_changes_cluster", "cluster_id", "at"),
)
