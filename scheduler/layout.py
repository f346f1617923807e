"""How does text that somebody else wrote become lines that a person can read, on a terminal and in a log file?

Rich does colour and wrapping; its markup is never read from data. Widths are counted in terminal cells. A width of None
means no terminal: every line stays whole, so that `grep` finds it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterable
from typing import TextIO

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console
from rich.text import Text

from evalfleet.checks.text import one_line
from evalfleet.errors import StorageError

NARROWEST = 40
"""A terminal that says it is narrower than this (cells) is laid out for this width."""

_EVERYTHING = 1 << 60
_WIDE = "\u3041-\u30ff\u3400-\u9fff\uac00-\ud7af\uff10-\uff5a"
_BREAKS = re.compile(rf"(?<= )(?=[^ ])|(?<=,)(?=[\"{{\[])|(?<=[{_WIDE}、。，！？」』）])(?=[{_WIDE}「『（])")
_JOINER = re.compile("(?<=[^\\x00-\\x7f])([\u200c\u200d])(?=[^\\x00-\\x7f])")
_PLAIN = str.maketrans({"…": "...", "–": "-", "─": "-"})


def clean(text: object) -> str:
    """One line with nothing hidden in it: control, format and other unseen characters as escapes (B12, S23)."""
    return one_line(str(text), _EVERYTHING)


def readable(text: str) -> str:
    """As `clean`, for what is read and not compared: joiners stay where they make one sign of two (a family of emoji,
    Persian and Indian scripts), and are shown where they hide."""
    return "".join(part if index % 2 else clean(part) for index, part in enumerate(_JOINER.split(text)))


def paragraphs(text: str, most: int) -> list[str]:
    """The lines of a text, each readable; after `most` characters it says how many more there are."""
    rest = len(text) - most
    lines = [readable(part.removesuffix("\r")) for part in text[:most].split("\n")]
    if rest > 0:
        lines.append(f"(… {rest:,} more characters)")
    return lines


def fit(text: str, width: int) -> str:
    """At most `width` cells, shortened in the middle."""
    if cell_len(text) <= width:
        return text
    tail = (width - 1) // 3
    end = ""
    for char in reversed(text):
        if cell_len(char + end) > tail:
            break
        end = char + end
    start = chop_cells(text, width - 1 - cell_len(end))[0] if width > 1 else ""
    return f"{start}…{end}"


def pad(text: str, width: int) -> str:
    """At least `width` cells."""
    return text if cell_len(text) >= width else set_cell_size(text, width)


def wrap(text: str, width: int | None) -> list[str]:
    """Lines of at most `width` cells; whole without a width.

    Broken at blanks; in JSON, which has none, after a comma; between wide letters, whose scripts write without blanks.
    What still does not fit is cut anywhere.
    """
    if width is None or cell_len(text) <= width:
        return [text]
    lines: list[str] = []
    line, used = "", 0
    for piece in _BREAKS.split(text):
        cells = cell_len(piece.rstrip(" "))
        if line and used + cells > width:
            lines.append(line.rstrip(" "))
            line, used = "", 0
        if cells > width:
            *whole, piece = chop_cells(piece, width)
            lines += whole
        line += piece
        used += cell_len(piece)
    return [*lines, line.rstrip(" ")]


def width_of(stream: TextIO) -> int | None:
    """Cells of the terminal behind a stream, or None if there is none."""
    if not _is_terminal(stream):
        return None
    with contextlib.suppress(ValueError):
        return max(NARROWEST, int(os.environ.get("COLUMNS", "")))
    with contextlib.suppress(OSError, ValueError):
        return max(NARROWEST, os.get_terminal_size(stream.fileno()).columns)
    return 80


def write_lines(lines: Iterable[Text], stream: TextIO) -> None:
    """Print lines as they are. Colour on a terminal only, and not with NO_COLOR or TERM=dumb.

    What the stream's encoding cannot hold is escaped (B11). A reader that went away (`| head`) changes nothing (S36):
    the rest is dropped, and so is what anybody prints there afterwards.
    """
    painted = io.StringIO()
    terminal = _is_terminal(stream)
    console = Console(
        file=painted,
        force_terminal=terminal,
        color_system="auto" if terminal else None,
        highlight=False,
        markup=False,
        emoji=False,
        width=_EVERYTHING if not terminal else None,
    )
    in_actions = os.environ.get("GITHUB_ACTIONS") == "true"
    for line in lines:
        console.print(_no_command(line) if in_actions else line, soft_wrap=True)
    text = _encodable(painted.getvalue(), getattr(stream, "encoding", None) or "utf-8")
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        _close_quietly(stream)
    except OSError as problem:
        _close_quietly(stream)
        raise StorageError(f"the result could not be printed: {problem.strerror}; `evalfleet show` has it") from problem


def duration(milliseconds: float) -> str:
    """850ms, 1.2s, 43.0s, 2m05s, 1h02m."""
    if milliseconds < 999.5:
        return f"{milliseconds:.0f}ms"
    seconds = milliseconds / 1000
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes}m{left:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


_COMMAND = re.compile(r"^(\s*):(?=:)|#(?=#\[)")


def _no_command(line: Text) -> Text:
    """GitHub Actions obeys what a step prints: `::` at a line's start, `##[` anywhere. An agent must not give orders
    there, so its text is shown with the sign as an escape."""
    if "::" not in line.plain and "##[" not in line.plain:
        return line
    inert = _COMMAND.sub(lambda found: f"{found[1] or ''}\\u{ord(found[0][-1]):04x}", line.plain)
    return line if inert == line.plain else Text(inert)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # it was closed
        return False


def _encodable(text: str, encoding: str) -> str:
    """The text as the stream can take it: our own typography in ASCII, all else escaped (B11, LANG=C)."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)
    return text


def _close_quietly(stream: TextIO) -> None:
    """Let what is still buffered go nowhere, or the interpreter complains about it at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
