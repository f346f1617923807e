"""The product's chain from a case file to outcomes, over a wire of the test's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

from evalfleet.checks.case import parse_case
from evalfleet.checks.outcome import judge
from evalfleet.contract.client import Client
from evalfleet.plan import (
    Conversation,
    Limits,
    Plan,
    PlannedCase,
    PlannedEvaluation,
    PlannedScenario,
    PlannedTarget,
    Scorer,
    SuiteName,
)
from tests.chain.platform import COMMIT, Wire
from tests.chain.script import Script
from worker.evidence import Play
from worker.play import Player
from worker.played import GaveUp, Played, TurnedAway


@dataclass
class Found:
    """`outcomes`: one for each scenario; `gave_up`: what the conversation was given up on, if it was; `plays`: what was
    handed over."""

    outcomes: list[str]
    gave_up: GaveUp | None
    plays: list[Play]


def plan_of(script: Script) -> Plan:
    loaded = parse_case(script.case().encode(), name="c", file="evals/cases/c.yaml")
    assert not loaded.problems, [problem.render() for problem in loaded.problems]
    [case] = loaded.cases
    suite = SuiteName("checks/k1", "v", "checks")
    return Plan(
        id="sub_00000000000000000000000000",
        pin="0" * 64,
        generation=0,
        created_at="2026-01-01T00:00:00Z",
        evalfleet="0",
        suite="checks",
        artifact="20260101T000000Z-abcdefgh",
        target=PlannedTarget(None, "h_1", None, "scripted"),
        commit=COMMIT,
        concurrency=1,
        limits=Limits(),
        scorer=Scorer("evalfleet-checks", "1"),
        infra_codes=(),
        evaluations=(PlannedEvaluation(1, "eval_1", suite),),
        cases=(PlannedCase("c", case.file, tuple(PlannedScenario(scenario, 0) for scenario in case.scenarios)),),
        graders=None,
    )


async def play(script: Script, wire: Wire, jitter: Callable[[], float] = lambda: 0.5) -> Found:
    """Play the script's conversation once, as one command does."""
    plan = plan_of(script)
    found = Found(["missing"] * len(script.scenarios), None, [])
    first: list[int] = []

    async def hand_over(played: Played) -> None:
        this = Play.of(played)
        found.plays.append(this)
        judged = judge(plan.scenario(played.attempt), this.trial, this.meaning, [])
        found.outcomes[played.attempt.scenario] = judged.outcome

    async def first_new_try(number: int) -> int:
        first.append(number)
        return first[0]

    with mock.patch("evalfleet.contract.client.Transport", return_value=wire):
        client = Client("http://platform", "token", jitter=jitter)
    player = Player(client, plan, Conversation(0, 0), evidence=(), hand_over=hand_over, first_new_try=first_new_try)
    try:
        found.gave_up = await player.play()
    except TurnedAway as away:  # the target's trouble: the conversation goes back, and nothing is recorded
        found.gave_up = away.gave_up
    return found
