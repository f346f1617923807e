"""The plan document: arithmetic of conversations (S8, S9), its JSON, and the idempotency key of a run (I2)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalfleet.checks.case import Case, Place, Scenario, parse_case
from evalfleet.plan import (
    Attempt,
    Conversation,
    Limits,
    Plan,
    PlannedBaseline,
    PlannedCase,
    PlannedEvaluation,
    PlannedGraders,
    PlannedScenario,
    PlannedTarget,
    Scorer,
    Step,
    SuiteName,
    canonical_json,
    run_key,
)

CASE = b"""\
defaults: {trials: 3, timeout: 5m}
scenarios:
  - {id: first, user: hi, trials: 1, expect: [final_answer_contains: x]}
  - {id: second, user: [one, two], expect: [tool_called: {name: t, args: {n: [1, 2.5, null, "\\u00e9"]}}]}
  - {id: third, user: three, trials: 2, expect: [grader: {name: q.a, pass_below: 0.7}]}
"""


def scenarios() -> tuple[Scenario, ...]:
    loaded = parse_case(CASE, name="tone", file="evals/cases/tone.yaml")
    assert loaded.problems == ()
    return loaded.cases[0].scenarios


def plan(evaluations: tuple[int | None, ...] = (0, 2, 1)) -> Plan:
    planned = tuple(PlannedScenario(s, e) for s, e in zip(scenarios(), evaluations, strict=True))
    solo = Scenario("solo", ("hello",), planned[0].scenario.expect, 1, 60.0, Place("evals/cases/solo.yaml", 2, 5))
    return Plan(
        id="sub_00000000000000000000000000",
        pin="ab" * 32,
        generation=0,
        created_at="2026-11-30T12:45:00.000000Z",
        evalfleet="0.1.0",
        suite="checks",
        artifact="20261130T124500Z-00000000",
        target=PlannedTarget(None, "h_1", None, "concierge"),
        commit="c" * 40,
        concurrency=8,
        limits=Limits(),
        scorer=Scorer("evalfleet-checks", "1"),
        infra_codes=("proxy_down",),
        evaluations=tuple(
            PlannedEvaluation(k, f"eval_{k}" if k < 3 else None, SuiteName(f"checks/k{k}", f"v{k}", "checks"))
            for k in (1, 2, 3)
        ),
        cases=(
            PlannedCase("tone", "evals/cases/tone.yaml", planned),
            PlannedCase("solo", "evals/cases/solo.yaml", (PlannedScenario(solo, 0),)),
        ),
        graders=PlannedGraders("sha256:00", None, ("LANG",), False, 1024, True),
    )


def test_conversations_come_trial_by_trial_so_that_every_case_has_a_first_one_early() -> None:
    assert [str(c) for c in plan().conversations()] == ["0:0", "1:0", "0:1", "0:2"]


def test_a_conversation_plays_up_to_the_last_scenario_that_wants_its_trial_s9() -> None:
    document = plan()
    assert document.steps(Conversation(0, 0)) == [Step(0, True), Step(1, True), Step(2, True)]
    assert document.steps(Conversation(0, 1)) == [Step(0, False), Step(1, True), Step(2, True)]
    assert document.steps(Conversation(0, 2)) == [Step(0, False), Step(1, True)]
    assert document.steps(Conversation(0, 3)) == []


def test_what_was_not_selected_is_only_ever_context() -> None:
    document = plan((None, None, 1))
    assert document.steps(Conversation(0, 0)) == [Step(0, False), Step(1, False), Step(2, True)]
    assert [str(a) for a in document.all_attempts()] == ["0:2:0", "1:0:0", "0:2:1"]
    with pytest.raises(KeyError, match="only context"):
        document.evaluation_of(Attempt(0, 0, 0))


def test_attempts_know_their_key_their_scenario_and_their_evaluation() -> None:
    document = plan()
    attempt = Attempt(0, 2, 1)
    assert document.key_of(attempt) == "tone/third"
    assert document.scenario(attempt).id == "third"
    assert document.evaluation_of(attempt).k == 2
    assert document.keys_of(0) == ["tone/first", "solo/solo"]
    assert attempt.conversation == Conversation(0, 1)


def test_turns_and_context_turns_are_counted() -> None:
    assert (plan().turns(), plan().context_turns()) == (4 + 1 + 4 + 3, 2)


def test_the_document_survives_json() -> None:
    document = plan()
    assert Plan.loads(document.dumps()) == document
    assert Plan.from_json(json.loads(json.dumps(document.to_json()))) == document
    assert document.dumps() == Plan.loads(document.dumps()).dumps()


def test_its_json_has_the_stated_shape() -> None:
    document = plan().to_json()
    assert document["evaluations"][0] == {
        "k": 1,
        "id": "eval_1",
        "suite": {"key": "checks/k1", "version": "v1", "name": "checks"},
    }
    scenario = document["cases"][0]["scenarios"][2]
    assert scenario["place"] == ["evals/cases/tone.yaml", 5, 5]
    assert {k: v for k, v in scenario.items() if k != "place"} == {
        "id": "third",
        "user": ["three"],
        "expect": [{"grader": {"name": "q.a", "pass_below": 0.7}}],
        "trials": 2,
        "timeout": 300.0,
        "expect_places": [[5, 50]],
        "evaluation": 1,
    }


def test_evaluations_get_their_ids_once_created() -> None:
    assert [e.id for e in plan().with_evaluations(["a", "b", "c"]).evaluations] == ["a", "b", "c"]
    with pytest.raises(ValueError, match="zip"):
        plan().with_evaluations(["a"])


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in plan().to_json().items() if key != name}


NO_PLANS: list[Any] = [
    pytest.param({**plan().to_json(), "format": 2}, "format 1: 2", id="another format"),
    pytest.param([], "format 1: 'list'", id="a list"),
    pytest.param(_without("commit"), "no 'commit'", id="no commit"),
    pytest.param({**plan().to_json(), "target": None}, "not readable", id="no target"),
    pytest.param(
        {**plan().to_json(), "cases": [{"name": "a", "file": "b", "scenarios": [{"evaluation": 0}]}]},
        "lacks",
        id="half a scenario",
    ),
]


@pytest.mark.parametrize(("document", "wanted"), NO_PLANS)
def test_what_is_no_plan_says_why(document: Any, wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        Plan.from_json(document)


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=6))
def test_every_wanted_trial_is_scored_once_and_in_its_own_conversation_s9(wanted: list[tuple[int, bool]]) -> None:
    base = scenarios()[0]
    planned = tuple(
        PlannedScenario(replace(base, id=f"s{i}", trials=trials), 0 if chosen else None)
        for i, (trials, chosen) in enumerate(wanted)
    )
    document = replace(plan(), cases=(PlannedCase("c", "evals/cases/c.yaml", planned),))
    attempts = list(document.all_attempts())
    assert len(attempts) == len(set(attempts)) == sum(trials for trials, chosen in wanted if chosen)
    for conversation in document.conversations():
        steps = document.steps(conversation)
        assert steps[-1].scored
        assert [step.scenario for step in steps] == list(range(len(steps)))
        assert document.attempts(conversation) == [a for a in attempts if a.conversation == conversation]
    assert document.turns() - document.context_turns() == len(attempts) * len(base.user)


@pytest.mark.parametrize("text", ["3:0", "12:345"])
def test_field_names_in_redis_are_read_back(text: str) -> None:
    assert str(Conversation.parse(text)) == text
    assert str(Attempt.parse(f"{text}:7")) == f"{text}:7"


BODY = {"harness_id": "h_1", "input": {"role": "user", "content": [{"type": "text", "text": "hi"}]}}


def test_a_runs_key_is_pure_i2() -> None:
    first = run_key("sub_1", "tone", 0, 0, 0, BODY)
    assert first == run_key("sub_1", "tone", 0, 0, 0, dict(reversed(BODY.items())))
    # As released: another value would not find the runs of a submission that an earlier version started.
    assert first == "aa1732aa03b86939bea729bda87618fe84577c24b2461df89dd81b1158b3a5ac"


def test_a_runs_key_moves_with_each_of_its_parts_i2() -> None:
    keys = {
        run_key("sub_1", "tone", 0, 0, 0, BODY),
        run_key("sub_2", "tone", 0, 0, 0, BODY),
        run_key("sub_1", "tome", 0, 0, 0, BODY),
        run_key("sub_1", "tone", 1, 0, 0, BODY),
        run_key("sub_1", "tone", 0, 1, 0, BODY),
        run_key("sub_1", "tone", 0, 0, 1, BODY),
        run_key("sub_1", "tone", 0, 0, 0, {**BODY, "chat_id": "chat_1"}),
    }
    assert len(keys) == 7


def test_a_lone_surrogate_has_a_key_and_a_spelling_b11() -> None:
    assert canonical_json({"q": "\ud83d"}) == b'{"q":"\\ud83d"}'
    assert len(run_key("s", "c", 0, 0, 0, {"q": "\ud83d"})) == 64


def test_2000_scenarios_load_and_plan_in_one_go_a11() -> None:
    base = scenarios()[0]
    many = tuple(
        PlannedScenario(Scenario(f"s{i}", base.user, base.expect, 1, 60.0, base.place), 0) for i in range(2000)
    )
    case = Case("big", "evals/cases/big.yaml", tuple(p.scenario for p in many))
    document = plan()
    big = replace(document, cases=(PlannedCase(case.name, case.file, many),))
    assert len(list(Plan.loads(big.dumps()).all_attempts())) == 2000


def test_s34_a_plan_carries_its_baseline() -> None:
    assert "baseline" not in plan().to_json()
    for fail_on in (None, "significant"):
        with_one = replace(plan(), baseline=PlannedBaseline("d" * 40, "20261130T124500Z-00000001", fail_on))
        assert Plan.loads(with_one.dumps()) == with_one
