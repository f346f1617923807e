"""How are attempts recorded on an evaluation, all of a batch or none of it?

A batch counts on from what is there. The same attempt sent again is a duplicate, also after the evaluation has ended;
another run for it is 409 `attempt_conflict`; anything new after the end is refused with the state's own code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import Connection, bindparam, insert, select, update

from evalfleet.contract.problems import ProblemField
from evalfleet.money import exact_sum
from evalfleet.server import spending
from evalfleet.server.documents import counted, now, text_of
from evalfleet.server.evaluation_documents import FAILED, MISSING, PASSED, Tally, running_rates
from evalfleet.server.evaluations import already_ended, cases_of, row_of, store_tally, whole
from evalfleet.server.journal import TERMINAL
from evalfleet.server.refusal import field, invalid, refuse
from evalfleet.server.runs import IN_CHUNK, Usage, usage_of_chats
from evalfleet.server.schema import attempts, chats, evaluation_cases, evaluation_chats, runs
from evalfleet.server.spending import JudgeSpend

_LETTER: Final = {"passed": PASSED, "failed": FAILED}


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
    row = row_of(connection, account, evaluation_id, locked=True)
    cases = list(cases_of(connection, evaluation_id))
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
            raise already_ended(row.status, "takes no more attempts")
        _add(connection, row, cases, found.rows)
    evaluation = whole(connection, account, evaluation_id)
    return f'{{"results":[{",".join(found.results)}],"evaluation":{evaluation}}}'.encode("ascii")


def _look_through(
    connection: Connection, account: str, row: Any, cases: Sequence[Any], batch: Sequence[NewAttempt]
) -> _Batch:
    by_id = {case.id: case for case in cases}
    by_key = {case.key: case for case in cases}
    found = _Batch([], [], [], [])
    run_ids = sorted({attempt.run_id for attempt in batch})
    known_runs = runs_of(connection, account, run_ids)
    used = _Used(connection, row.id, cases, run_ids)
    in_batch: dict[tuple[int, int], str] = {}
    scorer = json.loads(row.scorer) if row.scorer is not None else {}
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
            found.problems += _foreign_scorer(scorer, attempt, pointer)
            found.problems += used.take(case, attempt, pointer)
            in_batch[place] = attempt.run_id
            found.rows.append(_attempt_row(row.id, case.position, attempt, chat_id, at))
        found.results.append(f'{{"case_id":"{case.id}","attempt_index":{attempt.index},"status":"{status}"}}')
    return found


def runs_of(connection: Connection, account: str, run_ids: Sequence[str]) -> dict[str, Any]:
    """Those of the runs that the account can see, and that stay until this write has ended."""
    columns = (runs.c.id, runs.c.harness_id, runs.c.harness_commit, runs.c.status, runs.c.chat_id)
    # Their chats are locked against pruning, until it can be seen that this evaluation holds them.
    mine = select(*columns).join(chats, chats.c.id == runs.c.chat_id).where(runs.c.account == account)
    mine = mine.with_for_update(read=True, key_share=True, of=chats)
    found: dict[str, Any] = {}
    for start in range(0, len(run_ids), IN_CHUNK):
        query = mine.where(runs.c.id.in_(run_ids[start : start + IN_CHUNK]))
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


@dataclass(slots=True)
class _Use:
    """What a run is evidence for: a case, the case file in its key, an attempt index; and whether it has passed."""

    case_id: str
    file: str | None
    index: int
    passed: bool


class _Used:
    """What each run of a batch is evidence for in its evaluation, by its id; before the batch what is recorded."""

    def __init__(
        self, connection: Connection, evaluation_id: str, cases: Sequence[Any], run_ids: Sequence[str]
    ) -> None:
        self._uses: dict[str, _Use] = {}
        at = {case.position: case for case in cases}
        columns = (attempts.c.run_id, attempts.c.position, attempts.c.attempt_index, attempts.c.verdict)
        recorded = select(*columns).where(attempts.c.evaluation_id == evaluation_id)
        for start in range(0, len(run_ids), IN_CHUNK):
            chunk = run_ids[start : start + IN_CHUNK]
            for row in connection.execute(recorded.where(attempts.c.run_id.in_(chunk))):
                self._count(row.run_id, at[row.position], row.attempt_index, row.verdict)

    def take(self, case: Any, attempt: NewAttempt, pointer: str) -> list[ProblemField]:
        """Count the attempt's run as its evidence; a problem where it is another attempt's.

        Scenarios of one case file and trial may share a run: the last one that was played, where it ended the
        conversation before its time (S8). At the most one of them can have passed: the others were not played.
        """
        use = self._uses.get(attempt.run_id)
        if use is not None:
            shared = use.file is not None and use.file == _file_of(case.key) and use.index == attempt.index
            if not shared or (use.passed and attempt.verdict == "passed"):
                reason = (
                    f"is the evidence for attempt_index {use.index} of {use.case_id}: a run is evidence for one attempt"
                )
                return [field(f"{pointer}/run_id", reason, "run_already_used")]
        self._count(attempt.run_id, case, attempt.index, attempt.verdict)
        return []

    def _count(self, run_id: str, case: Any, index: int, verdict: str) -> None:
        use = self._uses.setdefault(run_id, _Use(case.id, _file_of(case.key), index, passed=False))
        use.passed = use.passed or verdict == "passed"


def _file_of(key: str) -> str | None:
    """The case file that a key (as JSON text) names, "guard" of "guard/refuses": a scenario's id has no slash (S3)."""
    file, slash, _ = str(json.loads(key)).rpartition("/")
    return file if slash else None


def _foreign_scorer(scorer: dict[str, Any], attempt: NewAttempt, pointer: str) -> list[ProblemField]:
    """What of the attempt's scorer is not the evaluation's, as far as the evaluation has named one."""
    pairs = (("id", attempt.scorer_id), ("version", attempt.scorer_version))
    return [
        field(
            f"{pointer}/scorer_{part}",
            f"the evaluation's scorer has the {part} {scorer[part]!r}"[:300],
            "invalid_scorer",
        )
        for part, given in pairs
        if scorer.get(part) and scorer[part] != given
    ]


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
    used = _new_chats(connection, row, {attempt["chat_id"] for attempt in rows})
    scored = row.scored + len(scores)
    score_sum = exact_sum([Decimal(row.score_sum), *scores])
    tally = Tally(
        k=row.k,
        cases_done=sum(MISSING not in letters for letters in verdicts.values()),
        attempts=row.attempts + len(rows),
        scored=scored,
        score_sum=score_sum,
        tokens=counted(row.tokens, *(usage.total_tokens for usage in used)),
        amounts=spending.added(spending.read(row.amounts), *(usage.amounts for usage in used)),
        judge=JudgeSpend.sum([JudgeSpend.read(row.judge), *(usage.judge for usage in used)]),
        rates=running_rates(row.k, list(verdicts.values()), scored=scored, score_sum=score_sum),
    )
    store_tally(connection, row.id, tally)


def _new_chats(connection: Connection, row: Any, chats: set[str]) -> list[Usage]:
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
    return usage_of_chats(connection, fresh)
