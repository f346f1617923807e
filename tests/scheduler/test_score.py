"""Scoring is a pure function of the artifact (S32): real artifacts, real rules, nothing run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalfleet.artifact import FolderResults, Result, append_segment, finish, open_result, write_plan
from evalfleet.checks.case import LoadedCases, load_cases
from evalfleet.errors import CaseFilesInvalid
from scheduler.gate import exit_code
from scheduler.score import score
from scheduler.summary import summarize
from tests.scheduler.samples import ARTIFACT, line, plan, scenario, trial_record

QUESTION = "What is the capital of France?"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def artifact(
    folder: Path, scenarios: Sequence[dict[str, Any]], lines: Sequence[Mapping[str, Any]], k: int = 1
) -> Result:
    store = FolderResults(folder / "evals" / "results")
    write_plan(store, plan({"tone": scenarios}, ks=[k]))
    append_segment(store, ARTIFACT, lines)
    return open_result(store.root / ARTIFACT)


def tree(folder: Path, text: str, name: str = "tone") -> LoadedCases:
    cases = folder / "evals" / "cases"
    cases.mkdir(parents=True, exist_ok=True)
    (cases / f"{name}.yaml").write_text(text)
    return load_cases(folder)


def case_file(*, expect: str, id_: str = "a", user: str = QUESTION, more: str = "") -> str:
    return f"scenarios:\n  - id: {id_}\n    user: {user}\n    expect:\n      - {expect}\n{more}"


def grader(name: str = "quality.answers", **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": "answered", "passed": True, "score": 0.8, "why": "fine", "llm_calls": 1, **more}


class TestToday:
    def test_a_case_that_was_fixed_changes_the_verdict_without_a_run(self, folder: Path) -> None:
        lines = [line("a", 0, "failed", reason="old words", trial_record=trial_record(answer="paris"))]
        result = artifact(folder, [scenario("a")], lines)
        found = score(result, tree(folder, case_file(expect="final_answer_contains: paris")))
        [row] = found.scenarios
        assert (row.verdict, row.was, row.stale, row.first_failure) == ("pass", "fail", None, None)
        assert exit_code(found) == 0

    def test_as_recorded_keeps_every_word(self, folder: Path) -> None:
        result = artifact(folder, [scenario("a")], [line("a", 0, "failed", reason="old words")])
        found = score(result, tree(folder, case_file(expect="final_answer_contains: Paris")), as_recorded=True)
        [row] = found.scenarios
        assert (row.verdict, row.was, row.first_failure) == ("fail", None, "old words")

    def test_without_a_tree_todays_rules_judge_the_recorded_cases(self, folder: Path) -> None:
        result = artifact(folder, [scenario("a")], [line("a", 0, "passed", trial_record=trial_record(answer="Rome"))])
        [row] = score(result).scenarios
        assert (row.verdict, row.was) == ("fail", "pass")
        assert row.first_failure is not None
        assert "Paris" in row.first_failure

    def test_scoring_twice_gives_the_same_and_writes_nothing(self, folder: Path) -> None:
        result = artifact(folder, [scenario("a")], [line("a", 0)])
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert score(result) == score(result)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before

    def test_case_files_that_are_wrong_are_refused_with_all_problems(self, folder: Path) -> None:
        result = artifact(folder, [scenario("a")], [line("a", 0)])
        with pytest.raises(CaseFilesInvalid):
            score(result, tree(folder, "scenarios: nonsense"))

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            pytest.param(case_file(expect="no_error: true", user="Other?"), "its turns changed since", id="turns"),
            pytest.param(case_file(expect="no_error: true", id_="b"), "no scenario a in tone any more", id="scenario"),
            pytest.param(
                case_file(expect="no_error: true", id_="first", more=case_file(expect="no_error: true")[11:]),
                "the turns before it changed since",
                id="a new one before it",
            ),
            pytest.param(
                case_file(expect="grader: {name: quality.answers}"), "quality.answers was not asked then", id="grader"
            ),
        ],
    )
    def test_where_it_cannot_be_judged_by_today_it_is_stale_and_stays(self, folder: Path, text: str, why: str) -> None:
        result = artifact(folder, [scenario("a")], [line("a", 0, "failed", reason="as it was")])
        [row] = score(result, tree(folder, text)).scenarios
        assert row.stale is not None
        assert why in row.stale
        assert (row.verdict, row.first_failure) == ("fail", "as it was")

    def test_a_case_that_is_gone_is_stale(self, folder: Path) -> None:
        result = artifact(folder, [scenario("a")], [line("a", 0)])
        [row] = score(result, tree(folder, case_file(expect="no_error: true"), name="other")).scenarios
        assert row.stale == "there is no case tone any more"

    def test_layout_trials_and_what_comes_after_make_nothing_stale(self, folder: Path) -> None:
        result = artifact(folder, [scenario("a", trials=2)], [line("a", 0), line("a", 1)], k=2)
        text = f"""
            # a comment
            defaults: {{trials: 7}}
            scenarios:
              - {{id: a, user: ["{QUESTION}"], expect: [final_answer_contains: Paris]}}
              - {{id: new, user: Hello, expect: [no_error: true]}}
            """
        [row] = score(result, tree(folder, text)).scenarios
        assert (row.stale, row.trials, row.verdict) == (None, 2, "pass")


class TestTimeouts:
    """S12"""

    def file(self, timeout: str) -> str:
        return case_file(expect="no_error: true") + f"    timeout: {timeout}\n"

    def test_a_timeout_that_is_tighter_today_was_passed(self, folder: Path) -> None:
        record = trial_record(duration_ms=5000)
        record["turns"][0]["completed_at"] = "2026-11-30T12:45:06Z"
        result = artifact(folder, [scenario("a")], [line("a", 0, trial_record=record)])
        [row] = score(result, tree(folder, self.file("4s"))).scenarios
        assert (row.errors, row.verdict) == (1, "fail")
        assert row.first_failure is not None
        assert "timed out" in row.first_failure

    def test_what_was_cut_off_stays_cut_off(self, folder: Path) -> None:
        meaning = {"meaning": "timeout", "reason": "timed out: 300 s", "code": "timeout"}
        cut = line("a", 0, "error", reason="timed out: 300 s", meaning=meaning)
        result = artifact(folder, [scenario("a")], [cut])
        [row] = score(result, tree(folder, self.file("1h"))).scenarios
        assert (row.errors, row.first_failure) == (1, "timed out: 300 s")

    def test_a_limit_of_the_command_line_stays_the_scenarios_limit(self, folder: Path) -> None:
        """`--timeout 600`: today's file says 4 s and was not what the run was held to."""
        record = trial_record(duration_ms=5000)
        record["turns"][0]["completed_at"] = "2026-11-30T12:45:06Z"
        store = FolderResults(folder / "evals" / "results")
        write_plan(store, replace(plan({"tone": [scenario("a", timeout=600)]}), timeout=600.0))
        append_segment(store, ARTIFACT, [line("a", 0, trial_record=record)])
        [row] = score(open_result(store.root / ARTIFACT), tree(folder, self.file("4s"))).scenarios
        assert (row.errors, row.verdict) == (0, "pass")


