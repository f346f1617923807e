"""Where is each attempt's line in an artifact, for who only reads it?

The choice is that of `AttemptsIndex`, which the aggregator needs; here an attempt costs 13 bytes, so that an artifact
of any size is read in about the memory that one line takes.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from evalfleet.evidence import (
    EVIDENCE,
    AttemptKey,
    Damage,
    decode_line,
    raw_lines,
    readable_lines,
    segment_file,
    segments_to_read,
)
from evalfleet.results import ResultsStore

_log = logging.getLogger(__name__)


def read_segments(
    store: ResultsStore, artifact: str, *, damaged: Callable[[Damage], None] | None = None
) -> Iterator[dict[str, Any]]:
    """Every attempt's line, one for each attempt, and the context lines, in the order they were written.

    Two passes over the files, one line in memory at a time. Lines that cannot be read are reported to `damaged` (else
    to the log) and left out; so is the torn last line of a killed writer.
    """
    return Places(store, artifact, damaged=damaged).lines()


_A_LINE = 16_384
"""Bytes read at once for a single line: most are shorter, and a megabyte each would be read for nothing."""


class Places:
    """The lines that count, by the files as they were when this was made. What cannot be read goes to `damaged`, else
    to the log."""

    def __init__(self, store: ResultsStore, artifact: str, *, damaged: Callable[[Damage], None] | None = None) -> None:
        self.store = store
        self.artifact = artifact
        self._scored: dict[tuple[str, str], _Trials] = {}
        self._context: dict[tuple[str, str], _Trials] = {}
        self._segments = sorted(segments_to_read(store, artifact))
        report = damaged or (lambda damage: _log.warning("%s", damage))
        for segment in self._segments:
            for line, offset, _ in readable_lines(store, artifact, segment, report):
                self._take(line, segment, offset)

    def has(self, key: AttemptKey) -> bool:
        """Is there a line of this attempt?"""
        case, scenario, trial = key
        return trial in self._scored.get((case, scenario), _NO_TRIALS)

    def trials(self, case: str, scenario: str) -> list[int]:
        """The trials that have a line, played as context or scored."""
        tables = (self._scored, self._context)
        return sorted({trial for table in tables for trial in table.get((case, scenario), _NO_TRIALS)})

    def lines(self) -> Iterator[dict[str, Any]]:
        """The winning lines, in the order they were written; one in memory at a time."""
        for segment in self._segments:
            for raw, offset in raw_lines(self.store, segment_file(self.artifact, segment)):
                line = self._winner(raw, segment, offset)
                if line is not None:
                    yield line

    def attempt(self, key: AttemptKey) -> dict[str, Any] | None:
        """An attempt's line."""
        return self._line(self._scored, key)

    def line(self, key: AttemptKey) -> dict[str, Any] | None:
        """An attempt's line, or the context's where it was played as that."""
        return self._line(self._scored, key) or self._line(self._context, key)

    def _line(self, table: Mapping[tuple[str, str], _Trials], key: AttemptKey) -> dict[str, Any] | None:
        case, scenario, trial = key
        found = table.get((case, scenario), _NO_TRIALS).get(trial)
        if found is None:
            return None
        segment, offset, elsewhere = found
        with self.store.open(segment_file(self.artifact, segment), buffer=_A_LINE) as file:
            file.seek(offset)
            return self._marked(orjson.loads(file.readline()), elsewhere)

    def _take(self, line: Mapping[str, Any], segment: int, offset: int) -> None:
        table = self._context if line.get("context") else self._scored
        trials = table.setdefault((line["case"], line["scenario"]), _Trials())
        trials.take(line["trial"], segment, offset, line["outcome"] in EVIDENCE, line.get("recorded") == "elsewhere")

    def _winner(self, raw: bytes, segment: int, offset: int) -> dict[str, Any] | None:
        try:
            line = decode_line(raw)
        except ValueError:
            return None  # reported by the first pass
        table = self._context if line.get("context") else self._scored
        found = table.get((line["case"], line["scenario"]), _NO_TRIALS).get(line["trial"])
        if found is None or found[:2] != (segment, offset):
            return None
        return self._marked(line, found[2])

    def _marked(self, line: dict[str, Any], elsewhere: bool) -> dict[str, Any]:
        """One of an attempt that is recorded elsewhere says so, whatever it said before."""
        return {**line, "recorded": "elsewhere"} if elsewhere else line


class _Trials:
    """The winning line's place for each trial of one scenario. Trial numbers are dense: they index arrays."""

    __slots__ = ("_flags", "_offsets", "_segments")

    _SEEN, _EVIDENT, _ELSEWHERE = 1, 2, 4

    def __init__(self) -> None:
        self._flags = bytearray()
        self._segments = array("i")
        self._offsets = array("q")

    def take(self, trial: int, segment: int, offset: int, evident: bool, elsewhere: bool) -> None:
        """Lines come in the order they were written: evidence over none, the first evidence, the last of the rest."""
        room = trial + 1 - len(self._flags)
        if room > 0:
            self._flags.extend(bytes(room))
            self._segments.extend([0] * room)
            self._offsets.extend([0] * room)
        if not self._flags[trial] & self._EVIDENT:
            self._segments[trial], self._offsets[trial] = segment, offset
        self._flags[trial] |= self._SEEN | self._EVIDENT * evident | self._ELSEWHERE * elsewhere

    def get(self, trial: int) -> tuple[int, int, bool] | None:
        """(segment, offset, recorded elsewhere)"""
        if trial not in self:
            return None
        return self._segments[trial], self._offsets[trial], bool(self._flags[trial] & self._ELSEWHERE)

    def __contains__(self, trial: object) -> bool:
        return isinstance(trial, int) and 0 <= trial < len(self._flags) and self._flags[trial] > 0

    def __iter__(self) -> Iterator[int]:
        return (trial for trial, flags in enumerate(self._flags) if flags)


_NO_TRIALS = _Trials()
