"""The routes of evaluations: create, read, list, record attempts, complete, cancel."""

from __future__ import annotations

import asyncio
import math
import re
from decimal import Decimal
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from sqlalchemy import Connection

from evalfleet.contract.ids import public_id, uuid_of
from evalfleet.server import evaluation_documents, evaluations
from evalfleet.server.bodies import MIB, Fields, Json, read_bytes, read_object
from evalfleet.server.documents import text_of
from evalfleet.server.evaluations import NewCase, NewEvaluation
from evalfleet.server.idempotency import Answer, Key, fingerprint_of, key_in, once
from evalfleet.server.recording import NewAttempt, record
from evalfleet.server.refusal import field, refuse
from evalfleet.server.requests import (
    account_of,
    canonical_id,
    commit_of,
    id_in_path,
    id_in_query,
    is_commit,
    limit_of,
    one,
    statuses_of,
)
from evalfleet.server.services import Services, answered, ready

CREATE_LIMIT: Final = 64 * MIB
BATCH_LIMIT: Final = 256 * MIB
CASES: Final = 2000
ATTEMPTS: Final = 200_000
_SCORE: Final = re.compile(r"-?[0-9]{1,309}(\.[0-9]{1,1100})?")
"""Room for every float, written out: the largest has 309 digits before the point, the smallest 1,074 after it."""


def add_evaluation_routes(app: FastAPI, services: Services) -> None:
    store = services.store

    @app.post("/v2/evaluations", status_code=201, tags=["evaluations"], summary="Create an evaluation")
    async def create_evaluation(request: Request) -> Response:
        key = key_in(request, required=True)
        body = await read_object(request, limit=CREATE_LIMIT)
        new = read_new_evaluation(body, account_of(request))
        claim = Key(new.account, "POST /v2/evaluations", key or "", fingerprint_of(body))
        return answered(
            await store.write(lambda connection: once(connection, claim, lambda: evaluations.create(connection, new)))
        )

    @app.get("/v2/evaluations", tags=["evaluations"], summary="List evaluations of a commit or a harness")
    async def list_evaluations(request: Request) -> Response:
        harness_id, commit = id_in_query(request, "harness_id", "h"), commit_of(request, "harness_commit")
        if (harness_id is None) == (commit is None):
            raise refuse(
                "invalid_parameter",
                "Write harness_commit or harness_id, one of the two.",
                errors=[field("harness_commit", "write it or harness_id, not both", "invalid", "query")],
            )
        statuses = statuses_of(request, evaluation_documents.STATUSES)
        listing = evaluation_documents.Listing(harness_id, commit, statuses)
        account, cursor, limit = account_of(request), one(request, "cursor"), limit_of(request)
        return ready(
            await store.read(lambda connection: evaluation_documents.page(connection, account, listing, cursor, limit))
        )

    @app.get("/v2/evaluations/{evaluation_id}", tags=["evaluations"], summary="An evaluation with all of its cases")
    async def get_evaluation(request: Request) -> Response:
        account, evaluation_id = account_of(request), id_in_path(request, "evaluation_id", "eval")
        return ready(await store.read(lambda connection: evaluations.get(connection, account, evaluation_id)))

    @app.post("/v2/evaluations/{evaluation_id}/attempts:batch", tags=["evaluations"], summary="Record attempts")
    async def record_attempts(request: Request) -> Response:
        account, evaluation_id = account_of(request), id_in_path(request, "evaluation_id", "eval")
        key = key_in(request, required=False)
        body = await read_object(request, limit=BATCH_LIMIT, deep=False)
        # 200,000 of them take seconds to look through, which no stream of this server should wait for.
        batch = await asyncio.to_thread(read_attempts, body)
        path = f"/v2/evaluations/{evaluation_id}/attempts:batch"
        claim = await asyncio.to_thread(_claim, account, path, key, body)
        return answered(
            await store.write(
                lambda connection: once(
                    connection,
                    claim,
                    lambda: Answer(200, record(connection, account, evaluation_id, batch)),
                )
            )
        )

    @app.post("/v2/evaluations/{evaluation_id}/complete", tags=["evaluations"], summary="Complete (idempotent)")
    async def complete_evaluation(request: Request) -> Response:
        account, evaluation_id = account_of(request), id_in_path(request, "evaluation_id", "eval")
        key = key_in(request, required=False)
        await _no_body(request)
        claim = _claim(account, f"/v2/evaluations/{evaluation_id}/complete", key, None)

        def fn(connection: Connection) -> Answer:
            return once(connection, claim, lambda: evaluations.complete(connection, account, evaluation_id))

        return answered(await store.write(fn))

    @app.post("/v2/evaluations/{evaluation_id}/cancel", tags=["evaluations"], summary="Cancel (idempotent)")
    async def cancel_evaluation(request: Request) -> Response:
        account, evaluation_id = account_of(request), id_in_path(request, "evaluation_id", "eval")
        await _no_body(request)
        return ready(await store.write(lambda connection: evaluations.cancel(connection, account, evaluation_id)))


def _claim(account: str, path: str, key: str | None, body: Any) -> Key | None:
    return None if key is None else Key(account, f"POST {path}", key, fingerprint_of(body))


async def _no_body(request: Request) -> None:
    """These calls say nothing in their body; what some clients send (`{}`, `null`) is passed over, within a size."""
    await read_bytes(request, MIB)


