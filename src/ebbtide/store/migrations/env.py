"""Alembic's entry: migrations run on the connection that `ebbtide.store.migrate` hands over."""

from alembic import context

from ebbtide.store.tables_more import metadata  # both modules' tables

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
