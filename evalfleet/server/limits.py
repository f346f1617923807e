"""Decides how many turns an agent's endpoint is asked for at once, and for how long it is left alone.

What limits targets for workers (decision 018) limits an endpoint for this server: after a refusal nothing is asked
before the time that the endpoint named, spread a little, and then half as much at once; from there the limit rises by
one a second. An endpoint that is away is asked by one turn at a time, with a growing pause, for AWAY_MOST seconds; then
turns fail at once until it answers.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import Final

from evalfleet.contract.retry import backoff
from evalfleet.server.driving import Busy

RISE: Final = 1.0
"""Seconds after which one more turn may be asked for at once."""
PAUSE_FIRST: Final = 4.0
PAUSE_MOST: Final = 30.0
"""Seconds, at most, without a request to an endpoint that did not say how long to wait; doubled each time."""
TOLD_FIRST: Final = 0.25
TOLD_MOST: Final = 2.0
"""The same for one that says to wait for less, or for nothing."""
SPREAD: Final = 0.1
SPREAD_MOST: Final = 10.0
"""A pause that the endpoint named is made longer by up to this share of it, and by so many seconds at most."""
AWAY_MOST: Final = 20.0
"""Seconds for which an endpoint that cannot be reached is waited for: a restart is shorter."""
FORGOTTEN: Final = 120.0
"""Seconds after a refusal's pause; what comes later is another trouble."""


class EndpointLimit:
    """One harness's endpoint. `open`: the turns that are asked for now."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, jitter: Callable[[], float] = random.random
    ) -> None:
        self.open = 0
        self._clock = clock
        self._jitter = jitter
        self._most = math.inf
        self._cut_at = self._until = -math.inf
        self._refusals = 0
        self._away_since: float | None = None

    def seconds_to_wait(self) -> float:
        """0 where one more turn may be asked for now."""
        now = self._clock()
        if self._is_gone(now):
            return 0.0
        if now < self._until:
            return self._until - now
        risen = math.floor((now - self._until) / RISE) if self._most < math.inf else 0
        if self.open < self._most + risen:
            return 0.0
        return self._until + (risen + 1) * RISE - now

    def begins(self) -> float:
        """One more turn is asked for; when that was, for `refused`."""
        self.open += 1
        return self._clock()

    def ended(self) -> None:
        self.open -= 1

    def answered(self) -> None:
        """It took a turn and played it, well or badly."""
        self._refusals, self._away_since = 0, None

    def refused(self, began: float, busy: Busy) -> float | None:
        """A turn that was asked for at `began` was not played. In how many seconds it is asked for again; None: not
        any more, the run fails."""
        now = self._clock()
        if now > self._until + FORGOTTEN:
            self._refusals, self._away_since = 0, None
        if busy.limited:
            self._away_since = None
        elif self._away_since is None:
            self._away_since = now
        if self._is_gone(now):
            return None
        if began > self._cut_at:  # else it was asked for before an earlier refusal was known, and belongs to that one
            self._refusals += 1
            unreached = busy.again and not busy.limited
            self._most = 1 if unreached else max(1, min(self._allowed(now), self.open) // 2)
            self._cut_at = now
        self._until = max(self._until, now + self._pause(busy.seconds))
        return self._until - now if busy.again else None

    def _pause(self, told: float | None) -> float:
        tries, jitter = max(self._refusals - 1, 0), self._jitter()
        if told is None:
            return backoff(tries, jitter, first=PAUSE_FIRST, most=PAUSE_MOST)
        spread = told + jitter * min(SPREAD * told, SPREAD_MOST)
        return max(spread, backoff(tries, jitter, first=TOLD_FIRST, most=TOLD_MOST))  # "0" must not become a hot loop

    def _allowed(self, now: float) -> float:
        return self._most + (math.floor(max(0.0, now - self._until) / RISE) if self._most < math.inf else 0)

    def _is_gone(self, now: float) -> bool:
        return self._away_since is not None and now - self._away_since >= AWAY_MOST
