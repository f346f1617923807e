"""Every problem that the official client can be answered, as the exception that it has for it.

wire.md, "Problem documents". What it has no method for is sent through its own transport, which reads the answer.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from evalfleet.server.cursors import event_cursor
from tests.conformance.deployments import Target
from tests.integration.sdk import Sdk, SdkError, official
from tests.integration.test_official_sdk import attempt, create, evaluation_of, play

pytestmark = pytest.mark.integration

ABSENT = "01M1GFRNR5F4N8S2JZV85T30A4"
CASES = [{"key": "a", "input": "a"}, {"key": "b", "input": "b"}]


def refused(sdk: Sdk, kind: str, status: int, code: str, name: str, /, *args: Any, **keywords: Any) -> SdkError:
    """The error of a call: its class, its code, and the whole problem document behind it."""
    with pytest.raises(SdkError) as raised:
        sdk.call(name, *args, **keywords)
    error = raised.value
    assert (error.type, error.status, error.code) == (kind, status, code), error
    assert "SploxAPIError" in error.bases
    assert error.problem is not None
    assert error.problem["type"] == f"https://api.splox.com/problems/{code}"
    assert (error.message, error.trace_id) == (error.problem["detail"], error.problem.get("trace_id"))
    return error


def names(error: SdkError) -> list[str]:
    """The pointers of a problem."""
    entries = error.errors or (error.problem or {}).get("errors", [])
    return [entry["name"] for entry in entries]


@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("token", ["wrong", "eft_wrong"])
def test_401_for_a_token_that_is_none(served: Target, strangers: str, token: str, flavour: str) -> None:
    with official(strangers, served.urls[0], token, flavour) as nobody:
        for name, *args in (("runs.list",), ("runs.get", "run_x"), ("harnesses.list",), ("evaluations.get", "x")):
            refused(nobody, "SploxAuthError", 401, "unauthorized", name, *args)
        refused(nobody, "SploxAuthError", 401, "unauthorized", "runs.stream_events", f"run_{ABSENT}")
        refused(nobody, "SploxAuthError", 401, "unauthorized", "runs.create", "x", harness_id=served.harness_id)


def test_403_for_publishing(sdk: Sdk, served: Target) -> None:
    forbidden = ("SploxForbiddenError", 403, "forbidden")
    error = refused(sdk, *forbidden, "harnesses.create", "mine", files={"agent.py": "x"})
    assert error.message is not None
    assert "--tree" in error.message
    refused(sdk, *forbidden, "harnesses.update", served.harness_id, name="mine")
    refused(sdk, *forbidden, "harnesses.delete", served.harness_id)
    assert sdk.call("harnesses.get", served.harness_id)["name"] == "concierge"


def test_404_for_what_is_not_there_and_for_what_is_somebody_elses(sdk: Sdk, served: Target, strangers: str) -> None:
    absent = ("SploxNotFoundError", 404, "not_found")
    run = play(sdk, served)
    evaluation = evaluation_of(sdk, served, CASES)
    for run_id in (f"run_{ABSENT}", "run_nonsense"):
        for name in ("get", "cancel", "messages", "outputs", "tree", "usage", "list_events", "stream_events"):
            refused(sdk, *absent, f"runs.{name}", run_id)
    refused(sdk, *absent, "evaluations.get", f"eval_{ABSENT}")
    refused(sdk, *absent, "evaluations.submit_attempts", f"eval_{ABSENT}", [attempt("a", 0, run)])
    refused(sdk, *absent, "harnesses.get", f"h_{ABSENT}")
    refused(sdk, *absent, "harness_versions.get", served.harness_id, "f" * 40)
    refused(sdk, *absent, "runs.create", "x", harness_id=f"h_{ABSENT}")
    refused(sdk, *absent, "runs.create", "x", harness_id=served.harness_id, chat_id=f"chat_{ABSENT}")
    refused(sdk, *absent, "interactions.get", f"int_{ABSENT}")
    refused(sdk, *absent, "interactions.respond", f"int_{ABSENT}", type="text", text="yes")
    refused(sdk, *absent, "llm_endpoints.list")  # a part of the platform that this server is not
    assert served.other_token is not None
    with official(strangers, served.urls[0], served.other_token) as other:
        for name in ("get", "cancel", "messages", "stream_events"):
            refused(other, *absent, f"runs.{name}", run["id"])
        for name in ("get", "complete", "cancel"):
            refused(other, *absent, f"evaluations.{name}", evaluation["id"])


def test_405_and_406_and_415_have_no_class_of_their_own(sdk: Sdk, served: Target) -> None:
    plain = "SploxAPIError"
    traced = {"X-Request-Id": "trace-1"}
    error = refused(sdk, plain, 405, "method_not_allowed", "raw", "PUT", "/v2/runs", headers=traced)
    assert error.trace_id == "trace-1"
    run = play(sdk, served)
    events, html = f"/v2/runs/{run['id']}/events", {"Accept": "text/html"}
    refused(sdk, plain, 406, "not_acceptable", "raw", "GET", events, headers=html)
    text = {"Content-Type": "text/plain"}
    batch = f"/v2/evaluations/{evaluation_of(sdk, served, CASES)['id']}/attempts:batch"
    refused(sdk, plain, 415, "unsupported_media_type", "raw", "POST", batch, json_body={}, headers=text)


def test_409_for_a_key_that_was_used_for_something_else(sdk: Sdk, served: Target) -> None:
    conflict = ("SploxConflictError", 409, "idempotency_key_conflict")
    key = str(uuid4())
    create(sdk, served, "one", idempotency_key=key)
    refused(sdk, *conflict, "runs.create", "two", harness_id=served.harness_id, idempotency_key=key)
    suite = {"k": 1, "suite_id": "s", "scorer_id": "s", "scorer_version": "1", "idempotency_key": key}
    sdk.call("evaluations.create", served.harness_id, CASES, **suite)  # a key belongs to its path
    refused(sdk, *conflict, "evaluations.create", served.harness_id, CASES[:1], **suite)


def test_409_for_an_evaluation_in_another_state_or_an_attempt_of_another_run(sdk: Sdk, served: Target) -> None:
    kind = "SploxConflictError"
    runs = [play(sdk, served) for _ in range(3)]
    evaluation = evaluation_of(sdk, served, CASES)
    first = evaluation["id"]
    sdk.call("evaluations.submit_attempts", first, [attempt("a", 0, runs[0])])
    error = refused(sdk, kind, 409, "evaluation_incomplete", "evaluations.complete", first)
    assert names(error) == [f"/cases/{evaluation['cases'][1]['id']}"]
    both = [attempt("b", 0, runs[1]), attempt("a", 0, runs[2])]  # a run is evidence for one attempt
    error = refused(sdk, kind, 409, "attempt_conflict", "evaluations.submit_attempts", first, both)
    assert names(error) == ["/attempts/1/run_id"]
    assert sdk.call("evaluations.get", first)["cases"][1]["recorded_attempts"] == []
    sdk.call("evaluations.submit_attempts", first, [attempt("b", 0, runs[1])])
    sdk.call("evaluations.complete", first)
    refused(sdk, kind, 409, "evaluation_completed", "evaluations.cancel", first)
    refused(sdk, kind, 409, "attempt_conflict", "evaluations.submit_attempts", first, both)
    second = evaluation_of(sdk, served, CASES)["id"]
    sdk.call("evaluations.cancel", second)
    refused(sdk, kind, 409, "evaluation_cancelled", "evaluations.complete", second)
    refused(sdk, kind, 409, "evaluation_cancelled", "evaluations.submit_attempts", second, both)


def test_410_for_a_cursor_beyond_the_journal(sdk: Sdk, served: Target) -> None:
    """No client can make one: as if the database had been set back."""
    run = play(sdk, served)
    beyond = event_cursor(run["id"], 9999)
    gone = ("SploxGoneError", 410, "event_cursor_expired")
    refused(sdk, *gone, "runs.list_events", run["id"], cursor=beyond)
    refused(sdk, *gone, "runs.stream_events", run["id"], cursor=beyond)


def test_413_for_a_body_over_the_limit_has_no_class_of_its_own(sdk: Sdk, served: Target) -> None:
    text = "x" * (8 * 1024 * 1024)
    refused(sdk, "SploxAPIError", 413, "body_too_large", "runs.create", text, harness_id=served.harness_id)


@pytest.mark.parametrize(
    ("input_", "more", "pointer"),
    [
        pytest.param([], {}, "/input/content", id="no part"),
        pytest.param([{"type": "video"}], {}, "/input/content/0/type", id="an unknown part"),
        pytest.param({"role": "system", "content": [{"type": "text", "text": "x"}]}, {}, "/input/role", id="a role"),
        pytest.param("x", {"metadata": {"splox.a": 1}}, "/metadata/splox.a", id="a reserved key"),
        pytest.param("x", {"metadata": {"a~/b": [1]}}, "/metadata/a~0~1b", id="a list as metadata"),
        pytest.param("x", {"metadata": {str(n): n for n in range(51)}}, "/metadata", id="51 keys of metadata"),
    ],
)
def test_422_for_a_run_that_cannot_be_has_its_pointer(
    sdk: Sdk, served: Target, input_: Any, more: dict[str, Any], pointer: str
) -> None:
    invalid = ("SploxValidationError", 422, "validation_failed")
    error = refused(sdk, *invalid, "runs.create", input_, harness_id=served.harness_id, **more)
    assert names(error) == [pointer]
    assert set(error.errors[0]) == {"name", "location", "reason", "code"}


@pytest.mark.parametrize(
    ("cases", "more", "pointers"),
    [
        pytest.param([], {}, ["/cases"], id="no case"),
        pytest.param([*CASES, CASES[0]], {}, ["/cases/2/key"], id="a key twice"),
        pytest.param(CASES, {"k": 0}, ["/k"], id="k 0"),
        pytest.param(CASES, {"k": 101}, ["/k"], id="k 101"),
        pytest.param(CASES, {"suite_id": " "}, ["/suite/key"], id="a blank suite"),
        pytest.param(CASES, {"harness_commit": "main"}, ["/harness_commit"], id="no commit"),
        pytest.param(CASES, {"harness_commit": "f" * 40}, ["/harness_commit"], id="an unknown commit"),
        pytest.param(CASES, {"baseline_harness_commit": "f" * 40}, ["/baseline_harness_commit"], id="a baseline"),
        pytest.param([{"key": ""}, {"input": 1}], {"k": 0}, ["/k", "/cases/0/key", "/cases/1/key"], id="all at once"),
    ],
)  # fmt: skip
def test_422_for_an_evaluation_that_cannot_be_has_every_pointer(
    sdk: Sdk, served: Target, cases: list[Any], more: dict[str, Any], pointers: list[str]
) -> None:
    suite = {"k": 1, "suite_id": "s", "scorer_id": "s", "scorer_version": "1", **more}
    error = refused(
        sdk, "SploxValidationError", 422, "validation_failed", "evaluations.create", served.harness_id, cases, **suite
    )
    assert sorted(names(error)) == sorted(pointers)


def test_422_for_what_is_no_evidence_has_its_pointer_and_nothing_is_applied(sdk: Sdk, served: Target) -> None:
    first, run, going = play(sdk, served), play(sdk, served), create(sdk, served, "wait")
    elsewhere = sdk.call("runs.create", "hello", harness_id=served.other_harness_id)
    sdk.call("runs.stream_events", elsewhere["id"])
    evaluation = evaluation_of(sdk, served, CASES)
    good = attempt("a", 0, first)
    table = [
        (attempt("b", 0, first), "run_id"),  # the evidence for another attempt
        (attempt("b", 0, {"id": f"run_{ABSENT}"}), "run_id"),
        (attempt("b", 0, {"id": "nonsense"}), "run_id"),
        (attempt("b", 0, going), "run_id"),
        (attempt("b", 0, elsewhere), "run_id"),
        (attempt("c", 0, run), "case_key"),
        (attempt("b", 1, run), "attempt_index"),
        (attempt("b", 0, run, "maybe"), "verdict"),
        (attempt("b", 0, run, judge_score=0.5), "judge_score"),
        (attempt("b", 0, run, judge_score="NaN"), "judge_score"),
        ({**attempt("b", 0, run), "scorer_version": "2"}, "scorer_version"),
        ({**attempt("b", 0, run), "case_id": evaluation["cases"][1]["id"]}, "case_key"),
    ]
    for bad, field in table:
        error = refused(
            sdk, "SploxValidationError", 422, "validation_failed",
            "evaluations.submit_attempts", evaluation["id"], [good, bad],
        )  # fmt: skip
        assert names(error) == [f"/attempts/1/{field}"], bad
    assert sdk.call("evaluations.get", evaluation["id"]) == evaluation
    sdk.call("runs.cancel", going["id"])


def judge_call(sdk: Sdk, served: Target, status: int, kind: str, code: str) -> SdkError:
    """The only route of ours that is answered 429 and 502: what the judge's endpoint says. The prompt asks for it."""
    run = play(sdk, served)
    body = {"prompt": "x", "model": f"answers {status}"}
    return refused(sdk, kind, status, code, "raw", "POST", f"/v1/runs/{run['id']}/hook/llm", json_body=body)


