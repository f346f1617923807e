"""What runs mean (S12, S17), and what an attempt comes to (S16, S21, S24–S26)."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evalfleet.checks import (
    INFRA_CODES,
    STOPPING_CODES,
    Grader,
    GraderAnswer,
    Judgement,
    Meaning,
    Place,
    RunMeaning,
    Scenario,
    Trial,
    TurnRecord,
    expectation_from_document,
    judge,
    leave_out,
    meaning_of,
    read_trial,
    spent_seconds,
)
from evalfleet.checks.outcome import LEFT_OUT
from evalfleet.graders.judging import grade
from tests.checks.trials import calls, run, says, trial_with

JOURNALS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "journals.json").read_text())


CONVERSATIONS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "worker" / "data" / "conversations.json").read_text()
)


def recorded(turn: dict[str, Any]) -> TurnRecord:
    """A row's turn as the wire has it. A message is an assistant's text, or a call [id, name, args]."""
    turn = dict(turn)
    events, seconds, outputs = turn.pop("events", []), turn.pop("seconds", 1), turn.pop("outputs", [])
    messages = [
        says(message) if isinstance(message, str) else calls(tuple(message)) for message in turn.pop("messages", [])
    ]
    return TurnRecord("hi", run(turn.pop("status", "succeeded"), seconds=seconds, **turn), messages, outputs, events)


@pytest.mark.parametrize("row", JOURNALS, ids=[row["id"] for row in JOURNALS])
def test_a_terminal_run_means_one_thing(row: dict[str, Any]) -> None:
    turns = [recorded(turn) for turn in row["turns"]]
    meaning = meaning_of(
        turns,
        timeout=row.get("timeout", 300),
        infra_codes=row.get("infra_codes", ()),
        not_played=row.get("not_played"),
    )
    assert meaning.meaning.value == row["meaning"]
    assert meaning.reason == row.get("reason", meaning.reason)
    assert meaning.code == row.get("code", meaning.code)
    assert RunMeaning.from_json(json.loads(json.dumps(meaning.to_json()))) == meaning
    if "again" in row:
        assert (meaning.meaning is Meaning.NO_RESULT) is row["again"]
    trial = read_trial(turns, not_played=row.get("not_played"))
    if "answer" in row:
        assert trial.final_answer == row["answer"]
    if "calls" in row:
        assert [[call.run_id, call.name, call.args] for call in trial.tool_calls] == row["calls"]
    if "expect" not in row:
        return
    answers = [GraderAnswer.from_json(answer) for answer in row.get("answers", ())]
    judgement = judge(scenario(*row["expect"]), trial, meaning, answers)
    assert judgement.outcome == row["outcome"]
    assert judgement.reason == row.get("said", judgement.reason)
    assert judgement.verdict == row.get("verdict", judgement.verdict)


def test_every_rule_on_trials_and_outcomes_has_rows() -> None:
    """S8–S17: here what a journal means, in tests/worker/data what a conversation comes to."""
    rules = Counter(found for row in (*JOURNALS, *CONVERSATIONS) for found in re.findall(r"^S(\d+):", row["id"]))
    assert {number for number in map(str, range(8, 18)) if rules[number] < (1 if number == "10" else 2)} == set()


def test_the_codes_that_stop_everything_are_infrastructure() -> None:
    assert STOPPING_CODES < INFRA_CODES


@pytest.mark.parametrize(
    ("kinds", "waiting"),
    [
        ([], False),
        (["created"], True),
        (["created", "answered"], False),
        (["created", "created", "answered"], True),
        (["created", "answered", "created"], True),
        (["created", "created", "answered", "answered"], False),
        (["answered", "created"], True),
        (["answered"], False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_s12_a_cancelled_run_waited_where_a_question_stayed_open(kinds: list[str], waiting: bool) -> None:
    events = [{"id": f"evt_{n}", "type": f"interaction.{kind}", "data": {"id": "i"}} for n, kind in enumerate(kinds)]
    meaning = meaning_of([TurnRecord("hi", run("cancelled"), (), (), events)], timeout=300)
    assert meaning.meaning is (Meaning.WAITING if waiting else Meaning.NO_RESULT)


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_s33_a_run_of_another_harness_than_the_commits_is_no_result_whatever_time_it_took(status: str) -> None:
    failure = {"code": "harness_changed", "message": "the harness changed while it was played: agent.py"}
    turns = [
        TurnRecord("hi", run(), (), (), ()),
        TurnRecord("there", run(status, seconds=9.0, failure=failure), (), (), ()),
    ]
    assert meaning_of(turns, timeout=5) == RunMeaning(Meaning.NO_RESULT, failure["message"], "harness_changed")


def test_what_a_meaning_says_where_there_is_little_to_say() -> None:
    assert meaning_of((), timeout=1, not_played="it ended") == RunMeaning(Meaning.RESULT, "", "not_played")
    assert RunMeaning.from_json({"meaning": "result", "reason": ""}) == RunMeaning(Meaning.RESULT, "", "")
    without_code = TurnRecord("hi", run("failed", failure={"message": "no code"}), (), (), ())
    assert meaning_of([without_code], timeout=300).code == ""
    late = meaning_of([TurnRecord("hi", run(seconds=1.26), (), (), ())], timeout=1.04)
    assert late.reason == "timed out: 1.3 s spent, and the timeout is 1 s"


def test_s17_the_document_of_an_older_artifact_reads_as_the_agents_result() -> None:
    """Until rules 2 a meaning said that the agent's own failure was to be tried again."""
    older = {"meaning": "result", "reason": "the run failed: busy", "code": "busy", "retryable_agent": True}
    assert RunMeaning.from_json(older) == RunMeaning(Meaning.RESULT, "the run failed: busy", "busy")


