"""How is a run's journal followed to its end, whatever happens to the connection?

The stream is one way to read the journal, the pages are the other, and the journal is the authority (wire.md,
"Events"). So a connection may end, break, stall or be refused at any event: the follower resumes strictly after the
last cursor, drops what it has handed out (delivery is at least once), and reads the pages where a stream cannot tell.
A stream that just stops is not an end (C06): the end is the terminal `run.status_changed`, or a run that is terminal.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from evalfleet.contract import jsontext
from evalfleet.contract.answers import problem_answer
from evalfleet.contract.calls import Hear, Heard
from evalfleet.contract.models import is_end_event, is_ended
from evalfleet.contract.retry import GiveUp, Retry, Seen, backoff, decide
from evalfleet.contract.sse import SSEDecoder
from evalfleet.contract.transport import Answer, NoAnswer, StreamAnswer, Transport
from evalfleet.errors import (
    EvalfleetError,
    PlatformError,
    ProblemAnswer,
    StreamLost,
    TargetUnreachable,
    UnreadableAnswer,
)

SILENCE_SECONDS: Final = 45.0
"""The server sends a comment every 15 s; three missed ones mean that the connection is dead."""

OPEN_SECONDS: Final = 30.0
DRAIN_SECONDS: Final = 10.0
LINGER_SECONDS: Final = 0.2
"""After the end event the server closes at once; waiting for it keeps the connection for the next request."""

POLL_MOST: Final = 2.0
PAUSE_MOST: Final = 10.0
RESTARTS_MOST: Final = 3
ERROR_BODY_MOST: Final = 1024 * 1024

log = logging.getLogger("evalfleet.contract")


@dataclass(slots=True)
class Follower:
    """One run's journal, read once. `deadline` is a `time.monotonic()` value; `jitter` gives numbers in [0, 1).

    `read_page` (cursor, deadline) and `read_run` (deadline) make whole requests with their own retries.
    """

    transport: Transport
    run_id: str
    deadline: float
    read_page: Callable[[str | None, float], Awaitable[dict[str, Any]]]
    read_run: Callable[[float], Awaitable[dict[str, Any]]]
    jitter: Callable[[], float]
    silence: float = SILENCE_SECONDS
    hear: Hear | None = None
    _cursor: str | None = None
    _seen: set[str] = field(default_factory=set)
    _ended: bool = False
    _streaming: bool = True
    _contact: bool = False
    _attempt: int = 0
    _restarts: int = 0
    _pause_least: float = 0.0
    _trouble: str = ""

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """New events in journal order, as received, until the run's end is known and the journal is drained.

        StreamLost (or TargetUnreachable, if nothing ever answered) at the deadline; ProblemAnswer for an answer that
        asking again would not change; UnreadableAnswer for one that is no event stream.
        """
        while not self._is_over():
            fresh = 0
            stream = await self._open() if self._streaming else None
            if stream is not None:
                try:
                    decoder = SSEDecoder()  # nothing half-read outlives a connection (C09)
                    while (batch := await self._next(stream, decoder)) is not None:
                        fresh += len(batch)
                        for event in batch:
                            yield event
                finally:
                    await stream.aclose()
                if self._is_over():
                    for event in await self._drained():
                        yield event
                    return
            if not fresh:
                # Nothing new came: ask the run itself and the journal before waiting any longer (C06).
                run_ended = await self._run_has_ended()
                more = True
                while more:
                    batch, more = await self._page(self.deadline)
                    fresh += len(batch)
                    for event in batch:
                        yield event
                # The run was read before the pages: if it had ended by then, they held everything.
                self._ended = self._ended or run_ended
            if not self._is_over():
                await self._pause(fresh)

    def _is_over(self) -> bool:
        return self._ended

    async def _open(self) -> StreamAnswer | None:
        """A stream that answered 200, or None where the pages have to be read instead (204, 410 restarts)."""
        while True:
            seen, problem = Seen(None), None
            try:
                stream = await self._ask()
            except NoAnswer as none:
                self._trouble = str(none)
                self._tell(seen)
            else:
                self._contact = True
                if stream.status == 200:
                    self._tell(Seen(200))
                    return await self._checked(stream)
                answer = await self._whole(stream)
                if answer.status == 204:  # "stop reconnecting", in the standard's words (C08)
                    self._streaming = False
                    return None
                problem = problem_answer(self._request(), answer, url=self.transport.base_url + self._path())
                if self._restarted(problem):
                    continue
                self._trouble = str(problem)
                seen = Seen(problem.status, problem.code, problem.quota, problem.retry_after)
                self._tell(seen)
            decision = decide(seen, method="GET", attempt=self._attempt, remaining=self._left(), jitter=self.jitter())
            match decision:
                case Retry(after_seconds):
                    self._attempt += 1
                    await asyncio.sleep(after_seconds)
                case GiveUp() if problem is not None and problem.status < 500:
                    raise problem
                case GiveUp():
                    raise self._lost() from problem

    def _tell(self, seen: Seen) -> None:
        if self.hear is not None:
            self.hear(Heard(seen.status, quota=seen.quota, retry_after=seen.retry_after, why=self._trouble))

    async def _ask(self) -> StreamAnswer:
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity", "Cache-Control": "no-cache"}
        params: dict[str, str] = {}
        if self._cursor is not None:
            if all("!" <= character <= "~" for character in self._cursor):
                headers["Last-Event-ID"] = self._cursor
            else:  # what a header cannot carry
                params["cursor"] = self._cursor
        within = min(self._left(), OPEN_SECONDS)
        return await self.transport.open("GET", self._path(), within=within, params=params, headers=headers)

    async def _checked(self, stream: StreamAnswer) -> StreamAnswer:
        kind = stream.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "text/event-stream":
            await stream.aclose()
            raise UnreadableAnswer(
                f"{self._request()}: the answer is {kind or 'of no type'}, not an event stream; "
                "does the base URL name the API, and does no proxy answer in its place?"
            )
        return stream

    async def _whole(self, stream: StreamAnswer) -> Answer:
        try:
            return await stream.rest(min(self._left(), OPEN_SECONDS), most=ERROR_BODY_MOST)
        except NoAnswer:
            return Answer(stream.status, stream.headers, b"")  # the status says enough
        finally:
            await stream.aclose()

    async def _next(self, stream: StreamAnswer, decoder: SSEDecoder) -> list[dict[str, Any]] | None:
        """The new events in the next bytes, None when the connection or the run is over."""
        if self._ended:
            await self._linger(stream)
            return None
        try:
            chunk = await stream.chunk(min(self.silence, self._left()))
        except NoAnswer as broken:
            self._trouble = str(broken)
            return None
        if chunk is None:
            self._trouble = "the stream closed before the run's end"
            return None
        batch: list[dict[str, Any]] = []
        for frame in decoder.feed(chunk):
            if frame.retry is not None:
                self._pause_least = min(frame.retry / 1000, PAUSE_MOST)
            event = self._event(frame.data)
            self._cursor = frame.id or _text(event.get("cursor")) or self._cursor
            self._take(event, batch)
        return batch

    async def _linger(self, stream: StreamAnswer) -> None:
        try:
            while await stream.chunk(LINGER_SECONDS) is not None:
                pass
        except NoAnswer:
            return  # the end was seen: how the transfer ended says nothing (C12)

    def _event(self, data: str) -> dict[str, Any]:
        try:
            event = jsontext.loads(data)
        except ValueError as wrong:
            raise UnreadableAnswer(f"{self._request()}: an event's data is no JSON ({wrong}): {data[:80]!r}") from wrong
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            raise UnreadableAnswer(f"{self._request()}: an event's data is no event: {data[:80]!r}")
        return event

    def _take(self, event: dict[str, Any], batch: list[dict[str, Any]]) -> None:
        """Into the batch, unless it was handed out before. One without an id cannot be told apart: it passes."""
        identity = event.get("id")
        if not isinstance(identity, str):
            batch.append(event)
        elif identity not in self._seen:
            self._seen.add(identity)
            batch.append(event)
        self._ended = self._ended or is_end_event(event)

    async def _page(self, deadline: float) -> tuple[list[dict[str, Any]], bool]:
        """The new events of one page after the cursor, and whether there is another one."""
        try:
            page = await self.read_page(self._cursor, deadline)
        except ProblemAnswer as problem:
            if self._restarted(problem):
                return [], True
            if problem.status < 500:
                raise
            raise self._lost(problem) from problem
        except TargetUnreachable as unreachable:
            raise self._lost(unreachable) from unreachable
        batch: list[dict[str, Any]] = []
        for event in page["data"]:
            self._take(event, batch)
        more = bool(page["page"].get("has_more"))
        following = _text(page["page"].get("next_cursor"))
        if more and following in {None, self._cursor}:
            raise UnreadableAnswer(f"{self._request()}: a page says that there is more, and not where")
        self._cursor = following or self._cursor
        return batch, more

    async def _run_has_ended(self) -> bool:
        try:
            return is_ended(await self.read_run(self.deadline))
        except ProblemAnswer as problem:
            if problem.status < 500:
                raise
            raise self._lost(problem) from problem
        except TargetUnreachable as unreachable:
            raise self._lost(unreachable) from unreachable

    async def _drained(self) -> list[dict[str, Any]]:
        """What came into the journal beside the end. Its failure does not undo the end, and is said (C12)."""
        until = min(self.deadline, time.monotonic() + DRAIN_SECONDS)
        events: list[dict[str, Any]] = []
        more = True
        try:
            while more:
                batch, more = await self._page(until)
                events += batch
        except EvalfleetError as failed:
            log.warning("run %s has ended, but its journal could not be read once more: %s", self.run_id, failed)
        return events

    def _restarted(self, problem: ProblemAnswer) -> bool:
        """410: the cursor is too old. Start over without one; what was handed out is known by its id (C08)."""
        if problem.status != 410 or self._cursor is None or self._restarts >= RESTARTS_MOST:
            return False
        self._restarts += 1
        self._cursor = None
        return True

    async def _pause(self, fresh: int) -> None:
        self._attempt = 0 if fresh else self._attempt + 1
        most = PAUSE_MOST if self._streaming else POLL_MOST
        pause = max(backoff(self._attempt, self.jitter(), most=most), self._pause_least)
        await asyncio.sleep(min(pause, self._left()))

    def _left(self) -> float:
        """Seconds to the deadline; the loss is raised when there are none."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise self._lost()
        return left

    def _lost(self, failed: PlatformError | None = None) -> PlatformError:
        if failed is not None:
            self._trouble = failed.message
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