def test_429_says_when_to_come_back(sdk: Sdk, served: Target) -> None:
    assert judge_call(sdk, served, 429, "SploxRateLimitError", "rate_limited").retry_after == 7


def test_502_and_403_of_the_judge(sdk: Sdk, served: Target) -> None:
    judge_call(sdk, served, 502, "SploxServerError", "upstream_unavailable")
    body = {"prompt": "x", "model": "answers 402"}
    path = f"/v1/runs/{play(sdk, served)['id']}/hook/llm"
    refused(sdk, "SploxForbiddenError", 403, "insufficient_balance", "raw", "POST", path, json_body=body)


@pytest.mark.parametrize(
    ("name", "keywords", "code", "pointer"),
    [
        ("runs.list", {"limit": 0}, "invalid_parameter", "limit"),
        ("runs.list", {"limit": 101}, "invalid_parameter", "limit"),
        ("runs.list", {"status": "done"}, "invalid_parameter", "status"),
        ("runs.list", {"created_after": "yesterday"}, "invalid_parameter", "created_after"),
        ("runs.list", {"cursor": "x"}, "cursor_invalid", "cursor"),
        ("harnesses.list", {"cursor": "x"}, "cursor_invalid", "cursor"),
        ("evaluations.list", {}, "invalid_parameter", "harness_commit"),
        ("evaluations.list", {"harness_commit": "main"}, "invalid_parameter", "harness_commit"),
        ("evaluations.list", {"harness_commit": "f" * 40, "statuses": ["pending"]}, "invalid_parameter", "status"),
    ],
)
def test_400_for_a_query_that_is_not_understood(
    sdk: Sdk, name: str, keywords: dict[str, Any], code: str, pointer: str
) -> None:
    assert names(refused(sdk, "SploxBadRequestError", 400, code, name, **keywords)) == [pointer]


