"""Keys of cases may be longer than an index of Postgres takes; that they are unique is checked when they come."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("evaluation_cases") as table:
        table.drop_constraint("evaluation_cases_key", type_="unique")


def downgrade() -> None:
    with op.batch_alter_table("evaluation_cases") as table:
        table.create_unique_constraint("evaluation_cases_key", ["evaluation_id", "key"])
