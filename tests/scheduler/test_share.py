"""Who gets how many of the fleet's places: the arithmetic, and three submissions on one fleet of workers, counted."""

from __future__ import annotations

import random
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalfleet.checks.case import parse_case
from evalfleet.ledger import Claimed, Competitor, Ledger
from evalfleet.plan import Attempt, Conversation, Plan, PlannedCase, PlannedScenario
from scheduler.dispatch import Books, Dispatcher
from scheduler.share import divide, places, shares
from tests.test_ledger import make_plan


@pytest.mark.parametrize(
    ("total", "asks", "parts"),
    [
        (100, [(1, 1000), (1, 1000)], [50, 50]),
        (100, [(3, 1000), (1, 1000)], [75, 25]),
        (100, [(1, 1000), (1, 10)], [90, 10]),  # what one does not want is the other's
        (100, [(1, 30), (1, 30)], [30, 30]),
        (100, [(2, 1000), (1, 1000), (1, 20)], [53, 27, 20]),  # 80 in 2:1, in whole numbers
        (7, [(1, 9), (1, 9), (1, 9)], [3, 2, 2]),
        (2, [(1, 9), (1, 9), (1, 9)], [1, 1, 1]),  # nobody starves: messages are taken in turn
        (10, [(1, 0), (1, 9)], [0, 9]),
        (10, [], []),
    ],
)
def test_places_are_divided_by_weight_and_by_what_is_wanted(
    total: int, asks: list[tuple[int, int]], parts: list[int]
) -> None:
    assert divide(total, asks) == parts


asks_ = st.lists(st.tuples(st.integers(1, 100), st.integers(0, 2000)), max_size=8)


@given(total=st.integers(0, 2000), asks=asks_)
def test_all_places_are_used_nobody_has_more_than_it_wants_and_nobody_nothing(
    total: int, asks: list[tuple[int, int]]
) -> None:
    parts = divide(total, asks)
    wanting = sum(1 for _, want in asks if want)
    assert all(part <= want and (part >= 1 or not want) for part, (_, want) in zip(parts, asks, strict=True))
    wanted = min(total, sum(want for _, want in asks))
    assert wanted <= sum(parts) <= wanted + wanting
    if total >= sum(weight for weight, _ in asks):
        assert sum(parts) == wanted


@given(total=st.integers(0, 2000), asks=asks_)
def test_whoever_has_less_than_it_wants_has_its_weighted_part_to_one_place(
    total: int, asks: list[tuple[int, int]]
) -> None:
    """Max-min: no two that want more differ by more than rounding, and nobody who got all has more for its weight."""
    parts = divide(total, asks)
    short = [n for n, (_, want) in enumerate(asks) if parts[n] < want]
    for n in short:
        for m, (weight, _) in enumerate(asks):
            if parts[m] > 1:
                assert Fraction(parts[m] - 1, weight) <= Fraction(parts[n] + 1, asks[n][0])


def wants(name: str, want: int, *, weight: int = 1, target: str = "server", most: int | None = None) -> Competitor:
    return Competitor(name, target, weight, want, most)


def test_those_on_one_limited_target_share_it_and_leave_the_rest_to_others() -> None:
    found = shares(
        100,
        [wants("a", 500, target="t", most=10), wants("b", 500, target="t", most=10, weight=4), wants("c", 500)],
    )
    assert found == {"a": 2, "b": 8, "c": places(100) - 10}


def test_one_alone_has_the_whole_fleet_and_a_quarter_ahead() -> None:
    assert shares(100, [wants("a", 1000)]) == {"a": 125}
    assert shares(100, [wants("a", 60)]) == {"a": 60}
    assert shares(0, [wants("a", 1000)]) == {"a": 4}, "a worker that starts finds something"


# -- on a fleet -------------------------------------------------------------------------------------------------------

SLOTS = 20
LASTS = 4
"""Steps of half a second that a conversation takes in the mean: one to seven, and nobody knows which of the schedulers
comes first."""


