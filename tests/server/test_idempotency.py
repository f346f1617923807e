"""One key, one effect (E01, E02, E03)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.server.conftest import OTHER_TOKEN, Api, ScriptedDriver, assert_problem, run_body, serving

BODIES = [
    pytest.param('{"harness_id":"%s","input":{"role":"user","content":[{"type":"text","text":"café"}]}}', id="plain"),
    pytest.param(
        '{ "input": {"content":[ {"text":"caf\\u00e9","type":"text"}],"role":"user"},\n "harness_id" : "%s" }',
        id="other order, spaces and escapes",
    ),
]


async def test_thirty_two_requests_with_one_key_make_one_run_e01(api: Api, driver: ScriptedDriver) -> None:
    body, headers = run_body(api.harness_id), api.key()
    answers = await asyncio.gather(*(api.http.post("/v2/runs", json=body, headers=headers) for _ in range(32)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1
    replayed = [answer.headers.get("idempotency-replayed") for answer in answers]
    assert replayed.count("true") == 31
    assert {answer.headers["location"] for answer in answers} == {f"/v2/runs/{answers[0].json()['id']}"}
    await api.stream(answers[0].json()["id"])
    late = await api.http.post("/v2/runs", json=body, headers=headers)
    assert late.content == answers[0].content  # the original answer, from the time of creation
    assert late.headers["idempotency-replayed"] == "true"
    assert len(driver.turns) == 1


@pytest.mark.parametrize("second", BODIES)
async def test_equal_json_is_the_same_body_e03(api: Api, second: str) -> None:
    headers = {**api.key(), "Content-Type": "application/json"}
    first = BODIES[0].values[0] % api.harness_id  # type: ignore[operator]
    one = await api.http.post("/v2/runs", content=first.encode(), headers=headers)
    two = await api.http.post("/v2/runs", content=(second % api.harness_id).encode(), headers=headers)
    assert one.status_code == two.status_code == 201
    assert one.content == two.content


async def test_a_whole_number_is_the_same_with_and_without_its_point_e03(api: Api) -> None:
    headers = api.key()
    answers = [
        await api.http.post("/v2/runs", json=run_body(api.harness_id, metadata={"k": number}), headers=headers)
        for number in (1, 1.0)
    ]
    assert answers[0].content == answers[1].content


async def test_another_body_under_the_same_key_is_a_conflict(api: Api) -> None:
    headers = api.key()
    await api.http.post("/v2/runs", json=run_body(api.harness_id, "one"), headers=headers)
    answer = await api.http.post("/v2/runs", json=run_body(api.harness_id, "two"), headers=headers)
    assert_problem(answer, 409, "idempotency_key_conflict", "Idempotency-Key")


async def test_a_key_belongs_to_its_account_and_its_route_e03(api: Api) -> None:
    headers = {"Idempotency-Key": "shared"}
    mine = await api.http.post("/v2/runs", json=run_body(api.harness_id), headers=headers)
    other = await api.http.post(
        "/v2/runs", json=run_body(api.harness_id), headers={**headers, "Authorization": f"Bearer {OTHER_TOKEN}"}
    )
    assert mine.status_code == other.status_code == 201
    assert mine.json()["id"] != other.json()["id"]
    assert "idempotency-replayed" not in other.headers
    body = {"harness_id": api.harness_id, "suite": {"key": "s"}, "cases": [{"key": "a"}]}
    evaluation = await api.http.post("/v2/evaluations", json=body, headers=headers)
    assert evaluation.status_code == 201


@pytest.mark.parametrize(
    ("values", "code"),
    [
        pytest.param([], "idempotency_key_required", id="none"),
        pytest.param([b""], "idempotency_key_invalid", id="empty"),
        pytest.param([b"k" * 256], "idempotency_key_invalid", id="256 characters"),
        pytest.param(["é".encode()], "idempotency_key_invalid", id="not ASCII"),
        pytest.param([b"a b"], "idempotency_key_invalid", id="a blank inside"),
        pytest.param([b"a", b"b"], "idempotency_key_invalid", id="two headers"),
    ],
)
@pytest.mark.parametrize("route", ["/v2/runs", "/v2/evaluations"])
async def test_bad_keys_are_refused_e03(api: Api, values: list[bytes], code: str, route: str) -> None:
    headers = [(b"Idempotency-Key", value) for value in values]
    answer = await api.http.post(route, json=run_body(api.harness_id), headers=headers)
    assert_problem(answer, 400, code, "Idempotency-Key")


async def test_a_key_of_255_characters_is_taken_e03(api: Api) -> None:
    answer = await api.http.post("/v2/runs", json=run_body(api.harness_id), headers={"Idempotency-Key": "k" * 255})
    assert answer.status_code == 201


async def test_only_success_is_kept(api: Api) -> None:
    headers = api.key()
    wrong = await api.http.post("/v2/runs", json={"harness_id": api.harness_id}, headers=headers)
    assert_problem(wrong, 422, "validation_failed", "/input")
    right = await api.http.post("/v2/runs", json=run_body(api.harness_id), headers=headers)
    assert right.status_code == 201
    assert "idempotency-replayed" not in right.headers


async def test_keys_outlive_the_server_e02(tmp_path: Path) -> None:
    headers = {"Idempotency-Key": "kept"}
    async with serving(tmp_path, ScriptedDriver()) as first:
        one = await first.http.post("/v2/runs", json=run_body(first.harness_id), headers=headers)
    async with serving(tmp_path, ScriptedDriver()) as second:
        assert second.harness_id == first.harness_id
        two = await second.http.post("/v2/runs", json=run_body(second.harness_id), headers=headers)
    assert one.content == two.content
    assert two.headers["idempotency-replayed"] == "true"


async def test_a_long_answer_is_replayed_whole(api: Api) -> None:
    body = {"harness_id": api.harness_id, "suite": {"key": "s"}, "cases": [{"key": f"case-{n}"} for n in range(300)]}
    headers = api.key()
    one = await api.http.post("/v2/evaluations", json=body, headers=headers)
    two = await api.http.post("/v2/evaluations", content=json.dumps(body).encode(), headers=headers)
    assert len(one.content) > 10_000
    assert one.content == two.content
