"""How does an event reach the clients that wait for it, without anybody polling?

The journal of each run that this server plays is kept here as ready frames; an append (after its commit) adds to it and
wakes the streams. A stream that comes late, or long after, reads what it lacks from the store. So does one of a run
that another server plays: `heard` wakes it when that server has said how far the journal goes now.

Headers say what proxies must know (C13): no buffering, no caching, no compression; the first bytes go out at once;
`:hb` after 15 s of silence; the stream ends after the terminal `run.status_changed`, and an error inside it is the end
of the stream, never a document.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from evalfleet.errors import StorageError
from evalfleet.server.journal import Appended

_log = logging.getLogger(__name__)

HEARTBEAT: Final = 15.0
KEPT_FRAMES: Final = 512
PIECE: Final = 500
"""How many events are read from the store at once."""

_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True)
class Piece:
    """Frames from the store, in order, at most PIECE of them. `over`: the run has ended, and no more will come."""

    frames: list[tuple[int, bytes]]
    over: bool


Missing = Callable[[int], Awaitable[Piece]]
"""Reads from the store the next piece after a sequence number."""


class LiveRun:
    """The newest frames of one run, and who waits for more.

    `last`: how far the journal is known to go. `here`: this server plays the run, so that is all there is of it.
    """

    __slots__ = ("__weakref__", "_frames", "_waiting", "here", "last", "over")

    def __init__(self, *, here: bool = True) -> None:
        self.here = here
        self._frames: deque[tuple[int, bytes]] = deque(maxlen=KEPT_FRAMES)
        self._waiting: set[asyncio.Future[None]] = set()
        self.last = 0
        self.over = False

    def add(self, frames: tuple[tuple[int, bytes], ...], *, over: bool) -> None:
        for sequence, frame in frames:
            if sequence == self.last + 1:
                self._frames.append((sequence, frame))
                self.last = sequence
        if frames and frames[-1][0] > self.last:
            self.heard(frames[-1][0], over=over)  # of two commits the later one is heard of first: both are stored
            return
        self.over = self.over or over
        self.wake()

    def heard(self, last: int, *, over: bool) -> None:
        """The journal goes to `last` now, and the frames are in the store."""
        if last > self.last:
            self._frames.clear()
            self.last = last
        self.over = self.over or over
        self.wake()

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def after(self, sequence: int) -> list[bytes] | None:
        """The frames after `sequence`; None when some of them are not kept any more."""
        if self.last <= sequence:
            return []
        if not self._frames or self._frames[0][0] > sequence + 1:
            return None
        return [frame for number, frame in self._frames if number > sequence]

    def change(self) -> asyncio.Future[None]:
        """Done at the next addition."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        return future

    def forget(self, future: asyncio.Future[None]) -> None:
        self._waiting.discard(future)


class Streams:
    """All runs of this server that are going on, and those of other servers that clients of this one watch."""

    def __init__(self, tell: Callable[[Appended], None] | None = None) -> None:
        """`tell`: where other servers play runs of the same database, lets them know of a commit here."""
        self._live: dict[str, LiveRun] = {}
        self._watched: weakref.WeakValueDictionary[str, LiveRun] = weakref.WeakValueDictionary()
        self._tell = tell
        self.open = 0

    def publish(self, appended: Appended) -> None:
        """Called on the loop after each commit."""
        if self._tell is not None:
            self._tell(appended)
        run = self._live.get(appended.run_id)
        if run is None:
            if appended.over or appended.frames[0][0] != 1:  # played by another server, or by none any more
                self.heard(appended.run_id, appended.frames[-1][0], over=appended.over)
                return
            run = self._live[appended.run_id] = LiveRun()
        run.add(appended.frames, over=appended.over)
        if appended.over:
            del self._live[appended.run_id]

    def heard(self, run_id: str, last: int, *, over: bool) -> None:
        """Another server has committed."""
        run = self._watched.get(run_id)
        if run is not None:
            run.heard(last, over=over)

    def of(self, run_id: str) -> LiveRun | None:
        """The run as it goes on; None where the store alone can tell, because nobody plays it (any more)."""
        run = self._live.get(run_id)
        if run is None and self._tell is not None:
            run = self._watched.get(run_id)
            if run is None:
                run = self._watched[run_id] = LiveRun(here=False)
        return run

    def watched(self) -> Iterable[str]:
        """The runs of other servers that are watched here."""
        return list(self._watched)

    def abandon(self, run_id: str) -> None:
        """Nothing more will be published of this run: its streams read what the store has, and end."""
        run = self._live.pop(run_id, None)
        if run is not None:
            run.heard(run.last + 1, over=True)

    def leave(self) -> None:
        """End the streams of other servers' runs: this one stops, and their clients come back elsewhere."""
        for run in list(self._watched.values()):
            run.over = True
            run.wake()

    def __len__(self) -> int:
        return len(self._live)


class EventStream(Response):
    """One client's stream, written straight to the server: two tasks less than a StreamingResponse."""

    def __init__(self, streams: Streams, live: LiveRun | None, after: int, missing: Missing) -> None:
        self._streams = streams
        self._live = live
        self._after = after
        self._missing = missing
        self.background = None
        self.status_code = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        gone = asyncio.ensure_future(_disconnected(receive))
        self._streams.open += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await self._send_all(send, gone)
        except StorageError as problem:  # too late for a document: the client asks again, where it came to
            _log.warning("an event stream ends early: %s", problem.message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._streams.open -= 1
            gone.cancel()

    async def _send_all(self, send: Send, gone: asyncio.Future[None]) -> None:
        live = self._live
        first = True
        unread = live is None or not live.here  # of another server's run the store may have more than was heard of
        while not gone.done():
            over = live is None or live.over  # read before the frames: nothing is added after `over`
            frames = live.after(self._after) if live is not None and not unread else None
            if frames is None:
                piece = await self._missing(self._after)
                frames = [frame for _sequence, frame in piece.frames]
                if piece.frames:
                    self._after = piece.frames[-1][0]
                # A live run may have more than was stored when we read; a long journal comes in pieces.
                unread = len(frames) == PIECE
                over = piece.over or (over and not unread)
            elif frames and live is not None:
                self._after = live.last
            if frames or first or over:
                first = False
                body = b"".join(frames) or (b"" if over else b":hb\n\n")
                await send({"type": "http.response.body", "body": body, "more_body": not over})
            if over:
                return
            if not frames and live is not None and live.last <= self._after and not live.over:
                heard = await self._wait(live, send, gone)
                unread = not (heard or live.here)  # a note of another server's can be lost: the store is asked, too

    async def _wait(self, live: LiveRun, send: Send, gone: asyncio.Future[None]) -> bool:
        """Until there is more, the client is gone, or it is time for a sign of life. False for the last."""
        change = live.change()
        await asyncio.wait((change, gone), timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
        if not change.done():
            live.forget(change)
            if not gone.done():
                await send({"type": "http.response.body", "body": b":hb\n\n", "more_body": True})
                return False
        return True


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
