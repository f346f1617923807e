"""How does the server keep and show what was spent: amounts of several currencies, and the judge's apart? (S15)

Amounts are added for each currency by itself and never over two of them. Where there are several, `amount` and
`currency` are null, and `amounts` has each currency's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from evalfleet.money import by_currency
from evalfleet.server.documents import counted, money_text, text_of

DEFAULT: Final = "USD"
"""The currency of an amount that names none."""


def stored(amounts: Mapping[str, Decimal]) -> str:
    """As a column of text keeps it: currency → plain decimal."""
    return text_of({currency: money_text(amount) for currency, amount in amounts.items()})


def read(text: str | None) -> dict[str, Decimal]:
    """What `stored` has written; nothing where there is nothing."""
    return {currency: Decimal(amount) for currency, amount in json.loads(text or "{}").items()}


def added(*parts: Mapping[str, Decimal]) -> dict[str, Decimal]:
    """Several of them in one, exactly."""
    return by_currency(pair for part in parts for pair in part.items())


def spent_text(amounts: Mapping[str, Decimal]) -> str:
    """The members `amount` and `currency` of a document, and `amounts` where the currencies are several."""
    if len(amounts) > 1:
        return f'"amount":null,"currency":null,"amounts":{stored(amounts)}'
    currency, amount = next(iter(amounts.items()), (DEFAULT, Decimal(0)))
    return f'"amount":"{money_text(amount)}","currency":{text_of(currency)}'


@dataclass(frozen=True, slots=True)
class JudgeSpend:
    """What judge calls have used. No `amounts`: the judge has no price in `[judge.price]`."""

    calls: int = 0
    tokens: int = 0
    amounts: Mapping[str, Decimal] = field(default_factory=dict)

    @classmethod
    def sum(cls, parts: Iterable[JudgeSpend]) -> JudgeSpend:
        given = list(parts)
        return cls(
            counted(*(part.calls for part in given)),
            counted(*(part.tokens for part in given)),
            added(*(part.amounts for part in given)),
        )

    def stored(self) -> str:
        """As a column of text keeps it."""
        amounts = {currency: money_text(amount) for currency, amount in self.amounts.items()}
        return text_of({"calls": self.calls, "tokens": self.tokens, "amounts": amounts})

    @classmethod
    def read(cls, text: str) -> JudgeSpend:
        """What `stored` has written."""
        found = json.loads(text)
        amounts = {currency: Decimal(amount) for currency, amount in found.get("amounts", {}).items()}
        return cls(found.get("calls", 0), found.get("tokens", 0), amounts)

    def member(self) -> str:
        """The member `judge` of a document, beside the agent's usage; "" where no judge was called."""
        if not self.calls:
            return ""
        spent = spent_text(self.amounts) if self.amounts else '"amount":null,"currency":null'
        return f',"judge":{{"calls":{self.calls},"tokens":{self.tokens},{spent}}}'
