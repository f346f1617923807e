"""Limits of the host that can be known before the start are known then (issue: N runs at once and open files)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from evalfleet.host_limits import BESIDE, EACH

PROGRAM = """
import resource, sys
from evalfleet.errors import EvalfleetError
from evalfleet.host_limits import make_room
soft, hard, runs = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    make_room(runs, "--concurrency")
except EvalfleetError as error:
    print(error)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
MUST = (
    "--concurrency: 100 runs at once need 528 open files, and this host allows {hard} (`ulimit -Hn`): "
    "raise that limit, or take {fit} at once"
)


@pytest.mark.parametrize(
    ("soft", "hard", "lines"),
    [
        (256, 1024, ["528"]),  # raised to what is needed, and no further
        (600, 1024, ["600"]),  # enough
        (256, 256, [MUST.format(hard=256, fit=32), "256"]),
        (256, 500, [MUST.format(hard=500, fit=93), "500"]),  # the whole of it is tried
        (130, 130, [MUST.format(hard=130, fit=1), "130"]),
    ],
    ids=["raised", "enough", "refused", "refused after raising", "at least one"],
)
def test_the_soft_limit_is_raised_or_the_number_that_fits_is_said(soft: int, hard: int, lines: list[str]) -> None:
    assert BESIDE + EACH * 100 == 528
    command = [sys.executable, "-c", PROGRAM, str(soft), str(hard), "100"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == lines
