"""No false verdict: what the chain finds over a wire that breaks is what the script says, or the attempt is missing.

From the case file to the judgement everything is the product's: client, follower, player, reading, judging. Left out
are the socket and the waiting. `EVALFLEET_CHAIN_SCRIPTS=10000 EVALFLEET_CHAIN_SEED=1` plays that many scripts from that
seed on (S12–S17, I2); a script that fails is named by its seed, and `EVALFLEET_CHAIN_SCRIPTS=1` plays it alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import Sequence

import pytest

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
from tests.chain.clock import Clock, jumping
from tests.chain.platform import COMMIT, Wire
from tests.chain.script import Script, drawn
from worker.evidence import Play
from worker.play import Player
from worker.played import Played, TurnedAway

SCRIPTS = int(os.environ.get("EVALFLEET_CHAIN_SCRIPTS", "300"))
SEED = int(os.environ.get("EVALFLEET_CHAIN_SEED", "1"))
WEATHERS = (0.0, 0.1, 0.2, 0.4)


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


async def outcomes(script: Script, wire: Wire, draw: random.Random, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the chain finds for each scenario."""
    monkeypatch.setattr("evalfleet.contract.client.Transport", lambda *_arguments, **_named: wire)
    plan = plan_of(script)
    found = ["missing"] * len(script.scenarios)
    first: list[int] = []

    async def hand_over(played: Played) -> None:
        play = Play.of(played)
        scenario = plan.scenario(played.attempt)
        found[played.attempt.scenario] = judge(scenario, play.trial, play.meaning, []).outcome

    async def first_new_try(number: int) -> int:
        first.append(number)
        return first[0]

    client = Client("http://platform", "token", jitter=draw.random)
    player = Player(client, plan, Conversation(0, 0), evidence=(), hand_over=hand_over, first_new_try=first_new_try)
    with contextlib.suppress(TurnedAway):  # the target's trouble: the conversation goes back, and nothing is recorded
        await player.play()
    return found


def played(
    seed: int, clock: Clock, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> tuple[Script, list[str], list[str], Wire]:
    """The script of this seed, its outcomes, what the chain found, and the wire it went over."""
    draw = random.Random(seed)
    script = drawn(draw)
    wire = Wire(script.turns(), clock, draw, draw.choice(WEATHERS))
    return script, script.outcomes(), runner.run(outcomes(script, wire, draw, monkeypatch)), wire


def mismatches(expected: Sequence[str], found: Sequence[str], weather: float) -> bool:
    return any(
        seen != said and (seen != "missing" or weather == 0.0) for said, seen in zip(expected, found, strict=True)
    )


def test_the_verdict_from_the_wire_is_the_script_s_or_the_attempt_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: list[str] = []
    counted: Counter[str] = Counter()
    met: Counter[str] = Counter()
    with jumping() as (clock, runner):
        for seed in range(SEED, SEED + SCRIPTS):
            script, expected, found, wire = played(seed, clock, runner, monkeypatch)
            met.update(wire.met)
            counted.update(found)
            counted["lost to faults"] += sum(seen != said for said, seen in zip(expected, found, strict=True))
            if mismatches(expected, found, wire.weather):
                wrong.append(f"EVALFLEET_CHAIN_SEED={seed}: the script says {expected}, the wire {found}: {script}")
    print(f"\n{SCRIPTS} scripts from seed {SEED}: {dict(counted)}; {sum(met.values())} faults of {len(met)} kinds")
    assert not wrong, f"{len(wrong)} of {SCRIPTS}:\n" + "\n".join(wrong[:5])
    if SCRIPTS >= 100:
        judged = counted["passed"] + counted["failed"] + counted["error"]
        assert judged > 2 * counted["lost to faults"], "most faults cost no verdict"
        assert min(counted[outcome] for outcome in ("passed", "failed", "error")) > 0
