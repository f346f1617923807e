"""What do bodies look like, in JSON Schema? Every object that the server takes or answers (OpenAPI 3.1)."""

from __future__ import annotations

from typing import Any, Final

from evalfleet.contract.problems import PROBLEM_TYPES
from evalfleet.server.evaluation_documents import STATUSES as EVALUATION_STATUSES
from evalfleet.server.journal import STATUSES as RUN_STATUSES

Schema = dict[str, Any]


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def public(prefix: str) -> Schema:
    """An id as we write it."""
    return {"type": "string", "pattern": f"^{prefix}_[0-9A-HJKMNP-TV-Z]{{26}}$"}


def given(prefix: str, *, empty: bool = False) -> Schema:
    """An id as it is taken: as we write it in either case, or a raw UUID. `empty`: "" counts as absent."""
    ours = f"{prefix}_[0-7ILOilo][0-9A-TV-Za-tv-z]{{25}}"
    uuid = "[0-9A-Fa-f]{32}|[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
    pattern = f"^({ours}|{uuid}{'|' if empty else ''})$"
    return {"type": "string", "description": f"a {prefix}_ id, or its UUID", "pattern": pattern}


TIME: Final[Schema] = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$"}
COMMIT: Final[Schema] = {"type": "string", "pattern": "^[0-9a-f]{40}$"}
MONEY: Final[Schema] = {"type": "string", "pattern": r"^-?\d+(\.\d+)?$"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
TEXT: Final[Schema] = {"type": "string"}
ANY: Final[Schema] = {}
WORD: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 1000, "pattern": r"\S"}
SHORT: Final[Schema] = {"type": "string", "maxLength": 1000}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def listed(schema: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": schema, **more}


def whole(**properties: Schema) -> Schema:
    """An object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def partly(required: tuple[str, ...], **properties: Schema) -> Schema:
    """An object of which only `required` must be there."""
    return {**whole(**properties), "required": list(required)}


def also(*, more: dict[str, Schema], **required: Schema) -> Schema:
    """An object with all of `required`, and what there is of `more`."""
    return partly(tuple(required), **required, **more)


def page(of: Schema) -> Schema:
    return whole(data=listed(of), page=whole(has_more={"type": "boolean"}, next_cursor=nullable({"type": "string"})))


_AMOUNTS: Final[Schema] = {
    "type": "object",
    "additionalProperties": MONEY,
    "description": "Where the currencies are several: each one's own amount.",
}
_SPENT: Final[dict[str, Schema]] = {"amount": nullable(MONEY), "currency": nullable(TEXT)}
"""Both null where the currencies are several."""
_JUDGE: Final[Schema] = {
    **also(calls=COUNT, tokens=COUNT, **_SPENT, more={"amounts": _AMOUNTS}),
    "description": "What judge calls have used; not there where there were none. The rest is the agent's.",
}
_TEXT_PART: Final = whole(type={"const": "text"}, text={"type": "string"})
_JSON_PART: Final = whole(type={"const": "json"}, value=ANY)
_FILE_PART: Final = partly(
    ("type", "url"),
    type={"const": "file"},
    url={"type": "string", "minLength": 1, "maxLength": 10_000, "pattern": r"\S"},
    media_type=nullable(WORD),
    name=nullable(WORD),
)
_METADATA: Final[Schema] = {
    "type": "object",
    "maxProperties": 50,
    "propertyNames": {"pattern": r"^(?!splox\.)"},
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}
_VERSION: Final = whole(number=COUNT, commit=COMMIT)
_SUITE: Final = whole(key=TEXT, version=TEXT, name=TEXT)
_PROGRESS: Final = whole(done=COUNT, total=COUNT)
_RATE: Final[Schema] = {"type": ["number", "null"]}
_INDEXES: Final = listed({"type": "integer", "minimum": 0, "maximum": 99})


def _attempt(case: str, other: str) -> Schema:
    """An attempt that names its case by `case`; the other name is absent or null."""
    return partly(
        (case, "attempt_index", "run_id", "verdict", "scorer_id", "scorer_version"),
        **{case: WORD, other: {"type": "null"}},
        attempt_index={"type": "integer", "minimum": 0, "maximum": 99},
        run_id=given("run"),
        verdict={"enum": ["passed", "failed"]},
        judge_score=nullable({"type": "string", "pattern": r"^-?[0-9]{1,308}(\.[0-9]{1,1100})?$"}),
        judge_feedback=nullable({"type": "string", "maxLength": 1024 * 1024}),
        scorer_id=SHORT,
        scorer_version=SHORT,
    )


SCHEMAS: Final[dict[str, Schema]] = {
    "Problem": {
        **partly(
            ("type", "title", "status", "detail", "code"),
            type={"type": "string", "format": "uri"},
            title=TEXT,
            status={"type": "integer"},
            detail=TEXT,
            code={"type": "string", "examples": sorted(PROBLEM_TYPES)},
            trace_id=TEXT,
            errors=listed(
                whole(
                    name=TEXT,
                    location={"enum": ["body", "path", "query", "header", "server"]},
                    reason=TEXT,
                    code=TEXT,
                )
            ),
        ),
        "description": "RFC 9457. `code` is stable; `errors` has a JSON Pointer for each field of the body.",
    },
    "NewRun": partly(
        ("harness_id", "input"),
        harness_id=given("h"),
        machine_id=nullable(WORD),
        chat_id=nullable(given("chat")),
        input=whole(
            role={"const": "user"},
            content=listed({"anyOf": [_TEXT_PART, _JSON_PART, _FILE_PART]}, minItems=1, maxItems=1000),
        ),
        metadata=nullable(_METADATA),
    ),
    "Run": whole(
        id=public("run"),
        harness_id=public("h"),
        harness_commit=COMMIT,
        chat_id=public("chat"),
        parent_chat_id=nullable(public("chat")),
        status={"enum": sorted(RUN_STATUSES)},
        created_at=TIME,
        updated_at=TIME,
        started_at=nullable(TIME),
        completed_at=nullable(TIME),
        failure=nullable(whole(code=TEXT, message=TEXT, retryable={"type": "boolean"})),
        metadata={"type": "object"},
    ),
    "RunTree": whole(
        root_run_id=public("run"),
        runs=listed(whole(run=ref("Run"), depth=COUNT, child_run_ids=listed(public("run")))),
        generated_at=TIME,
    ),
    "Message": whole(
        id=public("msg"),
        run_id=public("run"),
        role={"enum": ["user", "assistant", "tool", "system"]},
        content=listed(partly(("type",), type=TEXT, text=TEXT, value=ANY, url=ANY, media_type=ANY, name=ANY)),
        created_at=TIME,
    ),
    "Output": whole(
        id=public("out"),
        run_id=public("run"),
        type={"enum": ["result", "artifact"]},
        name=TEXT,
        value=ANY,
        created_at=TIME,
    ),
    "Usage": also(
        run_id=public("run"),
        input_tokens=COUNT,
        output_tokens=COUNT,
        cache_read_tokens=COUNT,
        cache_write_tokens=COUNT,
        total_tokens=COUNT,
        tool_calls=COUNT,
        duration_ms=COUNT,
        **_SPENT,
        final={"type": "boolean"},
        updated_at=TIME,
        more={"amounts": _AMOUNTS, "judge": _JUDGE},
    ),
    "Event": whole(
        id=public("evt"),
        cursor=TEXT,
        run_id=public("run"),
        sequence={"type": "integer", "minimum": 1},
        type=TEXT,
        created_at=TIME,
        data={"type": "object"},
    ),
    "Frame": {
        **whole(
            id=TEXT,
            event=TEXT,
            data={"type": "string", "contentMediaType": "application/json", "contentSchema": ref("Event")},
        ),
        "description": "A server-sent event: `id` is the cursor, `event` the type. In silence comes the comment `:hb`.",
    },
    "JudgeCall": partly(
        ("prompt",),
        prompt={"type": "string", "minLength": 1, "pattern": r"\S"},
        model=nullable({"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"\S"}),
    ),
    "JudgeAnswer": partly(("text", "tokens"), text=TEXT, tokens=COUNT, amount=MONEY, currency=TEXT),
    "HarnessEntry": whole(id=public("h"), name=TEXT),
    "Harness": whole(id=public("h"), name=TEXT, versions=listed(_VERSION)),
    "HarnessVersion": whole(
        harness_id=public("h"),
        number=COUNT,
        commit=COMMIT,
        message=TEXT,
        created_at=TIME,
        files={"type": "object", "additionalProperties": TEXT},
    ),
    "Interaction": {"type": "object", "description": "No driver of this server asks a person: there is none."},
    "NewEvaluation": partly(
        ("harness_id", "suite", "cases"),
        harness_id=given("h"),
        harness_commit=nullable(COMMIT),
        baseline_harness_commit=nullable(COMMIT),
        suite=partly(("key",), key=WORD, version=nullable(SHORT), name=nullable(SHORT)),
        scorer=nullable(partly(("id",), id=WORD, version=nullable(SHORT))),
        k={"anyOf": [{"type": "integer", "minimum": 1, "maximum": 100}, {"type": "null"}], "default": 1},
        cases=listed(
            partly(("key",), key=WORD, name=nullable(SHORT), input=ANY, expected=ANY), minItems=1, maxItems=2000
        ),
    ),
    "Evaluation": whole(
        id=public("eval"),
        status={"enum": sorted(EVALUATION_STATUSES)},
        harness_version=_VERSION,
        baseline_version=nullable(_VERSION),
        scorer=nullable(whole(id=TEXT, version=TEXT)),
        suite=_SUITE,
        k={"type": "integer", "minimum": 1, "maximum": 100},
        progress=_PROGRESS,
        metrics=nullable(
            also(
                pass_at_1=_RATE,
                pass_hat_k=_RATE,
                k=COUNT,
                judge_score=_RATE,
                tokens=COUNT,
                **_SPENT,
                more={"amounts": _AMOUNTS, "judge": _JUDGE},
            )
        ),
        comparison=nullable(whole(version=_VERSION, improved=COUNT, regressed=COUNT)),
        cases=listed(
            whole(
                id=public("ecase"),
                key=TEXT,
                name=TEXT,
                status={"enum": ["pending", "passed", "flaky", "failed"]},
                recorded_attempts=nullable(_INDEXES),
                missing_attempts=_INDEXES,
            )
        ),
        created_at=TIME,
        completed_at=nullable(TIME),
    ),
    "EvaluationEntry": whole(
        id=public("eval"),
        name=TEXT,
        status={"enum": sorted(EVALUATION_STATUSES)},
        harness_version=_VERSION,
        progress=_PROGRESS,
        pass_at_1=_RATE,
        created_at=TIME,
    ),
    "Batch": whole(
        attempts=listed(
            {"anyOf": [_attempt("case_key", "case_id"), _attempt("case_id", "case_key")]}, minItems=1, maxItems=200_000
        )
    ),
    "BatchAnswer": whole(
        results=listed(
            whole(
                case_id=public("ecase"),
                attempt_index={"type": "integer"},
                status={"enum": ["recorded", "duplicate"]},
            )
        ),
        evaluation=ref("Evaluation"),
    ),
}
