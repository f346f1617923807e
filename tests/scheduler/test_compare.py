"""A result beside its baseline, from artifacts alone (S31)."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from evalfleet.artifact import FolderResults, Result, append_segment, finish, open_artifact, write_plan
from evalfleet.checks.case import load_cases
from evalfleet.errors import UsageError
from evalfleet.plan import Plan, PlannedGraders, Scorer
from evalfleet.quarantine import Quarantine
from scheduler.compare import Baseline, FailOn, asked_baseline, baseline_of, planned_baseline
from scheduler.differences import change_lines, comparison_lines
from scheduler.plan import SCORER
from scheduler.score import Today, recorded, rescored
from scheduler.summary import summarize
from tests.scheduler.samples import line, plan, scenario, trial_record

OLD, NEW = "20261101T000000Z-00000001", "20261102T000000Z-00000002"
GRADED = ({"grader": {"name": "quality.answers"}},)


@pytest.fixture
def store(tmp_path: Path) -> FolderResults:
    return FolderResults(tmp_path / "evals/results")


def artifact(
    store: FolderResults,
    name: str,
    scenarios: Sequence[dict[str, Any]],
    lines: Sequence[Mapping[str, Any]],
    *,
    done: bool = True,
    **changed: Any,
) -> Result:
    """Written, and finished if `done`. `changed` fields of the plan."""
    ks = [scenarios[0]["trials"]]
    asked: Plan = replace(plan({"tone": scenarios}, ks=ks), artifact=name, id=f"sub_{name[-8:]}", **changed)
    write_plan(store, asked)
    append_segment(store, name, lines)
    opened = open_artifact(store, name)
    if done:
        finish(store, name, recorded(opened).stored(0))
    return open_artifact(store, name)


def outcomes(id_: str, text: str) -> list[dict[str, Any]]:
    """`pf`: trial 0 passed, trial 1 failed."""
    words = {"p": "passed", "f": "failed"}
    return [line(id_, n, words[c], reason=None if c == "p" else f"no {n}") for n, c in enumerate(text)]


def shown(store: FolderResults, before: Result, now: Result) -> list[str]:
    compared = Baseline(before).against(now.plan, recorded(now))
    return [text.plain for text in comparison_lines(compared, None)]


class TestPairs:
    def test_what_moved_is_told_with_both_verdicts_and_why(self, store: FolderResults) -> None:
        rows = [scenario(id_, trials=2) for id_ in "abcd"]
        before = artifact(store, OLD, rows, [*outcomes("a", "pp"), *outcomes("b", "pp"), *outcomes("c", "ff")])
        append_segment(store, OLD, outcomes("d", "pp"))
        before = open_artifact(store, OLD)
        now = artifact(
            store, NEW, rows, [*outcomes("a", "ff"), *outcomes("b", "pf"), *outcomes("c", "fp"), *outcomes("d", "pp")]
        )
        assert shown(store, before, now) == [
            f"compared with {store.shown(OLD)}, commit c0ffee000000",
            "regressed  tone/a  PASS 2/2 → FAIL 0/2",
            "    no 0",
            "weaker     tone/b  PASS 2/2 → FLAKY 1/2",
            "    no 1",
            "improved   tone/c  FAIL 0/2 → FLAKY 1/2",
            "4 scenarios compared: 1 regressed, 1 weaker, 1 improved, 1 the same; exact McNemar p = 1.000",
        ]

    def test_a_scenario_is_paired_over_all_groups_of_trials(self, store: FolderResults) -> None:
        """S31: by key, whatever evaluation it belongs to there and here."""
        before = artifact(store, OLD, [scenario("a")], outcomes("a", "p"))
        both = plan({"tone": [scenario("a", evaluation=1), scenario("b", trials=2)]}, ks=[2, 1])
        summary = summarize(both, outcomes("a", "f"), artifact="x")
        compared = Baseline(before).against(both, summary)
        assert [(pair.key, pair.move) for pair in compared.comparison.pairs] == [("tone/a", "regressed")]
        assert compared.comparison.new == ("tone/b",)

    @pytest.mark.parametrize(
        ("old", "new", "listed"),
        [
            pytest.param({"user": ["Other?"]}, {}, "    tone/b: turns", id="turns"),
            pytest.param({"expect": [{"no_error": True}]}, {}, "    tone/b: expectations", id="expectations"),
            pytest.param({"timeout": 5.0}, {}, "    tone/b: timeout", id="timeout"),
            pytest.param({"expect": GRADED}, {}, "    tone/b: expectations", id="a grader more"),
        ],
    )
    def test_other_content_is_no_pair_and_says_what_differs(
        self, store: FolderResults, old: dict[str, Any], new: dict[str, Any], listed: str
    ) -> None:
        same = scenario("z")
        before = artifact(store, OLD, [same, scenario("b", **old)], [*outcomes("z", "p"), *outcomes("b", "p")])
        now = artifact(store, NEW, [same, scenario("b", **new)], [*outcomes("z", "p"), *outcomes("b", "f")])
        said = shown(store, before, now)
        assert "1 changed since, not compared:" in said
        assert listed in said

    def test_what_was_said_before_it_in_the_conversation_counts(self, store: FolderResults) -> None:
        before = artifact(store, OLD, [scenario("a"), scenario("b")], [])
        now = artifact(store, NEW, [scenario("a", user=["Hi"]), scenario("b")], [])
        with pytest.raises(UsageError, match=r"nothing to compare .* \(2 changed since\)"):
            shown(store, before, now)

    def test_other_graders_change_what_they_grade_and_nothing_else(self, store: FolderResults) -> None:
        """S10: the bundle is part of a graded scenario's version."""
        rows = [scenario("a"), scenario("b", expect=GRADED)]
        bundles = [PlannedGraders(f"sha256:{c}", None, (), False, 1024, False, version=c) for c in "ab"]
        before = artifact(store, OLD, rows, [], graders=bundles[0], done=False)
        now = artifact(store, NEW, rows, [], graders=bundles[1], done=False)
        compared = Baseline(before).against(now.plan, recorded(now))
        assert compared.comparison.changed == (("tone/b", ("graders",)),)
        assert [pair.key for pair in compared.comparison.pairs] == ["tone/a"]

    def test_where_it_stands_in_the_file_does_not_count(self, store: FolderResults) -> None:
        before = artifact(store, OLD, [scenario("a")], outcomes("a", "p"))
        moved = {**scenario("a"), "place": ["evals/cases/tone.yaml", 90, 9]}
        now = artifact(store, NEW, [moved], outcomes("a", "p"))
        assert shown(store, before, now)[-1].startswith("1 scenario compared: ")

    def test_the_lists_of_what_is_in_no_pair_are_told(self, store: FolderResults) -> None:
        before = artifact(store, OLD, [scenario("z"), scenario("gone"), scenario("k")], outcomes("z", "p"))
        asked = plan({"tone": [scenario("z"), scenario("k", trials=2, evaluation=1), scenario("fresh")]}, ks=[1, 2])
        compared = Baseline(before).against(asked, summarize(asked, outcomes("z", "p"), artifact="x"))
        told = [text.plain for text in comparison_lines(compared, None)]
        assert told[1:] == [
            "1 scenario compared: 0 regressed, 0 weaker, 0 improved, 1 the same; exact McNemar p = 1.000",
            "1 changed since, not compared:",
            "    tone/k: turns before it",
            "1 new, not compared:",
            "    tone/fresh",
            "1 removed, not compared:",
            "    tone/gone",
        ]

    def test_what_a_partial_result_did_not_select_is_called_so(self, store: FolderResults) -> None:
        """Read as "removed", it looks like a scenario that somebody deleted."""
        before = artifact(store, OLD, [scenario("z"), scenario("left")], outcomes("z", "p"))
        asked = plan({"tone": [scenario("z")]})
        (evaluation,) = asked.evaluations
        for tail, listed in {
            "": "removed",
            "/partial": "not selected on one side",
            "/draft/2-of-3": "not selected on one side",
        }.items():
            suite = replace(evaluation.suite, key=f"partial/k1{tail}")
            now = replace(asked, evaluations=(replace(evaluation, suite=suite),))
            compared = Baseline(before).against(now, summarize(now, outcomes("z", "p"), artifact="x"))
            told = [text.plain for text in comparison_lines(compared, None)]
            assert told[2:] == [f"1 {listed}, not compared:", "    tone/left"]

    def test_a_long_list_is_cut_and_counted(self, store: FolderResults) -> None:
        before = artifact(store, OLD, [scenario("z")], outcomes("z", "p"))
        asked = plan({"tone": [scenario("z"), *(scenario(f"n{n}") for n in range(25))]})
        compared = Baseline(before).against(asked, summarize(asked, outcomes("z", "p"), artifact="x"))
        told = [text.plain for text in comparison_lines(compared, None)]
        assert told[-1] == "    and 5 more"
        assert len(told) == 2 + 1 + 20 + 1


