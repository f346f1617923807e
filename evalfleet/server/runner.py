"""Who plays the runs? One task for each: it waits for its chat and for a free agent, drives the turn, and ends the run.

Rules: a run is played by the server that created it. The runs of a chat are played one after the other in the order of
their creation, so a run on a chat with one still going stays `queued`, also when another server plays that one; at most
`agents` runs are played at a time, the rest wait in the order they came. So do those whose agent's endpoint asks to be
left alone (`limits`); one that it refused, and for which nothing was done, is queued again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from evalfleet.errors import StorageError
from evalfleet.server import lifecycle
from evalfleet.server import runs as stored
from evalfleet.server.documents import time_text
from evalfleet.server.driving import Driver, Ended, Failure, OtherCurrency, Turn
from evalfleet.server.journal import TERMINAL, Appended, Entry
from evalfleet.server.lifecycle import Begun, Behind
from evalfleet.server.limits import EndpointLimit
from evalfleet.server.looks import Looks
from evalfleet.server.pulse import GAP, Pulse
from evalfleet.server.runs import Created
from evalfleet.server.sink import RunSink
from evalfleet.server.store import Store
from evalfleet.server.streams import Streams

_log = logging.getLogger(__name__)

STOP_SECONDS: Final = 2.5
"""How long agents have to leave when the server stops; then they are killed."""


@dataclass(slots=True, eq=False)
class _Play:
    """A run in this server's hands, from its creation to its end."""

    created: Created
    task: asyncio.Task[None] | None = None
    agent: asyncio.Task[Ended] | None = None
    sink: RunSink | None = None
    cancelled: bool = False
    behind: str | None = None  # the run of another server that has to end before
    again: bool = False  # its agent's endpoint did not take the turn: it is asked for again

    @property
    def run_id(self) -> str:
        return self.created.run_id


class _Door:
    """What waits for one harness's endpoint, and the moment at which the next one may go."""

    def __init__(self) -> None:
        self.limit = EndpointLimit()
        self.waiting: deque[_Play] = deque()
        self.timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        self.waiting.clear()
        if self.timer is not None:
            self.timer.cancel()


