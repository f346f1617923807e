"""A new artifact beside the old one, made so that a killed command is gone on with (S32, I4)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from evalfleet.artifact import FolderResults, Result, append_segment, open_artifact, write_plan
from evalfleet.checks.case import load_cases
from evalfleet.errors import ProblemAnswer
from evalfleet.plan import Plan
from scheduler.anew import NewArtifact, as_ours, plan_anew
from scheduler.record import _unknown_runs
from scheduler.score import Today
from tests.scheduler.samples import ARTIFACT, SUBMISSION, line, plan, scenario

NOW, LATER = datetime(2026, 12, 1, tzinfo=UTC), datetime(2026, 12, 2, tzinfo=UTC)
PLAN = plan({"tone": [scenario("a", trials=2), scenario("b", trials=2)]}, ks=[2])


@pytest.fixture
def source(tmp_path: Path) -> Result:
    store = FolderResults(tmp_path / "evals/results")
    write_plan(store, PLAN)
    append_segment(store, ARTIFACT, [line("a", 0), line("a", 1), line("b", 0), line("b", 1, "missing", reason="x")])
    return open_artifact(store, ARTIFACT)


def today(tmp_path: Path, expect: str = "final_answer_contains: Paris") -> Today:
    cases = tmp_path / "evals/cases"
    cases.mkdir(parents=True, exist_ok=True)
    question = "What is the capital of France?"
    rows = "".join(f"- {{id: {id_}, user: {question}, trials: 7, expect: [{expect}]}}\n" for id_ in "ab")
    (cases / "tone.yaml").write_text(f"scenarios:\n{rows}")
    return Today(PLAN, load_cases(tmp_path))


def anew(source: Plan, by: Today, now: datetime = NOW, **more: Any) -> Plan:
    return plan_anew(source, by, now=now, graders=None, **more)


class TestPlan:
    def test_it_is_another_submission_of_the_same_runs(self, tmp_path: Path) -> None:
        made = anew(PLAN, today(tmp_path, "no_error: true"))
        assert made.id != SUBMISSION
        assert made.artifact != ARTIFACT
        assert (made.rescored_from, made.commit, made.target) == (SUBMISSION, PLAN.commit, PLAN.target)
        assert [e.id for e in made.evaluations] == [None]
        assert [e.suite.key for e in made.evaluations] == [e.suite.key for e in PLAN.evaluations]
        scenarios = [p.scenario for p in made.cases[0].scenarios]
        assert [(s.trials, s.expect[0].kind) for s in scenarios] == [(2, "no_error")] * 2, "the trials that were played"
        assert Plan.loads(made.dumps()) == made

    def test_its_id_moves_with_what_judges_and_with_nothing_else(self, tmp_path: Path) -> None:
        """The same command, killed and given again on another day, finds what it began."""
        first = anew(PLAN, today(tmp_path))
        assert anew(PLAN, today(tmp_path), LATER).id == first.id
        others = [
            anew(PLAN, today(tmp_path, "no_error: true")),
            anew(PLAN, today(tmp_path), again="1"),
            anew(replace(PLAN, id="sub_2123456789abcdefghjkmnpqrs"), today(tmp_path)),
        ]
        assert len({first.id, *(other.id for other in others)}) == 4

    def test_what_is_judged_anew_again_still_knows_whose_runs_these_are(self, tmp_path: Path) -> None:
        once = anew(PLAN, today(tmp_path))
        assert anew(once, today(tmp_path), again="x").rescored_from == SUBMISSION


class TestWriting:
    def test_lines_name_the_new_evaluation_and_nothing_of_the_old_artifact_changes(
        self, source: Result, tmp_path: Path
    ) -> None:
        made = anew(PLAN, today(tmp_path)).with_evaluations(["eval_new"])
        assert isinstance(source.store, FolderResults)
        with NewArtifact.of(source.store, made, source) as new:
            for one in source.lines():
                new.add(one)
        written = open_artifact(source.store, made.artifact)
        assert {one["evaluation"] for one in written.lines()} == {"eval_new"}
        assert {one["evaluation"] for one in source.lines()} == {"eval_0"}

    def test_a_killed_command_is_gone_on_with_and_writes_no_line_twice(self, source: Result, tmp_path: Path) -> None:
        store = source.store
        assert isinstance(store, FolderResults)
        made = anew(PLAN, today(tmp_path)).with_evaluations(["eval_new"])
        with NewArtifact.of(store, made, source) as new:
            new.add(next(source.lines()))
        again = anew(PLAN, today(tmp_path), LATER).with_evaluations(["eval_new"])
        with NewArtifact.of(store, again, source) as new:
            assert new.plan.artifact == made.artifact, "the folder that is there"
            for one in source.lines():
                new.add(one)
        segments = sorted((store.root / made.artifact / "trials").iterdir())
        assert sum(path.read_bytes().count(b"\n") for path in segments) == 4

    def test_a_trial_of_ours_is_one_whatever_the_old_evaluation_holds(self) -> None:
        """S35"""
        theirs = line("a", 0, recorded="elsewhere")
        assert as_ours(theirs)["recorded"] == "here"
        assert as_ours({**theirs, "trial_record": None})["recorded"] == "elsewhere"


class TestRunsThatAreGone:
    BATCH = ({"run_id": "run_a"}, {"run_id": "run_b"}, {"run_id": "run_c"})

    @pytest.mark.parametrize(
        ("status", "names", "runs"),
        [
            (422, ["/attempts/1/run_id", "/attempts/2/run_id"], ["run_b", "run_c"]),
            (422, ["/attempts/1/scorer_id"], []),
            (422, ["/attempts/7/run_id", "run_id"], []),
            (409, ["/attempts/1/run_id"], []),
        ],
    )
    def test_the_refusal_names_them(self, status: int, names: list[str], runs: list[str]) -> None:
        problem = ProblemAnswer(status, "validation_failed", "no", errors=[{"name": name} for name in names])
        assert _unknown_runs(problem, list(self.BATCH)) == runs
