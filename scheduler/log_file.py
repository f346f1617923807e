"""Where do a part's words go? Into `<state>/logs/<part>.log`, at most `CAP` bytes, the run before in `.log.1`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import BinaryIO, cast

log = logging.getLogger(__name__)

CAP = 8 * 1024 * 1024
_TAIL = 8 * 1024


class LogFile:
    """A capped log, written as bytes come, and its last words in memory. One writer; never raises for a full disk."""

    def __init__(self, path: Path, *, cap: int = CAP) -> None:
        self._path = path
        self._cap = cap
        self._size = 0
        self._tail = b""
        self._broken = False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._fresh()

    def write(self, piece: bytes) -> None:
        """Append. A disk that is full loses the part's log, not the part: it must always find a reader."""
        self._tail = (self._tail + piece)[-_TAIL:]
        if self._broken:
            return
        try:
            if self._size + len(piece) > self._cap:
                self._file.close()
                self._file = self._fresh()
                self._size = 0
            self._file.write(piece)
            self._size += len(piece)
        except OSError as error:
            self._broken = True
            log.warning("%s cannot be written (%s): the rest of this log is lost", self._path, error.strerror)

    def last_words(self, lines: int = 15) -> str:
        """The end of what was written, for an error message."""
        return "\n".join(self._tail.decode("utf-8", "replace").strip().splitlines()[-lines:])

    def close(self) -> None:
        self._file.close()

    def _fresh(self) -> BinaryIO:
        if self._path.exists():
            self._path.replace(self._path.with_suffix(".log.1"))
        return cast(BinaryIO, self._path.open("wb", buffering=0))
