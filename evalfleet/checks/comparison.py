"""Is it better or worse than it was, and could chance alone have done it? (S31)

Pure: two sides in, what moved out. The server's `comparison` and the report's share `moved`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from evalfleet.checks.verdict import FAIL, FLAKY, INCOMPLETE, PASS

REGRESSED, WEAKER, IMPROVED, SAME, UNDECIDED = "regressed", "weaker", "improved", "same", "undecided"
SIGNIFICANT: Final = 0.05

_RANK: Final = {FAIL: 0, FLAKY: 1, PASS: 2}


def moved(before: str, now: str) -> str:
    """What became of one scenario, from its two verdicts (S29).

    `regressed`: it could and now cannot. `weaker`: it did so reliably, and now only sometimes. `improved`: the verdict
    is a better one. `undecided`: attempts are missing on one side, which may give anything.
    """
    if INCOMPLETE in (before, now):
        return UNDECIDED
    if _RANK[now] > _RANK[before]:
        return IMPROVED
    if _RANK[now] == _RANK[before]:
        return SAME
    return REGRESSED if now == FAIL else WEAKER


def capability(before: Mapping[str, bool], now: Mapping[str, bool]) -> tuple[int, int]:
    """The server's two numbers, (improved, regressed), by case key: whether any attempt passed there and here. Keys of
    one side only count for nothing."""
    verdicts = [(_able(before[key]), _able(now[key])) for key in before.keys() & now.keys()]
    moves = [moved(one, other) for one, other in verdicts]
    return moves.count(IMPROVED), moves.count(REGRESSED)


def _able(passed: bool) -> str:
    return PASS if passed else FAIL


def mcnemar(worse: int, better: int) -> float:
    """The exact two-sided McNemar p: how probable is a split at least this uneven of the scenarios that moved, if each
    of them were as likely to move either way? 1 where none moved."""
    total = worse + better
    if not total:
        return 1.0
    tail = sum(math.comb(total, number) for number in range(min(worse, better) + 1))
    return min(1.0, float(Fraction(2 * tail, 1 << total)))


@dataclass(frozen=True, slots=True)
class Judged:
    """One scenario of one side. `content`: all that decides its verdict, by name ("turns", "expectations", …), as
    digests or plain values; two sides are compared where all of it is equal. `passed` of `recorded` trials, where they
    are known; `first_failure` in words."""

    verdict: str
    trials: int
    content: Mapping[str, Any]
    passed: int | None = None
    first_failure: str | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """A scenario that both sides judged by the same content at equal trials. `move`: see `moved`."""

    key: str
    before: Judged
    now: Judged
    move: str

    def document(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "move": self.move,
            "trials": self.now.trials,
            "before": {"verdict": self.before.verdict, "passed": self.before.passed},
            "now": {"verdict": self.now.verdict, "passed": self.now.passed},
            "first_failure": self.now.first_failure,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """All scenarios of two sides. `pairs` in the order of the newer side; the rest says why it is in no pair:
    `changed` (key, which content differs), `other_k` (key, trials before, trials now), `new`, `removed`, and
    `not_selected`: on one side only, where the other side played only a selection."""

    pairs: tuple[Pair, ...] = ()
    changed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    other_k: tuple[tuple[str, int, int], ...] = ()
    new: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    not_selected: tuple[str, ...] = ()
    p: float = field(init=False)

    def __post_init__(self) -> None:
        worse = self.count(REGRESSED) + self.count(WEAKER)
        object.__setattr__(self, "p", mcnemar(worse, self.count(IMPROVED)))

    def count(self, move: str) -> int:
        return sum(pair.move == move for pair in self.pairs)

    @property
    def decided(self) -> int:
        """Pairs with a verdict on both sides: what `p` stands on. 0: nothing was compared."""
        return len(self.pairs) - self.count(UNDECIDED)

    def is_regression(self, *, significant: bool = False) -> bool:
        """Did something get worse? `significant`: and p is below 0.05, and more got worse than better."""
        worse, better = self.count(REGRESSED) + self.count(WEAKER), self.count(IMPROVED)
        return worse > 0 and (not significant or (worse > better and self.p < SIGNIFICANT))

    def document(self) -> dict[str, Any]:
        """What `--json` says of it; the pairs that stayed the same are only counted."""
        counts = {move: self.count(move) for move in (REGRESSED, WEAKER, IMPROVED, SAME, UNDECIDED)}
        return {
            "paired": len(self.pairs),
            **counts,
            "p": self.p,
            "moves": [pair.document() for pair in self.pairs if pair.move != SAME],
            "changed": [{"key": key, "what": list(what)} for key, what in self.changed],
            "other_k": [{"key": key, "before": before, "now": now} for key, before, now in self.other_k],
            "new": list(self.new),
            "removed": list(self.removed),
            "not_selected": list(self.not_selected),
        }


def compare(
    before: Mapping[str, Judged], now: Mapping[str, Judged], *, all_before: bool = True, all_now: bool = True
) -> Comparison:
    """Pairs by key *and* equal content at equal trials; everything else is listed apart (S31).

    `all_before`, `all_now`: that side played its whole tree; what a selection leaves out is neither new nor removed.
    """
    pairs, changed, other_k, new = [], [], [], []
    for key, here in now.items():
        there = before.get(key)
        if there is None:
            new.append(key)
            continue
        what = tuple(
            name for name in {**there.content, **here.content} if there.content.get(name) != here.content.get(name)
        )
        if what:
            changed.append((key, what))
        elif there.trials != here.trials:
            other_k.append((key, there.trials, here.trials))
        else:
            pairs.append(Pair(key, there, here, moved(there.verdict, here.verdict)))
    removed = [key for key in before if key not in now]
    not_selected = ([] if all_now else removed) + ([] if all_before else new)
    return Comparison(
        tuple(pairs),
        tuple(changed),
        tuple(other_k),
        new=tuple(new) if all_before else (),
        removed=tuple(removed) if all_now else (),
        not_selected=tuple(not_selected),
    )
