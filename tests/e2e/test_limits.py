"""B16 and B18: no agent holds an evaluation, and none is called more often at once than was said."""

from __future__ import annotations

import subprocess
import sys
from itertools import groupby

import pytest

from tests.e2e.conftest import AGENTS, Tree

pytestmark = pytest.mark.e2e


def test_b16_an_agent_that_never_ends_is_a_timeout_and_delays_nobody(tree: Tree) -> None:
    """It ignores the SIGTERM of its cancel, too, and is killed 5 s later. (The stream that beats for ever and the
    target that never answers are the client's: tests/contract, tests/worker.)"""
    tree.configure(argv=[sys.executable, "-S", str(AGENTS / "stubborn.py")])
    scenarios = "scenarios:\n  - {id: never, user: say hello, timeout: 1s, expect: [{final_answer_contains: hello}]}\n"
    for name in "abc":
        tree.case(name, scenarios)
    done = tree.run("eval").check(1, "timed out", "3 attempts ended in an error")
    assert [line["outcome"] for line in tree.lines()] == ["error"] * 3
    assert all(line["meaning"]["meaning"] == "timeout" for line in tree.lines())
    assert done.out.count("timed out") == 3


def test_b18_never_more_runs_at_once_than_the_concurrency_and_scenarios_in_order(tree: Tree) -> None:
    """Four files of three scenarios, three trials; a slow grader does not let more through. Each trial is one chat, in
    which the turns follow the file's order."""
    words = ("one", "two", "three")
    scenarios = "".join(
        f"  - {{id: {word}, user: sleep 0.1 {word}, expect: [{{final_answer_contains: {word}}}"
        f"{', {grader: {name: slow.is_there}}' if word == 'two' else ''}]}}\n"
        for word in words
    )
    for name in "abcd":
        tree.case(name, "defaults: {trials: 3}\nscenarios:\n" + scenarios)
    tree.grader("slow", "import time\ndef is_there(t, case, run):\n    time.sleep(0.2)\n    return True\n")
    tree.run("eval", "-j", "3").check(0, "12 scenarios: 12 pass")

    calls = sorted(tree.calls())
    at_once = most = 0
    for _, what, _, _ in calls:
        at_once += 1 if what == "start" else -1
        most = max(most, at_once)
    assert 2 <= most <= 3
    chats = groupby(sorted(calls, key=lambda call: (call[2], call[0])), key=lambda call: call[2])
    played = [[(what, message.split()[-1]) for _, what, _, message in chat] for _, chat in chats]
    assert played == [[(what, word) for word in words for what in ("start", "end")]] * 12


def test_a_concurrency_that_this_host_cannot_open_files_for_is_refused_before_anything_runs(tree: Tree) -> None:
    """Else agents "could not be started" in the middle of the run, and their attempts are missing."""
    tree.case(
        "many", "scenarios:\n  - {id: m, trials: 100, user: say hello, expect: [{final_answer_contains: hello}]}\n"
    )
    words = [sys.executable, "-P", "-m", "evalfleet.start", "eval", "-j", "100"]
    limited = ["sh", "-c", 'ulimit -n 300; exec "$@"', "sh", *words]
    done = subprocess.run(limited, cwd=tree.root, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.replace("\n", " ").strip() == (
        "evalfleet: concurrency (-j): 100 runs at once need 528 open files, and this host allows 300 (`ulimit -Hn`): "
        "raise that limit, or take 43 at once"
    )
    assert tree.started() == 0
