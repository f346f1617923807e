"""A day of waiting in a second: while it stands, `time` and the event loop go by a clock that jumps to the next timer.

Only the waiting is left out. What the code under test decides by a clock, it decides by this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import time
from collections.abc import Iterator
from typing import Any, TypeVar
from unittest import mock

_Result = TypeVar("_Result")

NOON = 1_790_000_000.0


class Clock:
    """Seconds since the clock was made; `wall` is Unix time by it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return NOON + self.now


class _Selector(selectors.DefaultSelector):
    clock: Clock

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everything waits, and no timer is set: nothing would ever happen"
            self.clock.now += max(timeout, 0.0)
        return ready


@contextlib.contextmanager
def jumping() -> Iterator[tuple[Clock, asyncio.Runner]]:
    """The clock, and a runner whose loop goes by it."""
    clock, selector = Clock(), _Selector()
    selector.clock = clock
    with (
        mock.patch.object(time, "monotonic", clock.monotonic),
        mock.patch.object(time, "time", clock.wall),
        asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner,
    ):
        yield clock, runner
