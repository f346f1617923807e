"""B14: Ctrl-C in the middle keeps what is finished, and the same command goes on from there (S34, S38)."""

from __future__ import annotations

import signal

import pytest

from tests.e2e.command import await_true
from tests.e2e.conftest import Tree

pytestmark = pytest.mark.e2e

TWICE = (
    "defaults: {trials: 2}\nscenarios:\n  - {id: ok, user: sleep 0.7 hello, expect: [{final_answer_contains: hello}]}\n"
)


def finished(tree: Tree) -> int:
    return sum(1 for call in tree.calls() if call[1] == "end")


def test_b14_a_signal_keeps_what_is_finished_and_the_same_command_runs_the_rest(tree: Tree) -> None:
    """Six cases twice, two at once; Ctrl-C comes after two runs, then SIGTERM after two more. In-flight runs end by
    themselves within their 10 s and are recorded; nothing is paid for again."""
    for name in "abcdef":
        tree.case(name, TWICE)
    submission = ""
    calls = 0
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        with tree.start("eval", "-j", "2") as command:
            command.await_true(lambda calls=calls: finished(tree) >= calls + 2, "two runs end")  # type: ignore[misc]
            command.signal(number)
            done = command.wait(within=30).check(code, "interrupted", "evalfleet resume sub_", "evalfleet cancel sub_")
        await_true(tree.is_quiet, "nothing is left running", within=5)
        assert tree.started() == finished(tree), "a run was cut off although it had time to end"
        assert calls + 2 <= tree.started() <= calls + 4, "new runs were started after the signal"
        calls = tree.started()
        summary = tree.summary()
        assert (summary["verdict"], summary["exit_code"]) == ("incomplete", code)
        assert sum(s["passed"] for s in summary["scenarios"]) == calls
        assert f"incomplete: {12 - calls} of 12 attempts missing" in done.err
        assert submission in ("", summary["submission"])
        submission = summary["submission"]

    again = tree.run("eval", "-j", "2").check(0, "6 scenarios: 6 pass")
    assert "resuming sub_" in again.err
    assert f"{calls} of 12 recorded; --fresh starts over" in again.err
    assert tree.started() == 12
    assert tree.summary()["submission"] == submission
    assert len(tree.lines()) == 12
    assert len({line["run_id"] for line in tree.lines()}) == 12


def test_b14_a_second_ctrl_c_leaves_at_once(tree: Tree) -> None:
    """An agent that does not end by itself: the first signal waits for it, the second does not. It is cancelled, not
    left to itself, and its attempt stays missing."""
    tree.case("slow", "scenarios:\n  - {id: never, user: for ever, expect: [{no_error: true}]}\n")
    tree.case("fast", "scenarios:\n  - {id: ok, user: say hello, expect: [{final_answer_contains: hello}]}\n")
    with tree.start("eval") as command:
        command.await_true(lambda: tree.started() == 2 and finished(tree) == 1, "both are called, one answered")
        command.await_true(
            lambda: (tree.artifact() / "trials/000001.jsonl").exists(), "the finished one is in evidence"
        )
        command.signal(signal.SIGINT)
        command.await_line("again to leave at once")
        command.signal(signal.SIGINT)
        done = command.wait(within=20).check(130, "slow/never  trial 1")
    await_true(tree.is_quiet, "the agent is cancelled", within=6)
    assert "fast  ok     PASS" in done.out
    found = {s["case"]: (s["verdict"], s["missing"]) for s in tree.summary()["scenarios"]}
    assert found == {"fast": ("pass", 0), "slow": ("incomplete", 1)}
    tree.run("cancel", tree.summary()["submission"]).check(0, "is cancelled; 1 recorded attempt")
    tree.run("list").check(0, "cancelled")
    tree.run("resume", tree.summary()["submission"]).check(3, "is cancelled", "nothing was run")


PAID = """
import json, os, sys, time
turn = json.load(sys.stdin)
print(json.dumps({"type": "usage", "input_tokens": 3, "output_tokens": 2, "amount": "0.01"}), flush=True)
open(os.environ["COUNT_FILE"], "a").write(json.dumps([0, "start", turn["chat_id"], turn["message"]]) + "\\n")
while turn["message"] == "wait" and not os.path.exists("go"):
    time.sleep(0.05)
print(json.dumps({"type": "answer", "text": turn["message"]}))
"""


def test_after_ctrl_c_the_spend_of_what_was_played_is_there_and_a_resume_counts_no_chat_twice(tree: Tree) -> None:
    """Usage is a conversation's, and read after its last turn (S15); one that Ctrl-C ends before has its spend too."""
    (tree.root / "agent.py").write_text(PAID)
    expect = "expect: [{no_error: true}]"
    scenarios = [
        f"  - {{id: {name}, user: {words}, {expect}}}" for name, words in (("a", "hi"), ("b", "wait"), ("c", "hi"))
    ]
    tree.case("talk", "\n".join(["scenarios:", *scenarios]))
    with tree.start("eval") as command:
        command.await_true(lambda: tree.started() == 2, "the second scenario is played")
        command.signal(signal.SIGINT)
        command.await_line("again to leave at once")
        (tree.root / "go").touch()
        done = command.wait().check(130, "spent 0.02 USD, 10 tokens", "talk/c  trial 1  interrupted")
    assert "2 pass, 1 incomplete" in done.out
    assert tree.summary()["spend"]["amount"] == "0.02"
    tree.run("score", tree.artifact().name).check(3, "spent 0.02 USD, 10 tokens")
    tree.run("eval").check(0, "resuming sub_", "3 scenarios: 3 pass", "spent 0.03 USD, 15 tokens")
    assert tree.started() == 3
