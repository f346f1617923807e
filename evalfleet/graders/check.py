"""Can every grader that a case names be called? (S6)

Asked before anything runs. `check_graders` imports each file in the cage, on the graders' own interpreter, within 10 s:
never in our process. `check_graders_by_ast` only reads them, for a machine without the graders' environment. What a
name has to hold is in `inside/names.py` for both. `asking` says which graders may call t.llm, by their text.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from evalfleet.checks.near import did_you_mean
from evalfleet.graders.bundle import GRADERS_FOLDER, Bundle, build_bundle, link_fault, remove_unpacked, unpack
from evalfleet.graders.cage import Cage, CageLost, Ending, GraderSettings
from evalfleet.graders.ending import end_sentence
from evalfleet.graders.inside.names import Text, read_text

IMPORT_SECONDS = 10.0
_AT_ONCE = 4


class GradersTable(Protocol):
    """`[graders]` as the tree's settings have it."""

    @property
    def python(self) -> str | None: ...
    @property
    def files(self) -> tuple[str, ...]: ...
    @property
    def env(self) -> tuple[str, ...]: ...
    @property
    def network(self) -> bool: ...
    @property
    def memory_mb(self) -> int: ...


@dataclass(frozen=True, slots=True)
class GraderProblem:
    """`name` as the case has it, `place` as it was given ("file:line:column"), `message` one sentence."""

    name: str
    place: str
    message: str

    def render(self) -> str:
        return f"{self.place}: {self.name}: {self.message}"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a file turned out to hold: `graders`, and other public names with why they are none."""

    fault: str | None = None
    graders: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


def resolve_python(python: str | None, root: Path) -> str | None:
    """`[graders] python` as a worker can start it: a path is taken from the tree's root, a bare name from PATH."""
    if python is None or "/" not in python:
        return python
    return str(root.resolve() / Path(python).expanduser())


def check_graders(
    root: Path,
    names: Sequence[tuple[str, str]],
    config: GradersTable,
    *,
    harness: Sequence[str] = (),
    results: Path | None = None,
    limit: float = IMPORT_SECONDS,
) -> list[GraderProblem]:
    """One problem for each (name, place) of `names` that cannot be called, in their order. `harness`, `results` as for
    `build_bundle`: a file's import sees what its calls will. `limit`: seconds for each. Not for an event loop.

    Raises GraderRefused (the bundle cannot be made: see `build_bundle`), UnfitHost (no such interpreter)."""
    stems = _stems(names)
    present = [
        stem for stem in stems if (root / GRADERS_FOLDER / f"{stem}.py").is_file() and not _link_fault(root, stem)
    ]
    if not present:
        return _problems(root, names, {})
    bundle = build_bundle(root, (), config.files, harness=harness, results=results)
    return _problems(root, names, asyncio.run(_import_all(root, present, config, bundle, limit)))


def check_graders_by_ast(root: Path, names: Sequence[tuple[str, str]]) -> list[GraderProblem]:
    """The same from the text of the files alone: what only running them would show stays unseen."""
    files = {stem: root / GRADERS_FOLDER / f"{stem}.py" for stem in _stems(names)}
    found = {stem: file for stem, file in files.items() if file.is_file() and not _link_fault(root, stem)}
    return _problems(root, names, {stem: _read(stem, file) for stem, file in found.items()})


def _link_fault(root: Path, stem: str) -> str | None:
    return link_fault(root, f"{GRADERS_FOLDER}/{stem}.py")


def _stems(names: Iterable[tuple[str, str]]) -> list[str]:
    return sorted({name.partition(".")[0] for name, _ in names})


def _problems(root: Path, names: Sequence[tuple[str, str]], seen: Mapping[str, _Seen]) -> list[GraderProblem]:
    found = []
    for name, place in names:
        stem, _, function = name.partition(".")
        message = _message(root, stem, function, seen.get(stem))
        if message is not None:
            found.append(GraderProblem(name, place, message))
    return found


def _message(root: Path, stem: str, function: str, seen: _Seen | None) -> str | None:
    file = f"{GRADERS_FOLDER}/{stem}.py"
    if seen is None and (fault := _link_fault(root, stem)) is not None:
        return f"{file} {fault}"
    if seen is None:
        others = sorted(path.stem for path in (root / GRADERS_FOLDER).glob("*.py"))
        return _with_near(f"there is no {file}", stem, others, "judges")
    if seen.fault is not None:
        return f"{file} does not import: {seen.fault}"
    if function in seen.graders:
        return None
    if function in seen.refused:
        return f"{file}: {function} {seen.refused[function]}"
    return _with_near(f"{file} has no public function {function!r}", function, seen.graders, "functions")


def _with_near(sentence: str, name: str, known: Sequence[str], what: str) -> str:
    near = did_you_mean(name, known)
    if near:
        return f"{sentence}; {near}"
    if not known:
        return f"{sentence}; there are no {what} there"
    return f"{sentence}; {what} there: {', '.join(known[:10])}{', …' if len(known) > 10 else ''}"


async def _import_all(
    root: Path, stems: Sequence[str], config: GradersTable, bundle: Bundle, limit: float
) -> dict[str, _Seen]:
    settings = GraderSettings(resolve_python(config.python, root), config.env, config.network, config.memory_mb)
    with tempfile.TemporaryDirectory(prefix="evalfleet-check-") as folder:
        copy = unpack(bundle.data, bundle.digest, Path(folder) / "bundle")
        cage = await Cage.start(copy, settings)
        slots = asyncio.Semaphore(_AT_ONCE)

        async def look(stem: str) -> _Seen:
            async with slots:
                try:
                    ending = await cage.call({"op": "import", "file": stem}, limit=limit)
                except CageLost as error:
                    return _Seen(fault=f"it took its cage down with it ({error})")
                return _seen(ending, limit)

        try:
            return dict(zip(stems, await asyncio.gather(*map(look, stems)), strict=True))
        finally:
            await cage.aclose()
            remove_unpacked(copy)


def _seen(ending: Ending, limit: float) -> _Seen:
    if ending.end != "said":
        return _Seen(fault=end_sentence(ending, limit))
    if "error" in ending.said:
        return _Seen(fault=str(ending.said["error"]))
    return _Seen(graders=tuple(ending.said["graders"]), refused=ending.said["refused"])


def asking(root: Path, names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that may call t.llm: all but the plain functions whose text shows that they cannot."""
    texts = {stem: _text(stem, root / GRADERS_FOLDER / f"{stem}.py") for stem in {n.partition(".")[0] for n in names}}
    found = []
    for name in sorted(set(names)):
        stem, _, function = name.partition(".")
        text = texts[stem]
        if isinstance(text, str) or function not in text.names or function in text.asks:
            found.append(name)
    return tuple(found)


def _read(stem: str, file: Path) -> _Seen:
    text = _text(stem, file)
    if isinstance(text, str):
        return _Seen(fault=text)
    refused = {name: why_not for name, why_not in text.names.items() if why_not is not None}
    return _Seen(graders=tuple(sorted(text.names.keys() - refused.keys())), refused=refused)


def _text(stem: str, file: Path) -> Text | str:
    """What the text of a grader's file says, or why it cannot be read."""
    try:
        return read_text(file.read_bytes(), f"{stem}.py")
    except SyntaxError as error:
        return f"{type(error).__name__}: {error.msg} (line {error.lineno})"
    except (ValueError, RecursionError, MemoryError, OSError) as error:
        return f"{type(error).__name__}: {error}"