class TestNothingPaired:
    def test_it_is_a_usage_error_before_anything_runs(self, store: FolderResults) -> None:
        """S31: exit 2."""
        before = artifact(store, OLD, [scenario("a", trials=2)], outcomes("a", "pp"))
        with pytest.raises(UsageError, match=r"no scenario .* \(1 with another number of trials\)") as refused:
            Baseline(before).check(plan({"tone": [scenario("a", trials=3)]}, ks=[3]))
        assert refused.value.exit_code == 2


class TestScored:
    def test_both_sides_are_judged_by_todays_cases(self, store: FolderResults, tmp_path: Path) -> None:
        """A stricter check alone is no regression: it fails the older result, too."""
        record = trial_record(answer="Paris.")
        before = artifact(store, OLD, [scenario("a")], [line("a", 0, trial_record=record)])
        now = artifact(store, NEW, [scenario("a")], [line("a", 0, trial_record=record)])
        cases = tmp_path / "evals/cases"
        cases.mkdir(parents=True)
        (cases / "tone.yaml").write_text(
            "scenarios:\n- {id: a, user: What is the capital of France?, expect: [final_answer_contains: X]}\n"
        )
        today = Today(now.plan, load_cases(tmp_path))
        found = rescored(now, today)
        compared = Baseline(before).against(now.plan, found.summary, today)
        assert [(pair.before.verdict, pair.now.verdict, pair.move) for pair in compared.comparison.pairs] == [
            ("fail", "fail", "same")
        ]
        assert [text.plain for text in change_lines(found.changes, None)] == [
            "tone/a  PASS → FAIL  1 trial passed → failed",
            "    its expectations changed",
            '    trial 1: the final answer does not contain "X"; it is "Paris."',
        ]

    def test_other_rules_are_said(self, store: FolderResults) -> None:
        before = artifact(store, OLD, [scenario("a")], outcomes("a", "p"), scorer=Scorer("evalfleet-checks", "0"))
        now = artifact(store, NEW, [scenario("a")], outcomes("a", "p"))
        assert f"they were judged by different rules (0 and {SCORER.version})" in shown(store, before, now)[1]


