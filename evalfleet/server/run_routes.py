"""The routes of runs: create, read, list, cancel, tree; messages, outputs, usage, events; the judge call."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from sqlalchemy import Connection

from evalfleet.contract.problems import Problem
from evalfleet.errors import CredentialError, OperatorError, PlatformError, ProblemAnswer
from evalfleet.server import harnesses, lifecycle, runs
from evalfleet.server.bodies import MIB, Fields, Json, escape, read_object
from evalfleet.server.documents import text_of
from evalfleet.server.driving import HARNESS_CHANGED, Failure
from evalfleet.server.idempotency import Answer, Key, fingerprint_of, key_in, once
from evalfleet.server.journal import STATUSES
from evalfleet.server.refusal import Refusal, field, refuse
from evalfleet.server.requests import (
    account_of,
    canonical_id,
    id_in_path,
    id_in_query,
    limit_of,
    one,
    statuses_of,
    time_of,
)
from evalfleet.server.services import Services, answered, ready
from evalfleet.server.spending import DEFAULT, JudgeSpend
from evalfleet.server.streams import EventStream

RUN_BODY_LIMIT: Final = 8 * MIB
"""A case file may be 5 MB (S3), and so may one turn of it."""

METADATA_KEYS: Final = 50


def add_run_routes(app: FastAPI, services: Services) -> None:
    store, streams, runner = services.store, services.streams, services.runner

    @app.post("/v2/runs", status_code=201, tags=["runs"], summary="Create a run")
    async def create_run(request: Request) -> Response:
        key = key_in(request, required=True)
        body = await read_object(request, limit=RUN_BODY_LIMIT)
        new = read_new_run(body, account_of(request))
        if runner.stopping:
            raise refuse("service_unavailable", "The server is stopping.", headers={"Retry-After": "2"})
        claim = Key(new.account, "POST /v2/runs", key or "", fingerprint_of(body))
        refused = await runner.refusal(new.harness_id)

        def fn(connection: Connection) -> tuple[Answer, runs.Created | None]:
            created: list[runs.Created] = []

            def act() -> Answer:
                commit = _runnable(connection, services, new.harness_id, refused)
                answer, made = runs.create(connection, new.at(commit), owner=runner.server)
                created.append(made)
                return answer

            answer = once(connection, claim, act)
            return answer, created[0] if created else None

        def committed(result: tuple[Answer, runs.Created | None]) -> None:
            created = result[1]
            if created is not None:
                streams.publish(created.appended)
                runner.submit(created)

        answer, _created = await store.write(fn, on_commit=committed)
        return answered(answer)

    @app.get("/v2/runs", tags=["runs"], summary="List runs, newest first")
    async def list_runs(request: Request) -> Response:
        listing = runs.Listing(
            statuses_of(request, STATUSES),
            id_in_query(request, "harness_id", "h"),
            time_of(request, "created_after"),
            time_of(request, "created_before"),
        )
        account, cursor, limit = account_of(request), one(request, "cursor"), limit_of(request)
        return ready(await store.read(lambda connection: runs.page(connection, account, listing, cursor, limit)))

    @app.get("/v2/runs/{run_id}", tags=["runs"], summary="Get a run")
    async def get_run(request: Request) -> Response:
        account, run_id = account_of(request), id_in_path(request, "run_id", "run")
        document = await store.read(lambda connection: runs.get(connection, account, run_id))
        return ready(document.encode("ascii"))

    @app.post("/v2/runs/{run_id}/cancel", tags=["runs"], summary="Cancel a run (idempotent)")
    async def cancel_run(request: Request) -> Response:
        account, run_id = account_of(request), id_in_path(request, "run_id", "run")
        cancelled = await store.write(
            lambda connection: lifecycle.request_cancel(connection, account, run_id),
            on_commit=lambda done: streams.publish(done.appended) if done.appended is not None else None,
        )
        runner.cancel(run_id)
        return ready(cancelled.document.encode("ascii"))

    @app.get("/v2/runs/{run_id}/tree", tags=["runs"], summary="The run and what it started")
    async def run_tree(request: Request) -> Response:
        account, run_id = account_of(request), id_in_path(request, "run_id", "run")
        return ready(await store.read(lambda connection: runs.tree(connection, account, run_id)))

    @app.get("/v2/runs/{run_id}/usage", tags=["runs"], summary="What the run's chat has used")
    async def run_usage(request: Request) -> Response:
        account, run_id = account_of(request), id_in_path(request, "run_id", "run")
        return ready(await store.read(lambda connection: runs.usage(connection, account, run_id)))

    def rows(kind: str) -> Callable[[Request], Any]:
        async def list_rows(request: Request) -> Response:
            account, run_id = account_of(request), id_in_path(request, "run_id", "run")
            cursor, limit = one(request, "cursor"), limit_of(request)
            return ready(
                await store.read(lambda connection: runs.page_of_rows(connection, account, run_id, kind, cursor, limit))
            )

        list_rows.__name__ = f"list_{kind}"
        return list_rows

    for kind in ("messages", "outputs"):
        app.get(f"/v2/runs/{{run_id}}/{kind}", tags=["runs"], summary=f"The run's {kind}, oldest first")(rows(kind))

    @app.get("/v2/runs/{run_id}/events", tags=["runs"], summary="The run's journal, as a stream or in pages")
    async def run_events(request: Request) -> Response:
        account, run_id = account_of(request), id_in_path(request, "run_id", "run")
        limit = limit_of(request, highest=500, default=100, code="validation_failed")  # a stream has none, but reads it
        if not wants_stream(request.headers.getlist("accept")):
            cursor = one(request, "cursor")
            return ready(
                await store.read(lambda connection: runs.event_page(connection, account, run_id, cursor, limit))
            )
        header = request.headers.get("last-event-id")
        cursor, location = (header, "header") if header else (one(request, "cursor"), "query")
        live = streams.of(run_id)
        after = await store.read(
            lambda connection: runs.place_in_journal(connection, account, run_id, cursor, location=location)
        )
        # Looked up before the read: a run that ended in between is then read from the store to its end.
        return EventStream(
            streams,
            live,
            after,
            lambda sequence: store.read(lambda connection: runs.frames_after(connection, run_id, sequence)),
        )

    @app.post("/v1/runs/{run_id}/hook/llm", tags=["runs"], summary="A grader's judge call, on the run under test")
    async def judge_call(request: Request) -> Response:
        account, run_id = account_of(request), id_in_path(request, "run_id", "run")
        fields = Fields(await read_object(request, limit=RUN_BODY_LIMIT), frozenset({"prompt", "model"}))
        prompt = fields.text("prompt", longest=RUN_BODY_LIMIT)
        model = fields.text("model", required=False, longest=200)
        fields.done()
        harness_id = await store.read(lambda connection: runs.harness_of(connection, account, run_id))
        judge = services.judges.get(harness_id)
        if judge is None:
            raise refuse(
                "judge_not_configured",
                "This server has no judge: t.llm needs [judge] base_url and model in evalfleet.toml.",
                status=422,
            )
        try:
            answer = await judge.answer(prompt or "", model)
        except (OperatorError, PlatformError) as problem:
            raise _judge_refusal(problem) from problem
        amounts = {} if answer.amount is None else {answer.currency or DEFAULT: Decimal(answer.amount)}
        call = JudgeSpend(1, answer.tokens, amounts)
        await store.write(lambda connection: runs.add_judge_call(connection, account, run_id, call))
        document: Json = {"text": answer.text, "tokens": answer.tokens}
        if answer.amount is not None:
            document |= {"amount": answer.amount, "currency": answer.currency or DEFAULT}
        return ready(text_of(document).encode("ascii"))


def wants_stream(accept: list[str]) -> bool:
    """Whether the Accept header asks for SSE; False for JSON or anything; 406 for what we cannot make.

    Where several types are named the one with the highest `q` decides, the first of equals.
    """
    ranges: list[tuple[float, str]] = []
    for part in ",".join(accept).split(","):
        media, *parameters = [piece.strip().lower() for piece in part.split(";")]
        if media:
            ranges.append((_quality(parameters), media))
    if not ranges:
        return False
    for quality, media in sorted(ranges, key=lambda item: -item[0]):
        if quality > 0 and media in ("text/event-stream", "text/*"):
            return True
        if quality > 0 and media in ("application/json", "application/*", "*/*"):
            return False
    raise refuse("not_acceptable", "The journal comes as text/event-stream or as application/json.")


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                value = float(parameter[2:])
            except ValueError:
                return 0.0
            return value if math.isfinite(value) else 0.0
    return 1.0


def _runnable(connection: Connection, services: Services, harness_id: str, refused: Failure | None) -> str:
    """The commit that a new run of this harness is made at. `refused`: why none can be played now (S33)."""
    commit = services.commits.get(harness_id)
    if commit is not None and services.runner.can_play(harness_id):
        if refused is None:
            return commit
        if refused.code != HARNESS_CHANGED:
            raise refuse("service_unavailable", refused.message, headers={"Retry-After": "2"})
        raise refuse(
            "harness_not_runnable",
            refused.message,
            errors=[field("/harness_id", "its files are not those of its version", HARNESS_CHANGED)],
        )
    if harnesses.exists(connection, harness_id):
        raise refuse(
            "harness_not_runnable",
            "This server does not serve the tree of this harness now: start it with --tree.",
            errors=[field("/harness_id", "its tree is not served", "harness_not_runnable")],
        )
    raise refuse(
        "not_found", "There is no such harness.", errors=[field("/harness_id", "no such harness", "not_found")]
    )


def _judge_refusal(problem: OperatorError | PlatformError) -> Refusal:
    """The judge's trouble as a problem document that says who has to act (S26)."""
    if isinstance(problem, ProblemAnswer):
        headers = {} if problem.retry_after is None else {"Retry-After": str(math.ceil(problem.retry_after))}
        return Refusal(Problem(problem.status, problem.code, problem.detail, headers=headers))
    if isinstance(problem, OperatorError):
        code = "judge_refused" if isinstance(problem, CredentialError) else "judge_not_configured"
        return refuse(code, problem.message, status=422)
    return refuse("upstream_unavailable", problem.message)


