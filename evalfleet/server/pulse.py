"""Measures a run by this process's own clock, and notices when the process itself stood still.

A run's end is stamped when its agent ended, not when the store takes it (S12): wall time is read once, at the start of
the run, and the end is that plus what a clock says that nobody sets. While runs are played a beat on the event loop
comes every BEAT seconds. A beat that comes late is time in which this process was stopped (SIGSTOP), suspended with
its machine, or starved; the end of an agent may have been waiting to be read meanwhile. How long such a run took is
not known, so it ends as `server_lost` (S17).
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from evalfleet.server.documents import time_text
from evalfleet.server.driving import Failure

BEAT: Final = 0.5
GAP: Final = 1.0
"""Seconds by which a beat is late before it counts: less than that happens on a busy machine."""
SHARE: Final = 0.1
"""A run that lost this share of its time, or LOST_MOST, ends as lost: its time is not known well enough."""
LOST_MOST: Final = 10.0
"""Seconds; connections of an agent may not outlive a longer stop of this machine, however long the run."""

_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)
elapsed: Final[Callable[[], float]] = (
    time.monotonic if _BOOTTIME is None else functools.partial(time.clock_gettime, _BOOTTIME)
)
"""Seconds by a clock that nobody sets, and that goes on while the machine is suspended where there is such a clock."""


class Pulse:
    """Beats while it is started; `lost()` is the time in which this process stood still."""

    def __init__(self, clock: Callable[[], float] = elapsed) -> None:
        self.clock = clock
        self._lost = 0.0
        self._last: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._timer is None:
            self._last = self.clock()
            self._timer = asyncio.get_running_loop().call_later(BEAT, self._beat)

    def stop(self) -> None:
        self._lost = self.lost()
        self._last = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def lost(self) -> float:
        """Seconds, in all so far. A beat that is late at this moment counts: after a stop, the end of an agent can be
        read before the beat."""
        late = 0.0 if self._last is None else self.clock() - self._last - BEAT
        return self._lost + (late if late >= GAP else 0.0)

    def begin(self) -> Stopwatch:
        return Stopwatch(self, datetime.now(UTC), self.clock(), self.lost())

    def _beat(self) -> None:
        self._lost = self.lost()
        self._last = self.clock()
        self._timer = asyncio.get_running_loop().call_later(BEAT, self._beat)


@dataclass(frozen=True, slots=True)
class Measured:
    """When a run's agent ended, and why its time is not known (None where it is)."""

    ended_at: str
    lost: Failure | None


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Measures one run from the moment that its agent started."""

    pulse: Pulse
    started_at: datetime
    began: float
    lost_before: float

    def end(self, waited: float = 0.0) -> Measured:
        """`waited`: seconds in which the agent could not go on because the store did not take its reports."""
        seconds = self.pulse.clock() - self.began
        ended_at = time_text(self.started_at + timedelta(seconds=seconds))
        stood = self.pulse.lost() - self.lost_before
        lost = stood + waited
        if lost <= 0 or lost < min(LOST_MOST, SHARE * seconds):
            return Measured(ended_at, None)
        if stood >= waited:
            what = f"the server that played this run was stopped, suspended or starved for {stood:.1f} s"
        else:
            what = f"the server's database did not take this run's reports for {waited:.1f} s"
        return Measured(
            ended_at, Failure("server_lost", f"{what}: how long the agent itself took is not known", retryable=True)
        )
