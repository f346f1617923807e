"""What is known of a target slows every submission and every worker, against a real Valkey (AIMD, breaker, S17)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalfleet.ledger import Claimed, Ledger
from evalfleet.ledger.targets import KNOWN_MS
from evalfleet.plan import Conversation, Plan
from tests.test_ledger import make_plan

NAME = "https://platform.example/api"


@pytest.fixture
def ledger(valkey: str) -> Iterator[Ledger]:
    made = Ledger(valkey, prefix=f"t{uuid.uuid4().hex[:8]}:")
    made.open_epoch(mine=True)
    yield made
    made.redis.delete(*made.redis.keys(f"{made.prefix}*"))
    made.close()


def on_books(ledger: Ledger, *, name: str | None = NAME, concurrency: int = 100) -> Plan:
    plan = make_plan(concurrency=concurrency)
    plan = replace(plan, target=replace(plan.target, base_url=name))
    ledger.add(plan, {})
    return plan


def claim(ledger: Ledger, plan: Plan, trial: int) -> Claimed:
    return ledger.claim(plan.id, Conversation(0, trial), plan.attempts(Conversation(0, 0)), "w")


def claimed(ledger: Ledger, plan: Plan, most: int) -> int:
    """How many of `most` conversations may be begun."""
    return sum(claim(ledger, plan, trial) is Claimed.CLAIMED for trial in range(1000, 1000 + most))


def age(ledger: Ledger, ms: int, name: str = NAME) -> None:
    """All that is known of the target happened so much earlier."""
    key = f"{ledger.prefix}t:{name}"
    for field in ("cut_at", "rises_from", "until", "since", "said_at", "answered_at"):
        if ledger.redis.hexists(key, field):
            ledger.redis.hincrby(key, field, -ms)


def test_a_refusal_halves_what_is_open_and_nobody_begins_anything_before_its_time(ledger: Ledger) -> None:
    mine, theirs = on_books(ledger), on_books(ledger)
    elsewhere = on_books(ledger, name=None)
    assert claimed(ledger, mine, 14) + claimed(ledger, theirs, 6) == 20
    assert ledger.target_busy(NAME, 30_000, "429 rate_limited") == 10
    assert (claim(ledger, mine, 1), claim(ledger, theirs, 1)) == (Claimed.BUSY, Claimed.BUSY)
    assert claim(ledger, elsewhere, 1) is Claimed.CLAIMED, "another target's submissions go on"
    target = ledger.load(theirs.id).target
    assert (target.most, target.open, target.room, target.why, target.cut) == (10, 20, 0, "429 rate_limited", 10)
    assert 29_000 < target.wait_ms <= 30_000
    assert 0 < ledger.target_wait_ms(NAME) <= 30_000
    age(ledger, 30_001)
    assert ledger.target_wait_ms(NAME) == 0
    assert claim(ledger, mine, 1) is Claimed.BUSY, "20 are open and 10 may be"
    for trial in range(1000, 1012):
        ledger.release(mine.id, Conversation(0, trial), "w", played=True)
    assert claimed(ledger, theirs, 12) == 6 + 2, "the six that it holds, and two more"


def test_the_limit_rises_by_one_a_second_after_the_wait(ledger: Ledger) -> None:
    plan = on_books(ledger)
    claimed(ledger, plan, 20)
    ledger.target_busy(NAME, 5000, "503")
    assert ledger.load(plan.id).target.most == 10
    age(ledger, 5000 + 3500)
    assert ledger.load(plan.id).target.most == 13
    age(ledger, 500_000)
    most = ledger.load(plan.id).target.most
    assert most is not None
    assert most > 500


def test_refusals_of_one_burst_cut_once_and_the_longest_wait_counts(ledger: Ledger) -> None:
    plan = on_books(ledger)
    claimed(ledger, plan, 64)
    with ThreadPoolExecutor(16) as pool:
        cuts = list(pool.map(lambda n: ledger.target_busy(NAME, 1000 * (n % 4), "429"), range(64)))
    assert sorted(cuts) == [0] * 63 + [32]
    assert 2000 < ledger.target_wait_ms(NAME) <= 3000
    age(ledger, 1500)
    assert ledger.target_busy(NAME, 0, "429") == 0, "it was sent before everybody had heard that they wait"
    age(ledger, 2500)
    assert ledger.target_busy(NAME, 0, "429") == 16, "a refusal after the wait is a new one: 33 were allowed"


def test_a_target_is_never_cut_below_one(ledger: Ledger) -> None:
    plan = on_books(ledger)
    for _ in range(5):
        ledger.target_busy(NAME, 0, "429")
        age(ledger, 1000)
    assert ledger.load(plan.id).target.most in {1, 2}
    assert claim(ledger, plan, 0) is Claimed.CLAIMED


def test_a_target_that_is_down_lets_one_ask_and_all_go_on_when_it_answers(ledger: Ledger) -> None:
    plan, other = on_books(ledger), on_books(ledger)
    assert ledger.target_down(NAME, "connection refused")
    assert ledger.target_down(NAME, "connection refused"), "said again by somebody else"
    assert claim(ledger, plan, 0) is Claimed.CLAIMED, "this one goes on asking"
    assert (claim(ledger, plan, 1), claim(ledger, other, 0)) == (Claimed.BUSY, Claimed.BUSY)
    target = ledger.load(other.id).target
    assert (target.most, target.open, target.down, target.since_ms > 0) == (1, 1, "connection refused", True)
    ledger.target_answered(NAME)
    assert claimed(ledger, plan, 5) + claimed(ledger, other, 5) == 10
    assert ledger.load(other.id).target.since_ms == 0


def test_trouble_that_nobody_has_told_of_again_is_over(ledger: Ledger) -> None:
    """Its last conversation was refused once and taken then; nothing is begun any more, since all runs for long."""
    plan = on_books(ledger)
    ledger.target_busy(NAME, 600_000, "429")
    age(ledger, 599_000)
    assert ledger.load(plan.id).target.since_ms >= 599_000, "the time that it named is not over"
    age(ledger, 2000)
    assert ledger.load(plan.id).target.since_ms == 0
    assert ledger.turned_away(plan.id, Conversation(0, 0)) == 1
    ledger.target_busy(NAME, 0, "429")
    assert 0 < ledger.load(plan.id).target.since_ms < 60_000, "this is another trouble"
    ledger.target_down(NAME, "refused")
    age(ledger, 121_000)
    assert (ledger.load(plan.id).target.down, claimed(ledger, plan, 4)) == ("", 4), "nobody asks any more: find out"


def test_one_worker_without_a_road_pauses_nobody(ledger: Ledger) -> None:
    plan = on_books(ledger)
    ledger.target_answered(NAME)
    assert not ledger.target_down(NAME, "no route")
    assert claimed(ledger, plan, 5) == 5
    age(ledger, 10_001)
    assert ledger.target_down(NAME, "no route"), "nobody else has had an answer for ten seconds"


def test_a_conversation_is_turned_away_alone_only_while_others_are_taken(ledger: Ledger) -> None:
    plan = on_books(ledger)
    ledger.target_down(NAME, "connection refused")
    assert ledger.turned_away(plan.id, Conversation(0, 0)) == 0
    ledger.target_answered(NAME)
    assert [ledger.turned_away(plan.id, Conversation(0, 0)) for _ in range(3)] == [1, 2, 3]
    assert ledger.turned_away(plan.id, Conversation(0, 1)) == 1


def test_an_operators_limit_holds_over_all_submissions_and_only_while_it_is_repeated(ledger: Ledger) -> None:
    plan, other = on_books(ledger), on_books(ledger)
    ledger.set_target_limit(NAME, 3)
    assert claimed(ledger, plan, 2) + claimed(ledger, other, 10) == 3
    assert claim(ledger, other, 0) is Claimed.BUSY
    ledger.redis.delete(f"{ledger.prefix}t:{NAME}:ceiling")  # a minute later
    assert claim(ledger, other, 0) is Claimed.CLAIMED


def test_what_is_known_of_a_target_is_forgotten_after_its_wait(ledger: Ledger) -> None:
    on_books(ledger)
    ledger.target_busy(NAME, 3_600_000, "429")
    assert 3_600_000 < ledger.redis.pttl(f"{ledger.prefix}t:{NAME}") <= 3_600_000 + KNOWN_MS
    ledger.target_answered("another")
    assert 0 < ledger.redis.pttl(f"{ledger.prefix}t:another") <= KNOWN_MS


def test_many_workers_at_once_never_open_more_than_the_target_bears(ledger: Ledger) -> None:
    """Three submissions, 24 threads, each claiming and giving back; the highest number seen is the limit."""
    plans = [on_books(ledger) for _ in range(3)]
    ledger.set_target_limit(NAME, 7)

    def work(number: int) -> int:
        most = 0
        for round_ in range(20):
            plan, trial = plans[(number + round_) % 3], 100 * number + round_
            if claim(ledger, plan, trial) is Claimed.CLAIMED:
                most = max(most, ledger.load(plan.id).target.open)
                ledger.release(plan.id, Conversation(0, trial), "w", played=True)
        return most

    with ThreadPoolExecutor(24) as pool:
        assert max(pool.map(work, range(24))) == 7


@settings(max_examples=80)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4000), st.integers(0, 5000)), min_size=1, max_size=8))
def test_the_limit_is_what_additive_increase_and_multiplicative_decrease_make_of_it(
    ledger: Ledger, story: list[tuple[int, int, int]]
) -> None:
    """(open, wait, quiet time after it), against the same story in plain numbers. Times are kept apart by far more than
    the test takes, so that no second is a matter of speed."""
    plan = on_books(ledger, name=f"https://{uuid.uuid4().hex}.example")
    name, key = plan.target.name, f"{ledger.prefix}s:{plan.id}:claims"
    limit: int | None = None
    for open_, wait, quiet in story:
        ledger.redis.delete(key)
        if open_:
            ledger.redis.hset(key, mapping={str(Conversation(0, n)): "w" for n in range(open_)})
        cut = ledger.target_busy(name, 1000 * wait, "429")
        limit = max(1, (open_ if limit is None else min(open_, limit)) // 2)
        assert cut == limit
        age(ledger, 1000 * (wait + quiet) + 1200, name)
        limit += quiet + 1
        assert ledger.load(plan.id).target.most == limit
    ledger.forget(plan.id)