def test_what_is_no_document_of_ours_says_so() -> None:
    with pytest.raises(ValueError, match=r"^this is not the document of a meaning: KeyError"):
        RunMeaning.from_json({"meaning": "result"})
    with pytest.raises(ValueError, match=r"^this is not the document of a grader's answer: TypeError"):
        GraderAnswer.from_json({"name": "q.a"})


def test_queueing_is_not_spent() -> None:
    """S12: only what lies between started_at and completed_at."""
    queued = run(seconds=2, created_at="2026-09-02T06:00:00Z")
    assert spent_seconds([TurnRecord("hi", queued, (), (), ()), recorded({"status": "succeeded", "seconds": 3})]) == 5.0


@pytest.mark.parametrize(
    "stamp", [None, "", "yesterday", 17, "2026-09-02T07:00:00"], ids=["null", "empty", "words", "number", "no zone"]
)
def test_a_time_that_is_none_is_nothing_spent(stamp: Any) -> None:
    assert spent_seconds([TurnRecord("hi", run(completed_at=stamp), (), (), ())]) == 0.0


def scenario(*expect: dict[str, Any]) -> Scenario:
    expectations = tuple(expectation_from_document(document) for document in expect)
    return Scenario("a", ("hi",), expectations, 1, 300.0, Place("f", 1, 1))


RESULT = RunMeaning(Meaning.RESULT, "")
PARIS = {"final_answer_contains": "Paris"}
QUALITY = {"grader": {"name": "quality.answers"}}


def answer(passed: bool | None = True, score: float | None = None, **more: Any) -> GraderAnswer:
    return GraderAnswer(more.pop("name", "quality.answers"), more.pop("kind", "answered"), passed, score, **more)


def summed_up(judgement: Judgement) -> tuple[str, str | None]:
    return judgement.outcome, judgement.reason


def test_every_assertion_has_to_hold() -> None:
    judgement = judge(scenario(PARIS, {"no_error": True}), trial_with(answer="Paris"), RESULT, [])
    assert summed_up(judgement) == ("passed", None)
    assert judgement.verdict == "passed"
    assert [finding.index for finding in judgement.findings] == [0, 1]
    assert judgement.judge_score is judgement.judge_feedback is None


def test_the_reason_is_the_first_failure_in_file_order() -> None:
    """S23."""
    judgement = judge(
        scenario({"no_error": True}, {"tool_called": {"name": "t"}}, PARIS), trial_with(answer="Rome"), RESULT, []
    )
    assert summed_up(judgement) == ("failed", '"t" was never called; no tool was called')
    assert [finding.passed for finding in judgement.findings] == [True, False, False]


