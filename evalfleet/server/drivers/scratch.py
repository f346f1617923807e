"""Where does an agent work that must not touch the tree? A fresh copy of the tree for each conversation.

`<state>/scratch/<tree>/<chat id>` is made before a chat's first turn and stays for its later ones. Nobody says that a
chat is over, so a copy that was idle for `IDLE` seconds goes when the next one is made, and all of them go with the
driver. A chat that comes back after that finds a fresh copy again.

Not copied: `.git`, `.evalfleet`, `evals/results`, `__pycache__`, and our own state folder. `.venv` and `node_modules`
are linked to the tree's own: they are large, and programs need them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

IDLE = 900.0
_LEFT_OUT = frozenset({".git", ".evalfleet", "__pycache__"})
_LINKED = frozenset({".venv", "node_modules"})


class Scratch:
    """The copies of one tree. `clock` is any monotonic clock in seconds."""

    def __init__(self, root: Path, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._all = folder
        self._folder = folder / hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
        self._fresh = True
        self._opening = asyncio.Lock()
        self._clock = clock
        self._used: dict[str, float] = {}
        self._busy: dict[str, int] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def enter(self, chat_id: str) -> Path:
        """The chat's own copy, made if it is not there; OSError if it cannot be. Each call is paired with `leave`."""
        async with self._opening:
            if self._fresh:
                await asyncio.to_thread(_remove, self._folder)  # what a killed server left
                self._fresh = False
        await self.sweep()
        name = _folder_name(chat_id)
        self._busy[name] = self._busy.get(name, 0) + 1
        try:
            async with self._locks.setdefault(name, asyncio.Lock()):
                if name not in self._used:
                    await asyncio.to_thread(self._make, self._folder / name)
                self._used[name] = self._clock()
        except BaseException:
            self.leave(chat_id)
            raise
        return self._folder / name

    def leave(self, chat_id: str) -> None:
        name = _folder_name(chat_id)
        self._busy[name] -= 1
        if not self._busy[name]:
            del self._busy[name]
        if name in self._used:
            self._used[name] = self._clock()

    async def sweep(self) -> None:
        """Remove the copies of chats that were idle for `IDLE` seconds."""
        for name in [name for name in self._used if self._idle(name)]:
            if (lock := self._locks.get(name)) is None:
                continue  # another sweep was faster
            async with lock:
                if self._idle(name):
                    del self._used[name]
                    await asyncio.to_thread(_remove, self._folder / name)
                    if name not in self._busy:  # else somebody waits for this very lock
                        del self._locks[name]

    def _idle(self, name: str) -> bool:
        return name in self._used and name not in self._busy and self._clock() - self._used[name] > IDLE

    def clear(self) -> None:
        """Remove every copy of this tree, also those of a server before this one."""
        self._used.clear()
        _remove(self._folder)
        with contextlib.suppress(OSError):
            self._all.rmdir()  # unless another tree has copies there

    def _make(self, target: Path) -> None:
        _remove(target)  # a half copy, or another server's
        self._folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self._root, target, symlinks=True, ignore=self._left_out)
        self._link(self._root, target)

    def _left_out(self, folder: str, names: list[str]) -> set[str]:
        here = Path(folder)
        left = {name for name in names if name in _LEFT_OUT or name in _LINKED}
        if here == self._root / "evals":
            left.add("results")
        state = {self._folder, self._all, self._all.parent}
        for name in set(names) - left:
            path = here / name
            if path in state or not (path.is_symlink() or path.is_dir() or path.is_file()):
                left.add(name)  # the state folder would copy itself; sockets and pipes cannot be copied
        return left

    def _link(self, source: Path, target: Path) -> None:
        for folder, folders, _ in os.walk(target):
            folders[:] = [name for name in folders if not (Path(folder) / name).is_symlink()]
            original = source / Path(folder).relative_to(target)
            for name in _LINKED:
                if (original / name).is_dir():
                    (Path(folder) / name).symlink_to(original / name, target_is_directory=True)


def _folder_name(chat_id: str) -> str:
    """Ids of ours are fit to be names; whatever else comes is made so."""
    if re.fullmatch(r"[A-Za-z0-9_-]{1,80}", chat_id):
        return chat_id
    return hashlib.sha256(chat_id.encode("utf-8", errors="surrogatepass")).hexdigest()[:32]


def _remove(folder: Path) -> None:
    if not folder.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        # An agent may have taken away its own write permission.
        for path, _, _ in os.walk(folder):
            Path(path).chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        log.warning("the scratch copy %s could not be removed", folder)
