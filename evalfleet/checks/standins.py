"""Lets a parser of YAML 1.1 read a case file as YAML 1.2 has it.

To the parser U+0085, U+2028 and U+2029 end a line, and half a character in an escape (`"\\ud83d\\ude00"`, as JSON
writers have it) is an error. To YAML 1.2, and to every editor, the three are text. So the parser reads stand-ins:
characters that the file does not hold, one for one, which leaves all places as they are
(`docs/decisions/002-yaml-from-nodes.md`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from evalfleet.checks.source import RefusedError, Source
from evalfleet.checks.text import visible

_BREAKS = "\x85\u2028\u2029"
_HALF = r"u[dD][89a-fA-F][0-9a-fA-F]{2}"
_HALF_ESCAPE = re.compile(rf"\\(?={_HALF})")
_TO_REPLACE = re.compile(rf"[{_BREAKS}]|\\{_HALF}")
_PRIVATE_ESCAPE = re.compile(r"\\(?:u|U0000)([eEfF][0-9a-fA-F]{3})")
_LONE = re.compile(
    r"(?<!\\)(?:\\\\)*+(?:\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>\\(?:"
    rf"{_HALF}|U0000[dD][89a-fA-F][0-9a-fA-F]{{2}})))"
)


@dataclass(frozen=True, slots=True)
class ParserText:
    """What the parser reads in place of a file. `stood_for`: stand-ins → what the file has there; `half`: the stand-in
    of the backslash before half a character."""

    text: str
    half: str = ""
    stood_for: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Source) -> ParserText:
        """The file's own text where nothing in it needs a stand-in. Raises RefusedError where none is left."""
        text = source.text
        first = _TO_REPLACE.search(text)
        if first is None:
            return cls(text)
        used = {*text, *(chr(int(code, 16)) for code in _PRIVATE_ESCAPE.findall(text))}
        free = [*islice((chr(code) for code in range(0xE000, 0xF900) if chr(code) not in used), len(_BREAKS) + 2)]
        if len(free) < len(_BREAKS) + 2:
            message = "this cannot be read in a file that holds nearly all of Unicode's private characters"
            raise RefusedError(source.problem_at(first.start(), message, "delete it, or some of those"))
        half, pair, *breaks = free
        text = text.replace("\\\\", pair * 2)  # an escaped backslash begins no escape
        text = _HALF_ESCAPE.sub(half, text).replace(pair * 2, "\\\\").translate(str.maketrans(_BREAKS, "".join(breaks)))
        return cls(text, half, {ord(half): "\\", **dict(zip(map(ord, breaks), _BREAKS, strict=True))})

    def restored(self, value: str, *, escapes: bool) -> str:
        """A value as the file means it. `escapes`: it stood in double quotes, where two halves make a character; one
        alone stays what it is (a lone surrogate)."""
        if not self.stood_for:
            return value
        if escapes and self.half in value:
            first, *rest = value.split(self.half)
            value = first + "".join([chr(int(part[1:5], 16)) + part[5:] for part in rest])
            value = value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        return value.translate(self.stood_for)

    def restored_words(self, words: str) -> str:
        """The parser's own words, in which a stand-in may be shown as it is or as an escape."""
        for code, meant in self.stood_for.items():
            words = words.replace(chr(code), visible(meant)).replace(repr(chr(code))[1:-1], visible(meant))
        return words


def lone_half(source: Source, start: int, end: int) -> int | None:
    """The index of the first escape between two places that is half a character without the other half."""
    return next((found.start("lone") for found in _LONE.finditer(source.text, start, end) if found["lone"]), None)
