"""The demo tree of this repository: its agent is played for real, and its checks pass (issue: "The demo tree")."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evalfleet.checks.case import Case, load_cases
from evalfleet.checks.expectation import KINDS
from evalfleet.checks.outcome import GraderAnswer, judge, meaning_of
from evalfleet.checks.trial import TurnRecord, read_trial
from evalfleet.server.drivers import make_driver
from evalfleet.treeconfig import read_tree_config
from tests.server.drivers.recording import Recording, a_turn

ROOT = Path(__file__).resolve().parents[3]
LOADED = load_cases(ROOT)


def test_the_demo_tree_is_valid_and_uses_every_expectation() -> None:
    assert (LOADED.problems, LOADED.warnings) == ((), ())
    scenarios = [scenario for case in LOADED.cases for scenario in case.scenarios]
    assert len(LOADED.cases) >= 4
    assert len(scenarios) >= 10
    assert {expectation.kind for scenario in scenarios for expectation in scenario.expect} == set(KINDS)
    assert len(KINDS) == 12
    assert {scenario.trials for scenario in scenarios} == {1, 2, 3}
    assert any(len(scenario.user) > 1 for scenario in scenarios)
    assert any(grader.pass_below is not None for scenario in scenarios for grader in scenario.graders)


@pytest.mark.parametrize("case", LOADED.cases, ids=lambda case: case.name)
async def test_every_scenario_of_the_demo_passes_in_one_conversation(case: Case, tmp_path: Path) -> None:
    config = read_tree_config(ROOT)
    driver = make_driver(config.harness, ROOT, tmp_path)
    driver.check()
    history: list[tuple[str, str]] = []
    for scenario in case.scenarios:
        turns = []
        for message in scenario.user:
            sink = Recording()
            number = len(history) // 2
            turn = a_turn(message, run_id=f"run_{number}", turn=number, history=tuple(history))
            ended = await driver.run(turn, sink)
            assert ended.failure is None
            history += [("user", message), ("assistant", sink.answers[-1])]
            turns.append(as_the_platform_would(message, f"run_{number}", sink))
        trial = read_trial(turns)
        meaning = meaning_of(turns, timeout=scenario.timeout)
        answers = [graded(grader.name, scenario.case_document(), trial.run_document()) for grader in scenario.graders]
        judgement = judge(scenario, trial, meaning, answers)
        assert judgement.outcome == "passed", judgement.reason
    await driver.aclose()


def as_the_platform_would(message: str, run_id: str, sink: Recording) -> TurnRecord:
    """The wire documents of one turn (wire.md, "Runs" and "Events"), made from what the driver reported."""
    messages: list[Mapping[str, Any]] = []
    events: list[Mapping[str, Any]] = []
    outputs: list[Mapping[str, Any]] = []
    for kind, *what in sink.said:
        if kind == "tool_calls":
            made = ({"type": "tool_call", "tool_call": call._asdict()} for call in what)
            messages.append(a_message("assistant", *made))
        elif kind == "tool_result":
            value = {"type": "tool_result", "tool_result": dict(zip(("tool_call_id", "output"), what, strict=True))}
            messages.append(a_message("tool", value))
        elif kind == "hook":
            data = dict(zip(("hook", "decision", "source", "duration_ms"), what, strict=True))
            events.append({"id": f"evt_{len(events)}", "type": "hook.called", "data": data})
        elif kind == "answer":
            outputs.append({"type": "result", "name": "final_message", "value": what[0]})
    run = {
        "id": run_id,
        "chat_id": "chat_1",
        "status": "succeeded",
        "failure": None,
        "created_at": "2026-01-01T00:00:00Z",
        "started_at": "2026-01-01T00:00:00Z",
        "completed_at": "2026-01-01T00:00:01Z",
    }
    return TurnRecord(user=message, run=run, messages=messages, outputs=outputs, events=events)


def a_message(role: str, *values: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"role": role, "content": [{"type": "json", "value": value} for value in values]}


def graded(name: str, case: Mapping[str, Any], run: Mapping[str, Any]) -> GraderAnswer:
    """These graders are ours and call no model: here they are simply called."""
    file, function = name.split(".", 1)
    spec = importlib.util.spec_from_file_location(f"demo_{file}", ROOT / "evals" / "graders" / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    answer = getattr(module, function)(None, case, run)
    if isinstance(answer, bool):
        return GraderAnswer(name=name, kind="answered", passed=answer)
    return GraderAnswer(
        name=name, kind="answered", passed=answer["pass"], score=answer.get("score"), why=answer.get("why")
    )
