"""`--max-failures`: which scenarios have lost the gate, and when that is enough."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from scheduler.enough import Enough, lost_scenarios
from tests.scheduler.samples import plan, scenario

PLAN = plan({"tone": [scenario("a", trials=2), scenario("b", trials=2)], "tools": [scenario("a", trials=2)]}, ks=(2,))


@pytest.mark.parametrize(
    ("outcomes", "strict", "lenient"),
    [
        pytest.param({}, [], [], id="nothing was judged"),
        pytest.param({"0:0:0": "passed", "1:0:1": "passed"}, [], [], id="all passed so far"),
        pytest.param({"0:0:0": "passed", "0:0:1": "failed"}, ["tone/a"], [], id="flaky"),
        pytest.param({"0:1:0": "failed"}, ["tone/b"], [], id="failed, and its other trial may pass"),
        pytest.param({"0:1:0": "failed", "0:1:1": "failed"}, ["tone/b"], ["tone/b"], id="all trials failed"),
        pytest.param({"0:0:0": "error"}, ["tone/a"], ["tone/a"], id="an error counts also where flaky may be"),
        pytest.param(
            {"1:0:0": "error", "0:1:1": "failed", "0:0:0": "failed"},
            ["tone/a", "tone/b", "tools/a"],
            ["tools/a"],
            id="several, in the plan's order",
        ),
    ],
)
def test_a_scenario_counts_when_it_has_lost_the_gate(
    outcomes: Mapping[str, str], strict: list[str], lenient: list[str]
) -> None:
    assert lost_scenarios(PLAN, outcomes, allow_flaky=False) == strict
    assert lost_scenarios(PLAN, outcomes, allow_flaky=True) == lenient


def test_what_failed_before_this_command_does_not_count_by_itself() -> None:
    before = {"0:0:0": "failed", "0:0:1": "failed", "0:1:0": "failed", "1:0:0": "recorded"}
    assert lost_scenarios(PLAN, {}, before, allow_flaky=True) == []
    now = {"0:1:1": "failed", "1:0:1": "failed"}
    assert lost_scenarios(PLAN, now, before, allow_flaky=True) == ["tone/b"], "of tools/a one trial's end is not known"


class Books:
    """A ledger of which nothing is asked but what was judged."""

    def __init__(self) -> None:
        self.judged: dict[str, str] = {}
        self.read = 0

    def failures(self, _submission: str) -> int:
        return sum(outcome != "passed" for outcome in self.judged.values())

    def outcomes(self, _submission: str) -> Mapping[str, str]:
        self.read += 1
        return self.judged

    def done(self, _submission: str) -> Mapping[str, str]:
        return {}


def test_two_failures_of_one_scenario_are_one() -> None:
    books, enough = Books(), Enough(PLAN, 2, allow_flaky=False)
    books.judged = {"0:0:0": "failed", "0:0:1": "failed"}
    assert enough(books) == ""
    books.judged["1:0:0"] = "error"
    assert enough(books) == "2 scenarios failed (tone/a, tools/a), and --max-failures is 2"


def test_the_books_are_read_only_when_something_new_has_failed() -> None:
    books, enough = Books(), Enough(PLAN, 1, allow_flaky=True)
    for judged in ({}, {"0:0:0": "failed"}, {"0:0:0": "failed"}, {"0:0:0": "failed", "0:0:1": "passed"}):
        books.judged = dict(judged)
        assert enough(books) == ""
    assert books.read == 1
