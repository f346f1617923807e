"""Which files does `-o` ask for, can they be written, and how do they get there whole?

What is wrong with them is found before anything runs: an ending that nobody knows, a folder that cannot be written to,
a file that would become a part of the harness and move its commit (S33).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from evalfleet.errors import StorageError, UsageError
from evalfleet.harnessfiles import would_count
from evalfleet.treeconfig import TreeConfig
from scheduler.reports.junit import junit_xml
from scheduler.reports.markdown import markdown
from scheduler.reports.report import Report


def json_document(report: Report) -> Iterator[str]:
    """The object of `--json`, byte for byte."""
    yield json.dumps(report.document(), ensure_ascii=True) + "\n"


FORMATS: Mapping[str, Callable[[Report], Iterator[str]]] = {
    ".json": json_document,
    ".junit.xml": junit_xml,
    ".md": markdown,
}
"""By the ending of the file's name."""


class ReportFiles:
    """The files that a command was asked to write. UsageError at once for what cannot be written."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.formats = {path: _format(path) for path in paths}
        for path in self.formats:
            _try(path)

    def __bool__(self) -> bool:
        return bool(self.formats)

    def outside_of_harness(self, config: TreeConfig) -> None:
        """UsageError for a file that would be a harness file: the commit would move, and nothing could be resumed."""
        for path in self.formats:
            if would_count(config, path):
                raise UsageError(
                    f"-o {path} would become a harness file of {config.root}: the commit would move with every report; "
                    "write it below evals/results, outside of the tree, or where git ignores it"
                )

    def write(self, report: Report) -> None:
        """Write all of them. StorageError, after trying each, names those that could not be written."""
        broken = []
        for path, pieces in self.formats.items():
            try:
                write_whole(path, pieces(report))
            except OSError as problem:
                broken.append(f"{path}: {problem.strerror or problem}")
        if broken:
            raise StorageError(f"a report could not be written: {'; '.join(broken)}")


def write_whole(path: Path, pieces: Iterable[str]) -> None:
    """Create or replace a file in one step: who reads it sees the old one or the new one, whole."""
    place = path.resolve()  # a link stays one, and what it leads to is replaced
    temporary = place.with_name(f".{place.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(place)
    finally:
        with contextlib.suppress(OSError):  # renamed away, or never made
            temporary.unlink()


def _format(path: Path) -> Callable[[Report], Iterator[str]]:
    for ending, pieces in FORMATS.items():
        if path.name.lower().endswith(ending) and len(path.name) > len(ending):
            return pieces
    hint = "; JUnit reports end in .junit.xml" if path.suffix.lower() == ".xml" else ""
    raise UsageError(f"-o {path}: the ending says the format, and it is one of {', '.join(FORMATS)}{hint}")


def _try(path: Path) -> None:
    """Whether a file can be put there: its folder is made, and a file in it for a moment."""
    if path.is_dir():
        raise UsageError(f"-o {path}: it is a folder")
    if path.exists() and not path.is_file():
        raise UsageError(f"-o {path}: it is no regular file, and a report would take its place")
    place = path.resolve()
    probe = place.with_name(f".{place.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        probe.open("xb").close()
        probe.unlink()
    except OSError as problem:
        raise UsageError(f"-o {path} cannot be written: {problem.strerror}: {problem.filename}") from problem
