"""What does this worker hear of a target, and what does it tell the others?

Every answer of the platform, and every silence, comes by here. A refusal for now (429, 503) is told at once, with how
long to wait; silence and 5xx only when nothing else has come for some seconds; and that a run was taken now and then,
or as soon as there was trouble. The others hear of it through the ledger, with their next claim or their next turn.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
from collections.abc import Callable

from evalfleet.contract.calls import Heard
from evalfleet.errors import EvalfleetError, PlatformError, ProblemAnswer, TargetUnreachable
from evalfleet.ledger import Ledger
from evalfleet.telemetry import REFUSALS
from worker.health import Health

log = logging.getLogger(__name__)

SILENT_S = 3.0
"""A target that has answered nothing for this long is told of as down."""
APART_S = 30.0
"""Failures that are further apart are no silence: nothing was asked in between."""
EVERY_S = 2.0
"""The same thing is told again after this long."""
BUSY = frozenset({429, 503})


class TargetEar:
    """One target, by its name. Used on the loop thread; `tell` runs a blocking call elsewhere. That this worker does
    not reach it is noted in its `health`, too, whether or not others do."""

    def __init__(
        self,
        name: str,
        ledger: Ledger,
        tell: Callable[[Callable[[], object]], object],
        health: Health,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.ledger = ledger
        self.tell = tell
        self.health = health
        self.clock = clock
        self._silent_since: float | None = None
        self._told_silence = False
        self._silence_at = self._answer_at = self._busy_at = self._busy_until = self._failed_at = -math.inf

    def heard(self, heard: Heard) -> None:
        now = self.clock()
        if heard.quota:
            return  # it stops the submission, and nobody waits for it
        if heard.status is not None and (heard.status < 500 or heard.status in BUSY):
            self.health.back("platform", self.name)
        if heard.status in BUSY:
            self._silent_since = None
            REFUSALS.labels(str(heard.status)).inc()
            self._busy(now, heard)
        elif heard.status is None or heard.status >= 500:
            self._silent(now, heard)
        else:
            self._answered(now, heard)

    def _busy(self, now: float, heard: Heard) -> None:
        wait = heard.retry_after or 0.0
        if now - self._busy_at < 1.0 and now + wait <= self._busy_until:
            return  # one burst of refusals is told once
        self._busy_at, self._busy_until = now, max(self._busy_until, now + wait)
        self.tell(functools.partial(self.ledger.target_busy, self.name, int(1000 * wait), heard.why))

    def _silent(self, now: float, heard: Heard) -> None:
        if self._silent_since is None or now - self._failed_at > APART_S:
            self._silent_since = now
        self._failed_at = now
        if now - self._silent_since >= SILENT_S and now - self._silence_at >= EVERY_S:
            self._silence_at, self._told_silence = now, True
            why = f"{self.name} does not answer: {heard.why}"
            self.health.away("platform", self.name, why, lambda: self.ledger.is_target_down(self.name))
            self.tell(functools.partial(self.ledger.target_down, self.name, heard.why))

    def _answered(self, now: float, heard: Heard) -> None:
        self._silent_since = None
        if self._told_silence or (heard.is_launch and now - self._answer_at >= EVERY_S):
            self._answer_at, self._told_silence = now, False
            self.tell(functools.partial(self.ledger.target_answered, self.name))


class Teller:
    """Makes blocking calls of the ledger from the loop, in order and never in its way."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[None]] = set()
        self._order = asyncio.Lock()

    def __call__(self, call: Callable[[], object]) -> object:
        task = asyncio.ensure_future(self._make(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _make(self, call: Callable[[], object]) -> None:
        async with self._order:
            try:
                await asyncio.to_thread(call)
            except EvalfleetError as error:  # it is told again, or over
                log.warning("the others could not be told of the target: %s", error)


def is_away(error: PlatformError) -> bool:
    """Is it the target's trouble, which says nothing about what was asked?"""
    if isinstance(error, ProblemAnswer):
        return error.status >= 500 or (error.status == 429 and not error.quota)
    return isinstance(error, TargetUnreachable)
