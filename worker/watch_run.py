"""How is one run awaited, on its event stream, under its three limits?

It may be queued too long, the scenario's time may be spent (by the platform's clock, S12), and a cancel may not be
honoured (S13). The limits go by what the journal says and by the run's own document, which is asked for where the
stream says nothing: so they hold whatever the stream does. What the run means is decided elsewhere, from the journal
that is collected here: the whole of it, or none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any

from evalfleet.checks.trial import instant
from evalfleet.contract.calls import Heard
from evalfleet.contract.client import Client
from evalfleet.contract.follow import ASK_SECONDS
from evalfleet.contract.models import RUN_ENDED, is_end_event, is_ended
from evalfleet.errors import JournalHole, PlatformError, StreamLost
from worker.target import is_away

log = logging.getLogger(__name__)

CANCEL_GRACE_S = 60.0
"""How long a cancelled run may take to become terminal before its attempt stays missing (S13)."""
CANCEL_ASK_S = 2.0
"""A cancelled run whose stream says nothing is asked this often whether it has ended."""
ASK_LEAST_S = 1.0
READ_END_S = 60.0
"""How long the rest of an ended run's journal may take to be read."""
LATE_S = 0.2
"""We cancel this much after the limit: by the platform's clock the time must be spent then (S12)."""
CLOCK_S = 2.0
"""How well we know the platform's clock."""


