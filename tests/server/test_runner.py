"""Who plays how many runs, and what happens to those at work when the server stops."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import Connection

from evalfleet.errors import StorageError
from evalfleet.server import sink as sink_module
from evalfleet.server.driving import Call, Ended, Sink, Turn
from tests.server.conftest import TIMEOUT, Api, ScriptedDriver, assert_problem, run_body, serving


async def test_no_more_agents_at_a_time_than_allowed(tmp_path: Path) -> None:
    full = asyncio.Event()

    async def together(turn: Turn, sink: Sink) -> Ended:
        if driver.now == 3:
            full.set()
        await full.wait()
        await sink.answer("x")
        return Ended()

    driver = ScriptedDriver(together)
    async with serving(tmp_path, driver, agents=3) as api:
        runs = [await api.create(str(number)) for number in range(12)]
        for run in runs:
            await api.stream(run["id"])
        assert driver.most == 3
        heard = [int(turn.message) for turn in driver.turns]
        assert sorted(heard) == list(range(12))
        if not api.stack.services.store.shared:  # several writers begin runs at the same time, in any order
            assert heard == list(range(12))


async def test_stopping_ends_agents_and_fails_their_runs_as_server_lost(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def hang(turn: Turn, sink: Sink) -> Ended:
        await sink.answer("half")
        started.set()
        await asyncio.Event().wait()
        return Ended()

    driver = ScriptedDriver(hang)
    async with serving(tmp_path, driver) as api:
        run = await api.create()
        queued = await api.create("behind", chat_id=run["chat_id"])
        await started.wait()
        watching = [asyncio.create_task(api.stream(one["id"])) for one in (run, queued)]
        async with asyncio.timeout(TIMEOUT):
            while api.stack.services.streams.open < 2:  # noqa: ASYNC110 - the server tells nobody who comes
                await asyncio.sleep(0.01)
        await api.stack.services.runner.stop()
        for events in await asyncio.gather(*watching):
            assert events[-1]["data"] == {"to": "failed"}
        refused = await api.http.post("/v2/runs", json=run_body(api.harness_id), headers=api.key())
        assert_problem(refused, 503, "service_unavailable")
        assert (await api.http.get("/healthz")).status_code == 503
        for one in (run, queued):
            failed = await api.get(f"/v2/runs/{one['id']}")
            assert failed["failure"] == {
                "code": "server_lost",
                "message": "The server that played this run stopped before the run had ended.",
                "retryable": True,
            }
    assert driver.cancelled == 1
    assert driver.closed


async def test_an_agent_that_floods_is_slowed_down_and_loses_nothing(
    api: Api, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "WAITING_ENTRIES", 8)
    monkeypatch.setattr(sink_module, "WAITING_BYTES", 4096)

    async def flood(turn: Turn, sink: Sink) -> Ended:
        for number in range(300):
            await sink.tool_calls([Call(str(number), "t", {"text": "x" * number})])
        return Ended()

    driver.script = flood
    run = await api.play()
    events = await api.stream(run["id"])
    assert len(events) == 2 + 1 + 300 + 1
    assert (await api.get(f"/v2/runs/{run['id']}/usage"))["tool_calls"] == 300


async def test_a_run_whose_journal_cannot_be_written_fails_and_says_so(
    api: Api, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(connection: Connection, *rest: object) -> None:
        raise StorageError("the disk is full")

    async def say(turn: Turn, sink: Sink) -> Ended:
        monkeypatch.setattr(sink_module, "append", full)
        await sink.answer("lost words")
        return Ended()

    driver.script = say
    run = await api.play()
    assert run["status"] == "failed"
    assert run["failure"]["code"] == "internal_error"
    assert run["failure"]["retryable"] is True
    assert "disk is full" in run["failure"]["message"]


async def test_cancel_and_the_end_of_the_agent_race_to_one_terminal_state(api: Api, driver: ScriptedDriver) -> None:
    async def short(turn: Turn, sink: Sink) -> Ended:
        await sink.answer("done")
        return Ended()

    driver.script = short
    for _ in range(25):
        run = await api.create()
        await api.http.post(f"/v2/runs/{run['id']}/cancel")
        events = await api.stream(run["id"])
        states = [event["data"]["to"] for event in events if event["type"] == "run.status_changed"]
        assert states[-1] in ("succeeded", "cancelled")
        assert sum(state in ("succeeded", "cancelled", "failed") for state in states) == 1
        assert ("cancelling" in states) == (states[-1] == "cancelled")
    async with asyncio.timeout(TIMEOUT):  # a run's end is told as it is committed, a moment before its task is over
        while api.stack.services.runner.active:  # noqa: ASYNC110 - the end of its task sends no event
            await asyncio.sleep(0.01)
    assert api.stack.services.runner.waiting == 0
    assert len(api.stack.services.streams) == 0
