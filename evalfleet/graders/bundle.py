"""Which files does a grader see, and how do they get to the machine it runs on? (S28)

The whole of `evals/graders/` (data files too) and the globs in `[graders] files`, as one tar that is the same bytes for
the same files: sorted, no times, no owners. Its digest is what a suite's version pins (S10). With the rest of the tree
(`rest.py`), which the commit pins, it is the compressed tar that travels, by a digest of its own in the plan.
A symbolic link is followed inside the tree and refused where it leads out of it. One that leads nowhere (an editor's
lock, a loop) is left out, unless a case calls it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import secrets
import shutil
import stat
import tarfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from evalfleet.errors import GraderRefused, StorageError
from evalfleet.globs import glob_pattern, reaches_into
from evalfleet.graders.rest import (
    MAX_REST_BYTES,
    NEVER,
    RESULTS,
    Member,
    read_member,
    rest_of,
    results_in,
    stays_inside,
)

GRADERS_FOLDER = "evals/graders"
MAX_BYTES = 256 * 1024 * 1024
MAX_UNPACKED = MAX_BYTES + MAX_REST_BYTES


@dataclass(frozen=True, slots=True)
class Bundle:
    """`digest` is "sha256:" and 64 hex digits of `data`, a gzipped tar; `version` the same of the graders and the globs
    alone, uncompressed. `left_out`: why the rest of the tree is not in it, in a sentence; "" where it is."""

    digest: str
    data: bytes
    version: str
    left_out: str = ""


def build_bundle(
    root: Path,
    names: Collection[str],
    files: Sequence[str],
    *,
    harness: Sequence[str] = (),
    results: Path | None = None,
) -> Bundle:
    """The bundle of the tree at `root`. `names`: the graders that cases call; `files`: the globs of `[graders] files`;
    `harness`: the harness's files, from the root; `results`: the results folder.

    Raises GraderRefused: a grader's file is not there, a link leads out of the tree, a file is unreadable or no
    regular file, or all of it is over 256 MiB."""
    root = root.resolve()
    globs = (GRADERS_FOLDER, *files)
    patterns = [glob_pattern(glob) for glob in globs]
    never = results_in(root, results)
    chosen = {
        path: file
        for path, file in _walk(root, root, "", globs, ())
        if any(p.match(path) for p in patterns) and not f"{path}/".startswith(never)
    }
    for name in sorted(names):
        needed = f"{GRADERS_FOLDER}/{name.partition('.')[0]}.py"
        if needed not in chosen:
            fault = link_fault(root, needed)
            raise GraderRefused(f"{name}: {needed} {fault}" if fault else f"{name}: there is no {needed}")
    members: dict[str, Member] = {}
    total = 0
    for path in sorted(chosen):
        members[path] = _read(chosen[path], path)
        total += len(members[path].content)
        if total > MAX_BYTES:
            raise GraderRefused(
                f"graders would see over {MAX_BYTES // 2**20} MiB (at {path}); say less in `files` under [graders]"
            )
    version = digest_of(_tar(members))
    rest = rest_of(root, harness, results)
    folders = {str(folder) for path in members for folder in PurePosixPath(path).parents}
    for path in rest.paths:
        if path in members or path in folders or path.startswith(f"{GRADERS_FOLDER}/"):
            continue
        member = read_member(root, path)
        if member is not None:
            members[path] = member
    data = gzip.compress(_tar(members), compresslevel=4, mtime=0)
    return Bundle(digest_of(data), data, version, rest.left_out)


def _tar(members: Mapping[str, Member]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, member in sorted(members.items()):
            entry = tarfile.TarInfo(path)
            entry.size = len(member.content)
            entry.mode = 0o555 if member.executable else 0o444
            if member.link:
                entry.type, entry.linkname = tarfile.SYMTYPE, member.link
            tar.addfile(entry, io.BytesIO(member.content))
    return out.getvalue()


def link_fault(root: Path, path: str) -> str | None:
    """Why what stands at `path`, from the tree's root, is not followed to what it links to; None where it is."""
    place = root / path
    real = Path(os.path.realpath(place))
    if place.is_symlink() and not place.exists():
        return f"is a link that leads nowhere, to {place.readlink()}"
    if not real.is_relative_to(os.path.realpath(root)):
        return f"is a link that leads out of the tree, to {real}; put the file into the tree"
    return None


def links_to_nowhere(root: Path) -> Iterator[tuple[str, str]]:
    """(path, where it points) of each link in the graders' folder that no grader will see; not of editors' locks, whose
    names begin with a dot."""
    for folder, _folders, names in os.walk(root / GRADERS_FOLDER):
        for name in sorted(names):
            place = Path(folder, name)
            if place.is_symlink() and not place.exists() and not name.startswith("."):
                yield place.relative_to(root).as_posix(), str(place.readlink())


