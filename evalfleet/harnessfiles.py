"""Which files of a tree are the harness, and which 40 hex digits name them?

Harness files (S33): the globs of `[harness] files`; without them `evalfleet.toml`, the files that `argv` names, tracked
files, and untracked unignored files with a source ending. Their commit is git HEAD when none of them differs from it,
else a digest over them. Everything is read once, at the start of a command.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from evalfleet.errors import ConfigError, UsageError
from evalfleet.gitrepo import GitRepo, open_repo
from evalfleet.globs import glob_pattern
from evalfleet.treeconfig import CONFIG_FILE, CommandHarness, TreeConfig

# fmt: off
# What an untracked file must end with to count as the harness's source. Data endings (.json, .txt, .csv) are not here:
# an agent writes such files while it runs, and its commit must not move under it.
SOURCE_ENDINGS = frozenset({
    ".bash", ".c", ".cc", ".cfg", ".cjs", ".clj", ".cpp", ".cs", ".cts", ".cxx", ".dart", ".erl", ".ex", ".exs",
    ".fish", ".fs", ".go", ".gotmpl", ".gradle", ".groovy", ".h", ".hbs", ".hpp", ".hs", ".ini", ".j2", ".java",
    ".jinja", ".jinja2", ".jl", ".js", ".jsx", ".kt", ".kts", ".liquid", ".lua", ".m", ".md", ".mdx", ".mjs", ".ml",
    ".mts", ".mustache", ".nim", ".php", ".pl", ".pm", ".prompt", ".ps1", ".py", ".pyi", ".pyx", ".r", ".rb", ".rs",
    ".scala", ".sh", ".sql", ".swift", ".tmpl", ".toml", ".ts", ".tsx", ".vue", ".yaml", ".yml", ".zig",
    ".zsh",
})
NEVER_FOLDERS = frozenset({
    ".evalfleet", ".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache",
    ".pytest_cache", ".ruff_cache", ".tox", ".nox", ".hypothesis",
})
# fmt: on
_NEVER_NAMES = re.compile(
    r".*\.(log|log\.\d+|pid|sock|pyc|pyo|db|db3|sqlite|sqlite3|rdb|aof|(db|sqlite|sqlite3)-(wal|shm|journal))\Z|\.DS_Store\Z",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class TreeVersion:
    """A tree's commit and how it came about.

    `commit` 40 hex digits; `head` git HEAD or None; `reason` says why the commit is not HEAD ("" when it is); `files`
    all harness files; `changed` those that differ from HEAD (all without git) with the digest of each, "" for one that
    is gone.
    """

    commit: str
    head: str | None
    reason: str
    files: tuple[str, ...]
    changed: Mapping[str, str]


def harness_files(config: TreeConfig) -> list[str]:
    """Paths from the tree's root, sorted. ConfigError: a glob that finds nothing. UsageError: what git refuses."""
    return list_files(config, open_repo(config.root))


def tree_commit(config: TreeConfig) -> str:
    """The 40 hex digits of S33."""
    return read_tree_version(config).commit


def would_count(config: TreeConfig, path: Path) -> bool:
    """Whether a file that a command is to write at `path` would be a harness file, and so move the commit."""
    with contextlib.suppress(ValueError):  # outside of the tree
        inside = _real(path).relative_to(_real(config.root)).as_posix()
        if not Wanted(config)(inside):
            return False
        if config.harness is not None and config.harness.files is not None:
            return True
        repo = open_repo(config.root)
        if repo is not None and repo.tracks(inside):
            return True
        return _is_source(inside) and not (repo is not None and repo.ignores(inside))
    return False


def read_tree_version(config: TreeConfig) -> TreeVersion:
    """Read every harness file that may differ from HEAD. UsageError for a file that cannot be read."""
    repo = open_repo(config.root)
    return version_of(config, repo, list_files(config, repo))


