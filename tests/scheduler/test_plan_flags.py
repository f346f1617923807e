"""The command line takes a draft in every shape, and another harness of the platform (S7, S34; item 11)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evalfleet.errors import UsageError
from scheduler.cli.evaluating import plan
from scheduler.prepare import Prepared, prepare

CONFIG = """
[harness]
name = "concierge"
files = ["agent.py"]
[harness.command]
argv = ["python3", "agent.py"]
[target]
base_url = "https://platform.example"
harness_id = "h_own"
machine_id = "m_own"
"""
SCENARIO = "{id: greets, user: Say hello., expect: [{final_answer_contains: hello}]}"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPLOX_API_KEY", "k")
    (tmp_path / "evals/cases").mkdir(parents=True)
    (tmp_path / "agent.py").write_text("print('hello')\n")
    (tmp_path / "evalfleet.toml").write_text(CONFIG)
    (tmp_path / "evals/cases/tone.yaml").write_text(f"scenarios: [{SCENARIO}]\n")
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], **flags: Any) -> Any:
    assert plan(**flags, as_json=True) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "text", [f"scenarios: [{SCENARIO}]", f"- {SCENARIO}", SCENARIO], ids=["a case", "a list", "one"]
)
def test_scenarios_may_be_a_case_a_list_or_one(tree: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tree / "draft.txt").write_text(text)
    found = shown(capsys, tree=tree, scenarios=tree / "draft.txt")
    assert [(case["name"], [s["id"] for s in case["scenarios"]]) for case in found["cases"]] == [("draft", ["greets"])]


def asked(tree: Path, ids: Mapping[str, str], *, on_target: bool = True) -> Prepared:
    return prepare(
        tree,
        (),
        trials=None,
        concurrency=None,
        drafts=None,
        on_target=on_target,
        results=None,
        environment={"SPLOX_API_KEY": "k"},
        harness=ids.get("harness"),
        machine=ids.get("machine"),
    )


def test_another_harness_or_machine_takes_the_place_of_the_trees_and_is_another_evaluation(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = shown(capsys, tree=tree, target=True, harness="h_other", machine="m_2")["target"]
    assert (target["harness_id"], target["machine_id"], target["harness"]) == ("h_other", "m_2", "h_other")
    pins = [
        asked(tree, ids).pin.digest
        for ids in ({}, {"harness": "h_own"}, {"harness": "h_other"}, {"machine": "m_2"}, {"machine": "m_own"})
    ]
    assert pins[0] == pins[1] == pins[4]
    assert len(set(pins)) == 3


@pytest.mark.parametrize(
    ("ids", "on_target", "message"),
    [
        ({"harness": "h_other"}, False, "--harness names what a platform holds: it goes with --target only"),
        ({"machine": "m_2"}, False, "--machine names what a platform holds: it goes with --target only"),
        ({"harness": " "}, True, "--harness ' ': write an id, as the platform shows it"),
        ({"machine": "m\n"}, True, r"--machine 'm\\n': write an id"),
    ],
)
def test_an_id_that_cannot_be_is_refused(tree: Path, ids: dict[str, str], on_target: bool, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        asked(tree, ids, on_target=on_target)
