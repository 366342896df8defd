"""Alembic's entry: migrations run on the connection that `ebbtide.store.migrate` hands over."""

from alembic import context

from ebbtide.store.all_tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
