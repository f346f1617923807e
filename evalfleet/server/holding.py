"""What does a server hold alone while it runs? Its state folder, and a SQLite file. Held by `flock`: a kill lets go."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from evalfleet.errors import TreeBusy, UnfitHost
from evalfleet.server.engines import POSTGRES, read_url


@contextlib.contextmanager
def locked_database(url: str) -> Iterator[None]:
    """One server for one SQLite file: a second one would take the first one's runs for a dead server's."""
    parsed = read_url(url)
    if parsed.get_backend_name() == POSTGRES:
        yield
        return
    path = Path(f"{parsed.database}.lock")
    with _locked(path, f"{parsed.database}: stop it, or name another --database"):
        yield


@contextlib.contextmanager
def locked_state(state: Path) -> Iterator[None]:
    """One server for one state folder: a second one would end the first one's agents as leftovers."""
    with _locked(state / "server.lock", f"{state}: stop it, or name another --state"):
        yield


@contextlib.contextmanager
def _locked(path: Path, used: str) -> Iterator[None]:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file: IO[str] = path.open("a+", encoding="ascii")
    except OSError as problem:
        raise UnfitHost(f"{path}: {problem.strerror or problem}: the folder must be writable") from problem
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            file.seek(0)
            holder = file.read(20).strip() or "unknown"
            raise TreeBusy(f"another evalfleet server (process {holder}) uses {used}") from problem
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
