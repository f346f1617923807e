"""wire.md, "Ground rules", `Idempotency-Key`: what is sent twice has its effect once (E01, E03)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.conformance.conftest import Caller, assert_problem, attempt, fresh

JSON = {"Content-Type": "application/json"}


def body_of(api: Caller, route: str) -> dict[str, Any]:
    return api.run_body() if route == "/v2/runs" else api.evaluation_body()


@pytest.mark.parametrize("route", ["/v2/runs", "/v2/evaluations"])
def test_wire_ground_rules_a_create_needs_a_key(api: Caller, route: str) -> None:
    answer = api.post(route, body_of(api, route))
    assert_problem(answer, 400, "idempotency_key_required", "Idempotency-Key")


@pytest.mark.parametrize("route", ["/v2/runs", "/v2/evaluations", "batch", "complete"])
@pytest.mark.parametrize(
    "keys",
    [
        pytest.param([b""], id="empty"),
        pytest.param([b"k" * 256], id="256 characters"),
        pytest.param(["é".encode()], id="not ASCII"),
        pytest.param([b"a b"], id="a blank"),
        pytest.param([b"one", b"two"], id="two headers"),
    ],
)
def test_wire_ground_rules_a_key_is_1_to_255_visible_ascii_characters_e03(
    api: Caller, finished: dict[str, Any], route: str, keys: list[bytes]
) -> None:
    headers = [(b"Idempotency-Key", key) for key in keys]
    if route.startswith("/"):
        answer = api.send("POST", route, json=body_of(api, route), headers=headers)
    elif route == "batch":
        path = f"/v2/evaluations/{api.evaluation()['id']}/attempts:batch"
        answer = api.send("POST", path, json={"attempts": [attempt("a", 0, finished)]}, headers=headers)
    else:
        answer = api.send("POST", f"/v2/evaluations/{api.evaluation()['id']}/complete", headers=headers)
    assert_problem(answer, 400, "idempotency_key_invalid", "Idempotency-Key")


def test_wire_ground_rules_a_key_of_255_characters_is_one(api: Caller) -> None:
    key = (fresh() + "~!" * 200)[:255]
    assert api.post("/v2/runs", api.run_body(), key=key).status_code == 201


@pytest.mark.parametrize("route", ["/v2/runs", "/v2/evaluations"])
def test_wire_ground_rules_the_same_key_and_body_give_the_first_answer_again_e03(api: Caller, route: str) -> None:
    key, body = fresh(), body_of(api, route)
    first = api.post(route, body, key=key)
    assert first.status_code == 201
    assert "idempotency-replayed" not in first.headers
    assert first.headers["location"] == f"{route}/{first.json()['id']}"
    if route == "/v2/runs":
        api.ended(first.json()["id"])  # the answer is the first one's, whatever has happened since
    again = api.post(route, body, key=key)
    assert again.headers["idempotency-replayed"] == "true"
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["content-type"] == first.headers["content-type"]


def test_wire_ground_rules_the_same_json_is_the_same_body_e03(api: Caller) -> None:
    key = fresh()
    body = api.evaluation_body(suite={"key": "café", "name": "café"}, k=1)
    texts = [
        json.dumps(body),
        json.dumps(dict(reversed(body.items())), indent=3, ensure_ascii=False),
        json.dumps(body).replace('"k": 1', '"k": 1.0'),
    ]
    answers = [
        api.send("POST", "/v2/evaluations", content=text.encode(), headers={**JSON, "Idempotency-Key": key})
        for text in texts
    ]
    assert {(answer.status_code, answer.content) for answer in answers} == {(201, answers[0].content)}


@pytest.mark.parametrize("route", ["/v2/runs", "/v2/evaluations"])
def test_wire_ground_rules_the_same_key_with_another_body_is_409(api: Caller, route: str) -> None:
    key, body = fresh(), body_of(api, route)
    assert api.post(route, body, key=key).status_code == 201
    other = {**body, "metadata": {"x": 1}} if route == "/v2/runs" else {**body, "k": 2}
    assert_problem(api.post(route, other, key=key), 409, "idempotency_key_conflict")
    assert api.post(route, body, key=key).status_code == 201


def test_wire_ground_rules_a_key_belongs_to_its_endpoint_and_its_account_e03(api: Caller, other: Caller) -> None:
    key = fresh()
    run = api.post("/v2/runs", api.run_body(), key=key)
    evaluation = api.post("/v2/evaluations", api.evaluation_body(), key=key)
    theirs = other.post("/v2/runs", other.run_body(), key=key)
    for answer in (run, evaluation, theirs):
        assert answer.status_code == 201
        assert "idempotency-replayed" not in answer.headers
    assert theirs.json()["id"] != run.json()["id"]


def test_wire_ground_rules_a_refused_request_does_not_use_up_its_key(api: Caller) -> None:
    key = fresh()
    assert api.post("/v2/runs", {**api.run_body(), "x": 1}, key=key).status_code == 400
    assert api.post("/v2/runs", {**api.run_body(), "metadata": 1}, key=key).status_code == 422
    assert api.post("/v2/runs", api.run_body(), key=key).status_code == 201


@pytest.mark.parametrize("route", ["/v2/runs", "/v2/evaluations"])
def test_wire_ground_rules_many_at_once_with_one_key_have_one_effect_e01(api: Caller, route: str) -> None:
    key, body = fresh(), body_of(api, route)

    def send(_: int) -> httpx.Response:
        return api.post(route, body, key=key)

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(send, range(20)))
    made = [answer for answer in answers if answer.status_code == 201]
    for answer in answers:
        if answer.status_code != 201:
            assert_problem(answer, 409, "idempotency_key_in_flight")
    assert len({answer.json()["id"] for answer in made}) == 1
    assert sum("idempotency-replayed" not in answer.headers for answer in made) == 1
    late = send(0)
    assert late.headers["idempotency-replayed"] == "true"
    assert late.json()["id"] == made[0].json()["id"]


def test_wire_ground_rules_a_batch_and_a_complete_may_carry_a_key(api: Caller, finished: dict[str, Any]) -> None:
    evaluation, key = api.evaluation(), fresh()
    first = api.record(evaluation, attempt("a", 0, finished), key=key)
    again = api.record(evaluation, attempt("a", 0, finished), key=key)
    assert first.json()["results"][0]["status"] == "recorded"
    assert again.content == first.content
    assert again.headers["idempotency-replayed"] == "true"
    other = api.record(evaluation, attempt("a", 0, finished, "failed"), key=key)
    assert_problem(other, 409, "idempotency_key_conflict")
    done = api.end(evaluation, key=key)
    assert done.status_code == 200
    assert api.end(evaluation, key=key).headers["idempotency-replayed"] == "true"
