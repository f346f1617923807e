"""Where in a TOML file does each key stand?

`tomllib` gives values without places, and a refused key is of use only with its line. So the text is read twice: once
by `tomllib`, which decides what is valid TOML, and once by the scanner here, which walks text that is known to be valid
and notes line and column (both from 1, in code points) of each key and array element.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from evalfleet.checks.place import window
from evalfleet.errors import ConfigError

Path = tuple[str | int, ...]
Spot = tuple[int, int]

MAX_BYTES = 1_000_000
MAX_DEPTH = 100

_BLANK = re.compile(r"(?:[ \t\n]+|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\n]+")
_SYNTAX = re.compile(r"^(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TomlDocument:
    """A valid TOML file: `values` as `tomllib` reads them (numbers with a point are Decimal), `spots` by path."""

    file: str
    values: Mapping[str, Any]
    lines: tuple[str, ...]
    spots: Mapping[Path, Spot]

    def spot(self, path: Path) -> Spot:
        """Line and column of a key; of the nearest one above it where the key itself is not written."""
        while path and path not in self.spots:
            path = path[:-1]
        return self.spots.get(path, (1, 1))

    def place(self, path: Path) -> str:
        line, column = self.spot(path)
        return f"{self.file}:{line}:{column}"

    def source(self, path: Path) -> str:
        """The line of a key with a caret under it, as case-file errors show theirs (S2)."""
        line, column = self.spot(path)
        return show_line(self.lines, line, column)


def show_line(lines: tuple[str, ...], line: int, column: int) -> str:
    """`  | source` and a caret below; empty for a line that the file does not have."""
    if not 0 < line <= len(lines) or not lines[line - 1].strip():
        return ""
    text, caret = window(lines[line - 1], column)
    return f"  | {text}\n  | {caret}"


def read_toml(data: bytes, file: str) -> TomlDocument:
    """Values and places. ConfigError with `file:line:column` for what is not UTF-8 or not TOML."""
    if len(data) > MAX_BYTES:
        raise ConfigError(file, f"{len(data)} bytes: more than {MAX_BYTES}; this is no settings file")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8")) + 1
        seen = f"byte 0x{data[error.start]:02x} is not UTF-8: save the file as UTF-8"
        raise ConfigError(f"{file}:{line}:{column}", seen) from error
    written = text.removeprefix("\ufeff")
    text = written.replace("\r\n", "\n")
    lines = tuple(text.split("\n"))
    try:
        values = tomllib.loads(written, parse_float=Decimal)  # which replaces CRLF itself: done twice, CRCRLF passes
        spots = _Scanner(text).scan()
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(str(error), file, lines) from error
    except RecursionError as error:
        raise ConfigError(file, "it is nested too deeply to be read") from error
    return TomlDocument(file, values, lines, spots)


def _syntax_error(message: str, file: str, lines: tuple[str, ...]) -> ConfigError:
    found = _SYNTAX.match(message)
    if found is None:
        return ConfigError(file, f"not TOML: {message}")
    if found["line"]:
        line, column = int(found["line"]), int(found["column"])
    else:
        last = max((index for index, text in enumerate(lines) if text.strip()), default=0)
        line, column = last + 1, len(lines[last]) + 1
    shown = show_line(lines, line, column)
    return ConfigError(f"{file}:{line}:{column}", f"not TOML: {found['what']}" + (f"\n{shown}" if shown else ""))


class _Scanner:
    """One pass over text that `tomllib` has accepted."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.spots: dict[Path, Spot] = {}
        self.counts: dict[Path, int] = {}
        self.starts = [0]
        self.starts += [index + 1 for index, character in enumerate(text) if character == "\n"]

    def scan(self) -> dict[Path, Spot]:
        table: Path = ()
        while True:
            self._blank()
            if self.at >= len(self.text):
                return self.spots
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _spot(self, at: int) -> Spot:
        low, high = 0, len(self.starts)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.starts[middle] <= at else (low, middle)
        return low + 1, at - self.starts[low] + 1

    def _note(self, path: Path, at: int) -> None:
        if len(path) > MAX_DEPTH:  # a dotted key has no brackets that tomllib's own recursion would trip over
            raise RecursionError
        self.spots.setdefault(path, self._spot(at))

    def _blank(self) -> None:
        found = _BLANK.match(self.text, self.at)
        if found is not None:
            self.at = found.end()

    def _header(self) -> Path:
        many = self.text.startswith("[[", self.at)
        self.at += 2 if many else 1
        path: Path = ()
        names = self._key()
        for position, (name, at) in enumerate(names):
            path = (*path, name)
            self._note(path, at)
            if many and position == len(names) - 1:
                self.counts[path] = self.counts.get(path, -1) + 1
            if path in self.counts:
                path = (*path, self.counts[path])
                self._note(path, at)
        self._blank()
        self.at += 2 if many else 1
        return path

    def _key(self) -> list[tuple[str, int]]:
        """The parts of a dotted key with their offsets; stops on what follows it."""
        parts: list[tuple[str, int]] = []
        while True:
            self._blank()
            start = self.at
            if self.text[self.at] in "\"'":
                quoted = self._string()
                name = str(tomllib.loads(f"key = {quoted}")["key"])
            else:
                found = _BARE_KEY.match(self.text, self.at)
                assert found is not None  # tomllib has accepted this key
                name, self.at = found.group(), found.end()
            parts.append((name, start))
            self._blank()
            if self.text[self.at] != ".":
                return parts
            self.at += 1

    def _pair(self, table: Path) -> None:
        path = table
        for name, at in self._key():
            path = (*path, name)
            self._note(path, at)
        self.at += 1  # the equals sign
        self._value(path)

    def _value(self, path: Path) -> None:
        self._blank()
        opening = self.text[self.at]
        if opening in "\"'":
            self._string()
        elif opening == "[":
            self._array(path)
        elif opening == "{":
            self._inline_table(path)
        else:
            found = _SCALAR.match(self.text, self.at)
            assert found is not None  # a value stands here, or tomllib had refused
            self.at = found.end()

    def _array(self, path: Path) -> None:
        self.at += 1
        index = 0
        while True:
            self._blank()
            if self.text[self.at] == "]":
                self.at += 1
                return
            if self.text[self.at] == ",":
                self.at += 1
                continue
            self._note((*path, index), self.at)
            self._value((*path, index))
            index += 1

    def _inline_table(self, path: Path) -> None:
        self.at += 1
        while True:
            self._blank()
            if self.text[self.at] == "}":
                self.at += 1
                return
            if self.text[self.at] == ",":
                self.at += 1
                continue
            self._pair(path)

    def _string(self) -> str:
        """Skip one string of any of TOML's four kinds; its source text."""
        start, quote = self.at, self.text[self.at]
        long = self.text.startswith(quote * 3, self.at)
        closing = quote * 3 if long else quote
        self.at += len(closing)
        while not self.text.startswith(closing, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(closing)
        while long and self.text.startswith(quote, self.at):  # up to two quotes may stand before the closing three
            self.at += 1
        return self.text[start : self.at]
