"""Arithmetic and words of budget and estimate: what was spent, why nothing more is begun, what is left."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalfleet.ledger import MIXED, Progress, Spent
from evalfleet.money import BILLION
from evalfleet.plan import Conversation
from scheduler.budget import ENOUGH, left, notice, spent_before, why_closed
from tests.test_ledger import make_plan

USD = "USD"


def line(trial: int, *usages: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    tries = [{"try": number, "chat_id": f"chat_{trial}_{number}", "usage": u} for number, u in enumerate(usages)]
    return {"case": "c", "scenario": "one", "trial": trial, "tries": tries, **more}


def paid(amount: str | None, currency: str = USD) -> dict[str, Any]:
    return {"amount": amount, "currency": currency, "final": True}


def test_every_chat_in_evidence_is_counted_once_with_its_later_reading() -> None:
    lines = [
        line(0, None),  # its first scenario: the chat was not over yet
        line(0, paid("0.30")),
        line(1, paid("0.10"), paid("0.20")),  # a try without a result was paid for, too
        line(2, paid(None), outcome="missing"),
        {"case": "another tree's", "scenario": "x", "trial": 0, "tries": []},
    ]
    spent = spent_before(make_plan(), lines, {Conversation(0, 1)})
    assert spent == Spent(
        600_000_000, USD, 3, 1, {(Conversation(0, 1), 0): 100_000_000, (Conversation(0, 1), 1): 200_000_000}
    )


def test_several_currencies_in_evidence_have_no_sum() -> None:
    assert spent_before(make_plan(), [line(0, paid("1")), line(1, paid("1", "EUR"))], ()).currency == MIXED


@pytest.mark.parametrize(
    ("code", "budget", "max_time", "spent", "words"),
    [
        ("budget", 5 * BILLION, None, Spent(5_030_000_000, USD, 101), "5.03 USD spent by 101 conversations, and --b"),
        (
            "budget",
            BILLION // 2,
            None,
            Spent(BILLION, "EUR", 1),
            "1 EUR spent by 1 conversation, and --budget is 0.5",
        ),
        ("max_time", None, 1800, Spent(BILLION, USD, 3), "--max-time is 30m00s, and 1 USD was spent"),
        ("max_time", None, 90, Spent(), "--max-time is 1m30s, and nothing was spent"),
        ("budget_unpriced", 5, None, Spent(unpriced=4), "named no amount for 4 conversations"),
        ("budget_currencies", 5, None, Spent(2, MIXED, 2), "counts one currency"),
    ],
)
def test_why_nothing_more_is_begun(
    code: str, budget: int | None, max_time: int | None, spent: Spent, words: str
) -> None:
    assert words in why_closed(code, budget, max_time, spent)


def test_a_budget_that_nothing_counts_towards_is_said() -> None:
    assert "limits nothing: all 5 conversations" in notice(5, Spent(0, USD, 5))
    assert notice(5, Spent(0, USD, 4)) == "", "not enough is known yet"
    assert notice(5, Spent(1, USD, 5)) == ""
    assert notice(None, Spent(0, USD, 5)) == ""


def progress(**more: Any) -> Progress:
    """20 conversations of two attempts each, 10 s and 0.05 each, have ended; 10 play."""
    known: dict[str, Any] = {
        "recorded": 40,
        "running": 10,
        "ended": 20,
        "played": 40,
        "played_ms": 200_000,
        "spent": Spent(BILLION, USD, 20),
    }
    return Progress(**{**known, **more})


def test_what_is_left_is_the_mean_of_what_has_ended() -> None:
    """60 attempts at 5 s and 0.025 each, 10 conversations at a time."""
    found = left(progress(), 100)
    assert found is not None
    assert (found.seconds, found.amount) == (30.0, 1_500_000_000)
    assert str(found) == "about 30 s and 1.5 USD to go"


@pytest.mark.parametrize(
    "more",
    [
        {"ended": ENOUGH - 1, "running": 1},
        {"ended": 9},  # less than a wave: the short ones end first
        {"running": 0},
        {"recorded": 100},
        {"recorded": 60, "waiting": 30, "given_up": 10},
    ],
    ids=["too few", "half a wave", "nothing runs", "all recorded", "nothing left to play"],
)
def test_before_there_is_enough_nothing_is_estimated(more: dict[str, Any]) -> None:
    assert left(progress(**more), 100) is None


def test_no_money_is_estimated_where_no_amount_or_several_currencies_are_known() -> None:
    for spent in (Spent(), Spent(BILLION, MIXED, 20), Spent(0, USD, 20)):
        assert str(left(progress(spent=spent), 100)) == "about 30 s to go"


@pytest.mark.parametrize(
    ("played_ms", "words"),
    [(10, "5 s"), (280_000, "40 s"), (2_000_000, "5 min"), (60_000_000, "2 h 30 min")],
)
def test_an_estimate_is_no_more_exact_than_it_can_be(played_ms: int, words: str) -> None:
    assert str(left(progress(played_ms=played_ms, spent=Spent()), 100)) == f"about {words} to go"


@given(ended=st.integers(ENOUGH, 10**6), running=st.integers(1, 5), total=st.integers(1, 10**6))
def test_an_estimate_is_proportional_to_what_is_left(ended: int, running: int, total: int) -> None:
    one = left(progress(ended=ended, played=ended, recorded=0, running=running), total)
    two = left(progress(ended=ended, played=ended, recorded=0, running=running), 2 * total)
    assert one is not None
    assert two is not None
    assert two.seconds == pytest.approx(2 * one.seconds)