_EVALUATION_FIELDS: Final = frozenset(
    {"harness_id", "harness_commit", "baseline_harness_commit", "suite", "scorer", "k", "cases"}
)


def read_new_evaluation(body: Json, account: str) -> NewEvaluation:
    """The body of a create, checked in its shape (400 `unknown_field`, 422 `validation_failed`)."""
    fields = Fields(body, _EVALUATION_FIELDS)
    harness_id = fields.text("harness_id")
    for name in ("harness_commit", "baseline_harness_commit"):
        if fields.has(name) and not is_commit(fields.raw(name)):
            fields.problem(name, "write 40 lower-case hex digits")
    suite = _named(fields, "suite", ("key", "version", "name"))
    scorer = _named(fields, "scorer", ("id", "version"), required=False)
    k = fields.whole("k", 1, 100, default=1)
    cases = _cases(fields)
    fields.done()
    return NewEvaluation(
        account=account,
        harness_id=canonical_id(harness_id or "", "h"),
        harness_commit=fields.raw("harness_commit"),
        baseline_commit=fields.raw("baseline_harness_commit"),
        suite=suite or {},
        scorer=scorer,
        k=k or 1,
        cases=cases,
    )


def _named(fields: Fields, name: str, parts: tuple[str, ...], *, required: bool = True) -> Json | None:
    """`suite` or `scorer`. The first part is required; a version that is left out is "", a name is the key."""
    given = fields.object(name, required=required)
    if given is None:
        return None
    inner = Fields(given, frozenset(parts), at=f"/{name}", problems=fields.problems)
    first = inner.text(parts[0])
    read = {part: inner.text(part, required=False, blank=True) for part in parts[1:]}
    return {part: first if part == parts[0] else read[part] or (first if part == "name" else "") for part in parts}


_CASE_FIELDS: Final = frozenset({"key", "name", "input", "expected"})


def _cases(fields: Fields) -> tuple[NewCase, ...]:
    cases: list[NewCase] = []
    seen: dict[str, int] = {}
    for number, given in enumerate(fields.items("cases", 1, CASES)):
        at = f"/cases/{number}"
        if not isinstance(given, dict):
            fields.problem(at[1:], "write an object")
            continue
        inner = Fields(given, _CASE_FIELDS, at=at, problems=fields.problems)
        key = inner.text("key")
        name = inner.text("name", required=False, blank=True)
        if key is None:
            continue
        if key in seen:
            inner.problem("key", f"is the key of /cases/{seen[key]} too: keys are unique in an evaluation", "duplicate")
        seen.setdefault(key, number)
        cases.append(NewCase(key, name or key, given.get("input"), given.get("expected")))
    return tuple(cases)


_ATTEMPT_FIELDS: Final = frozenset(
    {
        "case_key",
        "case_id",
        "attempt_index",
        "run_id",
        "verdict",
        "judge_score",
        "judge_feedback",
        "scorer_id",
        "scorer_version",
    }
)


def read_attempts(body: Json) -> list[NewAttempt]:
    """The body of a batch, checked in its shape."""
    fields = Fields(body, frozenset({"attempts"}))
    read: list[NewAttempt] = []
    for number, given in enumerate(fields.items("attempts", 1, ATTEMPTS)):
        at = f"/attempts/{number}"
        if not isinstance(given, dict):
            fields.problem(at[1:], "write an object")
            continue
        before = len(fields.problems)
        inner = Fields(given, _ATTEMPT_FIELDS, at=at, problems=fields.problems)
        case_id, case_key = inner.text("case_id", required=False), inner.text("case_key", required=False)
        if inner.has("case_id") == inner.has("case_key"):
            inner.problem("case_key", "name the case by case_key or by case_id, one of the two", "required")
        index = inner.whole("attempt_index", 0, 99)
        run_id = _run_id(inner)
        verdict = inner.raw("verdict")
        if verdict not in ("passed", "failed"):
            inner.problem("verdict", "write passed or failed")
        score = _score(inner)
        feedback = inner.text("judge_feedback", required=False, longest=MIB, blank=True)
        scorer_id = inner.text("scorer_id", blank=True)
        scorer_version = inner.text("scorer_version", blank=True)
        if len(fields.problems) == before:
            read.append(
                NewAttempt(
                    case_id=case_id,
                    case_key=None if case_key is None else text_of(case_key),
                    index=index or 0,
                    run_id=run_id,
                    verdict=verdict,
                    judge_score=score,
                    judge_feedback=feedback,
                    scorer_id=scorer_id or "",
                    scorer_version=scorer_version or "",
                )
            )
    fields.done()
    return read


def _run_id(inner: Fields) -> str:
    text = inner.text("run_id")
    if text is None:
        return ""
    try:
        return public_id("run", uuid_of(text, "run"))
    except ValueError:
        inner.problem("run_id", "no such run", "invalid_run")
        return ""


def _score(inner: Fields) -> Decimal | None:
    """A decimal string such as "0.86": any finite number that a grader may answer (S24), every digit of it."""
    value = inner.raw("judge_score")
    if value is None:
        return None
    if not isinstance(value, str) or not _SCORE.fullmatch(value):
        inner.problem("judge_score", 'write a plain decimal as a string, such as "0.86"')
    elif math.isinf(float(value)):
        inner.problem("judge_score", "is too large for a number: at most about 1.8e308, written out")
    else:
        return Decimal(value)
    return None
