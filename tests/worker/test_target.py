"""What a worker hears of a target and tells the others; and that a target's trouble costs no conversation (S17)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

import evalfleet.contract.client
from evalfleet.contract.calls import Heard
from evalfleet.ledger import Claimed, Ledger
from evalfleet.plan import Conversation
from evalfleet.server.driving import Busy, Ended, Failure, Sink, Turn
from evalfleet.testing import FaultServer, problem
from tests.relay import Relay
from tests.worker.test_crew import FIRST, staged, until
from worker.health import Health
from worker.target import APART_S, EVERY_S, SILENT_S, TargetEar

pytestmark = pytest.mark.timeout(60)

TAKEN = Heard(201, is_launch=True)
READ = Heard(200)
SILENCE = Heard(None, why="connection refused")
BROKEN = Heard(502, why="502 upstream_unavailable")


class Told:
    """The ledger as an ear sees it: what it is told."""

    def __init__(self) -> None:
        self.words: list[tuple[Any, ...]] = []

    def target_busy(self, *words: Any) -> None:
        self.words.append(("busy", *words))

    def target_down(self, *words: Any) -> None:
        self.words.append(("down", *words))

    def target_answered(self, *words: Any) -> None:
        self.words.append(("answered", *words))


def busy(seconds: float | None, status: int = 429) -> Heard:
    return Heard(status, is_launch=True, retry_after=seconds, why="429 rate_limited")


@pytest.mark.parametrize(
    ("story", "told"),
    [
        ([(0, TAKEN), (0.5, TAKEN), (EVERY_S, TAKEN)], ["answered", "answered"]),
        ([(0, READ), (5, READ)], []),  # only a run that was taken says that one would be
        ([(0, SILENCE), (1, BROKEN)], []),  # a server that restarts
        ([(0, SILENCE), (1, BROKEN), (SILENT_S, SILENCE), (SILENT_S + 1, SILENCE)], ["down"]),
        ([(0, SILENCE), (SILENT_S, SILENCE), (SILENT_S + EVERY_S, SILENCE)], ["down", "down"]),
        ([(0, SILENCE), (SILENT_S, SILENCE), (SILENT_S + 1, READ), (SILENT_S + 2, READ)], ["down", "answered"]),
        ([(0, SILENCE), (2, READ), (4, SILENCE), (6, SILENCE)], []),
        ([(0, SILENCE), (APART_S + 1, SILENCE)], []),  # nothing was asked in between
        ([(0, SILENCE), (2, busy(0)), (4, SILENCE)], ["busy"]),  # one that refuses is not down
        ([(0, busy(5)), (0.1, busy(4)), (0.2, busy(None))], ["busy"]),  # one burst
        ([(0, busy(5)), (0.1, busy(60))], ["busy", "busy"]),  # the longer wait counts
        ([(0, busy(1)), (1.1, busy(1, 503))], ["busy", "busy"]),
        ([(0, Heard(429, is_launch=True, quota=True, retry_after=7200))], []),  # it stops the submission (S17)
        ([(0, Heard(422, is_launch=True))], ["answered"]),  # no to this run is an answer
    ],
)
def test_what_is_told_to_the_others(story: list[tuple[float, Heard]], told: list[str]) -> None:
    ledger, now = Told(), 0.0
    ear = TargetEar("t", cast(Ledger, ledger), lambda call: call(), Health(), clock=lambda: now)
    for now, heard in story:  # noqa: B007  - the ear's clock reads it
        ear.heard(heard)
    assert [words[0] for words in ledger.words] == told


@pytest.mark.parametrize(
    ("story", "unhealthy"),
    [
        ([(0, SILENCE), (1, BROKEN)], False),  # a server that restarts
        ([(0, SILENCE), (SILENT_S, BROKEN)], True),
        ([(0, SILENCE), (SILENT_S, SILENCE), (SILENT_S + 1, READ)], False),  # any answer is one
        ([(0, SILENCE), (SILENT_S, SILENCE), (SILENT_S + 1, busy(9, 503))], False),  # one that refuses is there
    ],
)
def test_a_target_that_this_worker_does_not_reach_is_a_matter_of_its_health(
    story: list[tuple[float, Heard]], unhealthy: bool
) -> None:
    health, now = Health(), 0.0
    ear = TargetEar("t", cast(Ledger, Told()), lambda call: call(), health, clock=lambda: now)
    for now, heard in story:  # noqa: B007  - the ear's clock reads it
        ear.heard(heard)
    why = f"t does not answer: {story[1][1].why}"
    assert health.unreachable() == ({"platform": why} if unhealthy else {})


def test_how_long_to_wait_is_told_in_milliseconds_and_whose_words_it_was() -> None:
    ledger = Told()
    TargetEar("t", cast(Ledger, ledger), lambda call: call(), Health(), clock=lambda: 0.0).heard(busy(2.5))
    assert ledger.words == [("busy", "t", 2500, "429 rate_limited")]


async def test_s17_one_workers_429_keeps_every_worker_from_launching(tmp_path: Path, valkey: str) -> None:
    """With the Retry-After that it was told; the conversation goes back and is not given up."""
    async with FaultServer() as server:
        server.on("POST", "/v2/runs", problem(429, "rate_limited", headers={"Retry-After": "300"}))
        async with staged(tmp_path, valkey, base_url=server.url) as stage:
            await stage.run()
            await until(lambda: stage.ledger.target_wait_ms("server") > 0, "the ledger knows of it")
            assert stage.ledger.target_wait_ms("server") > 290_000
            assert (stage.claims(), stage.gave_up()) == ({}, {})
            assert stage.ledger.take_returned(stage.plan.id) == [FIRST]
            other = Conversation(0, 1)
            answer = stage.ledger.claim(stage.plan.id, other, stage.plan.attempts(other), "another worker")
            assert answer is Claimed.BUSY
            assert len(server.seen("POST", "/v2/runs")) == 1


async def test_a_conversation_whose_target_is_away_goes_back_and_is_played_when_it_answers(
    tmp_path: Path, valkey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried(monkeypatch)
    with Relay() as relay:
        relay.down()
        async with staged(tmp_path, valkey, base_url=relay.url) as stage:
            relay.to = urlsplit(stage.api.url).port or 0
            for _ in range(stage.plan.limits.tries + 2):
                await stage.run()
            assert (stage.claims(), stage.gave_up()) == ({}, {})
            target = stage.ledger.load(stage.plan.id).target
            assert (target.most, target.since_ms > 0) == (1, True)
            assert "refused" in target.down.lower() or "connect" in target.down.lower()
            relay.up()
            await stage.run()
            await until(lambda: stage.ledger.load(stage.plan.id).target.since_ms == 0, "it is known to answer")
            assert set(stage.ledger.records(stage.plan.id)) == set(stage.plan.attempts(FIRST))


async def test_a_conversation_that_alone_is_turned_away_is_given_up_after_its_tries(
    tmp_path: Path, valkey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request breaks the platform each time, which takes everybody else's: I8 wants an end."""
    hurried(monkeypatch)
    async with FaultServer() as server:
        server.on("POST", "/v2/runs", problem(500, "internal_error", "it always breaks"))
        async with staged(tmp_path, valkey, base_url=server.url) as stage:
            for number in range(1, stage.plan.limits.tries + 1):
                stage.ledger.target_answered("server")  # by another worker
                assert stage.gave_up() == {}, f"after {number - 1} times"
                await stage.run()
            assert stage.gave_up() == {str(FIRST): "launch_refused"}