def version_of(config: TreeConfig, repo: GitRepo | None, files: Sequence[str]) -> TreeVersion:
    """The version that these harness files make, as they are now."""
    if repo is None or repo.head is None:
        digests = {path: file_digest(config.root, path) for path in files}
        reason = "there is no git repository here" if repo is None else "the git repository has no commit yet"
        return TreeVersion(_tree_digest(digests), None, reason, tuple(files), digests)
    at_head = repo.files_at_head()
    differs = repo.changed_since(repo.head)
    changed = {
        path: file_digest(config.root, path) for path in files if not within(path, at_head) or within(path, differs)
    }
    wanted = Wanted(config)
    for path in differs:
        if path in at_head and path not in changed and wanted(path) and not os.path.lexists(config.root / path):
            changed[path] = ""
    if not changed:
        return TreeVersion(repo.head, repo.head, "", tuple(files), {})
    digests = {path: changed.get(path) or file_digest(config.root, path) for path in files}
    first = min(changed)
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    verb = "is gone since" if not changed[first] else "differs from" if within(first, at_head) else "is not in"
    reason = f"{first}{more} {'differ from' if more else verb} git HEAD {repo.head[:12]}"
    return TreeVersion(_tree_digest(digests), repo.head, reason, tuple(files), changed)


def within(path: str, paths: frozenset[str]) -> bool:
    """Git knows a submodule, and whether it differs, under the submodule's own path only."""
    return path in paths or any(str(parent) in paths for parent in PurePosixPath(path).parents)


def list_files(config: TreeConfig, repo: GitRepo | None) -> list[str]:
    """As `harness_files`, where the repository is open already."""
    wanted = Wanted(config)
    if config.harness is not None and config.harness.files is not None:
        found = [path for path in _walk(config) if wanted(path)]
        for glob in config.harness.files:
            pattern = glob_pattern(glob)
            if not any(pattern.match(path) for path in found):
                raise ConfigError(CONFIG_FILE, f"[harness] files: {glob!r} finds no file in {config.root}")
        return sorted(found)
    named = set(_argv_files(config))
    if os.path.lexists(config.root / CONFIG_FILE):
        named.add(CONFIG_FILE)
    if repo is None:
        return sorted({path for path in _walk(config) if _is_source(path)} | named)
    files = set(named)
    for path, tracked in repo.work_files():
        if not wanted(path):
            continue
        if (config.root / path).is_dir() and not (config.root / path).is_symlink():
            # A submodule, or a repository of its own inside this one: its sources count as an untracked file's would.
            files.update(inner for inner in _walk(config, below=path.rstrip("/")) if _is_source(inner))
        elif (tracked or _is_source(path)) and _is_content(config.root / path):
            files.add(path)
    return sorted(files)


class Wanted:
    """Whether a path may be a harness file at all; compiled once for a tree."""

    def __init__(self, config: TreeConfig) -> None:
        files = None if config.harness is None else config.harness.files
        self.globs = None if files is None else [glob_pattern(glob) for glob in files]
        results = os.path.relpath(_real(config.results_folder), _real(config.root))
        self.results = PurePosixPath(results).parts if not results.startswith("..") else None

    def __call__(self, path: str) -> bool:
        if self.never(path.rstrip("/")):
            return False
        return self.globs is None or any(glob.match(path) for glob in self.globs)

    def never(self, path: str) -> bool:
        """The paths that no glob brings in: `evals/` is pinned by the suite's version, the rest is no source (S33)."""
        parts = PurePosixPath(path).parts
        if parts[:1] == ("evals",) or (self.results and parts[: len(self.results)] == self.results):
            return True
        return not NEVER_FOLDERS.isdisjoint(parts) or _NEVER_NAMES.match(parts[-1]) is not None


def _real(path: Path) -> Path:
    """Where a path leads; a link that leads nowhere or round in a circle stays as it is."""
    return Path(os.path.realpath(path))


def _is_source(path: str) -> bool:
    name = PurePosixPath(path).name
    return PurePosixPath(name).suffix.lower() in SOURCE_ENDINGS or name in (
        "Dockerfile",
        "Makefile",
        "Gemfile",
        "Rakefile",
    )


