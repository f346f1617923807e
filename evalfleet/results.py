"""Where do artifacts live, and how is a file put there so that it is whole or not there at all?

A results store is a flat set of files under `<artifact>/…`, with the three acts an object store has too: create a file
that must not be there yet (`If-None-Match: *`), replace a small one, read. `FolderResults` is a folder, ours or one
that several machines share; `evalfleet.bucket` is the object store. Nothing returns before the bytes are kept (I4).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

from evalfleet.errors import ResultsAway, SettingError, StorageError

ARTIFACT_NAME = re.compile(r"\d{8}T\d{6}Z-[0-9A-Za-z]{1,26}")
"""A folder of ours: `<UTC time>-<short id>`."""

STALE_TEMPORARY_S = 600.0
"""A half-written temporary file this old (seconds) has no writer any more: it was killed."""

_CHUNK = 1 << 20


class ResultsStore(Protocol):
    """What artifacts need from the place they live in. Paths are relative, with `/`. All failures: `StorageError`;
    `ResultsAway` where the place itself fails, so that the same may succeed later."""

    def check(self) -> None:
        """Ask, at a process's start, whether the place will do. Raises SettingError or CredentialError if not."""
        ...

    def shown(self, path: str = "") -> str:
        """The place as a person would open it."""
        ...

    def create(self, artifact: str) -> None:
        """Make room for an artifact; nothing happens if it is there."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, path: str = "") -> dict[str, int]:
        """Names directly under `path` → size in bytes (0 for a folder), in no order; empty if there is no such path."""
        ...

    def write_bytes_exclusive(self, path: str, data: bytes | Iterable[bytes]) -> bool:
        """Create a file, whole and on the disk. False: one was there already, and nothing was changed."""
        ...

    def write_bytes(self, path: str, data: bytes | Iterable[bytes]) -> None:
        """Create or replace a file in one step: readers see the old one or the new one, whole."""
        ...

    def read_bytes(self, path: str) -> bytes: ...

    def read_range(self, path: str, offset: int, length: int) -> bytes: ...

    def open(self, path: str, *, buffer: int = ...) -> BinaryIO:
        """A file to read from; `buffer` bytes are read at once."""
        ...

    def sweep(self, path: str) -> None:
        """Remove what killed writers left half-done under `path`."""
        ...


def results_store(place: str | Path) -> FolderResults:
    """The folder that a path or a `file://` URL names (`--results`). SettingError otherwise."""
    return FolderResults(place)


def shared_results(url: str) -> ResultsStore:
    """What `EVALFLEET_RESULTS_URL` names: a folder, or `s3://bucket/prefix`. SettingError otherwise."""
    if url.startswith("s3://"):
        from evalfleet.bucket import BucketResults

        return BucketResults(url)
    return FolderResults(url)


def checked_name(artifact: str) -> str:
    """StorageError for a name that is none of an artifact's."""
    if not ARTIFACT_NAME.fullmatch(artifact):
        raise StorageError(f"{artifact!r} is no name for an artifact: expected <YYYYMMDDTHHMMSSZ>-<short id>")
    return artifact


