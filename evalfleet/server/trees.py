"""What does a served tree give the server: its name, its commit, its files, its driver and its judge?"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evalfleet.errors import ConfigError, GraderRefused, UsageError
from evalfleet.gitrepo import open_repo
from evalfleet.harnessfiles import TreeVersion, Wanted, harness_files
from evalfleet.harnesswatch import HarnessWatch, watched_version
from evalfleet.server.harnesses import FILE_LIMIT, TOTAL_LIMIT
from evalfleet.treeconfig import CONFIG_FILE, TreeConfig, read_tree_config

if TYPE_CHECKING:
    from evalfleet.server.drivers import CheckedDriver

_log = logging.getLogger(__name__)

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class ServedTree:
    """A tree that this server runs: `name` and `commit` name the harness and its version.

    `watch` notices when its files are others; `moved` is one that was another from the start on, else "".
    """

    config: TreeConfig
    name: str
    commit: str
    driver: CheckedDriver
    watch: HarnessWatch | None = None
    moved: str = ""

    def files(self) -> dict[str, str]:
        """The harness files as text, for the version's record.

        Bytes that are no UTF-8 become U+FFFD. A file over 1 MiB, and what would bring the sum over 32 MiB, is left out.
        A link is the text of where it points, as in git: what lies behind it is not read.
        """
        found: dict[str, str] = {}
        total = 0
        for path in harness_files(self.config):
            place = self.config.root / path
            try:
                data = os.fsencode(place.readlink()) if place.is_symlink() else place.read_bytes()
            except OSError as problem:
                raise UsageError(f"{path}: cannot be read: {problem.strerror or problem}") from problem
            if len(data) <= FILE_LIMIT and total + len(data) <= TOTAL_LIMIT:
                total += len(data)
                found[path] = data.decode("utf-8", "replace")
        return found


def check_judges(root: Path) -> None:
    """GraderRefused, each problem named, when a case calls a judge that the tree does not hold (the seed "Checks").

    The files of graders are read, not imported: their environment need not be on this machine. Case files that cannot
    be read are nothing that a server needs; they are only warned of.
    """
    from evalfleet.checks.case import load_cases
    from evalfleet.graders.check import check_graders_by_ast

    loaded = load_cases(root)
    if loaded.problems:
        _log.warning("%s: %d problems in its case files; `evalfleet validate` shows them", root, len(loaded.problems))
    problems = check_graders_by_ast(root, [(name, str(place)) for name, place in loaded.grader_places()])
    if problems:
        raise GraderRefused("\n".join(problem.render() for problem in problems))


def read_tree(root: Path, *, state: Path, commit: str | None = None, verify: bool = False) -> ServedTree:
    """The tree at `root`. `commit` is taken as it is; without it the tree's own is computed (S33). `verify`: nothing is
    played unless the two are the same.

    ConfigError: no harness, or one that cannot run as things stand.
    """
    from evalfleet.server.drivers import make_driver

    config = read_tree_config(root)
    if config.harness is None:
        raise ConfigError(
            str(root / CONFIG_FILE), "says no [harness]: there is nothing to run; `evalfleet init` writes one"
        )
    driver = make_driver(config.harness, root, state)
    driver.check()
    version, watch = watched_version(config)
    named = commit or version.commit
    moved = first_difference(config, version, named) if verify and named != version.commit else ""
    return ServedTree(config, config.harness.name, named, driver, watch, moved)


def first_difference(config: TreeConfig, version: TreeVersion, commit: str) -> str:
    """A harness file by which the tree is not `commit`; the commit that it is where nothing says which file that is."""
    repo = open_repo(config.root)
    paths = set(version.changed) if version.head == commit else set()
    if repo is not None and repo.commit_of(commit) is not None:
        paths |= set(filter(Wanted(config), repo.changed_since(commit)))
    return min(paths) if paths else f"the tree is commit {version.commit[:12]}, not {commit[:12]}"
