"""Alembic's environment, as `flask db …` runs it: the app's own engine and metadata."""

from __future__ import annotations

from alembic import context
from flask import current_app
from sqlalchemy import MetaData

db = current_app.extensions["migrate"].db
metadata: MetaData = db.metadata


def run_offline() -> None:
    """Write the SQL instead of running it (`flask db upgrade --sql`)."""
    context.configure(
        url=db.engine.url.render_as_string(hide_password=False), target_metadata=metadata, literal_binds=True
    )
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    """Run within one transaction where the database can; a revision that must not, leaves it by `autocommit_block`."""
    with db.engine.connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=metadata,
            render_as_batch=connection.dialect.name == "sqlite",
        )
        with context.begin_transaction():
            context.run_migrations()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
