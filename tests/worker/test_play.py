"""One conversation against the real server: what is played, found again, tried again, cancelled (S8–S17, I2)."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import worker.watch_run
from evalfleet.checks.case import parse_case
from evalfleet.checks.outcome import Meaning
from evalfleet.contract.client import Client, Created
from evalfleet.errors import HarnessMoved, ProblemAnswer
from evalfleet.plan import (
    Attempt,
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
from evalfleet.server.driving import Ended, Failure, Sink, Turn
from tests.server.conftest import COMMIT, TOKEN, Api, ScriptedDriver, serving
from worker.play import Player
from worker.played import Draining, GaveUp, Played, StopSubmission, Try, TurnedAway

pytestmark = pytest.mark.timeout(60)

TWO = """
scenarios:
  - {id: one, user: [a, b], expect: [no_error: true]}
  - {id: two, user: c, expect: [no_error: true]}
"""


def plan_of(text: str, harness_id: str, *, commit: str = COMMIT, limits: Limits | None = None) -> Plan:
    loaded = parse_case(text.encode(), name="c", file="evals/cases/c.yaml")
    assert not loaded.problems
    [case] = loaded.cases
    ks = sorted({s.trials for s in case.scenarios})
    planned = tuple(PlannedScenario(s, ks.index(s.trials)) for s in case.scenarios)
    return Plan(
        id=f"sub_{uuid.uuid4().hex[:26].upper()}",
        pin="0" * 64,
        generation=0,
        created_at="2026-01-01T00:00:00Z",
        evalfleet="0",
        suite="checks",
        artifact="20260101T000000Z-abcdefgh",
        target=PlannedTarget(None, harness_id, None, "concierge"),
        commit=commit,
        concurrency=4,
        limits=limits or Limits(),
        scorer=Scorer("evalfleet-checks", "1"),
        infra_codes=(),
        evaluations=tuple(PlannedEvaluation(k, f"eval_{k}", SuiteName(f"checks/k{k}", "v", "checks")) for k in ks),
        cases=(PlannedCase("c", case.file, planned),),
        graders=None,
    )


class Stage:
    """The server, its scripted agent, a client, and what was handed over."""

    def __init__(self, api: Api, client: Client) -> None:
        self.api, self.client = api, client
        self.played: list[Played] = []
        self.first_new: int | None = None
        self.tries: list[Try] = []

    async def play(self, plan: Plan, trial: int = 0, **options: Any) -> GaveUp | None:
        async def hand_over(played: Played) -> None:
            self.played.append(played)

        async def first_new_try(number: int) -> int:
            if self.first_new is None:
                self.first_new = number
            return self.first_new

        options.setdefault("evidence", ())
        player = Player(
            self.client, plan, Conversation(0, trial), hand_over=hand_over, first_new_try=first_new_try, **options
        )
        self.tries = player.tries
        return await player.play()

    @property
    def said(self) -> list[tuple[str, int]]:
        """What the agent was told, with the turn of its chat."""
        return [(turn.message, turn.turn) for turn in self.api.driver.turns]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with serving(tmp_path, ScriptedDriver()) as api, Client(api.url, TOKEN) as client:
        yield Stage(api, client)


def script(*behaviours: Callable[[Turn, Sink], Any] | Ended) -> Callable[[Turn, Sink], Any]:
    """The agent's behaviour call by call; the last one stays."""
    left = list(behaviours)

    async def run(turn: Turn, sink: Sink) -> Ended:
        now = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(now, Ended):
            return now
        ended: Ended = await now(turn, sink)
        return ended

    return run


async def well(turn: Turn, sink: Sink) -> Ended:
    await sink.answer(f"{turn.turn}: {turn.message}")
    return Ended()


async def never(_turn: Turn, _sink: Sink) -> Ended:
    await asyncio.Event().wait()
    raise AssertionError


def failed(code: str, *, retryable: bool = False) -> Ended:
    return Ended(Failure(code, f"it failed with {code}", retryable))


def outcomes(played: Sequence[Played]) -> list[tuple[int, Meaning]]:
    return [(p.attempt.scenario, p.meaning.meaning) for p in played]


