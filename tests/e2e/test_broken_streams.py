"""S12, S17: whatever shape a run's event stream takes, its verdict is that of the whole journal, or there is none.

A fault server stands between the worker and a real server: the embedded one of a laptop, and one behind `--target`.
Each shape is a conversation of its own, all in one evaluation; what a shape loses is the hook that its check is about.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evalfleet.broken_streams import SHAPES, broken, lacking
from evalfleet.testing import FaultServer, Scripted, SeenRequest, Send, Stall, forward, page, stream
from tests.e2e.command import Command, Finished, await_true
from tests.e2e.conftest import Tree
from tests.e2e.test_target_down import TOKEN, harness_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

AGENT = """
import json, sys, time
message = json.load(sys.stdin)["message"]
print(json.dumps({"type": "hook", "hook": "tools.before", "decision": "deny", "source": "hooks/a.py"}), flush=True)
while message == "for ever":
    time.sleep(60)
print(json.dumps({"type": "answer", "text": "denied"}))
"""
QUIET = ("is heartbeats alone", "says nothing")
HOLE, FOR_EVER = "lacks an event for good", "is heartbeats alone, and the agent never ends"

LAUNCHER = """
import sys
from pathlib import Path
from scheduler import embedded, programs
from scheduler.cli import main
upstream, url = sys.argv.pop(1), sys.argv.pop(1)
def behind(setup):
    Path(upstream).write_text(f"http://127.0.0.1:{setup.port}")
    return ["env", f"EVALFLEET_BASE_URL={url}", *programs.worker_command(setup)]
embedded.Programs = lambda: programs.Programs(worker=behind)
main()
"""
"""`evalfleet`, whose worker finds its embedded server behind a fault server."""


class Between:
    """What the fault server does: it breaks the first connections to each run's stream by the run's scenario, and takes
    an event from both where that is the scenario. `met`: connections that were broken, by shape."""

    def __init__(self, upstream: Path) -> None:
        self.upstream = upstream
        self.shapes: dict[str, str] = {}
        self.left: dict[str, list[Scripted]] = {}
        self.met: Counter[str] = Counter()

    async def __call__(self, request: SeenRequest) -> Scripted:
        url = self.upstream.read_text().strip()
        parts = request.path.strip("/").split("/")
        if (request.method, request.path) == ("POST", "/v2/runs"):
            answer = await forward(request, url)
            self.shapes[_json(answer)["id"]] = request.json()["metadata"]["evalfleet.scenario"]
            return answer
        shape = self.shapes.get(parts[2], "") if parts[-1] == "events" else ""
        if not shape:
            return await forward(request, url)
        run = parts[2]
        if request.headers["accept"] != "text/event-stream":
            return await self._page(request, shape, url)
        if run not in self.left:
            self.left[run] = await self._answers(request, shape, url)
        if not self.left[run]:
            return await forward(request, url)
        self.met[shape] += 1
        return self.left[run].pop(0)

    async def _answers(self, request: SeenRequest, shape: str, url: str) -> list[Scripted]:
        if shape == FOR_EVER:
            return [stream(*[Send(b":hb\n\n")] * 10, Stall()) for _ in range(9)]
        body = _body(await forward(request, url)).decode()
        events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: ")]
        return [stream(*lacking(events)) for _ in range(99)] if shape == HOLE else list(broken(shape, events))

    async def _page(self, request: SeenRequest, shape: str, url: str) -> Scripted:
        plain = {name: value for name, value in request.headers.items() if name != "accept-encoding"}
        answer = await forward(dataclasses.replace(request, headers=plain), url)
        if shape != HOLE:
            return answer
        whole = _json(answer)
        rows = [row for row in whole["data"] if row["type"] != "hook.called"]
        return page(rows, whole["page"]["next_cursor"], has_more=whole["page"]["has_more"])


def _body(answer: Scripted) -> bytes:
    return b"".join(step.data for step in answer.steps if isinstance(step, Send))


def _json(answer: Scripted) -> Any:
    return json.loads(_body(answer))


def cases(tree: Tree, shapes: Sequence[str]) -> None:
    (tree.root / "agent.py").write_text(AGENT)
    expect = "[{hook_called: {name: tools.before, decision: deny}}, {final_answer_contains: denied}]"
    for number, shape in enumerate(shapes):
        # A stream that says nothing has its run asked after its limit at the latest: so that one is short.
        more = {FOR_EVER: "4s", **dict.fromkeys(QUIET, "7s")}.get(shape, "120s")
        said = "for ever" if shape == FOR_EVER else "go"
        tree.case(
            f"c{number}",
            f'scenarios: [{{id: "{shape}", user: {said}, timeout: {more}, expect: {expect}}}]\n',
        )


def found(done: Finished) -> dict[str, str]:
    outcomes = ("passed", "failed", "errors", "missing")
    return {s["scenario"]: next(name for name in outcomes if s[name]) for s in done.document()["scenarios"]}


async def test_on_a_laptop_no_shape_of_a_broken_stream_changes_a_verdict(tree: Tree, tmp_path: Path) -> None:
    shapes = [*SHAPES, HOLE, FOR_EVER]
    cases(tree, shapes)
    between = Between(tmp_path / "upstream")
    async with FaultServer(fallback=between) as server:
        program = ("-c", LAUNCHER, str(between.upstream), server.url)
        with tree.start("eval", "--json", "-j", "12", program=program) as evaluation:
            done = await asyncio.to_thread(evaluation.wait, 150)
    wanted = {**dict.fromkeys(SHAPES, "passed"), HOLE: "missing", FOR_EVER: "errors"}
    assert found(done.check(1)) == wanted
    assert set(between.met) == set(shapes)
    lines = {line["scenario"]: line for line in tree.lines()}
    assert "event 4 is missing" in lines[HOLE]["reason"]
    assert lines[HOLE]["code"] == "journal_hole"
    assert len(lines[HOLE]["tries"]) == 3, "it is tried again, and then missing (S14, S17)"
    assert lines[FOR_EVER]["reason"].startswith("timed out: ")
    assert lines[FOR_EVER]["trial_record"]["duration_ms"] < 60_000, "the limit holds whatever the stream says"


async def test_through_a_target_no_shape_of_a_broken_stream_changes_a_verdict(
    tree: Tree, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shapes = [shape for shape in SHAPES if shape not in QUIET]
    assert len(shapes) >= 12
    cases(tree, shapes)
    elsewhere = tmp_path_factory.mktemp("platform")
    ready = elsewhere / "url"
    arguments = ("--tree", str(tree.root), "--port", "0", "--state", str(elsewhere), "--ready-file", str(ready))
    between = Between(ready)
    with Command("server", *arguments, home=tree.root, environment={"EVALFLEET_TOKEN": TOKEN}) as platform:
        await asyncio.to_thread(await_true, ready.exists, "the platform is up")
        harness = harness_of(ready.read_text().strip())
        async with FaultServer(fallback=between) as server:
            tree.configure(f'[target]\nbase_url = "{server.url}"\nharness_id = "{harness}"\n')
            with tree.start(
                "eval", "--target", "--json", "-j", "12", environment={"SPLOX_API_KEY": TOKEN}
            ) as evaluation:
                done = await asyncio.to_thread(evaluation.wait, 150)
        platform.signal(15)
        platform.wait(30)
    assert found(done.check(0)) == dict.fromkeys(shapes, "passed")
    assert set(between.met) == set(shapes)
