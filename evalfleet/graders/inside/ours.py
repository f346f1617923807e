"""How does `import worker` in a grader find the user's package and not ours?

evalfleet comes with packages named `worker` and `scheduler`. Where it is installed for the graders' interpreter they
stand in an earlier entry of `sys.path` than the tree, the last, and would hide the tree's packages of these names. So
for these names the entries that hold evalfleet are asked after all others.

This file is the `__main__.__file__` of a grader's process: multiprocessing's spawn and forkserver run it again in each
process that they start, and packages are found there alike. Hence no import of a sibling.
"""

# Plain calls: a path object for each name is memory that every forked call would pay for again.
# ruff: noqa: PTH113, PTH118
from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

NAMES = frozenset({"scheduler", "worker"})
_EVALFLEET = os.path.join("evalfleet", "graders", "inside", "zygote.py")


class OursLast:
    """A finder of top-level packages of our names, in front of the interpreter's own; those it does not find are left
    to these."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if path is not None or name not in NAMES:
            return None
        texts = (entry for entry in sys.path if isinstance(entry, str))
        others = [entry for entry in texts if not os.path.isfile(os.path.join(entry, _EVALFLEET))]
        return PathFinder.find_spec(name, others, target)


def install() -> None:
    """For this process and those that it forks."""
    sys.meta_path.insert(0, OursLast)


if __name__ == "__mp_main__":
    install()
