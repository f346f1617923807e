"""What have the conversations of a submission cost, and how much of its budget is left?  (S15)

Each try of a conversation is a chat, and a chat is counted once, however often it is read: a reading is kept by
conversation and try for as long as the conversation may be played again. The amounts come in with the release of a
claim (`lua/release.lua`), so that there is no moment at which a conversation is neither in flight nor paid for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from evalfleet.ledger.broker import Broker, guarded
from evalfleet.money import billionths, currency_of
from evalfleet.plan import Conversation

MIXED = "mixed"
SPENT = ("spent", "currency", "chats", "unpriced")
"""The fields of a submission's meta that say what was spent."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one try's chat has cost: `amount` in billionths of `currency`, None where the target named none."""

    number: int
    amount: int | None
    currency: str

    @classmethod
    def of(cls, number: int, usage: Mapping[str, object] | None) -> Reading:
        """The reading of a usage document; None: it could not be read."""
        found = usage or {}
        return cls(number, billionths(found.get("amount")), currency_of(found.get("currency")))


@dataclass(frozen=True, slots=True)
class Spent:
    """Over all chats that have ended, also in earlier commands. `amount` in billionths of `currency` ("" while none was
    named, MIXED when there were several), `chats` with an amount, `unpriced` ones without.

    `readings`: those of conversations that will be played again, by conversation and try.
    """

    amount: int = 0
    currency: str = ""
    chats: int = 0
    unpriced: int = 0
    readings: Mapping[tuple[Conversation, int], int | None] = field(default_factory=dict)

    def fields(self) -> tuple[int, str, int, int]:
        """The values of SPENT."""
        return self.amount, self.currency, self.chats, self.unpriced

    @classmethod
    def read(cls, fields: Sequence[bytes | None]) -> Spent:
        """From the values of SPENT."""
        amount, currency, chats, unpriced = fields
        return cls(int(amount or 0), (currency or b"").decode(), int(chats or 0), int(unpriced or 0))


class Spending(Broker):
    """Reading it; it is written by `Submissions.add` and `Claims.release`."""

    @guarded
    def spent(self, submission: str) -> Spent:
        return Spent.read(cast(list[bytes | None], self.redis.hmget(self._key(submission, "meta"), SPENT)))
