"""Which server-sent events are in these bytes, wherever the network cut them?

A pure incremental decoder on raw bytes, after the standard's parsing rules:
https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
No socket, no clock. Lines end at CR, LF or CRLF and nowhere else (not at U+2028, U+2029 or U+0085, as `splitlines` has
it: C01), and bytes become text one whole line at a time, so that no cut can split a character (C04).

One decoder reads one connection: a half-read event dies with its connection (C09). What outlives it is the reader's to
keep: the last event id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from evalfleet.errors import UnreadableAnswer

MAX_EVENT_BYTES: Final = 32 * 1024 * 1024
"""The longest line, and the most data in one event. A tool result of 8 MB passes; an endless line is refused (C11)."""

MAX_EVENT_LINES: Final = 65_536
"""The most `data:` lines in one event. The platform writes one."""

_BOM: Final = b"\xef\xbb\xbf"
_MAX_RETRY_DIGITS: Final = 9


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One dispatched event. `id` is the last event id in force ("" if none); `event` is "message" where none was named.

    `retry` (milliseconds) is there if a valid `retry:` line came since the event before.
    """

    id: str
    event: str
    data: str
    retry: int | None = None


class SSEDecoder:
    """Feed it bytes as they arrive; it hands back the events that they complete.

    Memory stays under `max_event_bytes` for a line and as much again for an event's data, plus the chunk fed.
    """

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES, max_event_lines: int = MAX_EVENT_LINES) -> None:
        self._max_bytes = max_event_bytes
        self._max_lines = max_event_lines
        self._head: bytes | None = b""  # the first bytes, until it is plain whether they are a BOM
        self._skip_lf = False  # the last chunk ended in CR, which ended its line: a LF that follows belongs to it
        self._line = bytearray()  # the line that has not ended; only new bytes are searched, so time stays linear
        self._data = bytearray()
        self._data_lines = 0
        self._event = ""
        self._id_seen = ""
        self._retry_seen: int | None = None
        self.last_event_id = ""
        """The id of the last block that ended, event or not: where to resume (C09: an id without data counts)."""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that end in `chunk`. UnreadableAnswer once a line or an event passes its limit."""
        if self._head is not None:
            chunk = self._head + chunk
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._head = chunk
                return []
            self._head = None
            chunk = chunk.removeprefix(_BOM)
        if self._skip_lf and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._skip_lf = False
        if not chunk:
            return []
        if b"\r" in chunk:
            # A CR ends its line at once, also at the end of a chunk: nobody waits for a LF that may never come (C02).
            self._skip_lf = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = chunk.split(b"\n")
        events: list[ServerSentEvent] = []
        for line in lines:
            if self._line:
                self._line += line
                line = bytes(self._line)
                self._line.clear()
            if len(line) > self._max_bytes:
                raise self._line_too_long()
            if not line:
                self._dispatch(events)
            else:
                self._field(line)
        if rest:
            self._line += rest
            if len(self._line) > self._max_bytes:
                raise self._line_too_long()
        return events

    def finish(self) -> None:
        """The connection ended: what was not closed by a blank line is dropped, as the standard wants it."""
        self._line.clear()
        self._data.clear()
        self._data_lines = 0

    def _line_too_long(self) -> UnreadableAnswer:
        return UnreadableAnswer(
            f"an event stream sent a line of more than {self._max_bytes} bytes; the limit keeps memory flat"
        )

    def _field(self, line: bytes) -> None:
        name, _colon, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            self._data_lines += 1
            if self._data_lines > self._max_lines or len(self._data) + len(value) > self._max_bytes:
                raise UnreadableAnswer(
                    f"an event stream sent an event of more than {self._max_bytes} bytes or {self._max_lines} lines"
                )
            self._data += value
            self._data += b"\n"
        elif name == b"event":
            self._event = value.decode("utf-8", errors="replace")
        elif name == b"id":
            if b"\0" not in value:
                self._id_seen = value.decode("utf-8", errors="replace")
        elif name == b"retry" and value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
            self._retry_seen = int(value)

    def _dispatch(self, events: list[ServerSentEvent]) -> None:
        self.last_event_id = self._id_seen
        if self._data_lines:
            del self._data[-1]
            text = self._data.decode("utf-8", errors="replace")
            events.append(ServerSentEvent(self.last_event_id, self._event or "message", text, self._retry_seen))
            self._data.clear()
            self._data_lines = 0
            self._retry_seen = None
        self._event = ""
