"""The seed "Evaluations" (create, record, complete, cancel, read, list); wire.md, "Evaluations, beyond the seed"."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.conformance.conftest import Caller, assert_problem, attempt, fresh
from tests.conformance.deployments import COMMIT, Target

FIELDS = [
    "id", "status", "harness_version", "baseline_version", "scorer", "suite", "k", "progress", "metrics", "comparison",
    "cases", "created_at", "completed_at",
]  # fmt: skip
CASE_FIELDS = ["id", "key", "name", "status", "recorded_attempts", "missing_attempts"]
METRICS = ["pass_at_1", "pass_hat_k", "k", "judge_score", "tokens", "amount", "currency"]
SEED = {
    "suite": {"key": "compute-contract", "version": "v1", "name": "Compute contract"},
    "scorer": {"id": "compute-contract", "version": "v1"},
    "k": 1,
    "cases": [
        {"key": "uname", "name": "reports the kernel and arch",
         "input": {"prompt": "Run `uname -sm` and reply with what it printed."}, "expected": {"contains": "Linux"}},
        {"key": "arch", "name": "remembers the architecture",
         "input": {"prompt": "What architecture did you just report?"}, "expected": {"contains": "x86_64"}},
    ],
}  # fmt: skip


@pytest.fixture(scope="session")
def runs(api: Caller) -> list[dict[str, Any]]:
    """Four ended runs of chats of their own, each with 15 tokens and 0.001 USD where the agent is ours."""
    made = [api.create(f"run {number}")["id"] for number in range(4)]
    return [api.ended(run_id) for run_id in made]


def same(api: Caller, evaluation: dict[str, Any]) -> bool:
    return bool(api.get(f"/v2/evaluations/{evaluation['id']}") == evaluation)


# -- create


def test_seed_create_answers_201_with_every_field_and_all_cases(api: Caller, runs: list[dict[str, Any]]) -> None:
    commit = runs[0]["harness_commit"]
    body = {"harness_id": api.harness_id, "harness_commit": commit, **SEED}
    answer = api.post("/v2/evaluations", body, key=fresh())
    assert answer.status_code == 201
    made = answer.json()
    assert answer.headers["location"] == f"/v2/evaluations/{made['id']}"
    assert list(made) == FIELDS
    assert made["status"] == "running"
    assert set(made["harness_version"]) == {"number", "commit"}
    assert made["harness_version"]["commit"] == commit
    assert (made["suite"], made["scorer"], made["k"]) == (SEED["suite"], SEED["scorer"], 1)
    assert made["progress"] == {"done": 0, "total": 2}
    assert [made[name] for name in ("baseline_version", "metrics", "comparison", "completed_at")] == [None] * 4
    assert [list(case) for case in made["cases"]] == [CASE_FIELDS] * 2
    for case, key in zip(made["cases"], ("uname", "arch"), strict=True):
        assert re.fullmatch("ecase_[0-9A-Z]{26}", case["id"])
        assert case["key"] == key
        assert (case["status"], case["recorded_attempts"], case["missing_attempts"]) == ("pending", None, [0])
    assert same(api, made)


def test_seed_create_takes_the_harness_as_it_stands_and_k_1_unless_told(api: Caller) -> None:
    body = {"harness_id": api.harness_id, "suite": {"key": "s"}, "cases": [{"key": "a"}]}
    made = api.post("/v2/evaluations", body, key=fresh()).json()
    assert made["harness_version"] == api.get(f"/v2/harnesses/{api.harness_id}")["versions"][0]
    assert made["k"] == 1
    assert made["scorer"] is None
    assert made["suite"]["key"] == "s"


@pytest.mark.parametrize("k", [1, 2, 100])
def test_seed_create_takes_k_from_1_to_100(api: Caller, k: int) -> None:
    made = api.evaluation("ab", k=k)
    assert made["k"] == k
    assert [case["missing_attempts"] for case in made["cases"]] == [list(range(k))] * 2


def test_seed_create_takes_2000_cases_and_always_answers_all_of_them(api: Caller) -> None:
    cases = [{"key": f"case {number}", "input": number, "expected": [number]} for number in range(2000)]
    made = api.evaluation(cases=cases)
    assert [case["key"] for case in made["cases"]] == [case["key"] for case in cases]
    assert len(api.get(f"/v2/evaluations/{made['id']}")["cases"]) == 2000
    refused = api.post("/v2/evaluations", api.evaluation_body(cases=[*cases, {"key": "one more"}]), key=fresh())
    assert_problem(refused, 422, "validation_failed", "/cases")


@pytest.mark.parametrize("value", [None, 1.5, "text", [], {"deep": [{"er": None}]}, "x" * 300_000, True])
def test_seed_create_takes_any_json_for_input_and_expected(api: Caller, value: Any) -> None:
    assert api.evaluation(cases=[{"key": "a", "input": value, "expected": value}])["status"] == "running"


def test_wire_evaluations_a_baseline_commit_is_the_baseline_version(api: Caller, ours: Target) -> None:
    made = api.evaluation(baseline_harness_commit=COMMIT)
    assert made["baseline_version"] == {"number": 1, "commit": COMMIT}
    assert made["harness_version"]["number"] == 2
    older = api.evaluation(harness_commit=COMMIT)
    assert older["harness_version"] == {"number": 1, "commit": COMMIT}


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"harness_id": None}, "/harness_id"),
        ({"suite": None}, "/suite"),
        ({"suite": "s"}, "/suite"),
        ({"suite": {}}, "/suite/key"),
        ({"suite": {"key": " "}}, "/suite/key"),
        ({"suite": {"key": "s", "version": 1}}, "/suite/version"),
        ({"scorer": "s"}, "/scorer"),
        ({"scorer": {"version": "1"}}, "/scorer/id"),
        ({"k": 0}, "/k"),
        ({"k": 101}, "/k"),
        ({"k": True}, "/k"),
        ({"k": "1"}, "/k"),
        ({"k": 1.5}, "/k"),
        ({"cases": None}, "/cases"),
        ({"cases": []}, "/cases"),
        ({"cases": {}}, "/cases"),
        ({"cases": ["a"]}, "/cases/0"),
        ({"cases": [{}]}, "/cases/0/key"),
        ({"cases": [{"key": ""}]}, "/cases/0/key"),
        ({"cases": [{"key": 1}]}, "/cases/0/key"),
        ({"cases": [{"key": "x" * 1001}]}, "/cases/0/key"),
        ({"cases": [{"key": "a"}, {"key": "b"}, {"key": "a"}]}, "/cases/2/key"),
        ({"harness_commit": "main"}, "/harness_commit"),
        ({"harness_commit": "F" * 40}, "/harness_commit"),
        ({"harness_commit": "f" * 40}, "/harness_commit"),
        ({"baseline_harness_commit": "f" * 40}, "/baseline_harness_commit"),
        ({"baseline_harness_commit": 1}, "/baseline_harness_commit"),
    ],
)
def test_seed_create_what_cannot_be_is_422_with_its_pointer(api: Caller, change: dict[str, Any], pointer: str) -> None:
    answer = api.post("/v2/evaluations", {**api.evaluation_body(), **change}, key=fresh())
    assert_problem(answer, 422, "validation_failed", pointer)


def test_seed_create_names_everything_that_is_wrong_at_once(api: Caller) -> None:
    body = api.evaluation_body(k=0, suite={}, cases=[{"key": "a"}, {"key": "a"}])
    answer = api.post("/v2/evaluations", body, key=fresh())
    assert_problem(answer, 422, "validation_failed", "/k", "/suite/key", "/cases/1/key")


@pytest.mark.parametrize("harness_id", ["h_01M1GFRNR5F4N8S2JZV85T30A4", "nonsense"])
def test_seed_create_for_a_harness_that_is_not_there_is_404(api: Caller, harness_id: str) -> None:
    answer = api.post("/v2/evaluations", {**api.evaluation_body(), "harness_id": harness_id}, key=fresh())
    assert_problem(answer, 404, "not_found")


# -- record attempts


def test_seed_record_answers_results_in_order_and_the_whole_evaluation(api: Caller, runs: list[dict[str, Any]]) -> None:
    evaluation = api.evaluation("abc")
    answer = api.record(evaluation, attempt("b", 0, runs[1]), attempt("a", 0, runs[0], "failed"))
    assert answer.status_code == 200
    body = answer.json()
    assert list(body) == ["results", "evaluation"]
    ids = {case["key"]: case["id"] for case in evaluation["cases"]}
    assert body["results"] == [{"case_id": ids[key], "attempt_index": 0, "status": "recorded"} for key in ("b", "a")]
    after = body["evaluation"]
    assert list(after) == FIELDS
    assert [case["id"] for case in after["cases"]] == [case["id"] for case in evaluation["cases"]]
    assert [case["status"] for case in after["cases"]] == ["failed", "passed", "pending"]
    assert [case["recorded_attempts"] for case in after["cases"]] == [[0], [0], None]
    assert [case["missing_attempts"] for case in after["cases"]] == [[], [], [0]]
    assert after["progress"] == {"done": 2, "total": 3}
    assert (after["status"], after["completed_at"]) == ("running", None)
    assert list(after["metrics"]) == METRICS
    assert same(api, after)


def test_seed_record_names_a_case_by_key_or_by_id(api: Caller, runs: list[dict[str, Any]]) -> None:
    evaluation = api.evaluation("ab", k=2)
    by_id = attempt("", 0, runs[0], case_id=evaluation["cases"][0]["id"])
    answer = api.record(evaluation, by_id, attempt("b", 1, runs[1]))
    assert [case["recorded_attempts"] for case in answer.json()["evaluation"]["cases"]] == [[0], [1]]
    # the same attempt once by its case's key and once by its id, in one batch
    both = api.record(evaluation, attempt("a", 1, runs[2]), {**by_id, "attempt_index": 1, "run_id": runs[2]["id"]})
    assert [result["status"] for result in both.json()["results"]] == ["recorded", "duplicate"]
    clash = api.record(
        evaluation, attempt("b", 0, api.play()), attempt("", 0, runs[3], case_id=evaluation["cases"][1]["id"])
    )
    assert_problem(clash, 409, "attempt_conflict", "/attempts/1/run_id")


def test_seed_record_the_servers_numbers_come_from_the_runs(
    api: Caller, ours: Target, runs: list[dict[str, Any]]
) -> None:
    evaluation = api.evaluation("ab", k=2)
    answer = api.record(
        evaluation,
        attempt("a", 0, runs[0], judge_score="1.00", judge_feedback="good"),
        attempt("a", 1, runs[1], "failed", judge_score="0.25"),
        attempt("b", 0, runs[2]),
    )
    assert answer.json()["evaluation"]["metrics"] == {
        "pass_at_1": 0.75, "pass_hat_k": 0, "k": 2, "judge_score": 0.625, "tokens": 45, "amount": "0.003",
        "currency": "USD",
    }  # fmt: skip
    assert '"pass_hat_k":0,' in answer.text.replace(" ", "")  # a number as the seed writes it


def test_semantics_30_the_usage_of_a_chat_counts_once(api: Caller, ours: Target) -> None:
    first = api.play("one")
    second = api.play("two", chat_id=first["chat_id"])
    evaluation = api.evaluation("ab")
    for attempts in ([attempt("a", 0, first)], [attempt("b", 0, second)]):
        metrics = api.record(evaluation, *attempts).json()["evaluation"]["metrics"]
        assert (metrics["tokens"], metrics["amount"]) == (30, "0.002")


@pytest.mark.parametrize(
    ("verdicts", "status"), [("pp", "passed"), ("pf", "flaky"), ("fp", "flaky"), ("ff", "failed"), ("p", "pending")]
)
def test_semantics_29_a_case_is_pending_passed_flaky_or_failed(
    api: Caller, runs: list[dict[str, Any]], verdicts: str, status: str
) -> None:
    evaluation = api.evaluation("a", k=2)
    words = {"p": "passed", "f": "failed"}
    attempts = [attempt("a", number, runs[number], words[letter]) for number, letter in enumerate(verdicts)]
    after = api.record(evaluation, *attempts).json()["evaluation"]
    assert after["cases"][0]["status"] == status
    assert after["progress"]["done"] == (0 if status == "pending" else 1)


def test_seed_record_the_same_attempt_again_is_a_duplicate_and_changes_nothing(
    api: Caller, runs: list[dict[str, Any]]
) -> None:
    evaluation = api.evaluation("ab")
    first = api.record(evaluation, attempt("a", 0, runs[0])).json()
    again = api.record(evaluation, attempt("a", 0, runs[0], "failed", judge_score="0.5"))
    assert [result["status"] for result in again.json()["results"]] == ["duplicate"]
    assert again.json()["evaluation"] == first["evaluation"]
    mixed = api.record(evaluation, attempt("a", 0, runs[0]), attempt("b", 0, runs[1])).json()
    assert [result["status"] for result in mixed["results"]] == ["duplicate", "recorded"]


def test_seed_record_another_run_for_an_attempt_rejects_the_whole_batch(
    api: Caller, runs: list[dict[str, Any]]
) -> None:
    evaluation = api.evaluation("ab")
    before = api.record(evaluation, attempt("a", 0, runs[0])).json()["evaluation"]
    answer = api.record(evaluation, attempt("b", 0, runs[1]), attempt("a", 0, runs[2]))
    assert_problem(answer, 409, "attempt_conflict", "/attempts/1/run_id")
    assert same(api, before)


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"case_key": "z"}, "/attempts/1/case_key"),
        ({"case_key": None}, "/attempts/1/case_key"),
        ({"case_id": "ecase_01M1GFRNR5F4N8S2JZV85T30A4"}, "/attempts/1/case_key"),
        ({"case_key": None, "case_id": "ecase_01M1GFRNR5F4N8S2JZV85T30A4"}, "/attempts/1/case_id"),
        ({"case_key": None, "case_id": "nonsense"}, "/attempts/1/case_id"),
        ({"attempt_index": 1}, "/attempts/1/attempt_index"),
        ({"attempt_index": -1}, "/attempts/1/attempt_index"),
        ({"attempt_index": "0"}, "/attempts/1/attempt_index"),
        ({"attempt_index": None}, "/attempts/1/attempt_index"),
        ({"attempt_index": 10**30}, "/attempts/1/attempt_index"),
        ({"run_id": None}, "/attempts/1/run_id"),
        ({"run_id": "nonsense"}, "/attempts/1/run_id"),
        ({"run_id": "run_01M1GFRNR5F4N8S2JZV85T30A4"}, "/attempts/1/run_id"),
        ({"verdict": None}, "/attempts/1/verdict"),
        ({"verdict": "error"}, "/attempts/1/verdict"),
        ({"verdict": ["passed"]}, "/attempts/1/verdict"),
        ({"verdict": True}, "/attempts/1/verdict"),
        ({"judge_score": 0.5}, "/attempts/1/judge_score"),
        ({"judge_score": "good"}, "/attempts/1/judge_score"),
        ({"judge_score": "1e5"}, "/attempts/1/judge_score"),
        ({"judge_score": "NaN"}, "/attempts/1/judge_score"),
        ({"judge_score": ""}, "/attempts/1/judge_score"),
        ({"judge_score": "٣"}, "/attempts/1/judge_score"),
        ({"judge_feedback": 5}, "/attempts/1/judge_feedback"),
        ({"scorer_id": None}, "/attempts/1/scorer_id"),
        ({"scorer_version": None}, "/attempts/1/scorer_version"),
    ],
)
def test_seed_record_what_is_no_attempt_is_422_with_its_pointer_and_nothing_is_applied(
    api: Caller, runs: list[dict[str, Any]], change: dict[str, Any], pointer: str
) -> None:
    evaluation = api.evaluation("ab")
    answer = api.record(evaluation, attempt("a", 0, runs[0]), {**attempt("b", 0, runs[1]), **change})
    assert_problem(answer, 422, "validation_failed", pointer)
    assert same(api, evaluation)


@pytest.mark.parametrize("score", ["0", "1.00", "-0.5", "100", "0.333333333333333333333"])
def test_wire_evaluations_a_judge_score_is_a_decimal_string(
    api: Caller, runs: list[dict[str, Any]], score: str
) -> None:
    answer = api.record(api.evaluation(), attempt("a", 0, runs[0], judge_score=score))
    assert answer.json()["evaluation"]["metrics"]["judge_score"] == pytest.approx(float(score))


def test_wire_evaluations_a_run_of_another_commit_or_harness_is_no_evidence(
    api: Caller, ours: Target, runs: list[dict[str, Any]]
) -> None:
    older = api.evaluation(harness_commit=COMMIT)
    assert_problem(api.record(older, attempt("a", 0, runs[0])), 422, "validation_failed", "/attempts/0/run_id")
    elsewhere = api.evaluation(harness_id=ours.other_harness_id)
    assert_problem(api.record(elsewhere, attempt("a", 0, runs[0])), 422, "validation_failed", "/attempts/0/run_id")


def test_issue_3_a_run_that_has_not_ended_is_no_evidence(api: Caller, ours: Target) -> None:
    run = api.create("wait")
    answer = api.record(api.evaluation(), attempt("a", 0, run))
    assert_problem(answer, 422, "validation_failed", "/attempts/0/run_id")
    api.post(f"/v2/runs/{run['id']}/cancel")
    api.ended(run["id"])


@pytest.mark.parametrize(
    ("change", "pointer"),
    [({"scorer_id": "else"}, "/attempts/1/scorer_id"), ({"scorer_version": "2"}, "/attempts/1/scorer_version")],
)
def test_issue_3_a_scorer_that_is_not_the_evaluations_is_422_and_nothing_is_applied(
    api: Caller, runs: list[dict[str, Any]], change: dict[str, str], pointer: str
) -> None:
    evaluation = api.evaluation("ab", scorer={"id": "checks", "version": "1"})
    answer = api.record(evaluation, attempt("a", 0, runs[0]), attempt("b", 0, runs[1], **change))
    assert_problem(answer, 422, "validation_failed", pointer)
    assert same(api, evaluation)
    assert api.record(evaluation, attempt("a", 0, runs[0])).status_code == 200
    free = api.evaluation("ab")  # no scorer was named: anybody's attempts are taken
    assert api.record(free, attempt("a", 0, runs[0]), attempt("b", 0, runs[1], **change)).status_code == 200


def test_issue_3_a_duplicate_inside_one_batch_is_one_attempt(api: Caller, runs: list[dict[str, Any]]) -> None:
    evaluation = api.evaluation()
    answer = api.record(evaluation, attempt("a", 0, runs[0]), attempt("a", 0, runs[0]))
    assert [result["status"] for result in answer.json()["results"]] == ["recorded", "duplicate"]
    assert answer.json()["evaluation"]["cases"][0]["recorded_attempts"] == [0]


def test_issue_3_a_batch_has_no_small_limit(api: Caller, runs: list[dict[str, Any]]) -> None:
    evaluation = api.evaluation(cases=[{"key": f"all/{number}"} for number in range(2000)], k=4)
    attempts = [  # of conversations that ended in their first scenario, which is the only way to share a run (S8)
        attempt(f"all/{case}", index, runs[index], "failed", judge_feedback="x" * 250)
        for case in range(2000)
        for index in range(4)
    ]
    answer = api.record(evaluation, *attempts)
    assert answer.status_code == 200
    assert len(answer.json()["results"]) == 8_000
    assert answer.json()["evaluation"]["progress"] == {"done": 2000, "total": 2000}


@pytest.mark.parametrize(
    ("scores", "mean"),
    [
        (["1" + "0" * 300], "1e+300"),
        (["0." + "0" * 323 + "5"], "5e-324"),
        (["-0.1", "0.3"], "0.1"),
        (["1" + "0" * 300, "-1" + "0" * 300, "0.25", "0." + "0" * 323 + "5"], "0.0625"),
        (["9007199254740993"], "9007199254740992.0"),
        (["17976931348623157" + "0" * 292], "1.7976931348623157e+308"),
    ],
    ids=["1e300", "5e-324", "decimals", "far apart", "31 digits", "the largest"],
)
def test_s24_every_score_that_a_grader_may_answer_is_recorded_with_every_digit(
    api: Caller, ours: Target, runs: list[dict[str, Any]], scores: list[str], mean: str
) -> None:
    """One batch each: what is added up to in between is exact, too. Before the end and after it, on both stores."""
    evaluation = api.evaluation("a", k=len(scores))
    for index, score in enumerate(scores):
        answer = api.record(evaluation, attempt("a", index, runs[index], judge_score=score))
        assert answer.status_code == 200
    for text in (answer.text, api.end(evaluation).text):
        assert f'"judge_score":{mean},' in text.replace(" ", "")


@pytest.mark.parametrize("score", ["1" + "0" * 309, "1e300", "NaN", "0." + "1" * 1101, ".5", "1.", ""])
def test_what_is_no_decimal_of_a_float_is_refused_and_named(
    api: Caller, ours: Target, runs: list[dict[str, Any]], score: str
) -> None:
    answer = api.record(api.evaluation("a"), attempt("a", 0, runs[0], judge_score=score))
    assert_problem(answer, 422, "validation_failed", "/attempts/0/judge_score")


@pytest.mark.parametrize("batches", [1, 2])
def test_a_run_is_evidence_for_one_attempt_of_an_evaluation(
    api: Caller, ours: Target, runs: list[dict[str, Any]], batches: int
) -> None:
    """Not for another case, nor for another trial; in one batch or in two."""
    first = attempt("a", 0, runs[0])
    for other in (attempt("b", 0, runs[0]), attempt("a", 1, runs[0])):
        evaluation = api.evaluation("ab", k=2)
        if batches == 2:
            assert api.record(evaluation, first).status_code == 200
        again = api.record(evaluation, first, other)
        problem = assert_problem(again, 422, "validation_failed", "/attempts/1/run_id")
        assert f"is the evidence for attempt_index 0 of {evaluation['cases'][0]['id']}" in problem["detail"]
        recorded = [case["recorded_attempts"] for case in api.get(f"/v2/evaluations/{evaluation['id']}")["cases"]]
        assert recorded == [[0] if batches == 2 else None, None]


def test_s8_scenarios_of_one_case_and_trial_share_the_run_that_ended_their_conversation(
    api: Caller, ours: Target, runs: list[dict[str, Any]]
) -> None:
    evaluation = api.evaluation(cases=[{"key": key} for key in ("f/one", "f/two", "f/three", "g/one")], k=2)
    shared = [attempt("f/one", 0, runs[0]), attempt("f/two", 0, runs[0], "failed")]
    answer = api.record(evaluation, *shared)
    assert answer.json()["evaluation"]["metrics"]["tokens"] == 15, "a chat is counted once"
    assert api.record(evaluation, *shared, attempt("f/three", 0, runs[0], "failed")).status_code == 200
    for other in (
        attempt("f/one", 1, runs[0], "failed"),  # another trial is another chat
        attempt("g/one", 0, runs[0], "failed"),  # so is another case
    ):
        assert_problem(api.record(evaluation, other), 422, "validation_failed", "/attempts/0/run_id")
    both = [attempt("f/one", 1, runs[1]), attempt("f/two", 1, runs[1])]
    assert_problem(api.record(evaluation, *both), 422, "validation_failed", "/attempts/1/run_id")  # one was played


# -- complete


def test_seed_complete_closes_and_recomputes_and_is_idempotent(
    api: Caller, ours: Target, runs: list[dict[str, Any]]
) -> None:
    evaluation = api.evaluation("ab")
    api.record(evaluation, attempt("a", 0, runs[0], judge_score="1.00"), attempt("b", 0, runs[1], judge_score="1.00"))
    answer = api.end(evaluation)
    assert answer.status_code == 200
    done = answer.json()
    assert list(done) == FIELDS
    assert done["status"] == "completed"
    assert done["metrics"] == {
        "pass_at_1": 1, "pass_hat_k": 1, "k": 1, "judge_score": 1, "tokens": 30, "amount": "0.002", "currency": "USD",
    }  # fmt: skip
    assert done["comparison"] is None
    assert done["completed_at"] > done["created_at"]
    assert api.end(evaluation).json() == done
    assert same(api, done)


def test_seed_complete_reads_the_usage_of_each_chat_anew(api: Caller, ours: Target) -> None:
    run = api.play("one")
    evaluation = api.evaluation()
    api.record(evaluation, attempt("a", 0, run))
    api.play("two", chat_id=run["chat_id"])  # the chat went on after its attempt was recorded
    assert api.end(evaluation).json()["metrics"]["tokens"] == 30


def test_seed_complete_refuses_while_attempts_are_missing_and_names_them(
    api: Caller, runs: list[dict[str, Any]]
) -> None:
    evaluation = api.evaluation("abc", k=2)
    api.record(evaluation, attempt("a", 0, runs[0]), attempt("a", 1, runs[1]), attempt("b", 1, runs[2]))
    answer = api.end(evaluation)
    document = assert_problem(answer, 409, "evaluation_incomplete")
    assert document["title"] == "Conflict"
    assert document["detail"] == "The evaluation cannot be completed until every case has all required attempts."
    assert document["errors"] == [
        {"name": f"/cases/{case['id']}", "location": "server", "reason": f"case has {count} of 2 required attempts",
         "code": "incomplete"}
        for case, count in zip(evaluation["cases"][1:], (1, 0), strict=True)
    ]  # fmt: skip
    assert api.get(f"/v2/evaluations/{evaluation['id']}")["status"] == "running"


def test_seed_complete_a_completed_evaluation_cannot_be_cancelled(api: Caller, runs: list[dict[str, Any]]) -> None:
    evaluation = api.evaluation()
    api.record(evaluation, attempt("a", 0, runs[0]))
    done = api.end(evaluation).json()
    document = assert_problem(api.end(evaluation, "cancel"), 409, "evaluation_completed")
    assert document["detail"] == "A completed evaluation cannot be cancelled."
    assert same(api, done)


def test_wire_evaluations_the_comparison_counts_improved_and_regressed_cases(api: Caller, ours: Target) -> None:
    """S31: against the newest completed evaluation of the same suite key at the baseline commit, by case key."""
    suite, other_suite = {"key": fresh()}, {"key": fresh()}
    commit = ours.commits[-1]
    runs = [api.play(str(number)) for number in range(4)]

    def completed(verdicts: dict[str, str], **more: Any) -> dict[str, Any]:
        evaluation = api.evaluation("".join(verdicts), **{"suite": suite, "harness_commit": commit, **more})
        words = {"p": "passed", "f": "failed"}
        attempts = [
            attempt(key, 0, run, words[verdict]) for (key, verdict), run in zip(verdicts.items(), runs, strict=False)
        ]
        assert api.record(evaluation, *attempts).status_code == 200
        answer: dict[str, Any] = api.end(evaluation).json()
        return answer

    first = completed({"a": "p", "b": "f", "c": "p"}, baseline_harness_commit=commit)
    assert first["comparison"] is None  # there is none to compare with
    completed({"a": "f", "b": "p", "c": "p"}, suite=other_suite)  # another suite's
    second = completed({"a": "f", "b": "p", "c": "p", "d": "p"}, baseline_harness_commit=commit)
    version = {"number": 2, "commit": commit}
    assert second["comparison"] == {"version": version, "improved": 1, "regressed": 1}
    third = completed({"a": "p", "b": "p", "c": "f"}, baseline_harness_commit=commit)
    assert third["comparison"] == {"version": version, "improved": 1, "regressed": 1}
    running = api.evaluation("a", suite=suite, baseline_harness_commit=commit)
    assert running["comparison"] is None


# -- cancel


def test_seed_cancel_with_nothing_recorded_has_null_rates(api: Caller) -> None:
    evaluation = api.evaluation()
    answer = api.end(evaluation, "cancel")
    assert answer.status_code == 200
    cancelled = answer.json()
    assert list(cancelled) == FIELDS
    assert cancelled["status"] == "cancelled"
    assert cancelled["progress"] == {"done": 0, "total": 1}
    assert cancelled["metrics"] == {
        "pass_at_1": None, "pass_hat_k": None, "k": 1, "judge_score": None, "tokens": 0, "amount": "0",
        "currency": "USD",
    }  # fmt: skip
    assert cancelled["cases"] == evaluation["cases"]
    assert api.end(evaluation, "cancel").json() == cancelled
    assert same(api, cancelled)


def test_seed_cancel_keeps_what_is_recorded_and_recomputes_from_it(api: Caller, runs: list[dict[str, Any]]) -> None:
    evaluation = api.evaluation("abc", k=2)
    api.record(evaluation, attempt("a", 0, runs[0]), attempt("a", 1, runs[1], "failed"), attempt("b", 0, runs[2]))
    cancelled = api.end(evaluation, "cancel").json()
    assert cancelled["progress"] == {"done": 1, "total": 3}
    assert [case["status"] for case in cancelled["cases"]] == ["flaky", "pending", "pending"]
    assert cancelled["metrics"]["pass_at_1"] == 0.75
    assert cancelled["metrics"]["pass_hat_k"] == 0


def test_seed_cancel_a_cancelled_evaluation_is_neither_completed_nor_added_to(
    api: Caller, runs: list[dict[str, Any]]
) -> None:
    evaluation = api.evaluation("ab")
    api.record(evaluation, attempt("a", 0, runs[0]))
    cancelled = api.end(evaluation, "cancel").json()
    assert_problem(api.end(evaluation), 409, "evaluation_cancelled")
    assert_problem(api.record(evaluation, attempt("b", 0, runs[1])), 409, "evaluation_cancelled")
    again = api.record(evaluation, attempt("a", 0, runs[0]))
    assert again.json()["results"][0]["status"] == "duplicate"
    assert same(api, cancelled)


def test_e09_an_ended_evaluation_takes_no_other_run(api: Caller, runs: list[dict[str, Any]]) -> None:
    evaluation = api.evaluation()
    api.record(evaluation, attempt("a", 0, runs[0]))
    done = api.end(evaluation).json()
    answer = api.record(evaluation, attempt("a", 0, runs[1]))
    assert answer.status_code == 409
    assert answer.json()["code"] in ("attempt_conflict", "evaluation_completed")
    assert api.record(evaluation, attempt("a", 0, runs[0])).json()["evaluation"] == done


def test_e09_batch_complete_and_cancel_at_once_leave_one_end_and_true_metrics(
    api: Caller, runs: list[dict[str, Any]]
) -> None:
    for _ in range(5):
        evaluation = api.evaluation("ab")
        api.record(evaluation, attempt("a", 0, runs[0]))
        acts = [lambda e=evaluation: api.record(e, attempt("b", 0, runs[1], "failed"))]
        acts += [lambda e=evaluation: api.end(e), lambda e=evaluation: api.end(e, "cancel")] * 3
        with ThreadPoolExecutor(len(acts)) as pool:
            answers: list[httpx.Response] = list(pool.map(lambda act: act(), acts))
        assert all(answer.status_code in (200, 409) for answer in answers)
        after = api.get(f"/v2/evaluations/{evaluation['id']}")
        assert after["status"] in ("completed", "cancelled")
        recorded = sum(len(case["recorded_attempts"] or ()) for case in after["cases"])
        assert after["metrics"]["pass_at_1"] == 1 / recorded
        assert answers[0].status_code == (200 if recorded == 2 else 409)


@pytest.mark.parametrize("act", ["complete", "cancel"])
@pytest.mark.parametrize("content", [b"", b"{}", b"null"])
def test_seed_complete_and_cancel_say_nothing_in_their_body(api: Caller, act: str, content: bytes) -> None:
    answer = api.send("POST", f"/v2/evaluations/{api.evaluation()['id']}/{act}", content=content)
    assert answer.status_code == (409 if act == "complete" else 200)


# -- read and list


def test_seed_list_has_the_newest_first_in_the_seeds_fields(api: Caller, runs: list[dict[str, Any]]) -> None:
    commit = runs[0]["harness_commit"]
    first = api.evaluation(suite={"key": "list", "version": "v1", "name": "Listed"}, harness_commit=commit)
    api.record(first, attempt("a", 0, runs[0]))
    api.end(first)
    second = api.evaluation(harness_commit=commit)
    entries = api.get("/v2/evaluations", harness_commit=commit, limit=5)["data"]
    assert [entry["id"] for entry in entries[:2]] == [second["id"], first["id"]]
    assert list(entries[1]) == ["id", "name", "status", "harness_version", "progress", "pass_at_1", "created_at"]
    assert entries[1] == {
        "id": first["id"], "name": "Listed", "status": "completed", "harness_version": first["harness_version"],
        "progress": {"done": 1, "total": 1}, "pass_at_1": 1, "created_at": first["created_at"],
    }  # fmt: skip
    assert entries[0]["pass_at_1"] is None


def test_seed_list_filters_by_status(api: Caller) -> None:
    running, cancelled = api.evaluation(), api.evaluation()
    api.end(cancelled, "cancel")
    commit = running["harness_version"]["commit"]
    both = {running["id"], cancelled["id"]}
    tried = [("running", {running["id"]}), ("cancelled", {cancelled["id"]}), ("running,cancelled", both)]
    for status, wanted in [*tried, ("completed,failed", set())]:
        listed = api.get("/v2/evaluations", harness_commit=commit, status=status, limit=100)["data"]
        assert {entry["id"] for entry in listed} & both == wanted
        assert {entry["status"] for entry in listed} <= set(status.split(","))


def test_wire_evaluations_the_list_is_of_a_commit_or_of_a_harness_and_never_of_both(api: Caller, ours: Target) -> None:
    made = api.evaluation(harness_commit=COMMIT)
    by_commit = api.get("/v2/evaluations", harness_commit=COMMIT, limit=100)["data"]
    by_harness = api.get("/v2/evaluations", harness_id=api.harness_id, limit=100)["data"]
    assert made["id"] in [entry["id"] for entry in by_commit]
    assert made["id"] in [entry["id"] for entry in by_harness]
    assert {entry["harness_version"]["commit"] for entry in by_commit} == {COMMIT}
    assert api.get("/v2/evaluations", harness_commit="f" * 40)["data"] == []
    for params in ({}, {"harness_commit": COMMIT, "harness_id": api.harness_id}, {"status": "running"}):
        assert_problem(api.send("GET", "/v2/evaluations", params=params), 400, "invalid_parameter", "harness_commit")


@pytest.mark.parametrize(
    ("name", "value"), [("harness_commit", "main"), ("harness_commit", "F" * 40), ("harness_id", "nonsense")]
)
def test_seed_list_a_scope_that_is_not_understood_is_400(api: Caller, name: str, value: str) -> None:
    assert_problem(api.send("GET", "/v2/evaluations", params={name: value}), 400, "invalid_parameter", name)


def test_seed_list_a_status_that_is_none_is_400(api: Caller) -> None:
    answer = api.send("GET", "/v2/evaluations", params={"harness_commit": COMMIT, "status": "done"})
    assert_problem(answer, 400, "invalid_parameter", "status")
