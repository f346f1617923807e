"""Amounts of several currencies, the judge's spend on evaluations, and which attempt a run is evidence for."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_evaluations = sa.table(
    "evaluations", *(sa.column(name, sa.Text) for name in ("id", "amount", "currency", "amounts", "judge"))
)
_runs = sa.table("runs", *(sa.column(name, sa.Text) for name in ("id", "judge_amount", "judge_amounts")))


def upgrade() -> None:
    op.create_index("attempts_run", "attempts", ["evaluation_id", "run_id"])
    connection = op.get_bind()
    op.add_column("runs", sa.Column("judge_amounts", sa.Text(), nullable=True))
    judged = sa.select(_runs.c.id, _runs.c.judge_amount).where(_runs.c.judge_amount.is_not(None))
    for run in connection.execute(judged).all():
        amounts = json.dumps({"USD": run.judge_amount})  # the currency was not kept; it is the one that is the default
        connection.execute(sa.update(_runs).where(_runs.c.id == run.id).values(judge_amounts=amounts))
    op.drop_column("runs", "judge_amount")
    # What an ended evaluation shows is in its `metrics`, which stay as they were; a running one counts on from here.
    op.add_column("evaluations", sa.Column("amounts", sa.Text(), nullable=False, server_default="{}"))
    op.add_column("evaluations", sa.Column("judge", sa.Text(), nullable=False, server_default="{}"))
    rows = sa.select(_evaluations.c.id, _evaluations.c.amount, _evaluations.c.currency)
    for row in connection.execute(rows).all():
        amounts = json.dumps({row.currency: row.amount} if row.amount != "0" else {})
        connection.execute(sa.update(_evaluations).where(_evaluations.c.id == row.id).values(amounts=amounts))
    op.drop_column("evaluations", "amount")
    op.drop_column("evaluations", "currency")


def downgrade() -> None:
    connection = op.get_bind()
    op.add_column("evaluations", sa.Column("amount", sa.Text(), nullable=False, server_default="0"))
    op.add_column("evaluations", sa.Column("currency", sa.Text(), nullable=False, server_default="USD"))
    for row in connection.execute(sa.select(_evaluations.c.id, _evaluations.c.amounts)).all():
        currency, amount = next(iter(json.loads(row.amounts).items()), ("USD", "0"))
        values = {"amount": amount, "currency": currency}
        connection.execute(sa.update(_evaluations).where(_evaluations.c.id == row.id).values(**values))
    op.drop_column("evaluations", "amounts")
    op.drop_column("evaluations", "judge")
    op.add_column("runs", sa.Column("judge_amount", sa.Text(), nullable=True))
    judged = sa.select(_runs.c.id, _runs.c.judge_amounts).where(_runs.c.judge_amounts.is_not(None))
    for run in connection.execute(judged).all():
        amount = next(iter(json.loads(run.judge_amounts).values()), None)
        connection.execute(sa.update(_runs).where(_runs.c.id == run.id).values(judge_amount=amount))
    op.drop_column("runs", "judge_amounts")
    op.drop_index("attempts_run", "attempts")