async def test_s8_scenarios_share_one_chat_in_order_and_each_is_handed_over_as_it_ends(stage: Stage) -> None:
    assert await stage.play(plan_of(TWO, stage.api.harness_id)) is None
    assert stage.said == [("a", 0), ("b", 1), ("c", 2)]
    assert outcomes(stage.played) == [(0, Meaning.RESULT), (1, Meaning.RESULT)]
    assert [len(p.turns) for p in stage.played] == [2, 1]
    assert stage.played[0].usage is None, "usage is the conversation's (S15)"
    assert stage.played[1].usage is not None
    assert stage.played[1].usage["final"] is True


async def test_i2_playing_a_conversation_again_finds_its_runs_and_pays_for_nothing(stage: Stage) -> None:
    plan = plan_of(TWO, stage.api.harness_id)
    await stage.play(plan)
    await stage.play(plan)
    assert len(stage.said) == 3
    first, second = stage.played[:2], stage.played[2:]
    assert [[t.run["id"] for t in p.turns] for p in first] == [[t.run["id"] for t in p.turns] for p in second]
    assert [p.meaning for p in first] == [p.meaning for p in second]


async def test_s39_every_run_says_in_its_metadata_whose_it_is(stage: Stage) -> None:
    plan = plan_of(TWO, stage.api.harness_id)
    await stage.play(plan, trial=0)
    assert dict(stage.api.driver.turns[2].metadata) == {
        "evalfleet.submission": plan.id,
        "evalfleet.case": "c",
        "evalfleet.scenario": "two",
        "evalfleet.trial": 0,
        "evalfleet.try": 0,
    }


async def test_s9_a_scenario_that_has_had_its_trials_is_played_as_context(stage: Stage) -> None:
    text = TWO.replace("user: c,", "user: c, trials: 2,")
    assert await stage.play(plan_of(text, stage.api.harness_id), trial=1) is None
    assert stage.said == [("a", 0), ("b", 1), ("c", 2)]
    assert [(p.attempt.scenario, p.context) for p in stage.played] == [(0, True), (1, False)]


async def test_s8_a_failed_turn_does_not_stop_the_conversation(stage: Stage) -> None:
    stage.api.driver.script = script(failed("agent_exit"), well)
    assert await stage.play(plan_of(TWO, stage.api.harness_id)) is None
    assert stage.said == [("a", 0), ("b", 1), ("c", 2)]
    assert outcomes(stage.played) == [(0, Meaning.RESULT), (1, Meaning.RESULT)]


@pytest.mark.parametrize("code", ["server_lost", "rate_limited", "internal_error", "upstream_unavailable"])
async def test_s14_s17_an_infrastructure_code_starts_a_new_try_in_a_fresh_chat(stage: Stage, code: str) -> None:
    stage.api.driver.script = script(well, failed(code), well)
    assert await stage.play(plan_of(TWO, stage.api.harness_id)) is None
    assert stage.said == [("a", 0), ("b", 1), ("a", 0), ("b", 1), ("c", 2)]
    assert len({turn.chat_id for turn in stage.api.driver.turns}) == 2
    last = stage.played[-1]
    assert [(t["try"], len(t["run_ids"])) for t in last.tries] == [(0, 2), (1, 3)]
    assert code in last.tries[0]["reason"]


async def test_s14_what_has_evidence_is_context_in_the_next_try(stage: Stage) -> None:
    stage.api.driver.script = script(well, well, failed("server_lost"), well)
    assert await stage.play(plan_of(TWO, stage.api.harness_id)) is None
    assert [p.attempt.scenario for p in stage.played] == [0, 1]
    assert [message for message, _ in stage.said] == ["a", "b", "c", "a", "b", "c"]


async def test_what_is_given_up_says_in_which_scenario(stage: Stage) -> None:
    stage.api.driver.script = script(well, well, failed("server_lost"), well, well, failed("server_lost"))
    gave_up = await stage.play(plan_of(TWO, stage.api.harness_id, limits=Limits(tries=2)))
    assert gave_up is not None
    assert (gave_up.attempts, gave_up.scenario) == ((Attempt(0, 1, 0),), 1)


