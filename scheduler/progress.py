"""How does a person see how far it is, in a terminal and in a CI log?

All on stderr (S37). In a terminal one live line: a bar, counts by outcome, what runs now. Elsewhere plain lines, at
most one every ten seconds and one whenever the note changes. `-q` shows notes and warnings only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from evalfleet.ledger import Progress

EVERY_S = 10.0


class PlainReporter:
    """Lines for a log."""

    def __init__(self, stream: TextIO, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream = stream
        self.quiet = quiet
        self.clock = clock
        self._shown_at = clock()
        self._note = ""

    def note(self, text: str) -> None:
        self._line(text)

    def warn(self, text: str) -> None:
        self._line(f"warning: {text}")

    def progress(self, progress: Progress, total: int, note: str, *, done: str = "recorded") -> None:
        now = self.clock()
        if note and note != self._note:
            self._note = note
            self._line(note)
        if self.quiet or now - self._shown_at < EVERY_S:
            return
        self._shown_at = now
        self._line(in_words(progress, total, done=done))

    def done(self) -> None:
        return

    def _line(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


class LiveReporter:
    """One line that moves, for a terminal; what else is said scrolls above it."""

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(file=stream, highlight=False, markup=False)
        self.live: Live | None = None

    def note(self, text: str) -> None:
        self.console.print(Text(text))

    def warn(self, text: str) -> None:
        self.console.print(Text(f"warning: {text}", style="yellow"))

    def progress(self, progress: Progress, total: int, note: str, *, done: str = "recorded") -> None:
        if self.live is None:
            self.live = Live(console=self.console, transient=True, auto_refresh=False)
            self.live.start()
        row = Table.grid(padding=(0, 1))
        words = Text(f"{progress.recorded}/{total}{'' if done == 'recorded' else f' {done}'}")
        words.append(_counts(progress))
        words.append(f"; {progress.running} running{_left(progress, total)}")
        if note:
            words.append(f"  {note}", style="yellow")
        row.add_row(ProgressBar(total=max(total, 1), completed=progress.recorded, width=24), words)
        self.live.update(row, refresh=True)

    def done(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None


def make_reporter(stream: TextIO, *, quiet: bool) -> PlainReporter | LiveReporter:
    """The live line where `stream` is a terminal that can move its cursor, else plain lines."""
    if quiet or not stream.isatty() or Console(file=stream).is_dumb_terminal:
        return PlainReporter(stream, quiet=quiet)
    return LiveReporter(stream)


def in_words(progress: Progress, total: int, *, done: str = "recorded") -> str:
    """`3 of 12 recorded (2 passed, 1 failed); 4 running`, and how long it takes still."""
    return (
        f"{progress.recorded} of {total} {done}{_counts(progress)}; {progress.running} running{_left(progress, total)}"
    )


def _left(progress: Progress, total: int) -> str:
    from scheduler.budget import left  # what it imports is imported while the parts boot

    found = left(progress, total)
    return "" if found is None else f"; {found}"


def _counts(progress: Progress) -> str:
    parts = [f"{progress.counts[word]} {word}" for word in ("passed", "failed", "error") if progress.counts.get(word)]
    if progress.given_up:
        parts.append(f"{progress.given_up} given up")
    return f" ({', '.join(parts)})" if parts else ""
