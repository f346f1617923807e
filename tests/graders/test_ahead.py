"""The process that waits for the next call: one with each keeper, behind its walls, with nothing of a call before."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evalfleet.graders.cage import Allowed, Cage, Ending, GraderSettings
from evalfleet.graders.inside import frames, keeper
from evalfleet.graders.inside.sweep import children
from tests.graders.trees import CASE, RUN, at_rest, eventually, make_tree, needs_linux, processes_of

BOTH: list[Allowed] = ["best", "plain"]
IT = """
import os, sys, tempfile, time

def yes(t, case, run):
    return True

def sleeps(t, case, run):
    time.sleep(600)

def length(t, case, run):
    return {"pass": True, "why": len(run["final_answer"])}

def leaves_its_mark(t, case, run):
    open(os.path.join(tempfile.gettempdir(), "mark"), "w").close()
    os.environ["MARKED"] = sys.modules["marked"] = "yes"
    os.chmod(tempfile.gettempdir(), 0o555)
    return True

def sees(t, case, run):
    folder = tempfile.gettempdir()
    mode = os.stat(folder).st_mode & 0o777
    return {"pass": True, "why": (os.listdir(folder), mode, "MARKED" in os.environ, "marked" in sys.modules)}
"""


def request(name: str, **run: object) -> dict[str, object]:
    return {"op": "grade", "file": "it", "function": name, "case": CASE, "run": {**RUN, **run}}


@asynccontextmanager
async def rested(root: Path, allowed: Allowed = "best", memory_mb: int = 1024) -> AsyncIterator[Cage]:
    """A cage that has had a call, and is at rest."""
    cage = await Cage.start(make_tree(root, it=IT), GraderSettings(memory_mb=memory_mb), allowed=allowed)
    try:
        await cage.call(request("yes"), limit=20)
        assert await eventually(lambda: at_rest(cage))
        yield cage
    finally:
        await cage.aclose()


def only_keeper(cage: Cage) -> int:
    [pid] = children(children(cage.pid)[0] if cage.cages.pid_namespace else cage.pid)
    return pid


def answer(ending: Ending) -> object:
    assert ending.end == "said", ending
    return ending.said["answer"]["why"] or ending.said["answer"]["pass"]


@needs_linux
@pytest.mark.parametrize("allowed", BOTH)
async def test_each_keeper_has_one_waiting_and_no_call_sees_what_another_left(tmp_path: Path, allowed: Allowed) -> None:
    async with rested(tmp_path, allowed) as cage:
        fresh = "([], 448, False, False)"
        assert answer(await cage.call(request("sees"), limit=20)) == fresh
        for _ in range(3):
            assert answer(await cage.call(request("leaves_its_mark"), limit=20)) is True
            assert answer(await cage.call(request("sees"), limit=20)) == fresh
        await asyncio.gather(*(cage.call(request("yes"), limit=20) for _ in range(5)))
        assert await eventually(lambda: at_rest(cage))
        assert len(cage._idle) == 5
        assert len(list(cage._scratch.iterdir())) == 5


@needs_linux
@pytest.mark.parametrize("allowed", BOTH)
async def test_s24_the_time_of_a_call_begins_with_its_request(tmp_path: Path, allowed: Allowed) -> None:
    async with rested(tmp_path, allowed) as cage:
        await asyncio.sleep(1.2)  # longer than the limit of what comes
        begun = asyncio.get_running_loop().time()
        ending = await cage.call(request("sleeps"), limit=1.0)
        assert (ending.end, ending.ms >= 1000) == ("limit", True)
        assert asyncio.get_running_loop().time() - begun >= 1.0


@needs_linux
@pytest.mark.parametrize("allowed", BOTH)
async def test_one_that_was_killed_while_it_waited_is_nobodys_failure(tmp_path: Path, allowed: Allowed) -> None:
    async with rested(tmp_path, allowed) as cage:
        for _ in range(3):
            kept = only_keeper(cage)
            [waiting] = children(kept)
            os.kill(waiting, signal.SIGKILL)
            assert await eventually(lambda kept=kept: not children(kept))  # type: ignore[misc]
            assert answer(await cage.call(request("yes"), limit=20)) is True
            assert await eventually(lambda: at_rest(cage))


@needs_linux
@pytest.mark.parametrize("allowed", BOTH)
async def test_one_that_waits_goes_with_its_keeper(tmp_path: Path, allowed: Allowed) -> None:
    async with rested(tmp_path, allowed) as cage:
        cage._idle.pop().line.close()
        zygotes = 2 if cage.cages.pid_namespace else 1
        assert await eventually(lambda: len(processes_of(str(cage._scratch))) == zygotes)
        assert not list(cage._scratch.iterdir())
        assert answer(await cage.call(request("yes"), limit=20)) is True


@needs_linux
@pytest.mark.parametrize("allowed", BOTH)
async def test_closing_a_cage_at_rest_leaves_nothing(tmp_path: Path, allowed: Allowed) -> None:
    async with rested(tmp_path, allowed) as cage:
        await asyncio.gather(*(cage.call(request("yes"), limit=20) for _ in range(4)))
        await cage.aclose()  # while some of the next ones are being made
        assert await eventually(lambda: not processes_of(str(cage._scratch)))
        assert not cage._scratch.exists()


@needs_linux
@pytest.mark.parametrize("allowed", BOTH)
async def test_kill_9_of_a_worker_at_rest_leaves_nothing(tmp_path: Path, allowed: Allowed) -> None:
    root = make_tree(tmp_path, it=IT)
    program = f"""
        import asyncio, pathlib
        from evalfleet.graders.cage import Cage, GraderSettings
        async def main():
            cage = await Cage.start(pathlib.Path({str(root)!r}), GraderSettings(), allowed={allowed!r})
            calls = [cage.call({request("yes")!r}, limit=90) for _ in range(3)]
            await asyncio.gather(*calls)
            print(cage._scratch, flush=True)
            await asyncio.Event().wait()
        asyncio.run(main())
    """
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(program), stdout=subprocess.PIPE
    )
    assert worker.stdout is not None
    try:
        scratch = (await worker.stdout.readline()).decode().strip()
        assert await eventually(lambda: len(processes_of(scratch)) >= 1 + 3 * 2)
    finally:
        worker.kill()
        await worker.wait()
    worker._transport.close()  # type: ignore[attr-defined]
    assert await eventually(lambda: not processes_of(scratch))
    assert not await asyncio.to_thread(Path(scratch).exists)


@needs_linux
async def test_the_memory_limit_is_the_graders_and_not_that_of_reading_its_request(tmp_path: Path) -> None:
    large = "x" * (30 * 2**20)
    async with rested(tmp_path, memory_mb=96) as cage:
        assert answer(await cage.call(request("length", final_answer=large), limit=20)) == str(len(large))


def test_a_host_that_is_full_leaves_nothing_open_and_no_process_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    def make() -> keeper._Call:
        return keeper._Call(line, frames.FrameBuffer(1000), -1, str(tmp_path), {}, str(tmp_path / "scratch"))

    monkeypatch.setattr(os, "fork", full)
    line, theirs = socket.socketpair()
    with line, theirs:
        before = os.listdir("/proc/self/fd") if sys.platform.startswith("linux") else []
        assert keeper._ahead(make) is None
        with pytest.raises(BlockingIOError):  # with a request, it is told
            make()
        assert before == (os.listdir("/proc/self/fd") if sys.platform.startswith("linux") else [])
        assert not (tmp_path / "scratch").exists()
