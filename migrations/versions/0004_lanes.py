"""claims are shared by accounts

Revision ID: 0004
Revises: 0003
Create Date: 2026-12-02

"""
from alembic import op
import sqlalchemy as sa


# revision identifiers, used by Alembic.
revision = '0004'
down_revision = '0003'
branch_labels = None
depends_on = None


INDEX = 'ix_webhook_events_lanes'
PENDING = sa.text("state BETWEEN 'pending' AND 'pending'")


def upgrade():
    columns = ['endpoint', 'account', 'due_at']
    context = op.get_context()
    if context.dialect.name != 'postgresql':
        op.create_index(INDEX, 'webhook_events', columns, sqlite_where=PENDING)
        return
    # Beside the deliveries that come in: see CONTRIBUTING. One that was cut short left an index that is not valid.
    with context.autocommit_block():
        op.execute("SET lock_timeout = '30s'")
        op.drop_index(INDEX, table_name='webhook_events', if_exists=True, postgresql_concurrently=True)
        op.create_index(
            INDEX, 'webhook_events', columns, postgresql_where=PENDING, postgresql_concurrently=True
        )
        op.execute('RESET lock_timeout')


def downgrade():
    op.drop_index(INDEX, table_name='webhook_events')
