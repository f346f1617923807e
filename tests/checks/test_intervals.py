"""95 % intervals (S30). Wilson's own tests stand beside the rates, in test_verdict.py."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalfleet.checks.intervals import DRAWS, SEED, TOO_FEW, bootstrap_mean
from evalfleet.checks.verdict import ScenarioTally, pass_at_1, pass_at_k, pass_hat_k

HALF = Fraction(1, 2)


def test_under_five_case_files_there_is_none_and_from_five_on_there_is() -> None:
    assert bootstrap_mean([[HALF]] * (TOO_FEW - 1)) is None
    assert bootstrap_mean([[HALF]] * TOO_FEW) == (0.5, 0.5)
    assert bootstrap_mean([[HALF]] * (TOO_FEW - 1) + [[]]) is None, "a file without a scenario is none"


def test_equal_evidence_gives_the_equal_interval() -> None:
    files = [[Fraction(n * n, 1600)] for n in range(40)]
    assert bootstrap_mean(files) == bootstrap_mean(files)
    assert bootstrap_mean(files, seed=1) != bootstrap_mean(files, seed=2)


@pytest.mark.parametrize(
    ("options", "interval"),
    [
        ({}, (0.22899999999999995, 0.410828125)),
        ({"draws": 21}, (0.172421875, 0.39265625000000004)),
        ({"draws": 22}, (0.20868750000000005, 0.38503125000000005)),
    ],
    ids=str,
)
def test_the_interval_of_recorded_evidence_never_moves(options: dict[str, int], interval: tuple[float, float]) -> None:
    """Its seed, its draws and which of them are the ends: a result that is read again says what it said."""
    assert (DRAWS, SEED) == (1000, 30)
    assert bootstrap_mean([[Fraction(n * n, 1600)] for n in range(40)], **options) == pytest.approx(interval, abs=1e-12)


def test_whole_files_are_drawn_since_their_scenarios_share_a_conversation() -> None:
    """One file of 50 equal scenarios is one piece of evidence, and not 50: a wide interval."""
    clustered = bootstrap_mean([[Fraction(0)] * 50] + [[Fraction(1)] * 2] * 5)
    apart = bootstrap_mean([[Fraction(0)]] * 50 + [[Fraction(1)]] * 10)
    assert clustered is not None
    assert apart is not None
    assert clustered[1] - clustered[0] > 2 * (apart[1] - apart[0])


def test_it_comes_near_the_normal_interval_where_that_holds() -> None:
    """400 files, half of them passed: 0.5 ± 1.96 × sqrt(0.25 / 400) = 0.451 to 0.549."""
    found = bootstrap_mean([[Fraction(n % 2)] for n in range(400)])
    assert found == pytest.approx((0.451, 0.549), abs=0.01)


@given(st.lists(st.lists(st.fractions(0, 1), min_size=1, max_size=3), min_size=5, max_size=12))
def test_it_lies_within_what_the_files_say(files: list[list[Fraction]]) -> None:
    found = bootstrap_mean(files, draws=50)
    assert found is not None
    shares = [share for of_file in files for share in of_file]
    assert float(min(shares)) - 1e-9 <= found[0] <= found[1] <= float(max(shares)) + 1e-9


class TestRates:
    TALLIES = (ScenarioTally(passed=3), ScenarioTally(passed=1, failed=2), ScenarioTally(failed=3), ScenarioTally(3))

    def test_shares_of_scenarios_have_wilsons(self) -> None:
        """3 of 4 and 2 of 4."""
        assert pass_at_k(self.TALLIES).interval == pytest.approx((0.3006, 0.9544), abs=1e-4)
        assert pass_hat_k(self.TALLIES).interval == pytest.approx((0.1500, 0.8500), abs=1e-4)

    def test_pass_at_1_is_drawn_from_case_files_and_without_them_has_none(self) -> None:
        assert pass_at_1(self.TALLIES).interval is None
        assert pass_at_1(self.TALLIES, list("abcd")).interval is None
        assert pass_at_1([*self.TALLIES, ScenarioTally(passed=1)], list("abcde")).interval is not None
        assert pass_at_1([*self.TALLIES, ScenarioTally(passed=1)], list("abcdd")).interval is None

    def test_a_scenario_without_any_attempt_belongs_to_no_interval(self) -> None:
        nothing = [ScenarioTally(missing=2)] * 5
        assert pass_at_1(nothing, list("abcde")).interval is None
        assert pass_hat_k(nothing).interval is None
        assert pass_at_k(nothing).document() == {
            "value": None, "n": 0, "missing": 10, "low": 0.0, "high": 1.0, "interval": None,
        }  # fmt: skip
