"""How is money counted? Exactly, in whole billionths of whatever currency the usage names.

The wire has decimal text (wire.md, "Ground rules"); Redis' scripts have doubles, which are exact for whole numbers up
to 2^53: nine million units of a currency.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

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
