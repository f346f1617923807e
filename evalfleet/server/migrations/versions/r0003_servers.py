"""Several servers on one database: who they are, and whose a run is. Token counts of 64 bits in Postgres."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_WIDE = {
    "runs": ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "judge_tokens"),
    "evaluations": ("tokens",),
}


def upgrade() -> None:
    op.create_table(
        "servers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=True),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Text(), nullable=False),
        sa.Column("seen", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.add_column("runs", sa.Column("owner", sa.Text(), nullable=True))
    if op.get_context().dialect.name == "postgresql":  # SQLite's integers have 64 bits in any case
        for table, columns in _WIDE.items():
            for column in columns:
                op.alter_column(table, column, type_=sa.BigInteger(), existing_nullable=False)


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        for table, columns in _WIDE.items():
            for column in columns:
                op.alter_column(table, column, type_=sa.Integer(), existing_nullable=False)
    op.drop_column("runs", "owner")
    op.drop_table("servers")
