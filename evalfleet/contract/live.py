"""One connection to a run's event stream: how it is asked for, what comes instead, and what it carries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from evalfleet.contract.answers import problem_answer
from evalfleet.contract.sse import SSEDecoder
from evalfleet.contract.transport import Answer, NoAnswer, StreamAnswer, Transport
from evalfleet.errors import ProblemAnswer, UnreadableAnswer

LINGER_SECONDS: Final = 0.2
"""After the end event the server closes at once; waiting for it keeps the connection for the next request."""

ERROR_BODY_MOST: Final = 1024 * 1024


async def open_stream(
    transport: Transport, path: str, cursor: str | None, *, within: float
) -> StreamAnswer | ProblemAnswer | None:
    """An event stream from strictly after `cursor`, the error that came instead, or None for 204 ("stop reconnecting",
    in the standard's words: C08). NoAnswer without an answer in `within` seconds; UnreadableAnswer for a 200 that is
    something else."""
    headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity", "Cache-Control": "no-cache"}
    params: dict[str, str] = {}
    if cursor is not None:
        if all("!" <= character <= "~" for character in cursor):
            headers["Last-Event-ID"] = cursor
        else:  # what a header cannot carry
            params["cursor"] = cursor
    stream = await transport.open("GET", path, within=within, params=params, headers=headers)
    if stream.status == 200:
        kind = stream.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/event-stream":
            return stream
        await stream.aclose()
        raise UnreadableAnswer(
            f"GET {path}: the answer is {kind or 'of no type'}, not an event stream; "
            "does the base URL name the API, and does no proxy answer in its place?"
        )
    answer = await _whole(stream, within)
    return None if answer.status == 204 else problem_answer(f"GET {path}", answer, url=transport.base_url + path)


async def _whole(stream: StreamAnswer, within: float) -> Answer:
    try:
        return await stream.rest(within, most=ERROR_BODY_MOST)
    except NoAnswer:
        return Answer(stream.status, stream.headers, b"")  # the status says enough
    finally:
        await stream.aclose()


@dataclass(slots=True)
class Live:
    """An open stream. At `quiet_at` (`time.monotonic()`) `quiet` is awaited beside it: it answers in how many seconds
    again, or None to leave the stream. Nothing half-read outlives a connection, so the decoder is its own (C09)."""

    stream: StreamAnswer
    quiet_at: float
    quiet: Callable[[], Awaitable[float | None]]
    decoder: SSEDecoder = field(default_factory=SSEDecoder)

    async def chunk(self, within: float) -> bytes | None:
        """The next bytes, b"" where `quiet` has said to leave, None at the end. NoAnswer if the transfer breaks, or
        nothing comes within `within` seconds."""
        reading = asyncio.ensure_future(self.stream.chunk(within))
        try:
            while True:
                if self.quiet_at <= time.monotonic():
                    again = await self.quiet()
                    if again is None:
                        return b""
                    self.quiet_at = time.monotonic() + again
                done, _ = await asyncio.wait({reading}, timeout=self.quiet_at - time.monotonic())
                if done:
                    return reading.result()
        finally:
            if not reading.done():
                reading.cancel()
                await asyncio.wait({reading})
            elif not reading.cancelled():
                reading.exception()  # seen: what it says of a stream that is left does not matter

    async def linger(self) -> None:
        """Let the server close."""
        try:
            while await self.stream.chunk(LINGER_SECONDS) is not None:
                pass
        except NoAnswer:
            return  # the end was seen: how the transfer ended says nothing (C12)

    async def aclose(self) -> None:
        await self.stream.aclose()