class FolderResults:
    """A results store in a folder, given as a path or a `file://` URL. It need not exist yet."""

    def __init__(self, root: str | Path) -> None:
        self.root = _folder(root)

    def check(self) -> None:
        """A folder need not be there yet."""

    def shown(self, path: str = "") -> str:
        full = self.root / path
        with contextlib.suppress(ValueError, OSError):  # elsewhere, or the working folder is gone
            return str(full.relative_to(Path.cwd()))
        return str(full)

    def create(self, artifact: str) -> None:
        folder = self._at(checked_name(artifact))
        with self._translated(f"{artifact}/"):
            made = not self.root.exists()
            (folder / "trials").mkdir(parents=True, exist_ok=True)
            self._keep_out_of_git(made=made)
            _sync_folder(folder)
            _sync_folder(self.root)

    def exists(self, path: str) -> bool:
        with self._translated(path):
            return self._at(path).exists()

    def list(self, path: str = "") -> dict[str, int]:
        with self._translated(path):
            try:
                with os.scandir(self._at(path)) as entries:
                    return {
                        entry.name: 0 if entry.is_dir() else entry.stat().st_size
                        for entry in entries
                        if not entry.name.startswith(".")
                    }
            except FileNotFoundError:
                return {}

    def write_bytes_exclusive(self, path: str, data: bytes | Iterable[bytes]) -> bool:
        # The whole file appears under its name in one step, or not at all: link(2) fails if the name is taken, on NFS
        # too. With O_EXCL on the name itself, another aggregator could read a segment that is half written, and decide
        # from it which run an attempt's first line names (docs/decisions/007).
        target = self._at(path)
        with self._translated(path), self._temporary(target, data) as temporary:
            try:
                os.link(temporary, target)
            except FileExistsError:
                # NFS: the answer to a link that did happen can get lost, and its repetition then finds the name taken.
                if temporary.stat().st_nlink < 2:
                    return False
            except OSError as problem:
                if problem.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
                    raise
                return _write_in_place(target, temporary)
            _sync_folder(target.parent)
            return True

    def write_bytes(self, path: str, data: bytes | Iterable[bytes]) -> None:
        target = self._at(path)
        with self._translated(path), self._temporary(target, data) as temporary:
            temporary.replace(target)
            _sync_folder(target.parent)

    def read_bytes(self, path: str) -> bytes:
        with self._translated(path):
            return self._at(path).read_bytes()

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        with self._translated(path), self._at(path).open("rb", buffering=0) as file:
            return _read_exactly(file, offset, length)

    def open(self, path: str, *, buffer: int = _CHUNK) -> BinaryIO:
        with self._translated(path):
            return io.BufferedReader(self._at(path).open("rb", buffering=0), buffer)

    def sweep(self, path: str) -> None:
        with self._translated(path), os.scandir(self._at(path)) as entries:
            for entry in entries:
                if entry.name.startswith(".") and entry.name.endswith(".tmp"):
                    with contextlib.suppress(FileNotFoundError):  # another sweeper was quicker
                        if entry.stat().st_mtime < time.time() - STALE_TEMPORARY_S:
                            Path(entry.path).unlink()

    def _at(self, path: str) -> Path:
        parts = path.split("/") if path else []
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise StorageError(f"{path!r} is no path inside the results folder {self.shown()}")
        return self.root.joinpath(*parts)

    @contextlib.contextmanager
    def _temporary(self, target: Path, data: bytes | Iterable[bytes]) -> Iterator[Path]:
        """A synced file with `data` beside `target`; gone afterwards, whatever happened."""
        temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        if target.parent.parent != self.root.parent:
            target.parent.mkdir(exist_ok=True)  # a folder inside an artifact; the artifact itself only by `create`
        try:
            with temporary.open("xb") as file:
                _write_synced(file, data)
            yield temporary
        finally:
            with contextlib.suppress(OSError):  # not made, renamed away, or on a disk that fails altogether
                temporary.unlink()

    @contextlib.contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            raise ResultsAway(_explained(self.shown(), self.shown(path), problem)) from problem

    def _keep_out_of_git(self, *, made: bool) -> None:
        """`.gitignore` with `*`: artifacts hold conversations. Never in a folder that also holds other things
        (`--results .` must not hide a whole tree from git)."""
        ignore = self.root / ".gitignore"
        ours = made or self.root.parts[-2:] == ("evals", "results")
        if not ours:
            names = {entry.name for entry in self.root.iterdir()}
            ours = all(ARTIFACT_NAME.fullmatch(name) for name in names)
        if ours:
            with contextlib.suppress(FileExistsError), ignore.open("xb") as file:
                file.write(b"*\n")


def _folder(place: str | Path) -> Path:
    text = str(place)
    if "://" not in text:
        return Path(place)
    parts = urlsplit(text)
    if parts.scheme != "file":
        raise SettingError(
            "EVALFLEET_RESULTS_URL",
            f"{parts.scheme}:// is not a results store this evalfleet can write to; "
            "give a folder that all parts share, as a path or a file:// URL, or for a fleet s3://bucket/prefix",
        )
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise SettingError("EVALFLEET_RESULTS_URL", f"{text} names no folder of this machine; write file:///the/folder")
    return Path(unquote(parts.path))


def _write_in_place(target: Path, source: Path) -> bool:
    """For file systems without hard links: create the name itself exclusively; a half-written file is removed."""
    try:
        file = target.open("xb")
    except FileExistsError:
        return False
    try:
        with file, source.open("rb") as whole:
            _write_synced(file, iter(lambda: whole.read(_CHUNK), b""))
    except BaseException:
        target.unlink()
        raise
    _sync_folder(target.parent)
    return True


def _write_synced(file: BinaryIO, data: bytes | Iterable[bytes]) -> None:
    file.writelines((data,) if isinstance(data, bytes) else data)
    file.flush()
    _sync(file.fileno())


def _sync(descriptor: int) -> None:
    full = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync(2) alone leaves the data in the drive's cache
    if full is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, full)
            return
    os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # some network mounts cannot sync folders
            raise
    finally:
        os.close(descriptor)


def _read_exactly(file: io.FileIO, offset: int, length: int) -> bytes:
    file.seek(offset)
    parts = bytearray()
    while len(parts) < length:
        part = file.read(length - len(parts))
        if not part:
            raise OSError(errno.EIO, f"ended {length - len(parts)} bytes early; something changed it")
        parts += part
    return bytes(parts)


_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the disk quota is used up: free some space",
    errno.EFBIG: "the file would pass this process's size limit: raise `ulimit -f`",
    errno.EACCES: "no permission: let this user write there, or choose another folder with --results DIR",
    errno.EPERM: "no permission: let this user write there, or choose another folder with --results DIR",
    errno.EROFS: "the file system is read-only: choose another folder with --results DIR",
    errno.ENOTDIR: "a part of that path is a file: move it away, or choose another folder with --results DIR",
    errno.EEXIST: "a file stands where a folder is needed: move it away, or choose another folder with --results DIR",
    errno.ENOENT: "it is not there",
    errno.EISDIR: "a folder stands where a file is needed: move it away",
    errno.ENAMETOOLONG: "the path is too long: choose another folder with --results DIR",
    errno.EMFILE: "too many open files: raise `ulimit -n`",
    errno.ESTALE: "the network mount was renewed under us: mount it again",
}


def _explained(root: str, path: str, problem: OSError) -> str:
    advice = _ADVICE.get(problem.errno or 0, "")
    seen = problem.strerror or type(problem).__name__
    return f"results folder {root}: {path}: {seen}{'; ' + advice if advice else ''}"
