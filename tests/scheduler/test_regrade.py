"""Graders run again over stored trials (S32, S26): real artifacts, real cages, no agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from evalfleet.artifact import FolderResults, append_segment, finish, open_artifact, write_plan
from evalfleet.checks.case import load_cases
from evalfleet.checks.outcome import GraderAnswer
from evalfleet.errors import ConfigError, GraderRefused, JudgeNotConfigured, UsageError
from evalfleet.ledger import JUDGE_ROW
from evalfleet.server.judge import Judge
from evalfleet.tree import read_tree_config
from scheduler.evaluate import Options
from scheduler.judge_anew import Anew, judge_anew
from scheduler.progress import PlainReporter
from scheduler.regrade import Regrading, own_judge
from scheduler.score import Today, recorded
from tests.scheduler.samples import ARTIFACT, SUBMISSION, line, plan, scenario, trial_record

QUESTION = "What is the capital of France?"
GRADED = ({"grader": {"name": "quality.answers"}},)
TRUE, RAISES = "return 'Paris' in run['final_answer']", "raise ValueError('odd')"


def old_answer(**more: Any) -> dict[str, Any]:
    return {"name": "quality.answers", "kind": "answered", "passed": False, "why": "too strict then", **more}


class Place:
    """A tree and the artifact of an earlier day in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = FolderResults(root / "evals/results")
        (root / "evalfleet.toml").write_text('[harness]\nname = "a"\n[harness.command]\nargv = ["true"]\n')
        (root / "evals/cases").mkdir(parents=True)
        (root / "evals/graders").mkdir()
        self.case()

    def case(self, expect: str = "grader: {name: quality.answers}", user: str = QUESTION) -> None:
        (self.root / "evals/cases/tone.yaml").write_text(
            f"scenarios:\n- id: a\n  user: {user}\n  trials: 2\n  expect:\n  - {expect}\n"
        )

    def grader(self, body: str) -> None:
        (self.root / "evals/graders/quality.py").write_text(f"def answers(t, case, run):\n    {body}\n")

    def artifact(
        self, lines: Sequence[Mapping[str, Any]], *, expect: Sequence[Mapping[str, Any]] = GRADED, trials: int = 2
    ) -> None:
        write_plan(self.store, plan({"tone": [scenario("a", trials=trials, expect=expect)]}, ks=[trials]))
        append_segment(self.store, ARTIFACT, lines)
        result = open_artifact(self.store, ARTIFACT)
        finish(self.store, ARTIFACT, recorded(result).stored(1))

    def regrade(self) -> Anew:
        result = open_artifact(self.store, ARTIFACT)
        today = Today(result.plan, load_cases(self.root), ask_again=True)
        options = Options(environment={})
        with (self.root / "said").open("w") as said:
            reporter = PlainReporter(said)
            config = read_tree_config(self.root)
            return judge_anew(result, today, config, options, reporter, regrade=True, recording=False)

    def files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (self.store.root / ARTIFACT).rglob("*") if path.is_file()}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_grader_that_was_fixed_changes_the_verdict_in_a_new_artifact(place: Place) -> None:
    """S32: the old one stays as it is, byte by byte."""
    place.artifact(
        [
            line("a", 0, "failed", reason="too strict then", graders=[old_answer()]),
            line("a", 1, "failed", graders=[old_answer()], trial_record=trial_record(answer="Rome")),
        ]
    )
    before = place.files()
    place.grader(TRUE)
    anew = place.regrade()
    [row] = anew.rescored.summary.scenarios
    assert (row.verdict, row.was, row.passed, row.failed) == ("flaky", "fail", 1, 1)
    [change] = anew.rescored.changes.scenarios
    assert (change.was, change.now, change.trial, change.cause) == ("fail", "flaky", 0, "its graders were asked again")
    assert dict(change.attempts) == {("failed", "passed"): 1}
    assert place.files() == before

    new = open_artifact(place.store, anew.plan.artifact)
    assert (new.plan.id != SUBMISSION, new.plan.rescored_from) == (True, SUBMISSION)
    assert place.store.exists(f"{new.name}/graders.tar.gz")
    assert new.plan.graders is not None
    lines = sorted(new.lines(), key=lambda one: int(one["trial"]))
    assert [one["run_id"] for one in lines] == ["run_tone_a_0", "run_tone_a_1"], "the runs are the same"
    assert {answer["why"] for one in lines for answer in one["graders"]} == {None}, "the answers are new"
    assert recorded(new).scenarios[0].verdict == "flaky", "it can be read and scored as any other"


