"""How much may a submission cost and how long may it take; what has it spent, and what is left to do?  (S15, S36)

The limits are kept where runs are begun, in the claim (`evalfleet/ledger/lua/_room.lua`). Here is what surrounds them:
what earlier commands spent, read from the evidence; why nothing more was begun, in words; and the estimate of what is
left, which says nothing before a whole wave of conversations has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from evalfleet.ledger import MIXED, Progress, Reading, Spent
from evalfleet.money import shown
from evalfleet.plan import Conversation, Plan
from scheduler.layout import duration

ENOUGH = 5
"""Conversations that have to end before anything is estimated; more where more than that play at once."""


def spent_before(plan: Plan, lines: Iterable[Mapping[str, Any]], still_open: Collection[Conversation]) -> Spent:
    """What the evidence says that the chats of a plan have cost: the later reading of a chat counts. Those of
    conversations that are `still_open` are named, for their chats will be read again."""
    index = plan.numbers()
    found: dict[tuple[Conversation, int], Reading] = {}
    for line in lines:
        number = index.get((str(line.get("case")), str(line.get("scenario"))))
        if number is None:
            continue
        conversation = Conversation(number, int(line["trial"]))
        for made in line.get("tries") or ():
            if isinstance(made.get("usage"), Mapping):
                try_ = int(made["try"])
                found[conversation, try_] = Reading.of(try_, made["usage"])
    priced = [reading for reading in found.values() if reading.amount is not None]
    currencies = {reading.currency for reading in priced}
    return Spent(
        amount=sum(reading.amount or 0 for reading in priced),
        currency=MIXED if len(currencies) > 1 else next(iter(currencies), ""),
        chats=len(priced),
        unpriced=len(found) - len(priced),
        readings={key: reading.amount for key, reading in found.items() if key[0] in still_open},
    )


def why_closed(code: str, budget: int | None, max_time: int | None, spent: Spent) -> str:
    """Why nothing more is begun, what was spent, and how to go on. `code` as `Load.closed` has it, `budget` in
    billionths, `max_time` in seconds."""
    chats = f"{spent.chats} conversation{'' if spent.chats == 1 else 's'}"
    match code:
        case "max_time":
            return (
                f"the time is up: --max-time is {duration(1000 * (max_time or 0))}, and "
                f"{money(spent) or 'nothing'} was spent; a resume has as much time again"
            )
        case "budget_currencies":
            return "--budget counts one currency, and the target named several; go on without --budget"
        case "budget_unpriced":
            return (
                f"--budget has nothing to count: the target named no amount for {spent.unpriced} conversations; "
                "go on without --budget"
            )
        case _:
            return (
                f"the budget is used up: {money(spent)} spent by {chats}, and --budget is {shown(budget or 0)}; "
                "go on with a larger --budget"
            )


def money(spent: Spent) -> str:
    """`4.25 USD`; "" where no amount was named, or several currencies were."""
    return f"{shown(spent.amount)} {spent.currency}" if spent.currency not in {"", MIXED} else ""


def notice(budget: int | None, spent: Spent) -> str:
    """What is odd about a budget, while it lasts; "" when nothing is."""
    if budget is not None and spent.chats >= ENOUGH and not spent.amount:
        return f"--budget limits nothing: all {spent.chats} conversations so far cost 0 {spent.currency}"
    return ""


@dataclass(frozen=True, slots=True)
class Left:
    """What is left to do, as far as can be told: `seconds`, and `amount` in billionths of `currency`; None: unknown."""

    seconds: float
    amount: int | None
    currency: str

    def __str__(self) -> str:
        parts = [_words(self.seconds)]
        if self.amount:
            parts.append(f"{shown(_two_digits(self.amount))} {self.currency}")
        return f"about {' and '.join(parts)} to go"


def left(progress: Progress, total: int) -> Left | None:
    """The mean of the conversations that have ended, for each attempt that is not played yet; None before a whole wave
    of them has ended, since those that end first are the short ones, and while nothing is running."""
    to_play = total - progress.recorded - progress.waiting - progress.given_up
    if to_play <= 0 or not progress.running or progress.ended < max(ENOUGH, progress.running):
        return None
    each_ms = progress.played_ms / max(progress.played, 1)
    spent = progress.spent
    known = spent.chats and spent.currency != MIXED
    amount = round(spent.amount / spent.chats * progress.ended / max(progress.played, 1) * to_play) if known else None
    return Left(each_ms * to_play / progress.running / 1000, amount, spent.currency)


def _words(seconds: float) -> str:
    """As exact as an estimate can be: 5 s, 40 s, 3 min, 2 h 10 min."""
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {10 * (minutes % 60 // 10)} min"


def _two_digits(amount: int) -> int:
    step: int = 10 ** max(0, len(str(amount)) - 2)
    return step * round(amount / step)