@pytest.mark.parametrize("meaning", [Meaning.TIMEOUT, Meaning.WAITING])
def test_a_timeout_and_a_waiting_run_are_errors_with_their_reason(meaning: Meaning) -> None:
    """S16: on the wire an error is `failed`, with the reason as feedback."""
    judgement = judge(scenario(PARIS, QUALITY), trial_with(answer="Paris"), RunMeaning(meaning, "why"), [])
    assert summed_up(judgement) == ("error", "why")
    assert (judgement.verdict, judgement.judge_feedback) == ("failed", "why")
    assert [finding.passed for finding in judgement.findings] == [True, None]
    assert judgement.findings[1].sentence == "quality.answers: not graded: why"


@pytest.mark.parametrize(
    ("reason", "feedback"),
    [
        ("x" * 4000, "x" * 4000),
        ("x" * 4001, "x" * 3999 + "…"),
        ("a" * 2000 + "\n" + "b" * 1999, "a" * 2000 + "\n" + "b" * 1999),
        ("a" * 2000 + "\n" + "b" * 2000, "a" * 2000 + "\n" + "b" * 1998 + "…"),
    ],
    ids=["as long as may be", "one more", "lines", "lines and one more"],
)
def test_feedback_has_4000_characters_at_the_most(reason: str, feedback: str) -> None:
    judgement = judge(scenario(PARIS), trial_with(), RunMeaning(Meaning.TIMEOUT, reason), [])
    assert judgement.judge_feedback == feedback


def test_without_a_result_the_attempt_is_missing_and_has_no_verdict() -> None:
    judgement = judge(scenario(PARIS), trial_with(), RunMeaning(Meaning.NO_RESULT, "the run was cancelled"), [])
    assert summed_up(judgement) == ("missing", "the run was cancelled")
    assert judgement.verdict is None
    assert judgement.findings[0].sentence == "not judged: the run was cancelled"


def test_what_the_agent_kept_from_being_played_has_failed() -> None:
    """S8."""
    said = "not played: a ended the conversation: the run failed: agent_exit"
    judgement = judge(scenario(PARIS), trial_with(answer=None, not_played=said), RESULT, [])
    assert summed_up(judgement) == ("failed", said)


def test_a_run_that_failed_is_named_beside_the_first_failure() -> None:
    """Else a crash reads as a missing tool call."""
    crashed = trial_with(error="the run failed: agent_exit: exit status 3")
    judgement = judge(scenario({"tool_called": {"name": "t"}}), crashed, RESULT, [])
    assert judgement.reason == '"t" was never called; no tool was called (the run failed: agent_exit: exit status 3)'
    judgement = judge(scenario({"no_error": True}), crashed, RESULT, [])
    assert judgement.reason is not None
    assert judgement.reason.count("exit status 3") == 1


NEGATIVE: list[dict[str, Any]] = [
    {"tool_not_called": {"name": "rm"}},
    {"max_tool_calls": {"name": "t", "count": 3}},
    {"final_answer_not_contains": "sorry"},
    {"final_answer_max_chars": 100},
]


@pytest.mark.parametrize("document", NEGATIVE, ids=lambda document: next(iter(document)))
def test_saying_only_what_must_not_happen_does_not_pass_a_turn_that_failed(document: dict[str, Any]) -> None:
    """S21."""
    failed = trial_with(error="the run failed: agent_exit: exit status 3")
    judgement = judge(scenario(document), failed, RESULT, [])
    assert judgement.outcome == "failed"
    assert judgement.reason is not None
    assert judgement.reason.startswith("the run failed: agent_exit: exit status 3 (the scenario says only")
    assert judge(scenario(document), trial_with(), RESULT, []).outcome == "passed"


def test_beside_a_positive_assertion_the_seed_holds_literally() -> None:
    """S21: no_error is not asserted, so a failed turn may pass."""
    failed = trial_with(answer="Paris", error="the run failed: agent_exit")
    assert judge(scenario(PARIS, NEGATIVE[0]), failed, RESULT, []).outcome == "passed"


