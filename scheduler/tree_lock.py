"""Who is at work in this tree? One stack per state folder, and a second command is told who holds it.

The lock is the kernel's (`flock`): it ends with its holder, whatever that died of. The file's text is for people only.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from datetime import UTC, datetime
from pathlib import Path

from evalfleet.errors import TreeBusy, UnfitHost


class TreeLock:
    """The lock file of one state folder. Not re-entrant; use as a context manager, or `acquire` and `release`."""

    def __init__(self, state: Path, command: str) -> None:
        self._path = state / "lock"
        self._command = command
        self._descriptor = -1

    def acquire(self) -> None:
        """TreeBusy names the holder's pid, command and start; UnfitHost: the file system has no locks."""
        # Not inheritable (PEP 446): no part and no agent of ours can keep the tree locked after us.
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise UnfitHost(
                f"cannot open the lock {self._path}: {error.strerror}; --state DIR takes another"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 4096)
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise TreeBusy(busy_message(holder)) from None
            raise UnfitHost(
                f"cannot lock {self._path}: {error.strerror}; a state folder must be on a file system with locks, "
                "which --state DIR can name"
            ) from error
        self._descriptor = descriptor
        self._write({"pid": os.getpid(), "command": self._command, "started": datetime.now(UTC).isoformat()})

    def release(self) -> None:
        """Let the next one in. The file stays: removing it would let two holders in at once."""
        if self._descriptor >= 0:
            self._write({})
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, holder: dict[str, object]) -> None:
        os.ftruncate(self._descriptor, 0)
        if holder:
            os.pwrite(self._descriptor, json.dumps(holder).encode(), 0)

    def __enter__(self) -> TreeLock:
        self.acquire()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.release()


def busy_message(holder: bytes, *, now: datetime | None = None) -> str:
    """The sentence for the second command, from the lock file's bytes (which may be anything)."""
    who = ""
    try:
        document = json.loads(holder)
        begun = datetime.fromisoformat(document["started"])
        age = (now or datetime.now(UTC)) - begun
        ago = _spoken(max(0, int(age.total_seconds())))
        who = f": pid {int(document['pid'])} ({document['command']}), started {begun:%H:%M:%S} UTC, {ago} ago"
    except (ValueError, KeyError, TypeError):
        who = ""  # it holds the lock and has not written yet: there is nobody to name
    return (
        f"another evalfleet is at work in this tree{who}. Wait for it, or give this one a state of its own: --state DIR"
    )


def _spoken(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7200:
        return f"{seconds // 60} min"
    return f"{seconds // 3600} h"
