"""The first shape: installation, harnesses, chats, runs and their rows, keys, evaluations."""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "attempts",
        sa.Column("evaluation_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt_index", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("chat_id", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("judge_score", sa.Text(), nullable=True),
        sa.Column("judge_feedback", sa.Text(), nullable=True),
        sa.Column("scorer_id", sa.Text(), nullable=False),
        sa.Column("scorer_version", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("evaluation_id", "position", "attempt_index"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "chats",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("harness_id", sa.Text(), nullable=False),
        sa.Column("turns", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "evaluation_cases",
        sa.Column("evaluation_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("expected", sa.Text(), nullable=False),
        sa.Column("verdicts", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("evaluation_id", "position"),
        sa.UniqueConstraint("evaluation_id", "key", name="evaluation_cases_key"),
        sa.UniqueConstraint("id", name="evaluation_cases_id"),
    )
    op.create_table(
        "evaluation_chats",
        sa.Column("evaluation_id", sa.Text(), nullable=False),
        sa.Column("chat_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("evaluation_id", "chat_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "evaluations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("harness_id", sa.Text(), nullable=False),
        sa.Column("harness_commit", sa.Text(), nullable=False),
        sa.Column("harness_number", sa.Integer(), server_default="0", nullable=False),
        sa.Column("baseline_commit", sa.Text(), nullable=True),
        sa.Column("baseline_number", sa.Integer(), nullable=True),
        sa.Column("suite_key", sa.Text(), nullable=False),
        sa.Column("suite", sa.Text(), nullable=False),
        sa.Column("suite_name", sa.Text(), nullable=False),
        sa.Column("scorer", sa.Text(), nullable=True),
        sa.Column("k", sa.Integer(), server_default="0", nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("completed_at", sa.Text(), nullable=True),
        sa.Column("cases_done", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cases_total", sa.Integer(), server_default="0", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("scored", sa.Integer(), server_default="0", nullable=False),
        sa.Column("score_sum", sa.Text(), nullable=False),
        sa.Column("tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("amount", sa.Text(), nullable=False),
        sa.Column("currency", sa.Text(), nullable=False),
        sa.Column("metrics", sa.Text(), nullable=True),
        sa.Column("comparison", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "evaluations_commit", "evaluations", ["account", "harness_commit", "created_at", "id"], unique=False
    )
    op.create_index("evaluations_harness", "evaluations", ["account", "harness_id", "created_at", "id"], unique=False)
    op.create_table(
        "events",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("sequence", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("doc", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "sequence"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "harness_versions",
        sa.Column("harness_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("commit_id", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("files", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("harness_id", "number"),
        sa.UniqueConstraint("harness_id", "commit_id", name="harness_versions_commit"),
    )
    op.create_table(
        "harnesses",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name", name="harnesses_name"),
    )
    op.create_table(
        "idempotency",
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), server_default="0", nullable=False),
        sa.Column("location", sa.Text(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("packed", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("account", "route", "key"),
    )
    op.create_table("installation", sa.Column("id", sa.Text(), nullable=False), sa.PrimaryKeyConstraint("id"))
    op.create_table(
        "messages",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("doc", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "position"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "outputs",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("doc", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "position"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("harness_id", sa.Text(), nullable=False),
        sa.Column("harness_commit", sa.Text(), nullable=False),
        sa.Column("chat_id", sa.Text(), nullable=False),
        sa.Column("turn", sa.Integer(), server_default="0", nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Text(), nullable=True),
        sa.Column("completed_at", sa.Text(), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("last_sequence", sa.Integer(), server_default="0", nullable=False),
        sa.Column("last_message", sa.Integer(), server_default="0", nullable=False),
        sa.Column("last_output", sa.Integer(), server_default="0", nullable=False),
        sa.Column("input_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cache_read_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cache_write_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tool_calls", sa.Integer(), server_default="0", nullable=False),
        sa.Column("amount", sa.Text(), nullable=True),
        sa.Column("currency", sa.Text(), nullable=True),
        sa.Column("judge_calls", sa.Integer(), server_default="0", nullable=False),
        sa.Column("judge_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("judge_amount", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("runs_chat", "runs", ["chat_id", "turn"], unique=False)
    op.create_index("runs_newest", "runs", ["account", "created_at", "id"], unique=False)
    op.create_index("runs_status", "runs", ["status"], unique=False)
    op.execute(sa.text("INSERT INTO installation (id) VALUES (:id)").bindparams(id=str(uuid.uuid4())))


def downgrade() -> None:
    op.drop_index("runs_status", table_name="runs")
    op.drop_index("runs_newest", table_name="runs")
    op.drop_index("runs_chat", table_name="runs")
    op.drop_table("runs")
    op.drop_table("outputs")
    op.drop_table("messages")
    op.drop_table("installation")
    op.drop_table("idempotency")
    op.drop_table("harnesses")
    op.drop_table("harness_versions")
    op.drop_table("events")
    op.drop_index("evaluations_harness", table_name="evaluations")
    op.drop_index("evaluations_commit", table_name="evaluations")
    op.drop_table("evaluations")
    op.drop_table("evaluation_chats")
    op.drop_table("evaluation_cases")
    op.drop_table("chats")
    op.drop_table("attempts")
