"""`POST /v1/runs/{uuid}/hook/llm`: what a grader's `t.llm` sends (wire.md, "The judge call"; S15, S26)."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from evalfleet.contract.ids import uuid_of
from evalfleet.treeconfig import JudgeConfig, Price
from tests.server.conftest import OTHER_TOKEN, Api, ScriptedDriver, assert_problem, serving
from tests.server.drivers.service import Service
from tests.server.test_evaluations import attempt, batch, created, post

ANSWER = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Score: 0.9"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010},
}


async def test_the_judge_answers_and_its_use_is_noted_apart_from_the_agents_s15(tmp_path: Path) -> None:
    async with Service(pieces=[json.dumps(ANSWER).encode()]) as service:
        judge = JudgeConfig(service.url + "/v1", "m", price=Price(Decimal("0.15"), Decimal("0.60")))
        async with serving(tmp_path, ScriptedDriver(), judge=judge) as api:
            run = await api.play()
            before = await api.get(f"/v2/runs/{run['id']}/usage")
            path = f"/v1/runs/{uuid_of(run['id'], 'run')}/hook/llm"
            for _ in range(2):
                answer = await api.http.post(path, json={"prompt": "Is it good? \u2028", "model": "other"})
                assert answer.json() == {
                    "text": "Score: 0.9",
                    "tokens": 1010,
                    "amount": "0.000156",
                    "currency": "USD",
                }
            assert [asked.document["model"] for asked in service.asked] == ["other", "other"]
            after = await api.get(f"/v2/runs/{run['id']}/usage")
            spent = {"calls": 2, "tokens": 2020, "amount": "0.000312", "currency": "USD"}
            assert after.pop("judge") == spent
            assert after | {"updated_at": ""} == before | {"updated_at": ""}
            made = await created(api, "ab")
            other = await api.play("not judged", chat_id=run["chat_id"])
            for key, evidence in (("a", run), ("b", other)):
                answer = await batch(api, made, attempt(key, 0, evidence))
                assert answer.json()["evaluation"]["metrics"]["judge"] == spent, "a chat is counted once (S30)"
            await api.http.post(path, json={"prompt": "again"})
            metrics = (await post(api, made, "complete")).json()["metrics"]
            assert metrics["judge"] == {"calls": 3, "tokens": 3030, "amount": "0.000468", "currency": "USD"}
            assert (metrics["tokens"], metrics["amount"], metrics["currency"]) == (30, "0.002", "USD")


async def test_without_a_judge_the_operator_is_told_which_setting(api: Api) -> None:
    run = await api.play()
    answer = await api.http.post(f"/v1/runs/{run['id']}/hook/llm", json={"prompt": "?"})
    assert "[judge]" in assert_problem(answer, 422, "judge_not_configured")["detail"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [({}, "/prompt"), ({"prompt": ""}, "/prompt"), ({"prompt": 1}, "/prompt"), ({"prompt": "x", "model": 5}, "/model")],
)
async def test_a_wrong_call_is_pointed_at(api: Api, body: dict[str, object], pointer: str) -> None:
    run = await api.play()
    answer = await api.http.post(f"/v1/runs/{run['id']}/hook/llm", json=body)
    assert_problem(answer, 422, "validation_failed", pointer)


async def test_a_judge_needs_a_run_of_the_account(api: Api) -> None:
    run = await api.play()
    headers = {"Authorization": f"Bearer {OTHER_TOKEN}"}
    answer = await api.http.post(f"/v1/runs/{run['id']}/hook/llm", json={"prompt": "?"}, headers=headers)
    assert_problem(answer, 404, "not_found")


async def test_a_refused_key_is_the_operators_trouble_and_an_upstream_fault_is_not_s26(tmp_path: Path) -> None:
    for status, expected in ((401, (422, "judge_refused")), (503, (502, "upstream_unavailable"))):
        folder = tmp_path / str(status)
        folder.mkdir()
        async with (
            Service(status=status, pieces=[b"{}"]) as service,
            serving(folder, ScriptedDriver(), judge=JudgeConfig(service.url, "m")) as api,
        ):
            run = await api.play()
            answer = await api.http.post(f"/v1/runs/{run['id']}/hook/llm", json={"prompt": "?"})
            assert_problem(answer, *expected)
