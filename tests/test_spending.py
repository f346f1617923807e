"""What a submission's chats cost and what may still be begun under a budget, against a real Valkey (I7, S15, S36)."""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalfleet.ledger import MIXED, Claimed, Ledger, Reading, Spent
from evalfleet.money import BILLION, billionths, by_currency, exact_sum, read_amount, shown
from evalfleet.plan import Conversation, Plan
from tests.test_ledger import make_plan

BLIND = 4
"""Under a budget so many are begun before the first price is known."""


@pytest.fixture
def ledger(valkey: str) -> Iterator[Ledger]:
    made = Ledger(valkey, prefix=f"t{uuid.uuid4().hex[:8]}:")
    made.open_epoch(mine=True)
    yield made
    made.redis.delete(*made.redis.keys(f"{made.prefix}*"))
    made.close()


def with_budget(budget: str | None, *, concurrency: int = 100, max_time: int | None = None) -> Plan:
    plan = make_plan(concurrency=concurrency)
    return replace(plan, limits=replace(plan.limits, budget=budget, max_time=max_time))


def claim(ledger: Ledger, plan: Plan, trial: int, who: str = "w") -> Claimed:
    """As many trials as a test wants: what a claim asks of the plan is in its arguments."""
    conversation = Conversation(0, trial)
    return ledger.claim(plan.id, conversation, plan.attempts(Conversation(0, 0)), who)


def end(ledger: Ledger, plan: Plan, trial: int, *amounts: str | None, who: str = "w", played: bool = True) -> bool:
    readings = [Reading.of(n, {"amount": amount, "currency": "USD"}) for n, amount in enumerate(amounts)]
    return ledger.release(
        plan.id, Conversation(0, trial), who, played=played, readings=readings, played_ms=1000, attempts=2
    )


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("5.00", 5 * BILLION),
        ("0.05413", 54_130_000),
        ("1e-3", 1_000_000),
        (0, 0),
        ("0.0000000005", 0),  # below what is counted
        (None, None),
        ("NaN", None),
        ("-1", None),
        ("much", None),
        ("1e30", None),
    ],
)
def test_an_amount_is_counted_in_billionths_and_nothing_else_is_an_amount(text: object, amount: int | None) -> None:
    assert billionths(text) == amount


def test_a_budget_is_read_as_it_is_written_and_anything_else_is_refused() -> None:
    assert [read_amount(text) for text in ("5.00", "0.05", " 12 ")] == ["5", "0.05", "12"]
    for wrong in ("", "0", "-1", "$5", "5 USD", "5,00", "NaN", "Infinity", "0.0"):
        with pytest.raises(ValueError, match=r"like 5\.00"):
            read_amount(wrong)


def test_n20_one_currency_is_one_in_either_case(ledger: Ledger) -> None:
    """A target that writes "usd" here and "USD" there has one budget; EUR beside it is never added to it."""
    plan = with_budget("100")
    ledger.add(plan, {})
    for trial, currency in enumerate(("usd", "USD", " Usd ")):
        assert claim(ledger, plan, trial) is Claimed.CLAIMED
        readings = [Reading.of(0, {"amount": "1.5", "currency": currency})]
        ledger.release(plan.id, Conversation(0, trial), "w", played=True, readings=readings, played_ms=1, attempts=2)
    assert (ledger.spent(plan.id).currency, ledger.spent(plan.id).amount) == ("USD", 4_500_000_000)
    assert claim(ledger, plan, 3) is Claimed.CLAIMED
    readings = [Reading.of(0, {"amount": "1", "currency": "EUR"})]
    ledger.release(plan.id, Conversation(0, 3), "w", played=True, readings=readings, played_ms=1, attempts=2)
    assert ledger.spent(plan.id).currency == MIXED
    assert claim(ledger, plan, 4) is not Claimed.CLAIMED


def test_a_sum_loses_no_digit() -> None:
    """Python's own rounds to 28 digits: a billion and 1e-30 would be a billion."""
    values = [Decimal("1e300"), Decimal("0.1"), Decimal("5e-324"), Decimal("-1e300")]
    assert format(exact_sum(values), "f") == "0.1" + "0" * 322 + "5"
    assert by_currency([("USD", Decimal("0.1")), ("EUR", Decimal(1)), ("USD", Decimal("0.2"))]) == {
        "EUR": Decimal(1),
        "USD": Decimal("0.3"),
    }


@given(st.integers(0, 10**15))
def test_money_is_shown_exactly(amount: int) -> None:
    assert billionths(shown(amount)) == amount


def allowed(concurrency: int, budget: int, amounts: list[int | None]) -> tuple[int, str]:
    """The rule, in exact numbers: what is open counts as the mean, and so does what had no price. One more is begun
    while all of that together is below the budget."""
    priced = [amount for amount in amounts if amount is not None]
    if not priced:
        return (0, "budget_unpriced") if len(amounts) >= BLIND else (min(concurrency, BLIND), "")
    mean = Fraction(sum(priced), len(priced))
    if mean == 0:
        return concurrency, ""
    room = (budget - mean * len(amounts)) / mean
    return (min(concurrency, math.ceil(room)), "") if room > 0 else (0, "budget")


@settings(max_examples=150)
@given(
    concurrency=st.integers(1, 50),
    budget=st.integers(1, 10**12),
    amounts=st.lists(st.one_of(st.none(), st.integers(0, 10**11)), max_size=12),
)
def test_as_many_may_be_open_as_the_budget_has_room_for_at_the_mean_price(
    ledger: Ledger, concurrency: int, budget: int, amounts: list[int | None]
) -> None:
    plan = with_budget(shown(budget), concurrency=concurrency)
    ledger.add(plan, {})
    for trial, amount in enumerate(amounts):
        ledger.redis.hset(f"{ledger.prefix}s:{plan.id}:claims", str(Conversation(0, trial)), "w")
        end(ledger, plan, trial, None if amount is None else shown(amount))
    load = ledger.load(plan.id)
    assert (load.most, load.closed) == allowed(concurrency, budget, amounts)
    ledger.forget(plan.id)


