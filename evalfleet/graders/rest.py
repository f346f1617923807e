"""What of the tree does a grader see beside the graders? (S28)

`evals/`, and the harness's files (S33), for a grader may read the tree that it judges. Never results. A link is a link
in the copy too, if it stays inside the tree; what is neither file nor link, or has a name that is not UTF-8, is left
out. All of it is left out where it is too large to travel with every submission.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from evalfleet.errors import GraderRefused

EVALS = "evals"
RESULTS = "evals/results"
MAX_REST_BYTES = 32 * 1024 * 1024
NEVER = frozenset({".git", ".venv", "node_modules", "__pycache__", ".evalfleet"})


@dataclass(frozen=True, slots=True)
class Member:
    """A file of the copy, or a link (`link` its target, "" for a file)."""

    content: bytes
    executable: bool = False
    link: str = ""


@dataclass(frozen=True, slots=True)
class Rest:
    """`paths` from the tree's root, sorted. `left_out`: why there are none, in a sentence, "" where they fit."""

    paths: tuple[str, ...]
    left_out: str = ""


def rest_of(root: Path, harness: Iterable[str], results: Path | None = None) -> Rest:
    """Everything below `evals/` and the files of the harness. `results`: the results folder, wherever it is."""
    never = results_in(root, results)
    sizes: dict[str, int] = {}
    for path in (*_walk(root, EVALS, never), *harness):
        try:
            found = (root / path).lstat()
        except FileNotFoundError:
            continue  # gone since it was listed, as an agent's file may be
        except OSError as error:
            raise GraderRefused(f"{path} cannot be read: {error.strerror}") from error
        if (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)) and _is_text(path):
            sizes[path] = found.st_size
    total = sum(sizes.values())
    if total > MAX_REST_BYTES:
        largest = max(sizes, key=lambda path: sizes[path])
        return Rest(
            (),
            f"graders do not see the harness's files and the rest of evals/: these are {total / 2**20:.1f} MiB, "
            f"{MAX_REST_BYTES >> 20} fit (the largest is {largest}); name what graders read in `files` under [graders]",
        )
    return Rest(tuple(sorted(sizes)))


def results_in(root: Path, results: Path | None) -> tuple[str, ...]:
    """What paths of results begin with, from the tree's root: no grader sees them."""
    if results is None:
        return (f"{RESULTS}/",)
    return f"{RESULTS}/", os.path.relpath(os.path.realpath(results), os.path.realpath(root)).replace(os.sep, "/") + "/"


def read_member(root: Path, path: str) -> Member | None:
    """None for a link that leads out of the tree. GraderRefused: it cannot be read."""
    place = root / path
    try:
        if place.is_symlink():
            target = os.readlink(place)  # noqa: PTH115 - as it is written, and no path made of it
            return Member(b"", link=target) if stays_inside(path, target) else None
        status = place.stat()
        return Member(place.read_bytes(), bool(status.st_mode & stat.S_IXUSR))
    except OSError as error:
        raise GraderRefused(f"{path} cannot be read: {error.strerror}") from error


def stays_inside(path: str, target: str) -> bool:
    """Whether a link at `path` with this target leads to a place of the same tree, by the words of both."""
    there = os.path.normpath(f"{os.path.dirname(path)}/{target}" if "/" in path else target)  # noqa: PTH120 - text
    return not target.startswith("/") and there != ".." and not there.startswith("../") and _is_text(target)


def _walk(root: Path, below: str, never: tuple[str, ...]) -> Iterator[str]:
    """Every file and link below a folder; links are not followed."""

    def refuse(error: OSError) -> None:
        raise GraderRefused(f"{error.filename} cannot be read: {error.strerror}") from error

    for folder, folders, names in os.walk(root / below, onerror=refuse):
        prefix = Path(folder).relative_to(root).as_posix() + "/"
        linked = [name for name in folders if Path(folder, name).is_symlink()]
        folders[:] = [name for name in folders if name not in linked and _counts(prefix + name, name, never)]
        yield from (prefix + name for name in (*names, *linked) if _counts(prefix + name, name, never))


def _counts(path: str, name: str, never: tuple[str, ...]) -> bool:
    return name not in NEVER and not f"{path}/".startswith(never) and not name.endswith(".pyc")


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
