"""claims are shared by accounts

Revision ID: 0002
Revises: 0001
Create Date: 2026-12-02

"""
from alembic import op
import sqlalchemy as sa


# revision identifiers, used by Alembic.
revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None


def upgrade():
    op.create_index('ix_webhook_events_lanes', 'webhook_events', ['endpoint', 'account', 'due_at'], unique=False, postgresql_where=sa.text("state BETWEEN 'pending' AND 'pending'"), sqlite_where=sa.text("state BETWEEN 'pending' AND 'pending'"))


def downgrade():
    op.drop_index('ix_webhook_events_lanes', table_name='webhook_events', postgresql_where=sa.text("state BETWEEN 'pending' AND 'pending'"), sqlite_where=sa.text("state BETWEEN 'pending' AND 'pending'"))
