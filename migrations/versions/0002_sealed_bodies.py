"""sealed bodies

Revision ID: 0002
Revises: 0001
Create Date: 2026-12-02

Says of each body which key it is encrypted with; null: none. The columns have no default, so no row is written, and the
lock that adding them takes is not waited for longer than deliveries may be held up: see CONTRIBUTING.
"""
import time

from alembic import op
import sqlalchemy as sa


# revision identifiers, used by Alembic.
revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None

TABLES = ('webhook_bodies', 'webhook_rejections')


def upgrade():
    context = op.get_context()
    if context.dialect.name != 'postgresql' or context.as_sql:
        for table in TABLES:
            op.add_column(table, sa.Column('sealed', sa.String(length=12), nullable=True))
        return
    with context.autocommit_block():
        op.execute("SET lock_timeout = '500ms'")
        for table in TABLES:
            _patiently(f'ALTER TABLE {table} ADD COLUMN IF NOT EXISTS sealed VARCHAR(12)')
        op.execute('RESET lock_timeout')


def downgrade():
    for table in TABLES:
        sealed = sa.table(table, sa.column('sealed'))
        if not op.get_context().as_sql and op.get_bind().scalar(
            sa.select(sa.func.count()).select_from(sealed).where(sealed.c.sealed.is_not(None))
        ):
            raise RuntimeError(
                f'{table} holds sealed bodies: run `flask webhooks reencrypt --plain`, remove WEBHOOKS_BODY_KEYS, '
                'then downgrade'
            )
    for table in TABLES:
        with op.batch_alter_table(table) as batch:
            batch.drop_column('sealed')


def _patiently(statement):
    """Run it as soon as nobody holds the table; whoever comes meanwhile waits half a second at most."""
    for _ in range(120):
        try:
            op.execute(statement)
            return
        except sa.exc.OperationalError as error:
            if getattr(error.orig, 'sqlstate', None) != '55P03':  # lock not available
                raise
            time.sleep(0.5)
    raise RuntimeError(f'the table was in use for a minute; try again later: {statement}')
