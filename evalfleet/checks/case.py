"""Which cases does a tree carry, and what is wrong with them?

Nothing here raises for a bad file: every problem of every file comes back in one go, with its place (S2).
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path

from evalfleet.checks.near import folded
from evalfleet.checks.nodes import compose
from evalfleet.checks.place import CaseProblem, Place
from evalfleet.checks.reading import MAX_PROBLEMS, HopelessError, Reader
from evalfleet.checks.scenario import Case, LoadedCases, Scenario, case_key
from evalfleet.checks.schema import id_fault, read_case
from evalfleet.checks.source import MAX_BYTES, RefusedError, Source
from evalfleet.checks.suite import MAX_ROWS_BYTES, parse_suite
from evalfleet.checks.text import quoted, visible

__all__ = [
    "Case",
    "CaseProblem",
    "LoadedCases",
    "Place",
    "Scenario",
    "case_key",
    "load_cases",
    "load_suite",
    "parse_case",
]

DRAFT = "draft"
"""The case that drafts belong to; no file may be called so (S7)."""


def parse_case(data: bytes, *, name: str, file: str, draft: bool = False) -> LoadedCases:
    """One file's case, or its problems. `file` is what messages show, e.g. `evals/cases/tone.yaml` or `<stdin>`.
    A `draft` may be a bare list of scenarios or one scenario, too.

    Never raises for what the bytes hold. Bombs are refused while they are counted: time and memory stay in proportion
    to the file's size (A10).
    """
    with _nothing_collected():
        return _parsed(data, name, file, draft=draft)


@contextlib.contextmanager
def _nothing_collected() -> Iterator[None]:
    """All that is made while a file is read is kept until it is read: looking for garbage in it took half the time."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


def _parsed(data: bytes, name: str, file: str, *, draft: bool) -> LoadedCases:
    try:
        source = Source.decode(file, data)
        root, misleading = compose(source)
    except RefusedError as refused:
        return LoadedCases(problems=(refused.problem,))
    reader = Reader(source, root)
    case = Case(name, file, ())
    try:
        case = read_case(reader, root, name, file, draft=draft)
    except HopelessError:
        at_least = "at least "
    else:
        at_least = ""
    reader.name_misleading(misleading)
    problems = sorted(reader.problems, key=_by_place)
    if len(problems) > MAX_PROBLEMS:
        rest = len(problems) - MAX_PROBLEMS
        problems = problems[:MAX_PROBLEMS]
        problems.append(CaseProblem(problems[-1].place, f"and {at_least}{rest} more problems in this file"))
    warnings = tuple(sorted(reader.warnings, key=_by_place))
    return LoadedCases(() if problems else (case,), tuple(problems), warnings)


def load_cases(root: Path, *, folder: str = "evals/cases") -> LoadedCases:
    """The cases of `<root>/<folder>/<name>.yaml` in the order of their names (S7).

    Refused by name: `.yml`, case files in a subfolder, names equal after folding, `draft`. Names that start with a dot
    and other endings are not case files. Nothing at all, without a problem, where there is no such folder: whoever
    asked knows whether that is one.
    """
    cases: list[Case] = []
    problems: list[CaseProblem] = []
    warnings: list[CaseProblem] = []
    names: dict[str, str] = {}
    for path in _files(root / folder, problems, folder):
        file = f"{folder}/{visible(path.relative_to(root / folder).as_posix())}"
        fault = _name_fault(path, root / folder, names)
        if fault is not None:
            problems.append(CaseProblem(Place(file, 1, 1), *fault))
            continue
        try:
            data = _bytes(path)
        except OSError as error:
            problems.append(CaseProblem(Place(file, 1, 1), f"this file cannot be read: {error.strerror or error}"))
            continue
        loaded = parse_case(data, name=path.name.removesuffix(".yaml"), file=file)
        cases += loaded.cases
        problems += loaded.problems
        warnings += loaded.warnings
    return LoadedCases(tuple(cases), tuple(problems), tuple(warnings))


