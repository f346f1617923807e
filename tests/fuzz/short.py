"""Reads every text of up to so many pieces of YAML's syntax as a case file and as a suite, by both of PyYAML's parsers.

    python -m tests.fuzz.short --pieces 5

A finding is a reader that raises, a place that the file does not have, or a file that one parser takes and the other
reads differently. Exit code 1 and the texts. What was found stands in `tests/checks/test_case_lines.py`.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from typing import Any

import yaml

from evalfleet.checks import LoadedCases, nodes, parse_case
from evalfleet.checks.suite import parse_suite

PIECES = [*"a0-?:,[]{}#&*!|>'\"%@`~<=\\ \t\n\r", "\x85", "\u2028", "\xa0", "---", "...", "\\ud83d", "\\ude00", "é"]
_LOADERS: tuple[Any, ...] = (yaml.CSafeLoader, yaml.SafeLoader)


def texts(pieces: int) -> Iterator[str]:
    """Every text of up to so many pieces."""
    for count in range(pieces + 1):
        yield from map("".join, itertools.product(PIECES, repeat=count))


def findings(text: str) -> Iterator[str]:
    """What is wrong with how a text is read."""
    data = text.encode()
    for name in ("a case", "a.yaml", "a.jsonl"):
        read = []
        for loader in _LOADERS[: 1 if name == "a.jsonl" else 2]:
            nodes._LOADER = loader
            try:
                loaded = (
                    parse_case(data, name="a", file="a.yaml")
                    if name == "a case"
                    else parse_suite(data, name="a", file=name, beside=lambda name: (name, b""))
                )
                said = [problem.render() for problem in (*loaded.problems, *loaded.warnings)]
            except Exception as error:
                yield f"{name}, {loader.__name__}: {error!r}"
                continue
            assert said
            yield from (f"{name}, {loader.__name__}: {fault}" for fault in _places(text, loaded))
            read.append(loaded)
        if len(read) == 2 and read[0].cases != read[1].cases:
            yield f"{name}: two readings"


def _places(text: str, loaded: LoadedCases) -> Iterator[str]:
    """Places that no editor shows."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for problem in (*loaded.problems, *loaded.warnings):
        start = (problem.place.line, problem.place.column)
        for line, column in (start, problem.end or start):
            if not (1 <= line <= len(lines) and 1 <= column <= len(lines[line - 1]) + 1):
                yield f"{line}:{column} is no place: {problem.message}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.short")
    parser.add_argument("--pieces", type=int, default=4)
    read = found = 0
    for text in texts(parser.parse_args().pieces):
        read += 1
        for fault in findings(text):
            found += 1
            print(f"{text!r}: {fault}", flush=True)
    print(f"{read} texts, {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
