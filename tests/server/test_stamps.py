"""When a run began and ended, and that trouble of the server or its database is never an agent's timeout (N27, S12,
S17)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from evalfleet.checks.outcome import Meaning, meaning_of
from evalfleet.checks.trial import TurnRecord
from evalfleet.server import engines, keeper, lifecycle
from evalfleet.server import sink as sink_module
from evalfleet.server.driving import Ended, Sink, Turn
from evalfleet.server.lifecycle import Begun, Behind
from evalfleet.server.pulse import BEAT, GAP
from evalfleet.server.store import Store
from tests.server.conftest import TIMEOUT, Api, ScriptedDriver, serving

HELD = GAP + 0.2
"""Seconds: long enough to be noticed."""


class Lock:
    """The lock that keeps every write of a run waiting, as another program holds it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._connection: Connection | None = None

    def take(self) -> None:
        self._connection = engines.writing(self._store.engine)
        self._connection.begin()  # SQLite's write lock
        if self._store.shared:
            self._connection.execute(text("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE"))

    def free(self) -> None:
        assert self._connection is not None
        self._connection.rollback()
        self._connection.close()

    def free_in(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.free)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that waits for locks for a fifth of a second, and a keeper that looks as often."""
    monkeypatch.setattr(engines, "SQLITE_LOCK_MS", 200)
    monkeypatch.setattr(engines, "_SESSION", engines._SESSION.replace("lock_timeout = '15s'", "lock_timeout = '200ms'"))
    monkeypatch.setattr(keeper, "BEAT", 0.2)


@pytest.fixture
async def hurried(impatient: None, tmp_path: Path, driver: ScriptedDriver) -> AsyncIterator[Api]:
    async with serving(tmp_path, driver) as api:
        yield api


def seconds_of(run: dict[str, Any]) -> float:
    return (at(run["completed_at"]) - at(run["started_at"])).total_seconds()


def at(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp)


def meaning(run: dict[str, Any]) -> tuple[Meaning, str]:
    """Whatever the time of a run that is no result, it is no timeout."""
    found = meaning_of([TurnRecord("hello", run, (), (), ())], timeout=0.001)
    return found.meaning, found.code


async def ended_run(api: Api, run_id: str) -> dict[str, Any]:
    """A run that slipped out of its server's hands: nobody streams it, so it is asked for until it has ended."""
    async with asyncio.timeout(TIMEOUT):
        while (run := await api.get(f"/v2/runs/{run_id}"))["completed_at"] is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return run


async def test_n27_the_end_of_a_run_is_when_its_agent_ended_and_not_when_the_store_took_it(
    api: Api, driver: ScriptedDriver
) -> None:
    lock = Lock(api.stack.services.store)

    async def ends_before_a_locked_store(turn: Turn, sink: Sink) -> Ended:
        await sink.answer("done")
        lock.take()
        lock.free_in(HELD)
        return Ended()

    driver.script = ends_before_a_locked_store
    began = time.monotonic()
    run = await api.play()
    assert time.monotonic() - began >= HELD
    assert run["status"] == "succeeded"
    assert seconds_of(run) < HELD
    events = (await api.get(f"/v2/runs/{run['id']}/events"))["data"]
    assert events[-1]["created_at"] == run["completed_at"]
    assert [event["created_at"] for event in events] == sorted(event["created_at"] for event in events)


