"""What a test asks of a Markdown page, and a terminal to type into what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Page:
    """One Markdown file of the repository."""

    path: Path
    text: str
    shown: str

    def __str__(self) -> str:
        return self.shown

    @property
    def name(self) -> str:
        return self.path.name

    def blocks(self, language: str) -> list[str]:
        """The contents of fenced blocks that are marked with exactly this word; "" for unmarked ones."""
        return [text for marked, text in _FENCE.findall(self.text) if marked == language]

    def real(self, name: str) -> str:
        """The block below the comment that says what its text is the real output of."""
        found = re.search(
            rf"^<!-- real: {re.escape(name)} -->\n```\w+\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL
        )
        assert found is not None, f"{self} has no output called {name!r}"
        return found[1]

    @property
    def prose(self) -> str:
        return re.sub(r"`[^`\n]*`", "``", _FENCE.sub("", self.text))

    def links(self) -> Iterator[str]:
        """Targets within the repository."""
        for target in re.findall(r"\]\(([^)\s]+)\)", self.prose):
            if not re.match(r"[a-z]+:", target):
                yield target

    def anchors(self) -> set[str]:
        """What headings are called in links, as GitHub makes it."""
        headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", self.text), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def pages(root: Path) -> list[Page]:
    """README and its like, docs, and what stands beside code; not what a run or an installation left."""
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    for folder in ("tests", "examples", "deploy", "benchmarks"):
        found += (root / folder).rglob("*.md")
    return [Page(path, path.read_text(encoding="utf-8"), str(path.relative_to(root))) for path in sorted(set(found))]


class Terminal:
    """Runs commands with stdout on a terminal of a width; stderr is read apart."""

    def __init__(self, folder: Path, program: Sequence[str], *, columns: int) -> None:
        self.folder = folder
        self.program = program
        self.environment = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "dumb"}
        self.said = ""
        self.said_aside = ""

    def type(self, words: Sequence[str], *, within: float = 100.0) -> int:
        """The exit code; `said` and `said_aside` hold what was written."""
        ours, theirs = os.openpty()
        with tempfile.TemporaryFile() as aside, open(ours, "rb", buffering=0) as terminal:
            process = subprocess.Popen(
                [*self.program, *words],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=aside,
            )
            os.close(theirs)
            chunks = []
            try:
                while chunk := terminal.read(65_536):
                    chunks.append(chunk)
            except OSError:  # Linux says so when the last writer has closed it
                pass
            code = process.wait(within)
            aside.seek(0)
            self.said = b"".join(chunks).decode().replace("\r\n", "\n")
            self.said_aside = aside.read().decode()
        return code


def same_but_for_what_every_run_changes(text: str) -> list[str]:
    """Its lines with ids, times, durations and the widths of columns made equal."""
    text = re.sub(r"\b(run|chat|sub|eval)_[0-9A-Z]{26}", r"\1_…", text)
    text = re.sub(r"\b\d{8}T\d{6}Z-[0-9a-z]{8}", "<artifact>", text)
    text = re.sub(r"\b\d+(?:\.\d+)?m?s\b", "<duration>", text)
    return [re.sub(r"(?<=\S) {2,}", "  ", line).rstrip() for line in text.strip().split("\n")]