class Runner:
    """Plays what `submit` brings. `drivers`: harness id → driver; `looks`: harness id → who looks at its files (S33).
    `server`: who owns these runs, as `servers.id`."""

    def __init__(
        self,
        store: Store,
        streams: Streams,
        drivers: Mapping[str, Driver],
        *,
        server: str,
        looks: Mapping[str, Looks] = MappingProxyType({}),
        agents: int = 256,
    ) -> None:
        self.server = server
        self._store = store
        self._streams = streams
        self._drivers = drivers
        self._looks_at = looks
        self._agents = agents
        self._plays: dict[str, _Play] = {}
        self._ready: deque[_Play] = deque()
        self._chats: dict[str, deque[_Play]] = {}  # a chat with a run at work or ready; what waits behind it
        self._behind: dict[str, list[_Play]] = {}  # a run that another server plays; what waits for its end
        self._looks: set[asyncio.Task[None]] = set()
        self._doors = {harness_id: _Door() for harness_id in drivers}
        self._pulse = Pulse()
        self._active = 0
        self._stopping = False
        self.finished = {"succeeded": 0, "failed": 0, "cancelled": 0}

    @property
    def stopping(self) -> bool:
        return self._stopping

    @property
    def active(self) -> int:
        """How many runs are being played now."""
        return self._active

    @property
    def waiting(self) -> int:
        """How many runs wait for a free agent, for their chat or for their agent's endpoint."""
        return len(self._plays) - self._active

    def can_play(self, harness_id: str) -> bool:
        return harness_id in self._drivers

    async def refusal(self, harness_id: str) -> Failure | None:
        """Why no run of this harness can start now: its files are not those of its commit (S33)."""
        looks = self._looks_at.get(harness_id)
        return None if looks is None else await looks.before()

    def held(self) -> list[str]:
        """The runs in this server's hands: at work, or waiting for it."""
        return list(self._plays)

    def waited_for(self) -> list[str]:
        """The runs of other servers that runs of this one wait for."""
        return list(self._behind)

    def submit(self, created: Created) -> None:
        """Take a run that has just been committed."""
        play = _Play(created)
        self._plays[play.run_id] = play
        behind = self._chats.get(created.chat_id)
        if behind is not None:
            behind.append(play)
            return
        self._chats[created.chat_id] = deque()
        self._ready.append(play)
        self._start_ready()

    def cancel(self, run_id: str) -> None:
        """End the agent of a run whose cancelling (or whose end, by another server) has been written."""
        play = self._plays.get(run_id)
        if play is not None and not play.cancelled:  # a second cancel would break into the agent's way out
            play.cancelled = True
            if play.agent is not None:
                play.agent.cancel()
            if play.behind is not None:  # it has nothing to wait for any more
                self.has_ended(play.behind)

    def has_ended(self, run_id: str) -> None:
        """A run that another server played is over: what waited for it may try again."""
        for play in self._behind.pop(run_id, ()):
            play.behind = None
            self._ready.append(play)
        self._start_ready()

    async def stop(self) -> None:
        """End every agent and every run; nothing is played afterwards. Takes less than 4 s."""
        self._stopping = True
        self._ready.clear()
        for door in self._doors.values():
            door.close()
        tasks = {play.task for play in self._plays.values() if play.task is not None}
        for play in self._plays.values():
            if play.agent is not None:
                play.agent.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_SECONDS)
        drivers = [driver.aclose() for driver in self._drivers.values()]
        for outcome in await asyncio.gather(*drivers, return_exceptions=True):
            if isinstance(outcome, BaseException):
                _log.error("a driver did not close: %r", outcome)
        pending = {task for task in tasks if not task.done()}
        if pending:
            _done, pending = await asyncio.wait(pending, timeout=1.0)
        for task in pending:
            task.cancel()
        for look in self._looks:
            look.cancel()
        for appended in await self._store.write(
            lambda connection: lifecycle.lose(connection, list(lifecycle.open_runs_of(connection, self.server)))
        ):
            self._streams.publish(appended)

    # -- one run

    def _start_ready(self) -> None:
        while self._active < self._agents and not self._stopping and (play := self._next()) is not None:
            self._active += 1
            self._pulse.start()
            began = self._doors[play.created.harness_id].limit.begins()
            play.task = asyncio.create_task(self._play(play, began), name=f"run {play.run_id}")
            play.task.add_done_callback(partial(self._ended, play))

    def _next(self) -> _Play | None:
        """The first run that may begin; those whose endpoint is to be left alone wait at its door."""
        for door in self._doors.values():
            if door.waiting and door.limit.seconds_to_wait() <= 0:
                return door.waiting.popleft()
        while self._ready:
            play = self._ready.popleft()
            door = self._doors[play.created.harness_id]
            if not door.waiting and door.limit.seconds_to_wait() <= 0:
                return play
            door.waiting.append(play)
        for door in self._doors.values():
            if door.waiting:
                self._open_later(door)
        return None

    def _open_later(self, door: _Door) -> None:
        if door.timer is not None:
            door.timer.cancel()
        seconds = door.limit.seconds_to_wait()
        door.timer = asyncio.get_running_loop().call_later(seconds, self._start_ready)

    def _ended(self, play: _Play, task: asyncio.Task[None]) -> None:
        self._active -= 1
        door = self._doors[play.created.harness_id]
        door.limit.ended()
        if self._active == 0:
            self._pulse.stop()
        if play.again and not self._stopping:
            play.again = False
            play.task = play.agent = None
            door.waiting.appendleft(play)
            self._start_ready()
            return
        if play.behind is not None:
            self._wait_for(play, play.behind)
            self._start_ready()
            return
        self._plays.pop(play.run_id, None)
        chat_id = play.created.chat_id
        behind = self._chats.get(chat_id)
        if behind:
            self._ready.append(behind.popleft())
        else:
            self._chats.pop(chat_id, None)
        if not task.cancelled() and (problem := task.exception()) is not None:
            _log.error("run %s could not be ended: %r; it is tried again", play.run_id, problem)
        self._streams.abandon(play.run_id)
        self._start_ready()

    def _wait_for(self, play: _Play, run_id: str) -> None:
        play.task = None
        self._behind.setdefault(run_id, []).append(play)
        # It may have ended between our look at it and this moment, and who told so found nobody waiting.
        look = asyncio.create_task(self._look_at(run_id), name=f"look at {run_id}")
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)

    async def _look_at(self, run_id: str) -> None:
        try:
            states = await self._store.read(lambda connection: stored.states_of(connection, [run_id]))
        except StorageError as problem:  # the keeper looks again
            _log.warning("what became of run %s is not known: %s", run_id, problem.message)
            return
        if not states or states[0].status in TERMINAL:
            self.has_ended(run_id)

    async def _play(self, play: _Play, began: float) -> None:
        created = play.created
        looks = self._looks_at.get(created.harness_id)
        if not play.cancelled and (refused := await self.refusal(created.harness_id)) is not None:
            await self._finish(created.run_id, [], refused, cancelled=False, changes={})
            return
        mark = 0 if looks is None else looks.mark
        begun = await self._store.write(
            lambda connection: lifecycle.begin(connection, created.run_id, created.chat_id, created.turn),
            on_commit=lambda begun: self._streams.publish(begun.appended) if isinstance(begun, Begun) else None,
        )
        if isinstance(begun, Behind):
            play.behind = begun.run_id
            return
        if begun is None:  # cancelled while it waited; the end of a cancelling one is ours to write
            await self._finish(created.run_id, [], None, cancelled=True, changes={})
            return
        sink = play.sink = play.sink or RunSink(created.run_id, self._store, self._streams, currency=begun.currency)
        watch = self._pulse.begin()
        play.agent = asyncio.create_task(
            self._drivers[created.harness_id].run(_turn(created, begun), sink), name=f"agent {created.run_id}"
        )
        if play.cancelled or self._stopping:
            play.agent.cancel()
        await asyncio.wait({play.agent})
        measured = watch.end(sink.waited)
        if await self._is_queued_again(play, play.agent, sink, began):
            return
        failure, cancelled = self._outcome(play, play.agent)
        failure = measured.lost or failure
        if looks is not None and failure is not lifecycle.SERVER_LOST:
            failure = await looks.after(mark) or failure
        entries: list[Entry] = []
        changes: Mapping[str, Any] = {}
        try:
            entries, changes = await sink.drain(measured.ended_at)
        except StorageError as problem:
            failure = measured.lost or Failure("internal_error", problem.message, retryable=True)
        if (watch.started_at - datetime.fromisoformat(begun.at)).total_seconds() > GAP:
            changes = {**changes, "started_at": time_text(watch.started_at)}  # the store took its time over the start
        await self._finish(
            created.run_id,
            entries,
            failure,
            cancelled=cancelled,
            changes=changes,
            ended_at=measured.ended_at,
        )

    async def _is_queued_again(self, play: _Play, agent: asyncio.Task[Ended], sink: RunSink, began: float) -> bool:
        """Take in what the turn's end says of the agent's endpoint. True: it is asked for this turn again."""
        if agent.cancelled() or agent.exception() is not None:
            return False
        limit = self._doors[play.created.harness_id].limit
        busy = agent.result().busy
        if busy is None:
            limit.answered()
            return False
        seconds = limit.refused(began, busy)
        if seconds is None or not sink.is_silent or play.cancelled or self._stopping:
            return False
        wait, why = seconds, busy.why
        appended = await self._store.write(
            lambda connection: lifecycle.queue_again(connection, play.run_id, wait, why),
            on_commit=lambda appended: self._streams.publish(appended) if appended is not None else None,
        )
        play.again = appended is not None
        return play.again

    async def _finish(
        self,
        run_id: str,
        entries: list[Entry],
        failure: Failure | None,
        *,
        cancelled: bool,
        changes: Mapping[str, Any],
        ended_at: str | None = None,
    ) -> None:
        def publish(appended: Appended | None) -> None:
            if appended is not None:
                self._streams.publish(appended)
                self.finished[appended.status or ""] += 1

        await self._store.write(
            lambda connection: lifecycle.finish(
                connection, run_id, entries, failure, cancelled=cancelled, changes=changes, ended_at=ended_at
            ),
            on_commit=publish,
        )

    def _outcome(self, play: _Play, agent: asyncio.Task[Ended]) -> tuple[Failure | None, bool]:
        if agent.cancelled():
            return (None, True) if play.cancelled else (lifecycle.SERVER_LOST, False)
        problem = agent.exception()
        if problem is None:
            return agent.result().failure, False
        if isinstance(problem, OtherCurrency):
            return Failure("agent_protocol", str(problem)), False
        if isinstance(problem, StorageError):
            return Failure("internal_error", problem.message, retryable=True), False
        # A driver's own bug must not take the server down; the run says so and may be tried again.
        _log.error("the driver of run %s raised", play.run_id, exc_info=problem)
        return Failure("internal_error", f"The driver failed: {type(problem).__name__}.", retryable=True), False


def _turn(created: Created, begun: Begun) -> Turn:
    return Turn(
        run_id=created.run_id,
        chat_id=created.chat_id,
        turn=created.turn,
        message=created.message,
        history=begun.history,
        metadata=created.new.metadata,
        raw_input=created.new.input,
    )
