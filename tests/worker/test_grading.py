"""A worker grades what a real server has played, with real graders and a judge on a socket: whose trouble a silent
judge is (S26 amended), what a grader sees of the tree (S28 amended), and what `t` knows (S27)."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

import evalfleet.server.drivers.openai  # noqa: F401 - else a judge's first call imports it in its grader's time
import worker.grading
from evalfleet.contract import jsontext
from evalfleet.graders.bundle import build_bundle
from evalfleet.graders.pool import GraderPool
from evalfleet.plan import Attempt, PlannedGraders
from evalfleet.treeconfig import JudgeConfig
from tests.server.conftest import ScriptedDriver, serving
from tests.worker.test_crew import Stage
from tests.worker.test_play import plan_of, well

pytestmark = pytest.mark.timeout(60)

CASE = "scenarios:\n  - {id: one, user: [a, b], expect: [grader: {name: g.NAME}]}\n"
GRADERS = """
import pathlib

def asks(t, case, run):
    try:
        return {"pass": True, "why": t.llm("?")}
    except BaseException:
        return False

def reads(t, case, run):
    root = pathlib.Path()
    seen = [(root / name).read_text() for name in ("agent.py", "evals/cases/c.yaml")]
    said = [f"{turn['role']}: {turn['text']}" for turn in t.history]
    try:
        (root / "agent.py").write_text("changed")
    except OSError:
        return {"pass": True, "why": repr((seen, said, t.run_id))}
