"""More tables: machines that programs of the operator's make, and the wipes of hosts.

Same rules as in `tables`, whose metadata they share.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from ebbtide.store.tables import INSTANT, metadata

__all__ = ["host_wipes", "instances", "metadata"]

# What the provider `exec` remembers of a node's machine. No key to `nodes`: a program may list machines of
# nodes that the ledger never had.
instances = sa.Table(
    "instances",
    metadata,
    sa.Column("node_uid", sa.Text, primary_key=True),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("host_name", sa.Text, nullable=False),
    sa.Column("facts", JSONB, nullable=False),  # its order, without the join data
    sa.Column("join_data", sa.Text),  # sealed
    sa.Column("handle", sa.Text),
    sa.Column("instance_id", sa.Text, nullable=False, server_default=""),
    sa.Column("address", sa.Text, nullable=False, server_default=""),
    sa.Column("state", sa.Text),  # as last answered
    sa.Column("wiped_first_by", sa.Text),  # what wiped the host before this machine started
    sa.Column("held_until", INSTANT),  # a program runs for it until then at the latest; null: none does
    # The last run: which program, how it ended, the last of its standard error.
    sa.Column("verb", sa.Text),
    sa.Column("exit_code", sa.Integer),  # null with a verb: it took too long
    sa.Column("output", sa.Text, nullable=False, server_default=""),
    sa.Column("ran_at", INSTANT),
    sa.Column("created_at", INSTANT, nullable=False),
    sa.Column("gone_at", INSTANT),
    sa.Column("wiped_by", sa.Text, nullable=False, server_default=""),
    sa.Index("ix_instances_gone_at", "gone_at", postgresql_where=sa.text("gone_at IS NOT NULL")),
)

# Who wiped which host when: after a node left it, or before the next one started.
host_wipes = sa.Table(
    "host_wipes",
    metadata,
    sa.Column("no", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("host_id", sa.Text, sa.ForeignKey("hosts.id"), nullable=False, index=True),
    sa.Column("node_uid", sa.Text, sa.ForeignKey("nodes.uid"), nullable=False),
    sa.Column("moment", sa.Text, nullable=False),
    sa.Column("wiped_by", sa.Text, nullable=False),
    sa.Column("at", INSTANT, nullable=False),
    sa.CheckConstraint("moment IN ('before', 'after')", name="moment_known"),
    sa.UniqueConstraint("node_uid", "moment"),
)