async def test_s14_a_command_makes_three_new_tries_and_a_resume_three_more(stage: Stage) -> None:
    plan = plan_of(TWO, stage.api.harness_id)
    stage.api.driver.script = script(failed("server_lost"))
    gave_up = await stage.play(plan)
    assert gave_up is not None
    assert (len(stage.said), gave_up.code) == (3, "server_lost")
    assert gave_up.attempts == (Attempt(0, 0, 0), Attempt(0, 1, 0))
    assert gave_up.scenario == 0
    assert [t["try"] for t in gave_up.tries] == [0, 1, 2]
    stage.first_new = None  # the next command
    stage.api.driver.script = script(failed("server_lost"), failed("server_lost"), well)
    assert await stage.play(plan) is None
    assert len(stage.said) == 3 + 2 + 3, "it walks up over tries 0–2 without a run, then plays 3, 4 and 5"
    assert [t["try"] for t in stage.played[-1].tries] == [0, 1, 2, 3, 4, 5]


async def test_s17_an_agents_own_failure_is_played_once_whatever_it_says_of_trying_again(stage: Stage) -> None:
    text = "scenarios:\n  - {id: one, user: a, expect: [no_error: true]}\n"
    stage.api.driver.script = script(failed("flaky_agent", retryable=True), well)
    assert await stage.play(plan_of(text, stage.api.harness_id)) is None
    assert len(stage.said) == 1
    assert outcomes(stage.played) == [(0, Meaning.RESULT)]
    assert stage.played[0].meaning.code == "flaky_agent"


@pytest.mark.parametrize("code", ["out_of_funds", "usage_window_exceeded", "agent_unauthorized", "harness_changed"])
async def test_s17_what_would_fail_every_time_stops_the_submission(stage: Stage, code: str) -> None:
    stage.api.driver.script = script(failed(code))
    with pytest.raises(StopSubmission) as stop:
        await stage.play(plan_of(TWO, stage.api.harness_id))
    assert stop.value.code == code
    assert len(stage.said) == 1


async def test_s17_what_stopped_a_submission_does_not_stop_its_resume_again(stage: Stage) -> None:
    """The old run is found again, and says what was true then: the next try asks anew."""
    stage.api.driver.script = script(failed("out_of_funds"))
    plan = plan_of(TWO, stage.api.harness_id)
    with pytest.raises(StopSubmission):
        await stage.play(plan)
    stage.api.driver.script, stage.first_new = script(well), None
    assert await stage.play(plan) is None
    assert outcomes(stage.played) == [(0, Meaning.RESULT), (1, Meaning.RESULT)]
    assert [t["reason"] is None for t in stage.played[-1].tries] == [False, True]


async def test_s33_a_harness_that_changed_between_two_turns_stops_the_submission_and_a_restored_one_goes_on(
    tmp_path: Path,
) -> None:
    async def edit(turn: Turn, sink: Sink) -> Ended:
        (tmp_path / "agent.py").write_text("print('edited')\n")
        return await well(turn, sink)

    async with serving(tmp_path, ScriptedDriver(edit), watched=True) as api, Client(api.url, TOKEN) as client:
        stage, plan = Stage(api, client), plan_of(TWO, api.harness_id)
        for _ in ("played while it changed", "refused at the launch of the next try"):
            with pytest.raises(StopSubmission) as stop:
                await stage.play(plan)
            assert stop.value.code == "harness_changed"
            assert stop.value.reason.startswith("the harness changed while it was played: agent.py; restore it")
        assert (len(stage.said), stage.played) == (1, [])
        (tmp_path / "agent.py").write_text("print('hi')\n")
        api.driver.script = script(well)
        assert await stage.play(plan) is None
        assert outcomes(stage.played) == [(0, Meaning.RESULT), (1, Meaning.RESULT)]


async def test_s17_a_launch_that_is_refused_for_good_stops_the_submission(stage: Stage) -> None:
    with pytest.raises(StopSubmission) as stop:
        await stage.play(plan_of(TWO, "h_00000000000000000000000000"))
    assert stop.value.code == "not_found"


