"""S36: what a budget and a time limit leave undone stays missing, exit 4 says so, and a resume goes on."""

from __future__ import annotations

import sys

import pytest

from tests.e2e.conftest import AGENTS, Tree

pytestmark = pytest.mark.e2e

TWENTY = "defaults: {trials: 20}\nscenarios:\n  - {id: one, user: hi, expect: [{final_answer_contains: hi}]}\n"


def test_a_budget_counts_over_workers_and_resumes_and_the_rest_stays_missing(tree: Tree) -> None:
    tree.configure(argv=[sys.executable, "-S", str(AGENTS / "paid.py")])
    tree.case("a", TWENTY)
    first = tree.run("eval", "-j", "2", "--budget", "0.05")
    first.check(4, "the budget is used up: 0.05 USD spent by 5 conversations, and --budget is 0.05", "evalfleet resume")
    assert tree.started() == 5
    assert tree.summary()["exit_code"] == 4

    again = tree.run("resume")
    again.check(4, "the budget is used up: 0.05 USD spent by 5 conversations", "larger --budget")
    assert tree.started() == 5, "what was spent before counts"

    tree.run("resume", "--budget", "0.08").check(4, "0.08 USD spent by 8 conversations, and --budget is 0.08")
    assert tree.started() == 8

    tree.run("resume", "--budget", "9").check(0, "20/20")
    assert tree.started() == 20, "no conversation was paid for twice"


def test_when_the_time_is_up_what_is_in_flight_ends_and_the_rest_stays_missing(tree: Tree) -> None:
    tree.case("a", TWENTY.replace("user: hi", "user: sleep 1.2 hi"))
    done = tree.run("eval", "-j", "2", "--max-time", "1s")
    done.check(4, "the time is up: --max-time is 1.0s", "evalfleet resume")
    outcomes = [line["outcome"] for line in tree.lines()]
    assert outcomes.count("passed") == tree.started() < 20, "nothing was cut short"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--budget", "$5"), "--budget '$5': write an amount above 0, like 5.00"),
        (("--budget", "0"), "--budget '0': write an amount above 0"),
        (("--max-time", "soon"), "--max-time 'soon': write it like 300s, 5m"),
    ],
)
def test_a_limit_that_means_nothing_is_refused_before_anything_runs(
    tree: Tree, flags: tuple[str, str], said: str
) -> None:
    tree.case("a", TWENTY)
    tree.run("eval", *flags).check(2, said)
    assert tree.started() == 0


def test_a_budget_that_no_run_would_count_towards_is_refused(tree: Tree) -> None:
    tree.case("a", TWENTY)
    (tree.root / "evalfleet.toml").write_text(
        '[harness]\nname = "m"\n[harness.openai]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\n'
    )
    tree.run("eval", "--budget", "5").check(2, "--budget needs [harness.openai] price")
