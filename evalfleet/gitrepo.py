"""What does git say about a tree: its HEAD, its files, and which of them differ from HEAD?

The `git` program is asked, read-only and under a deadline: no lock is taken, no hook, file-system monitor, external
diff or pager is started, and a repository that an environment variable points to is not mistaken for this tree's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from evalfleet.errors import UnfitHost, UsageError

TIMEOUT = 60.0
# `git rev-parse --local-env-vars`, less the ones that only carry configuration: set in a hook, they name a repository.
_ELSEWHERE = frozenset(
    {
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_NAMESPACE",
        "GIT_PREFIX",
        "GIT_IMPLICIT_WORK_TREE",
        "GIT_GRAFT_FILE",
        "GIT_SHALLOW_FILE",
        "GIT_NO_REPLACE_OBJECTS",
        "GIT_REPLACE_REF_BASE",
        "GIT_INTERNAL_SUPER_PREFIX",
        "GIT_EXTERNAL_DIFF",
        "GIT_TRACE",
        "GIT_PAGER",
    }
)
_FLAGS = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-c", "core.quotePath=false")


@dataclass(frozen=True, slots=True)
class GitRepo:
    """The repository that a tree's root lies in. `head` is 40 hex digits, None before the first commit (and in a
    repository of SHA-256 objects, whose ids are no commits on the wire)."""

    root: Path
    head: str | None

    def files_at_head(self) -> frozenset[str]:
        """Paths from the tree's root; a submodule is one path."""
        out = _git(self.root, "ls-tree", "-r", "-z", "--name-only", "HEAD", "--", ".")
        return frozenset(_paths(out))

    def work_files(self) -> Iterator[tuple[str, bool]]:
        """(path, tracked) for all that git tracks and for what it neither tracks nor ignores."""
        for path in _paths(_git(self.root, "ls-files", "-z", "--cached", "--", ".")):
            yield path, True
        for path in _paths(_git(self.root, "ls-files", "-z", "--others", "--exclude-standard", "--", ".")):
            yield path, False

    def commit_of(self, name: str) -> str | None:
        """The commit that a branch, a tag or a beginning of an id means, 40 hex digits; None for what is none."""
        done = _run(self.root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        found = done.stdout.decode("ascii", "replace").strip()
        return found if done.returncode == 0 and re.fullmatch(r"[0-9a-f]{40}", found) else None

    def tracks(self, path: str) -> bool:
        return bool(_git(self.root, "ls-files", "-z", "--cached", "--", f":(literal){path}"))

    def ignores(self, path: str) -> bool:
        """Whether git passes over a file that it does not track; the file need not be there."""
        done = _run(self.root, "check-ignore", "--quiet", "--", path)
        if done.returncode not in (0, 1):
            said = done.stderr.decode("utf-8", "replace").strip()
            raise UsageError(f"`git check-ignore` failed in {self.root}: {said or f'exit {done.returncode}'}")
        return done.returncode == 0

    def changed_since(self, commit: str) -> frozenset[str]:
        """Tracked paths whose content, kind or presence differs from the commit, whatever the index says of them."""
        with self._copy_of_index() as index:
            out = _git(
                self.root,
                *("diff", "--name-only", "--relative", "-z", "--no-ext-diff", "--no-textconv", "--no-renames"),
                *("--ignore-submodules=none", commit, "--", "."),
                environment=index,
            )
        return frozenset((*_paths(out), *self._hidden_changes(commit)))

    def index_file(self) -> Path:
        """Where git keeps what it tracks."""
        return self.root / os.fsdecode(_git(self.root, "rev-parse", "--git-path", "index").removesuffix(b"\n"))

    def ignored_folders(self) -> frozenset[str]:
        """The folders that git ignores as a whole, as paths from the tree's root."""
        words = ("--others", "--ignored", "--exclude-standard", "--directory")
        out = _git(self.root, "ls-files", "-z", *words, "--", ".")
        return frozenset(path.rstrip("/") for path in _paths(out) if path.endswith("/"))

    @contextlib.contextmanager
    def _copy_of_index(self) -> Iterator[Mapping[str, str]]:
        """What makes git take a copy: `git diff` locks and writes the index where a file was touched and not changed,
        optional locks or not, and somebody's `git commit` at that moment would fail."""
        index = self.index_file()
        with tempfile.TemporaryDirectory(prefix="evalfleet-") as folder:
            try:
                copy = shutil.copy2(index, Path(folder, "index"))  # its age, too: git reads what is as new as the index
            except FileNotFoundError:  # nothing has ever been added
                yield {}
            else:
                yield {"GIT_INDEX_FILE": str(copy)}

    def _hidden_changes(self, commit: str) -> Iterator[str]:
        """Files marked assume-unchanged or skip-worktree: `git diff` takes them as unchanged without a look."""
        out = _git(self.root, "ls-files", "-z", "-v", "--cached", "--", ".")
        marked = [line[2:] for line in _paths(out) if line[:1] == "S" or line[:1].islower()]
        if not marked:
            return
        blobs = {}
        for line in _paths(_git(self.root, "ls-tree", "-r", "-z", commit, "--", ".")):
            kind, _, path = line.partition("\t")
            blobs[path] = kind.split(" ")[2]
        for path in marked:
            place = self.root / path
            if place.is_symlink() or not place.is_file():
                continue  # a sparse checkout leaves it out on purpose
            data = place.read_bytes()
            if hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest() != blobs.get(path):
                yield path


def open_repo(root: Path) -> GitRepo | None:
    """The repository around `root`; None without git on PATH or without a repository. UsageError if git refuses it."""
    if shutil.which("git") is None:
        return None
    done = _run(root, "rev-parse", "--is-inside-work-tree")
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()
        if "not a git repository" in said:
            return None
        raise UsageError(f"git refuses to read {root}: {said.splitlines()[0] if said else 'it gave no reason'}")
    if done.stdout.strip() != b"true":
        return None
    head = _run(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    name = head.stdout.decode("ascii", "replace").strip()
    return GitRepo(root, name if head.returncode == 0 and re.fullmatch(r"[0-9a-f]{40}", name) else None)


def _paths(out: bytes) -> list[str]:
    return [os.fsdecode(part) for part in out.split(b"\0") if part]


def _git(root: Path, *words: str, environment: Mapping[str, str] = MappingProxyType({})) -> bytes:
    done = _run(root, *words, environment=environment)
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise UsageError(f"`git {words[0]}` failed in {root}: {said or f'exit {done.returncode}'}")
    return done.stdout


def _run(
    root: Path, *words: str, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[bytes]:
    whole = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    whole |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat", "LC_ALL": "C", **environment}
    try:
        return subprocess.run(
            ["git", *_FLAGS, *words],
            cwd=root,
            env=whole,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnfitHost(f"`git {words[0]}` gave no answer in {TIMEOUT:.0f} s in {root}") from error
    except OSError as error:
        raise UnfitHost(f"git cannot be started: {error.strerror}") from error
