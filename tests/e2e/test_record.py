"""Verdicts of today on a new evaluation, with the runs of then (S32); a baseline's gate (S31). The whole stack."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.database import recorded_attempts
from tests.e2e.conftest import Tree

pytestmark = pytest.mark.e2e

STRICT = """
defaults: {trials: 2}
scenarios:
  - {id: greets, user: say hello, expect: [final_answer_contains: Hello]}
  - {id: leaves, user: say bye, trials: 1, expect: [final_answer_contains: bye]}
"""
FIXED = STRICT.replace("contains: Hello", "contains: hello")


def results(tree: Tree) -> list[Path]:
    return sorted(path for path in (tree.root / "evals/results").iterdir() if path.is_dir())


def ids(document: dict[str, Any]) -> set[str]:
    return {str(evaluation["id"]) for evaluation in document["evaluations"]}


def test_a_fixed_check_is_recorded_anew_and_no_agent_runs(tree: Tree) -> None:
    tree.case("talk", STRICT)
    first = tree.run("eval", "--json")
    first.check(1)
    then = first.document()
    runs = tree.started()
    tree.case("talk", FIXED)
    again = tree.run("score", results(tree)[0].name, "--record", "--json")
    again.check(0)
    now = again.document()
    assert tree.started() == runs, "fixing a check never pays for runs again"
    assert [(c["scenario"], c["was"], c["now"], c["cause"]) for c in now["changes"]["scenarios"]] == [
        ("greets", "fail", "pass", "its expectations changed")
    ]
    assert {evaluation["status"] for evaluation in now["evaluations"]} == {"completed"}
    recorded = recorded_attempts(tree.root / ".evalfleet")
    assert set(recorded) == ids(then) | ids(now)
    was = sorted(attempt for one in ids(then) for attempt in recorded[one])
    anew = sorted(attempt for one in ids(now) for attempt in recorded[one])
    assert [attempt[:3] for attempt in was] == [attempt[:3] for attempt in anew], "the same runs"
    assert {attempt[3] for attempt in anew} == {"passed"}

    twice = tree.run("score", results(tree)[0].name, "--record")
    twice.check(0, *(f"recorded on {one}" for one in ids(now)))
    assert set(recorded_attempts(tree.root / ".evalfleet")) == set(recorded), "the same command finds what it recorded"
    assert len(results(tree)) == 2


def test_where_the_runs_are_gone_nothing_is_recorded(tree: Tree) -> None:
    tree.case("talk", STRICT)
    tree.run("eval").check(1)
    tree.case("talk", FIXED)
    elsewhere = tree.run("score", results(tree)[0].name, "--record", "--state", str(tree.root / "other"))
    elsewhere.check(2, "run_", "is not on this tree's own server", "without --record they are only printed")
    assert len(results(tree)) == 1


def test_a_run_that_is_gone_in_the_middle_leaves_nothing_that_looks_whole(tree: Tree) -> None:
    """The first run is there, a later one is not."""
    tree.case("talk", STRICT)
    tree.run("eval").check(1)
    line_runs = sorted({line["run_id"] for line in tree.lines()})
    artifact = results(tree)[0]
    for path in [*artifact.glob("trials/*.jsonl"), artifact / "trials.jsonl"]:
        path.write_text(path.read_text().replace(line_runs[-1], line_runs[-1][:-4] + "ZZZZ"))
    refused = tree.run("score", artifact.name, "--record")
    refused.check(2, "cannot be recorded there")
    with sqlite3.connect(tree.root / ".evalfleet/server.sqlite3") as database:
        states = [state for (state,) in database.execute("SELECT status FROM evaluations ORDER BY created_at")]
    assert states == ["completed", "completed", "cancelled", "cancelled"]


def test_a_regression_against_a_commit_loses_the_gate(tree: Tree) -> None:
    """S31, S36: `--baseline COMMIT`, before anything runs where nothing pairs."""
    tree.case("talk", FIXED)
    first = tree.run("eval", "--json")
    first.check(0)
    commit = first.document()["commit"]
    (tree.root / "agent.py").write_text((tree.root / "agent.py").read_text() + "\n# another version\n")
    same = tree.run("eval", "--baseline", commit[:12], "--fail-on-regression", "--json")
    same.check(0)
    assert same.document()["comparison"]["same"] == 2
    assert same.document()["commit"] != commit

    (tree.root / "agent.py").write_text("print('nothing')")
    worse = ("eval", "--allow-flaky", "--baseline", results(tree)[0].name)
    tree.run(*worse, "--fail-on-regression").check(1, "regressed  talk/greets  PASS 2/2 → FAIL 0/2", "p = 0.500")
    newest = results(tree)[-1]
    assert json.loads((newest / "summary.json").read_text())["comparison"]["regressed"] == 2
    again = json.loads((newest / "summary.json").read_text())["submission"]
    tree.run("resume", again, "--allow-flaky").check(1, "regressed  talk/greets  PASS 2/2 → FAIL 0/2")  # S34
    tree.run("compare", results(tree)[0].name, newest.name).check(0, "2 regressed, 0 weaker")
    tree.run("compare", results(tree)[0].name, newest.name, "--fail-on-regression").check(1)
    tree.run("compare", results(tree)[0].name, newest.name, "--fail-on-regression=significant").check(0)
    tree.run("compare", results(tree)[0].name, newest.name, "--fail-on-regression=maybe").check(2, "'maybe'")
    tree.run("show", newest.name, "--baseline", commit, "--fail-on-regression").check(1, "compared with ")

    started = tree.started()
    tree.case("talk", STRICT.replace("hello", "good day").replace("bye", "so long"))
    tree.run("eval", "--baseline", results(tree)[0].name).check(2, "nothing to compare with", "2 changed since")
    tree.run("eval", "--fail-on-regression").check(2, "--baseline COMMIT|RESULT")
    assert tree.started() == started


def test_s24_scores_are_exact_from_the_grader_to_the_database_and_the_json(tree: Tree) -> None:
    """1e300 was refused with all of its batch, in every resume anew, and 5e-324 was recorded as 0."""
    scores = {"large": 1e300, "tiny": 5e-324, "negative": -0.1}
    functions = [
        f"def {name}(t, case, run):\n    return {{'pass': True, 'score': {score!r}}}\n"
        for name, score in scores.items()
    ]
    tree.grader("q", "\n\n".join(functions))
    scenarios = [f"  - {{id: {name}, user: say hi, expect: [grader: {{name: q.{name}}}]}}" for name in scores]
    tree.case("scores", "\n".join(["scenarios:", *scenarios]))
    done = tree.run("eval", "--json")
    done.check(0)
    document = done.document()
    assert {grader["name"]: grader["score"] for grader in document["graders"]} == {
        f"q.{name}": score for name, score in scores.items()
    }
    assert document["evaluations"][0]["judge_score"] == 1e300 / 3
    with sqlite3.connect(tree.root / ".evalfleet/server.sqlite3") as database:
        kept = {text for (text,) in database.execute("SELECT judge_score FROM attempts")}
        [(metrics,)] = database.execute("SELECT metrics FROM evaluations").fetchall()
    assert kept == {"1" + "0" * 300, "0." + "0" * 323 + "5", "-0.1"}
    assert json.loads(metrics)["judge_score"] == document["evaluations"][0]["judge_score"]
    tree.run("show").check(0, "score 1e+300", "score 4.94e-324", "score -0.10")
