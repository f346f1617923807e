"""Which line is an attempt's, and how is it written so that no crash and no rival writer can change the answer?

Evidence is a sequence of immutable segments `trials/<n>.jsonl`, each created exclusively and synced (I4). The first
line of an attempt that says passed, failed or error *is* the attempt, and readers ignore later ones. A line that says
missing only explains why there is none yet. `recorded: "elsewhere"` on any line of an attempt sticks (S35).
"""

from __future__ import annotations

import logging
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from json import dumps as json_dumps
from typing import Any

import orjson

from evalfleet.errors import OurFault, StorageError
from evalfleet.results import ResultsStore

LINE_FORMAT = 1
EVIDENCE = frozenset({"passed", "failed", "error"})
"""Outcomes that make a line the attempt; the fourth, missing, never does (S16)."""

_SEGMENT = re.compile(r"(\d{6,})\.jsonl")
MERGED = "trials.jsonl"
MOST_TRIALS = 10_000
"""A trial beyond, a hundred times what S5 allows, is damage: readers keep a few bytes for each trial up to the last."""
_DEEPEST = 200
_MOST_COLLISIONS = 100  # each is another aggregator with work in hand; one or two is all there ever are
_SURROGATES = re.compile("[\ud800-\udfff]")
_log = logging.getLogger(__name__)

AttemptKey = tuple[str, str, int]
"""(case name, scenario id, trial index from 0)."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What the aggregator sends of one attempt, and where its line is. Small: it is all that is kept in memory.

    `verdict` is the wire's: "passed", "failed" (also for an error, S16), or None for a missing attempt. `elsewhere`:
    the evaluation holds another run for this attempt than this line does (S35). `segment` 0 is `trials.jsonl`.
    """

    run_id: str | None
    outcome: str
    judge_score: str | None
    judge_feedback: str | None
    elsewhere: bool
    segment: int
    offset: int
    length: int

    @property
    def verdict(self) -> str | None:
        return {"passed": "passed", "failed": "failed", "error": "failed"}.get(self.outcome)


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that cannot be read. `line` counts from 1."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}; it is ignored"


def encode_line(line: Mapping[str, Any]) -> bytes:
    """One attempt line as UTF-8 JSON with its line feed; no other byte of it is a line feed.

    Whatever an agent or grader said can be written (B11): a lone surrogate becomes U+FFFD, NaN and infinities null, and
    what lies deeper than 200 levels a text that says so. Integers of any size stay.
    """
    missing = [name for name in ("case", "scenario", "trial", "outcome") if name not in line]
    if missing:
        raise OurFault(f"an attempt line without {', '.join(missing)}; please report this")
    try:
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        return encode_document(line, indent=None)


def encode_document(document: Mapping[str, Any], *, indent: int | None = 2) -> bytes:
    """Any JSON document by the same rules as a line; the slow way."""
    separators = (",", ":") if indent is None else None
    text = json_dumps(_writable(document, 0), ensure_ascii=False, indent=indent, separators=separators, allow_nan=False)
    return _SURROGATES.sub("\ufffd", text).encode() + b"\n"


def _writable(value: Any, depth: int) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if depth >= _DEEPEST:
        return f"(nested deeper than {_DEEPEST} levels: cut)"
    if isinstance(value, Mapping):
        return {str(key): _writable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_writable(item, depth + 1) for item in value]
    raise OurFault(f"an attempt line holds a {type(value).__name__}, which JSON cannot; please report this")


def append_segment(
    store: ResultsStore, artifact: str, lines: Sequence[Mapping[str, Any]], *, after: int | None = None
) -> int:
    """Write the next segment; its number, or 0 if there are no lines. When this returns, the lines are on the disk.
    `after`, the last segment that the caller knows of, saves looking for it.

    Numbers have no gaps and a segment appears whole, so once segment n is there all before it are there for good:
    whoever reads after appending sees every line that can come before its own. That is the fence between two
    aggregators (I4). StorageError: nothing was written, and nothing of it may be recorded.
    """
    if not lines:
        return 0
    for _ in range(_MOST_COLLISIONS):
        number = _next_number(store, artifact) if after is None else after + 1
        after = None
        if store.write_bytes_exclusive(_segment_path(artifact, number), (encode_line(line) for line in lines)):
            return number
    raise StorageError(
        f"{store.shown(artifact)}: {_MOST_COLLISIONS} times another process took the next segment's name"
    )