async def test_b16_s12_an_agent_that_never_ends_is_a_timeout_and_its_chat_goes_on(stage: Stage) -> None:
    stage.api.driver.script = script(never, well)
    text = TWO.replace("user: [a, b]", "timeout: 1s, user: [a, b]")
    assert await stage.play(plan_of(text, stage.api.harness_id)) is None
    assert [m for m, _ in stage.said] == ["a", "c"], "the scenario is decided: its second turn is not paid for"
    assert outcomes(stage.played) == [(0, Meaning.TIMEOUT), (1, Meaning.RESULT)]
    assert stage.played[0].turns[0].run["status"] == "cancelled"


async def test_s12_time_spent_is_the_platforms_over_all_turns_of_the_scenario(stage: Stage) -> None:
    async def slow(turn: Turn, sink: Sink) -> Ended:
        await asyncio.sleep(0.7)
        return await well(turn, sink)

    stage.api.driver.script = slow
    text = "scenarios:\n  - {id: one, user: [a, b], timeout: 1s, expect: [no_error: true]}\n"
    assert await stage.play(plan_of(text, stage.api.harness_id)) is None
    assert outcomes(stage.played) == [(0, Meaning.TIMEOUT)]


async def test_s13_a_run_that_does_not_end_when_cancelled_leaves_its_attempt_missing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.watch_run, "CANCEL_GRACE_S", 0.5)
    freed = asyncio.Event()

    async def deaf(turn: Turn, sink: Sink) -> Ended:
        while not freed.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await freed.wait()
        return await well(turn, sink)

    stage.api.driver.script = deaf
    text = TWO.replace("user: [a, b]", "timeout: 1s, user: [a, b]")
    gave_up = await stage.play(plan_of(text, stage.api.harness_id))
    freed.set()
    assert gave_up is not None
    assert gave_up.code == "cancel_pending"
    assert stage.played == []


async def test_s12_a_run_that_stays_queued_is_cancelled_without_a_result(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedDriver(never), agents=1) as api, Client(api.url, TOKEN) as client:
        await api.create("takes the only place")
        narrow = Stage(api, client)
        gave_up = await narrow.play(plan_of(TWO, api.harness_id, limits=Limits(queued=1, tries=2)))
        assert gave_up is not None
        assert [len(t["run_ids"]) for t in gave_up.tries] == [1, 1]
        assert [m for m, _ in narrow.said] == ["takes the only place"]


async def test_s33_a_run_at_another_commit_is_cancelled_and_says_so(stage: Stage) -> None:
    stage.api.driver.script = never
    with pytest.raises(HarnessMoved, match=f"moved from {'f' * 40} to {COMMIT}"):
        await stage.play(plan_of(TWO, stage.api.harness_id, commit="f" * 40))
    page = await stage.api.get("/v2/runs")
    assert page["data"][0]["status"] in {"cancelling", "cancelled"}