def test_400_for_other_things_that_are_not_understood(sdk: Sdk, served: Target) -> None:
    bad = ("SploxBadRequestError", 400)
    run = play(sdk, served)
    for _ in range(2):
        play(sdk, served)
    cursor = sdk.call("runs.list", limit=1)["page"]["next_cursor"]
    assert cursor
    refused(sdk, *bad, "cursor_filter_mismatch", "runs.list", cursor=cursor, status="failed")
    refused(sdk, *bad, "validation_failed", "runs.list_events", run["id"], limit=501)  # wire.md: 400 here
    refused(sdk, *bad, "cursor_invalid", "runs.stream_events", run["id"], cursor="x")
    both = {"harness_id": served.harness_id, "harness_commit": served.commits[-1]}
    refused(sdk, *bad, "invalid_parameter", "evaluations.list", **both)
    for key in ("a b", "x" * 256):
        create_with = {"harness_id": served.harness_id, "idempotency_key": key}
        refused(sdk, *bad, "idempotency_key_invalid", "runs.create", "x", **create_with)
    refused(sdk, *bad, "unknown_field", "evaluations.create", served.harness_id, [{"key": "a", "expect": 1}],
            k=1, suite_id="s", scorer_id="s", scorer_version="1")  # fmt: skip
    body = {"harness_id": served.harness_id, "input": {"role": "user", "content": [{"type": "text", "text": "x"}]}}
    refused(sdk, *bad, "idempotency_key_required", "raw", "POST", "/v2/runs", json_body=body)
    refused(sdk, *bad, "invalid_body", "raw", "POST", f"/v2/evaluations/eval_{ABSENT}/attempts:batch", json_body=[])
