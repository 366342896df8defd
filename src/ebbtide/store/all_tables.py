"""The metadata of all tables. A module of tables that is not imported here is not migrated."""

from __future__ import annotations

from ebbtide.store import tables, tables_instances, tables_more, tables_operator, tables_receipts

metadata = tables.metadata

__all__ = ["metadata", "tables", "tables_instances", "tables_more", "tables_operator", "tables_receipts"]
