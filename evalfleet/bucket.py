"""How does an S3 bucket hold artifacts as safely as a folder does?

The same acts as `FolderResults` (I4), over fsspec and s3fs (the extra `evalfleet[s3]`). An object appears whole or not
at all. Exclusive is a conditional put, `If-None-Match: *`; whether the server honours it is asked before the first
write, because one that ignores it would let two aggregators overwrite each other's evidence. Lists and reads must see
what was written (S3's do). Credentials, region and `AWS_ENDPOINT_URL` come from the environment, in AWS's own ways.
"""

from __future__ import annotations

import contextlib
import io
import re
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

from evalfleet.errors import CredentialError, ResultsAway, SettingError, StorageError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SETTING = "EVALFLEET_RESULTS_URL"
_PROBE = ".exclusive"
_CHUNK = 8 << 20
"""Bytes of one ranged read: a round trip costs as much as a MiB or two."""
PUT_S = 60.0
"""A put is answered within this, and the time that its bytes take at `SLOWEST` a second. The client's own limits do not
hold while it waits to be told to go on (`Expect: 100-continue`): a server that is silent then it waits for without end.
"""
SLOWEST = 256 << 10
_LEAST = 256 << 10
"""The same where somebody wants a line here and a line there."""
_BUSY_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Two conditional puts of one name at once are answered 409: S3 asks to send it again."""
_TAKEN = frozenset({"PreconditionFailed", "412"})
_BUSY = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class BucketResults:
    """A results store below `s3://bucket/prefix`. SettingError for an address that is none, or without the extra."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise SettingError(SETTING, "holds credentials; they belong into AWS_ACCESS_KEY_ID and its like")
        self.bucket, prefix = parts.netloc, parts.path.strip("/")
        if not _BUCKET.fullmatch(self.bucket) or parts.query or parts.fragment:
            raise SettingError(SETTING, f"{url} names no bucket; write s3://the-bucket/a/prefix")
        self.root = f"{self.bucket}/{prefix}" if prefix else self.bucket
        try:
            import botocore.exceptions
            import s3fs
        except ImportError as absent:
            raise SettingError(
                SETTING, f"s3:// needs the package {absent.name}: pip install 'evalfleet[s3]', or give a folder"
            ) from absent
        self._troubles = (OSError, botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError)
        self._keyless = (botocore.exceptions.NoCredentialsError, botocore.exceptions.PartialCredentialsError)
        self._fs: Any = s3fs.S3FileSystem(
            anon=False,
            use_listings_cache=False,  # others write there
            skip_instance_cache=True,
            config_kwargs={"connect_timeout": 5, "read_timeout": 30, "retries": {"total_max_attempts": 2}},
        )
        self._fs.retries = 2  # s3fs' own, around botocore's: one that takes connections and is silent is away in 2 min
        self._is_exclusive = False

    def check(self) -> None:
        """Ask once whether the bucket is there and lets us in. Raises SettingError or CredentialError if not."""
        try:
            with self._translated(""):
                self._fs.call_s3("list_objects_v2", Bucket=self.bucket, MaxKeys=1)
        except StorageError as problem:
            cause = problem.__cause__
            if isinstance(cause, (*self._keyless, PermissionError)):
                raise CredentialError(problem.message) from cause
            if isinstance(cause, FileNotFoundError):
                raise SettingError(SETTING, problem.message) from cause
            raise

    def shown(self, path: str = "") -> str:
        return f"s3://{self.root}/{path}".rstrip("/")

    def create(self, artifact: str) -> None:
        from evalfleet.results import checked_name

        checked_name(artifact)
        self._make_sure()

    def exists(self, path: str) -> bool:
        with self._translated(path):
            return bool(self._fs.exists(self._at(path)))

    def list(self, path: str = "") -> dict[str, int]:
        place = self._at(path)
        with self._translated(path):
            try:
                entries = self._fs.ls(place, detail=True, refresh=True)
            except FileNotFoundError as absent:
                if _code(absent) == "NoSuchBucket":
                    raise
                return {}
        found = ((str(e["name"]).rstrip("/").rpartition("/"), e) for e in entries)
        return {
            name: 0 if entry["type"] == "directory" else int(entry["size"])
            for (above, _, name), entry in found
            if above == place and not name.startswith(".")
        }

    def write_bytes_exclusive(self, path: str, data: bytes | Iterable[bytes]) -> bool:
        self._make_sure()
        return self._create(path, data)

    def write_bytes(self, path: str, data: bytes | Iterable[bytes]) -> None:
        with _spooled(data) as local:
            self._put(local, path)

    def read_bytes(self, path: str) -> bytes:
        with self._translated(path):
            return bytes(self._fs.cat_file(self._at(path)))

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        with self._translated(path):
            data = bytes(self._fs.cat_file(self._at(path), start=offset, end=offset + length)) if length else b""
        if len(data) != length:
            raise StorageError(f"{self.shown(path)}: ended {length - len(data)} bytes early; something changed it")
        return data

    def open(self, path: str, *, buffer: int = _CHUNK) -> BinaryIO:
        with self._translated(path):
            size = int(self._fs.info(self._at(path))["size"])
        return io.BufferedReader(_Object(self, path, size), max(buffer, _LEAST))

    def sweep(self, path: str) -> None:
        """Nothing half-done has a name here. What a killed upload of over 100 MB left is the bucket's to expire."""

    def _make_sure(self) -> None:
        """Whether a name that is taken stays as it is, asked once. The first one may create it, the second may not."""
        if self._is_exclusive:
            return
        if all(self._create(_PROBE, secrets.token_bytes(16)) for _ in range(2)):
            raise StorageError(
                f"{self.shown()}: the server ignores `If-None-Match: *`, so two writers could overwrite each other's "
                "evidence; use a server that knows conditional puts, or a folder"
            )
        self._is_exclusive = True

    def _create(self, path: str, data: bytes | Iterable[bytes]) -> bool:
        pauses = iter(_BUSY_PAUSES_S)
        with _spooled(data) as local:
            while True:
                try:
                    self._put(local, path, mode="create")
                    return True
                except StorageError as problem:
                    cause = problem.__cause__
                    if _code(cause) in _TAKEN:
                        return self._holds(path, local)
                    pause = next(pauses, None) if _code(cause) in _BUSY else None
                    if pause is None:
                        raise
                time.sleep(pause)

    def _put(self, local: Path, path: str, **how: str) -> None:
        within = PUT_S + local.stat().st_size / SLOWEST
        with self._translated(path):
            self._fs.put_file(str(local), self._at(path), timeout=within, **how)

    def _holds(self, path: str, local: Path) -> bool:
        """Whether what took the name is this very file: the answer to a put that did happen can get lost, and its
        repetition then finds the name taken."""
        with self.open(path) as theirs, local.open("rb") as ours:
            while part := ours.read(_CHUNK):
                if theirs.read(len(part)) != part:
                    return False
            return not theirs.read(1)

    def _at(self, path: str) -> str:
        parts = path.split("/") if path else []
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise StorageError(f"{path!r} is no path inside {self.shown()}")
        return "/".join([self.root, *parts])

    @contextlib.contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        try:
            yield
        except self._troubles as problem:
            raise ResultsAway(f"{self.shown(path)}: {self._explained(problem)}") from problem

    def _explained(self, problem: BaseException) -> str:
        said = f"{str(problem).strip() or type(problem).__name__}"
        if isinstance(problem, self._keyless):
            return "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role"
        if isinstance(problem, PermissionError):
            return f"refused ({_code(problem) or said}); look at the AWS credentials and the bucket's policy"
        if _code(problem) == "NoSuchBucket":
            return f"there is no bucket {self.bucket}; make it, or look at AWS_ENDPOINT_URL and the region"
        if isinstance(problem, FileNotFoundError):
            return "it is not there"
        if isinstance(problem, TimeoutError):
            return "the server takes connections and does not answer"
        return said


class _Object(io.RawIOBase):
    """An object read in ranges; its troubles are StorageErrors, also in the middle."""

    def __init__(self, store: BucketResults, path: str, size: int) -> None:
        self._store, self._path, self._size, self._at = store, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        length = max(0, min(len(view), self._size - self._at))
        view[:length] = self._store.read_range(self._path, self._at, length)
        self._at += length
        return length


@contextlib.contextmanager
def _spooled(data: bytes | Iterable[bytes]) -> Iterator[Path]:
    """A local file with `data`: a large one goes up in parts, and may have to go again."""
    with tempfile.NamedTemporaryFile(prefix="evalfleet-") as file:
        try:
            file.writelines((data,) if isinstance(data, bytes) else data)
            file.flush()
        except OSError as problem:
            raise ResultsAway(f"{file.name}: {problem.strerror}; a file for the bucket waits there") from problem
        yield Path(file.name)


def _code(problem: BaseException | None) -> str:
    """S3's own word for an error, under whatever s3fs made of it."""
    while problem is not None:
        response = getattr(problem, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        problem = problem.__cause__
    return ""
