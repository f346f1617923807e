"""Starts the command line, or a part of the stack, in an environment that may be set up for other programs.

    evalfleet …                              the command line, also as python -P -m evalfleet.start …
    python -P -m evalfleet.start worker …    a worker, as the command line starts it

`worker` and `scheduler` are generic names: a user's PYTHONPATH may hold others. `evalfleet` is found first, and settles
that before either is imported; by name, because evalfleet's packages import neither of them.
"""

from __future__ import annotations

import runpy
import sys
from importlib import import_module

from evalfleet.surroundings import settle

PARTS = ("worker", "evalfleet.server")


def command() -> None:
    """The console script `evalfleet`."""
    settle()
    import_module("scheduler.cli").main()


def part(name: str) -> None:
    """Run the package `name` as `python -m name` would, with the rest of the command line as its words."""
    settle()
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in PARTS:
        part(sys.argv.pop(1))
    else:
        command()
