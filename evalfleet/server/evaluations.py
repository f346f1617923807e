"""How does an evaluation come about, fill up, and end? Its states, its writes and its refusals.

    running ──complete──> completed        running ──cancel──> cancelled

Every change is one write. A batch is atomic and counts on from what is there; complete and cancel count everything anew
from the attempts and the runs' chats (S30). After the end nothing is added: an attempt that is stored already may be
sent again (it is a duplicate), any other is refused with the state's own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import Connection, bindparam, insert, select, update

from evalfleet.checks.verdict import CaseAttempts, evaluation_rates
from evalfleet.contract.ids import new_id
from evalfleet.contract.problems import ProblemField
from evalfleet.server import harnesses
from evalfleet.server.documents import money_text, now, text_of
from evalfleet.server.evaluation_documents import (
    FAILED,
    FULL,
    MISSING,
    PASSED,
    Tally,
    case_document,
    document,
    metrics_text,
    running_rates,
)
from evalfleet.server.idempotency import Answer
from evalfleet.server.journal import TERMINAL
from evalfleet.server.refusal import field, invalid, not_found, refuse
from evalfleet.server.runs import IN_CHUNK, usage_of_chats
from evalfleet.server.schema import attempts, evaluation_cases, evaluation_chats, evaluations, runs

_LETTER: Final = {"passed": PASSED, "failed": FAILED}


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
        "amount": "0",
        "currency": "USD",
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


def _row(connection: Connection, account: str, evaluation_id: str) -> Any:
    row = connection.execute(_ONE, {"p_evaluation": evaluation_id, "p_account": account}).first()
    if row is None:
        raise not_found("evaluation")
    return row


def _cases(connection: Connection, evaluation_id: str) -> Sequence[Any]:
    return connection.execute(_CASES, {"p_evaluation": evaluation_id}).all()


def get(connection: Connection, account: str, evaluation_id: str) -> bytes:
    """The whole evaluation with all of its cases."""
    return _whole(connection, account, evaluation_id).encode("ascii")


def _whole(connection: Connection, account: str, evaluation_id: str) -> str:
    row = _row(connection, account, evaluation_id)
    return document(row, [case_document(case) for case in _cases(connection, evaluation_id)])


# -- recording


@dataclass(frozen=True, slots=True)
class NewAttempt:
    """One entry of a batch, checked in its shape. Either `case_id` or `case_key` (as JSON text) names the case."""

    case_id: str | None
    case_key: str | None
    index: int
    run_id: str
    verdict: str
    judge_score: Decimal | None
    judge_feedback: str | None
    scorer_id: str
    scorer_version: str


@dataclass(slots=True)
class _Batch:
    """What a batch comes to, while it is looked through."""

    results: list[str]
    rows: list[dict[str, Any]]
    problems: list[ProblemField]
    conflicts: list[ProblemField]


_KNOWN: Final = select(attempts.c.run_id).where(
    attempts.c.evaluation_id == bindparam("p_evaluation"),
    attempts.c.position == bindparam("p_position"),
    attempts.c.attempt_index == bindparam("p_index"),
)
_SET_VERDICTS: Final = (
    update(evaluation_cases)
    .where(
        evaluation_cases.c.evaluation_id == bindparam("p_evaluation"),
        evaluation_cases.c.position == bindparam("p_position"),
    )
    .values(verdicts=bindparam("v_verdicts"))
)


def record(connection: Connection, account: str, evaluation_id: str, batch: Sequence[NewAttempt]) -> bytes:
    """All of the batch or none of it: 422 for what is no evidence, 409 `attempt_conflict`, 409 for an ended one."""
    row = _row(connection, account, evaluation_id)
    cases = list(_cases(connection, evaluation_id))
    found = _look_through(connection, account, row, cases, batch)
    if found.problems:
        raise invalid(found.problems)
    if found.conflicts:
        raise refuse(
            "attempt_conflict",
            "Another run is recorded for an attempt of this batch; nothing of the batch was recorded.",
            errors=found.conflicts[:100],
        )
    if found.rows:
        if row.status != "running":
            raise _ended(row.status, "takes no more attempts")
        _add(connection, row, cases, found.rows)
    whole = _whole(connection, account, evaluation_id)
    return f'{{"results":[{",".join(found.results)}],"evaluation":{whole}}}'.encode("ascii")


def _look_through(
    connection: Connection, account: str, row: Any, cases: Sequence[Any], batch: Sequence[NewAttempt]
) -> _Batch:
    by_id = {case.id: case for case in cases}
    by_key = {case.key: case for case in cases}
    found = _Batch([], [], [], [])
    known_runs = _runs(connection, account, sorted({attempt.run_id for attempt in batch}))
    in_batch: dict[tuple[int, int], str] = {}
    at = now()
    for number, attempt in enumerate(batch):
        pointer = f"/attempts/{number}"
        named_by_id = attempt.case_id is not None
        case = by_id.get(attempt.case_id or "") if named_by_id else by_key.get(attempt.case_key or "")
        if case is None:
            name = "case_id" if named_by_id else "case_key"
            found.problems.append(field(f"{pointer}/{name}", "no such case in this evaluation", "not_found"))
            continue
        if attempt.index >= row.k:
            reason = f"is {attempt.index}: k is {row.k}, so write 0 to {row.k - 1}"
            found.problems.append(field(f"{pointer}/attempt_index", reason))
            continue
        place = (case.position, attempt.index)
        recorded = in_batch.get(place)
        if recorded is None and case.verdicts[attempt.index] != MISSING:
            parameters = {"p_evaluation": row.id, "p_position": case.position, "p_index": attempt.index}
            recorded = connection.execute(_KNOWN, parameters).scalar_one()
        status = "recorded" if recorded is None else "duplicate"
        if recorded is not None and recorded != attempt.run_id:
            reason = f"attempt {attempt.index} of {case.id} is recorded with {recorded}"
            found.conflicts.append(field(f"{pointer}/run_id", reason, "attempt_conflict"))
        elif recorded is None:
            chat_id = _evidence(known_runs.get(attempt.run_id), row, pointer, found.problems)
            in_batch[place] = attempt.run_id
            found.rows.append(_attempt_row(row.id, case.position, attempt, chat_id, at))
        found.results.append(f'{{"case_id":"{case.id}","attempt_index":{attempt.index},"status":"{status}"}}')
    return found


def _runs(connection: Connection, account: str, run_ids: Sequence[str]) -> dict[str, Any]:
    columns = (runs.c.id, runs.c.harness_id, runs.c.harness_commit, runs.c.status, runs.c.chat_id)
    found: dict[str, Any] = {}
    for start in range(0, len(run_ids), IN_CHUNK):
        query = select(*columns).where(runs.c.account == account, runs.c.id.in_(run_ids[start : start + IN_CHUNK]))
        found.update((run.id, run) for run in connection.execute(query))
    return found


def _evidence(run: Any, row: Any, pointer: str, problems: list[ProblemField]) -> str:
    """The chat of the attempt's run, which must be visible, ended, and of the evaluation's harness and commit."""
    reason = None
    if run is None:
        reason = "no such run"
    elif run.harness_id != row.harness_id:
        reason = "was made by another harness than the evaluation's"
    elif run.harness_commit != row.harness_commit:
        reason = f"was made at commit {run.harness_commit}, the evaluation is of {row.harness_commit}"
    elif run.status not in TERMINAL:
        reason = f"is {run.status}: only a run that has ended is evidence"
    if reason is not None or run is None:
        problems.append(field(f"{pointer}/run_id", reason or "", "invalid_run"))
        return ""
    return str(run.chat_id)


def _attempt_row(evaluation_id: str, position: int, attempt: NewAttempt, chat_id: str, at: str) -> dict[str, Any]:
    return {
        "evaluation_id": evaluation_id,
        "position": position,
        "attempt_index": attempt.index,
        "run_id": attempt.run_id,
        "chat_id": chat_id,
        "verdict": attempt.verdict,
        "judge_score": None if attempt.judge_score is None else format(attempt.judge_score, "f"),
        "judge_feedback": None if attempt.judge_feedback is None else text_of(attempt.judge_feedback),
        "scorer_id": text_of(attempt.scorer_id),
        "scorer_version": text_of(attempt.scorer_version),
        "created_at": at,
    }


def _add(connection: Connection, row: Any, cases: Sequence[Any], rows: Sequence[dict[str, Any]]) -> None:
    connection.execute(insert(attempts), list(rows))
    verdicts = {case.position: case.verdicts for case in cases}
    changed: set[int] = set()
    for attempt in rows:
        position, index = attempt["position"], attempt["attempt_index"]
        letters = verdicts[position]
        verdicts[position] = letters[:index] + _LETTER[attempt["verdict"]] + letters[index + 1 :]
        changed.add(position)
    connection.execute(
        _SET_VERDICTS,
        [
            {"p_evaluation": row.id, "p_position": position, "v_verdicts": verdicts[position]}
            for position in sorted(changed)
        ],
    )
    scores = [Decimal(attempt["judge_score"]) for attempt in rows if attempt["judge_score"] is not None]
    tokens, amount, currency = _new_chats(connection, row, {attempt["chat_id"] for attempt in rows})
    scored = row.scored + len(scores)
    score_sum = Decimal(row.score_sum) + sum(scores, Decimal(0))
    tally = Tally(
        k=row.k,
        cases_done=sum(MISSING not in letters for letters in verdicts.values()),
        attempts=row.attempts + len(rows),
        scored=scored,
        score_sum=score_sum,
        tokens=row.tokens + tokens,
        amount=Decimal(row.amount) + amount,
        currency=currency or row.currency,
        rates=running_rates(row.k, list(verdicts.values()), scored=scored, score_sum=score_sum),
    )
    _store(connection, row.id, tally)


def _new_chats(connection: Connection, row: Any, chats: set[str]) -> tuple[int, Decimal, str | None]:
    """What the chats that this evaluation has not counted yet have used (each chat once, S30)."""
    known: set[str] = set()
    ordered = sorted(chats)
    for start in range(0, len(ordered), IN_CHUNK):
        query = select(evaluation_chats.c.chat_id).where(
            evaluation_chats.c.evaluation_id == row.id,
            evaluation_chats.c.chat_id.in_(ordered[start : start + IN_CHUNK]),
        )
        known.update(connection.execute(query).scalars())
    fresh = [chat_id for chat_id in ordered if chat_id not in known]
    if fresh:
        connection.execute(
            insert(evaluation_chats), [{"evaluation_id": row.id, "chat_id": chat_id} for chat_id in fresh]
        )
    used = usage_of_chats(connection, fresh)
    currency = next((usage.currency for usage in used), None)
    return sum(usage.total_tokens for usage in used), sum((usage.amount for usage in used), Decimal(0)), currency


def _store(connection: Connection, evaluation_id: str, tally: Tally, **more: Any) -> None:
    connection.execute(
        update(evaluations)
        .where(evaluations.c.id == evaluation_id)
        .values(
            cases_done=tally.cases_done,
            attempts=tally.attempts,
            scored=tally.scored,
            score_sum=format(tally.score_sum, "f"),
            tokens=tally.tokens,
            amount=money_text(tally.amount),
            currency=tally.currency,
            **({"metrics": metrics_text(tally)} | more),
        )
    )


# -- ending


def complete(connection: Connection, account: str, evaluation_id: str) -> Answer:
    """Idempotent once completed; 409 while attempts are missing, naming the cases, and for a cancelled one."""
    row = _row(connection, account, evaluation_id)
    if row.status == "running":
        cases = _cases(connection, evaluation_id)
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
        raise _ended(row.status, "cannot be completed")
    return Answer(200, get(connection, account, evaluation_id))


def cancel(connection: Connection, account: str, evaluation_id: str) -> bytes:
    """Idempotent; keeps what is recorded. 409 for a completed one."""
    row = _row(connection, account, evaluation_id)
    if row.status == "running":
        _end(connection, row, "cancelled")
    elif row.status != "cancelled":
        raise _ended(row.status, "cannot be cancelled")
    return get(connection, account, evaluation_id)


def _ended(status: str, what: str) -> Exception:
    code = {"completed": "evaluation_completed", "cancelled": "evaluation_cancelled"}.get(
        status, "evaluation_not_running"
    )
    return refuse(code, f"A {status} evaluation {what}.")


def _end(connection: Connection, row: Any, status: str) -> None:
    """Count everything anew, compare with the baseline, and close."""
    cases = _cases(connection, row.id)
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
    used = usage_of_chats(connection, sorted(chats))
    tally = Tally(
        k=row.k,
        cases_done=sum(len(verdicts) == row.k for verdicts in recorded.values()),
        attempts=sum(len(verdicts) for verdicts in recorded.values()),
        scored=len(given),
        score_sum=sum(given, Decimal(0)),
        tokens=sum(usage.total_tokens for usage in used),
        amount=sum((usage.amount for usage in used), Decimal(0)),
        currency=next((usage.currency for usage in used), row.currency),
        rates=evaluation_rates(
            row.k, [CaseAttempts(verdicts, scores[position]) for position, verdicts in recorded.items()]
        ),
    )
    here = {case.key: "passed" in recorded[case.position].values() for case in cases if recorded[case.position]}
    _store(connection, row.id, tally, status=status, completed_at=now(), comparison=_comparison(connection, row, here))


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
    before = {case.key: PASSED in case.verdicts for case in _cases(connection, baseline)}
    improved = sum(here[key] and not before[key] for key in here.keys() & before.keys())
    regressed = sum(before[key] and not here[key] for key in here.keys() & before.keys())
    version = harnesses.Version(row.harness_id, row.baseline_number, row.baseline_commit)
    return f'{{"version":{version.reference()},"improved":{improved},"regressed":{regressed}}}'
