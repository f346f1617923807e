"""What did a submission cost, with every chat counted once?

The platform reads usage per chat: all turns and scenarios of a conversation report the same numbers (S15). So readings
are kept per chat, the best one wins, and the order they come in does not matter. Judge calls are counted apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from evalfleet.money import by_currency, currency_of
from evalfleet.plan import Plan, PlannedCase


@dataclass(frozen=True, slots=True)
class Spend:
    """`amounts` by currency, never added over currencies. `chats` with a reading; `final`: none was an estimate. The
    judge's calls are apart."""

    amounts: Mapping[str, Decimal] = field(default_factory=dict)
    tokens: int = 0
    chats: int = 0
    final: bool = True
    judge_calls: int = 0
    judge_tokens: int = 0
    judge_amounts: Mapping[str, Decimal] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """`spend` in `--json`: money as decimal text, null where nothing was read or currencies differ."""
        return {
            **_money_members(self.amounts),
            "tokens": self.tokens,
            "final": self.final,
            "judge": {
                "calls": self.judge_calls,
                "tokens": self.judge_tokens,
                **_money_members(self.judge_amounts),
            },
        }


def _money_members(amounts: Mapping[str, Decimal]) -> dict[str, Any]:
    if len(amounts) > 1:
        shown = {currency: plain(amount) for currency, amount in sorted(amounts.items())}
        return {"amount": None, "currency": None, "amounts": shown}
    currency, amount = next(iter(amounts.items()), (None, None))
    return {"amount": None if amount is None else plain(amount), "currency": currency}


@dataclass(frozen=True, slots=True, order=True)
class _Reading:
    """Ordered by what makes one better: final, then the later, which says more."""

    final: bool
    tokens: int
    amounts: tuple[tuple[str, Decimal], ...]


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
        self._amounts: Mapping[str, Decimal] = {}
        self._chat_tokens = 0
        self._chats = 0
        self._final = True
        self._calls = 0
        self._tokens = 0
        self._judged: Mapping[str, Decimal] = {}

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
            self._judged = _added(self._judged, _amounts(answer.get("llm_amount"), answer.get("llm_currency")))

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
            judge_amounts=dict(self._judged),
        )

    def _settle(self, conversation: _Conversation) -> None:
        for reading in conversation.chats.values():
            self._amounts = _added(self._amounts, reading.amounts)
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
                amounts=_amounts_of(usage),
            )
            self.chats[chat] = max(reading, self.chats.get(chat, reading))


def _amounts_of(usage: Mapping[str, Any]) -> tuple[tuple[str, Decimal], ...]:
    """By currency: where they are several, a usage document has them in `amounts`."""
    several = usage.get("amounts")
    if isinstance(several, Mapping):
        return tuple(by_currency(pair for name, text in several.items() for pair in _amounts(text, name)).items())
    amount, currency = usage.get("amount"), usage.get("currency")
    return tuple(_amounts(amount, currency)) or ((_currency(currency), Decimal(0)),)


def _amounts(amount: Any, currency: Any) -> list[tuple[str, Decimal]]:
    known = _money(amount)
    return [] if known is None else [(_currency(currency), known)]


def _currency(value: Any) -> str:
    return currency_of(value) or "USD"


def _added(before: Mapping[str, Decimal], more: Iterable[tuple[str, Decimal]]) -> Mapping[str, Decimal]:
    return by_currency([*before.items(), *more])


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
