"""What does an attempt cost the server, and what does a batch cost when much is recorded already?

    python -m benchmarks.server [--database URL] [--attempts 3000] [--concurrency 32]

An attempt: create a run, follow its stream of 16 events to the end, read the run, its messages and its usage, and its
share of a batch of 50. The agent is a coroutine of the server's process that costs next to nothing. `--database`: an
empty one (default: SQLite in a new folder). CPU is that of the server's process alone, so "attempts/s of one core" says
what a core that the server has for itself would do; wall time is shared with clients and database. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp

from evalfleet.server.driving import Call, Ended, Sink, Turn
from evalfleet.server.process import Server, listen, open_stack, url_of, uvicorn_config
from evalfleet.server.trees import ServedTree
from evalfleet.treeconfig import HarnessConfig, TreeConfig

COMMIT = "371758ecf28e8240192e4731080a7436fb492a09"
TOKEN = "token-of-the-benchmark"
TICKS = os.sysconf("SC_CLK_TCK")
BATCH = 50
CASES, K = 2000, 100
MEASURED = 1000
"""Attempts in a measured batch."""
REPEATED = 5
"""Measured batches, of which the median is told."""


# -- the server


class Agent:
    """Two hooks, three tool calls, usage twice, an answer: with the run's own entries 16 events."""

    async def run(self, turn: Turn, sink: Sink) -> Ended:
        await sink.hook("tools.before", "answered", "hooks/tools.py", 1.5)
        for number in range(3):
            await sink.tool_calls([Call(f"c{number}", "files__read", {"path": f"src/{number}.py"})])
            await sink.tool_result(f"c{number}", "x" * 400)
        await sink.hook("tools.after", "answered", "hooks/tools.py", 1.5)
        await sink.usage(input_tokens=900, output_tokens=100, amount="0.0010")
        await sink.usage(input_tokens=1200, output_tokens=80, amount="0.0012")
        await sink.answer(f"{turn.message}: done")
        return Ended()

    async def aclose(self) -> None:
        pass

    def check(self) -> None:
        pass


async def serve(database: str, folder: Path) -> None:
    """Until killed. The first line says where."""
    (folder / "agent.py").touch()
    tree = ServedTree(TreeConfig(root=folder, harness=HarnessConfig("bench")), "bench", COMMIT, Agent())
    stack = await open_stack(database, [tree], accounts={TOKEN: "main"})
    listener = listen("127.0.0.1", 0)
    print(json.dumps({"url": url_of(listener), "harness_id": stack.harness_ids["bench"]}), flush=True)
    await Server(uvicorn_config(stack.app)).serve(sockets=[listener])


# -- its clients


class Bench:
    """One server under measurement."""

    def __init__(self, http: aiohttp.ClientSession, pid: int, harness_id: str) -> None:
        self.http = http
        self.pid = pid
        self.harness_id = harness_id

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        async with self.http.request(method, path, json=body, headers=headers) as answer:
            if answer.status >= 400:
                raise SystemExit(f"{method} {path}: {answer.status} {await answer.text()}")
            return await answer.json()

    async def evaluation(self, cases: int, k: int) -> str:
        body = {"harness_id": self.harness_id, "suite": {"key": "bench"}, "k": k}
        body["cases"] = [{"key": f"c{number}", "input": "x" * 200} for number in range(cases)]
        made = await self.call("POST", "/v2/evaluations", body, **{"Idempotency-Key": str(uuid4())})
        return f"/v2/evaluations/{made['id']}"

    async def record(self, path: str, attempts: list[dict[str, Any]]) -> None:
        await self.call("POST", f"{path}/attempts:batch", {"attempts": attempts})

    async def play(self) -> str:
        """A run from its creation to the last read of it."""
        content = [{"type": "text", "text": "hello"}]
        body = {"harness_id": self.harness_id, "input": {"role": "user", "content": content}}
        run = await self.call("POST", "/v2/runs", body, **{"Idempotency-Key": str(uuid4())})
        path = f"/v2/runs/{run['id']}"
        async with self.http.get(f"{path}/events", headers={"Accept": "text/event-stream"}) as stream:
            events = (await stream.read()).count(b"\nevent: ")
        if events != 16:
            raise SystemExit(f"{events} events, not 16")
        for what in ("", "/messages", "/usage"):
            await self.call("GET", path + what)
        return str(run["id"])


