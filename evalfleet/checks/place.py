"""Where in a case file is something, and how is a problem there shown to a person?"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

WINDOW = 120
"""Characters of a source line that a problem shows; longer lines are cut around the caret."""


@dataclass(frozen=True, slots=True)
class Place:
    """A character in a file. `line` and `column` count from 1, `column` in characters."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class CaseProblem:
    """One thing that is wrong in one place of a case file (S2).

    `message` names the key and the value seen; `hint` says what to write instead; `source_line` is the line as it
    stands in the file. Where it is known: `end`, the line and column of the first character after what is meant, and
    `pointer`, the JSON pointer (RFC 6901) of the value or key in the document.
    """

    place: Place
    message: str
    source_line: str = ""
    hint: str = ""
    end: tuple[int, int] | None = None
    pointer: str | None = None

    def render(self) -> str:
        """`file:line:column: message`, the source line, a caret under the column, and the hint."""
        lines = [f"{self.place}: {self.message}"]
        if self.source_line.strip():
            shown, caret = window(self.source_line, self.place.column)
            lines += [f"  | {shown}", f"  | {caret}"]
        if self.hint:
            lines.append(f"  {self.hint}")
        return "\n".join(lines)

    def document(self, severity: str) -> dict[str, object]:
        """JSON for `--json`, with the source line as `render` shows it; `severity` is `error` or `warning`."""
        end_line, end_column = self.end or (None, None)
        return {
            "severity": severity,
            "file": self.place.file,
            "line": self.place.line,
            "column": self.place.column,
            "end_line": end_line,
            "end_column": end_column,
            "pointer": self.pointer,
            "message": self.message,
            "hint": self.hint,
            "source_line": window(self.source_line, self.place.column)[0] if self.source_line.strip() else "",
        }


def window(line: str, column: int) -> tuple[str, str]:
    """The part of `line` around `column` with nothing in it that moves a terminal's cursor, and the caret below it."""
    at = max(0, min(column - 1, len(line)))
    start = 0 if len(line) <= WINDOW else max(0, min(at - WINDOW // 2, len(line) - WINDOW))
    end = min(len(line), start + WINDOW)
    before = ("…" if start else "") + "".join(map(_printable, line[start:at]))
    after = "".join(map(_printable, line[at:end])) + ("…" if end < len(line) else "")
    return (before + after).rstrip(), " " * sum(map(_cells, before)) + "^"


def _printable(char: str) -> str:
    """One character as one that a terminal can show: a tab is an arrow, a control character a mark."""
    if char == "\t":
        return "→"
    return "�" if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") else char


def _cells(char: str) -> int:
    """How many columns a terminal gives the character, so that the caret stands below the right one."""
    if unicodedata.combining(char) or unicodedata.category(char) == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1
