"""Any process may be killed with -9 at any moment (I6): the verdicts are right, every attempt is recorded once, nothing
is left running, and no finished run is paid for again (what the issue must show, 2 and 3)."""

from __future__ import annotations

import json
import sqlite3

import pytest

from tests.e2e.command import await_true, kill, left_running, needs_proc, part_pid
from tests.e2e.conftest import Tree

pytestmark = [pytest.mark.e2e, needs_proc]

SLOW = """
scenarios:
  - {id: first, trials: 2, user: sleep 1.5 hello, expect: [{final_answer_contains: hello}]}
  - {id: second, trials: 2, user: sleep 1 again, expect: [{final_answer_contains: again}]}
  - {id: wrong, user: say no, expect: [{final_answer_contains: yes}]}
"""
VERDICTS = {"first": ("pass", 2, 0), "second": ("pass", 2, 0), "wrong": ("fail", 0, 1)}
ATTEMPTS = 15
AT_ONCE = 4


@pytest.fixture
def slow(tree: Tree) -> Tree:
    for name in "abc":
        tree.case(name, SLOW)
    return tree


def finished(tree: Tree) -> int:
    """How many turns the agent has ended by itself."""
    return sum(1 for call in tree.calls() if call[1] == "end")


def recorded(tree: Tree) -> list[tuple[str, int, str, str]]:
    """(case key, trial, verdict, run) of all attempts as the server's database holds them."""
    with sqlite3.connect(f"file:{tree.root}/.evalfleet/server.sqlite3?mode=ro", uri=True) as database:
        rows = database.execute(
            'SELECT c."key", a.attempt_index, a.verdict, a.run_id FROM attempts a'
            " JOIN evaluation_cases c ON c.evaluation_id = a.evaluation_id AND c.position = a.position"
        ).fetchall()
    return sorted((json.loads(key), trial, verdict, run) for key, trial, verdict, run in rows)


def check_result(tree: Tree) -> None:
    summary = tree.summary()
    assert [e["status"] for e in summary["evaluations"]] == ["completed", "completed"]
    assert len(summary["scenarios"]) == 9
    for scenario in summary["scenarios"]:
        seen = (scenario["verdict"], scenario["passed"], scenario["failed"])
        assert seen == VERDICTS[scenario["scenario"]], scenario
    lines = {(f"{line['case']}/{line['scenario']}", line["trial"]): line for line in tree.lines()}
    assert len(lines) == len(tree.lines()) == ATTEMPTS
    rows = recorded(tree)
    assert [row[:2] for row in rows] == sorted(lines)
    assert rows == [(*key, lines[key]["outcome"], lines[key]["run_id"]) for key in sorted(lines)]


@pytest.mark.parametrize("part", ["worker", "valkey", "server"])
def test_kill_9_of_a_part_in_the_middle_ends_with_the_right_verdicts(slow: Tree, part: str) -> None:
    """A killed worker's and Valkey's work is found again. The server takes its agents with it: their runs come back as
    `server_lost`, are nobody's failure (S17), and are played again."""
    with slow.start("eval", "-j", str(AT_ONCE)) as command:
        command.await_true(lambda: slow.started() > AT_ONCE, "more conversations than fit at once are under way")
        parts = "\n".join(left_running(slow.root))
        assert "valkey" in parts
        assert "evalfleet.server" in parts
        assert "evalfleet.start worker" in parts
        pid = part_pid(slow.root, part)
        assert pid is not None
        kill(pid)
        done = command.wait().check(1, f"the {part} died and was restarted")
    assert "9 scenarios: 6 pass, 3 fail" in done.out
    await_true(slow.is_quiet, "nothing is left running", within=5)
    check_result(slow)
    turns = ATTEMPTS
    redone = 2 * AT_ONCE if part == "server" else 0  # a new try plays its conversation's earlier turn again
    assert turns <= slow.started() <= turns + redone


def test_b15_kill_9_of_the_command_and_of_its_resume_lose_nothing(slow: Tree) -> None:
    """Within 5 s nothing is left. The next start works, goes on, and is killed too; the third ends it. Only turns that
    were under way when a command died, and the finished ones before them in their conversation, are called again."""
    agent_calls_cut_off = 0
    for kills in range(2):
        before = slow.started()
        with slow.start("eval", "-j", str(AT_ONCE)) as command:
            if kills:
                assert "of 15 recorded; --fresh starts over" in command.await_line("resuming sub_")
            command.await_true(lambda before=before: slow.started() > before + 2, "it plays")  # type: ignore[misc]
            kill(command.pid)
            command.wait()
        await_true(lambda: not left_running(slow.root), "nothing is left within 5 s", within=5)
        agent_calls_cut_off = slow.started() - finished(slow)
        assert agent_calls_cut_off <= (kills + 1) * AT_ONCE

    slow.run("resume").check(1, "9 scenarios: 6 pass, 3 fail")
    check_result(slow)
    assert finished(slow) >= ATTEMPTS
    assert slow.started() <= ATTEMPTS + 2 * agent_calls_cut_off

    calls = slow.started()
    done = slow.run("resume", slow.summary()["submission"])
    done.check(1, "completed (started 20", "nothing was run", "9 scenarios: 6 pass, 3 fail")
    assert slow.started() == calls
    assert part_pid(slow.root, "server") is None
