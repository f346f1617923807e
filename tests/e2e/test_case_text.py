"""What a case file says is what the agent is told, to the last character, through server, queue and worker."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import Tree

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

PASTED = "say one\u2028    trials: 3\u2029two\x85three \U0001f600"


def test_pasted_line_breaks_of_yaml_1_1_are_said_to_the_agent_and_set_no_trials(tree: Tree) -> None:
    """Issue 9, 3: they ended the prompt in the middle, and what stood behind them counted as keys."""
    escaped = PASTED.replace("\U0001f600", r"\ud83d\ude00")
    answer = PASTED.removeprefix("say ")
    tree.case(
        "pasted",
        "scenarios:\n"
        f'  - id: quoted\n    user: "{escaped}"\n    expect: [{{final_answer_contains: "{answer}"}}]\n'
        f"  - id: block\n    user: |-\n      {PASTED}\n    expect:\n      - final_answer_contains: '{answer}'\n"
        "  - id: plain\n    user: say a\u2028b\x85c # d\u2028    trials: 3\n"
        "    expect: [{final_answer_contains: a\u2028b\x85c}]\n",
    )
    done = tree.run("eval", "--json", "-q")
    assert done.code == 0, done.err
    scenarios = json.loads(done.out)["scenarios"]
    assert [(one["scenario"], one["verdict"], one["trials"]) for one in scenarios] == [
        ("quoted", "pass", 1),
        ("block", "pass", 1),
        ("plain", "pass", 1),
    ]
    told = [message for _, what, _, message in tree.calls() if what == "start"]
    assert told == [PASTED, PASTED, "say a\u2028b\x85c"]


def test_a_case_that_only_begins_a_document_is_refused_and_no_fault_of_ours(tree: Tree) -> None:
    """Issue 9, 24: exit 70 and an IndexError."""
    tree.case("begun", "---\n ")
    done = tree.run("eval", "-q")
    assert done.code == 2, done.err
    assert "evals/cases/begun.yaml:2:2: there is no scenario in this file" in done.err
