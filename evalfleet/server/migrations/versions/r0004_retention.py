"""Pruning old runs: which chats an evaluation holds, and which key made a run."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("evaluation_chats_chat", "evaluation_chats", ["chat_id"])
    op.create_index("idempotency_location", "idempotency", ["location"])


def downgrade() -> None:
    op.drop_index("idempotency_location", "idempotency")
    op.drop_index("evaluation_chats_chat", "evaluation_chats")
