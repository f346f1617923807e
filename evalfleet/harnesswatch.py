"""Are the harness's files still those of the commit that a server answers for? (S33)

A look compares size, times, inode and mode of each file with what they were at the start: two microseconds a file. Only
where one of them differs is the content compared, with the digest that the commit was made of, or by git with HEAD as
it was then. A file that was written again with the same content is no change; one that is gone, or that a digest over
the tree would count and that was not there, is one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from evalfleet.errors import UsageError
from evalfleet.gitrepo import GitRepo, open_repo
from evalfleet.harnessfiles import TreeVersion, Wanted, file_digest, folders_of, list_files, version_of, within
from evalfleet.treeconfig import CommandHarness, TreeConfig

SETTLED_NS: Final = 50_000_000
"""A file that was written less than this long before a look may be written again without a new time stamp: clocks of
file systems tick every few milliseconds. Its content is compared at the next look, too."""

Key = tuple[int, ...]
_GONE: Final[Key] = ()


def watched_version(config: TreeConfig) -> tuple[TreeVersion, HarnessWatch]:
    """The tree's version, and who notices when its files are others. Raises what `read_tree_version` does."""
    repo = open_repo(config.root)
    files = list_files(config, repo)
    watch = HarnessWatch(config, repo, files)  # before anything is read: the next look sees what changes meanwhile
    version = version_of(config, repo, files)
    watch.compare_with(version)
    return version, watch


class HarnessWatch:
    """The harness files of one tree. `look` blocks, and is one thread's at a time."""

    def __init__(self, config: TreeConfig, repo: GitRepo | None, files: list[str]) -> None:
        self._config = config
        self._repo = repo
        self._root = str(config.root)
        self._index = None if repo is None else repo.index_file()
        self._keys: dict[str, Key | None] = {path: _key_of(f"{config.root}/{path}") for path in files}
        self._places = self._places_now()
        self._version: TreeVersion | None = None
        self._last: dict[str, Key | None] = {}  # what was compared last, and what came of it
        self._found = ""

    def compare_with(self, version: TreeVersion) -> None:
        """What the files have to be."""
        self._version = version
        for path in version.changed:  # also those that are gone, and must stay so
            self._keys.setdefault(path, _key_of(f"{self._root}/{path}"))

    @property
    def size(self) -> int:
        """How many files a look has to look at."""
        return len(self._keys)

    def look(self) -> str:
        """The first harness file that differs from the commit: "agent.py", "agent.py (gone)", "agent.py (new)"; "" when
        none does. Raises what git's refusal or silence raises."""
        suspects = self._suspects()
        if suspects:
            if suspects != self._last or None in suspects.values():
                self._found = self._first_changed(suspects)
                self._last = suspects
            if self._found:
                return self._found
            self._keys.update(suspects)
        return self._first_new()

    # -- what was there

    def _suspects(self) -> dict[str, Key | None]:
        """The files whose key is another. The one loop that a tree of thousands of files waits for."""
        found: dict[str, Key | None] = {}
        lstat, root = os.lstat, self._root + "/"
        for path, known in self._keys.items():
            try:
                now = lstat(root + path)
            except OSError:
                key = _GONE
            else:
                key = (now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino)
            if key != known:
                found[path] = _settled(key)
        return found

    def _first_changed(self, suspects: dict[str, Key | None]) -> str:
        assert self._version is not None
        digests = self._version.changed
        differs = frozenset[str]()
        if self._repo is not None and self._version.head is not None and not suspects.keys() <= digests.keys():
            differs = self._repo.changed_since(self._version.head)
        for path in sorted(suspects):
            if suspects[path] == _GONE:
                if digests.get(path) != "":
                    return f"{path} (gone)"
            elif (self._digest(path) != digests[path]) if path in digests else within(path, differs):
                return path
        return ""

    def _digest(self, path: str) -> str:
        try:
            return file_digest(self._config.root, path)
        except UsageError:  # nobody may read it now, or it has just gone
            return "unreadable"

    # -- what was not

    def _first_new(self) -> str:
        """A file that has appeared and counts. Only where a folder or git's index has changed is there one to find."""
        if self._places == self._settled_places():
            return ""
        places = self._places_now()  # before the files are listed: what comes later is found by the next look
        if agent_works_in_the_tree(self._config):
            new = self._newly_tracked()
        else:
            new = [path for path in list_files(self._config, self._repo) if path not in self._keys]
        if new:
            return f"{min(new)} (new)"
        self._places = places
        return ""

    def _newly_tracked(self) -> list[str]:
        assert self._version is not None
        if self._repo is None or self._version.head is None:
            return []
        wanted = Wanted(self._config)
        known = {*self._keys, *(str(parent) for path in self._keys for parent in PurePosixPath(path).parents)}
        changed = self._repo.changed_since(self._version.head)
        return [path for path in changed if path not in known and wanted(path)]

    def _settled_places(self) -> dict[str, Key | None] | None:
        """The places of before as they are now; None where one of them was written just now."""
        now = {place: _key_of(place) for place in self._places}
        return None if None in now.values() else now

    def _places_now(self) -> dict[str, Key | None]:
        return {place: _key_of(place) for place in self._list_places()}

    def _list_places(self) -> Iterator[str]:
        if self._index is not None:
            yield str(self._index)
        if not agent_works_in_the_tree(self._config):
            named = self._config.harness is not None and self._config.harness.files is not None
            ignored = frozenset[str]() if named or self._repo is None else self._repo.ignored_folders()
            yield from folders_of(self._config, ignored)


def agent_works_in_the_tree(config: TreeConfig) -> bool:
    """Whether the tree is the agent's own working folder: then an untracked file that appears there may be its work,
    and only what git begins to track is new code. `[harness] files` says which files are the harness in any case."""
    driver = None if config.harness is None else config.harness.driver
    files = None if config.harness is None else config.harness.files
    return files is None and isinstance(driver, CommandHarness) and driver.cwd == "tree"


def _key_of(place: str) -> Key | None:
    """What changes when a file is written; None for one that was written just now."""
    try:
        now = os.lstat(place)
    except OSError:
        return _GONE
    return _settled((now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino))


def _settled(key: Key) -> Key | None:
    """None for what was written so recently that the same key would not say that it is the same."""
    return None if key != _GONE and abs(time.time_ns() - key[3]) < SETTLED_NS else key
