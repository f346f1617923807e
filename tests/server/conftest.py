"""A real server for each test: our app on uvicorn at a loopback port, a SQLite file, and an agent that is scripted.

`tests/integration/test_postgres_server.py` runs the same tests on Postgres, by putting another `database_in` in place.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from evalfleet.harnesswatch import watched_version
from evalfleet.server.driving import Call, Ended, Sink, Turn
from evalfleet.server.process import Server, Stack, listen, open_stack, url_of, uvicorn_config
from evalfleet.server.trees import ServedTree
from evalfleet.treeconfig import CommandHarness, HarnessConfig, JudgeConfig, TreeConfig

COMMIT = "371758ecf28e8240192e4731080a7436fb492a09"
OTHER_COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "token-of-the-tests"
OTHER_TOKEN = "token-of-somebody-else"
ACCOUNTS = {TOKEN: "main", OTHER_TOKEN: "other"}
TIMEOUT = 20.0

Script = Callable[[Turn, Sink], Awaitable[Ended]]


async def echo(turn: Turn, sink: Sink) -> Ended:
    """The agent that most tests talk to: one tool call, one hook, some usage, and the message back."""
    await sink.tool_calls([Call("c1", "echo", {"text": turn.message})])
    await sink.tool_result("c1", turn.message)
    await sink.hook("tools.before", "answered", "hooks/tools.py", 1.5)
    await sink.usage(input_tokens=10, output_tokens=5, amount="0.0010")
    await sink.answer(f"{turn.turn}: {turn.message}")
    return Ended()


class ScriptedDriver:
    """A driver whose agent is a Python function of the test. It counts its calls and its ends."""

    def __init__(self, script: Script = echo) -> None:
        self.script = script
        self.turns: list[Turn] = []
        self.cancelled = 0
        self.closed = False
        self.now = 0
        self.most = 0

    async def run(self, turn: Turn, sink: Sink) -> Ended:
        self.turns.append(turn)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await self.script(turn, sink)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1

    async def aclose(self) -> None:
        self.closed = True

    def check(self) -> None:
        pass


@dataclass
class Api:
    """A client of the server under test, and the parts behind it."""

    http: httpx.AsyncClient
    url: str
    stack: Stack
    driver: ScriptedDriver
    harness_id: str
    keys: int = field(default=0)

    def key(self) -> dict[str, str]:
        self.keys += 1
        return {"Idempotency-Key": f"key-{id(self)}-{self.keys}"}

    async def create(self, text: str = "hello", **more: Any) -> dict[str, Any]:
        """Create a run and answer its document."""
        answer = await self.http.post("/v2/runs", json=run_body(self.harness_id, text, **more), headers=self.key())
        assert answer.status_code == 201, answer.text
        return cast(dict[str, Any], answer.json())

    async def get(self, path: str, **params: Any) -> dict[str, Any]:
        answer = await self.http.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return cast(dict[str, Any], answer.json())

    async def stream(self, run_id: str, **headers: str) -> list[dict[str, Any]]:
        """The run's events from its SSE stream, to its end."""
        return await read_stream(self.http, run_id, **headers)

    async def play(self, text: str = "hello", **more: Any) -> dict[str, Any]:
        """Create a run and wait for its end."""
        run = await self.create(text, **more)
        await self.stream(run["id"])
        return await self.get(f"/v2/runs/{run['id']}")


async def read_stream(http: httpx.AsyncClient, run_id: str, **headers: str) -> list[dict[str, Any]]:
    async with http.stream(
        "GET", f"/v2/runs/{run_id}/events", headers={"Accept": "text/event-stream", **headers}
    ) as answer:
        assert answer.status_code == 200, await answer.aread()
        lines = [line async for line in answer.aiter_lines()]
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def run_body(harness_id: str, text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"harness_id": harness_id, "input": {"role": "user", "content": [{"type": "text", "text": text}]}, **more}


def database_in(folder: Path) -> str:
    """The database of the server whose tree is `folder`."""
    return f"sqlite:///{folder / 'server.sqlite3'}"


def served_tree(
    folder: Path,
    driver: ScriptedDriver,
    *,
    commit: str = COMMIT,
    name: str = "concierge",
    judge: JudgeConfig | None = None,
    watched: bool = False,
) -> ServedTree:
    config = TreeConfig(root=folder, harness=HarnessConfig(name, CommandHarness(("agent",))), judge=judge)
    return ServedTree(config, name, commit, driver, watched_version(config)[1] if watched else None)


@contextlib.asynccontextmanager
async def serving(
    folder: Path,
    driver: ScriptedDriver,
    *,
    commit: str = COMMIT,
    agents: int = 256,
    name: str = "concierge",
    judge: JudgeConfig | None = None,
    database: str | None = None,
    accounts: Mapping[str, str] = ACCOUNTS,
    watched: bool = False,
    others: Sequence[ServedTree] = (),
    tree: ServedTree | None = None,
) -> AsyncIterator[Api]:
    """A server over `folder` and its database, and a client with the first account's token. `watched`: it looks whether
    the harness is still what it was (S33); `others`: trees that it serves beside; `tree`: what it serves instead, by
    its own driver."""
    if tree is None:
        (folder / "agent.py").write_text("print('hi')\n", encoding="utf-8")
        tree = served_tree(folder, driver, commit=commit, name=name, judge=judge, watched=watched)
    stack = await open_stack(database or database_in(folder), [tree, *others], accounts=accounts, agents=agents)
    listener = listen("127.0.0.1", 0)
    server = Server(uvicorn_config(stack.app))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await asyncio.wait_for(server.accepting.wait(), TIMEOUT)
    url = url_of(listener)
    try:
        async with httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=TIMEOUT,
            verify=False,  # plain http: reading the certificates of this machine would be most of a test's time
        ) as http:
            yield Api(http, url, stack, driver, stack.harness_ids[tree.name])
    finally:
        await stack.stop(server)
        task.cancel()  # uvicorn's own way out takes a tenth of a second; test_process.py goes it
        await asyncio.wait({task})
        await stack.aclose()
        listener.close()


@pytest.fixture
def driver() -> ScriptedDriver:
    return ScriptedDriver()


@pytest.fixture
async def api(tmp_path: Path, driver: ScriptedDriver) -> AsyncIterator[Api]:
    async with serving(tmp_path, driver) as served:
        yield served


def assert_problem(answer: httpx.Response, status: int, code: str, *pointers: str) -> dict[str, Any]:
    """The one shape of every error: an RFC 9457 document, with these names in `errors[]`."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = cast(dict[str, Any], answer.json())
    assert document["code"] == code
    assert document["type"] == f"https://api.splox.com/problems/{code}"
    assert document["status"] == status
    assert document["title"]
    assert document["detail"]
    assert "Traceback" not in answer.text
    names = [entry["name"] for entry in document.get("errors", [])]
    for pointer in pointers:
        assert pointer in names, document
    for entry in document.get("errors", []):
        assert set(entry) == {"name", "location", "reason", "code"}
    return document


def types_of(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]
