"""What do the outcomes of many trials say: pass, flaky, fail or incomplete, and at which rates? (S18, S29, S30)"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from evalfleet.checks.intervals import bootstrap_mean, bootstrap_ratio, wilson

PASS, FLAKY, FAIL, INCOMPLETE = "pass", "flaky", "fail", "incomplete"


@dataclass(frozen=True, slots=True)
class ScenarioTally:
    """Attempts of one scenario by outcome; they are disjoint and sum to its trials (S16)."""

    passed: int = 0
    failed: int = 0
    errors: int = 0
    missing: int = 0

    @property
    def trials(self) -> int:
        return self.passed + self.failed + self.errors + self.missing

    @property
    def recorded(self) -> int:
        return self.trials - self.missing

    @property
    def verdict(self) -> str:
        """`pass` all, `flaky` some, `fail` none, `incomplete` if any attempt is missing or there is none (S29)."""
        if self.missing or not self.trials:
            return INCOMPLETE
        if self.passed == self.trials:
            return PASS
        return FLAKY if self.passed else FAIL


def suite_verdict(tallies: Iterable[ScenarioTally]) -> str:
    """The worst of the scenarios: `fail` before `incomplete` before `flaky` before `pass`; `incomplete` for none."""
    verdicts = {tally.verdict for tally in tallies}
    for verdict in (FAIL, INCOMPLETE, FLAKY, PASS):
        if verdict in verdicts:
            return verdict
    return INCOMPLETE


def case_status(k: int, verdicts: Mapping[int, str]) -> str:
    """A case's status on the API: `pending` until all k attempts are in, then `passed`, `flaky` or `failed` (S29).
    `verdicts`: attempt index → `passed` or `failed`."""
    if len(verdicts) < k:
        return "pending"
    passed = _passed(verdicts)
    if passed == len(verdicts):
        return "passed"
    return "flaky" if passed else "failed"


@dataclass(frozen=True, slots=True)
class CaseAttempts:
    """What is recorded of one case of an evaluation: attempt index → verdict, and → judge score where there is one."""

    verdicts: Mapping[int, str]
    scores: Mapping[int, Decimal | None]


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of an evaluation, from 0 to 1 but for the score; None where there is nothing to compute one from."""

    pass_at_1: float | None
    pass_hat_k: float | None
    judge_score: float | None


