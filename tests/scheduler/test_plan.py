"""How a selection becomes a plan: groups by trials (S10), context (S9), limits (A11), and what a person is shown."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalfleet.checks.case import Case, parse_case
from evalfleet.errors import UsageError
from evalfleet.plan import Attempt, Limits, Plan, PlannedGraders, PlannedTarget
from evalfleet.tree import EvalConfig, HarnessConfig, TreeConfig, TreeVersion
from scheduler.plan import (
    MAX_BODY,
    MAX_CASES,
    SCORER,
    at_generation,
    build_plan,
    evaluation_body,
    plan_evaluations,
    render_files,
    render_plan,
    split,
)
from scheduler.select import Selection, select

CONFIG = TreeConfig(root=Path("/tree"), harness=HarnessConfig("concierge", infra_codes=("proxy_down",)))
TARGET = PlannedTarget(None, "h_1", None, "concierge")
NOW = datetime(2026, 11, 30, 12, 45, tzinfo=UTC)
GRADERS = PlannedGraders("sha256:aa", None, (), False, 1024, False, version="sha256:a1")

TONE = """\
# a comment
defaults: {trials: 3, timeout: 5m}
scenarios:
  - {id: first, user: hi, trials: 1, expect: [final_answer_contains: x]}
  - {id: second, user: [one, two], expect: [no_error: true, final_answer_contains: y]}
  - {id: third, user: three, expect: [grader: {name: q.a}]}
