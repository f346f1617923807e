"""When does a server look at the files of a harness that it serves, and what does it make of what it sees? (S33)

Before a run is taken, before its agent starts, and when it has ended. Runs that ask at the same time share a look, and
looks take a twentieth of one core, whatever the load: the next one waits for that long, a quarter of a second at most.
In a tree of thousands of files a start is content with the last one. An end is not: what vouches for a run has begun
after it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from evalfleet.errors import EvalfleetError
from evalfleet.harnesswatch import HarnessWatch
from evalfleet.server.driving import HARNESS_CHANGED, Failure

_log = logging.getLogger(__name__)

SHARE: Final = 20
REST: Final = 0.25
"""A look begins so many times later as the one before it took, and after so many seconds in any case."""

LARGE: Final = 1000
"""From so many files on a look takes milliseconds, and a start does not ask for one of its own."""


class Looks:
    """The looks at one tree. `advice`: what its operator can do about a change. `moved`: the tree was not the commit's
    at the start already; the file, and "" for one that was."""

    def __init__(self, watch: HarnessWatch, *, advice: str, moved: str = "") -> None:
        self._watch = watch
        self._advice = advice
        self._moved = moved
        self._found = self._last_found = ""
        self._began = self._took = 0.0
        self._now: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._changes = 0

    @property
    def mark(self) -> int:
        """How often the harness was seen to change: a run that saw another number at its start was not played by one
        version alone."""
        return self._changes

    async def before(self) -> Failure | None:
        """Why no run can start now; None when the files are the commit's."""
        try:
            if self._found or self._rest() <= 0 or self._watch.size < LARGE:
                await self._look()
        except EvalfleetError as problem:
            return _unknown(problem)
        return self._failure(self._found) if self._found else None

    async def after(self, mark: int) -> Failure | None:
        """Why a run that has just ended, and began at `mark`, is no result; None when its files were the commit's."""
        try:
            await self._look()
        except EvalfleetError as problem:
            return _unknown(problem)
        if self._found or self._changes != mark:
            return self._failure(self._found or self._last_found)
        return None

    async def _look(self) -> None:
        """A look that begins after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._now))
        await asyncio.shield(self._next)

    async def _after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        await asyncio.sleep(self._rest())
        self._now, self._next = self._next, None
        self._began = time.monotonic()
        found = self._moved or await asyncio.to_thread(self._watch.look)
        self._took = time.monotonic() - self._began
        if found and not self._found:
            self._changes += 1
            _log.warning("the harness changed: %s; its runs are no results now. %s", found, self._advice)
        elif self._found and not found:
            _log.warning("the harness is what it was again: runs are taken")
        self._found, self._last_found = found, found or self._last_found

    def _rest(self) -> float:
        """Seconds until the next look may begin."""
        return self._began + min(REST, SHARE * self._took) - time.monotonic()

    def _failure(self, found: str) -> Failure:
        return Failure(HARNESS_CHANGED, f"the harness changed while it was played: {found}; {self._advice}")


def _unknown(problem: EvalfleetError) -> Failure:
    """Our trouble, and no verdict on the harness: the run is tried again."""
    message = f"whether the harness is still the commit's could not be seen: {problem.message}"
    return Failure("internal_error", message, retryable=True)