async def test_n15_an_agents_endpoint_that_asks_to_wait_is_heard_by_all_workers_and_costs_no_try(
    tmp_path: Path, valkey: str
) -> None:
    refused = Ended(Failure("rate_limited", "slow"), Busy("the agent's endpoint asks to wait 2 s", 2.0, limited=True))
    answers = [refused]

    async def limited(turn: Turn, sink: Sink) -> Ended:
        if answers:
            return answers.pop()
        await sink.answer("hello")
        return Ended()

    async with staged(tmp_path, valkey) as stage:
        stage.api.driver.script = limited
        playing = asyncio.create_task(stage.run())
        await until(lambda: stage.ledger.target_wait_ms("server") > 1000, "the ledger knows of it")
        target = stage.ledger.load(stage.plan.id).target
        assert (target.why, target.room) == ("the agent's endpoint asks to wait 2 s", 0)
        await playing
        assert set(stage.ledger.records(stage.plan.id)) == set(stage.plan.attempts(FIRST))
        assert len(stage.api.driver.turns) == 2
        runs = (await stage.api.get("/v2/runs"))["data"]
        assert [run["status"] for run in runs] == ["succeeded"]


async def test_n15_a_conversation_that_is_told_to_wait_before_its_next_turn_is_never_given_up_for_it(
    tmp_path: Path, valkey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked for nothing, so that it cannot be what breaks the target; and its first turn is not played again."""
    async with staged(tmp_path, valkey) as stage:
        stage.books("scenarios:\n  - {id: one, user: [a, b], expect: [no_error: true]}\n")
        with monkeypatch.context() as patched:
            patched.setattr(stage.crew, "_seconds_to_wait", lambda _plan: 100.0)
            for _ in range(stage.plan.limits.tries + 1):
                stage.ledger.target_answered("server")  # it takes others' runs meanwhile
                await stage.run()
                assert (stage.claims(), stage.gave_up()) == ({}, {})
        await stage.run()
        assert set(stage.ledger.records(stage.plan.id)) == set(stage.plan.attempts(FIRST))
        assert [turn.message for turn in stage.api.driver.turns] == ["a", "b"]


def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call gives up after a second, and a target is silent after half of one."""
    made: Callable[..., None] = evalfleet.contract.client.Client.__init__

    def init(self: object, base_url: str, token: str, **options: Any) -> None:
        made(self, base_url, token, retry_for=1.0, **options)

    monkeypatch.setattr(evalfleet.contract.client.Client, "__init__", init)
    monkeypatch.setattr("worker.target.SILENT_S", 0.5)