@pytest.mark.parametrize(
    ("given", "pass_below", "outcome", "said"),
    [
        (answer(True), None, "passed", "quality.answers passed it"),
        (answer(True), 0.7, "failed", "quality.answers passed it, but gave no score, and pass_below is 0.7"),
        (answer(False), None, "failed", "quality.answers failed it"),
        (answer(True, 0.7), 0.7, "passed", "quality.answers passed it with the score 0.7"),
        (answer(True, 0.6999999), 0.7, "failed", "quality.answers gave 0.6999999, below 0.7"),
        (answer(False, 0.9), 0.7, "failed", "quality.answers failed it with the score 0.9"),
        (answer(True, 85.0), 0.7, "passed", "quality.answers passed it with the score 85"),
        (answer(True, -0.1), 0.7, "failed", "quality.answers gave -0.1, below 0.7"),
        (answer(False, why="x" * 300), None, "failed", "quality.answers failed it: " + "x" * 300),
        (answer(False, why="x" * 301), None, "failed", "quality.answers failed it: " + "x" * 299 + "…"),
        (answer(False, why="no\x1b[31m\nway"), None, "failed", "quality.answers failed it: no\\u001b[31m\\nway"),
    ],
)
def test_b09_a_graders_pass_and_pass_below_have_to_hold(
    given: GraderAnswer, pass_below: float | None, outcome: str, said: str
) -> None:
    """S25. What is no answer at all never comes this far: it arrives as an error (S24)."""
    grader: dict[str, Any] = {"name": "quality.answers"} | ({} if pass_below is None else {"pass_below": pass_below})
    judgement = judge(scenario({"grader": grader}), trial_with(), RESULT, [given])
    assert judgement.outcome == outcome
    assert judgement.findings[0].sentence == said


@pytest.mark.parametrize(
    ("answers", "outcome", "reason"),
    [
        pytest.param(
            [answer(None, kind="error", error="it raised ValueError: x")],
            "error",
            "quality.answers: it raised ValueError: x",
            id="S24",
        ),
        pytest.param(
            [answer(True, kind="error", error="it raised after all")],
            "error",
            "quality.answers: it raised after all",
            id="S24: whatever else is said beside it",
        ),
        pytest.param(
            [answer(None)],
            "error",
            "quality.answers: answered",
            id="S24: an answer without a decision",
        ),
        pytest.param(
            [answer(None, kind="judge_unavailable", error="503 for 30 s")],
            "missing",
            "judge_unavailable: quality.answers: 503 for 30 s",
            id="S26: never the agent's",
        ),
        pytest.param(
            [answer(None, kind="stopped", error="no judge is configured")],
            "missing",
            "quality.answers: no judge is configured",
            id="S26: the operator's",
        ),
        pytest.param([], "missing", "quality.answers: it has not been graded yet", id="not graded yet"),
        pytest.param(
            [answer(True, name="quality.other")],
            "missing",
            "quality.answers: the answer that came is one of quality.other",
            id="the answer of another grader",
        ),
        pytest.param(
            [answer(True, name="n" * 81)],
            "missing",
            f"quality.answers: the answer that came is one of {'n' * 79}…",
            id="the answer of another grader with a long name",
        ),
    ],
)
def test_without_a_graders_word_there_is_no_judgement(answers: list[GraderAnswer], outcome: str, reason: str) -> None:
    """S23: where the assertions hold, and then with the failed turn beside what a grader raised. Where one of them
    failed, the attempt is failed with its sentence: no grader could have saved it."""
    case = scenario(QUALITY, PARIS)
    judgement = judge(case, trial_with(answer="Paris"), RESULT, answers)
    assert summed_up(judgement) == (outcome, reason)
    assert judgement.judge_score is None
    assert judgement.judge_feedback == (reason if outcome == "error" else None)
    crashed = judge(case, trial_with(answer="Paris", error="the run failed: agent_exit: 3"), RESULT, answers)
    assert crashed.reason == (f"{reason} (the run failed: agent_exit: 3)" if outcome == "error" else reason)
    decided = judge(case, trial_with(answer="Rome"), RESULT, answers)
    assert (decided.outcome, decided.verdict, decided.judge_score) == ("failed", "failed", None)
    assert decided.reason == decided.findings[1].sentence
    assert decided.findings[0] == judgement.findings[0]
    assert decided.judge_feedback == (judgement.findings[0].sentence if answers else None)


