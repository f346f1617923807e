"""What does `/openapi.json` say? Each route with its parameters, its body and every status that it can answer.

Written by hand, because the routes read their requests themselves: FastAPI would describe none of it. Tests hold it
against the routes and against what is really answered (tests/conformance).
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import evalfleet
from evalfleet.contract.problems import MEDIA_TYPE, title_of
from evalfleet.server.evaluation_documents import STATUSES as EVALUATION_STATUSES
from evalfleet.server.journal import STATUSES as RUN_STATUSES
from evalfleet.server.openapi_schemas import COMMIT, SCHEMAS, given, page, ref

Document = dict[str, Any]

_EVERYWHERE: Final = (400, 401, 503)
"""A header or a query that is not understood, no valid token, and a database that refuses."""
_BODY: Final = (413, 415, 422)


@cache
def document() -> Document:
    """The whole page."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "evalfleet",
            "version": evalfleet.__version__,
            "summary": "The self-hosted v2 API: runs, their events, evaluations, harnesses.",
        },
        "security": [{"bearer": []}],
        "paths": {**_runs(), **_harnesses(), **_interactions(), **_evaluations(), **_operators()},
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


# -- parts of an operation


def _query(name: str, schema: Document, **more: Any) -> Document:
    return {"name": name, "in": "query", "schema": schema, **more}


def _limit(highest: int = 100, default: int = 20) -> Document:
    return _query("limit", {"type": "integer", "minimum": 1, "maximum": highest, "default": default})


_CURSOR: Final = _query("cursor", {"type": "string", "description": "where the last page ended"})
_TIMES: Final = {"anyOf": [{"type": "string", "format": "date-time"}, {"const": ""}]}  # "" counts as absent


def _statuses(words: frozenset[str]) -> Document:
    one = "|".join(sorted(words))
    return _query("status", {"type": "string", "pattern": f"^(({one})(,({one}))*)?$"}, description="with commas")


def _key(*, required: bool) -> Document:
    return {
        "name": "Idempotency-Key",
        "in": "header",
        "required": required,
        "schema": {"type": "string", "pattern": r"^[\x21-\x7e]{1,255}$"},
    }


def _in_path(name: str, prefix: str) -> Document:
    return {"name": name, "in": "path", "required": True, "schema": given(prefix)}


_RUN: Final = _in_path("run_id", "run")
_EVALUATION: Final = _in_path("evaluation_id", "eval")
_HARNESS: Final = _in_path("harness_id", "h")
_INTERACTION: Final = _in_path("interaction_id", "int")


def _answer(schema: Document, description: str = "As asked") -> Document:
    return {
        "description": description,
        "headers": {"X-Request-Id": {"schema": {"type": "string"}}},
        "content": {"application/json": {"schema": schema}},
    }


def _made(schema: Document) -> Document:
    answer = _answer(schema, "Made, or made before by the same key")
    answer["headers"] |= {
        "Location": {"schema": {"type": "string"}, "required": True},
        "Idempotency-Replayed": {"schema": {"const": "true"}},
    }
    return answer


def _problems(*statuses: int) -> Document:
    return {
        str(status): {
            "description": title_of(status),
            "content": {MEDIA_TYPE: {"schema": ref("Problem")}},
        }
        for status in sorted(set(statuses))
    }


def _operation(
    summary: str,
    answers: Document,
    *refusals: int,
    parameters: tuple[Document, ...] = (),
    body: str | None = None,
    open_to_all: bool = False,
) -> Document:
    statuses = set(refusals)
    if not open_to_all:
        statuses |= set(_EVERYWHERE)
    if any(parameter["in"] == "path" for parameter in parameters):
        statuses.add(404)
    operation: Document = {"summary": summary}
    if parameters:
        operation["parameters"] = list(parameters)
    if body is not None:
        statuses |= set(_BODY)
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": ref(body)}}}
    if open_to_all:
        operation["security"] = []
    operation["responses"] = {**answers, **_problems(*statuses)}
    return operation


def _tagged(tag: str, paths: dict[str, Document]) -> dict[str, Document]:
    for operations in paths.values():
        for operation in operations.values():
            operation["tags"] = [tag]
    return paths


# -- the routes


def _runs() -> dict[str, Document]:
    run = _answer(ref("Run"))
    one = "/v2/runs/{run_id}"
    stream = _answer(page(ref("Event")), "The journal; as a stream it ends after the run's last status")
    stream["content"]["text/event-stream"] = {"schema": ref("Frame")}  # of each event, as before OpenAPI 3.2
    listing = (
        _statuses(RUN_STATUSES),
        _query("harness_id", given("h", empty=True)),
        _query("created_after", _TIMES),
        _query("created_before", _TIMES),
        _CURSOR,
        _limit(),
    )
    events = (
        _RUN,
        _CURSOR,
        _limit(500, 100),
        {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}},
    )
    return _tagged(
        "runs",
        {
            "/v2/runs": {
                "post": _operation(
                    "Create a run",
                    {"201": _made(ref("Run"))},
                    404,
                    409,
                    parameters=(_key(required=True),),
                    body="NewRun",
                ),
                "get": _operation("List runs, newest first", {"200": _answer(page(ref("Run")))}, parameters=listing),
            },
            one: {"get": _operation("Get a run", {"200": run}, parameters=(_RUN,))},
            f"{one}/cancel": {"post": _operation("Cancel a run (idempotent)", {"200": run}, parameters=(_RUN,))},
            f"{one}/tree": {
                "get": _operation("The run and what it started", {"200": _answer(ref("RunTree"))}, parameters=(_RUN,))
            },
            f"{one}/usage": {
                "get": _operation("What the run's chat has used", {"200": _answer(ref("Usage"))}, parameters=(_RUN,))
            },
            f"{one}/messages": {
                "get": _operation(
                    "The run's messages, oldest first",
                    {"200": _answer(page(ref("Message")))},
                    parameters=(_RUN, _CURSOR, _limit()),
                )
            },
            f"{one}/outputs": {
                "get": _operation(
                    "The run's outputs, oldest first",
                    {"200": _answer(page(ref("Output")))},
                    parameters=(_RUN, _CURSOR, _limit()),
                )
            },
            f"{one}/events": {
                "get": _operation(
                    "The run's journal, as a stream or in pages", {"200": stream}, 406, 410, parameters=events
                )
            },
            "/v1/runs/{run_id}/hook/llm": {
                "post": _operation(
                    "A grader's judge call, on the run under test",
                    {"200": _answer(ref("JudgeAnswer"))},
                    403,
                    429,
                    502,
                    parameters=(_RUN,),
                    body="JudgeCall",
                )
            },
        },
    )


