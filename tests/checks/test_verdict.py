"""Verdicts and rates (S18, S29, S30)."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evalfleet.checks import (
    CaseAttempts,
    PassRate,
    Rate,
    Rates,
    ScenarioTally,
    case_status,
    evaluation_rates,
    pass_at_1,
    pass_at_k,
    pass_hat_k,
    pass_rate,
    suite_verdict,
    wilson,
)


@pytest.mark.parametrize(
    ("tally", "verdict"),
    [
        (ScenarioTally(passed=3), "pass"),
        (ScenarioTally(passed=2, failed=1), "flaky"),
        (ScenarioTally(passed=2, errors=1), "flaky"),
        (ScenarioTally(failed=3), "fail"),
        (ScenarioTally(errors=1), "fail"),
        (ScenarioTally(passed=2, missing=1), "incomplete"),
        (ScenarioTally(failed=2, missing=1), "incomplete"),
        (ScenarioTally(), "incomplete"),
    ],
    ids=str,
)
def test_s29_a_scenarios_verdict(tally: ScenarioTally, verdict: str) -> None:
    assert tally.verdict == verdict


@given(st.integers(0, 1), st.integers(0, 1))
def test_the_seed_one_trial_can_only_pass_or_fail(passed: int, failed: int) -> None:
    if passed + failed == 1:
        assert ScenarioTally(passed, failed).verdict in ("pass", "fail")


@pytest.mark.parametrize(
    ("verdicts", "suite"),
    [
        ([ScenarioTally(passed=1)], "pass"),
        ([ScenarioTally(passed=1), ScenarioTally(passed=1, failed=1)], "flaky"),
        ([ScenarioTally(passed=1, failed=1), ScenarioTally(missing=1)], "incomplete"),
        ([ScenarioTally(failed=1), ScenarioTally(missing=1)], "fail"),
        ([], "incomplete"),
    ],
    ids=["pass", "flaky", "incomplete", "fail", "none"],
)
def test_a_suite_is_its_worst_scenario(verdicts: list[ScenarioTally], suite: str) -> None:
    assert suite_verdict(verdicts) == suite


@pytest.mark.parametrize(
    ("k", "verdicts", "status"),
    [
        (1, {}, "pending"),
        (2, {0: "passed"}, "pending"),
        (2, {0: "passed", 1: "passed"}, "passed"),
        (2, {0: "passed", 1: "failed"}, "flaky"),
        (2, {1: "failed", 0: "failed"}, "failed"),
    ],
)
def test_s29_the_status_of_a_case_on_the_api(k: int, verdicts: dict[int, str], status: str) -> None:
    assert case_status(k, verdicts) == status


def attempts(verdicts: str, *scores: str | None) -> CaseAttempts:
    """`"pf."`: passed, failed, not recorded."""
    words = {"p": "passed", "f": "failed"}
    return CaseAttempts(
        {index: words[letter] for index, letter in enumerate(verdicts) if letter in words},
        {index: Decimal(score) if score else None for index, score in enumerate(scores)},
    )


@pytest.mark.parametrize(
    ("k", "cases", "rates"),
    [
        pytest.param(1, [], Rates(None, None, None), id="nothing"),
        pytest.param(1, [attempts(".")], Rates(None, None, None), id="the seed's cancelled evaluation"),
        pytest.param(1, [attempts("p", "1.00"), attempts("p", "1.00")], Rates(1.0, 1.0, 1.0), id="the seed's example"),
        pytest.param(3, [attempts("ppf"), attempts("ppp")], Rates(5 / 6, 0.5, None), id="one flaky case"),
        pytest.param(3, [attempts("p.."), attempts("ppp")], Rates(1.0, 1.0, None), id="not all k: not in pass^k"),
        pytest.param(3, [attempts("f.."), attempts("...")], Rates(0.0, None, None), id="no complete case"),
        pytest.param(2, [attempts("pf", "0.1", None), attempts("pp", "0.2")], Rates(0.75, 0.5, 0.15), id="scores"),
    ],
)
def test_s30_the_rates_of_an_evaluation(k: int, cases: list[CaseAttempts], rates: Rates) -> None:
    assert evaluation_rates(k, cases) == rates


TALLIES = [ScenarioTally(passed=3), ScenarioTally(passed=1, failed=1, missing=1), ScenarioTally(errors=2, missing=1)]


def test_s18_rates_of_the_report_carry_n_missing_and_bounds() -> None:
    assert pass_at_1(TALLIES) == Rate(0.5, 3, 2, 4 / 9, 2 / 3)
    assert pass_at_k(TALLIES) == Rate(1.0, 1, 2, 2 / 3, 1.0, wilson(1, 1))
    assert pass_hat_k(TALLIES) == Rate(1.0, 1, 2, 1 / 3, 1.0, wilson(1, 1))


def test_s30_the_pass_rate_weighs_every_attempt_alike() -> None:
    """Issue 9, item 23: 4 of 7 attempts, though the mean over scenarios is a half."""
    found = pass_rate(TALLIES, ["a", "a", "b"])
    assert found == PassRate(4, 7, Rate(4 / 7, 3, 2, 4 / 9, 6 / 9))
    assert list(found.document()) == ["passed", "recorded", "value", "n", "missing", "low", "high", "interval"]
    nothing = pass_rate([ScenarioTally(missing=2), ScenarioTally()], ["a", "b"])
    assert nothing == PassRate(0, 0, Rate(None, 0, 2, 0.0, 1.0))
    assert pass_rate([], []) == PassRate(0, 0, Rate(None, 0, 0, None, None))


def test_s30_the_interval_of_the_pass_rate_draws_whole_case_files_of_attempts() -> None:
    """With as many trials everywhere it is the interval of `pass_at_1`; a file with more attempts weighs more."""
    tallies = [ScenarioTally(passed=n % 3, failed=2 - n % 3) for n in range(6)]
    equal = pass_rate(tallies, range(6)).rate.interval
    assert equal == pytest.approx(pass_at_1(tallies, range(6)).interval)
    heavy = [*tallies, ScenarioTally(failed=90)]
    assert pass_rate(heavy, range(7)).rate.interval != pytest.approx(pass_at_1(heavy, range(7)).interval)
    assert pass_rate(tallies, [0, 0, 1, 1, 2, 3]).rate.interval is None, "four files are too few"


def test_rates_of_nothing_are_null() -> None:
    for rate in (pass_at_1, pass_at_k, pass_hat_k):
        assert rate([]) == rate([ScenarioTally()]) == Rate(None, 0, 0, None, None)
    assert pass_at_k([ScenarioTally(failed=1)]) == Rate(0.0, 1, 0, 0.0, 0.0, wilson(0, 1))
    assert pass_hat_k([ScenarioTally(missing=2)]) == Rate(None, 0, 2, 0.0, 1.0)


TALLY = st.builds(ScenarioTally, *[st.integers(0, 3)] * 4)


@given(st.lists(st.tuples(TALLY, st.integers(0, 7)), max_size=12))
@example([(ScenarioTally(passed=2), 0), (ScenarioTally(failed=1, missing=1), 1)])
@example([(ScenarioTally(failed=2), 0), (ScenarioTally(passed=1, missing=1), 1)])
@example(
    [(ScenarioTally(passed=1, failed=4), file) for file in range(6)]
)  # 0.2, and every mean drawn is 0.19999999999999998
def test_s18_s30_a_rate_lies_within_its_own_bounds_and_interval(given_: list[tuple[ScenarioTally, int]]) -> None:
    """`1.00 [0.25–0.75]` was printed: the known failures of incomplete scenarios bound a rate that leaves them out."""
    tallies, files = [tally for tally, _ in given_], [file for _, file in given_]
    for rate in (pass_at_1(tallies, files), pass_at_k(tallies), pass_hat_k(tallies)):
        if rate.value is not None:
            assert rate.low is not None
            assert rate.high is not None
            assert 0 <= rate.low <= rate.value <= rate.high <= 1
            assert rate.interval is None or rate.interval[0] <= rate.value <= rate.interval[1]


@given(st.lists(TALLY, max_size=6))
def test_bounds_hold_the_rate_of_whatever_the_missing_would_give(tallies: list[ScenarioTally]) -> None:
    """Fill the missing attempts in with each outcome; the rates then lie within the bounds."""
    for rate in (pass_at_1, pass_at_k, pass_hat_k):
        now = rate(tallies)
        if now.low is None or now.high is None:
            continue
        assert now.low <= now.high
        for share in (0, 1):
            filled = [
                ScenarioTally(
                    tally.passed + share * tally.missing, tally.failed + (1 - share) * tally.missing, tally.errors
                )
                for tally in tallies
            ]
            then = rate(filled).value
            assert then is not None
            assert now.low - 1e-12 <= then <= now.high + 1e-12


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (1, 1, 0.2065, 1.0),
        (95, 100, 0.8882, 0.9785),
    ],
)
def test_s30_wilsons_interval(successes: int, n: int, low: float, high: float) -> None:
    """Against published values."""
    interval = wilson(successes, n)
    assert interval is not None
    assert list(interval) == pytest.approx([low, high], abs=1e-4)


def test_an_interval_of_nothing_is_none_and_of_nonsense_an_error() -> None:
    assert wilson(0, 0) is None
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson(3, 2)