def test_s23_a_grader_that_failed_it_decides_beside_one_that_broke() -> None:
    """A grader is one of the twelve assertions: nothing that the broken one could say would let the attempt pass. The
    scores that were given count (S25)."""
    answers = [answer(kind="error", error="it raised"), answer(False, 0.25, name="tone.kind", why="rude")]
    judgement = judge(scenario(QUALITY, {"grader": {"name": "tone.kind"}}), trial_with(), RESULT, answers)
    assert summed_up(judgement) == ("failed", "tone.kind failed it with the score 0.25: rude")
    assert judgement.judge_score == "0.25"
    assert judgement.judge_feedback == "quality.answers: it raised\ntone.kind: failed: 0.25: rude"


@pytest.mark.parametrize("kind", ["judge_unavailable", "stopped"])
def test_s23_a_judge_that_is_away_keeps_no_decided_attempt_back(kind: str) -> None:
    """The first grader without a judge ends the grading; the attempt is recorded as failed all the same."""
    case = scenario(QUALITY, PARIS, {"grader": {"name": "tone.kind"}})
    asked: list[str] = []

    async def call(name: str, *_: Any) -> GraderAnswer:
        asked.append(name)
        return answer(None, name=name, kind=kind, error="no judge", llm_calls=1)

    decided = asyncio.run(grade(case, trial_with(answer="Rome"), RESULT, call))
    assert (decided.judgement is not None, decided.stopped, asked) == (True, None, ["quality.answers"])
    assert decided.judgement is not None
    assert decided.judgement.outcome == "failed"
    assert not decided.judge_answered
    open_ = asyncio.run(grade(case, trial_with(answer="Paris"), RESULT, call))
    if kind == "stopped":
        assert (open_.judgement, open_.stopped) == (None, "no judge")
    else:
        assert open_.judgement is not None
        assert summed_up(open_.judgement) == ("missing", "judge_unavailable: quality.answers: no judge")


def test_without_graders_an_assertion_that_failed_decides_and_nothing_ever_passes() -> None:
    """`--no-graders`: a trial passes when everything holds, so no grader could have saved this one."""
    case = scenario(PARIS, QUALITY, {"grader": {"name": "tone.kind"}})
    left_out = leave_out(case)
    judgement = judge(case, trial_with(answer="Rome"), RESULT, left_out)
    assert (judgement.outcome, judgement.verdict) == ("failed", "failed")
    assert judgement.reason == judgement.findings[0].sentence
    assert [finding.passed for finding in judgement.findings] == [False, None, None]
    assert judgement.findings[1].sentence == "quality.answers: left out (--no-graders)"
    assert (judgement.judge_score, judgement.judge_feedback) == (None, None)
    judgement = judge(case, trial_with(answer="Paris"), RESULT, left_out)
    assert summed_up(judgement) == ("missing", "not judged: 2 graders were left out (quality.answers, tone.kind)")
    assert judgement.verdict is None
    again = [GraderAnswer.from_json(json.loads(json.dumps(item.to_json()))) for item in left_out]
    assert judge(case, trial_with(answer="Paris"), RESULT, again) == judgement, "also when it is scored again (S32)"


def test_beside_a_grader_that_was_left_out_the_others_have_their_line() -> None:
    case = scenario(QUALITY, {"grader": {"name": "tone.kind"}})
    answers = [leave_out(case)[0], answer(False, name="tone.kind")]
    judgement = judge(case, trial_with(), RESULT, answers)
    assert (judgement.outcome, judgement.judge_feedback) == ("failed", "tone.kind: failed")


def test_an_answer_that_costs_nothing_and_prints_nothing_says_so() -> None:
    assert GraderAnswer("q.a", "left_out").to_json() == {
        "name": "q.a", "kind": LEFT_OUT, "passed": None, "score": None, "why": None, "error": None, "log": "",
        "duration_ms": 0, "llm_calls": 0, "llm_tokens": 0, "llm_amount": None,
        "llm_currency": None,
    }  # fmt: skip


