"""Plans and attempt lines for tests: real documents of the formats, as small as they can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from evalfleet.plan import Plan
from scheduler.plan import SCORER

SUBMISSION = "sub_0123456789abcdefghjkmnpqrs"
ARTIFACT = "20261130T124500Z-01234567"


def scenario(
    id_: str,
    *,
    trials: int = 1,
    user: Sequence[str] = ("What is the capital of France?",),
    expect: Sequence[Mapping[str, Any]] = ({"final_answer_contains": "Paris"},),
    evaluation: int | None = 0,
    timeout: float = 300.0,
) -> dict[str, Any]:
    return {
        "id": id_,
        "user": list(user),
        "expect": list(expect),
        "trials": trials,
        "timeout": timeout,
        "place": ["evals/cases/tone.yaml", 3, 5],
        "evaluation": evaluation,
    }


def plan(cases: Mapping[str, Sequence[dict[str, Any]]], *, ks: Sequence[int] = (1,)) -> Plan:
    """A plan of the given cases; `ks` are the evaluations, named eval_0, eval_1, …"""
    return Plan.from_json(
        {
            "format": 1,
            "id": SUBMISSION,
            "pin": "ab12",
            "generation": 0,
            "created_at": "2026-11-30T12:45:00Z",
            "evalfleet": "0.1.0",
            "suite": "checks",
            "artifact": ARTIFACT,
            "target": {"base_url": None, "harness_id": "h_0", "machine_id": None, "harness": "concierge"},
            "commit": "c0ffee" + "0" * 34,
            "concurrency": 8,
            "limits": {"tries": 3, "losses": 5, "stall": 600, "queued": 600},
            "scorer": asdict(SCORER),
            "infra_codes": [],
            "evaluations": [
                {"k": k, "id": f"eval_{i}", "suite": {"key": f"checks/k{k}", "version": "v", "name": "checks"}}
                for i, k in enumerate(ks)
            ],
            "cases": [
                {"name": name, "file": f"evals/cases/{name}.yaml", "scenarios": list(scenarios)}
                for name, scenarios in cases.items()
            ],
            "graders": None,
        }
    )


def trial_record(
    *,
    answer: str | None = "Paris.",
    user: Sequence[str] = ("What is the capital of France?",),
    tools: Sequence[Mapping[str, Any]] = (),
    hooks: Sequence[Mapping[str, Any]] = (),
    duration_ms: int = 1200,
    status: str = "succeeded",
    failure: Mapping[str, Any] | None = None,
    error: str | None = None,
    not_played: str | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    return {
        "turns": [
            {
                "run_id": f"run_{index}",
                "chat_id": "chat_0",
                "user": text,
                "status": status,
                "failure": failure,
                "started_at": "2026-11-30T12:45:01Z",
                "completed_at": "2026-11-30T12:45:02Z",
                "answer": answer,
            }
            for index, text in enumerate(user)
        ],
        "tool_calls": list(tools),
        "hooks": list(hooks),
        "final_answer": answer,
        "error": error,
        "duration_ms": duration_ms,
        "not_played": not_played,
        "notes": list(notes),
    }


def line(
    scenario_id: str,
    trial: int = 0,
    outcome: str = "passed",
    *,
    case: str = "tone",
    reason: Any = None,
    chat: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """One attempt line. `more` replaces or adds fields."""
    chat = chat or f"chat_{case}_{trial}"
    document: dict[str, Any] = {
        "format": 1,
        "case": case,
        "scenario": scenario_id,
        "trial": trial,
        "evaluation": "eval_0",
        "outcome": outcome,
        "reason": reason,
        "run_id": None if outcome == "missing" else f"run_{case}_{scenario_id}_{trial}",
        "chat_id": chat,
        "meaning": {"meaning": "no_result" if outcome == "missing" else "result", "reason": "", "code": ""},
        "trial_record": None if outcome == "missing" else trial_record(),
        "findings": [],
        "graders": [],
        "judge_score": None,
        "judge_feedback": None,
        "tries": [{"try": 0, "chat_id": chat, "run_ids": [f"run_{case}_{scenario_id}_{trial}"], "reason": None}],
        "recorded": "here",
        "usage": None,
        "context": False,
        "at": "2026-11-30T12:45:03Z",
    }
    document.update(more)
    return document
