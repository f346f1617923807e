"""The F cases twenty at once beside twenty honest graders: nobody waits for them, and nothing of them is left.

A grader's clock is its worker's (CLOCK_MONOTONIC), so an honest one answers with the moment at which its own work was
done, and the worker says how much later the verdict was there: no guess at how long the work takes on a busy machine.
What this machine adds by itself is measured first, with the same twenty alone.
"""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evalfleet.checks.outcome import GraderAnswer
from evalfleet.graders.cage import Allowed, Cage, GraderSettings
from evalfleet.graders.pool import GraderPool, LlmAnswer
from tests.graders.trees import CASE, CASES, RUN, at_rest, case_tree, eventually, make_tree, needs_linux, processes_of

pytestmark = [pytest.mark.e2e, needs_linux, pytest.mark.timeout(300)]

AT_ONCE = 20
LIMIT_S = 5.0
LATE_S = 1.0
MEMORY_MB = 128
"""Small, so that twenty graders that take all they get do not take the machine."""

HONEST = """
import hashlib, time
def works(t, case, run):
    digest = b""
    for _ in range(20):
        digest = hashlib.sha256(digest * 1000 + b"x").digest()
        time.sleep(0.02)
    return {"pass": True, "why": repr(time.monotonic())}
"""
WAITS = "def waits(t, case, run):\n    return bool(t.llm('is it right?'))\n"

ERROR, PASS, FAIL = ("error", None), ("answered", True), ("answered", False)
Verdict = tuple[str, bool | None]
CASES_AT_ONCE: dict[str, dict[str, set[Verdict]]] = {
    "F01": {"F01.hang": {ERROR}, "F01.leaves_child": {PASS}},
    "F02": {"F02.daemon": {PASS}},
    "F03": {"F03.noisy": {FAIL}, "F03.closes": {FAIL}},
    "F05": {"F05.stubborn": {ERROR}, "F05.regex": {ERROR}, "F05.own_alarm": {PASS}},
    "F06": {
        "json.answers": {PASS},
        "env.answers": {PASS},
        "slow.answers": {ERROR},
        "quit.answers": {ERROR},
        "syntax.answers": {ERROR},
    },
    "F07": {
        "F07.flood": {PASS, ERROR},  # drained in time or not
        "F07.stderr_flood": {PASS, ERROR},
        "F07.forever": {ERROR},
        "F07.big_why": {ERROR},  # 300 MB are more than its memory here
    },
    "F08": {"F08.blocks": {ERROR}, "F08.one_list": {ERROR}, "F08.files": {ERROR}},
    "F09": {"F09.plain": {ERROR}, "F09.crash": {ERROR}, "F09.bad_str": {ERROR}, "F09.long_msg": {ERROR}},
    "F12": {"F12.vandal": {PASS}, "F12.honest": {FAIL}},
    "F13": {
        "F13.thread": {PASS},
        "F13.at_exit": {PASS},
        "F13.asks": {ERROR},
        "F13.reads": {FAIL},
        "waits.waits": {ERROR},  # a judge that is there and answers nothing (S26)
    },
}


def tree_of(folder: Path, case: str) -> Path:
    """A tree with the graders of one case and the honest one; what F02 writes, it writes to `folder`/beats."""
    root = make_tree(folder / "tree", honest=HONEST, waits=WAITS)
    (folder / "beats").mkdir()
    names = [f"F06/{file.stem}" for file in (CASES / "F06").glob("*.py")] if case == "F06" else [case]
    case_tree(root, *names)
    file = root / "evals/graders/F02.py"
    if file.is_file():
        file.write_text(file.read_text().replace("/tmp/f02", f"{folder}/beats/f02"))
    return root