def test_s26_a_judges_key_that_is_not_set_is_told_before_anything_is_graded(place: Place) -> None:
    place.artifact([line("a", 0), line("a", 1)])
    place.grader('return t.llm("?") == "yes"')
    judge = '[judge]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\napi_key_env = "JUDGE_KEY"\n'
    config = place.root / "evalfleet.toml"
    config.write_text((config.read_text() if config.exists() else "") + judge)
    with pytest.raises(ConfigError, match=r"\[judge\] api_key_env names JUDGE_KEY, which is not set"):
        place.regrade()
    assert [path.name for path in place.store.root.glob("[!.]*")] == [ARTIFACT]


def test_a_grader_that_was_not_asked_then_is_asked_now(place: Place) -> None:
    place.artifact([line("a", 0), line("a", 1)], expect=[{"final_answer_contains": "Paris"}])
    place.grader("return False")
    anew = place.regrade()
    [row] = anew.rescored.summary.scenarios
    assert (row.stale, row.verdict) == (None, "fail")
    assert anew.rescored.changes.scenarios[0].cause == "its expectations changed; its graders were asked again"


def test_what_has_no_result_or_is_stale_or_elsewhere_is_not_graded(place: Place) -> None:
    timeout = {"meaning": "timeout", "reason": "timed out: 300 s", "code": "timeout"}
    cut = line("a", 0, "error", reason="timed out: 300 s", meaning=timeout)
    place.artifact([cut, line("a", 1, "missing", reason="x")])
    place.grader("raise SystemExit")
    anew = place.regrade()
    [row] = anew.rescored.summary.scenarios
    assert (row.errors, [m.reason for m in row.missing]) == (1, ["x"])
    place.case(user="Another question?")
    with pytest.raises(UsageError, match="none of the scenarios that can be judged calls a grader"):
        place.regrade()


def test_a_trial_of_ours_counts_although_the_old_evaluation_holds_another_run(place: Place) -> None:
    """S35: what was played here is evidence for a new evaluation."""
    theirs = line("a", 1, graders=[old_answer()], recorded="elsewhere")
    place.artifact([line("a", 0, graders=[old_answer(passed=True)]), theirs])
    place.grader(TRUE)
    [row] = place.regrade().rescored.summary.scenarios
    assert (row.verdict, row.passed, row.elsewhere) == ("pass", 2, ())


def test_an_attempt_that_only_its_judge_failed_is_graded_now(place: Place) -> None:
    """S26: its trial is in the artifact."""
    played = {"meaning": "result", "reason": "", "code": ""}
    away = line("a", 0, "missing", reason="judge_unavailable: 503", meaning=played, trial_record=trial_record())
    place.artifact([{**away, "code": "judge_unavailable", "run_id": "run_x"}, line("a", 1)])
    place.grader(TRUE)
    anew = place.regrade()
    [row] = anew.rescored.summary.scenarios
    assert (row.verdict, row.was) == ("pass", "incomplete")
    now = open_artifact(place.store, anew.plan.artifact).line("tone", "a", 0)
    assert now is not None
    assert (now["outcome"], now["run_id"], "code" in now) == ("passed", "run_x", False)


