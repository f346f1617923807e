"""`--failed`: what did not pass when it was last played, by the artifacts of the tree."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from evalfleet.artifact import FolderResults, append_segment, finish, open_artifact, write_plan
from evalfleet.checks.case import case_key
from scheduler.last import last_time, not_passed
from scheduler.pins import FAILED
from scheduler.score import recorded
from scheduler.submissions import Submission, Submissions
from tests.scheduler.samples import line, plan, scenario

ALL = ("tone/a", "tone/b", "tools/a")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderResults:
    monkeypatch.chdir(tmp_path)
    return FolderResults(tmp_path / "evals/results")


def played(store: FolderResults, hour: int, outcomes: Mapping[str, str | None], *, killed: bool = False) -> str:
    """An artifact of that hour. None: planned, and never played."""
    cases: dict[str, list[str]] = {}
    for key in outcomes:
        case, id_ = key.split("/")
        cases.setdefault(case, []).append(id_)
    made = plan({case: [scenario(id_) for id_ in ids] for case, ids in cases.items()})
    submission = f"sub_{hour:026d}"
    name = f"20261130T{hour:02d}0000Z-{'0' * 8}"
    write_plan(store, replace(made, id=submission, artifact=name))
    lines = [
        line(key.split("/")[1], 0, outcome, case=key.split("/")[0], reason=None if outcome == "passed" else "no")
        for key, outcome in outcomes.items()
        if outcome is not None
    ]
    append_segment(store, name, lines)
    if not killed:
        finish(store, name, recorded(open_artifact(store, name)).stored(0))
    return name


def test_the_newest_artifact_that_holds_a_scenario_decides(store: FolderResults) -> None:
    played(store, 8, {"tone/a": "failed", "tone/b": "failed", "tools/a": "passed"})
    played(store, 9, {"tone/a": "passed"})
    found = last_time(store, ALL)
    assert found.keys == {"tone/b"}, "a run of one scenario does not hide what failed before it"
    assert found.sentence == (
        "--failed: 1 of 3: 1 did not pass when last played, in evals/results/20261130T080000Z-00000000"
    )


@pytest.mark.parametrize("outcome", ["failed", "error", "missing", None])
def test_what_did_not_pass_is_played_again_whatever_it_was(store: FolderResults, outcome: str | None) -> None:
    played(store, 8, {"tone/a": outcome, "tone/b": "passed", "tools/a": "passed"})
    assert last_time(store, ALL).keys == {"tone/a"}


def test_what_was_never_played_is_not_known_to_pass(store: FolderResults) -> None:
    played(store, 8, {"tone/a": "passed", "tone/b": "failed"})
    found = last_time(store, ALL)
    assert found.keys == {"tone/b", "tools/a"}
    assert found.sentence.endswith("; 1 never played")
    assert last_time(FolderResults(store.root / "empty"), ALL).sentence == "--failed: 3 of 3: 3 never played"


def test_several_artifacts_are_named_with_what_each_says(store: FolderResults) -> None:
    played(store, 8, {"tone/a": "failed", "tone/b": "failed"})
    played(store, 9, {"tools/a": "failed"})
    assert last_time(store, ALL).sentence == (
        "--failed: 3 of 3: 3 did not pass when last played, in evals/results/20261130T090000Z-00000000 (1), "
        "evals/results/20261130T080000Z-00000000 (2)"
    )


def test_nothing_failed_is_a_sentence_that_names_the_artifact(store: FolderResults) -> None:
    played(store, 8, dict.fromkeys(ALL, "passed"))
    found = last_time(store, ALL)
    assert found.keys == frozenset()
    assert found.sentence == (
        "nothing to play: all 3 scenarios passed when last played, in evals/results/20261130T080000Z-00000000"
    )
    document = json.loads(json.dumps(found.document()))
    assert (document["verdict"], document["exit_code"], document["scenarios"]) == ("pass", 0, [])
    assert (document["note"], document["artifact"]) == (found.sentence, "evals/results/20261130T080000Z-00000000")


def test_a_command_that_was_killed_left_evidence_and_no_summary(store: FolderResults) -> None:
    played(store, 8, {"tone/a": "failed", "tone/b": "passed", "tools/a": "passed"}, killed=True)
    assert last_time(store, ALL).keys == {"tone/a"}


def test_a_damaged_artifact_is_passed_over_and_named(store: FolderResults, caplog: pytest.LogCaptureFixture) -> None:
    played(store, 8, dict.fromkeys(ALL, "passed"))
    broken = played(store, 9, dict.fromkeys(ALL, "failed"))
    (store.root / broken / "summary.json").write_text("{")
    with caplog.at_level(logging.WARNING):
        assert last_time(store, ALL).keys == frozenset()
    assert broken in caplog.text


def tree(root: Path, cases: Mapping[str, Sequence[str]]) -> Path:
    (root / "evals/cases").mkdir(parents=True, exist_ok=True)
    for name, ids in cases.items():
        rows = "".join(f"  - {{id: {id_}, user: hi, expect: [no_error: true]}}\n" for id_ in ids)
        (root / f"evals/cases/{name}.yaml").write_text(f"scenarios:\n{rows}")
    return root


def record(artifact: str, words: tuple[str, ...]) -> Submission:
    return Submission(
        id=f"sub_{'0' * 26}",
        pin="p",
        generation=0,
        started_at="2026-11-30T09:00:00Z",
        artifact=artifact,
        commit="c" * 40,
        evaluations=(),
        status="running",
        words=words,
        parts={},
        files={},
    )


def test_it_goes_with_a_selection_of_the_tree(store: FolderResults, tmp_path: Path) -> None:
    played(store, 8, dict.fromkeys(ALL, "failed"))
    root = tree(tmp_path, {"tone": ["a", "b"], "tools": ["a"]})
    found = not_passed(root, ["tone"], deselect=["tone/b"])
    assert found is not None
    assert found.keys == {case_key("tone", "a")}


def test_the_same_command_chooses_the_same_while_what_it_began_is_unfinished_s34(
    store: FolderResults, tmp_path: Path
) -> None:
    root = tree(tmp_path, {"tone": ["a", "b"], "tools": ["a"]})
    played(store, 8, {"tone/a": "failed", "tone/b": "failed", "tools/a": "passed"})
    begun = played(store, 9, {"tone/a": "passed", "tone/b": None})
    submissions = Submissions(root / ".evalfleet")
    submissions.write(record(begun, (FAILED,)))
    found = not_passed(root, [])
    assert found is not None
    assert found.keys == {"tone/a", "tone/b"}
    submissions.write(replace(record(begun, (FAILED,)), status="completed"))
    found = not_passed(root, [])
    assert found is not None
    assert found.keys == {"tone/b"}


def test_a_tree_that_is_refused_is_left_to_whoever_says_all_that_is_wrong(tmp_path: Path) -> None:
    root = tree(tmp_path, {"tone": ["a"]})
    assert not_passed(root, ["nope"]) is None
    (root / "evals/cases/tone.yaml").write_text("scenarios: []")
    assert not_passed(root, []) is None