class Fleet:
    """Workers with 20 slots that take messages in the order in which they came, over a real Valkey."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.queue: deque[tuple[Plan, Conversation]] = deque()
        self.playing: list[tuple[int, Plan, Conversation]] = []
        self.dispatchers: dict[str, Dispatcher] = {}
        self.now = 0
        self.chance = random.Random(16)
        self.ended: Counter[str] = Counter()
        ledger.beat("w", {"queues": "run", "slots": SLOTS}, [])

    def submit(self, conversations: int, *, weight: int = 1) -> Plan:
        plan = plan_of(conversations, weight)
        self.ledger.add(plan, {})
        self.dispatchers[plan.id] = Dispatcher(
            self.ledger, plan, _Wire(self, plan), reload=lambda: Books({}), clock=lambda: self.now / 2
        )
        return plan

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.now += 1
            for until, plan, conversation in [entry for entry in self.playing if entry[0] <= self.now]:
                self.playing.remove((until, plan, conversation))
                attempts = plan.attempts(conversation)
                for attempt in attempts:
                    self.ledger.put_record(plan.id, attempt, b"{}", "passed")
                self.ledger.release(plan.id, conversation, "w", played=True)
                self.ledger.confirm(plan.id, dict.fromkeys(attempts, "passed"))
                self.ended[plan.id] += 1
            for dispatcher in self.chance.sample(list(self.dispatchers.values()), len(self.dispatchers)):
                dispatcher.step()
            while self.queue and len(self.playing) < SLOTS:
                plan, conversation = self.queue.popleft()
                claimed = self.ledger.claim(plan.id, conversation, plan.attempts(conversation), "w")
                if claimed is Claimed.CLAIMED:
                    lasts = self.chance.randint(1, 2 * LASTS - 1)
                    self.playing.append((self.now + lasts, plan, conversation))

    def held(self, plan: Plan) -> int:
        return sum(1 for _, of, _ in self.playing if of is plan)


class _Wire:
    def __init__(self, fleet: Fleet, plan: Plan) -> None:
        self.fleet, self.of = fleet, plan

    def run(self, plan: str, conversations: Sequence[Conversation]) -> None:
        assert plan == self.of.id
        self.fleet.queue.extend((self.of, conversation) for conversation in conversations)

    def grade(self, plan: str, attempt: Attempt) -> None:
        raise AssertionError("nothing is graded here")

    def aggregate(self, plan: str) -> None:
        pass

    def queued(self, queue: str) -> int:
        return len(self.fleet.queue) if queue == "run" else 0


def plan_of(conversations: int, weight: int) -> Plan:
    """Conversations of one scenario, up to 100 in a case."""
    cases = []
    for start in range(0, conversations, 100):
        text = b"scenarios:\n  - {id: one, user: hi, trials: %d, expect: [{no_error: true}]}\n"
        name = f"c{start}"
        [case] = parse_case(text % min(100, conversations - start), name=name, file=f"evals/cases/{name}.yaml").cases
        cases.append(PlannedCase(name, case.file, tuple(PlannedScenario(s, 0) for s in case.scenarios)))
    plan = make_plan(concurrency=1000)
    return replace(plan, cases=tuple(cases), limits=replace(plan.limits, weight=weight))


@pytest.fixture
def fleet(valkey: str) -> Iterator[Fleet]:
    ledger = Ledger(valkey, prefix=f"t{uuid.uuid4().hex[:8]}:")
    ledger.open_epoch(mine=True)
    yield Fleet(ledger)
    ledger.redis.delete(*ledger.redis.keys(f"{ledger.prefix}*"))
    ledger.close()


def test_two_large_submissions_share_the_slots_by_weight_and_a_small_later_one_is_not_starved(fleet: Fleet) -> None:
    """1,000 conversations each, weights 3 and 1, 20 slots: 15 and 5 play at a time, and three times as many end. Ten
    that come later have their part of the next slots, and are over when neither of the large ones is."""
    large = fleet.submit(1000, weight=3)
    fleet.step(8)
    assert fleet.held(large) == SLOTS, "alone it has all"
    other = fleet.submit(1000)
    fleet.step(3 * LASTS)
    before = Counter(fleet.ended)
    held = []
    for _ in range(20 * LASTS):
        fleet.step()
        held.append((fleet.held(large), fleet.held(other)))
    assert set(map(sum, held)) == {SLOTS}, "no slot is idle"
    assert 14 <= sum(three for three, _ in held) / len(held) <= 16
    assert min(one for _, one in held) >= 2
    ended = fleet.ended - before
    assert 2.5 <= ended[large.id] / ended[other.id] <= 3.5

    small = fleet.submit(10)
    fleet.step(5 * LASTS)
    assert fleet.ended[small.id] == 10
    assert fleet.ended[large.id] < 1000
    assert fleet.ended[other.id] < 1000
    fleet.step(3 * LASTS)
    assert fleet.held(large) + fleet.held(other) == SLOTS, "what it leaves is theirs again"


def test_a_submission_that_nobody_drives_keeps_no_place(fleet: Fleet) -> None:
    dead = fleet.submit(1000)
    fleet.step(LASTS)
    alive = fleet.submit(1000)
    del fleet.dispatchers[dead.id]
    fleet.ledger.redis.hincrby(f"{fleet.ledger.prefix}s:{dead.id}:meta", "want_at", -60_000)
    fleet.step(5 * LASTS)
    assert fleet.held(alive) == SLOTS


def test_many_small_submissions_on_few_slots_all_move(fleet: Fleet) -> None:
    """30 on 20 slots: each has one in flight or in the queue, and they take turns."""
    plans = [fleet.submit(100) for _ in range(30)]
    fleet.step(8 * LASTS)  # whoever came first had more, for a while
    before = Counter(fleet.ended)
    fleet.step(20 * LASTS)
    ended = [fleet.ended[plan.id] - before[plan.id] for plan in plans]
    assert sum(ended) > 15 * SLOTS
    assert min(ended) > 0.5 * sum(ended) / len(ended)
    assert max(ended) < 1.5 * sum(ended) / len(ended)
