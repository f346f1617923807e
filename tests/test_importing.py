"""Imports without collections: a start and an end that cost less, and a collector that works afterwards."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from evalfleet.importing import uncollected
ran = []
gc.callbacks.append(lambda phase, _info: ran.append(phase))
with uncollected():
    kept = [[] for _ in range(100_000)]
    during = len(ran)
print(during, gc.isenabled(), gc.get_freeze_count() > 100_000)
"""


def test_nothing_is_collected_meanwhile_nor_looked_at_again_and_collections_go_on() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["0", "True", "True"]
