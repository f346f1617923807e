"""How many of the fleet's places are this submission's, when several want them?

Weighted max-min shares of what is in flight, not of what is started: a conversation of ten minutes holds its place a
thousand times as long as one of half a second, and by turns the long ones would end up with every worker. Each
dispatcher works its own share out from what all of them want: there is nobody to ask or to wait for (decision 018).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from evalfleet.ledger import Competitor

AHEAD = 4
"""A quarter more than the workers' slots is sent, and this many at least: the next conversation is there when one ends,
and a submission that comes later does not wait behind more than that."""


def places(slots: int) -> int:
    """How many conversations may be in flight or in the queue, for so many slots of workers."""
    return slots + max(AHEAD, slots // 4)


def shares(slots: int, competitors: Sequence[Competitor]) -> dict[str, int]:
    """Submission → how many of its conversations may be in flight or in the queue.

    Those on one limited target share that first, then all of them the fleet. Nobody has more than it wants, whoever
    wants anything has one at least, and what somebody does not want is the others'.
    """
    asks = sorted(competitors, key=lambda c: c.submission)
    wants = [c.want for c in asks]
    for target in {c.target for c in asks}:
        there = [n for n, c in enumerate(asks) if c.target == target]
        limit = asks[there[0]].target_most
        if limit is not None:
            for n, part in zip(there, divide(limit, [(asks[n].weight, wants[n]) for n in there]), strict=True):
                wants[n] = part
    parts = divide(places(slots), [(c.weight, want) for c, want in zip(asks, wants, strict=True)])
    return {c.submission: part for c, part in zip(asks, parts, strict=True)}


def divide(total: int, asks: Sequence[tuple[int, int]]) -> list[int]:
    """`total` over asks of (weight, want): each want is met where it is below its weighted part, and what that leaves
    goes to the others. Whole numbers; the first of equals has what does not divide. One at least for whoever wants."""
    parts = [Fraction(0)] * len(asks)
    open_ = {n for n, (_, want) in enumerate(asks) if want > 0}
    left = Fraction(total)
    while open_:
        level = left / sum(asks[n][0] for n in open_)
        met = {n for n in open_ if asks[n][1] <= level * asks[n][0]}
        for n in met or open_:
            parts[n] = Fraction(asks[n][1]) if met else level * asks[n][0]
        left -= sum(parts[n] for n in met)
        open_ = open_ - met if met else set()
    whole = [int(part) for part in parts]
    over = min(total, sum(want for _, want in asks)) - sum(whole)
    for n in sorted(range(len(asks)), key=lambda n: whole[n] - parts[n])[: max(over, 0)]:
        whole[n] += 1
    return [max(1, part) if want > 0 else 0 for part, (_, want) in zip(whole, asks, strict=True)]
