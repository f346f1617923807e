"""What a run goes through whose agent's endpoint asks to wait (N15): queued again, played later, its time its own."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Any

import pytest

from evalfleet.server.driving import Busy, Ended, Failure, Sink, Turn
from tests.server.conftest import TIMEOUT, Api, ScriptedDriver

WAIT = 0.6
LIMITED = Failure("rate_limited", "slow down", retryable=True)
LATER = Ended(LIMITED, Busy("the agent's endpoint asks to wait 1 s: 429", WAIT, limited=True))


class Limited:
    """An agent that says "later" to the first `refusals` turns, and answers the others."""

    def __init__(self, refusals: int, busy: Ended = LATER) -> None:
        self.refusals, self.busy = refusals, busy
        self.asked: list[tuple[float, str]] = []
        self.refused = asyncio.Event()

    async def __call__(self, turn: Turn, sink: Sink) -> Ended:
        self.asked.append((time.monotonic(), turn.message))
        if len(self.asked) <= self.refusals:
            self.refused.set()
            return self.busy
        await sink.usage(input_tokens=3)
        await sink.answer(f"after {len(turn.history)}")
        return Ended()


def states(events: list[dict[str, Any]]) -> list[str]:
    return [event["data"]["to"] for event in events if event["type"] == "run.status_changed"]


async def test_n15_a_run_that_is_told_later_waits_in_the_queue_and_its_time_is_that_of_the_turn_that_was_taken(
    api: Api, driver: ScriptedDriver
) -> None:
    driver.script = agent = Limited(2)
    run = await api.create()
    events = await api.stream(run["id"])
    assert states(events) == ["running", "queued", "running", "queued", "running", "succeeded"]
    told = next(event["data"] for event in events if event["data"].get("to") == "queued")
    assert WAIT <= told["retry_after"] <= 1.2 * WAIT
    assert told["reason"] == "the agent's endpoint asks to wait 1 s: 429"
    assert all(later - earlier >= WAIT for (earlier, _), (later, _) in zip(agent.asked, agent.asked[1:], strict=False))
    run = await api.get(f"/v2/runs/{run['id']}")
    spent = datetime.fromisoformat(run["completed_at"]) - datetime.fromisoformat(run["started_at"])
    assert spent.total_seconds() < WAIT, "S12: waiting does not count"


async def test_n15_a_refusal_in_a_later_turn_keeps_the_turns_before_it_and_their_order(
    api: Api, driver: ScriptedDriver
) -> None:
    first = await api.play("one")
    driver.script = agent = Limited(1)
    second = await api.create("two", chat_id=first["chat_id"])
    third = await api.create("three", chat_id=first["chat_id"])
    assert states(await api.stream(third["id"]))[-1] == "succeeded"
    assert [message for _, message in agent.asked] == ["two", "two", "three"]
    answers = await api.get(f"/v2/runs/{second['id']}/outputs")
    assert answers["data"][0]["value"] == "after 2"


async def test_n15_a_refusal_keeps_the_turns_of_other_chats_from_asking_too(api: Api, driver: ScriptedDriver) -> None:
    driver.script = agent = Limited(1)
    refused = await api.create("refused")
    await agent.refused.wait()
    await asyncio.gather(api.play("other"), api.stream(refused["id"]))
    times = [at for at, _ in agent.asked]
    assert min(times[1:]) - times[0] >= WAIT
    assert [message for _, message in agent.asked] == ["refused", "refused", "other"]


async def test_n15_what_an_agent_has_done_before_it_was_limited_is_not_done_twice(
    api: Api, driver: ScriptedDriver
) -> None:
    async def acts_first(turn: Turn, sink: Sink) -> Ended:
        await sink.tool_call("1", "send_mail", {})
        return LATER

    driver.script = acts_first
    run = await api.play()
    assert (run["status"], run["failure"]["code"]) == ("failed", "rate_limited")
    assert len(driver.turns) == 1


async def test_n15_usage_before_a_refusal_is_paid_and_counted_once(api: Api, driver: ScriptedDriver) -> None:
    asked = 0

    async def pays(turn: Turn, sink: Sink) -> Ended:
        nonlocal asked
        asked += 1
        await sink.usage(input_tokens=10, amount="0.5")
        return LATER if asked == 1 else Ended()

    driver.script = pays
    run = await api.play()
    usage = await api.get(f"/v2/runs/{run['id']}/usage")
    assert (run["status"], usage["input_tokens"], usage["amount"]) == ("succeeded", 20, "1")


async def test_n15_a_run_that_waits_for_its_endpoint_is_cancelled_at_once(api: Api, driver: ScriptedDriver) -> None:
    driver.script = agent = Limited(1, Ended(LIMITED, Busy("later", 3600.0, limited=True)))
    run = await api.create()
    await agent.refused.wait()
    events = asyncio.create_task(api.stream(run["id"]))
    answer = await api.http.post(f"/v2/runs/{run['id']}/cancel")
    assert answer.json()["status"] in ("cancelling", "cancelled")
    assert states(await asyncio.wait_for(events, TIMEOUT))[-1] == "cancelled"


@pytest.mark.parametrize("code", ["rate_limited", "upstream_unavailable"])
async def test_n15_a_turn_that_may_have_been_processed_fails_and_is_not_asked_again(
    api: Api, driver: ScriptedDriver, code: str
) -> None:
    driver.script = agent = Limited(1, Ended(Failure(code, "cut", retryable=True), Busy("cut", 0.1, again=False)))
    run = await api.play()
    assert (run["status"], run["failure"]["code"]) == ("failed", code)
    assert len(agent.asked) == 1
