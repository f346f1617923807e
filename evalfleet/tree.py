"""Where is the tree, which of its files are the harness, and what is its commit?

The commit is what an evaluation is pinned to (S33): git HEAD unless a harness file differs from it; then, or without
git, 40 hex digits over the harness files. `docs/decisions/008-commit-and-pin.md` has the reasons.
"""

from __future__ import annotations

import os
from pathlib import Path

from evalfleet.errors import UsageError
from evalfleet.harnessfiles import TreeVersion, harness_files, read_tree_version, tree_commit
from evalfleet.treeconfig import (
    CONFIG_FILE,
    KEYS,
    MAX_CONCURRENCY,
    CommandHarness,
    EvalConfig,
    GradersConfig,
    HarnessConfig,
    HttpHarness,
    JudgeConfig,
    OpenAIHarness,
    Price,
    TargetConfig,
    TreeConfig,
    parse_tree_config,
    read_tree_config,
)

__all__ = [
    "CONFIG_FILE",
    "KEYS",
    "MAX_CONCURRENCY",
    "CommandHarness",
    "EvalConfig",
    "GradersConfig",
    "HarnessConfig",
    "HttpHarness",
    "JudgeConfig",
    "OpenAIHarness",
    "Price",
    "TargetConfig",
    "TreeConfig",
    "TreeVersion",
    "find_tree",
    "harness_files",
    "parse_tree_config",
    "read_tree_config",
    "read_tree_version",
    "tree_commit",
]


def find_tree(start: Path) -> Path:
    """The nearest folder from `start` upwards that holds `evals/` or `evalfleet.toml`; UsageError where none does."""
    start = Path(os.path.realpath(start.expanduser()))
    if not start.is_dir():
        what = "is a file" if start.exists() else "does not exist"
        raise UsageError(f"{start} {what}; --tree takes the folder that holds evals/")
    for folder in (start, *start.parents):
        if (folder / CONFIG_FILE).is_file() or (folder / "evals").is_dir():
            return folder
    raise UsageError(
        f"no evals/ and no {CONFIG_FILE} in {start} or above it; "
        "`evalfleet init` writes a first case there, --tree DIR names another folder"
    )