def test_a_grader_that_broke_is_an_error_again_with_its_line(place: Place) -> None:
    """S24"""
    place.artifact([line("a", 0, graders=[old_answer()]), line("a", 1, graders=[old_answer()])])
    place.grader(RAISES)
    [row] = place.regrade().rescored.summary.scenarios
    assert row.errors == 2
    assert "ValueError: odd (evals/graders/quality.py, line 2)" in str(row.first_failure)


def test_graders_that_cannot_be_called_are_refused_before_anything(place: Place) -> None:
    """S6"""
    place.artifact([line("a", 0), line("a", 1)])
    place.grader(TRUE)
    place.case(expect="grader: {name: quality.other}")
    with pytest.raises(GraderRefused, match=r"evals/cases/tone.yaml:6:\d+: quality.other: .* no public function"):
        place.regrade()
    assert [path.name for path in place.store.root.iterdir() if path.is_dir()] == [ARTIFACT]


def test_without_a_judge_grading_stops_and_says_what_is_left(place: Place) -> None:
    """S26: the operator's; what is not graded again is missing, and the old artifact has its verdicts still."""
    place.artifact([line("a", 0, graders=[old_answer()]), line("a", 1, graders=[old_answer()])])
    place.grader("return t.llm('?')")
    anew = place.regrade()
    assert "no judge is set" in anew.stopped
    [row] = anew.rescored.summary.scenarios
    assert (row.verdict, row.was) == ("incomplete", "pass")
    assert row.missing[0].reason.startswith("not graded again: grading stopped: ")


async def test_the_judge_of_the_tree_is_asked_as_the_server_asks_it() -> None:
    with pytest.raises(JudgeNotConfigured, match="no judge is set"):
        await own_judge(Judge(None))("prompt", None, 5.0)


Kinds = Callable[[int], str]


async def outcomes(place: Place, count: int, kinds: Kinds) -> tuple[list[str], str, int]:
    """(outcomes, why it stopped, calls) of `count` trials one after the other; `kinds`: call number → answer's kind."""
    rows = [line("a", n, graders=[old_answer()]) for n in range(count)]
    place.artifact(rows, trials=count)
    result = open_artifact(place.store, ARTIFACT)
    calls = 0

    def grader_for(_line: Mapping[str, Any]) -> Any:
        async def call(name: str, _case: Any, _run: Any, _about: Any) -> GraderAnswer:
            nonlocal calls
            kind = kinds(calls)
            calls += 1
            return GraderAnswer(name, kind, passed=True if kind == "answered" else None, error="503", llm_calls=1)

        return call

    regrading = Regrading(Today(result.plan, load_cases(place.root), ask_again=True), grader_for, at_once=1)
    found = [now["outcome"] async for _, now in regrading.lines(result.lines())]
    return found, regrading.stopped, calls


async def test_a_judge_that_is_away_is_asked_for_two_more_gradings_then_the_attempt_is_missing(place: Place) -> None:
    """S26"""
    place.grader(TRUE)
    found, stopped, calls = await outcomes(place, 2, lambda call: "judge_unavailable" if call < 3 else "answered")
    assert (found, stopped, calls) == (["missing", "passed"], "", 4)


async def test_ten_gradings_in_a_row_without_a_judge_end_it(place: Place) -> None:
    """S26: nobody waits for hours for a judge that is away."""
    place.grader(TRUE)
    found, stopped, calls = await outcomes(place, 8, lambda _: "judge_unavailable")
    assert (found, calls) == (["missing"] * 3, JUDGE_ROW)
    assert stopped.startswith("grading stopped: 10 gradings in a row had no judge: ")


async def test_an_answer_in_between_begins_the_row_anew(place: Place) -> None:
    place.grader(TRUE)
    found, stopped, _ = await outcomes(place, 8, lambda call: "answered" if call % 3 == 2 else "judge_unavailable")
    assert (found, stopped) == (["passed"] * 8, "")