class RunWatch:
    """Follows one run's stream under three limits: queued too long, the scenario's time spent, cancel not honoured."""

    def __init__(self, platform: Client, run_id: str, *, queued: float, left: float) -> None:
        self.platform = platform
        self.run_id = run_id
        self.queued = queued
        self.left = left
        self.cancelling: asyncio.Task[None] | None = None
        self.over = False
        """The run is known to be terminal; what is left is reading its journal."""
        self._limit = _Limit()

    async def follow(self, events: list[Mapping[str, Any]]) -> bool:
        """Collect the journal; True once the run is terminal and all of it is there, False if a cancelled one is not
        terminal within its grace. PlatformError where neither can be known; JournalHole is one."""
        began = time.monotonic()
        hard = began + self.queued + self.left + 24 * 3600
        # A run that is still queued when it is asked has all of its time before it: asking this often is in time.
        ask = min(ASK_SECONDS, max(self.left, ASK_LEAST_S))
        try:
            async with asyncio.timeout(None) as scope:
                self._limit.bind(scope, began + self.queued)
                await self._collect(events, deadline=hard, ask=ask)
            return True
        except TimeoutError:
            pass
        except StreamLost:
            if self.cancelling is None:
                raise
            return False
        finally:
            if self.cancelling is not None and self.cancelling.done():
                self.cancelling.result()
        self._limit.scope = None
        if self.over or self.cancelling is not None:
            return await self._unread("it was not read to its end in time")
        self._cancel()
        return await self._await_cancelled(events)

    async def _collect(self, events: list[Mapping[str, Any]], *, deadline: float, ask: float) -> None:
        following = self.platform.events(self.run_id, deadline=deadline, ask=ask, told=self._note_run)
        async with contextlib.aclosing(following) as stream:
            async for event in stream:
                events.append(event)
                self._note(event)

    async def _await_cancelled(self, events: list[Mapping[str, Any]]) -> bool:
        """The journal again, from its start: the former reader was left in the middle of something."""
        events.clear()
        try:
            await self._collect(events, deadline=time.monotonic() + CANCEL_GRACE_S, ask=CANCEL_ASK_S)
        except JournalHole:
            raise
        except PlatformError as lost:
            return await self._unread(lost.message)
        finally:
            if self.cancelling is not None and not self.cancelling.done():
                self.cancelling.cancel()
        return True

    async def _unread(self, why: str) -> bool:
        """False if the run is not terminal. If it is, its journal is all that is missing, which no verdict can stand
        on: StreamLost."""
        try:
            run = await self.platform.get_run(self.run_id, deadline=time.monotonic() + 5)
        except PlatformError as error:
            if is_away(error):
                raise
            log.warning("reading %s after its limit: %s", self.run_id, error)
            return False
        if is_ended(run):
            raise StreamLost(f"{self.run_id} has ended ({run['status']}), and its journal could not be read: {why}")
        return False

    def _note(self, event: Mapping[str, Any]) -> None:
        kind, data = event.get("type"), event.get("data")
        if kind == "run.status_changed" and isinstance(data, Mapping) and data.get("to") == "running":
            self._runs_since(event.get("created_at"))
        elif kind == "run.status_changed" and isinstance(data, Mapping) and data.get("to") == "queued":
            self._waits(data, event.get("created_at"))
        elif is_end_event(event):
            self._ends()
        elif kind == "interaction.created":
            self._asks()

    def _waits(self, data: Mapping[str, Any], stamp: object) -> None:
        """The agent's endpoint asks to be left alone: its limit is the target's, for all workers; and the run's time
        begins anew. `stamp`: since when; a run that is found again may have waited long ago."""
        if self.cancelling is not None or self.over:
            return
        told = data.get("retry_after")
        wait = max(0.0, (float(told) if isinstance(told, int | float) else 0.0) - self._age(stamp))
        if wait > 0:
            why = str(data.get("reason") or "the agent's endpoint asks to wait")
            self.platform.hear(Heard(429, retry_after=wait, why=why))
        self._limit.running = False
        self._limit.move(time.monotonic() + wait + self.queued)

    def _note_run(self, run: Mapping[str, Any]) -> None:
        """The run's own document, read where the stream said nothing, or not enough."""
        if run.get("status") in RUN_ENDED:
            self._ends()
        elif run.get("status") == "waiting":
            self._asks()
        elif run.get("started_at") is not None:
            self._runs_since(run["started_at"])

    def _runs_since(self, stamp: object) -> None:
        if not self._limit.running and self.cancelling is None:
            self._limit.running = True
            self._limit.move(time.monotonic() + max(self.left - self._age(stamp), 0.0) + LATE_S)

    def _ends(self) -> None:
        if not self.over:
            self.over = True
            self._limit.move(time.monotonic() + READ_END_S)

    def _asks(self) -> None:
        """Nobody answers in an evaluation (S12)."""
        if self.cancelling is None and not self.over:
            self._cancel()
            self._limit.move(time.monotonic() + CANCEL_GRACE_S)

    def _age(self, stamp: object) -> float:
        """Seconds that a run found again has been running; 0 for one that has just begun, whose start we have seen.

        The server's clock is known to about a second. An estimate that is too high would cancel before the time is
        spent, which reads as an ordinary cancelled run and is tried again; so it leaves that second out.
        """
        started = instant(stamp)
        if started is None:
            return 0.0
        age = time.time() + self.platform.clock_offset - started.timestamp()
        return age - CLOCK_S if age > CLOCK_S else 0.0

    def _cancel(self) -> None:
        self.cancelling = asyncio.ensure_future(self._send_cancel())

    async def _send_cancel(self) -> None:
        try:
            await self.platform.cancel_run(self.run_id, deadline=time.monotonic() + CANCEL_GRACE_S)
        except PlatformError as error:
            log.warning("cancelling %s: %s", self.run_id, error)


class _Limit:
    """The moment at which waiting on a stream ends; moves as it becomes known how the run stands."""

    def __init__(self) -> None:
        self.running = False
        self.scope: asyncio.Timeout | None = None

    def bind(self, scope: asyncio.Timeout, at: float) -> None:
        self.scope = scope
        self.move(at)

    def move(self, at: float) -> None:
        if self.scope is None:
            return  # it was reached, and the cancelled run has a limit of its own
        self.scope.reschedule(asyncio.get_running_loop().time() + max(at - time.monotonic(), 0.0))