class Beside:
    """A pool with room for all of them; `grade` says the answer, and when it was there."""

    def __init__(self, root: Path, allowed: Allowed) -> None:
        self.root = root
        self.pool = GraderPool(workers=2 * AT_ONCE, limit_s=LIMIT_S, allowed=allowed)

    async def grade(self, name: str) -> tuple[GraderAnswer, float]:
        async def never(_prompt: str, _model: str | None, _seconds: float) -> LlmAnswer:
            await asyncio.Event().wait()
            raise AssertionError

        answer = await self.pool.grade(self.root, GraderSettings(memory_mb=MEMORY_MB), name, CASE, RUN, never)
        return answer, time.monotonic()

    async def lateness(self) -> list[float]:
        """Seconds from the end of each of twenty honest graders' work to its verdict."""
        graded = await asyncio.gather(*(self.grade("honest.works") for _ in range(AT_ONCE)))
        assert [answer.kind for answer, _ in graded] == ["answered"] * AT_ONCE, [answer.error for answer, _ in graded]
        return [there - float(answer.why or "") for answer, there in graded]

    @property
    def cage(self) -> Cage:
        (slot,) = self.pool._slots.values()
        assert slot.cage is not None
        return slot.cage

    @property
    def scratch(self) -> Path:
        return self.cage._scratch


@asynccontextmanager
async def beside(root: Path, allowed: Allowed) -> AsyncIterator[Beside]:
    made = Beside(root, allowed)
    try:
        yield made
    finally:
        await made.pool.aclose()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that everything of ours makes its temporary ones in."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("allowed", ["best", "plain"])
@pytest.mark.parametrize("case", list(CASES_AT_ONCE))
async def test_twenty_at_once_hold_up_no_honest_verdict_and_leave_nothing(
    tmp_path: Path, temporary: Path, case: str, allowed: Allowed
) -> None:
    root = tree_of(tmp_path, case)
    expected = CASES_AT_ONCE[case]
    names = [list(expected)[number % len(expected)] for number in range(AT_ONCE)]
    gc.collect()  # what another test has left open until now
    open_before = descriptors()
    async with beside(root, allowed) as pool:
        await pool.lateness()  # the zygote and its keepers are there from here on
        alone = max(await pool.lateness())
        memory_before = resident_mb()
        bad = [asyncio.create_task(pool.grade(name)) for name in names]
        late = max(await pool.lateness())
        answers = [answer for answer, _ in await asyncio.gather(*bad)]
        memory = resident_mb() - memory_before

        print(f"{case}, {allowed}: an honest verdict at most {late:.3f} s after its work; alone {alone:.3f} s")
        assert late <= LATE_S + 10 * alone
        for name, answer in zip(names, answers, strict=True):
            assert (answer.kind, answer.passed) in expected[name], (name, answer)
        assert memory < 64, f"{memory:.0f} MB more in the worker"
        assert await eventually(lambda: at_rest(pool.cage, str(root)))
        folders = list(pool.scratch.iterdir())
        assert len(folders) == len(pool.cage._idle), "a call's temporary folder goes with it: these are the next calls'"
        assert [list(folder.iterdir()) for folder in folders] == [[]] * len(folders)
        beats = {file: file.stat().st_size for file in (tmp_path / "beats").iterdir()}
        scratch = str(pool.scratch)
        await pool.lateness()
        assert {file: file.stat().st_size for file in (tmp_path / "beats").iterdir()} == beats
    assert await eventually(lambda: not processes_of(str(root), scratch))
    assert not os.listdir(temporary)
    assert descriptors() == open_before


async def test_after_many_rounds_the_worker_is_as_large_as_before(tmp_path: Path, temporary: Path) -> None:
    root = tree_of(tmp_path, "F07")
    flood = root / "evals/graders/F07.py"
    flood.write_text(flood.read_text().replace("200_000", "500"))  # 5 MB each: many rounds of them
    case_tree(root, "F03", "F09", "F12")
    names = ["F03.noisy", "F07.flood", "F09.plain", "F12.vandal", "honest.works"]
    sizes = []
    async with beside(root, "best") as pool:
        for _ in range(8):
            await asyncio.gather(*(pool.grade(name) for name in names * 4))
            assert await eventually(lambda: at_rest(pool.cage))
            sizes.append((resident_mb(), descriptors(), len(processes_of(str(pool.scratch)))))
    settled, last = sizes[2], sizes[-1]
    assert last[0] - settled[0] < 8, sizes
    assert last[1:] <= settled[1:], sizes
    assert not os.listdir(temporary)
