"""listings that go on

Revision ID: 0003
Revises: 0002
Create Date: 2026-12-02

"""
from alembic import op
import sqlalchemy as sa


# revision identifiers, used by Alembic.
revision = '0003'
down_revision = '0002'
branch_labels = None
depends_on = None


def upgrade():
    op.create_table('webhook_listed',
    sa.Column('listing', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), autoincrement=False, nullable=False),
    sa.Column('n', sa.Integer(), autoincrement=False, nullable=False),
    sa.Column('account', sa.String(length=255), nullable=False),
    sa.Column('kind', sa.String(length=255), nullable=False),
    sa.Column('key', sa.String(length=255), nullable=False),
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('path', sa.Text(), nullable=False),
    sa.Column('version', sa.String(length=255), nullable=True),
    sa.Column('digest', sa.String(length=64), nullable=True),
    sa.Column('fresh_after', sa.DateTime(timezone=True), nullable=True),
    sa.Column('listed_at', sa.DateTime(timezone=True), nullable=True),
    sa.PrimaryKeyConstraint('listing', 'n', name='pk_webhook_listed')
    )


def downgrade():
    op.drop_table('webhook_listed')
