"""What did a submission cost, with every chat counted once?

The platform reads usage per chat: all turns and scenarios of a conversation report the same numbers (S15). So readings
are kept per chat, the best one wins, and the order they come in does not matter. Judge calls are counted apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any


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
    """Takes attempt lines in any order; memory is a reading for each chat."""

    def __init__(self) -> None:
        self._chats: dict[str, _Reading] = {}
        self._calls = 0
        self._tokens = 0
        self._amount: Decimal | None = None

    def add(self, line: Mapping[str, Any]) -> None:
        for usage in _usages(line):
            chat = str(usage.get("chat_id"))
            reading = _Reading(
                final=bool(usage.get("final")),
                tokens=_whole(usage.get("total_tokens"))
                or _whole(usage.get("input_tokens")) + _whole(usage.get("output_tokens")),
                amount=_money(usage.get("amount")) or Decimal(0),
                currency=str(usage.get("currency") or "USD"),
            )
            self._chats[chat] = max(reading, self._chats.get(chat, reading))
        for answer in _mappings(line.get("graders")):
            self._calls += _whole(answer.get("llm_calls"))
            self._tokens += _whole(answer.get("llm_tokens"))
            amount = _money(answer.get("llm_amount"))
            if amount is not None:
                self._amount = (self._amount or Decimal(0)) + amount

    def total(self) -> Spend:
        amounts: dict[str, Decimal] = {}
        for reading in self._chats.values():
            amounts[reading.currency] = amounts.get(reading.currency, Decimal(0)) + reading.amount
        return Spend(
            amounts=amounts,
            tokens=sum(reading.tokens for reading in self._chats.values()),
            chats=len(self._chats),
            final=all(reading.final for reading in self._chats.values()),
            judge_calls=self._calls,
            judge_tokens=self._tokens,
            judge_amount=self._amount,
        )


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