class TestGraders:
    EXPECT = ({"grader": {"name": "quality.answers", "pass_below": 0.7}},)

    def test_recorded_answers_are_kept_and_read_by_todays_pass_below(self, folder: Path) -> None:
        """S32, S25"""
        result = artifact(folder, [scenario("a", expect=self.EXPECT)], [line("a", 0, graders=[grader()])])
        [row] = score(
            result, tree(folder, case_file(expect="grader: {name: quality.answers, pass_below: 0.9}"))
        ).scenarios
        assert (row.verdict, row.was, row.stale) == ("fail", "pass", None)

    def test_answers_are_matched_by_name_when_the_order_changes(self, folder: Path) -> None:
        expect = [{"grader": {"name": "quality.answers"}}, {"grader": {"name": "style.polite"}}]
        answers = [grader(), grader("style.polite", passed=False, why="rude")]
        result = artifact(folder, [scenario("a", expect=expect)], [line("a", 0, "failed", graders=answers)])
        text = case_file(expect="grader: {name: style.polite}", more="      - grader: {name: quality.answers}\n")
        [row] = score(result, tree(folder, text)).scenarios
        assert (row.stale, row.verdict) == (None, "fail")
        assert row.first_failure is not None
        assert "rude" in row.first_failure

    def test_a_grader_that_is_no_longer_asked_is_not_read(self, folder: Path) -> None:
        answers = [grader(passed=False, why="no")]
        result = artifact(folder, [scenario("a", expect=self.EXPECT)], [line("a", 0, "failed", graders=answers)])
        [row] = score(result, tree(folder, case_file(expect="no_error: true"))).scenarios
        assert row.verdict == "pass"

    def test_a_trial_whose_judge_was_not_there_stays_missing(self, folder: Path) -> None:
        """S26"""
        away = grader(kind="judge_unavailable", passed=None, score=None, error="502")
        missing = line("a", 0, "missing", reason="judge_unavailable", trial_record=trial_record(), graders=[away])
        missing["meaning"] = {"meaning": "result", "reason": "", "code": ""}
        result = artifact(folder, [scenario("a", expect=self.EXPECT)], [missing])
        [row] = score(result).scenarios
        assert (row.verdict, len(row.missing)) == ("incomplete", 1)


