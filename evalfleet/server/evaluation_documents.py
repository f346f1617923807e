"""How is an evaluation shown, and what do its attempts add up to?

Field order and presence are the seed's: the whole evaluation everywhere, and `judge_score`, rates and `comparison` null
where there is nothing to say. Numbers follow S29 and S30.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from sqlalchemy import Connection, select, tuple_

from evalfleet.checks.verdict import Rates
from evalfleet.server.cursors import page_cursor, read_page_cursor
from evalfleet.server.documents import page_of
from evalfleet.server.schema import evaluations
from evalfleet.server.spending import JudgeSpend, spent_text

MISSING, PASSED, FAILED = "-", "p", "f"
"""The letters of a case's `verdicts`, one for each of its k attempts."""

FULL: Final = tuple(evaluations.c)
STATUSES: Final = frozenset({"running", "completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Tally:
    """What the attempts of an evaluation add up to. `amounts`: the agents', for each currency; the judge's are apart
    (S15)."""

    k: int
    cases_done: int
    attempts: int
    scored: int
    score_sum: Decimal
    tokens: int
    amounts: Mapping[str, Decimal]
    judge: JudgeSpend
    rates: Rates


def running_rates(k: int, verdicts: Sequence[str], *, scored: int, score_sum: Decimal) -> Rates:
    """`evaluation_rates` (S30) from the letters of the cases, fast enough for every batch and as exact.

    `verdicts`: for each case its k letters, "-" missing, "p" passed, "f" failed. Cases with as many attempts are added
    up as whole numbers first, so there are at most k fractions however many cases there are.
    """
    passed_of: dict[int, int] = {}
    cases = complete = reliable = 0
    for letters in verdicts:
        recorded = k - letters.count(MISSING)
        if recorded:
            cases += 1
            passed = letters.count(PASSED)
            passed_of[recorded] = passed_of.get(recorded, 0) + passed
            if recorded == k:
                complete += 1
                reliable += passed == k
    total = sum((Fraction(passed, recorded) for recorded, passed in passed_of.items()), Fraction(0))
    return Rates(
        pass_at_1=float(total / cases) if cases else None,
        pass_hat_k=float(Fraction(reliable, complete)) if complete else None,
        judge_score=float(Fraction(score_sum) / scored) if scored else None,
    )


def case_status(verdicts: str) -> str:
    """`pending` until all attempts are in, then by how many passed (S29)."""
    if MISSING in verdicts:
        return "pending"
    if FAILED not in verdicts:
        return "passed"
    return "flaky" if PASSED in verdicts else "failed"


def metrics_text(tally: Tally) -> str:
    rates = tally.rates
    return (
        f'{{"pass_at_1":{_rate(rates.pass_at_1)},"pass_hat_k":{_rate(rates.pass_hat_k)},"k":{tally.k},'
        f'"judge_score":{_rate(rates.judge_score)},"tokens":{tally.tokens},{spent_text(tally.amounts)}'
        f"{tally.judge.member()}}}"
    )


def _rate(value: float | None) -> str:
    """A number as the seed writes it: `1`, not `1.0`; a large score is `1e+300`, not 301 digits."""
    if value is None:
        return "null"
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def case_document(case: Any) -> str:
    """A case's row as the public case: no runs, no outputs (wire.md)."""
    recorded = [str(index) for index, letter in enumerate(case.verdicts) if letter != MISSING]
    missing = [str(index) for index, letter in enumerate(case.verdicts) if letter == MISSING]
    return (
        f'{{"id":"{case.id}","key":{case.key},"name":{case.name},"status":"{case_status(case.verdicts)}",'
        f'"recorded_attempts":{"[" + ",".join(recorded) + "]" if recorded else "null"},'
        f'"missing_attempts":[{",".join(missing)}]}}'
    )


def document(row: Any, cases: Sequence[str]) -> str:
    """A row of `evaluations` and its cases' documents, in the seed's order of fields."""
    baseline = "null"
    if row.baseline_commit is not None:
        baseline = f'{{"number":{row.baseline_number},"commit":"{row.baseline_commit}"}}'
    completed = f'"{row.completed_at}"' if row.completed_at else "null"
    return (
        f'{{"id":"{row.id}","status":"{row.status}",'
        f'"harness_version":{{"number":{row.harness_number},"commit":"{row.harness_commit}"}},'
        f'"baseline_version":{baseline},"scorer":{row.scorer or "null"},"suite":{row.suite},"k":{row.k},'
        f'"progress":{{"done":{row.cases_done},"total":{row.cases_total}}},'
        f'"metrics":{row.metrics or "null"},"comparison":{row.comparison or "null"},'
        f'"cases":[{",".join(cases)}],"created_at":"{row.created_at}","completed_at":{completed}}}'
    )


@dataclass(frozen=True, slots=True)
class Listing:
    """One of the two scopes, and states."""

    harness_id: str | None
    harness_commit: str | None
    statuses: tuple[str, ...] = ()

    def filters(self) -> dict[str, str]:
        named = {
            "harness_id": self.harness_id,
            "harness_commit": self.harness_commit,
            "status": ",".join(sorted(self.statuses)),
        }
        return {name: value for name, value in named.items() if value}


_SUMMARY: Final = (
    evaluations.c.id,
    evaluations.c.suite_name,
    evaluations.c.status,
    evaluations.c.harness_number,
    evaluations.c.harness_commit,
    evaluations.c.cases_done,
    evaluations.c.cases_total,
    evaluations.c.metrics,
    evaluations.c.created_at,
)


def page(connection: Connection, account: str, listing: Listing, cursor: str | None, limit: int) -> bytes:
    """Summaries, newest first by (created_at, id)."""
    query = select(*_SUMMARY).where(evaluations.c.account == account)
    if listing.harness_id is not None:
        query = query.where(evaluations.c.harness_id == listing.harness_id)
    if listing.harness_commit is not None:
        query = query.where(evaluations.c.harness_commit == listing.harness_commit)
    if listing.statuses:
        query = query.where(evaluations.c.status.in_(listing.statuses))
    filters = {"account": account, **listing.filters()}
    if cursor is not None:
        created_at, _, last_id = read_page_cursor(cursor, "/v2/evaluations", filters).partition(" ")
        query = query.where(tuple_(evaluations.c.created_at, evaluations.c.id) < tuple_(created_at, last_id))
    query = query.order_by(evaluations.c.created_at.desc(), evaluations.c.id.desc()).limit(limit + 1)
    rows = connection.execute(query).all()
    more = len(rows) > limit
    rows = rows[:limit]
    following = None
    if more:
        following = page_cursor("/v2/evaluations", filters, f"{rows[-1].created_at} {rows[-1].id}")
    return page_of([_summary(row) for row in rows], next_cursor=following, has_more=more)


def _summary(row: Any) -> str:
    return (
        f'{{"id":"{row.id}","name":{row.suite_name},"status":"{row.status}",'
        f'"harness_version":{{"number":{row.harness_number},"commit":"{row.harness_commit}"}},'
        f'"progress":{{"done":{row.cases_done},"total":{row.cases_total}}},'
        f'"pass_at_1":{_pass_at_1(row.metrics)},"created_at":"{row.created_at}"}}'
    )


def _pass_at_1(metrics: str | None) -> str:
    # Our own text, which begins with this very rate (metrics_text).
    if metrics is None:
        return "null"
    start = metrics.index(":") + 1
    return metrics[start : metrics.index(",", start)]