# -- the body of a new run

_RUN_FIELDS: Final = frozenset({"harness_id", "machine_id", "input", "chat_id", "metadata"})
_PART_FIELDS: Final = {
    "text": frozenset({"type", "text"}),
    "json": frozenset({"type", "value"}),
    "file": frozenset({"type", "url", "media_type", "name"}),
}


def read_new_run(body: Json, account: str) -> runs.NewRun:
    """`{harness_id, machine_id?, input, chat_id?, metadata?}`, checked in its shape (400, 422)."""
    fields = Fields(body, _RUN_FIELDS)
    harness_id = fields.text("harness_id")
    fields.text("machine_id", required=False)  # taken and not used: there is one machine, this one
    chat_id = fields.text("chat_id", required=False)
    given = fields.object("input")
    if given is not None:
        _check_input(given, fields)
    metadata = fields.object("metadata", required=False) or {}
    _check_metadata(metadata, fields)
    fields.done()
    return runs.NewRun(
        account=account,
        harness_id=canonical_id(harness_id or "", "h"),
        harness_commit="",
        chat_id=None if chat_id is None else canonical_id(chat_id, "chat"),
        input=given or {},
        metadata=metadata,
    )


def _check_input(given: Json, fields: Fields) -> None:
    message = Fields(given, frozenset({"role", "content"}), at="/input", problems=fields.problems)
    if given.get("role") != "user":
        message.problem("role", 'write "user"')
    for number, part in enumerate(message.items("content", 1, 1000)):
        at = f"/input/content/{number}"
        if not isinstance(part, dict):
            fields.problem(at[1:], "write an object")
            continue
        kind = part.get("type")
        known = _PART_FIELDS.get(kind) if isinstance(kind, str) else None
        if known is None:
            fields.problem(f"{at[1:]}/type", "write text, json or file")
            continue
        one_part = Fields(part, known, at=at, problems=fields.problems)
        if kind == "text":
            one_part.text("text", longest=RUN_BODY_LIMIT, blank=True)
        elif kind == "json":
            if "value" not in part:
                one_part.problem("value", "required", "required")
        else:
            one_part.text("url", longest=10_000)
            one_part.text("media_type", required=False)
            one_part.text("name", required=False)


def _check_metadata(metadata: Json, fields: Fields) -> None:
    if len(metadata) > METADATA_KEYS:
        fields.problem("metadata", f"has {len(metadata)} keys: at most {METADATA_KEYS}")
    for name, value in metadata.items():
        if name.startswith("splox."):
            fields.problem(f"metadata/{escape(name)}"[:300], "keys that begin with splox. are reserved", "reserved")
        elif isinstance(value, dict | list):
            fields.problem(f"metadata/{escape(name)}"[:300], "write a string, a number, true, false or null")
