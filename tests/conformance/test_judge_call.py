"""wire.md, "The judge call": a grader's `t.llm`, spent on the run under test."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import Caller, assert_problem
from tests.conformance.deployments import Target


def test_wire_the_judge_call_answers_text_and_tokens(api: Caller, ours: Target, finished: dict[str, Any]) -> None:
    answer = api.post(f"/v1/runs/{finished['id']}/hook/llm", {"prompt": "How good is it?", "model": "small"})
    assert answer.status_code == 200
    assert answer.json() == {"text": "0.8", "tokens": 9}


def test_wire_the_judge_call_is_not_the_agents_usage(api: Caller, ours: Target) -> None:
    run = api.play()
    before = api.get(f"/v2/runs/{run['id']}/usage")
    assert "judge" not in before
    assert api.post(f"/v1/runs/{run['id']}/hook/llm", {"prompt": "?"}).status_code == 200
    after = api.get(f"/v2/runs/{run['id']}/usage")
    judge = after.pop("judge")
    assert after == before
    assert judge["calls"] == 1, "against the platform's accounting (seed), apart from the agent's usage (S15)"
    assert api.get(f"/v2/runs/{run['id']}") == run


@pytest.mark.parametrize("body", [{}, {"prompt": ""}, {"prompt": 1}, {"prompt": None}, {"prompt": "x", "model": 1}])
def test_wire_the_judge_call_needs_a_prompt(api: Caller, finished: dict[str, Any], body: dict[str, Any]) -> None:
    answer = api.post(f"/v1/runs/{finished['id']}/hook/llm", body)
    assert_problem(answer, 422, "validation_failed", "/model" if "model" in body else "/prompt")


def test_wire_the_judge_call_of_a_run_that_is_not_ones_own_is_404(
    api: Caller, other: Caller, finished: dict[str, Any]
) -> None:
    body = {"prompt": "x"}
    assert_problem(other.post(f"/v1/runs/{finished['id']}/hook/llm", body), 404, "not_found")
    assert_problem(api.post("/v1/runs/nonsense/hook/llm", body), 404, "not_found")
