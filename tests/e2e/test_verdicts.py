"""No false verdict: what an agent really prints, through our server and a worker, to the line that a person reads."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest

from tests.e2e.conftest import Tree

pytestmark = pytest.mark.e2e

AGENT = """
import json, sys
turn = json.load(sys.stdin)
trial, attempt = turn["metadata"]["evalfleet.trial"], turn["metadata"]["evalfleet.try"]

def say(kind, **more):
    print(json.dumps({"type": kind, **more}), flush=True)

def call(name):
    return {"id": "1", "name": name, "args": {}}

if turn["message"] == "stray print":
    print("Loading the model", flush=True)
match turn["message"]:
    case "one id for all":
        say("tool_call", **call("ls"))
        say("tool_result", id="1", output="a.txt")
        say("tool_call", **call("rm"))
        say("tool_result", id="1", output="gone")
    case "at once":
        say("tool_calls", calls=[call("read"), call("write")])
    case "flaky":
        if trial < 2:
            say("error", message="busy", code="model_busy", retryable=True)
    case "infrastructure":
        say("usage", input_tokens=10, amount="0.02" if attempt else "0.01")
        if not attempt:
            say("error", message="away", code="upstream_unavailable")
    case "crash":
        say("answer", text="hello")
        sys.exit(3)
say("answer", text="hello")
"""
CASES = {
    "ids": """scenarios:
  - {id: hidden, user: one id for all, expect: [tool_not_called: {name: rm}]}
  - {id: counted, user: one id for all, expect: [
      tool_called: {name: rm}, max_tool_calls: {name: rm, count: 1}, min_tool_calls: {name: ls, count: 1},
      tool_order: {first: ls, then: rm}, result_contains: {name: ls, substring: a.txt},
      result_contains: {name: rm, substring: gone}]}
""",
    "order": "scenarios: [{id: at-once, user: at once, expect: [tool_order: {first: read, then: write}]}]\n",
    "flaky": "scenarios: [{id: own, user: flaky, trials: 3, expect: [no_error: true]}]\n",
    "infra": "scenarios: [{id: away, user: infrastructure, expect: [no_error: true]}]\n",
    "crash": "scenarios: [{id: green, user: crash, expect: [final_answer_contains: hello]}]\n",
    "stray": "scenarios: [{id: read, user: stray print, expect: [final_answer_contains: hello]}]\n",
    "graded": """scenarios:
  - {id: decided, user: hi, expect: [grader: {name: broken.one}, final_answer_contains: Paris]}
  - {id: crashed, user: crash, expect: [final_answer_contains: hello, grader: {name: broken.one}]}
  - {id: ours, user: hi, expect: [grader: {name: own.said}]}
""",
}


def amounts(tree: Tree) -> list[Any]:
    """What the server's evaluations say they cost, in the order they were created."""
    with sqlite3.connect(f"file:{tree.root}/.evalfleet/server.sqlite3?mode=ro", uri=True) as database:
        rows = database.execute("select k, metrics from evaluations order by k").fetchall()
    return [(k, json.loads(metrics)["amount"], json.loads(metrics)["tokens"]) for k, metrics in rows]


def test_s11_s17_s21_s23_what_an_agent_did_decides_and_nothing_hides_it(tree: Tree) -> None:
    (tree.root / "agent.py").write_text(AGENT)
    tree.grader("broken", "def one(t, case, run):\n    raise ValueError('cannot read it')\n")
    tree.grader("own", "from worker.rules import says\n\ndef said(t, case, run):\n    return says(run)\n")
    tree.configure('[graders]\nfiles = ["worker/**"]')
    (tree.root / "worker").mkdir()
    (tree.root / "worker/rules.py").write_text("def says(run):\n    return run['final_answer'] == 'hello'\n")
    for name, text in CASES.items():
        tree.case(name, text)
    done = tree.run("eval", "--json").check(1).document()
    rows = {f"{row['case']}/{row['scenario']}": row for row in done["scenarios"]}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "ids/hidden": "fail",
        "ids/counted": "pass",
        "order/at-once": "fail",
        "flaky/own": "flaky",
        "infra/away": "pass",
        "crash/green": "pass",
        "stray/read": "pass",
        "graded/decided": "fail",
        "graded/crashed": "fail",
        "graded/ours": "pass",
    }
    assert rows["ids/hidden"]["first_failure"] == '"rm" was called once, and it was not to be called'
    assert rows["order/at-once"]["first_failure"].endswith("were called in one message: neither is before the other")
    assert (rows["flaky/own"]["passed"], rows["flaky/own"]["failed"]) == (1, 2)
    assert rows["flaky/own"]["repeated_tries"] == {}, "the agent's own failure is a result at once"
    assert rows["infra/away"]["repeated_tries"] == {"upstream_unavailable": 1}
    assert {name: row["passed_with_failed_turn"] for name, row in rows.items()} == {
        name: int(name == "crash/green") for name in rows
    }
    decided, crashed = rows["graded/decided"], rows["graded/crashed"]
    assert (decided["failed"], decided["errors"]) == (1, 0)
    assert decided["first_failure"].startswith('the final answer does not contain "Paris"')
    assert (crashed["failed"], crashed["errors"]) == (0, 1)
    assert "cannot read it" in crashed["first_failure"]
    assert "(the run failed: agent_exit:" in crashed["first_failure"]
    assert (done["spend"]["amount"], done["spend"]["tokens"]) == ("0.03", 20), "every try was paid for"
    assert amounts(tree) == [(1, "0.03", 20), (3, "0", 0)], "on the server, too"
    notes = done["agent_notes"]
    assert (notes["trials"], notes["first"]["case"], notes["first"]["scenario"]) == (1, "stray", "read"), "item 22"
    assert notes["first"]["note"].endswith('line 1 starts with "Loading the model"')
    shown = tree.run("show").check(0).out
    assert "note (1 trial, first in stray/read): line 1 of the agent's output is no JSON object" in shown
    assert "the `answer` in line 2 was not read" in tree.run("show", "stray/read").out
    assert "1 try repeated (1 upstream_unavailable)" in shown
    assert "passed although a turn failed" in shown
