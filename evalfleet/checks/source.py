"""What does a case file's text look like, and where in it is a character?"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate

from evalfleet.checks.place import CaseProblem, Place

MAX_BYTES = 5_000_000
"""The largest case file, in bytes (S3)."""

_BREAK = re.compile("\r\n|[\n\r]")
LONE_RETURN = re.compile("\r(?!\n)")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_BOM = b"\xef\xbb\xbf"


class RefusedError(Exception):
    """A file that cannot become nodes. Never leaves this package: `parse_case` answers with the problem."""

    def __init__(self, problem: CaseProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def utf8_text(file: str, data: bytes) -> str:
    """The text of a file, with or without a byte order mark. Raises RefusedError with the place of what is no UTF-8."""
    data = data.removeprefix(_BOM)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        place = Source.of(file, before).at(len(before))
        message = f"byte 0x{data[error.start]:02x} is not UTF-8"
        raise RefusedError(CaseProblem(place, message, hint="save the file in the encoding UTF-8")) from error


@dataclass(slots=True)
class Source:
    """The text of one file, and how to point into it. Its lines are an editor's: they end at LF, CRLF and CR."""

    file: str
    text: str = ""
    starts: array[int] = field(default_factory=lambda: array("I", [0]))
    """The index of each line's first character: four bytes each, because 5 MB can be 5 million lines."""

    @classmethod
    def of(cls, file: str, text: str) -> Source:
        starts = array("I", [0])
        if not LONE_RETURN.search(text):  # in a quarter of the time
            starts.extend(accumulate(map((1).__add__, map(len, text.split("\n")))))
            starts.pop()
        else:
            starts.extend(found.end() for found in _BREAK.finditer(text))
        return cls(file, text, starts)

    @classmethod
    def decode(cls, file: str, data: bytes) -> Source:
        """UTF-8 with or without a byte order mark. Refused: files over 5 MB, other encodings, control characters."""
        if len(data) > MAX_BYTES:
            raise RefusedError(
                CaseProblem(
                    Place(file, 1, 1),
                    f"this file has {len(data):,} bytes; a case file has {MAX_BYTES:,} at most",
                    hint="split it into several files: each is a case of its own",
                )
            )
        source = cls.of(file, utf8_text(file, data))
        text = source.text
        bad = _UNPRINTABLE.search(text)
        if bad:
            raise RefusedError(
                source.problem_at(
                    bad.start(),
                    f"the character U+{ord(bad.group()):04X} must not stand in a YAML file",
                    f'write it as an escape in double quotes: "\\u{ord(bad.group()):04x}"',
                )
            )
        return source

    def line(self, number: int) -> str:
        """The text of a line (from 1) without its break."""
        if not 1 <= number <= len(self.starts):
            return ""
        end = self.starts[number] if number < len(self.starts) else len(self.text)
        return self.text[self.starts[number - 1] : end].rstrip("\n\r")

    def problem(self, line: int, column: int, message: str, hint: str = "") -> CaseProblem:
        return CaseProblem(Place(self.file, line, column), message, self.line(line), hint)

    def problem_at(self, index: int, message: str, hint: str = "") -> CaseProblem:
        place = self.at(index)
        return self.problem(place.line, place.column, message, hint)

    def at(self, index: int) -> Place:
        """The place of the character with this index."""
        row = bisect_right(self.starts, index)
        return Place(self.file, row, index - self.starts[row - 1] + 1)