def evaluation_rates(k: int, cases: Iterable[CaseAttempts]) -> Rates:
    """The three numbers of S30, exactly: `pass_at_1` = mean over cases with attempts of passed ÷ recorded;
    `pass_hat_k` = share, of the cases with all k recorded, in which all passed; `judge_score` = mean of all scores."""
    shares: list[Fraction] = []
    complete = reliable = scored = 0
    total = Fraction(0)
    for case in cases:
        if case.verdicts:
            passed = _passed(case.verdicts)
            shares.append(Fraction(passed, len(case.verdicts)))
            if len(case.verdicts) >= k:
                complete += 1
                reliable += passed == len(case.verdicts)
        for score in case.scores.values():
            if score is not None:
                scored += 1
                total += Fraction(score)
    return Rates(
        pass_at_1=float(sum(shares, Fraction(0)) / len(shares)) if shares else None,
        pass_hat_k=float(Fraction(reliable, complete)) if complete else None,
        judge_score=float(total / scored) if scored else None,
    )


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate of the report. `value` over what is recorded, `n` scenarios behind it, `missing` attempts of all of them;
    `low` and `high`: had every missing attempt failed, or passed (S18); None where there is nothing to bound. They hold
    `value` too, which so few scenarios may stand behind that the known attempts of the others already contradict it:
    what is shown as a range is never one that its own rate lies outside. `interval`: 95 %, of `value` (S30); None
    where too little stands behind it."""

    value: float | None
    n: int
    missing: int
    low: float | None
    high: float | None
    interval: tuple[float, float] | None = None

    def document(self) -> dict[str, Any]:
        """The rate in `--json`."""
        return {
            "value": self.value,
            "n": self.n,
            "missing": self.missing,
            "low": self.low,
            "high": self.high,
            "interval": None if self.interval is None else list(self.interval),
        }


def pass_at_1(tallies: Iterable[ScenarioTally], files: Sequence[Hashable] | None = None) -> Rate:
    """Mean over scenarios with attempts of passed ÷ recorded. The bounds are over all scenarios.

    `files`: what tells the case file, or the row, of each tally; with it the rate has an interval, if there are files
    enough."""
    given = list(tallies)
    all_tallies = [tally for tally in given if tally.trials]
    seen = [tally for tally in all_tallies if tally.recorded]
    by_file: dict[Hashable, list[Fraction]] = {}
    for tally, file in zip(given, files or (), strict=files is not None):
        if tally.recorded:
            by_file.setdefault(file, []).append(Fraction(tally.passed, tally.recorded))
    return _rate(
        all_tallies,
        [Fraction(tally.passed, tally.recorded) for tally in seen],
        low=[Fraction(tally.passed, tally.trials) for tally in all_tallies],
        high=[Fraction(tally.passed + tally.missing, tally.trials) for tally in all_tallies],
        interval=bootstrap_mean(list(by_file.values())),
    )


@dataclass(frozen=True, slots=True)
class PassRate:
    """`passed` of `recorded` attempts, over all numbers of trials. `passed` None, and `rate` without a value: somebody
    else recorded attempts, and how they went is not known here."""

    passed: int | None
    recorded: int
    rate: Rate

    def document(self) -> dict[str, Any]:
        """`pass_rate` in `--json`."""
        return {"passed": self.passed, "recorded": self.recorded, **self.rate.document()}


def pass_rate(tallies: Sequence[ScenarioTally], files: Sequence[Hashable]) -> PassRate:
    """Attempts passed ÷ attempts recorded, every attempt alike. `files` as for `pass_at_1`; whole files are drawn for
    the interval (S30). `n` of the rate are the scenarios with an attempt."""
    by_file: dict[Hashable, tuple[int, int]] = {}
    for tally, file in zip(tallies, files, strict=True):
        passed, recorded = by_file.get(file, (0, 0))
        by_file[file] = passed + tally.passed, recorded + tally.recorded
    passed = sum(tally.passed for tally in tallies)
    recorded = sum(tally.recorded for tally in tallies)
    missing = _missing(tallies)
    known = recorded + missing
    rate = Rate(
        value=passed / recorded if recorded else None,
        n=sum(tally.recorded > 0 for tally in tallies),
        missing=missing,
        low=passed / known if known else None,
        high=(passed + missing) / known if known else None,
    )
    return PassRate(
        passed, recorded, replace(rate, interval=_holding(rate.value, bootstrap_ratio([*by_file.values()])))
    )


def pass_at_k(tallies: Iterable[ScenarioTally]) -> Rate:
    """Share of complete scenarios in which at least one trial passed: it *can* do it. One that has passed and misses a
    trial is no exception: were it counted, and one that has not passed yet left out, the rate would be too high."""
    all_tallies = [tally for tally in tallies if tally.trials]
    seen = [tally for tally in all_tallies if not tally.missing]
    return _share(
        all_tallies,
        [tally.passed > 0 for tally in seen],
        low=[tally.passed > 0 for tally in all_tallies],
        high=[tally.passed + tally.missing > 0 for tally in all_tallies],
    )


def pass_hat_k(tallies: Iterable[ScenarioTally]) -> Rate:
    """Share of complete scenarios in which every trial passed: it *reliably* does it (S30)."""
    all_tallies = [tally for tally in tallies if tally.trials]
    seen = [tally for tally in all_tallies if not tally.missing]
    return _share(
        all_tallies,
        [tally.passed == tally.trials for tally in seen],
        low=[tally.passed == tally.trials for tally in all_tallies],
        high=[tally.passed + tally.missing == tally.trials for tally in all_tallies],
    )


def _share(
    tallies: Sequence[ScenarioTally], seen: Sequence[bool], *, low: Sequence[bool], high: Sequence[bool]
) -> Rate:
    return _rate(
        tallies,
        [Fraction(held) for held in seen],
        low=[Fraction(held) for held in low],
        high=[Fraction(held) for held in high],
        interval=wilson(sum(seen), len(seen)),
    )


def _rate(
    tallies: Sequence[ScenarioTally],
    seen: Sequence[Fraction],
    *,
    low: Sequence[Fraction],
    high: Sequence[Fraction],
    interval: tuple[float, float] | None,
) -> Rate:
    """The rate of the means. Its bounds and its interval hold it."""
    value, least, most = _mean(seen), _mean(low), _mean(high)
    if value is not None and least is not None and most is not None:
        least, most = min(least, value), max(most, value)
    return Rate(value, len(seen), _missing(tallies), least, most, _holding(value, interval))


def _holding(value: float | None, interval: tuple[float, float] | None) -> tuple[float, float] | None:
    """The interval, widened to `value` where drawing left it out."""
    if value is None or interval is None:
        return interval
    return min(interval[0], value), max(interval[1], value)


def _passed(verdicts: Mapping[int, str]) -> int:
    return sum(verdict == "passed" for verdict in verdicts.values())


def _missing(tallies: Iterable[ScenarioTally]) -> int:
    return sum(tally.missing for tally in tallies)


def _mean(shares: Sequence[Fraction]) -> float | None:
    return float(sum(shares, Fraction(0)) / len(shares)) if shares else None