class TestBaseline:
    """`--baseline COMMIT|RESULT`"""

    def test_by_folder_by_name_and_by_submission(self, store: FolderResults, tmp_path: Path) -> None:
        made = artifact(store, OLD, [scenario("a")], outcomes("a", "p"))
        for word in (str(store.root / OLD), OLD, made.plan.id):
            assert baseline_of(word, store, tmp_path).name == OLD

    def test_by_commit_the_newest_complete_one(self, store: FolderResults, tmp_path: Path) -> None:
        commit = "ab" * 20
        artifact(store, OLD, [scenario("a")], outcomes("a", "p"), commit=commit)
        artifact(store, NEW, [scenario("a")], outcomes("a", "p"), commit=commit)
        later = "20261103T000000Z-00000003"
        artifact(store, later, [scenario("a", trials=2)], outcomes("a", "p"), commit=commit)  # one is missing
        artifact(store, "20261104T000000Z-00000004", [scenario("a")], outcomes("a", "p"))  # of another commit
        assert baseline_of(commit[:7], store, tmp_path).name == NEW
        assert baseline_of(commit.upper(), store, tmp_path, apart_from=NEW).name == OLD

    def test_by_what_git_calls_a_commit(self, store: FolderResults, tmp_path: Path) -> None:
        def git(*words: str) -> str:
            identity = ("-c", "user.name=a", "-c", "user.email=a@b.example")
            return subprocess.check_output(["git", *identity, *words], cwd=tmp_path, text=True).strip()

        git("init", "-q", "-b", "main")
        git("commit", "-q", "--allow-empty", "-m", "one")
        first = git("rev-parse", "HEAD")
        git("commit", "-q", "--allow-empty", "-m", "two")
        artifact(store, OLD, [scenario("a")], outcomes("a", "p"), commit=first)
        assert baseline_of("main~1", store, tmp_path).name == OLD
        with pytest.raises(UsageError, match=r"holds no complete result of commit [0-9a-f]{12}; check it out and run"):
            baseline_of("main", store, tmp_path)

    @pytest.mark.parametrize("word", ["nothing", "--help", "abc", "a b"])
    def test_what_is_neither_says_so(self, store: FolderResults, tmp_path: Path, word: str) -> None:
        with pytest.raises(UsageError, match="neither a result nor a commit"):
            baseline_of(word, store, tmp_path)

    def test_a_folder_that_cannot_be_read_hides_no_other(self, store: FolderResults, tmp_path: Path) -> None:
        artifact(store, OLD, [scenario("a")], outcomes("a", "p"))
        broken = store.root / NEW
        broken.mkdir()
        (broken / "suite.json").write_text("{")
        assert baseline_of("c0ffee0", store, tmp_path).name == OLD

    def test_failing_on_regression_needs_a_baseline(self, store: FolderResults, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="--baseline COMMIT"):
            asked_baseline(None, "any", store, tmp_path)

    def test_s34_a_submission_is_compared_with_what_it_was_started_with(
        self, store: FolderResults, tmp_path: Path
    ) -> None:
        """By name in the same results; elsewhere by its place, which a plan of others must not make us open."""
        said: list[str] = []
        made = artifact(store, OLD, [scenario("a")], outcomes("a", "p"))
        here = Baseline(made, "any").planned(store)
        assert (here.artifact, here.commit, here.fail_on) == (OLD, made.plan.commit, "any")
        started = replace(made.plan, baseline=here)
        choices: tuple[FailOn | None, ...] = (None, "significant")
        for asked in choices:
            found = planned_baseline(started, store, asked, said.append)
            assert found is not None
            assert (found.result.name, found.fail_on) == (OLD, asked or "any")
        other = FolderResults(tmp_path / "other")
        apart = Baseline(made, None).planned(other)
        assert apart.artifact == str(store.root / OLD)
        started = replace(made.plan, baseline=apart)
        found = planned_baseline(started, other, None, said.append, anywhere=True)
        assert found is not None
        assert found.result.name == OLD
        assert said == []
        assert planned_baseline(started, other, None, said.append) is None
        assert "cannot be read, --baseline RESULT names another" in said[0]
        with pytest.raises(UsageError, match="--baseline RESULT names another"):  # a gate that cannot be held is lost
            planned_baseline(started, other, "any", said.append)
        assert planned_baseline(made.plan, store, None, said.append) is None
        with pytest.raises(UsageError, match="--fail-on-regression needs something to compare with"):
            planned_baseline(made.plan, store, "any", said.append)

    def test_the_gate_counts_only_what_it_was_asked_to(self, store: FolderResults) -> None:
        before = artifact(store, OLD, [scenario("a")], outcomes("a", "p"))
        now = artifact(store, NEW, [scenario("a")], outcomes("a", "f"))
        lost = [
            Baseline(before, fail_on).against(now.plan, recorded(now)).is_lost
            for fail_on in (None, "any", "significant")
        ]
        assert lost == [False, True, False]

    def test_what_is_in_quarantine_is_compared_and_does_not_gate(self, store: FolderResults) -> None:
        rows = [scenario("a"), scenario("b")]
        before = artifact(store, OLD, rows, [*outcomes("a", "p"), *outcomes("b", "p")])
        apart = (Quarantine("tone/a", "it flickers", date(2099, 1, 1)),)
        now = artifact(store, NEW, rows, [*outcomes("a", "f"), *outcomes("b", "p")], quarantine=apart)
        compared = Baseline(before, "any").against(now.plan, recorded(now))
        assert compared.comparison.is_regression()
        assert not compared.is_lost
