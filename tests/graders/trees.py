"""Trees with graders in them, and the processes that a cage on one has."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from evalfleet.graders.cage import Cage
from evalfleet.graders.inside.sweep import children

CASES = Path(__file__).parent.parent / "cases"
CASE = {"id": "says", "user": ["What is the capital?"], "expect": [{"no_error": True}]}
RUN = {"final_answer": "Rome", "tool_calls": [{"name": "look"}], "error": None, "turns": 1, "duration_ms": 3}

needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="this wall exists on Linux only")


def make_tree(root: Path, **graders: str) -> Path:
    """A tree at `root` with `evals/graders/<name>.py` for each keyword."""
    folder = root / "evals" / "graders"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in graders.items():
        (folder / f"{name}.py").write_text(text)
    return root


def case_tree(root: Path, *names: str) -> Path:
    """A tree whose graders are the fault inputs `names` of tests/cases, e.g. "F01" or "F06/json"."""
    folder = make_tree(root) / "evals" / "graders"
    for name in names:
        shutil.copyfile(CASES / f"{name}.py", folder / (name.rpartition("/")[2] + ".py"))
    return root


def processes_of(*words: str) -> set[int]:
    """Living processes that carry one of `words` in their command line or environment (Linux)."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            seen = (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            seen += (entry / "environ").read_bytes()
        except PermissionError:
            pass
        except OSError:
            continue
        if state != "Z" and any(word.encode() in seen for word in words):
            found.add(int(entry.name))
    return found


def at_rest(cage: Cage, *words: str) -> bool:
    """Whether nothing is there but what a cage has between its calls: its zygote, its keepers, and with each keeper the
    one process that waits for the next call. `words` find strays beside those that carry its scratch folder's name."""
    zygotes = [cage.pid]
    if cage.cages.pid_namespace:
        zygotes += children(cage.pid)
    keepers = children(zygotes[-1])
    waiting = [children(keeper) for keeper in keepers]
    expected = {*zygotes, *keepers, *(pid for pids in waiting for pid in pids)}
    return all(len(pids) == 1 for pids in waiting) and processes_of(str(cage._scratch), *words) == expected


async def eventually(happened: Callable[[], bool], seconds: float = 15.0) -> bool:
    """Wait for something in another process that sends no event; False after `seconds`."""
    async with asyncio.timeout(seconds + 5):
        for _ in range(int(seconds / 0.02)):
            if happened():
                return True
            await asyncio.sleep(0.02)
    return happened()