def attempt(place: int, run_id: str) -> dict[str, Any]:
    return {
        "case_key": f"c{place // K}", "attempt_index": place % K, "run_id": run_id, "verdict": "passed",
        "judge_score": "0.75", "scorer_id": "bench", "scorer_version": "1",
    }  # fmt: skip


async def measure_attempts(bench: Bench, count: int, concurrency: int) -> list[str]:
    """The cost of an attempt; the runs."""
    path = await bench.evaluation(CASES, K)
    runs: list[str] = []
    places = iter(range(count))

    async def client() -> None:
        mine: list[dict[str, Any]] = []
        for place in places:
            runs.append(await bench.play())
            mine.append(attempt(place, runs[-1]))
            if len(mine) == BATCH:
                await bench.record(path, mine)
                mine = []
        if mine:
            await bench.record(path, mine)

    cpu, began = bench.cpu(), time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    cpu, wall = bench.cpu() - cpu, time.perf_counter() - began
    print(
        f"attempt: {1000 * cpu / count:.1f} ms CPU = {count / cpu:.0f} attempts/s of one core; "
        f"here {count / wall:.0f} attempts/s"
    )
    return runs


async def measure_batches(bench: Bench, runs: list[str]) -> None:
    """The cost of a batch by how many attempts are recorded already; of the end; and of all in one batch."""
    path = await bench.evaluation(CASES, K)
    places = iter(range(CASES * K))

    def following(count: int) -> list[dict[str, Any]]:
        return [attempt(place, runs[0]) for place in itertools.islice(places, count)]

    recorded = 0
    for wanted in (1_000, CASES * K - REPEATED * MEASURED):
        while recorded < wanted:
            count = min(20_000, wanted - recorded)
            await bench.record(path, following(count))
            recorded += count
        costs = []
        for _ in range(REPEATED):
            batch, cpu = following(MEASURED), bench.cpu()
            await bench.record(path, batch)
            costs.append(bench.cpu() - cpu)
        print(f"batch of {MEASURED} at {recorded} recorded: {statistics.median(costs):.2f} s CPU (of {REPEATED})")
        recorded += REPEATED * MEASURED
    cpu = bench.cpu()
    await bench.call("POST", f"{path}/complete")
    print(f"complete at {recorded}: {bench.cpu() - cpu:.2f} s CPU")
    path = await bench.evaluation(CASES, K)
    whole = [attempt(place, runs[place % len(runs)]) for place in range(CASES * K)]
    cpu = bench.cpu()
    await bench.record(path, whole)
    print(f"one batch of {CASES * K}: {bench.cpu() - cpu:.2f} s CPU")


@contextlib.contextmanager
def server(database: str, folder: Path) -> Iterator[tuple[int, dict[str, str]]]:
    command = [sys.executable, "-m", "benchmarks.server", "--serve", str(folder), "--database", database]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.pid, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


@contextlib.asynccontextmanager
async def client(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    limits = aiohttp.TCPConnector(limit=0)
    waits = aiohttp.ClientTimeout(total=600)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(url, connector=limits, timeout=waits, headers=headers) as http:
        yield http


async def measure(database: str, folder: Path, count: int, concurrency: int) -> None:
    with server(database, folder) as (pid, where):
        async with client(where["url"]) as http:
            bench = Bench(http, pid, where["harness_id"])
            await asyncio.gather(*(bench.play() for _ in range(concurrency)))  # warm
            await measure_batches(bench, await measure_attempts(bench, count, concurrency))


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of an attempt and of a batch.")
    parser.add_argument("--database", help="an empty database; default: SQLite in a new folder")
    parser.add_argument("--attempts", type=int, default=3000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(options.database, options.serve))
        return
    with tempfile.TemporaryDirectory(prefix="evalfleet-bench-") as folder:
        database = options.database or f"sqlite:///{folder}/server.sqlite3"
        print("SQLite" if database.startswith("sqlite") else "Postgres")
        asyncio.run(measure(database, Path(folder), options.attempts, options.concurrency))


if __name__ == "__main__":
    main()