def test_the_claim_refuses_above_what_the_budget_has_room_for(ledger: Ledger) -> None:
    plan = with_budget("0.05")
    ledger.add(plan, {})
    assert [claim(ledger, plan, trial) for trial in range(5)] == [Claimed.CLAIMED] * 4 + [Claimed.FULL]
    end(ledger, plan, 0, "0.02")  # the mean: with three in flight that is 0.08
    assert claim(ledger, plan, 4) is Claimed.FULL
    for trial in (1, 2):
        end(ledger, plan, trial, "0.01")
    end(ledger, plan, 3, "0.0025")
    assert ledger.spent(plan.id) == Spent(42_500_000, "USD", 4, 0)
    assert claim(ledger, plan, 4) is Claimed.CLAIMED, "0.0425 spent, nothing in flight"
    assert claim(ledger, plan, 5) is Claimed.FULL, "with one in flight it is 0.0531"


def test_a_chat_is_counted_once_however_often_it_is_read(ledger: Ledger) -> None:
    """A conversation that goes back is played again from its first try, and its finished chats are read again (S14)."""
    plan = with_budget(None)
    ledger.add(plan, {})
    claim(ledger, plan, 0, "a")
    assert end(ledger, plan, 0, "0.10", None, who="a", played=False)
    assert ledger.spent(plan.id) == Spent(100_000_000, "USD", 1, 1)
    claim(ledger, plan, 0, "b")
    assert not end(ledger, plan, 0, "9.00", who="a"), "it is not a's any more, and neither is its cost"
    assert end(ledger, plan, 0, "0.11", "0.20", "0.30", who="b")
    assert ledger.spent(plan.id) == Spent(610_000_000, "USD", 3, 0)
    assert not ledger.redis.exists(f"{ledger.prefix}s:{plan.id}:spent"), "nobody reads them again"
    progress = ledger.progress(plan.id)
    assert (progress.ended, progress.played, progress.played_ms) == (1, 2, 1000)


def test_amounts_in_two_currencies_are_not_added(ledger: Ledger) -> None:
    plan = with_budget("100")
    ledger.add(plan, {})
    for trial, currency in enumerate(("USD", "EUR")):
        claim(ledger, plan, trial)
        reading = Reading.of(0, {"amount": "1", "currency": currency})
        ledger.release(plan.id, Conversation(0, trial), "w", played=True, readings=[reading])
    assert ledger.spent(plan.id).currency == MIXED
    assert ledger.load(plan.id).closed == "budget_currencies"
    assert claim(ledger, plan, 2) is Claimed.FULL


def test_what_earlier_commands_spent_counts_and_the_books_win_where_they_know_of_more(ledger: Ledger) -> None:
    plan = with_budget("5")
    before = Spent(3 * BILLION, "USD", 3, 0, readings={(Conversation(0, 7), 0): BILLION})
    ledger.add(plan, {}, spent=before)
    assert ledger.spent(plan.id) == Spent(3 * BILLION, "USD", 3, 0)
    claim(ledger, plan, 7)
    end(ledger, plan, 7, "1.00", "0.50")
    assert ledger.spent(plan.id).amount == 3_500_000_000, "its first chat was in the evidence already"
    ledger.end(plan.id, "stopped")
    ledger.retire(plan.id)
    ledger.add(plan, {}, spent=before)
    assert ledger.spent(plan.id).amount == 3_500_000_000, "a record that nobody has written yet was paid for"


def test_when_its_time_is_up_nothing_is_begun_and_a_resume_has_as_much_again(ledger: Ledger) -> None:
    plan = with_budget(None, max_time=60)
    ledger.add(plan, {})
    meta = ledger.meta(plan.id)
    assert meta is not None
    assert meta.deadline is not None
    assert 50_000 < meta.deadline - ledger.now_ms() <= 60_000
    assert claim(ledger, plan, 0) is Claimed.CLAIMED
    ledger.redis.hset(f"{ledger.prefix}s:{plan.id}:meta", "deadline", ledger.now_ms() - 1)
    assert claim(ledger, plan, 1) is Claimed.FULL
    assert ledger.load(plan.id).closed == "max_time"
    ledger.add(plan, {})
    assert claim(ledger, plan, 1) is Claimed.CLAIMED


def test_many_workers_at_once_never_begin_more_than_the_budget_has_room_for(ledger: Ledger) -> None:
    """40 workers on 400 conversations of 0.25 with a budget of 20: after each release any number of them claim at once.
    What is spent in the end is the budget, to the conversation: the estimate was exact."""
    plan = with_budget("20", concurrency=40)
    ledger.add(plan, {})
    trials = iter(range(400))
    guard = threading.Lock()
    begun: list[int] = []
    stop = threading.Event()

    def work(who: str) -> None:
        while not stop.is_set():
            with guard:
                trial = next(trials, None)
            if trial is None:
                return
            if claim(ledger, plan, trial, who) is Claimed.CLAIMED:
                begun.append(trial)
                end(ledger, plan, trial, "0.25", who=who)
            elif ledger.load(plan.id).closed:
                stop.set()

    with ThreadPoolExecutor(40) as pool:
        for done in [pool.submit(work, f"w{number}") for number in range(40)]:
            done.result()
    assert stop.is_set()
    assert len(begun) == 80
    assert ledger.spent(plan.id) == Spent(20 * BILLION, "USD", 80, 0)
