"""What makes every day easier: what to play again, what to leave out, when to stop, what may be missing."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import Tree

pytestmark = pytest.mark.e2e

GOOD = "scenarios:\n  - {id: one, user: say hello, expect: [{final_answer_contains: hello}]}\n"
BAD = "scenarios:\n  - {id: one, user: say no, expect: [{final_answer_contains: hello}]}\n"


def scored(document: dict[str, object]) -> dict[str, str]:
    rows = document["scenarios"]
    assert isinstance(rows, list)
    return {f"{row['case']}/{row['scenario']}": row["verdict"] for row in rows}


def test_failed_plays_again_what_did_not_pass_and_ends_with_0_when_everything_did(tree: Tree) -> None:
    for name in "abc":
        tree.case(name, BAD if name == "b" else GOOD)
    tree.run("eval").check(1)
    again = tree.run("eval", "--failed", "--json").check(
        1, "--failed: 1 of 3: 1 did not pass when last played, in evals"
    )
    assert scored(again.document()) == {"b/one": "fail"}
    tree.case("b", GOOD)
    tree.run("eval", "--failed", "b").check(0, "--failed: 1 of 1", "1 scenario: 1 pass")
    before = tree.started()
    done = tree.run("eval", "--failed").check(0)
    assert done.out.startswith("nothing to play: all 3 scenarios passed when last played, in evals/results/")
    assert (done.err, len(done.out.splitlines())) == ("", 1)
    document = tree.run("eval", "--failed", environment={"EVALFLEET_JSON": "1"}).check(0).document()
    assert (document["exit_code"], document["scenarios"], document["note"]) == (0, [], done.out.strip())
    tree.run("plan", "--failed").check(0, "nothing to play")
    assert tree.started() == before
    tree.run("eval", "--failed", "nope").check(2, "no case matches 'nope'")
    assert "--failed b" in tree.run("list").check(0).out


def test_deselect_and_timeout_are_part_of_what_is_asked(tree: Tree) -> None:
    tree.case("a", GOOD)
    tree.case("slow", "scenarios:\n  - {id: one, user: for ever, expect: [{no_error: true}]}\n")
    tree.case("b", BAD)
    environment = {"EVALFLEET_DESELECT": "b slow/zero?"}
    tree.run("plan", environment=environment).check(2, "--deselect: case 'slow' has no", "it has: one")
    done = tree.run("eval", "--deselect", "b", "--timeout", "1", "--json").check(1)
    assert scored(done.document()) == {"a/one": "pass", "slow/one": "fail"}
    [late] = [row for row in done.document()["scenarios"] if row["case"] == "slow"]
    assert (late["errors"], late["first_failure"].endswith("and the timeout is 1 s")) == (1, True)
    suite = json.loads((tree.artifact() / "suite.json").read_bytes())
    assert suite["timeout"] == 1.0
    tree.run("eval", "--timeout", "soon").check(2, "'soon' is no time limit: write it like 300s, 5m")
    tree.run("eval", "--deselect", "*").check(2, "nothing is left to play")


def test_s36_max_failures_stops_and_the_same_command_goes_on_to_the_next_failure(tree: Tree) -> None:
    for name, text in (("a", GOOD), ("b", BAD), ("c", BAD), ("d", GOOD)):
        tree.case(name, text)
    first = tree.run("eval", "-x", "-j", "1", "--json").check(
        1, "stopped: 1 scenario failed (b/one), and --max-failures is 1"
    )
    assert scored(first.document()) == {"a/one": "pass", "b/one": "fail", "c/one": "incomplete", "d/one": "incomplete"}
    assert f"evalfleet resume {first.document()['submission']}" in first.err
    played = tree.started()
    assert played < 4
    second = tree.run("eval", "-j", "1", environment={"EVALFLEET_MAX_FAILURES": "1"}).check(1, "(c/one)")
    assert second.err.startswith("resuming ")
    tree.run("eval", "--max-failures", "5").check(1, "4 scenarios: 2 pass, 2 fail")
    assert tree.started() == 4
    tree.run("resume", "--max-failures", "0").check(2, "0 is less than 1")


LOST = """
import json, sys
turn = json.load(sys.stdin)
if turn["metadata"]["evalfleet.trial"] == 3:
    print(json.dumps({"type": "error", "message": "gone", "code": "upstream_unavailable", "retryable": True}))
