"""How does an evaluation come about, and how does it end? Its states, its writes and its refusals.

    running ──complete──> completed        running ──cancel──> cancelled

Every change is one write, which holds the evaluation's row locked from its first look to its commit: batches, complete
and cancel follow one another, at however many servers they come in. Complete and cancel count everything anew from the
attempts and the runs' chats (S30). What comes in between is in `recording`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import Connection, bindparam, insert, select, update

from evalfleet.checks.comparison import capability
from evalfleet.checks.verdict import CaseAttempts, evaluation_rates
from evalfleet.contract.ids import new_id
from evalfleet.money import exact_sum
from evalfleet.server import harnesses, spending
from evalfleet.server.documents import counted, now, text_of
from evalfleet.server.evaluation_documents import (
    FULL,
    MISSING,
    PASSED,
    Tally,
    case_document,
    document,
    metrics_text,
)
from evalfleet.server.idempotency import Answer
from evalfleet.server.refusal import field, invalid, not_found, refuse
from evalfleet.server.runs import usage_of_chats
from evalfleet.server.schema import attempts, evaluation_cases, evaluations
from evalfleet.server.spending import JudgeSpend
from evalfleet.server.tries import chats_of_other_tries


@dataclass(frozen=True, slots=True)
class NewCase:
    key: str
    name: str
    input: Any
    expected: Any


@dataclass(frozen=True, slots=True)
class NewEvaluation:
    """An evaluation to create, checked in its shape."""

    account: str
    harness_id: str
    harness_commit: str | None
    baseline_commit: str | None
    suite: dict[str, Any]
    scorer: dict[str, Any] | None
    k: int
    cases: tuple[NewCase, ...]


def create(connection: Connection, new: NewEvaluation) -> Answer:
    """404 for an unknown harness, 422 for a commit that is no version of it."""
    if not harnesses.exists(connection, new.harness_id):
        raise refuse(
            "not_found",
            "There is no such harness.",
            errors=[field("/harness_id", "no such harness", "not_found")],
        )
    version = _version(connection, new.harness_id, new.harness_commit, "/harness_commit")
    baseline = None
    if new.baseline_commit is not None:
        baseline = _version(connection, new.harness_id, new.baseline_commit, "/baseline_harness_commit")
    evaluation_id = new_id("eval")
    row = {
        "id": evaluation_id,
        "account": new.account,
        "harness_id": new.harness_id,
        "harness_commit": version.commit,
        "harness_number": version.number,
        "baseline_commit": baseline.commit if baseline else None,
        "baseline_number": baseline.number if baseline else None,
        "suite_key": text_of(new.suite["key"]),
        "suite": text_of(new.suite),
        "suite_name": text_of(new.suite["name"]),
        "scorer": text_of(new.scorer) if new.scorer is not None else None,
        "k": new.k,
        "status": "running",
        "created_at": now(),
        "completed_at": None,
        "cases_done": 0,
        "cases_total": len(new.cases),
        "attempts": 0,
        "scored": 0,
        "score_sum": "0",
        "tokens": 0,
        "amounts": "{}",
        "judge": "{}",
        "metrics": None,
        "comparison": None,
    }
    connection.execute(insert(evaluations), row)
    connection.execute(
        insert(evaluation_cases),
        [
            {
                "evaluation_id": evaluation_id,
                "position": position,
                "id": new_id("ecase"),
                "key": text_of(case.key),
                "name": text_of(case.name),
                "input": text_of(case.input),
                "expected": text_of(case.expected),
                "verdicts": MISSING * new.k,
            }
            for position, case in enumerate(new.cases)
        ],
    )
    return Answer(201, get(connection, new.account, evaluation_id), location=f"/v2/evaluations/{evaluation_id}")


def _version(connection: Connection, harness_id: str, commit: str | None, pointer: str) -> harnesses.Version:
    version = (
        harnesses.find_version(connection, harness_id, commit)
        if commit is not None
        else harnesses.newest_version(connection, harness_id)
    )
    if version is None:
        raise invalid(
            [field(pointer, f"{commit} is no version of this harness that this server has seen", "not_found")]
        )
    return version


# -- reading

_ONE: Final = select(*FULL).where(
    evaluations.c.id == bindparam("p_evaluation"), evaluations.c.account == bindparam("p_account")
)
_ONE_LOCKED: Final = _ONE.with_for_update()
_CASES: Final = (
    select(
        evaluation_cases.c.position,
        evaluation_cases.c.id,
        evaluation_cases.c.key,
        evaluation_cases.c.name,
        evaluation_cases.c.verdicts,
    )
    .where(evaluation_cases.c.evaluation_id == bindparam("p_evaluation"))
    .order_by(evaluation_cases.c.position)
)


def row_of(connection: Connection, account: str, evaluation_id: str, *, locked: bool = False) -> Any:
    """The evaluation's row, or 404. `locked`: nobody else changes it or its attempts before this write has ended."""
    query = _ONE_LOCKED if locked else _ONE
    row = connection.execute(query, {"p_evaluation": evaluation_id, "p_account": account}).first()
    if row is None:
        raise not_found("evaluation")
    return row


def cases_of(connection: Connection, evaluation_id: str) -> Sequence[Any]:
    """The rows of all its cases, in the order they were given."""
    return connection.execute(_CASES, {"p_evaluation": evaluation_id}).all()


def get(connection: Connection, account: str, evaluation_id: str) -> bytes:
    """The whole evaluation with all of its cases."""
    return whole(connection, account, evaluation_id).encode("ascii")