def _is_content(path: Path) -> bool:
    """A regular file or a symbolic link; never a socket, a pipe or a device."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _argv_files(config: TreeConfig) -> Iterator[str]:
    """Files below the root that the command line of the harness names, also as the value of `--option=file`.

    Such a file counts even in `evals/` and when git ignores it: it *is* the agent.
    """
    driver = None if config.harness is None else config.harness.driver
    if not isinstance(driver, CommandHarness):
        return
    root = _real(config.root)
    for word in driver.argv:
        for text in (word, word.partition("=")[2]):
            if not text or len(text) > 1000:
                continue
            path = Path(os.path.normpath(root / text))
            if not path.is_relative_to(root) or not path.is_file():
                continue
            inside = path.relative_to(root)
            if NEVER_FOLDERS.isdisjoint(inside.parts):
                yield inside.as_posix()


def _walk(config: TreeConfig, *, below: str = "") -> Iterator[str]:
    """Every file below the root that is not under a folder that never counts; links are not followed.

    A folder that ignores itself (its own `.gitignore` is `*`) or is a virtual environment is not entered.
    """
    never = Wanted(config).never
    for folder, folders, names in os.walk(config.root / below, followlinks=False, onerror=_refuse_folder):
        here = os.path.relpath(folder, config.root)
        prefix = "" if here == "." else f"{Path(here).as_posix()}/"
        linked = [name for name in folders if Path(folder, name).is_symlink()]
        folders[:] = sorted(
            name
            for name in folders
            if name not in linked and not never(prefix + name) and not _ignores_itself(Path(folder, name))
        )
        for name in sorted([*names, *linked]):
            path = prefix + name
            if not never(path) and _is_content(Path(folder, name)):
                yield path


def folders_of(config: TreeConfig, ignored: Collection[str]) -> Iterator[str]:
    """Every folder in which a new harness file could appear, the root first. `ignored`: those that git leaves out."""
    wanted = Wanted(config)
    for folder, folders, _names in os.walk(config.root, followlinks=False):
        yield folder
        here = os.path.relpath(folder, config.root)
        prefix = "" if here == "." else f"{Path(here).as_posix()}/"
        folders[:] = [
            name
            for name in folders
            if prefix + name not in ignored
            and not wanted.never(prefix + name)
            and not Path(folder, name).is_symlink()
            and not _ignores_itself(Path(folder, name))
        ]


def _refuse_folder(error: OSError) -> None:
    raise UsageError(f"{error.filename} cannot be read, and it may hold harness files: {error.strerror}")


def _ignores_itself(folder: Path) -> bool:
    if (folder / "pyvenv.cfg").is_file():
        return True
    try:
        text = (folder / ".gitignore").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return any(line.strip() in ("*", "/*", "**") for line in text[:10_000].splitlines())


def file_digest(root: Path, path: str) -> str:
    """SHA-256 over kind and content. A link counts by where it points, as in git; what lies behind it is not read."""
    place = root / path
    try:
        mode = place.lstat().st_mode
        if stat.S_ISLNK(mode):
            return hashlib.sha256(b"link\0" + os.fsencode(place.readlink())).hexdigest()
        kind = b"program\0" if mode & 0o111 else b"file\0"
        summed = hashlib.sha256(kind)
        with place.open("rb") as file:
            while chunk := file.read(1 << 20):
                summed.update(chunk)
        return summed.hexdigest()
    except OSError as error:
        raise UsageError(
            f"harness file {path} cannot be read: {error.strerror}; make it readable, or name the harness's files in "
            "[harness] files"
        ) from error


def _tree_digest(digests: Mapping[str, str]) -> str:
    summed = hashlib.sha256(b"evalfleet tree 1\n")
    for path, digest in sorted(digests.items()):
        name = os.fsencode(path)
        summed.update(b"%s %d " % (digest.encode("ascii"), len(name)) + name + b"\n")
    return summed.hexdigest()[:40]


def files_of(paths: Iterable[str]) -> str:
    """A list of paths for a sentence: the first three, and how many more."""
    listed = sorted(paths)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(listed[:3]) + more