async def test_s38_a_worker_that_leaves_lets_its_run_go_on_and_it_is_found_again(stage: Stage) -> None:
    going, release = asyncio.Event(), asyncio.Event()

    async def waits(turn: Turn, sink: Sink) -> Ended:
        going.set()
        await release.wait()
        return await well(turn, sink)

    stage.api.driver.script = waits
    plan = plan_of(TWO, stage.api.harness_id)
    task = asyncio.create_task(stage.play(plan))
    await asyncio.wait_for(going.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    assert await stage.play(plan) is None
    assert [m for m, _ in stage.said] == ["a", "b", "c"]


async def test_s38_a_stopped_submission_cancels_its_open_run(stage: Stage) -> None:
    going = asyncio.Event()

    async def waits(turn: Turn, sink: Sink) -> Ended:
        going.set()
        return await never(turn, sink)

    stage.api.driver.script = waits
    task = asyncio.create_task(stage.play(plan_of(TWO, stage.api.harness_id), cancel_on_leave=lambda: True))
    await asyncio.wait_for(going.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    page = await stage.api.get("/v2/runs")
    assert page["data"][0]["status"] in {"cancelling", "cancelled"}
    assert stage.tries[-1].usage is not None, "what it has cost is read all the same (S15)"
    assert not stage.tries[-1].is_over


async def test_s38_after_the_first_signal_a_conversation_starts_no_further_run(stage: Stage) -> None:
    with pytest.raises(Draining):
        await stage.play(plan_of(TWO, stage.api.harness_id), may_launch=lambda: not stage.said)
    assert stage.said == [("a", 0)]
    assert stage.tries[-1].usage is not None, "what it has cost is read all the same (S15)"


async def test_s8_trials_never_share_a_chat(stage: Stage) -> None:
    plan = plan_of("defaults: {trials: 2}" + TWO, stage.api.harness_id)
    await asyncio.gather(stage.play(plan, trial=0), stage.play(plan, trial=1))
    chats = {turn.metadata["evalfleet.trial"]: turn.chat_id for turn in stage.api.driver.turns}
    assert len(set(chats.values())) == 2


class Refusing(Client):
    """The real client, whose second launch is refused by the platform."""

    refusal: ProblemAnswer

    async def create_run(self, body: Mapping[str, Any], *, key: str, deadline: float | None = None) -> Created:
        if "chat_id" in body:
            raise self.refusal
        return await super().create_run(body, key=key, deadline=deadline)


@pytest.mark.parametrize(
    ("status", "code", "whose"),
    [
        (409, "chat_ended", "agent"),
        (404, "not_found", "agent"),
        (422, "validation_failed", "agent"),
        (409, "idempotency_key_in_flight", "launch_refused"),
        (409, "idempotency_key_conflict", "launch_refused"),
        (422, "harness_not_runnable", "harness_not_runnable"),
        (429, "rate_limited", "launch_refused, alone"),
        (503, "service_unavailable", "launch_refused, alone"),
        (402, "insufficient_balance", "insufficient_balance"),
    ],
)
async def test_s8_s17_only_a_refusal_to_go_on_with_the_chat_is_the_agents(
    stage: Stage, status: int, code: str, whose: str
) -> None:
    """After a failed turn: what the platform says of our request, of money or of the harness is no verdict."""
    stage.api.driver.script = script(failed("agent_exit"))
    async with Refusing(stage.api.url, TOKEN) as refusing:
        refusing.refusal = ProblemAnswer(status, code, "no")
        stage.client = refusing
        try:
            gave_up = await stage.play(plan_of(TWO, stage.api.harness_id))
            seen = gave_up.code if gave_up is not None else "agent"
        except StopSubmission as stop:
            seen = stop.code
        except TurnedAway as away:
            seen = f"{away.gave_up.code}, alone"
    assert seen == whose
    assert bool(stage.played) == (whose == "agent")


async def test_s17_a_usage_window_that_is_used_up_stops_with_the_time_it_resets_at(stage: Stage) -> None:
    async with Refusing(stage.api.url, TOKEN) as refusing:
        refusing.refusal = ProblemAnswer(429, "usage_window_exceeded", "spent", retry_after=5400, quota=True)
        stage.client = refusing
        with pytest.raises(StopSubmission, match=r"spent \(it resets in 5400 s, at 20..-..-.. ..:.. UTC\)"):
            await stage.play(plan_of(TWO, stage.api.harness_id))


class Slow(Client):
    """The real client, which hears late that its run was created."""

    created: asyncio.Event

    async def create_run(self, body: Mapping[str, Any], *, key: str, deadline: float | None = None) -> Created:
        answer = await super().create_run(body, key=key, deadline=deadline)
        self.created.set()
        await asyncio.sleep(0.3)
        return answer


@pytest.mark.parametrize(("stopped", "status"), [(True, {"cancelling", "cancelled"}), (False, {"queued", "running"})])
async def test_s38_a_run_whose_launch_was_under_way_is_cancelled_with_the_rest(
    stage: Stage, stopped: bool, status: set[str]
) -> None:
    stage.api.driver.script = never
    async with Slow(stage.api.url, TOKEN) as slow:
        slow.created = asyncio.Event()
        stage.client = slow
        task = asyncio.create_task(stage.play(plan_of(TWO, stage.api.harness_id), cancel_on_leave=lambda: stopped))
        await asyncio.wait_for(slow.created.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    page = await stage.api.get("/v2/runs")
    assert page["data"][0]["status"] in status
