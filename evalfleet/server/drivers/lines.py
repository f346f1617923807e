"""What does an agent's output say, and where does each line end? The incremental reader of the agent's protocol.

Bytes go in as they come, in pieces of any size; lines (`protocol`) come out. Pure: no process, no socket. After what
cannot be read (`Broken`) nothing more comes out.

The first line that is not blank decides: a JSON object with a known `type` means JSON Lines, anything else means that
the whole output is the answer, as plain text. Where such an answer has an object of the protocol in it, as it has after
a stray `print`, a note says so. Only a line feed ends a line (a raw U+2028 in a text does not: C01).
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Literal

from evalfleet.server.drivers.protocol import (
    KINDS,
    AgentLine,
    AnswerLine,
    Broken,
    NoteLine,
    Unreadable,
    from_document,
    loads,
    loads_first,
    read_line,
    shorten,
)

LINE_LIMIT = 64 * 1024 * 1024
TOTAL_LIMIT = 256 * 1024 * 1024

Mode = Literal["auto", "lines", "text"]

# A first line that cannot be parsed but says one of our types is a broken protocol and no answer in plain text.
_SAYS_A_TYPE = re.compile(r'"type"\s*:\s*"(?:' + "|".join(KINDS) + r')"')
# Objects of the protocol are looked for in a plain answer, as far as that takes no time worth mentioning.
_OBJECT_CHARS = 1024 * 1024
_MOST_LOOKED_AT = 20
_SHOWN = 80


class AgentOutput:
    """Reads one agent's output of one turn.

    `feed(bytes)` gives the lines that are complete, `finish()` what the end of the output completes: the last line
    without a line feed, or the answer in plain text (one final line end removed; nothing at all is no answer).
    `mode` "lines" and "text" leave no choice to the first line, and nothing to note.
    """

    def __init__(self, mode: Mode = "auto", *, line_limit: int = LINE_LIMIT, total_limit: int = TOTAL_LIMIT) -> None:
        self._mode: Mode = mode
        self._guesses = mode == "auto"
        self._line_limit = line_limit
        self._total_limit = total_limit
        self._total = 0
        self._number = 0
        self._buffer = bytearray()  # the unfinished line; in plain text everything
        self._seen = 0  # how much of the buffer is known to hold no line feed: keeps a long line linear
        self._start = 0  # where the undecided line starts; the blank lines before it belong to a plain answer
        self._broken = False

    def feed(self, data: bytes) -> list[AgentLine]:
        if self._broken or not data:
            return []
        self._total += len(data)
        if self._total > self._total_limit:
            return self._break(
                "agent_output_too_large", f"the agent printed more than {_size(self._total_limit)} in one turn"
            )
        self._buffer += data
        lines: list[AgentLine] = []
        while not self._settled() and (end := self._buffer.find(b"\n", self._seen)) >= 0:
            if self._take(bytes(self._buffer[self._start : end]), lines, whole=True):
                del self._buffer[: end + 1]
                self._start = self._seen = 0
            else:
                self._start = self._seen = end + 1
        if self._settled():
            return lines
        self._seen = len(self._buffer)
        if self._mode == "auto" and not self._may_be_json():
            self._mode = "text"
        elif len(self._buffer) - self._start > self._line_limit:
            lines += self._break(
                "agent_output_too_large",
                f"line {self._number + 1} of the agent's output is longer than {_size(self._line_limit)}",
            )
        return lines

    def finish(self) -> list[AgentLine]:
        if self._broken:
            return []
        lines: list[AgentLine] = []
        if self._mode != "text" and len(self._buffer) > self._start:
            self._take(bytes(self._buffer[self._start :]), lines, whole=False)
        if self._mode == "lines" or self._broken:
            return lines
        text = self._buffer.decode("utf-8", errors="replace").removeprefix("\ufeff")
        text = text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text
        return [*self._notes(text), AnswerLine(text)] if text else []

    def notes(self) -> list[NoteLine]:
        """What is to be said of the output, once all of it is here, where `finish` is not called: of an agent that
        failed."""
        return self._notes(self._buffer.decode("utf-8", errors="replace").removeprefix("\ufeff"))

    def tail(self, limit: int) -> str:
        """The end of what was printed and not understood yet: for the message of an agent that failed."""
        return bytes(self._buffer[-limit:]).decode("utf-8", errors="replace").strip()

    def _take(self, raw: bytes, lines: list[AgentLine], *, whole: bool) -> bool:
        """Read one line. False: it is (so far) a part of a plain answer and has to stay in the buffer."""
        self._number += 1
        text = raw.decode("utf-8", errors="replace")
        if self._number == 1:
            text = text.removeprefix("\ufeff")
        text = text.strip(" \t\r\n")
        if not text:
            return self._mode == "lines"
        if self._mode == "lines":
            self._add(read_line(text, f"line {self._number}", whole=whole), lines)
            return True
        document = loads(text) if text.startswith("{") else None
        if isinstance(document, dict) and document.get("type") in KINDS:
            self._mode = "lines"
            self._add(from_document(document, f"line {self._number}"), lines)
            return True
        if isinstance(document, Unreadable) and (
            _SAYS_A_TYPE.search(text) or (not whole and re.match(r'\{\s*(?:"|$)', text))
        ):
            self._add(read_line(text, f"line {self._number}", whole=whole), lines)
            return True
        self._mode = "text"
        return False

    def _add(self, line: AgentLine, lines: list[AgentLine]) -> None:
        lines.append(line)
        if isinstance(line, Broken):
            self._broken = True

    def _notes(self, text: str) -> list[NoteLine]:
        """A plain answer with an object of the protocol in it is one that the agent did not mean."""
        found = _unread(text) if self._guesses and self._mode == "text" and not self._broken else None
        if found is None:
            return []
        kind, at = found
        words = text.lstrip(" \t\r\n")
        first, line = text.count("\n", 0, len(text) - len(words)) + 1, text.count("\n", 0, at) + 1
        seen = shorten(words.partition("\n")[0].rstrip(), _SHOWN)
        where = f"line {line}" if line != first else "it"
        return [
            NoteLine(
                f"line {first} of the agent's output is no JSON object of the protocol, so the whole output was taken "
                f"as plain text and the `{kind}` in {where} was not read (an object has a line of its own, and what is "
                f'not of the protocol goes to stderr); line {first} starts with "{seen}"'
            )
        ]

    def _break(self, code: str, message: str) -> list[AgentLine]:
        self._broken = True
        self._buffer.clear()
        return [Broken(code, message)]

    def _settled(self) -> bool:
        """No more lines are looked for: the output is plain text, or broken."""
        return self._broken or self._mode == "text"

    def _may_be_json(self) -> bool:
        head = bytes(self._buffer[self._start : self._start + 64]).removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
        return not head or head[:1] in (b"{", b"\xef")


def _unread(text: str) -> tuple[str, int] | None:
    """The first object of the protocol in a text, be it behind other words or over several lines: its type, and where
    it starts."""
    for match in islice(_SAYS_A_TYPE.finditer(text), _MOST_LOOKED_AT):
        earliest = max(match.start() - _OBJECT_CHARS, 0)
        line = max(text.rfind("\n", earliest, match.start()) + 1, earliest)
        starts = text.find("{", line, match.start()), text.rfind("{", earliest, match.start())
        for start in dict.fromkeys(starts):
            document = loads_first(text[start : start + _OBJECT_CHARS]) if start >= 0 else None
            if isinstance(document, dict) and document.get("type") in KINDS:
                return document["type"], start
    return None


def _size(count: int) -> str:
    return f"{count // (1024 * 1024)} MiB" if count >= 1024 * 1024 else f"{count} bytes"