def whole(connection: Connection, account: str, evaluation_id: str) -> str:
    """The document with all cases."""
    row = row_of(connection, account, evaluation_id)
    return document(row, [case_document(case) for case in cases_of(connection, evaluation_id)])


def store_tally(connection: Connection, evaluation_id: str, tally: Tally, **more: Any) -> None:
    """Keep what the attempts add up to, and the metrics that the wire shows of it."""
    connection.execute(
        update(evaluations)
        .where(evaluations.c.id == evaluation_id)
        .values(
            cases_done=tally.cases_done,
            attempts=tally.attempts,
            scored=tally.scored,
            score_sum=format(tally.score_sum, "f"),
            tokens=tally.tokens,
            amounts=spending.stored(tally.amounts),
            judge=tally.judge.stored(),
            **({"metrics": metrics_text(tally)} | more),
        )
    )


# -- ending


def complete(connection: Connection, account: str, evaluation_id: str) -> Answer:
    """Idempotent once completed; 409 while attempts are missing, naming the cases, and for a cancelled one."""
    row = row_of(connection, account, evaluation_id, locked=True)
    if row.status == "running":
        cases = cases_of(connection, evaluation_id)
        lacking = [case for case in cases if MISSING in case.verdicts]
        if lacking:
            raise refuse(
                "evaluation_incomplete",
                "The evaluation cannot be completed until every case has all required attempts.",
                errors=[
                    field(
                        f"/cases/{case.id}",
                        f"case has {row.k - case.verdicts.count(MISSING)} of {row.k} required attempts",
                        "incomplete",
                        "server",
                    )
                    for case in lacking
                ],
            )
        _end(connection, row, "completed")
    elif row.status != "completed":
        raise already_ended(row.status, "cannot be completed")
    return Answer(200, get(connection, account, evaluation_id))


def cancel(connection: Connection, account: str, evaluation_id: str) -> bytes:
    """Idempotent; keeps what is recorded. 409 for a completed one."""
    row = row_of(connection, account, evaluation_id, locked=True)
    if row.status == "running":
        _end(connection, row, "cancelled")
    elif row.status != "cancelled":
        raise already_ended(row.status, "cannot be cancelled")
    return get(connection, account, evaluation_id)


def already_ended(status: str, what: str) -> Exception:
    """The 409 of an evaluation that is not running; `what` says what it cannot."""
    code = {"completed": "evaluation_completed", "cancelled": "evaluation_cancelled"}.get(
        status, "evaluation_not_running"
    )
    return refuse(code, f"A {status} evaluation {what}.")


def _end(connection: Connection, row: Any, status: str) -> None:
    """Count everything anew, compare with the baseline, and close."""
    cases = cases_of(connection, row.id)
    recorded: dict[int, dict[int, str]] = {case.position: {} for case in cases}
    scores: dict[int, dict[int, Decimal | None]] = {case.position: {} for case in cases}
    chats: set[str] = set()
    columns = (
        attempts.c.position,
        attempts.c.attempt_index,
        attempts.c.verdict,
        attempts.c.judge_score,
        attempts.c.chat_id,
    )
    for attempt in connection.execute(select(*columns).where(attempts.c.evaluation_id == row.id)):
        recorded[attempt.position][attempt.attempt_index] = attempt.verdict
        chats.add(attempt.chat_id)
        if attempt.judge_score is not None:
            scores[attempt.position][attempt.attempt_index] = Decimal(attempt.judge_score)
    given = [score for of_case in scores.values() for score in of_case.values() if score is not None]
    used = usage_of_chats(connection, sorted(chats | chats_of_other_tries(connection, row, cases)))
    tally = Tally(
        k=row.k,
        cases_done=sum(len(verdicts) == row.k for verdicts in recorded.values()),
        attempts=sum(len(verdicts) for verdicts in recorded.values()),
        scored=len(given),
        score_sum=exact_sum(given),
        tokens=counted(*(usage.total_tokens for usage in used)),
        amounts=spending.added(*(usage.amounts for usage in used)),
        judge=JudgeSpend.sum(usage.judge for usage in used),
        rates=evaluation_rates(
            row.k, [CaseAttempts(verdicts, scores[position]) for position, verdicts in recorded.items()]
        ),
    )
    here = {case.key: "passed" in recorded[case.position].values() for case in cases if recorded[case.position]}
    store_tally(
        connection, row.id, tally, status=status, completed_at=now(), comparison=_comparison(connection, row, here)
    )


def _comparison(connection: Connection, row: Any, here: dict[str, bool]) -> str | None:
    """Against the newest completed evaluation of the same suite key at the baseline commit, by case key (S31).

    `here`: case key → whether any attempt passed, for the cases with attempts (a cancelled evaluation may lack some,
    which says nothing about getting better or worse).
    """
    if row.baseline_commit is None:
        return None
    baseline = connection.execute(
        select(evaluations.c.id)
        .where(
            evaluations.c.account == row.account,
            evaluations.c.harness_id == row.harness_id,
            evaluations.c.harness_commit == row.baseline_commit,
            evaluations.c.suite_key == row.suite_key,
            evaluations.c.status == "completed",
            evaluations.c.id != row.id,
        )
        .order_by(evaluations.c.created_at.desc(), evaluations.c.id.desc())
        .limit(1)
    ).scalar()
    if baseline is None:
        return None
    before = {case.key: PASSED in case.verdicts for case in cases_of(connection, baseline)}
    improved, regressed = capability(before, here)
    version = harnesses.Version(row.harness_id, row.baseline_number, row.baseline_commit)
    return f'{{"version":{version.reference()},"improved":{improved},"regressed":{regressed}}}'