else:
    print("hello")
"""


def test_s18_what_is_missing_may_be_and_the_evaluation_ends_with_what_is_recorded(tree: Tree) -> None:
    (tree.root / "agent.py").write_text(LOST)
    tree.case("a", GOOD.replace("user:", "trials: 5, user:"))
    tree.case("b", GOOD)
    environment = {"EVALFLEET_TRIES": "1"}
    tree.run("eval", "--allow-missing", "10%", environment=environment).check(3, "evalfleet resume", "4 of 5")
    assert tree.summary()["missing_allowed"] is False
    submission = tree.summary()["submission"]
    done = tree.run("resume", submission, "--allow-missing", "1", "-o", "r.junit.xml", environment=environment)
    done.check(0, "a  one  INCOMPLETE  4 of 5", "pass@1 1.00 [0.80–1.00]", "so many are allowed")
    assert "evalfleet resume" not in done.err
    assert (
        '<skipped message="4 of 5 recorded; what is missing is allowed to be' in (tree.root / "r.junit.xml").read_text()
    )
    stored = tree.summary()
    assert (stored["verdict"], stored["exit_code"], stored["missing_allowed"]) == ("incomplete", 0, True)
    assert {e["k"]: e["status"] for e in stored["evaluations"]} == {1: "completed", 5: "cancelled"}
    played = tree.started()
    tree.run("resume", submission).check(0, "cancelled", "nothing was run", "4 of 5")
    tree.run("score", str(tree.artifact()), "--as-recorded").check(0, "4 of 5")
    assert tree.started() == played
    tree.run("eval", "--allow-missing", "half").check(2, "'half': write a number of attempts such as 3")


def test_s36_what_is_in_quarantine_runs_and_does_not_gate_until_its_day_is_over(tree: Tree) -> None:
    tree.case("a", GOOD)
    tree.case("b", BAD)
    entry = '[[quarantine]]\nscenario = "b/one"\nreason = "known, #7"\nuntil = {day}\n'
    tree.configure(entry.format(day="2999-12-31"))
    done = tree.run("eval").check(
        0, "quarantined until 2999-12-31: known, #7", "1 in quarantine (fail), which gates nothing"
    )
    assert "b  one  FAIL" in done.out
    stored = tree.summary()
    assert (stored["verdict"], stored["scenarios"][1]["quarantine"]) == (
        "pass",
        {"reason": "known, #7", "until": "2999-12-31"},
    )
    tree.run("score", str(tree.artifact())).check(0)
    tree.configure(entry.format(day="2020-12-31"))
    over = "the quarantine of b/one ended on 2020-12-31, so it gates again (known, #7)"
    tree.run("validate").check(0, over, "1 warning")
    tree.run("score", str(tree.artifact())).check(1)
    tree.run("score", str(tree.artifact()), "--as-recorded").check(0)
    tree.run("eval").check(1, over)
    tree.configure(entry.format(day="2999-12-31").replace("b/one", "b/oen"))
    tree.run("eval").check(2, "evalfleet.toml:2:1: the tree has no scenario 'b/oen' (did you mean 'b/one'?)")


def test_a_row_in_quarantine_gates_neither_then_nor_when_it_is_scored_again(tree: Tree) -> None:
    suite = tree.root / "evals/suites/greetings.yaml"
    suite.parent.mkdir()
    suite.write_text("- {key: bad, input: say bye, expect: [final_answer_contains: hello]}\n")
    entry = '[[quarantine]]\nscenario = "greetings/bad"\nreason = "known"\nuntil = 2999-12-31\n'
    tree.run("eval", "--suite", str(suite)).check(1)
    first = str(tree.artifact())
    tree.configure(f'{entry}suite = "evals/suites/greetings.yaml"\n')
    tree.run("score", first).check(0, "quarantined until 2999-12-31: known")
    tree.run("eval", "--suite", str(suite)).check(0, "quarantined until 2999-12-31: known")
    tree.configure(f'{entry}suite = "evals/suites/others.yaml"\n')
    (suite.parent / "others.yaml").write_text("- {key: bad, input: hi, expect: [no_error: true]}\n")
    tree.run("score", first).check(1)


SHOWS = """
import os
print(" ".join(f"{name}={os.environ.get(name)}" for name in ("GREETING", "SPLOX_API_KEY", "EVALFLEET_TRIALS")))
"""


def test_a_file_of_variables_reaches_the_flags_and_the_agent_and_keeps_its_secrets(tree: Tree) -> None:
    """What the environment sets wins; our own variables and keys never reach the agent, nor any file."""
    (tree.root / "agent.py").write_text(SHOWS)
    expect = "GREETING=from outside SPLOX_API_KEY=None EVALFLEET_TRIALS=None"
    tree.case("a", f"scenarios:\n  - {{id: one, user: hi, expect: [{{final_answer_contains: {expect}}}]}}\n")
    file = tree.root / "my.env"
    file.write_text("# ours\nexport EVALFLEET_TRIALS=2\nSPLOX_API_KEY='sk-top-secret'\nGREETING=inside\n")
    environment = {"GREETING": "from outside", "EVALFLEET_ENV_FILE": str(file)}
    done = tree.run("eval", environment=environment).check(0, "a  one  PASS  2/2")
    tree.run("resume", tree.summary()["submission"], "--env-file", str(file)).check(0, "nothing was run")
    kept = b"".join(path.read_bytes() for path in (tree.root / "evals/results").rglob("*") if path.is_file())
    assert b"sk-top-secret" not in kept
    file.write_text("GREETING=x\nsk-top-secret\n")
    refused = tree.run("eval", "--env-file", str(file)).check(2, "my.env:2:1: write NAME=VALUE")
    assert "sk-top-secret" not in done.out + done.err + refused.out + refused.err
    file.write_text("EVALFLEET_CONCURRENCY=lots\n")
    tree.run("plan", "--env-file", str(file)).check(2, "'lots' is not a whole number")


def test_no_graders_plays_without_judging_and_the_resume_asks_them_without_playing(tree: Tree) -> None:
    """Never a pass: what only graders could fail is missing, its trial kept; what an assertion fails has failed."""
    tree.grader("words", "def good(t, case, run):\n    return {'pass': True, 'score': 0.9}\n")
    for name, said, trials in (("a", "hello", 2), ("b", "no", 1)):
        tree.case(
            name,
            f"scenarios:\n  - id: one\n    user: say {said}\n    trials: {trials}\n"
            "    expect: [{final_answer_contains: hello}, {grader: {name: words.good}}]\n",
        )
    tree.case("c", GOOD)
    first = tree.run("eval", "--no-graders", "--json").check(1, "not judged: 1 grader was left out (words.good)")
    assert scored(first.document()) == {"a/one": "incomplete", "b/one": "fail", "c/one": "pass"}
    assert first.document()["graders"] == []
    submission = first.document()["submission"]
    again = tree.run("eval", "--no-graders", "--json").check(1, "resuming ", "not judged: 1 grader was left out")
    assert scored(again.document()) == scored(first.document())
    assert again.document()["submission"] == submission
    done = tree.run("resume", submission, "--json").check(1)
    assert scored(done.document()) == {"a/one": "pass", "b/one": "fail", "c/one": "pass"}
    assert done.document()["graders"][0]["calls"] == 2
    assert tree.started() == 4, "each conversation is played once"