def load_suite(path: Path, *, root: Path) -> LoadedCases:
    """The rows of a suite file (`.jsonl` or `.yaml`) as cases, or every problem. Places name it from `root` if it is
    below it. A file that cannot be read is a problem too: nothing is raised for what there is."""
    file = _from(root, path)
    stem, _, ending = path.name.rpartition(".")
    if ending not in ("jsonl", "yaml"):
        what = f"a suite is a .jsonl or .yaml file, and this one is called {visible(path.name)}"
        return LoadedCases(problems=(CaseProblem(Place(file, 1, 1), what, "", "rename it, or convert it"),))
    fault = "drafts belong to the case `draft`" if folded(stem) == DRAFT else id_fault(stem)
    if fault:
        message = f"a suite cannot be called {quoted(stem, 60)}: {fault}"
        return LoadedCases(problems=(CaseProblem(Place(file, 1, 1), message, "", "rename the file"),))

    def beside(name: str) -> tuple[str, bytes]:
        other = path.parent / name
        return _from(root, other), _bytes(other, MAX_ROWS_BYTES)

    try:
        data = _bytes(path, MAX_ROWS_BYTES)
    except OSError as error:
        what = f"this file cannot be read: {error.strerror or error}"
        return LoadedCases(problems=(CaseProblem(Place(file, 1, 1), what),))
    with _nothing_collected():
        return parse_suite(data, name=stem, file=file, beside=beside)


def _from(root: Path, path: Path) -> str:
    """A path as messages show it."""
    whole = Path(os.path.realpath(path))  # a link may lead round in a circle
    return visible(whole.relative_to(root).as_posix() if whole.is_relative_to(root) else str(path))


def _files(folder: Path, problems: list[CaseProblem], shown: str) -> Iterator[Path]:
    """What ends like a case file, below `folder`, sorted. Links to folders are not followed."""

    def unreadable(error: OSError) -> None:
        if error.filename != str(folder) or folder.exists():
            problems.append(CaseProblem(Place(shown, 1, 1), f"{error.filename} cannot be read: {error.strerror}"))

    for parent, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.casefold().endswith((".yaml", ".yml")) and not name.startswith("."):
                yield Path(parent) / name


def _name_fault(path: Path, folder: Path, names: dict[str, str]) -> tuple[str, str, str] | None:
    """(message, source line, hint) if the file's name or place rules it out; else its name is taken."""
    stem, _, ending = path.name.rpartition(".")
    if path.parent != folder:
        return (
            "a case file in a subfolder is not read",
            "",
            f"move it to {folder.name}/{visible(path.name)}",
        )
    if ending != "yaml":
        return (
            f"a case file ends in .yaml, and this one in .{visible(ending)}",
            "",
            f"rename it to {visible(stem)}.yaml",
        )
    if not _utf8(stem):
        return ("the name of this file is not UTF-8", "", "rename it")
    fault = id_fault(stem)
    if fault:
        return (f"a case cannot be called {quoted(stem, 60)}: {fault}", "", "rename the file")
    if folded(stem) == DRAFT:
        return (
            f"a case file cannot be called {path.name}: drafts belong to the case `{DRAFT}`",
            "",
            "rename the file",
        )
    twin = names.setdefault(folded(stem), path.name)
    if twin != path.name:
        return (
            f"this case and {twin} have one name: letter case and Unicode form do not tell two cases apart",
            "",
            "rename one of them",
        )
    return None


def _bytes(path: Path, most: int = MAX_BYTES) -> bytes:
    """At most a byte more than a file may have. OSError for what is no regular file (a pipe would wait)."""
    if not path.is_file():
        if path.is_symlink() and not path.exists():
            raise OSError(f"it is a link that leads nowhere, to {visible(str(path.readlink()))}")
        raise OSError("it is not a regular file" if path.exists() else "there is no such file")
    with path.open("rb") as stream:
        return stream.read(most + 1)


def _utf8(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _by_place(problem: CaseProblem) -> tuple[int, int]:
    return problem.place.line, problem.place.column
