"""Problem documents (wire.md), written by the server and read by the client (E10)."""

from __future__ import annotations

import json

import pytest

from evalfleet.contract.problems import PROBLEM_TYPES, Problem, ProblemField, read_problem


def test_a_problem_is_the_seed_s_document_to_the_byte() -> None:
    problem = Problem.of("evaluation_completed", "A completed evaluation cannot be cancelled.")
    assert problem.body() == (
        b'{"type":"https://api.splox.com/problems/evaluation_completed","title":"Conflict","status":409,'
        b'"detail":"A completed evaluation cannot be cancelled.","code":"evaluation_completed"}'
    )


def test_errors_and_the_trace_id_are_there_only_when_there_are_any() -> None:
    problem = Problem.of(
        "evaluation_incomplete",
        "…",
        errors=[ProblemField("/cases/ecase_1", "server", "case has 0 of 1 required attempts", "incomplete")],
        trace_id="req-1",
    )
    document = problem.document()
    assert document["trace_id"] == "req-1"
    assert document["errors"] == [
        {
            "name": "/cases/ecase_1",
            "location": "server",
            "reason": "case has 0 of 1 required attempts",
            "code": "incomplete",
        }
    ]


def test_a_401_names_the_scheme() -> None:
    headers = Problem.of("unauthorized", "…").response_headers()
    assert headers["WWW-Authenticate"] == 'Bearer realm="splox"'
    assert headers["Content-Type"] == "application/problem+json"


def test_extra_headers_are_kept() -> None:
    problem = Problem.of("rate_limited", "…", headers={"Retry-After": "2"})
    assert problem.response_headers() == {"Content-Type": "application/problem+json", "Retry-After": "2"}


def test_a_status_may_differ_from_the_code_s_usual_one() -> None:
    assert Problem(400, "validation_failed", "limit").document()["title"] == "Bad Request"


def test_a_detail_that_quotes_half_an_emoji_is_still_valid_utf8() -> None:
    body = Problem.of("invalid_body", "seen: ok \ud83d").body()
    assert json.loads(body.decode("utf-8"))["detail"] == "seen: ok \ud83d"


@pytest.mark.parametrize("code", sorted(PROBLEM_TYPES))
def test_what_the_server_writes_the_client_reads(code: str) -> None:
    problem = Problem.of(code, "why", errors=[ProblemField("/k", "body", "too big", "max")])
    read = read_problem(problem.status, "application/problem+json", problem.body())
    assert (read.code, read.detail, len(read.errors), read.quota) == (code, "why", 1, False)


UNREADABLE = [
    pytest.param(503, "text/html", b"<html>down</html>", "", "Service Unavailable (17 bytes of text/html)", id="html"),
    pytest.param(502, "", b"", "", "Bad Gateway (0 bytes of no content type)", id="empty"),
    pytest.param(500, "application/json", b"[1]", "", "Internal Server Error (3 bytes of application/json)", id="list"),
    pytest.param(500, "application/json", b'{"detail": 7, "code": []}', "", "Internal Server Error", id="wrong types"),
    pytest.param(400, "application/json", b'{"message": "no"}', "", "no", id="another error shape"),
    pytest.param(500, "application/json", b"[" * 100_000, "", None, id="deep"),
    pytest.param(500, "application/json", b'{"detail": "\xff"}', "", "\ufffd", id="not UTF-8"),
]


@pytest.mark.parametrize(("status", "content_type", "body", "code", "detail"), UNREADABLE)
def test_e10_an_unreadable_body_is_a_problem_without_a_code(
    status: int, content_type: str, body: bytes, code: str, detail: str | None
) -> None:
    read = read_problem(status, content_type, body)
    assert read.code == code
    if detail is not None:
        assert read.detail == detail


@pytest.mark.parametrize(
    "body",
    [
        b'{"error": "usage_window_exceeded", "retry_after_seconds": 17604}',
        b'{"code": "usage_window_exceeded", "detail": "x", "retry_after_seconds": 17604}',
    ],
)
def test_e10_the_second_kind_of_429_is_a_quota_with_its_reset_time(body: bytes) -> None:
    read = read_problem(429, "application/json", body)
    assert (read.code, read.quota, read.retry_after) == ("usage_window_exceeded", True, 17604.0)
