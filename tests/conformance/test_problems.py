"""wire.md, "Problem documents": odd and hostile requests get a document with a stable code, never a 5xx (E08)."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from tests.conformance.conftest import Caller, assert_problem, fresh
from tests.conformance.deployments import Target

JSON = {"Content-Type": "application/json"}

BODIES = [
    pytest.param(b"[" * 100_000, 400, "invalid_json", id="100,000 brackets"),
    pytest.param(b'{"a":' * 250 + b"1" + b"}" * 250, 400, "invalid_json", id="250 levels"),
    pytest.param(b'{"a":' + b"9" * 5000 + b"}", 400, "invalid_json", id="a 5,000-digit number"),
    pytest.param(b"[]", 400, "invalid_body", id="a list"),
    pytest.param(b"null", 400, "invalid_body", id="null"),
    pytest.param(b"17", 400, "invalid_body", id="a number"),
    pytest.param(b'"text"', 400, "invalid_body", id="a string"),
    pytest.param(b"", 400, "invalid_json", id="empty"),
    pytest.param(b" \n\t", 400, "invalid_json", id="blanks"),
    pytest.param('{"harness_id":"é"}'.encode("latin-1"), 400, "invalid_json", id="latin-1"),
    pytest.param(b"{", 400, "invalid_json", id="half"),
    pytest.param(b"{} {}", 400, "invalid_json", id="two"),
    pytest.param(b"{'a':1}", 400, "invalid_json", id="single quotes"),
    pytest.param(b'{"a":NaN}', 400, "invalid_json", id="NaN"),
    pytest.param(b'{"a":Infinity}', 400, "invalid_json", id="Infinity"),
    pytest.param(b'{"a":1e999999}', 400, "invalid_json", id="a float beyond floats"),
    pytest.param(b'{"a":1}', 400, "unknown_field", id="unknown field"),
    pytest.param(b'{"\\ud800":1}', 400, "unknown_field", id="a lone surrogate as a field"),
    pytest.param(b'{"\\u0000":1}', 400, "unknown_field", id="NUL as a field"),
    pytest.param(b"{}", 422, "validation_failed", id="nothing"),
]


@pytest.mark.parametrize(("content", "status", "code"), BODIES)
@pytest.mark.parametrize("route", ["runs", "evaluations", "batch", "judge"])
def test_wire_problem_documents_a_body_that_is_no_request_e08(
    api: Caller, finished: dict[str, Any], route: str, content: bytes, status: int, code: str
) -> None:
    path = {
        "runs": "/v2/runs",
        "evaluations": "/v2/evaluations",
        "batch": f"/v2/evaluations/{api.evaluation()['id']}/attempts:batch" if route == "batch" else "",
        "judge": f"/v1/runs/{finished['id']}/hook/llm",
    }[route]
    if route == "batch" and content.startswith(b'{"a":{'):
        code = "unknown_field"  # a batch's shape is fixed: its first unknown key is named, however deep it is
    answer = api.send("POST", path, content=content, headers={**JSON, "Idempotency-Key": fresh()})
    assert_problem(answer, status, code)


def test_wire_problem_documents_an_unknown_field_is_named(api: Caller) -> None:
    answer = api.post("/v2/runs", {**api.run_body(), "harnes_id": 1}, key=fresh())
    document = assert_problem(answer, 400, "unknown_field", "/harnes_id")
    assert "harnes_id" in document["detail"]
    nested = api.evaluation_body()
    nested["cases"][0]["expect"] = {}
    answer = api.post("/v2/evaluations", nested, key=fresh())
    assert "expect" in assert_problem(answer, 400, "unknown_field", "/cases/0/expect")["detail"]


@pytest.mark.parametrize(
    "media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "nonsense"]
)
def test_wire_problem_documents_a_body_that_is_said_to_be_something_else_is_415(api: Caller, media: str) -> None:
    content = json.dumps(api.run_body()).encode()
    answer = api.send("POST", "/v2/runs", content=content, headers={"Content-Type": media, "Idempotency-Key": fresh()})
    assert_problem(answer, 415, "unsupported_media_type")


def test_wire_problem_documents_a_body_that_is_too_large_is_413(api: Caller, ours: Target) -> None:
    headers = {**JSON, "Idempotency-Key": fresh()}
    answer = api.send("POST", "/v2/runs", content=b" " * (8 * 1024 * 1024 + 1), headers=headers)
    assert_problem(answer, 413, "body_too_large")


@pytest.mark.parametrize("path", ["/", "/v2", "/v2/runs/", "/v3/runs", "/v2/nothing", "/v2/%00", "/v2/runs/a/b/c"])
def test_wire_problem_documents_an_unknown_path_is_404_also_for_browsers_e08(api: Caller, path: str) -> None:
    assert_problem(api.send("GET", path, headers={"Accept": "text/html"}), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", "/v2/runs", {"GET", "POST"}),
        ("PUT", "/v2/runs", {"GET", "POST"}),
        ("PATCH", "/v2/runs/run_1", {"GET"}),
        ("GET", "/v2/runs/run_1/cancel", {"POST"}),
        ("POST", "/v2/runs/run_1/events", {"GET"}),
        ("DELETE", "/v2/evaluations/eval_1", {"GET"}),
        ("GET", "/v2/evaluations/eval_1/attempts:batch", {"POST"}),
        ("PUT", "/v2/evaluations/eval_1/complete", {"POST"}),
        ("PUT", "/v2/harnesses/h_1", {"GET", "PATCH", "DELETE"}),
        ("DELETE", "/v2/interactions", {"GET"}),
        ("TRACE", "/v2/runs", {"GET", "POST"}),
    ],
)
def test_wire_problem_documents_a_wrong_method_is_405_and_says_which_are_right_e08(
    api: Caller, method: str, path: str, allow: set[str]
) -> None:
    answer = api.send(method, path)
    assert_problem(answer, 405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) - {"HEAD"} == allow


def raw(target: Target, request: bytes) -> bytes:
    """What a server says to bytes of ours."""
    url = httpx.URL(target.urls[0])
    with socket.create_connection((url.host, url.port or 80), timeout=10) as wire:
        wire.sendall(request)
        wire.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: wire.recv(65536), b""))


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(b"Content-Length: 5\r\nContent-Length: 6\r\n", id="two lengths"),
        pytest.param(b"Content-Length: -1\r\n", id="a negative length"),
        pytest.param(b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", id="a length and chunks"),
        pytest.param(b"X: " + b"a" * 200_000 + b"\r\n", id="a header of 200 kB"),
        pytest.param(b"Bad Header: 1\r\n", id="a blank in a header's name"),
        pytest.param(b"X-Request-Id: a\r\nX-Request-Id: b\r\n", id="two request ids"),
        pytest.param(b"X-Request-Id: " + b"a" * 5000 + b"\r\n", id="a request id of 5 kB"),
        pytest.param(b"X-Request-Id: \xff\xfe\r\n", id="a request id that is no ASCII"),
        pytest.param(b"Accept: \xff\r\n", id="an Accept that is no ASCII"),
    ],
)
def test_wire_problem_documents_tricks_with_headers_are_never_our_fault_e08(
    target: Target, ours: Target, headers: bytes
) -> None:
    said = raw(
        target,
        b"GET /v2/runs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Authorization: Bearer " + target.token.encode() + b"\r\n" + headers + b"\r\n",
    )
    status = int(said.split(b" ", 2)[1]) if said else 400  # closed without a word: no HTTP was spoken
    assert status < 500
    assert b"Traceback" not in said


def test_wire_problem_documents_text_with_nul_and_surrogates_comes_back_as_it_was_e07(api: Caller) -> None:
    odd = {"a": "\x00", "b": "\\u0000", "c": "\ud800", "d": "a\u2028b", "e": "é"}
    body = json.dumps({**api.run_body(), "metadata": odd}).encode("ascii")
    made = api.send("POST", "/v2/runs", content=body, headers={**JSON, "Idempotency-Key": fresh()})
    assert made.status_code == 201
    assert api.get(f"/v2/runs/{made.json()['id']}")["metadata"] == odd
    body = json.dumps(api.evaluation_body(cases=[{"key": value, "name": value} for value in odd.values()])).encode()
    made = api.send("POST", "/v2/evaluations", content=body, headers={**JSON, "Idempotency-Key": fresh()})
    assert made.status_code == 201
    read = api.get(f"/v2/evaluations/{made.json()['id']}")
    assert [case["key"] for case in read["cases"]] == list(odd.values())
    assert [case["name"] for case in read["cases"]] == list(odd.values())
