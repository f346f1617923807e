"""What did a submission cost, with every chat counted once?

The platform reads usage per chat: all turns and scenarios of a conversation report the same numbers (S15). So readings
are kept per chat, the best one wins, and the order they come in does not matter. Judge calls are counted apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from evalfleet.plan import Plan, PlannedCase


@dataclass(frozen=True, slots=True)
class Spend:
    """`amounts` by currency, never added over currencies. `chats` with a reading; `final`: none was an estimate."""

    amounts: Mapping[str, Decimal] = field(default_factory=dict)
    tokens: int = 0
    chats: int = 0
    final: bool = True
    judge_calls: int = 0
    judge_tokens: int = 0
    judge_amount: Decimal | None = None

    def document(self) -> dict[str, Any]:
        """`spend` in `--json`: money as decimal text, null where nothing was read or currencies differ."""
        document: dict[str, Any] = {
            "amount": None,
            "currency": None,
            "tokens": self.tokens,
            "final": self.final,
            "judge": {
                "calls": self.judge_calls,
                "tokens": self.judge_tokens,
                "amount": None if self.judge_amount is None else plain(self.judge_amount),
            },
        }
        if len(self.amounts) == 1:
            [(document["currency"], amount)] = self.amounts.items()
            document["amount"] = plain(amount)
        elif self.amounts:
            document["amounts"] = {currency: plain(amount) for currency, amount in sorted(self.amounts.items())}
        return document


@dataclass(frozen=True, slots=True, order=True)
class _Reading:
    """Ordered by what makes one better: final, then the later, which says more."""

    final: bool
    tokens: int
    amount: Decimal
    currency: str


class SpendCounter:
    """Takes attempt lines in any order.

    `plan`: how many lines each conversation has. Its chats are no other conversation's (S8), so when all of them are
    in, its readings are added up and let go: memory is a reading for each chat of the conversations that are
    incomplete. Without it, for each chat.
    """

    def __init__(self, plan: Plan | None = None) -> None:
        self._numbers = {} if plan is None else plan.numbers()
        self._lines: Sequence[Sequence[int]] = [] if plan is None else [_lines_of(case) for case in plan.cases]
        self._open: dict[tuple[Hashable, int], _Conversation] = {}
        self._closed: dict[Hashable, int] = {}  # case → its conversations that are done, as bits
        self._amounts: dict[str, Decimal] = {}
        self._chat_tokens = 0
        self._chats = 0
        self._final = True
        self._calls = 0
        self._tokens = 0
        self._amount: Decimal | None = None

    def add(self, line: Mapping[str, Any]) -> None:
        number, trial = self._numbers.get((line["case"], line["scenario"])), line["trial"]
        case: Hashable = line["case"] if number is None else number
        if not self._closed.get(case, 0) >> trial & 1:
            conversation = self._open.setdefault((case, trial), _Conversation())
            conversation.add(line)
            wanted: Sequence[int] = () if number is None else self._lines[number]
            if trial < len(wanted) and len(conversation.scenarios) >= wanted[trial]:
                self._closed[case] = self._closed.get(case, 0) | 1 << trial
                self._settle(self._open.pop((case, trial)))
        for answer in _mappings(line.get("graders")):
            self._calls += _whole(answer.get("llm_calls"))
            self._tokens += _whole(answer.get("llm_tokens"))
            amount = _money(answer.get("llm_amount"))
            if amount is not None:
                self._amount = (self._amount or Decimal(0)) + amount

    def total(self) -> Spend:
        for key in list(self._open):
            self._settle(self._open.pop(key))
        return Spend(
            amounts=dict(self._amounts),
            tokens=self._chat_tokens,
            chats=self._chats,
            final=self._final,
            judge_calls=self._calls,
            judge_tokens=self._tokens,
            judge_amount=self._amount,
        )

    def _settle(self, conversation: _Conversation) -> None:
        for reading in conversation.chats.values():
            self._amounts[reading.currency] = self._amounts.get(reading.currency, Decimal(0)) + reading.amount
            self._chat_tokens += reading.tokens
            self._chats += 1
            self._final = self._final and reading.final


def _lines_of(case: PlannedCase) -> list[int]:
    """How many lines a conversation has, by trial: all up to the last scenario that wants this trial (S9)."""
    counts = [0] * case.trials
    for number, planned in enumerate(case.scenarios, 1):
        if planned.evaluation is not None:
            counts[: planned.scenario.trials] = [number] * planned.scenario.trials
    return counts


class _Conversation:
    """The best reading of each of its chats, and whose lines are in."""

    __slots__ = ("chats", "scenarios")

    def __init__(self) -> None:
        self.chats: dict[str, _Reading] = {}
        self.scenarios: set[str] = set()

    def add(self, line: Mapping[str, Any]) -> None:
        self.scenarios.add(line["scenario"])
        for usage in _usages(line):
            chat = str(usage.get("chat_id"))
            reading = _Reading(
                final=bool(usage.get("final")),
                tokens=_whole(usage.get("total_tokens"))
                or _whole(usage.get("input_tokens")) + _whole(usage.get("output_tokens")),
                amount=_money(usage.get("amount")) or Decimal(0),
                currency=str(usage.get("currency") or "USD"),
            )
            self.chats[chat] = max(reading, self.chats.get(chat, reading))


def plain(amount: Decimal) -> str:
    """Money without exponent: 0.05413, 12, 0."""
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") or "0" if "." in text else text


def _usages(line: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The conversation's reading, and those of the tries before: they were paid for too."""
    for holder in (line, *_mappings(line.get("tries"))):
        usage = holder.get("usage")
        if isinstance(usage, Mapping):
            yield {"chat_id": holder.get("chat_id"), **usage}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _money(value: Any) -> Decimal | None:
    """A decimal text of the wire; what is none counts as nothing, for a price is no reason to lose a report."""
    try:
        amount = Decimal(str(value)) if value is not None else None
    except InvalidOperation:
        return None
    return amount if amount is not None and amount.is_finite() else None
