"""What does a served tree give the server: its name, its commit, its files, its driver and its judge?"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evalfleet.errors import ConfigError, GraderRefused, UsageError
from evalfleet.harnessfiles import harness_files, tree_commit
from evalfleet.server.harnesses import FILE_LIMIT, TOTAL_LIMIT
from evalfleet.treeconfig import CONFIG_FILE, TreeConfig, read_tree_config

if TYPE_CHECKING:
    from evalfleet.server.drivers import CheckedDriver

_log = logging.getLogger(__name__)

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class ServedTree:
    """A tree that this server runs: `name` and `commit` name the harness and its version."""

    config: TreeConfig
    name: str
    commit: str
    driver: CheckedDriver

    def files(self) -> dict[str, str]:
        """The harness files as text, for the version's record.

        Bytes that are no UTF-8 become U+FFFD. A file over 1 MiB, and what would bring the sum over 32 MiB, is left out.
        """
        found: dict[str, str] = {}
        total = 0
        for path in harness_files(self.config):
            try:
                data = (self.config.root / path).read_bytes()
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


def read_tree(root: Path, *, state: Path, commit: str | None = None) -> ServedTree:
    """The tree at `root`. `commit` is taken as it is; without it the tree's own is computed (S33).

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
    return ServedTree(config, config.harness.name, commit or tree_commit(config), driver)