"""
TOOLS = "scenarios:\n  - {id: shell, user: ls, expect: [tool_called: {name: shell__run}]}\n"


def load(name: str, text: str) -> Case:
    loaded = parse_case(text.encode(), name=name, file=f"evals/cases/{name}.yaml")
    assert loaded.problems == ()
    return loaded.cases[0]


def cases(tone: str = TONE) -> tuple[Case, ...]:
    return load("tone", tone), load("tools", TOOLS)


def build(selection: Selection | None = None, *, config: TreeConfig = CONFIG, concurrency: int | None = None) -> Plan:
    plan, _ = build_plan(
        config,
        selection or select(cases()),
        target=TARGET,
        commit="c" * 40,
        graders=GRADERS,
        created_at=NOW,
        concurrency=concurrency,
    )
    return plan


def test_there_is_one_evaluation_for_each_distinct_number_of_trials_s10() -> None:
    plan = build()
    assert [(e.k, e.suite.key, e.id) for e in plan.evaluations] == [(1, "checks/k1", None), (3, "checks/k3", None)]
    assert plan.keys_of(0) == ["tone/first", "tools/shell"]
    assert plan.keys_of(1) == ["tone/second", "tone/third"]


def test_the_suites_key_says_what_did_not_run_whole_s10() -> None:
    config = replace(CONFIG, eval=EvalConfig(suite="nightly"))
    partial = build(select(cases(), ["tools"]), config=config)
    assert [e.suite.key for e in partial.evaluations] == ["nightly/k1/partial"]
    assert partial.evaluations[0].suite.name == partial.suite == "nightly"
    draft = build(select(cases(), [], drafts=load("draft", TOOLS)))
    assert [e.suite.key for e in draft.evaluations] == ["checks/k1/draft"]
    whole = build(select(cases(), ["tone", "tools"]))
    assert [e.suite.key for e in whole.evaluations] == ["checks/k1", "checks/k3"]


def versions(tone: str = TONE, graders: PlannedGraders | None = GRADERS) -> dict[int, str]:
    evaluations, _ = plan_evaluations(select(cases(tone)), suite="checks", graders=graders)
    return {e.k: e.suite.version for e in evaluations}


MOVES = [
    pytest.param("# a comment\n", "", set(), id="comments don't count"),
    pytest.param("scenarios:\n", "\n\nscenarios:\n", set(), id="layout does not count"),
    pytest.param("timeout: 5m", "timeout: 300s", set(), id="the same time in other words"),
    pytest.param("contains: x", "contains: z", {1}, id="an assertion"),
    pytest.param("user: hi", "user: hey", {1, 3}, id="what is said before the others too"),
    pytest.param("user: three", "user: four", {3}, id="a turn of the last"),
    pytest.param("timeout: 5m", "timeout: 6m", {1, 3}, id="the timeout"),
    pytest.param("id: first", "id: erst", {1}, id="an id"),
]


@pytest.mark.parametrize(("old", "new", "moved"), MOVES)
def test_a_suites_version_moves_with_what_decides_a_verdict_s10(old: str, new: str, moved: set[int]) -> None:
    assert old in TONE
    before, after = versions(), versions(TONE.replace(old, new))
    assert {k for k in before if before[k] != after[k]} == moved


def test_a_suites_version_moves_with_the_graders_where_one_is_called() -> None:
    before, after = versions(), versions(graders=replace(GRADERS, version="sha256:b1"))
    assert {k for k in before if before[k] != after[k]} == {3}


def test_what_is_not_selected_is_context_and_what_comes_after_is_left_out_s9() -> None:
    plan = build(select(cases(), ["tone/second"]))
    assert [(p.scenario.id, p.evaluation) for p in plan.cases[0].scenarios] == [("first", None), ("second", 0)]
    assert plan.context_turns() == 3
    assert [str(a) for a in plan.all_attempts()] == ["0:1:0", "0:1:1", "0:1:2"]


def test_the_plan_carries_limits_concurrency_and_infra_codes() -> None:
    plan, _ = build_plan(
        replace(CONFIG, eval=EvalConfig(concurrency=20)),
        select(cases()),
        target=TARGET,
        commit="c" * 40,
        graders=None,
        created_at=NOW,
        limits=Limits(tries=2, losses=7, stall=60, queued=90),
    )
    assert (plan.limits, plan.concurrency, plan.infra_codes) == (Limits(2, 7, 60, 90), 20, ("proxy_down",))
    assert build().concurrency == 8
    assert build(concurrency=3).concurrency == 3
    assert Plan.loads(plan.dumps()) == plan


@pytest.mark.parametrize("concurrency", [0, -1, 100_001])
def test_a_concurrency_out_of_range_is_refused_b18(concurrency: int) -> None:
    with pytest.raises(UsageError, match=f"from 1 to 100000, not {concurrency}"):
        build(concurrency=concurrency)


def test_another_generation_is_another_submission_of_the_same_work() -> None:
    first = build().with_evaluations(["eval_1", "eval_2"])
    second = at_generation(first, 1, NOW)
    assert second.id != first.id
    assert second.pin == first.pin
    assert second.artifact.startswith("20261130T124500Z-")
    assert [e.id for e in second.evaluations] == [None, None]
    assert second.created_at == "2026-11-30T12:45:00.000000Z"


def test_an_evaluation_is_created_with_snapshots_of_its_cases() -> None:
    body = evaluation_body(build(), 1)
    assert body == {
        "harness_id": "h_1",
        "harness_commit": "c" * 40,
        "suite": {"key": "checks/k3", "version": body["suite"]["version"], "name": "checks"},
        "scorer": asdict(SCORER),
        "k": 3,
        "cases": [
            {
                "key": "tone/second",
                "name": "second",
                "input": {"user": ["one", "two"]},
                "expected": {"expect": [{"no_error": True}, {"final_answer_contains": "y"}]},
            },
            {
                "key": "tone/third",
                "name": "third",
                "input": {"user": ["three"]},
                "expected": {"expect": [{"grader": {"name": "q.a"}}]},
            },
        ],
    }
    assert evaluation_body(build(), 1, baseline="b" * 40)["baseline_harness_commit"] == "b" * 40


def generated(count: int) -> Case:
    """files/A11.make.py, as it is."""
    script = Path(__file__).parent.parent / "cases" / "A11.make.py"
    made = subprocess.run([sys.executable, str(script), str(count)], capture_output=True, check=True, timeout=60)
    return load("big", made.stdout.decode())


def test_more_than_an_evaluation_takes_is_split_by_a_stated_rule_before_anything_a11() -> None:
    plan = build(select([generated(2001)]))
    assert [e.suite.key for e in plan.evaluations] == ["checks/k1/1-of-2", "checks/k1/2-of-2"]
    assert len({e.suite.version for e in plan.evaluations}) == 2
    keys = [set(plan.keys_of(group)) for group in (0, 1)]
    assert all(len(part) <= MAX_CASES for part in keys)
    assert keys[0].isdisjoint(keys[1])
    assert len(keys[0] | keys[1]) == 2001
    whole = build(select([generated(MAX_CASES)]))
    assert [(e.suite.key, len(whole.keys_of(0))) for e in whole.evaluations] == [("checks/k1", MAX_CASES)]


@given(st.sets(st.integers(0, 10**9), min_size=1, max_size=60), st.integers(0, 2**32), st.integers(1, 40))
def test_a_key_keeps_its_part_when_others_move_come_and_go(numbers: set[int], seed: int, most: int) -> None:
    """Also that no part is too large and that no key is lost; the limits are made small."""
    sizes = {f"a/{number}": 1 + number % 50 for number in numbers}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scheduler.plan.MAX_CASES", most)
        patch.setattr("scheduler.plan.MAX_BODY", 600)
        patch.setattr("scheduler.plan._ENVELOPE", 100)
        parts = split(sizes)
        assert sorted(key for part in parts for key in part) == sorted(sizes)
        assert all(len(part) <= most and sum(sizes[key] for key in part) <= 500 for part in parts)
        moved = list(sizes)
        Random(seed).shuffle(moved)
        assert set(split({key: sizes[key] for key in moved})) == set(parts)


def test_over_the_limit_in_all_but_not_in_one_group_is_no_fault_a11() -> None:
    big = generated(2001)
    split = replace(big, scenarios=(replace(big.scenarios[0], trials=2), *big.scenarios[1:]))
    assert [len(build(select([split])).keys_of(group)) for group in (0, 1)] == [2000, 1]


def test_a_prompt_of_two_megabytes_is_planned_a11() -> None:
    long = "x" * 2_000_000
    case = load(
        "long", f"scenarios:\n  - {{id: a, user: {long}, expect: [no_error: true, final_answer_contains: x]}}\n"
    )
    assert len(json.dumps(evaluation_body(build(select([case])), 0))) > 2_000_000


def test_bodies_over_sixteen_mebibytes_are_split_and_one_case_that_large_is_refused_a11() -> None:
    long = "x" * 4_500_000
    many = [
        load(f"long{i}", f"scenarios:\n  - {{id: a, user: {long}, expect: [final_answer_contains: x]}}\n")
        for i in range(4)
    ]
    plan = build(select(many))
    bodies = [len(json.dumps(evaluation_body(plan, group))) for group in range(len(plan.evaluations))]
    assert len(bodies) > 1
    assert max(bodies) <= MAX_BODY
    user = [f"'{long}'"] * 4
    huge = replace(many[0], scenarios=(replace(many[0].scenarios[0], user=tuple(user)),))
    with pytest.raises(UsageError, match=r"long0/a alone makes an evaluation of 17\.2 MiB; one takes 16 MiB at most"):
        build(select([huge]))


def test_a_person_sees_what_would_run_and_what_is_recorded() -> None:
    plan = build()
    shown = render_plan(plan, {Attempt(0, 1, 0), Attempt(0, 1, 2), Attempt(9, 9, 9)})
    assert shown.splitlines() == [
        "case/scenario  trials  turns  recorded",
        "tone/first          1      1    0 of 1",
        "tone/second         3      2    2 of 3",
        "tone/third          3      1    0 of 3",
        "tools/shell         1      1    0 of 1",
        "",
        "suite checks, harness concierge at cccccccccccc, run here",
        "2 cases, 4 scenarios, 8 attempts, 2 of them recorded already",
        "4 conversations, 13 turns, 2 of them context: paid for, played before a scored scenario, never scored",
        "evaluations: checks/k1 (2 scenarios), checks/k3 (2 scenarios)",
        "at most 8 open runs at once",
    ]


def test_the_harness_files_are_shown_with_what_changed_and_what_the_commit_is() -> None:
    head, digest = "a" * 40, "d" * 40
    clean = TreeVersion(head, head, "", ("agent.py", "lib.py"), {})
    assert render_files(clean) == f"agent.py\nlib.py\n\ncommit {head}: git HEAD"
    changed = {"agent.py": "1f", "old.py": ""}
    dirty = TreeVersion(digest, head, "agent.py and 1 more differ from git HEAD aaaa", ("agent.py", "lib.py"), changed)
    assert render_files(dirty).splitlines() == [
        "agent.py  (changed)",
        "lib.py",
        "old.py  (gone)",
        "",
        f"commit {digest}: a digest over these files, because agent.py and 1 more differ from git HEAD aaaa",
    ]
    no_git = TreeVersion(digest, None, "there is no git repository here", ("agent.py",), {"agent.py": "1f"})
    assert render_files(no_git).splitlines()[0] == "agent.py"


def test_the_shown_plan_names_context_and_the_platform() -> None:
    plan = build(select(cases(), ["tone/second"]))
    plan = replace(plan, target=replace(TARGET, base_url="https://p.example/api"))
    shown = render_plan(plan)
    assert "tone/first     context      1  not scored" in shown
    assert "run https://p.example/api" in shown