def attempts_index(store: ResultsStore, artifact: str) -> dict[AttemptKey, IndexEntry]:
    """The scored attempts that have a line. A caller that asks again and again keeps an `AttemptsIndex`."""
    index = AttemptsIndex(store, artifact)
    index.refresh()
    return dict(index.entries)


class AttemptsIndex:
    """Which line is each attempt's? Reads every segment once: `refresh` reads only what came since, and `read_on` does
    so at the price of one look for the next segment, however many there are.

    `entries`: scored attempts; `context`: scenarios played as context (S9), which are nobody's attempt.
    """

    def __init__(self, store: ResultsStore, artifact: str, *, damaged: Callable[[Damage], None] | None = None) -> None:
        self.store = store
        self.artifact = artifact
        self.entries: dict[AttemptKey, IndexEntry] = {}
        self.context: dict[AttemptKey, IndexEntry] = {}
        self._damaged = damaged or (lambda damage: _log.warning("%s", damage))
        self._read: dict[int, int] = {}  # segment → its size when it was read

    def refresh(self) -> None:
        sizes = segments_to_read(self.store, self.artifact)
        if 0 in self._read and self._read[0] != sizes.get(0):  # it was merged anew: all places in it moved
            self.entries.clear()
            self.context.clear()
            self._read.clear()
        for number in sorted(sizes):
            if self._read.get(number) != sizes[number]:
                self._scan(number)
                self._read[number] = sizes[number]  # a damaged end is told of once

    def read_on(self) -> None:
        """`refresh`, for who has read all and is the reader of an artifact that only grows (numbers have no gaps)."""
        if not self._read or 0 in self._read:
            self.refresh()
            return
        while self.store.exists(self._path(self._last + 1)):
            self._scan(self._last + 1)

    def append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write the next segment, if there are lines, and read on to it: no line can come before its own any more."""
        append_segment(self.store, self.artifact, lines, after=self._last or None)
        self.read_on()

    @property
    def _last(self) -> int:
        return next(reversed(self._read), 0)  # they are read in order

    def lines(self) -> Iterator[dict[str, Any]]:
        """The winning lines, in the order they were written."""
        for entry in sorted([*self.entries.values(), *self.context.values()], key=lambda e: (e.segment, e.offset)):
            yield self.line(entry)

    def line(self, entry: IndexEntry) -> dict[str, Any]:
        """The whole line of an entry. One of an attempt that is recorded elsewhere says so, whatever it said before."""
        line: dict[str, Any] = orjson.loads(self._bytes(entry))
        if entry.elsewhere:
            line["recorded"] = "elsewhere"
        return line

    def merged(self, order: Sequence[AttemptKey]) -> Iterator[bytes]:
        """The winning lines as bytes, in `order`; lines of keys that are not in it follow, sorted by key."""
        places = {key: place for place, key in enumerate(order)}
        chosen = [*self.entries.items(), *self.context.items()]
        chosen.sort(key=lambda item: (places.get(item[0], len(places)), item[0], item[1].segment, item[1].offset))
        for _, entry in chosen:
            if entry.elsewhere:
                yield encode_line(self.line(entry))
            else:
                yield self._bytes(entry).rstrip(b"\n") + b"\n"

    def _bytes(self, entry: IndexEntry) -> bytes:
        return self.store.read_range(self._path(entry.segment), entry.offset, entry.length)

    def _path(self, segment: int) -> str:
        return segment_file(self.artifact, segment)

    def _scan(self, segment: int) -> None:
        size = 0
        for line, offset, length in readable_lines(self.store, self.artifact, segment, self._damaged):
            self._take(line, segment, offset, length)
            size = offset + length
        self._read[segment] = size

    def _take(self, line: Mapping[str, Any], segment: int, offset: int, length: int) -> None:
        key = (sys.intern(line["case"]), sys.intern(line["scenario"]), line["trial"])
        entry = IndexEntry(
            run_id=line.get("run_id"),
            outcome=sys.intern(line["outcome"]),
            judge_score=line.get("judge_score"),
            judge_feedback=line.get("judge_feedback"),
            elsewhere=line.get("recorded") == "elsewhere",
            segment=segment,
            offset=offset,
            length=length,
        )
        table = self.context if line.get("context") else self.entries
        known = table.get(key)
        if known is None:
            table[key] = entry
        elif (known.segment, known.offset) != (segment, offset):
            winner = entry if _wins(entry, known) else known
            table[key] = replace(winner, elsewhere=known.elsewhere or entry.elsewhere)


def _wins(one: IndexEntry, other: IndexEntry) -> bool:
    """Evidence over none; the first evidence; of lines that only explain an absence, the last."""
    evident = one.outcome in EVIDENCE
    if evident != (other.outcome in EVIDENCE):
        return evident
    earlier = (one.segment, one.offset) < (other.segment, other.offset)
    return earlier if evident else not earlier


def decode_line(raw: bytes) -> dict[str, Any]:
    """The line; ValueError says in what it is none."""
    try:
        line = orjson.loads(raw)
    except orjson.JSONDecodeError as problem:
        torn = "" if raw.endswith(b"\n") else "torn, its writer was killed: "
        raise ValueError(f"{torn}{problem.msg} at character {problem.pos}") from problem
    if not isinstance(line, dict):
        raise ValueError(f"expected an object, found {type(line).__name__}")  # noqa: TRY004 - a fact of the file
    if line.get("format", LINE_FORMAT) != LINE_FORMAT:
        raise ValueError(f"format {line['format']!r} is not {LINE_FORMAT}: another evalfleet wrote it")
    for name, wanted in (("case", str), ("scenario", str), ("trial", int), ("outcome", str)):
        if not isinstance(line.get(name), wanted) or isinstance(line[name], bool):
            raise ValueError(f"{name} is {line.get(name)!r}, expected {wanted.__name__}")  # noqa: TRY004
    if not 0 <= line["trial"] < MOST_TRIALS:
        raise ValueError(f"trial is {line['trial']}, expected 0 to {MOST_TRIALS - 1}")
    return line


def readable_lines(
    store: ResultsStore, artifact: str, segment: int, damaged: Callable[[Damage], None]
) -> Iterator[tuple[dict[str, Any], int, int]]:
    """(line, offset, length) of what can be read in a segment."""
    path = segment_file(artifact, segment)
    for count, (raw, offset) in enumerate(raw_lines(store, path), 1):
        try:
            line = decode_line(raw)
        except ValueError as problem:
            damaged(Damage(store.shown(path), count, str(problem)))
        else:
            yield line, offset, len(raw)


def raw_lines(store: ResultsStore, path: str) -> Iterator[tuple[bytes, int]]:
    """Every line as it stands, with its line feed, and where it begins."""
    offset = 0
    with store.open(path) as file:
        for raw in file:  # a binary file: ends lines at b"\n" and nowhere else (C01)
            yield raw, offset
            offset += len(raw)


def segment_file(artifact: str, segment: int) -> str:
    return f"{artifact}/{MERGED}" if segment == 0 else _segment_path(artifact, segment)


def segments_to_read(store: ResultsStore, artifact: str) -> dict[int, int]:
    """Segment → its size. 0 is the merged file, where somebody kept only that: it stands for the segments before."""
    sizes = _segments(store, artifact)
    if 1 not in sizes:
        merged = store.list(artifact).get(MERGED)
        if merged is not None:
            sizes[0] = merged
    return sizes


def _segments(store: ResultsStore, artifact: str) -> dict[int, int]:
    found = ((_SEGMENT.fullmatch(name), size) for name, size in store.list(f"{artifact}/trials").items())
    return {int(match[1]): size for match, size in found if match}


def _segment_path(artifact: str, number: int) -> str:
    return f"{artifact}/trials/{number:06d}.jsonl"


def _next_number(store: ResultsStore, artifact: str) -> int:
    numbers = _segments(store, artifact)
    if numbers:
        return max(numbers) + 1
    return 2 if store.exists(f"{artifact}/{MERGED}") else 1  # segment 1 is what trials.jsonl then stands for
