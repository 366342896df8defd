"""Tables of the operator's day: hosts in maintenance, and settings that were changed at run time.

Same rules as in `tables`, whose metadata they share.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from ebbtide.store.tables import INSTANT, metadata

__all__ = ["maintenances", "metadata", "stored_settings"]

# One row for each time that a host is taken out of use to be worked on. The node of class `maintenance` that
# waits for the host, and then holds it, is `node_uid`; while it waits it has no host_id, so the host is named
# here.
maintenances = sa.Table(
    "maintenances",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("no", sa.BigInteger, sa.Identity(always=True), nullable=False, unique=True),
    sa.Column("host_id", sa.Text, sa.ForeignKey("hosts.id"), nullable=False),
    sa.Column("claim_id", sa.Text, sa.ForeignKey("claims.id"), nullable=False),
    sa.Column("node_uid", sa.Text, sa.ForeignKey("nodes.uid"), nullable=False, unique=True),
    sa.Column("disturbed", JSONB, nullable=False),  # uids of the nodes that had to go for it
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("until", INSTANT),  # when it should be over, as far as the operator knows; nothing happens then
    sa.Column("began_by", sa.Text),  # the key
    sa.Column("created_at", INSTANT, nullable=False),
    sa.Column("ended_at", INSTANT),
    sa.Column("ended_how", sa.Text),
    sa.CheckConstraint("ended_how IN ('returned', 'removed')", name="ended_how_known"),
    sa.CheckConstraint("(ended_at IS NULL) = (ended_how IS NULL)", name="ended_somehow"),
    sa.Index(
        "uq_maintenances_one_at_a_time",
        "host_id",
        unique=True,
        postgresql_where=sa.text("ended_at IS NULL"),
    ),
    sa.Index("ix_maintenances_host", "host_id", "no"),
)

# What differs from the environment of the processes, for all of them.
stored_settings = sa.Table(
    "stored_settings",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", JSONB, nullable=False),
    sa.Column("changed_by", sa.Text),  # the key
    sa.Column("changed_at", INSTANT, nullable=False),
)
