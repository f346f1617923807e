"""How sure is a rate, given how little it stands on? (S30)

Wilson's interval for a share of scenarios; a seeded bootstrap over case files for a mean over scenarios, because the
scenarios of one file share a conversation and are not independent of one another. Both are 95 %.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction

TOO_FEW = 5
"""Under this many case files a bootstrap says nothing: it would only draw the same few again."""

DRAWS = 1000
SEED = 30
"""One seed for all: equal evidence gives the equal interval, on every machine."""


def wilson(successes: int, n: int, z: float = 1.96) -> tuple[float, float] | None:
    """Wilson's interval for a share (S30), within 0 and 1; None for n = 0. z = 1.96 is 95 %."""
    if n <= 0:
        return None
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    share = successes / n
    spread = z * z / n
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / n + spread / (4 * n))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def bootstrap_mean(
    files: Sequence[Sequence[Fraction]], *, seed: int = SEED, draws: int = DRAWS
) -> tuple[float, float] | None:
    """The percentile interval of the mean over all scenarios, when whole case files are drawn with replacement (S30).

    `files`: for each case file the shares of its scenarios. None for fewer than TOO_FEW files that hold any. A pure
    function: `seed` decides every draw, and the order of `files` is the only other thing that counts.
    """
    return bootstrap_ratio([(float(sum(shares, Fraction(0))), len(shares)) for shares in files], seed=seed, draws=draws)


def bootstrap_ratio(
    files: Sequence[tuple[float, int]], *, seed: int = SEED, draws: int = DRAWS
) -> tuple[float, float] | None:
    """The same for what is known of each case file as (sum, how many make it up): the interval of all sums ÷ all
    counts."""
    sums = [(total, count) for total, count in files if count]
    if len(sums) < TOO_FEW:
        return None
    chance = random.Random(seed)
    means = []
    for _ in range(draws):
        drawn = chance.choices(sums, k=len(sums))
        means.append(sum(total for total, _ in drawn) / sum(count for _, count in drawn))
    means.sort()
    return means[round(0.025 * (draws - 1))], means[round(0.975 * (draws - 1))]