def test_left_out_graders_change_nothing_where_there_are_none_or_no_result() -> None:
    assert judge(scenario(PARIS), trial_with(answer="Paris"), RESULT, leave_out(scenario(PARIS))).outcome == "passed"
    only = scenario(QUALITY)
    assert judge(only, trial_with(), RESULT, leave_out(only)).reason == (
        "not judged: 1 grader was left out (quality.answers)"
    )
    timeout = judge(only, trial_with(), RunMeaning(Meaning.TIMEOUT, "timed out"), leave_out(only))
    assert summed_up(timeout) == ("error", "timed out")


@pytest.mark.parametrize(
    ("scores", "mean"),
    [
        ([], None),
        ([None], None),
        ([0.7], "0.7"),
        ([0.1, 0.2], "0.15"),
        ([1.0, 0.0, None], "0.5"),
        ([1.0, 1.0, 0.0], "0.66666666666666667"),
        ([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], "0.125"),
        ([5e-324, 0.0, 0.0], "0." + "0" * 323 + "16666666666666667"),
        ([1e300, 1e300, 0.0], "6" * 299 + "7"),
        ([1e-07], "0.0000001"),
        ([1e20], "100000000000000000000"),
        ([-0.5], "-0.5"),
        ([-0.0], "0"),
        ([1e-300], "0." + "0" * 299 + "1"),
        ([-1e-300], "-0." + "0" * 299 + "1"),
        ([5e-324], "0." + "0" * 323 + "5"),
        ([1e300], "1" + "0" * 300),
        ([1e300, 5e-324], "5" + "0" * 299 + "." + "0" * 323 + "25"),
        ([0.1, -0.3], "-0.1"),
    ],
    ids=lambda given: str(given)[:60],
)
def test_the_judge_score_is_the_mean_as_a_plain_decimal(scores: list[float | None], mean: str | None) -> None:
    """S24, S25: whatever a grader may answer, exactly, and no exponent; wire: a decimal string."""
    graders = [{"grader": {"name": "quality.answers"}} for _ in scores]
    judgement = judge(scenario(*graders, PARIS), trial_with(answer="Paris"), RESULT, [answer(True, s) for s in scores])
    assert judgement.judge_score == mean


def test_the_feedback_is_one_line_for_each_grader() -> None:
    """S25. Control characters are to be seen, and no judge's essay fills the platform's page."""
    other = {"grader": {"name": "tone.kind"}}
    judgement = judge(
        scenario(QUALITY, other),
        trial_with(),
        RESULT,
        [answer(True, 0.9, why="good\nand \x00 short"), answer(False, name="tone.kind", why="x" * 9000)],
    )
    assert judgement.judge_feedback is not None
    first, second = judgement.judge_feedback.split("\n")
    assert first == "quality.answers: passed: 0.9: good\\nand \\u0000 short"
    assert second.startswith("tone.kind: failed: xxx")
    assert len(second) == 500
    assert second.endswith("…")


def test_scoring_the_stored_trial_gives_the_same_judgement() -> None:
    """S32: a pure function of what the artifact holds."""
    case, trial = scenario(PARIS, QUALITY), trial_with(answer="Paris \ud83d", made=[("t", {"q": "\udc80"})])
    answers = [answer(True, 0.9, why="half \ud83d")]
    again = judge(
        Scenario.from_json(json.loads(json.dumps(case.to_json()))),
        Trial.from_json(json.loads(json.dumps(trial.to_json()))),
        RunMeaning.from_json(RESULT.to_json()),
        [GraderAnswer.from_json(json.loads(json.dumps(item.to_json()))) for item in answers],
    )
    first = judge(case, trial, RESULT, answers)
    assert (again.outcome, again.judge_score) == (first.outcome, first.judge_score) == ("passed", "0.9")


def test_graders_are_listed_in_file_order() -> None:
    case = scenario(QUALITY, PARIS, {"grader": {"name": "tone.kind", "pass_below": 0.5}})
    assert case.graders == (Grader("quality.answers"), Grader("tone.kind", 0.5))
    assert [(grader.file, grader.function) for grader in case.graders] == [("quality", "answers"), ("tone", "kind")]