def _harnesses() -> dict[str, Document]:
    commit = {"name": "commit", "in": "path", "required": True, "schema": COMMIT}
    return _tagged(
        "harnesses",
        {
            "/v2/harnesses": {
                "get": _operation(
                    "List harnesses, newest first",
                    {"200": _answer(page(ref("HarnessEntry")))},
                    parameters=(_CURSOR, _limit()),
                ),
                "post": _operation("Always refused here", {}, 403),
            },
            "/v2/harnesses/{harness_id}": {
                "get": _operation(
                    "A harness and its versions", {"200": _answer(ref("Harness"))}, parameters=(_HARNESS,)
                ),
                "patch": _operation("Always refused here", {}, 403, parameters=(_HARNESS,)),
                "delete": _operation("Always refused here", {}, 403, parameters=(_HARNESS,)),
            },
            "/v2/harnesses/{harness_id}/versions/{commit}": {
                "get": _operation(
                    "A version and its files",
                    {"200": _answer(ref("HarnessVersion"))},
                    parameters=(_HARNESS, commit),
                )
            },
        },
    )


def _interactions() -> dict[str, Document]:
    listing = (_query("status", {"type": "string"}), _query("run_id", given("run", empty=True)), _CURSOR, _limit())
    return _tagged(
        "interactions",
        {
            "/v2/interactions": {
                "get": _operation(
                    "List interactions (there are none)",
                    {"200": _answer(page(ref("Interaction")))},
                    parameters=listing,
                )
            },
            "/v2/interactions/{interaction_id}": {
                "get": _operation("An interaction (there is none)", {}, parameters=(_INTERACTION,))
            },
            "/v2/interactions/{interaction_id}/responses": {
                "post": _operation("Answer one (there is none)", {}, parameters=(_INTERACTION,))
            },
        },
    )


def _evaluations() -> dict[str, Document]:
    evaluation = _answer(ref("Evaluation"))
    one = "/v2/evaluations/{evaluation_id}"
    listing = (
        _query("harness_commit", {"anyOf": [COMMIT, {"const": ""}]}, description="this or harness_id"),
        _query("harness_id", given("h", empty=True), description="this or harness_commit"),
        _statuses(EVALUATION_STATUSES),
        _CURSOR,
        _limit(),
    )
    return _tagged(
        "evaluations",
        {
            "/v2/evaluations": {
                "post": _operation(
                    "Create an evaluation",
                    {"201": _made(ref("Evaluation"))},
                    404,
                    409,
                    parameters=(_key(required=True),),
                    body="NewEvaluation",
                ),
                "get": _operation(
                    "List evaluations of a commit or a harness",
                    {"200": _answer(page(ref("EvaluationEntry")))},
                    parameters=listing,
                ),
            },
            one: {
                "get": _operation("An evaluation with all of its cases", {"200": evaluation}, parameters=(_EVALUATION,))
            },
            f"{one}/attempts:batch": {
                "post": _operation(
                    "Record attempts, all or none",
                    {"200": _answer(ref("BatchAnswer"))},
                    409,
                    parameters=(_EVALUATION, _key(required=False)),
                    body="Batch",
                )
            },
            f"{one}/complete": {
                "post": _operation(
                    "Complete (idempotent)",
                    {"200": evaluation},
                    409,
                    413,
                    parameters=(_EVALUATION, _key(required=False)),
                )
            },
            f"{one}/cancel": {
                "post": _operation("Cancel (idempotent)", {"200": evaluation}, 409, 413, parameters=(_EVALUATION,))
            },
        },
    )


def _operators() -> dict[str, Document]:
    health = _answer(
        {
            "type": "object",
            "properties": {"status": {"enum": ["ok", "stopping"]}, "pid": {"type": "integer"}},
            "required": ["status", "pid", "version"],
        }
    )
    ready = _answer({"type": "object", "properties": {"status": {"const": "ready"}}, "required": ["status"]})
    text = {"description": "Prometheus' text format", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return _tagged(
        "operators",
        {
            "/healthz": {"get": _operation("Is the server up?", {"200": health, "503": health}, open_to_all=True)},
            "/readyz": {"get": _operation("Can it take requests?", {"200": ready}, 503, open_to_all=True)},
            "/metrics": {"get": _operation("Metrics", {"200": text}, open_to_all=True)},
        },
    )
