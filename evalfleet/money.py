"""How is money counted? Exactly, and never over two currencies.

The wire has decimal text (wire.md, "Ground rules"), which is added as it stands (`exact_sum`, `by_currency`); Redis'
scripts have doubles, which are exact for whole numbers up to 2^53: nine million units of a currency, in billionths.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final

_EXACT: Final = Context(prec=4000)
"""Digits enough for any sum of scores (1e300 and 5e-324 have 625 between them) and amounts."""


def exact_sum(values: Iterable[Decimal]) -> Decimal:
    """What decimals add up to, no digit lost: Python's own sum rounds to 28 of them."""
    total = Decimal(0)
    for value in values:
        total = _EXACT.add(total, value)
    return total


def by_currency(amounts: Iterable[tuple[str, Decimal]]) -> dict[str, Decimal]:
    """(currency, amount) pairs, added up for each currency by itself, in the order of the currencies' names."""
    found: dict[str, list[Decimal]] = {}
    for currency, amount in amounts:
        found.setdefault(currency, []).append(amount)
    return {currency: exact_sum(found[currency]) for currency in sorted(found)}


def currency_of(value: Any) -> str:
    """A usage's currency as it is counted: capital letters ("usd" and "USD" are one), "" where none is named."""
    return str(value or "").strip().upper()


BILLION = 10**9
MOST = 9 * 10**6
"""In units of the currency: more than this is no amount of ours, and no budget."""


def billionths(amount: Any) -> int | None:
    """A decimal text of the wire, rounded to a billionth; None for what is no amount: absent, no number, below zero."""
    try:
        value = Decimal(str(amount)) if amount is not None else None
    except InvalidOperation:
        return None
    if value is None or not value.is_finite() or not 0 <= value <= MOST:
        return None
    return int((value * BILLION).to_integral_value())


def shown(amount: int) -> str:
    """Billionths as people write money: `5`, `0.05413`."""
    whole, rest = divmod(amount, BILLION)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".")


def read_amount(text: str) -> str:
    """What a person wrote, as plain decimal text. ValueError says what is wrong with it."""
    amount = billionths(text.strip()) if text.strip()[:1].isdigit() else None
    if not amount:
        raise ValueError("write an amount above 0, like 5.00; its currency is the one that the target's usage names")
    return shown(amount)