"""
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await writer.wait_closed()


async def overloaded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"}")
    writer.write(
        b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 60\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy"
    )
    await reader.read()


async def closes(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    pass


@contextlib.asynccontextmanager
async def judge(answer: Answer) -> AsyncIterator[str]:
    """The address of a judge that answers so."""
    calls: set[asyncio.Task[None]] = set()

    async def call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        calls.add(task)
        try:
            await answer(reader, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(call, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


@contextlib.asynccontextmanager
async def staged(folder: Path, valkey: str, address: str, *, limit: float = 1.5) -> AsyncIterator[Stage]:
    with redis.Redis.from_url(valkey) as broker:
        broker.flushdb()
    async with serving(folder, ScriptedDriver(well), judge=JudgeConfig(address, "m")) as api:
        stage = Stage(api, valkey, folder)
        stage.crew.grading._pool = GraderPool(workers=1, limit_s=limit, llm_delay_s=0.05)
        stage.ledger.open_epoch(mine=True)
        await asyncio.to_thread(stage.crew.start)
        try:
            yield stage
        finally:
            await asyncio.to_thread(stage.crew.stop)


async def play(stage: Stage, folder: Path, name: str, address: str, *, more: str = "") -> None:
    """One attempt of a scenario that the grader is to judge."""
    tree = folder / "graded"
    for place, text in {"evals/graders/g.py": GRADERS + more, "evals/cases/c.yaml": CASE, "agent.py": "AGENT"}.items():
        (tree / place).parent.mkdir(parents=True, exist_ok=True)
        (tree / place).write_text(text)
    bundle = build_bundle(tree, [f"g.{name}"], [], harness=["agent.py"])
    graders = PlannedGraders(
        bundle.digest, None, (), network=False, memory_mb=512, judge=True, judge_address=address, asking=("g.asks",)
    )
    plan = plan_of(CASE.replace("NAME", name), stage.api.harness_id)
    stage.plan = replace(plan, graders=graders)
    stage.ledger.add(stage.plan, {})
    stage.ledger.put_graders(stage.plan.id, bundle.digest, lambda: bundle.data)
    await stage.run()
    assert stage.wire.grades.pop() == Attempt(0, 0, 0)


def record(stage: Stage) -> dict[str, Any]:
    """The line that the aggregator will write."""
    ((_attempt, blob),) = stage.ledger.records(stage.plan.id).items()
    line: dict[str, Any] = jsontext.loads(blob)
    return line


async def test_s26_a_judge_that_is_there_and_answers_nothing_is_recorded_as_an_error_that_names_it(
    tmp_path: Path, valkey: str
) -> None:
    """Item 6: it stayed missing for ever, and the sentence named our own server."""
    async with judge(silent) as address, staged(tmp_path, valkey, address) as stage:
        await play(stage, tmp_path, "asks", address)
        await stage.grade(Attempt(0, 0, 0))
        line = record(stage)
        assert line["outcome"] == "error"
        said = rf"g\.asks: ran over its 1\.5 s and was stopped; 1\.\d s of them it waited for the judge at {address}, "
        assert re.fullmatch(said + "which did not answer", line["reason"]), line["reason"]
        assert stage.api.url not in jsontext.dumps(line).decode()
        assert stage.gave_up() == {}


async def test_s26_a_judge_that_refuses_is_away_and_after_three_gradings_the_attempt_is_missing(
    tmp_path: Path, valkey: str
) -> None:
    """It says to come back in a minute, which is past the limit: so nothing is waited for."""
    async with judge(overloaded) as address, staged(tmp_path, valkey, address, limit=30) as stage:
        await play(stage, tmp_path, "asks", address)
        graded = 0
        again = [Attempt(0, 0, 0)]
        while again:
            await stage.grade(again.pop())
            again, stage.wire.grades = stage.wire.grades, []
            graded += 1
        assert graded == 3
        (given_up,) = stage.ledger.given_up(stage.plan.id).values()
        assert given_up["code"] == "judge_unavailable"
        assert given_up["reason"].startswith(f"judge_unavailable: g.asks: the judge: {address}/chat/completions ")
        assert stage.api.url not in given_up["reason"]


@pytest.mark.parametrize("answer", [closes, None], ids=["cut", "refused"])
async def test_s26_a_judge_that_cannot_be_reached_for_the_whole_limit_is_away(
    tmp_path: Path, valkey: str, answer: Answer | None
) -> None:
    """Its attempt is to be graded again, and meanwhile people read why."""
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(judge(answer or closes))
        if answer is None:
            await stack.aclose()  # nobody listens there any more
        stage = await stack.enter_async_context(staged(tmp_path, valkey, address, limit=4))
        await play(stage, tmp_path, "asks", address)
        await stage.grade(Attempt(0, 0, 0))
        assert stage.wire.grades == [Attempt(0, 0, 0)]
        meta = stage.ledger.meta(stage.plan.id)
        assert meta is not None
        assert meta.judge_trouble.startswith(f"judge_unavailable: g.asks: the judge: {address}/chat/completions ")


async def test_s27_s28_a_grader_reads_the_tree_that_it_judges_and_t_knows_the_run_and_its_turns(
    tmp_path: Path, valkey: str
) -> None:
    address = "http://127.0.0.1:9/v1"
    async with staged(tmp_path, valkey, address) as stage:
        await play(stage, tmp_path, "reads", address)
        await stage.grade(Attempt(0, 0, 0))
        line = record(stage)
        assert line["outcome"] == "passed", line["reason"]
        answers = [turn["answer"] for turn in line["trial_record"]["turns"]]
        said = ["user: a", f"assistant: {answers[0]}", "user: b", f"assistant: {answers[1]}"]
        assert line["graders"][0]["why"] == repr((["AGENT", CASE], said, line["run_id"]))


async def test_s28_copies_of_trees_that_nobody_uses_are_removed(
    tmp_path: Path, valkey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may be of 32 MiB and more, and a worker lives for months."""
    monkeypatch.setattr(worker.grading, "COPIES_KEPT", 1)
    address = "http://127.0.0.1:9/v1"
    async with staged(tmp_path, valkey, address) as stage:
        for more in ("# one\n", "# two\n", "# one\n"):
            await play(stage, tmp_path, "reads", address, more=more)
            await stage.grade(Attempt(0, 0, 0))
            assert record(stage)["outcome"] == "passed"
        grading = stage.crew.grading
        assert grading._folder is not None
        (kept,) = Path(grading._folder.name).iterdir()  # noqa: ASYNC240 - nothing else runs
        assert list(grading._bundles.values()) == [kept]