async def test_n27_the_start_of_a_run_is_when_its_agent_started_and_not_when_the_store_was_asked(
    api: Api, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, started = lifecycle.begin, []

    def slowly(connection: Connection, *rest: Any) -> Begun | Behind | None:
        begun = begin(connection, *rest)
        time.sleep(HELD)  # as a disk does that syncs slowly: the start is stamped, and not committed yet
        return begun

    async def says_when(turn: Turn, sink: Sink) -> Ended:
        started.append(datetime.now(UTC))
        return Ended()

    monkeypatch.setattr(lifecycle, "begin", slowly)
    driver.script = says_when
    run = await api.play()
    assert run["status"] == "succeeded"
    assert seconds_of(run) < HELD
    assert abs((at(run["started_at"]) - started[0]).total_seconds()) < HELD


@pytest.mark.parametrize("cancelled", [False, True], ids=["", "and the worker cancels it at its limit"])
async def test_n27_a_run_whose_end_could_not_be_stored_is_lost_and_is_no_timeout(
    hurried: Api, driver: ScriptedDriver, *, cancelled: bool
) -> None:
    lock = Lock(hurried.stack.services.store)
    ended = asyncio.Event()

    async def ends_before_a_locked_store(turn: Turn, sink: Sink) -> Ended:
        lock.take()
        ended.set()
        return Ended()

    driver.script = ends_before_a_locked_store
    run = await hurried.create()
    await ended.wait()
    runner = hurried.stack.services.runner
    async with asyncio.timeout(TIMEOUT):
        while runner.held():  # noqa: ASYNC110 - the runner tells nobody that it gave up on the write
            await asyncio.sleep(0.02)
    lock.free()
    if cancelled:
        await hurried.http.post(f"/v2/runs/{run['id']}/cancel")
    run = await ended_run(hurried, run["id"])
    assert (run["status"], run["failure"]["code"]) == ("failed", "server_lost")
    assert meaning(run) == (Meaning.NO_RESULT, "server_lost")


async def test_n27_a_run_that_could_not_begin_is_lost_and_the_next_one_is_played(
    hurried: Api, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, locked = Lock(hurried.stack.services.store), threading.Event()
    submit = hurried.stack.services.runner.submit

    def after_the_lock(created: Any) -> None:
        if not locked.is_set():
            lock.take()
            locked.set()
        submit(created)

    monkeypatch.setattr(hurried.stack.services.runner, "submit", after_the_lock)
    run = await hurried.create()
    async with asyncio.timeout(TIMEOUT):
        while hurried.stack.services.runner.held():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    lock.free()
    lost = await ended_run(hurried, run["id"])
    assert (lost["failure"]["code"], lost["started_at"]) == ("server_lost", None)
    assert meaning(lost)[0] is Meaning.NO_RESULT
    assert driver.turns == []
    assert (await hurried.play())["status"] == "succeeded"


async def test_n27_a_run_that_the_store_kept_waiting_is_lost(
    api: Api, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that says much is held up by a store that takes nothing: that time is not the agent's."""
    monkeypatch.setattr(sink_module, "WAITING_ENTRIES", 2)
    lock = Lock(api.stack.services.store)

    async def says_much(turn: Turn, sink: Sink) -> Ended:
        lock.take()
        lock.free_in(HELD)
        for number in range(8):
            await sink.tool_call(str(number), "t", {})
        return Ended()

    driver.script = says_much
    run = await api.play()
    assert (run["status"], run["failure"]["code"]) == ("failed", "server_lost")
    assert "database did not take this run's reports for 1." in run["failure"]["message"]
    assert meaning(run)[0] is Meaning.NO_RESULT


@pytest.mark.parametrize("cancelled", [False, True], ids=["", "cancelled meanwhile"])
async def test_n27_a_run_during_which_the_server_stood_still_is_lost(
    api: Api, driver: ScriptedDriver, *, cancelled: bool
) -> None:
    """The loop is kept from running, as by SIGSTOP; tests/e2e/test_our_trouble.py stops the process itself."""
    started, ended = asyncio.Event(), asyncio.Event()

    async def waits(turn: Turn, sink: Sink) -> Ended:
        started.set()
        await ended.wait()
        return Ended()

    driver.script = waits
    run = await api.create()
    await started.wait()
    time.sleep(BEAT + HELD)  # noqa: ASYNC251 - nothing else may run
    if cancelled:
        await api.http.post(f"/v2/runs/{run['id']}/cancel")
    else:
        ended.set()
    await api.stream(run["id"])
    run = await api.get(f"/v2/runs/{run['id']}")
    assert (run["status"], run["failure"]["code"]) == ("failed", "server_lost")
    assert "stopped, suspended or starved" in run["failure"]["message"]
    assert meaning(run)[0] is Meaning.NO_RESULT
    ended.set()
    assert (await api.play())["status"] == "succeeded", "what comes after it is measured anew"


async def test_a_clock_that_is_set_while_a_run_goes_on_changes_nothing_about_its_time(
    api: Api, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def plays_while_the_clock_is_set(turn: Turn, sink: Sink) -> Ended:
        monkeypatch.setattr(lifecycle, "now", lambda: "2020-01-01T00:00:00.000000Z")
        return Ended()

    driver.script = plays_while_the_clock_is_set
    assert 0 <= seconds_of(await api.play()) < TIMEOUT
