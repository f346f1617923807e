"""How is a run's journal followed to its end, whatever happens to the connection?

The stream is one way to read the journal, the pages are the other, and the journal is the authority (wire.md,
"Events"). So a connection may end, break, stall, be refused or carry something that is no event: the follower resumes
strictly after the last event that it has handed out, and reads the pages from there where a stream cannot be trusted.
Events leave by their number, and none before all that come before it (`ordering`). A stream that just stops is not an
end (C06), and neither is the end of a run whose journal does not say so: it is read again for a while, and then it is
a JournalHole, because what is missing may be what a verdict depends on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import quote

from evalfleet.contract import jsontext
from evalfleet.contract.calls import Hear, Heard
from evalfleet.contract.live import Live, open_stream
from evalfleet.contract.models import is_ended
from evalfleet.contract.ordering import JournalOrder, checked_event
from evalfleet.contract.retry import BACKOFF_FIRST, GiveUp, Retry, Seen, backoff, decide
from evalfleet.contract.transport import NoAnswer, StreamAnswer, Transport
from evalfleet.errors import (
    EvalfleetError,
    JournalHole,
    PlatformError,
    ProblemAnswer,
    StreamLost,
    TargetUnreachable,
    UnreadableAnswer,
)

SILENCE_SECONDS: Final = 45.0
"""The server sends a comment every 15 s; three missed ones mean that the connection is dead."""

ASK_SECONDS: Final = 30.0
"""A stream without an event for this long may be one of heartbeats alone: the run itself is asked how it stands."""

HOLE_SECONDS = 3.0
"""How long the journal of an ended run is read again for what it lacks: its pages may be a copy that lags."""

UNREADABLE_SECONDS = 30.0
"""How long answers that are no answers of the API are borne: a gateway may stand in its place for a while."""

OPEN_SECONDS: Final = 30.0
READ_SECONDS: Final = 10.0
"""For one look at the run or at a page, with its own retries; then the stream has its turn again."""

DRAIN_SECONDS: Final = 10.0
POLL_MOST: Final = 2.0
PAUSE_MOST: Final = 10.0
RESTARTS_MOST: Final = 3

log = logging.getLogger("evalfleet.contract")

_Read = TypeVar("_Read")


@dataclass(slots=True)
class Follower:
    """One run's journal, read once. `deadline` is a `time.monotonic()` value; `jitter` gives numbers in [0, 1).

    `read_page` (cursor, deadline) and `read_run` (deadline) make whole requests with their own retries. After `ask`
    seconds without an event the run is asked how it stands; `told` gets each of its documents.
    """

    transport: Transport
    run_id: str
    deadline: float
    read_page: Callable[[str | None, float], Awaitable[dict[str, Any]]]
    read_run: Callable[[float], Awaitable[dict[str, Any]]]
    jitter: Callable[[], float]
    silence: float = SILENCE_SECONDS
    ask: float = ASK_SECONDS
    hear: Hear | None = None
    told: Callable[[Mapping[str, Any]], None] | None = None
    _order: JournalOrder = field(default_factory=JournalOrder)
    _streaming: bool = True
    _suspect: bool = False
    """The stream has shown something that the pages have to settle, or the run ended beside it."""
    _contact: bool = False
    _rested: bool = False
    _attempt: int = 0
    _restarts: int = 0
    _pause_least: float = 0.0
    _told_to_wait: float = 0.0
    _stuck_at: float | None = None
    _unreadable_at: float | None = None
    _trouble: str = ""

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Each event once, in the order of `sequence` from 1, as received, to the terminal `run.status_changed` and
        what the journal has after it.

        JournalHole if the run has ended and its journal is not whole; StreamLost (or TargetUnreachable, if nothing ever
        answered) at the deadline; ProblemAnswer for an answer that asking again would not change; UnreadableAnswer
        where something else than the API goes on answering.
        """
        while True:
            fresh = 0
            live = await self._open() if self._streaming else None
            if live is not None:
                try:
                    while (batch := await self._next(live)) is not None:
                        fresh += len(batch)
                        for event in batch:
                            yield event
                finally:
                    await live.aclose()
                if self._order.ended:
                    for event in await self._drained():
                        yield event
                    break
            if not fresh or self._suspect:
                # Ask the run itself and the journal before waiting any longer (C06). The run first: if it had ended
                # by then, the pages hold everything.
                self._suspect = False
                run = await self._asked()
                more: bool | None = True
                while more:
                    batch, more = await self._page(min(self.deadline, time.monotonic() + READ_SECONDS))
                    fresh += len(batch)
                    for event in batch:
                        yield event
                if self._order.ended:
                    break
                self._look_for_a_hole(fresh=bool(fresh), over=more is False and run is not None and is_ended(run))
            await self._pause(fresh)
        if self._order.contradiction:
            raise self._hole(self._order.contradiction)

    # -- the stream -------------------------------------------------------------------------------------------------

    async def _open(self) -> Live | None:
        """A stream that answered 200, or None where the pages have to be read instead."""
        while True:
            seen, problem = Seen(None), None
            within = min(self._left(), self.ask, OPEN_SECONDS)
            try:
                stream = await open_stream(self.transport, self._path(), self._order.cursor, within=within)
            except NoAnswer as none:
                self._trouble = str(none)
            except UnreadableAnswer as wrong:
                self._contact = True
                self._unreadable(wrong)
                return None
            else:
                self._contact = True
                if stream is None:
                    self._streaming = False
                    return None
                if isinstance(stream, StreamAnswer):
                    self._tell(Seen(200))
                    # One that is known to have ended has nothing more to say than its stream says at once.
                    quiet = self.ask if self._stuck_at is None else BACKOFF_FIRST
                    return Live(stream, time.monotonic() + quiet, self._quiet)
                if self._restarted(stream):
                    continue
                problem = stream
                self._trouble = str(problem)
                seen = Seen(problem.status, problem.code, problem.quota, problem.retry_after)
            self._tell(seen)
            decision = decide(seen, method="GET", attempt=self._attempt, remaining=self._left(), jitter=self.jitter())
            match decision:
                case Retry(after_seconds):
                    self._attempt += 1
                    await asyncio.sleep(after_seconds)
                    self._rested = True
                    return None
                case GiveUp() if problem is not None and problem.status < 500:
                    raise problem
                case GiveUp():
                    raise self._lost() from problem

    def _tell(self, seen: Seen) -> None:
        if self.hear is not None:
            self.hear(Heard(seen.status, quota=seen.quota, retry_after=seen.retry_after, why=self._trouble))

    async def _next(self, live: Live) -> list[dict[str, Any]] | None:
        """The events that leave with the next bytes; None when this connection has nothing more to give."""
        if self._order.ended:
            await live.linger()
            return None
        if self._suspect:
            return None
        try:
            chunk = await live.chunk(min(self.silence, self._left()))
        except NoAnswer as broken:
            self._trouble = str(broken)
            return None
        if chunk is None:
            self._trouble = "the stream closed before the run's end"
            return None
        batch: list[dict[str, Any]] = []
        try:
            for frame in live.decoder.feed(chunk):
                if frame.retry is not None:
                    self._pause_least = min(frame.retry / 1000, PAUSE_MOST)
                event = checked_event(jsontext.loads(frame.data), self.run_id)
                batch += self._order.take(event, frame.id or _text(event.get("cursor")))
        except (ValueError, UnreadableAnswer) as wrong:  # a gateway's words, half an event, an endless line (C11)
            self._trouble = f"the stream carried what is no event of this run: {wrong}"
            self._suspect = True
        if batch:
            live.quiet_at = time.monotonic() + self.ask
        self._suspect = self._suspect or self._order.hole is not None
        return batch

    async def _quiet(self) -> float | None:
        """No event has come for a while, heartbeats or not: has the run ended beside its stream?"""
        run = await self._asked()
        if run is not None and is_ended(run):
            self._suspect = True
            return None
        return self.ask

    # -- the run and its pages --------------------------------------------------------------------------------------

    async def _asked(self) -> dict[str, Any] | None:
        """The run as it stands; None if it cannot be read this time."""
        run = await self._tried(self.read_run(min(self.deadline, time.monotonic() + READ_SECONDS)))
        if run is not None and self.told is not None:
            self.told(run)
        return run

    async def _page(self, until: float) -> tuple[list[dict[str, Any]], bool | None]:
        """The events that leave with one page after the cursor, and whether there is another one to read now; None if
        this one could not be read."""
        try:
            page = await self._tried(self.read_page(self._order.cursor, until))
        except ProblemAnswer as problem:
            if self._restarted(problem):
                return [], True
            raise
        if page is None:
            return [], None
        batch: list[dict[str, Any]] = []
        try:
            rows = [checked_event(row, self.run_id) for row in page["data"]]
        except ValueError as wrong:
            self._unreadable(UnreadableAnswer(f"{self._request()}: a page holds {wrong}"))
            return [], None
        for event in sorted(rows, key=lambda row: int(row["sequence"])):
            batch += self._order.take(event, _text(event.get("cursor")))
        more = bool(page["page"].get("has_more")) and self._order.hole is None
        following = _text(page["page"].get("next_cursor"))
        if more and (following is None or not rows):
            wrong_page = f"{self._request()}: a page says that there is more, and not where, or holds nothing"
            self._unreadable(UnreadableAnswer(wrong_page))
            return batch, None
        if more or self._order.cursor is None:
            self._order.cursor = following
        self._unreadable_at = None
        return batch, more

    async def _tried(self, reading: Awaitable[_Read]) -> _Read | None:
        """What was read; None if it could not be this time, for a reason that may pass."""
        try:
            read = await reading
        except ProblemAnswer as problem:
            wait = problem.retry_after or 0.0
            if problem.quota or (problem.status < 500 and problem.status != 429) or wait >= self._left():
                raise
            self._told_to_wait = wait
            self._trouble = problem.message
        except TargetUnreachable as unreachable:
            self._trouble = unreachable.message
        except UnreadableAnswer as wrong:
            self._unreadable(wrong)
        else:
            self._contact = True
            return read
        self._left()
        return None

    async def _drained(self) -> list[dict[str, Any]]:
        """What came into the journal beside the end. Its failure does not undo the end, and is said (C12)."""
        until = min(self.deadline, time.monotonic() + DRAIN_SECONDS)
        events: list[dict[str, Any]] = []
        more: bool | None = True
        try:
            while more:
                batch, more = await self._page(until)
                events += batch
        except EvalfleetError as failed:
            more, self._trouble = None, failed.message
        if more is None:
            log.warning("run %s has ended, but its journal could not be read once more: %s", self.run_id, self._trouble)
        return events

    # -- what is wrong, and for how long it is borne ----------------------------------------------------------------

    def _look_for_a_hole(self, *, fresh: bool, over: bool) -> None:
        """`over`: the run had ended before its pages were read to their end. One that goes on may yet fill a hole."""
        if fresh or not over:
            self._stuck_at = None
            return
        now = time.monotonic()
        if self._stuck_at is None:
            self._stuck_at = now
        elif now - self._stuck_at >= HOLE_SECONDS:
            raise self._hole(self._order.fault or f"its end is missing after event {self._order.last}")

    def _hole(self, lacks: str) -> JournalHole:
        return JournalHole(
            f"{self._request()}: the run has ended, and its journal is not whole, by stream and by pages: {lacks}"
        )

    def _unreadable(self, wrong: UnreadableAnswer) -> None:
        """Something answers in the API's place, or the API is broken: raised once it goes on for too long."""
        now = time.monotonic()
        if self._unreadable_at is None:
            self._unreadable_at = now
        if now - self._unreadable_at >= UNREADABLE_SECONDS:
            raise wrong
        self._trouble = wrong.message

    def _restarted(self, problem: ProblemAnswer) -> bool:
        """410: the cursor is too old. Start over without one; what was handed out is known by its number (C08)."""
        if problem.status != 410 or self._order.cursor is None or self._restarts >= RESTARTS_MOST:
            return False
        self._restarts += 1
        self._order.cursor = None
        return True

    async def _pause(self, fresh: int) -> None:
        rested, self._rested = self._rested, False
        self._attempt = 0 if fresh else self._attempt + (not rested)
        if rested and not fresh:
            return
        most = PAUSE_MOST if self._streaming and self._stuck_at is None else POLL_MOST
        pause = max(backoff(self._attempt, self.jitter(), most=most), self._pause_least, self._told_to_wait)
        self._told_to_wait = 0.0
        await asyncio.sleep(min(pause, self._left()))

    def _left(self) -> float:
        """Seconds to the deadline; the loss is raised when there are none."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise self._lost()
        return left

    def _lost(self) -> PlatformError:
        why = f": {self._trouble}" if self._trouble else ""
        if self._contact:
            return StreamLost(f"{self._request()}: the run's end was not seen before the deadline{why}")
        return TargetUnreachable(
            f"{self._request()}: {self.transport.base_url} did not answer before the deadline{why}; "
            "is it up, and is the base URL right?"
        )

    def _path(self) -> str:
        return f"/v2/runs/{quote(self.run_id, safe='')}/events"

    def _request(self) -> str:
        return f"GET {self._path()}"


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
