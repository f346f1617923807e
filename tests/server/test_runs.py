"""Runs over the wire: the happy path, chats, cancelling, lists, usage."""

from __future__ import annotations

import asyncio

from evalfleet.server.driving import Ended, Failure, Sink, Turn
from tests.server.conftest import COMMIT, Api, ScriptedDriver, assert_problem, run_body, types_of


async def test_a_run_is_created_played_and_read_back(api: Api) -> None:
    answer = await api.http.post("/v2/runs", json=run_body(api.harness_id, "hi", metadata={"a": 1}), headers=api.key())
    assert answer.status_code == 201
    run = answer.json()
    assert answer.headers["location"] == f"/v2/runs/{run['id']}"
    assert list(run) == [
        "id", "harness_id", "harness_commit", "chat_id", "parent_chat_id", "status", "created_at", "updated_at",
        "started_at", "completed_at", "failure", "metadata",
    ]  # fmt: skip
    assert run["status"] == "queued"
    assert run["harness_commit"] == COMMIT
    assert run["metadata"] == {"a": 1}

    events = await api.stream(run["id"])
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert types_of(events) == [
        "run.created", "message.created", "run.status_changed", "message.created", "message.created", "hook.called",
        "usage.updated", "message.created", "output.created", "run.status_changed",
    ]  # fmt: skip
    assert events[0]["data"] == {"run_id": run["id"], "chat_id": run["chat_id"], "harness_id": api.harness_id}
    assert events[2]["data"] == {"to": "running"}
    hook = {"hook": "tools.before", "source": "hooks/tools.py", "decision": "answered", "duration_ms": 1.5}
    assert events[5]["data"] == hook
    assert events[-1]["data"] == {"to": "succeeded"}

    done = await api.get(f"/v2/runs/{run['id']}")
    assert done["status"] == "succeeded"
    assert done["created_at"] <= done["started_at"] <= done["completed_at"]

    messages = (await api.get(f"/v2/runs/{run['id']}/messages"))["data"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[1]["content"] == [
        {
            "type": "json",
            "value": {"type": "tool_call", "tool_call": {"id": "c1", "name": "echo", "args": {"text": "hi"}}},
        }
    ]
    result = {"tool_call_id": "c1", "output": "hi", "metadata": {}}
    assert messages[2]["content"] == [{"type": "json", "value": {"type": "tool_result", "tool_result": result}}]
    assert messages[3]["content"] == [{"type": "text", "text": "0: hi"}]

    outputs = (await api.get(f"/v2/runs/{run['id']}/outputs"))["data"]
    assert [(output["type"], output["name"], output["value"]) for output in outputs] == [
        ("result", "final_message", "0: hi")
    ]
    tree = await api.get(f"/v2/runs/{run['id']}/tree")
    assert tree["root_run_id"] == run["id"]
    assert tree["runs"] == [{"run": done, "depth": 0, "child_run_ids": []}]


async def test_usage_covers_the_whole_chat_and_is_final_when_nothing_goes_on(api: Api) -> None:
    first = await api.play("one")
    second = await api.play("two", chat_id=first["chat_id"])
    usages = [await api.get(f"/v2/runs/{run['id']}/usage") for run in (first, second)]
    for usage in usages:
        assert usage["input_tokens"] == 20
        assert usage["output_tokens"] == 10
        assert usage["total_tokens"] == 30
        assert usage["tool_calls"] == 2
        assert usage["amount"] == "0.002"
        assert usage["currency"] == "USD"
        assert usage["final"] is True
    assert usages[0] | {"run_id": ""} == usages[1] | {"run_id": ""}


async def test_a_chat_tells_its_agent_what_was_said_before(api: Api, driver: ScriptedDriver) -> None:
    first = await api.play("one")
    await api.play("two", chat_id=first["chat_id"])
    third = await api.play("three", chat_id=first["chat_id"])
    assert [turn.turn for turn in driver.turns] == [0, 1, 2]
    assert driver.turns[2].history == (
        ("user", "one"), ("assistant", "0: one"), ("user", "two"), ("assistant", "1: two"),
    )  # fmt: skip
    assert third["chat_id"] == first["chat_id"]


async def test_a_second_run_on_a_busy_chat_stays_queued_until_the_first_has_ended(
    api: Api, driver: ScriptedDriver
) -> None:
    go = asyncio.Event()

    async def wait(turn: Turn, sink: Sink) -> Ended:
        if turn.message == "one":
            await go.wait()
        await sink.answer(turn.message)
        return Ended()

    driver.script = wait
    first = await api.create("one")
    second = await api.create("two", chat_id=first["chat_id"])
    other = await api.play("elsewhere")
    assert other["status"] == "succeeded"
    assert (await api.get(f"/v2/runs/{second['id']}"))["status"] == "queued"
    go.set()
    await api.stream(second["id"])
    ended = [await api.get(f"/v2/runs/{run['id']}") for run in (first, second)]
    assert [run["status"] for run in ended] == ["succeeded", "succeeded"]
    assert ended[0]["completed_at"] <= ended[1]["started_at"]
    assert driver.turns[-1].history == (("user", "one"), ("assistant", "one"))


async def test_a_failed_run_says_why_and_keeps_what_was_said(api: Api, driver: ScriptedDriver) -> None:
    async def fail(turn: Turn, sink: Sink) -> Ended:
        await sink.answer("half")
        return Ended(Failure("agent_exit", "exit status 3", retryable=False))

    driver.script = fail
    run = await api.play()
    assert run["status"] == "failed"
    assert run["failure"] == {"code": "agent_exit", "message": "exit status 3", "retryable": False}
    assert len((await api.get(f"/v2/runs/{run['id']}/messages"))["data"]) == 2


async def test_a_driver_that_raises_fails_its_run_and_nothing_else(api: Api, driver: ScriptedDriver) -> None:
    async def explode(turn: Turn, sink: Sink) -> Ended:
        if turn.message == "boom":
            raise RuntimeError("secret detail")
        return Ended()

    driver.script = explode
    run = await api.play("boom")
    assert run["status"] == "failed"
    assert run["failure"]["code"] == "internal_error"
    assert "secret detail" not in str(run)
    fine = await api.play("fine")
    assert fine["status"] == "succeeded"
    # An agent without any answer has no output; the run succeeded all the same (S21).
    assert (await api.get(f"/v2/runs/{fine['id']}/outputs"))["data"] == []


async def test_cancelling_goes_through_cancelling_and_ends_the_agent(api: Api, driver: ScriptedDriver) -> None:
    started = asyncio.Event()

    async def hang(turn: Turn, sink: Sink) -> Ended:
        started.set()
        await asyncio.Event().wait()
        return Ended()

    driver.script = hang
    run = await api.create()
    await started.wait()
    answer = await api.http.post(f"/v2/runs/{run['id']}/cancel")
    assert answer.status_code == 200
    assert answer.json()["status"] == "cancelling"
    events = await api.stream(run["id"])
    assert [event["data"]["to"] for event in events if event["type"] == "run.status_changed"] == [
        "running", "cancelling", "cancelled",
    ]  # fmt: skip
    assert driver.cancelled == 1
    again = await api.http.post(f"/v2/runs/{run['id']}/cancel")
    assert again.status_code == 200
    assert again.json()["status"] == "cancelled"
    assert again.json()["failure"] is None
    assert len(await api.stream(run["id"])) == len(events)


async def test_a_queued_run_is_cancelled_at_once_and_never_played(api: Api, driver: ScriptedDriver) -> None:
    go = asyncio.Event()

    async def wait(turn: Turn, sink: Sink) -> Ended:
        await go.wait()
        return Ended()

    driver.script = wait
    first = await api.create("one")
    second = await api.create("two", chat_id=first["chat_id"])
    third = await api.create("three", chat_id=first["chat_id"])
    answer = await api.http.post(f"/v2/runs/{second['id']}/cancel")
    assert answer.json()["status"] == "cancelled"
    assert types_of(await api.stream(second["id"]))[-2:] == ["run.status_changed", "run.status_changed"]
    go.set()
    await api.stream(third["id"])
    assert [turn.message for turn in driver.turns] == ["one", "three"]
    assert (await api.get(f"/v2/runs/{third['id']}"))["status"] == "succeeded"


async def test_cancelling_an_ended_run_changes_nothing(api: Api) -> None:
    run = await api.play()
    answer = await api.http.post(f"/v2/runs/{run['id']}/cancel")
    assert answer.status_code == 200
    assert answer.json() == run


async def test_somebody_elses_run_is_not_there(api: Api) -> None:
    run = await api.play()
    other = {"Authorization": "Bearer token-of-somebody-else"}
    for path in ("", "/messages", "/outputs", "/usage", "/events", "/tree"):
        answer = await api.http.get(f"/v2/runs/{run['id']}{path}", headers=other)
        assert_problem(answer, 404, "not_found")
    assert_problem(await api.http.post(f"/v2/runs/{run['id']}/cancel", headers=other), 404, "not_found")
    listed = await api.http.get("/v2/runs", headers=other)
    assert listed.json() == {"data": [], "page": {"has_more": False, "next_cursor": None}}
