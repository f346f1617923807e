"""The judge call behind `t.llm` (S26): an answer, and who has to act when there is none."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from typing import Any

import pytest

from evalfleet.errors import ConfigError, CredentialError, ProblemAnswer, TargetUnreachable, UnreadableAnswer
from evalfleet.server import judge as module
from evalfleet.server.judge import Judge, JudgeAnswer
from evalfleet.treeconfig import JudgeConfig, Price
from tests.server.drivers.service import CUT, Service, sse

ANSWER = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Score: 0.9"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010},
}


async def ask(service: Service, model: str | None = None, **settings: Any) -> JudgeAnswer:
    judge = Judge(JudgeConfig(service.url + "/v1", "judge-model", **settings), environ={"KEY": "sk-1"})
    try:
        return await judge.answer("Is it good? \ud83d", model)
    finally:
        await judge.aclose()


async def test_a_prompt_is_answered_with_its_tokens_and_its_price() -> None:
    async with Service(pieces=[json.dumps(ANSWER).encode()]) as service:
        answer = await ask(service, price=Price(Decimal("0.15"), Decimal("0.60"), "EUR"), api_key_env="KEY")
    assert answer == JudgeAnswer("Score: 0.9", 1010, "0.000156", "EUR")
    [asked] = service.asked
    assert asked.headers["authorization"] == "Bearer sk-1"
    assert asked.document == {"model": "judge-model", "messages": [{"role": "user", "content": "Is it good? \ud83d"}]}


async def test_a_grader_may_name_another_model_and_without_a_price_there_is_no_amount() -> None:
    async with Service(pieces=[json.dumps(ANSWER).encode()]) as service:
        answer = await ask(service, "other-model")
    assert answer.amount is None
    assert service.asked[0].document["model"] == "other-model"
    assert "authorization" not in service.asked[0].headers


async def test_an_endpoint_that_streams_unasked_is_read_too() -> None:
    chunk = {"choices": [{"delta": {"content": "0.5"}, "finish_reason": "stop"}]}
    async with Service(content_type="text/event-stream", pieces=[sse(chunk)]) as service:
        assert await ask(service) == JudgeAnswer("0.5", 0, None)


@pytest.mark.parametrize(
    ("status", "body", "code", "wire_status"),
    [
        (429, {"error": {"message": "slow down"}}, "rate_limited", 429),
        (500, {}, "upstream_unavailable", 502),
        (402, {}, "insufficient_balance", 403),
        (429, {"error": {"message": "q", "code": "insufficient_quota"}}, "insufficient_balance", 403),
        (400, {"error": {"message": "prompt too long"}}, "invalid_body", 400),
        (422, {"detail": "no"}, "invalid_body", 400),
    ],
)
async def test_a_refusal_says_who_has_to_act(status: int, body: Any, code: str, wire_status: int) -> None:
    async with Service(status=status, pieces=[json.dumps(body).encode()], headers={"Retry-After": "7"}) as service:
        with pytest.raises(ProblemAnswer) as caught:
            await ask(service, api_key_env="KEY")
    assert (caught.value.code, caught.value.status) == (code, wire_status)
    assert caught.value.retry_after == 7.0


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("1.5", 1.5), ("Wed, 02 Sep 2020 07:21:49 GMT", 0.0), ("soon", None), ("9" * 400, None)],
)
async def test_when_to_come_back_is_read_as_every_platform_s_answer_is(told: str, seconds: float | None) -> None:
    async with Service(status=429, pieces=[b"{}"], headers={"Retry-After": told}) as service:
        with pytest.raises(ProblemAnswer) as caught:
            await ask(service)
    assert caught.value.retry_after == seconds


async def test_s26_a_model_that_is_not_there_is_of_whom_who_named_it() -> None:
    body = json.dumps({"error": {"message": "no such model"}}).encode()
    async with Service(status=404, pieces=[body]) as service:
        with pytest.raises(ConfigError, match=r"\[judge\] base_url or model: .*no such model"):
            await ask(service)
        with pytest.raises(ProblemAnswer, match="no such model") as caught:
            await ask(service, "a-graders-typo")
    assert (caught.value.status, caught.value.code) == (400, "invalid_body")


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_the_operators_and_is_not_shown(status: int) -> None:
    async with Service(status=status, pieces=[b'{"error": {"message": "bad key sk-1"}}']) as service:
        with pytest.raises(CredentialError) as caught:
            await ask(service, api_key_env="KEY")
    assert "sk-1" not in caught.value.message
    assert "refused" in caught.value.message


async def test_a_judge_that_cannot_be_reached_is_infrastructure(free_port: int) -> None:
    judge = Judge(JudgeConfig(f"http://127.0.0.1:{free_port}", "m"), environ={})
    with pytest.raises(TargetUnreachable, match="cannot be reached"):
        await judge.answer("x")
    await judge.aclose()
    async with Service(pieces=[b"{", CUT]) as service:
        with pytest.raises(TargetUnreachable, match=r"the judge: .* broke off"):
            await ask(service)


async def test_a_judge_that_never_answers_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEADLINE", 0.1)
    async with Service(pieces=[asyncio.Event()]) as service:
        with pytest.raises(TargetUnreachable, match=r"within 0\.1 s"):
            await ask(service)


async def test_an_answer_that_is_no_completion_is_unreadable() -> None:
    async with Service(pieces=[b'{"choices": '], content_type="application/json") as service:
        with pytest.raises(UnreadableAnswer, match="no chat completion"):
            await ask(service)


async def test_without_a_judge_or_its_key_the_operator_is_told() -> None:
    for judge, says in [
        (Judge(None), r"no judge is set: t\.llm needs \[judge\]"),
        (Judge(JudgeConfig("http://127.0.0.1:1", "m", "NO_KEY"), environ={}), r"\[judge\] api_key_env names NO_KEY"),
    ]:
        with pytest.raises(ConfigError, match=says):
            judge.check()
        with pytest.raises(ConfigError, match=says):
            await judge.answer("x")
        await judge.aclose()
    assert not Judge(None).configured
