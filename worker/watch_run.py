"""How is one run awaited, on its event stream, under its three limits?

It may be queued too long, the scenario's time may be spent (by the platform's clock, S12), and a cancel may not be
honoured (S13). What the run means is decided elsewhere, from the journal that is collected here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from evalfleet.contract.calls import Heard
from evalfleet.contract.client import Client
from evalfleet.errors import PlatformError, StreamLost
from worker.target import is_away

log = logging.getLogger(__name__)

CANCEL_GRACE_S = 60.0
"""How long a cancelled run may take to become terminal before its attempt stays missing (S13)."""
LATE_S = 0.2
"""We cancel this much after the limit: by the platform's clock the time must be spent then (S12)."""
CLOCK_S = 2.0
"""How well we know the platform's clock."""
TERMINAL = frozenset({"succeeded", "failed", "cancelled"})


class RunWatch:
    """Follows one run's stream under three limits: queued too long, the scenario's time spent, cancel not honoured."""

    def __init__(self, platform: Client, run_id: str, *, queued: float, left: float) -> None:
        self.platform = platform
        self.run_id = run_id
        self.queued = queued
        self.left = left
        self.cancelling: asyncio.Task[None] | None = None

    async def follow(self, events: list[Mapping[str, Any]]) -> bool:
        """Collect the journal; True once the run is terminal, False if a cancelled one is not within its grace."""
        began = time.monotonic()
        hard = began + self.queued + self.left + 24 * 3600
        seen: set[str] = set()
        limit = _Limit(began + self.queued)
        try:
            async with asyncio.timeout(None) as scope:
                limit.bind(scope)
                async with contextlib.aclosing(self.platform.events(self.run_id, deadline=hard)) as stream:
                    async for event in stream:
                        seen.add(str(event.get("id")))
                        events.append(event)
                        self._note(event, limit)
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
        if self.cancelling is not None:
            return await self._is_terminal()
        self._cancel()
        return await self._await_cancelled(events, seen)

    async def _await_cancelled(self, events: list[Mapping[str, Any]], seen: set[str]) -> bool:
        end = time.monotonic() + CANCEL_GRACE_S
        try:
            async with contextlib.aclosing(self.platform.events(self.run_id, deadline=end)) as stream:
                async for event in stream:
                    if event.get("id") not in seen:
                        seen.add(str(event.get("id")))
                        events.append(event)
            return True
        except PlatformError:
            return await self._is_terminal()
        finally:
            if self.cancelling is not None and not self.cancelling.done():
                self.cancelling.cancel()

    async def _is_terminal(self) -> bool:
        try:
            run = await self.platform.get_run(self.run_id, deadline=time.monotonic() + 5)
        except PlatformError as error:
            if is_away(error):
                raise
            log.warning("reading %s after its limit: %s", self.run_id, error)
            return False
        return run.get("status") in TERMINAL

    def _note(self, event: Mapping[str, Any], limit: _Limit) -> None:
        kind, data = event.get("type"), event.get("data") or {}
        if kind == "run.status_changed" and data.get("to") == "running" and not limit.running:
            limit.running = True
            limit.move(time.monotonic() + max(self.left - self._age(event), 0.0) + LATE_S)
        elif kind == "run.status_changed" and data.get("to") == "queued":
            limit.running = False
            limit.move(time.monotonic() + self._told_to_wait(data) + self.queued)
        elif kind == "run.status_changed" and data.get("to") in TERMINAL:
            limit.move(time.monotonic() + 30.0)  # what is left is reading the journal's end
        elif kind == "interaction.created" and self.cancelling is None:
            self._cancel()  # nobody answers in an evaluation (S12)
            limit.move(time.monotonic() + CANCEL_GRACE_S)

    def _told_to_wait(self, data: Mapping[str, Any]) -> float:
        """Seconds for which the agent's endpoint asks to be left alone; its limit is the target's, for all workers."""
        told = data.get("retry_after")
        wait = float(told) if isinstance(told, int | float) else 0.0
        self.platform.hear(Heard(429, retry_after=wait, why=str(data.get("reason") or "the agent asks to wait")))
        return wait

    def _age(self, event: Mapping[str, Any]) -> float:
        """Seconds that a run found again has been running; 0 for one that has just begun, whose start we have seen.

        The server's clock is known to about a second. An estimate that is too high would cancel before the time is
        spent, which reads as an ordinary cancelled run and is tried again; so it leaves that second out.
        """
        age = time.time() + self.platform.clock_offset - _epoch(event.get("created_at"))
        return age - CLOCK_S if age > CLOCK_S else 0.0

    def _cancel(self) -> None:
        self.cancelling = asyncio.ensure_future(self._send_cancel())

    async def _send_cancel(self) -> None:
        try:
            await self.platform.cancel_run(self.run_id, deadline=time.monotonic() + CANCEL_GRACE_S)
        except PlatformError as error:
            log.warning("cancelling %s: %s", self.run_id, error)


class _Limit:
    """The moment at which waiting on a stream ends; moves as the run tells of itself."""

    def __init__(self, at: float) -> None:
        self.at = at
        self.running = False
        self.scope: asyncio.Timeout | None = None

    def bind(self, scope: asyncio.Timeout) -> None:
        self.scope = scope
        self.move(self.at)

    def move(self, at: float) -> None:
        self.at = at
        assert self.scope is not None
        self.scope.reschedule(asyncio.get_running_loop().time() + max(at - time.monotonic(), 0.0))


def _epoch(stamp: object) -> float:
    if not isinstance(stamp, str):
        return time.time()
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return time.time()
