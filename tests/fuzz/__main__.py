"""Tries what `make test` tries, with a fresh seed: every test that draws, then files for the readers of cases.

    python -m tests.fuzz --seconds 600
    python -m tests.fuzz --seed 4711        # the same again

The seed is printed first, and with each finding again beside the command that repeats it. Exit code 1 for a finding
(docs/decisions/029-the-same-test-twice.md says what becomes of it).
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
from pathlib import Path

from tests.fuzz import cases

HOUSE = Path(__file__).resolve().parent.parent.parent
CHOSEN = ("-m", "(hypothesis or seeded) and not integration and not e2e")
SCRIPTS = 5
"""Scripts of `tests/chain` for each example of a property test."""


def property_tests(seed: int, examples: int, more: list[str]) -> int:
    """pytest's exit code for every test that draws, under this seed; `more` goes to pytest."""
    command = [sys.executable, "-m", "pytest", *CHOSEN, "-q", "-p", "no:cacheprovider"]
    command += ["--hypothesis-profile=fresh", f"--hypothesis-seed={seed}", *more]
    drawn = {
        "EVALFLEET_TEST_EXAMPLES": examples,
        "EVALFLEET_CHAIN_SCRIPTS": SCRIPTS * examples,
        "EVALFLEET_CHAIN_SEED": seed,
    }
    environment = {**os.environ, **{name: str(value) for name, value in drawn.items()}}
    return subprocess.run(command, cwd=HOUSE, env=environment, check=False).returncode


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="What goes after -- is for pytest.")
    parser.add_argument("--seconds", type=float, default=60.0, help="for the readers of cases; default 60")
    parser.add_argument("--examples", type=int, default=100, help="of each property test; default 100")
    parser.add_argument("--seed", type=int, default=None, help="default: a fresh one")
    parser.add_argument("pytest", nargs="*")
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    print(f"fuzz: seed {seed}", flush=True)
    failed = property_tests(seed, options.examples, options.pytest)
    found = cases.fuzz(seed, seconds=options.seconds)
    print(cases.report(found), flush=True)
    if not failed and not found.findings:
        print(f"fuzz: nothing found with seed {seed}")
        return 0
    if failed:
        again = f"python -m tests.fuzz --seed {seed} --examples {options.examples}"
        print(f"fuzz: the tests that draw ended with {failed}: {again}")
    for number, _ in found.findings:
        print(f"fuzz: a file was read wrongly: python -m tests.fuzz.cases --one {number} > FILE")
    print("fuzz: keep what was found as an @example or as a row of a table, and make it right")
    return 1


if __name__ == "__main__":
    sys.exit(main())
