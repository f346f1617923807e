"""Is nothing left running? Whoever loses its parent below this process becomes its child: so nothing escapes unseen."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Orphans below this process are its children meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def children(of: int | None = None) -> dict[int, str]:
    """The living children of a process, this one unless told: pid → command line. Our dead ones that nobody waits for
    are buried."""
    mine = os.getpid()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) != (mine if of is None else of):
            continue
        if state == "Z" and int(parent) == mine:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(int(entry.name), os.WNOHANG)
        elif state != "Z":
            found[int(entry.name)] = words
    return found