class TestLeftAlone:
    def test_missing_context_and_elsewhere(self, folder: Path) -> None:
        lines = [
            line("a", 0, "missing", reason="server_lost"),
            line("b", 0, "failed", context=True),
            line("b", 1, "passed", recorded="elsewhere"),
        ]
        result = artifact(folder, [scenario("a", trials=2), scenario("b", trials=2)], lines, k=2)
        first, second = score(result).scenarios
        assert [m.reason for m in first.missing] == ["server_lost", "not played yet"]
        assert second.elsewhere == (1,)

    def test_a_record_that_cannot_be_read_keeps_its_outcome_and_says_so(self, folder: Path) -> None:
        result = artifact(folder, [scenario("a")], [line("a", 0, "failed", reason="as it was", trial_record={"x": 1})])
        [row] = score(result).scenarios
        assert (row.verdict, row.first_failure) == ("fail", "as it was")
        assert row.stale is not None
        assert "trial 1 cannot be read" in row.stale

    def test_half_an_emoji_is_scored_again_as_it_was_written(self, folder: Path) -> None:
        """B11"""
        said = json.loads((Path(__file__).parent.parent / "cases" / "B11.json").read_text())["answer"]
        expect: list[dict[str, Any]] = [{"final_answer_contains": "ok"}, {"final_answer_max_chars": 4}]
        record = trial_record(answer=said)
        result = artifact(folder, [scenario("a", expect=expect)], [line("a", 0, trial_record=record)])
        assert score(result).verdict == "pass"

    def test_what_the_end_of_the_run_knew_is_kept(self, folder: Path) -> None:
        """S35: the evaluations' state, attempts recorded elsewhere, and why others are missing, are in no line."""
        store = FolderResults(folder / "evals" / "results")
        asked = plan({"tone": [scenario("a", trials=3), scenario("b", trials=3)]}, ks=[3])
        write_plan(store, asked)
        append_segment(store, ARTIFACT, [line("a", 0)])
        documents = [
            {
                "id": "eval_0",
                "status": "cancelled",
                "metrics": {"pass_at_1": 0.5, "pass_hat_k": 0.0, "judge_score": None},
                "cases": [
                    {"key": "tone/a", "status": "flaky", "recorded_attempts": [0, 1, 2]},
                    {"key": "tone/b", "status": "pending", "recorded_attempts": []},
                ],
            }
        ]
        opened = open_result(store.root / ARTIFACT)
        live = summarize(
            asked,
            opened.lines(),
            artifact=opened.place,
            evaluations=documents,
            reasons={("tone", "b", 1): "budget"},
            seconds=2.0,
        )
        finish(store, ARTIFACT, live.stored(3))
        later = score(open_result(store.root / ARTIFACT))
        assert later == live
        append_segment(store, ARTIFACT, [line("a", 1, "failed", trial_record=trial_record(answer="Rome"))])
        rebuilt = score(open_result(store.root / ARTIFACT)).scenarios[0]
        assert (rebuilt.elsewhere, rebuilt.failed) == ((2,), 1)

    @pytest.mark.parametrize("stored", ["{", '{"scenarios": [1, {"case": 3}], "evaluations": [null]}', "[1]", '"x"'])
    def test_a_summary_that_cannot_be_read_costs_only_itself(self, folder: Path, stored: str) -> None:
        artifact(folder, [scenario("a")], [line("a", 0)])
        place = folder / "evals/results" / ARTIFACT
        (place / "summary.json").write_text(stored)
        assert score(open_result(place)).verdict == "pass"