def digest_of(data: bytes) -> str:
    """What a plan calls a bundle of these bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _walk(
    root: Path, folder: Path, below: str, globs: Sequence[str], open_folders: tuple[Path, ...]
) -> Iterator[tuple[str, Path]]:
    """(path relative to the tree, the real file) of what is below `folder`, but for folders that no glob reaches into.
    A link that leads out is refused only where it is asked for, so it is given as it is."""
    real = folder.resolve()
    if real in open_folders:
        return  # a link to a folder that it lies in
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        if below.startswith(GRADERS_FOLDER):
            raise GraderRefused(f"{below} cannot be read: {error.strerror}") from error
        return
    for entry in entries:
        path = f"{below}/{entry.name}" if below else entry.name
        if entry.name in NEVER or path == RESULTS or entry.name.endswith(".pyc"):
            continue
        if entry.is_symlink() and not Path(entry.path).exists():
            continue  # what lies behind it is nothing that a grader could read
        inside = not entry.is_symlink() or Path(os.path.realpath(entry.path)).is_relative_to(root)
        if entry.is_dir() and inside:
            if any(reaches_into(glob, path) for glob in globs):
                yield from _walk(root, Path(entry.path), path, globs, (*open_folders, real))
        elif inside or entry.is_symlink():
            yield path, Path(entry.path)


def _read(file: Path, path: str) -> Member:
    try:
        path.encode()
        real = Path(os.path.realpath(file, strict=True))
        status = real.stat()
        if file.is_symlink() and not real.is_relative_to(_tree_of(file, path)):
            raise GraderRefused(f"{path} is a link that leads out of the tree, to {real}; put the file into the tree")
        if not stat.S_ISREG(status.st_mode):
            raise GraderRefused(f"{path} is no regular file")
        return Member(real.read_bytes(), bool(status.st_mode & stat.S_IXUSR))
    except OSError as error:
        raise GraderRefused(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeEncodeError as error:
        raise GraderRefused(f"{path!r}: its name is not UTF-8") from error


def _tree_of(file: Path, path: str) -> Path:
    return file.parents[len(PurePosixPath(path).parts) - 1]


def unpack(data: bytes, digest: str, into: Path) -> Path:
    """Unpack a bundle at `into`, read-only, and return it. What stands there already is kept: it was made whole.

    Raises StorageError: the bytes are not those of `digest`, are no bundle, or cannot be written."""
    if into.is_dir():
        return into
    if digest_of(data) != digest:
        raise StorageError(f"the grader bundle is damaged: wanted {digest}, the stored bytes have {digest_of(data)}")
    fresh = into.with_name(f".{into.name}.{secrets.token_hex(8)}")
    try:
        into.parent.mkdir(parents=True, exist_ok=True)
        fresh.mkdir(mode=0o700)
        (fresh / GRADERS_FOLDER).mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            _write_all(tar, fresh)
        for folder, _folders, _files in os.walk(fresh, topdown=False):
            Path(folder).chmod(0o555)
        try:
            fresh.rename(into)
        except OSError:
            if not into.is_dir():  # somebody else was first: the same bytes
                raise
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise StorageError(f"the grader bundle cannot be unpacked at {into}: {error}") from error
    finally:
        remove_unpacked(fresh)
    return into


def _write_all(tar: tarfile.TarFile, into: Path) -> None:
    """Links last, so that nothing is written through one."""
    links: list[tuple[Path, str]] = []
    total = 0
    for member in tar:
        total += member.size
        parts = member.name.split("/")
        odd = any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts)
        is_link = member.issym() and stays_inside(member.name, member.linkname)
        if odd or not (member.isreg() or is_link):
            raise StorageError(f"the grader bundle holds {member.name!r}, which no bundle of ours does")
        if total > MAX_UNPACKED:
            raise StorageError(
                f"the grader bundle holds over {MAX_UNPACKED // 2**20} MiB, which no bundle of ours does"
            )
        target = into.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        if is_link:
            links.append((target, member.linkname))
            continue
        content = tar.extractfile(member)
        assert content is not None  # a regular file
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, member.mode & 0o555)
        with os.fdopen(descriptor, "wb") as file:
            shutil.copyfileobj(content, file)
    for place, linked in links:
        place.symlink_to(linked)


def remove_unpacked(folder: Path) -> None:
    """Remove an unpacked bundle, read-only folders and all; nothing happens where there is none."""
    if not folder.is_dir():
        return
    for here, _folders, _files in os.walk(folder):
        Path(here).chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
