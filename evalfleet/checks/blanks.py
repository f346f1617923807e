"""Names the tabs, and the other blanks, that indent a case file for people and not for YAML (S3).

A tab outside quotes, block text and comments is refused. A no-break space and its kin are text wherever they stand: so
what looks like an indent becomes a key that nobody knows, or goes on with the text of the line above. They are named as
problems where a file is refused, and as warnings where it can be read.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

from evalfleet.checks.place import CaseProblem
from evalfleet.checks.source import Source

Span = tuple[int, int]

_COMMENT = re.compile(r"(?:(?<=[ \t\n\r])|\A)#[^\n\r]*")
_ODD = "[\x85\xa0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u2060\u3000]"
_ANY_ODD = re.compile(_ODD)
# Where structure is: in the indent, after a dash, after a first key.
_MISLEADING = re.compile(rf"(?:(?<=[\n\r])|\A) *+(?:[-?] ++)*+(?:[-?:]|[A-Za-z_]\w*+:)?(?P<odd>{_ODD})")


def stray_tab(source: Source, text_spans: Sequence[Span], end: int) -> CaseProblem | None:
    """The first tab before `end` that is outside quotes and block text (`text_spans`, in order) and comments."""
    if "\t" not in source.text[:end]:
        return None
    for start, gap in _gaps(source, text_spans, end):
        at = gap.find("\t")
        if at >= 0:
            return _problem(source, start + at, "tab", "YAML indents with spaces only")
    return None


def misleading_blanks(source: Source, text_spans: Sequence[Span], end: int) -> Iterator[CaseProblem]:
    """The first blank of each line before `end` that indents for people only, outside the same."""
    if not _ANY_ODD.search(source.text, 0, end):
        return
    for start, gap in _gaps(source, text_spans, end):
        for found in _MISLEADING.finditer(gap):
            char = found["odd"]
            name = f"{unicodedata.name(char, 'NEXT LINE').lower()} (U+{ord(char):04X})"
            why = "to YAML it is text, neither a space nor a line's end; if you mean it as text, quote all of that text"
            yield _problem(source, start + found.start("odd"), name, why)


def _gaps(source: Source, text_spans: Sequence[Span], end: int) -> Iterator[tuple[int, str]]:
    """What is outside the spans, by its index; comments are blanked out."""
    at = 0
    for start, stop in [*text_spans, (end, end)]:
        gap = source.text[at : min(start, end)]
        yield at, _COMMENT.sub(lambda comment: " " * len(comment.group()), gap)
        at = max(at, stop)


def _problem(source: Source, index: int, name: str, why: str) -> CaseProblem:
    place = source.at(index)
    return source.problem_at(index, f"{name} at {place.line}:{place.column}: use spaces", why)
