"""How does an event reach the clients that wait for it, without anybody polling?

The journal of each run that is going on is kept here as ready frames; an append (after its commit) adds to it and wakes
the streams. A stream that comes late, or long after, reads what it lacks from the store. Headers say what proxies must
know (C13): no buffering, no caching, no compression; the first bytes go out at once; `:hb` after 15 s of silence; the
stream ends after the terminal `run.status_changed`, and an error inside it is the end of the stream, never a document.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from evalfleet.server.journal import Appended

HEARTBEAT: Final = 15.0
KEPT_FRAMES: Final = 512
PIECE: Final = 500
"""How many events are read from the store at once."""

_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]

Missing = Callable[[int], Awaitable[list[tuple[int, bytes]]]]
"""Reads from the store the next (at most PIECE) frames after a sequence number."""


class LiveRun:
    """The newest frames of one run, and who waits for more."""

    __slots__ = ("_frames", "_waiting", "last", "over")

    def __init__(self) -> None:
        self._frames: deque[tuple[int, bytes]] = deque(maxlen=KEPT_FRAMES)
        self._waiting: set[asyncio.Future[None]] = set()
        self.last = 0
        self.over = False

    def add(self, frames: tuple[tuple[int, bytes], ...], *, over: bool) -> None:
        for sequence, frame in frames:
            if sequence > self.last:
                self._frames.append((sequence, frame))
                self.last = sequence
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
        if self._frames[0][0] > sequence + 1:
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
    """All runs of this server that are going on."""

    def __init__(self) -> None:
        self._live: dict[str, LiveRun] = {}
        self.open = 0

    def publish(self, appended: Appended) -> None:
        """Called on the loop after each commit, in the order of the commits."""
        run = self._live.get(appended.run_id)
        if run is None:
            if appended.over or appended.frames[0][0] != 1:
                return  # a run that is nobody's any more: its journal is in the store
            run = self._live[appended.run_id] = LiveRun()
        run.add(appended.frames, over=appended.over)
        if appended.over:
            del self._live[appended.run_id]

    def of(self, run_id: str) -> LiveRun | None:
        return self._live.get(run_id)

    def abandon(self, run_id: str) -> None:
        """End the streams of a run whose journal cannot be written any more; its clients ask the API instead."""
        run = self._live.pop(run_id, None)
        if run is not None:
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
        finally:
            self._streams.open -= 1
            gone.cancel()

    async def _send_all(self, send: Send, gone: asyncio.Future[None]) -> None:
        live = self._live
        first = True
        while not gone.done():
            over = live is None or live.over  # read before the frames: nothing is added after `over`
            frames = live.after(self._after) if live is not None else None
            if frames is None:
                stored = await self._missing(self._after)
                frames = [frame for _sequence, frame in stored]
                if stored:
                    self._after = stored[-1][0]
                # A live run may have more than was stored when we read; a long journal comes in pieces.
                over = live is None and len(stored) < PIECE
            elif frames and live is not None:
                self._after = live.last
            if frames or first or over:
                first = False
                body = b"".join(frames) or (b"" if over else b":hb\n\n")
                await send({"type": "http.response.body", "body": body, "more_body": not over})
            if over:
                return
            if not frames and live is not None:
                await self._wait(live, send, gone)

    async def _wait(self, live: LiveRun, send: Send, gone: asyncio.Future[None]) -> None:
        change = live.change()
        await asyncio.wait((change, gone), timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
        if not change.done():
            live.forget(change)
            if not gone.done():
                await send({"type": "http.response.body", "body": b":hb\n\n", "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
