"""Odd and hostile requests always get a problem document with a stable code (E08), and odd text survives (E07)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from evalfleet.contract.ids import uuid_of
from evalfleet.server.driving import Call, Ended, Sink, Turn
from tests.server.conftest import COMMIT, Api, ScriptedDriver, assert_problem, run_body

JSON = {"Content-Type": "application/json"}
E07 = Path(__file__).parent.parent / "cases" / "E07.json"


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        pytest.param(b"[" * 100_000, 400, "invalid_json", id="100,000 brackets"),
        pytest.param(b'{"a":' * 900 + b"1" + b"}" * 900, 400, "invalid_json", id="900 levels"),
        pytest.param(b'{"a":' * 250 + b"1" + b"}" * 250, 400, "invalid_json", id="250 levels"),
        pytest.param(b'{"a":' + b"9" * 5000 + b"}", 400, "invalid_json", id="a 5,000-digit number"),
        pytest.param(b"[]", 400, "invalid_body", id="a list"),
        pytest.param(b"null", 400, "invalid_body", id="null"),
        pytest.param(b'"text"', 400, "invalid_body", id="a string"),
        pytest.param(b"", 400, "invalid_json", id="empty"),
        pytest.param(b"   ", 400, "invalid_json", id="blanks"),
        pytest.param('{"harness_id":"é"}'.encode("latin-1"), 400, "invalid_json", id="latin-1"),
        pytest.param(b"{", 400, "invalid_json", id="half"),
        pytest.param(b'{"a":NaN}', 400, "invalid_json", id="NaN"),
        pytest.param(b'{"a":-Infinity}', 400, "invalid_json", id="-Infinity"),
        pytest.param(b'{"metadata":{"a":-1e999}}', 400, "invalid_json", id="a number that is infinite"),
        pytest.param(b'{"a":1}', 400, "unknown_field", id="unknown field"),
        pytest.param(b"{}", 422, "validation_failed", id="nothing"),
    ],
)
@pytest.mark.parametrize("route", ["/v2/runs", "/v2/evaluations"])
async def test_bodies_that_are_no_request_e08(api: Api, route: str, content: bytes, status: int, code: str) -> None:
    answer = await api.http.post(route, content=content, headers={**JSON, **api.key()})
    assert_problem(answer, status, code)


async def test_a_byte_order_mark_is_passed_over_and_the_last_of_equal_keys_counts_e08(api: Api) -> None:
    body = json.dumps(run_body(api.harness_id, metadata={"x": "X"})).replace('"x": "X"', '"x": 1, "x": 9')
    answer = await api.http.post("/v2/runs", content=b"\xef\xbb\xbf" + body.encode(), headers={**JSON, **api.key()})
    assert answer.status_code == 201
    assert answer.json()["metadata"] == {"x": 9}


async def test_a_body_over_the_limit_is_413_e08(api: Api) -> None:
    headers = {**JSON, **api.key()}
    answer = await api.http.post("/v2/runs", content=b" " * (8 * 1024 * 1024 + 1), headers=headers)
    assert_problem(answer, 413, "body_too_large")

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(9):
            yield b" " * 1024 * 1024

    assert_problem(await api.http.post("/v2/runs", content=pieces(), headers=headers), 413, "body_too_large")


@pytest.mark.parametrize(("media", "taken"), [("text/plain", False), ("application/json; charset=utf-8", True)])
async def test_the_content_type_must_be_json_e08(api: Api, media: str, taken: bool) -> None:
    content = json.dumps(run_body(api.harness_id)).encode()
    answer = await api.http.post("/v2/runs", content=content, headers={"Content-Type": media, **api.key()})
    if taken:
        assert answer.status_code == 201
    else:
        assert_problem(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", "/v2/runs", "GET, POST"),
        ("HEAD", "/v2/runs", "GET, POST"),
        ("PUT", "/v2/evaluations/eval_1/complete", "POST"),
        ("GET", "/v2/evaluations/eval_1/attempts:batch", "POST"),
        ("PUT", "/v2/harnesses", "GET, POST"),
        ("POST", "/v2/harnesses/h_1", "DELETE, GET, PATCH"),
        ("POST", "/readyz", "GET"),
        ("POST", "/healthz", "GET"),
    ],
)
async def test_a_wrong_method_says_which_are_right_e08(api: Api, method: str, path: str, allow: str) -> None:
    answer = await api.http.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allow
    if method != "HEAD":
        assert_problem(answer, 405, "method_not_allowed")


@pytest.mark.parametrize("path", ["/", "/v2", "/v2/runs/", "/v3/runs", "/v2/runs/run_1/nothing", "/v2/%00"])
async def test_an_unknown_path_is_404_also_for_browsers_e08(api: Api, path: str) -> None:
    assert_problem(await api.http.get(path, headers={"Accept": "text/html"}), 404, "not_found")


@pytest.mark.parametrize(
    "run_id",
    ["run_1", "chat_01M1GFXMZ8EDKS45DA3VXS7B42", "run_01M1GFXMZ8EDKS45DA3VXS7B42", "x" * 3000, "%F0%9F", "%ED%A0%80"],
)
async def test_a_malformed_id_is_404(api: Api, run_id: str) -> None:
    assert_problem(await api.http.get(f"/v2/runs/{run_id}"), 404, "not_found")


async def test_a_raw_uuid_is_taken_for_an_id(api: Api) -> None:
    run = await api.play()
    assert await api.get(f"/v2/runs/{uuid_of(run['id'], 'run')}") == run
    again = await api.create("again", chat_id=str(uuid_of(run["chat_id"], "chat")))
    assert again["chat_id"] == run["chat_id"]


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer wrong", "Basic dG9rZW4=", "token-of-the-tests", "Bearer é"]
)
@pytest.mark.parametrize("path", ["/v2/runs", "/v2/nothing", "/v1/runs/x/hook/llm"])
async def test_without_a_valid_token_there_is_nothing_but_401(api: Api, header: str | None, path: str) -> None:
    async with httpx.AsyncClient(base_url=api.url) as anonymous:
        headers = [] if header is None else [(b"Authorization", header.encode())]
        answer = await anonymous.get(path, headers=headers)
    assert_problem(answer, 401, "unauthorized")
    assert answer.headers["www-authenticate"] == 'Bearer realm="splox"'


async def test_the_request_id_is_echoed_as_trace_id(api: Api) -> None:
    answer = await api.http.get("/v2/runs/run_1", headers={"X-Request-Id": "trace-1"})
    assert assert_problem(answer, 404, "not_found")["trace_id"] == "trace-1"
    assert "trace_id" not in (await api.http.get("/v2/runs/run_1")).json()
    wrong = await api.http.get("/v2/runs", headers={"X-Request-Id": "t", "Authorization": "Bearer no"})
    assert wrong.json()["trace_id"] == "t"


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"harness_id": None}, "/harness_id"),
        ({"harness_id": 5}, "/harness_id"),
        ({"input": "text"}, "/input"),
        ({"input": {"role": "system", "content": [{"type": "text", "text": "x"}]}}, "/input/role"),
        ({"input": {"role": "user", "content": []}}, "/input/content"),
        ({"input": {"role": "user", "content": ["x"]}}, "/input/content/0"),
        ({"input": {"role": "user", "content": [{"type": "audio"}]}}, "/input/content/0/type"),
        ({"input": {"role": "user", "content": [{"type": "text", "text": 1}]}}, "/input/content/0/text"),
        ({"input": {"role": "user", "content": [{"type": "json"}]}}, "/input/content/0/value"),
        ({"input": {"role": "user", "content": [{"type": "file"}]}}, "/input/content/0/url"),
        ({"metadata": []}, "/metadata"),
        ({"metadata": {"splox.x": 1}}, "/metadata/splox.x"),
        ({"metadata": {"a/b": {}}}, "/metadata/a~1b"),
        ({"metadata": {str(number): 1 for number in range(51)}}, "/metadata"),
        ({"machine_id": 7}, "/machine_id"),
    ],
)
async def test_what_is_wrong_with_a_run_is_pointed_at(api: Api, change: dict[str, Any], pointer: str) -> None:
    answer = await api.http.post("/v2/runs", json={**run_body(api.harness_id), **change}, headers=api.key())
    assert_problem(answer, 422, "validation_failed", pointer)


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"harnes_id": 1}, "/harnes_id"),
        ({"input": {"role": "user", "content": [{"type": "text", "text": "x"}], "name": 1}}, "/input/name"),
        ({"input": {"role": "user", "content": [{"type": "text", "text": "x", "b": 1}]}}, "/input/content/0/b"),
    ],
)
async def test_an_unknown_field_is_named(api: Api, change: dict[str, Any], pointer: str) -> None:
    answer = await api.http.post("/v2/runs", json={**run_body(api.harness_id), **change}, headers=api.key())
    assert pointer.rpartition("/")[2] in assert_problem(answer, 400, "unknown_field", pointer)["detail"]


async def test_a_run_of_nothing_is_refused(api: Api) -> None:
    for harness_id in ("h_00000000000000000000000000", "nonsense"):
        answer = await api.http.post("/v2/runs", json=run_body(harness_id), headers=api.key())
        assert_problem(answer, 404, "not_found")
    chat = {"chat_id": "chat_00000000000000000000000000"}
    answer = await api.http.post("/v2/runs", json=run_body(api.harness_id, **chat), headers=api.key())
    assert_problem(answer, 404, "not_found", "/chat_id")


ODD = ["nul \x00 here", "literal \\u0000", "half \ud83d emoji", "\u2028\u2029\x85", "\x1b]0;x\x07", "é" * 3, "𝄞"]


@pytest.mark.parametrize("text", ODD, ids=ascii)
async def test_odd_text_is_stored_and_read_back_the_same_e07(api: Api, driver: ScriptedDriver, text: str) -> None:
    async def odd(turn: Turn, sink: Sink) -> Ended:
        await sink.tool_calls([Call("c", text, {text: text})])
        await sink.tool_result("c", [text])
        await sink.hook(text, text, text)
        await sink.answer(turn.message)
        return Ended()

    driver.script = odd
    content = json.dumps(run_body(api.harness_id, text, metadata={text: text})).encode("ascii")
    created = await api.http.post("/v2/runs", content=content, headers={**JSON, **api.key()})
    run = json.loads(created.content)
    assert run["metadata"] == {text: text}
    events = await api.stream(run["id"])
    assert events[-1]["data"] == {"to": "succeeded"}
    hooks = [event["data"] for event in events if event["type"] == "hook.called"]
    assert [hooks[0][name] for name in ("hook", "decision", "source")] == [text] * 3
    messages = json.loads((await api.http.get(f"/v2/runs/{run['id']}/messages")).content)["data"]
    assert messages[0]["content"][0]["text"] == text
    assert messages[1]["content"][0]["value"]["tool_call"] == {"id": "c", "name": text, "args": {text: text}}
    assert messages[2]["content"][0]["value"]["tool_result"]["output"] == [text]
    outputs = json.loads((await api.http.get(f"/v2/runs/{run['id']}/outputs")).content)["data"]
    assert outputs[0]["value"] == text
    assert driver.turns[0].message == text


async def test_numbers_that_json_libraries_stumble_over_survive(api: Api, driver: ScriptedDriver) -> None:
    async def numbers(turn: Turn, sink: Sink) -> Ended:
        await sink.answer({"big": 10**30, "nan": float("nan"), "inf": [float("inf")], "tiny": 1e-300})
        return Ended()

    driver.script = numbers
    run = await api.play()
    value = json.loads((await api.http.get(f"/v2/runs/{run['id']}/outputs")).content)["data"][0]["value"]
    assert value == {"big": 10**30, "nan": None, "inf": [None], "tiny": 1e-300}


async def test_a_case_with_nul_and_half_an_emoji_is_stored_e07(api: Api) -> None:
    case = json.loads(E07.read_text(encoding="utf-8"))["cases"][0]
    case["key"] = "nul\x00\ud800key"
    body = {"harness_id": api.harness_id, "suite": {"key": "s\x00"}, "cases": [case]}
    headers = {**JSON, **api.key()}
    created = await api.http.post("/v2/evaluations", content=json.dumps(body).encode("ascii"), headers=headers)
    assert created.status_code == 201
    evaluation = json.loads(created.content)
    assert evaluation["cases"][0]["key"] == case["key"]
    assert evaluation["cases"][0]["name"] == case["name"] == "nul \x00 name"
    assert evaluation["suite"]["key"] == "s\x00"
    run = await api.play()
    attempt = {
        "case_key": case["key"], "attempt_index": 0, "run_id": run["id"], "verdict": "passed",
        "judge_feedback": "a\x00b \\u0000", "scorer_id": "s", "scorer_version": "1",
    }  # fmt: skip
    path = f"/v2/evaluations/{evaluation['id']}/attempts:batch"
    content = json.dumps({"attempts": [attempt]}).encode("ascii")
    recorded = await api.http.post(path, content=content, headers=JSON)
    assert recorded.status_code == 200
    assert json.loads(recorded.content)["evaluation"]["cases"][0]["status"] == "passed"
    listed = await api.get("/v2/evaluations", harness_commit=COMMIT)
    assert listed["data"][0]["name"] == "s\x00"


async def test_the_api_page_and_the_schema_are_served_without_a_token(api: Api) -> None:
    async with httpx.AsyncClient(base_url=api.url) as anonymous:
        schema = (await anonymous.get("/openapi.json")).json()
        assert "/v2/evaluations/{evaluation_id}/attempts:batch" in schema["paths"]
        assert (await anonymous.get("/docs")).status_code == 200
        health = (await anonymous.get("/healthz")).json()
        assert health["status"] == "ok"
        metrics = (await anonymous.get("/metrics")).text
        assert "evalfleet_server_runs_active 0.0" in metrics


async def test_a_fault_of_ours_is_a_problem_document_without_details(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr("evalfleet.server.runs.get", broken)
    answer = await api.http.get("/v2/runs/run_01M1GFXMZ8EDKS45DA3VXS7B42")
    assert_problem(answer, 500, "internal_error")
    assert "secret" not in answer.text
    assert "a secret of the inside" in caplog.text
