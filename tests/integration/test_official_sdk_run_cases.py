"""`run_cases` of the official client, in both of its modes: a grid of runs, and a grid that is a recorded evaluation.

Then it is killed with -9 while an answer is on its way (a proxy keeps that answer back: the server has done what was
asked, and the client does not know), and the same call is made again: nothing is run twice, nothing is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.conformance.conftest import Caller, calling
from tests.conformance.deployments import Target
from tests.integration.proxy import Seen, proxied
from tests.integration.sdk import official

pytestmark = pytest.mark.integration

INPUTS, EXPECTED, K = ["one", "two"], ["0: one", "0: something else"], 3
SCORER = ["checks", "1"]


@pytest.fixture
def plain(served: Target) -> Iterator[Caller]:
    """The same account by plain requests."""
    with calling(served, served.token) as caller:
        yield caller


def runs_of(plain: Caller, suite: str) -> list[dict[str, Any]]:
    """All runs that were ever made for the suite."""
    runs: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = plain.get("/v2/runs", limit=100, **cursor)
        runs += [run for run in page["data"] if run["metadata"].get("suite") == suite]
        if not page["page"]["has_more"]:
            return runs
        cursor = {"cursor": page["page"]["next_cursor"]}


def evaluations_of(plain: Caller, served: Target, suite: str) -> list[str]:
    page = plain.get("/v2/evaluations", harness_id=served.harness_id, limit=100)
    return [entry["id"] for entry in page["data"] if entry["name"] == suite]


def asked(served: Target, suite: str, *, scored: bool, **more: Any) -> dict[str, Any]:
    """The keywords of a call."""
    mode = {"scorer": SCORER, "expected": EXPECTED} if scored else {}
    return {"harness_id": served.harness_id, "suite_id": suite, "k": K, "concurrency": 6,
            "metadata": {"suite": suite}, **mode, **more}  # fmt: skip


def statuses(grid: dict[str, Any]) -> list[list[str]]:
    return [[result["status"] for result in row] for row in grid["rows"]]


def test_a_grid_of_runs_has_what_each_of_them_said_did_and_used(served: Target, strangers: str, plain: Caller) -> None:
    suite = f"suite-{uuid4()}"
    with official(strangers, served.urls[0], served.token) as sdk:
        grid = sdk.call("evals.run_cases", INPUTS, **asked(served, suite, scored=False))
        again = sdk.call("evals.run_cases", INPUTS, **asked(served, suite, scored=False))
    assert grid["evaluation"] is None
    assert again["rows"] == grid["rows"]  # the same suite: the same runs
    assert len(runs_of(plain, suite)) == len(INPUTS) * K
    for text, row in zip(INPUTS, grid["rows"], strict=True):
        for result in row:
            assert (result["status"], result["output"], result["error"]) == ("succeeded", f"0: {text}", None)
            assert (result["tools_used"], result["tokens"], result["cost"]) == (["echo"], [10, 5], 0.001)
            assert result["events"] == plain.get(f"/v2/runs/{result['run_id']}/events", limit=500)["data"]
            assert result["usage"]["final"] is True


def test_a_grid_with_a_scorer_is_a_completed_evaluation_and_a_second_call_runs_nothing(
    served: Target, strangers: str, plain: Caller
) -> None:
    suite = f"suite-{uuid4()}"
    with official(strangers, served.urls[0], served.token) as sdk:
        first, second = (
            sdk.call("evals.run_cases", INPUTS, **asked(served, suite, scored=True, budget_cap=0.25)) for _ in range(2)
        )
    assert statuses(first) == [["succeeded"] * K] * 2
    assert statuses(second) == [["recorded"] * K] * 2
    assert len(runs_of(plain, suite)) == len(INPUTS) * K
    evaluation = first["evaluation"]
    assert second["evaluation"] == evaluation
    assert evaluations_of(plain, served, suite) == [evaluation["id"]]
    assert (evaluation["status"], evaluation["harness_commit"]) == ("completed", served.commits[-1])
    assert [(case["key"], case["status"]) for case in evaluation["cases"]] == [
        ("case-0", "passed"),
        ("case-1", "failed"),
    ]
    assert evaluation["metrics"] == {
        "pass_at_1": 0.5, "pass_hat_k": 0.5, "k": 3, "judge_score": 0.5,
        "tokens": 90, "amount": "0.006", "currency": "USD",
    }  # fmt: skip


def test_a_run_that_failed_is_an_attempt_that_failed(served: Target, strangers: str, plain: Caller) -> None:
    """The client reads the usage of a run that used nothing three times more, 3 s apart."""
    suite = f"suite-{uuid4()}"
    with official(strangers, served.urls[0], served.token) as sdk:
        grid = sdk.call(
            "evals.run_cases", ["fail", "silent", "one"],
            **asked(served, suite, scored=True, k=1, expected=["x", None, "0: one"]),
        )  # fmt: skip
    assert statuses(grid) == [["failed"], ["succeeded"], ["succeeded"]]
    assert (grid["rows"][0][0]["error"], grid["rows"][1][0]["output"]) == ("broken on request", None)
    assert [case["status"] for case in grid["evaluation"]["cases"]] == ["failed", "passed", "passed"]
    assert (grid["evaluation"]["status"], grid["evaluation"]["metrics"]["tokens"]) == ("completed", 15)


def test_a_budget_leaves_an_evaluation_that_the_next_call_goes_on_with(
    served: Target, strangers: str, plain: Caller
) -> None:
    suite = f"suite-{uuid4()}"
    with official(strangers, served.urls[0], served.token) as sdk:
        first = sdk.call(
            "evals.run_cases", INPUTS, **asked(served, suite, scored=True, budget_cap=0.0015, concurrency=2)
        )
        played = [result for row in first["rows"] for result in row if result["status"] == "succeeded"]
        skipped = [result for row in first["rows"] for result in row if result["status"] == "skipped"]
        assert 2 <= len(played) <= 3  # what was in flight may overshoot
        assert len(played) + len(skipped) == len(INPUTS) * K
        assert first["evaluation"]["status"] == "running"
        missing = sum(len(case["missing_attempts"]) for case in first["evaluation"]["cases"])
        assert missing == len(skipped)
        second = sdk.call("evals.run_cases", INPUTS, **asked(served, suite, scored=True))
    assert sum(row.count("recorded") for row in statuses(second)) == len(played)
    assert (second["evaluation"]["status"], second["evaluation"]["id"]) == ("completed", first["evaluation"]["id"])
    assert len(runs_of(plain, suite)) == len(INPUTS) * K


def nth(number: int, method: str, ending: str) -> Callable[[Seen], bool]:
    """The `number`-th answer, and all after it, to this method at a path that ends like this."""
    met: list[Seen] = []

    def keeps(seen: Seen) -> bool:
        if seen.method == method and seen.path.endswith(ending):
            met.append(seen)
        return bool(met) and len(met) >= number

    return keeps


KILLS = {
    "the evaluation is created": (1, "POST", "/v2/evaluations"),
    "the first run is created": (1, "POST", "/v2/runs"),
    "the fourth run is created": (4, "POST", "/v2/runs"),
    "a run's usage is read": (2, "GET", "/usage"),
    "the attempts are recorded": (1, "POST", "/attempts:batch"),
    "the evaluation is completed": (1, "POST", "/complete"),
}


@pytest.mark.parametrize(
    ("scored", "moment"),
    [(True, moment) for moment in KILLS]
    + [(False, moment) for moment in KILLS if "run" in moment],
)  # fmt: skip
def test_a_client_that_is_killed_is_gone_on_with_and_nothing_is_run_twice(
    served: Target, strangers: str, plain: Caller, scored: bool, moment: str
) -> None:
    suite = f"suite-{uuid4()}"
    call = asked(served, suite, scored=scored)
    with proxied(served.urls[0]) as proxy:
        proxy.keeps = nth(*KILLS[moment])
        with official(strangers, proxy.url, served.token) as sdk:
            sdk.start("evals.run_cases", INPUTS, **call)
            assert proxy.kept.wait(60), proxy.seen
            sdk.kill()
        done_before = evaluations_of(plain, served, suite)
        proxy.keeps = lambda seen: False
        with official(strangers, proxy.url, served.token) as sdk:
            grid = sdk.call("evals.run_cases", INPUTS, **call)
    runs = runs_of(plain, suite)
    assert len(runs) == len(INPUTS) * K
    assert {run["status"] for run in runs} == {"succeeded"}
    recorded = moment in ("the attempts are recorded", "the evaluation is completed")
    assert statuses(grid) == [["recorded" if recorded else "succeeded"] * K] * 2
    if not recorded:
        assert {result["run_id"] for row in grid["rows"] for result in row} == {run["id"] for run in runs}
    if not scored:
        assert grid["evaluation"] is None
        return
    evaluation = grid["evaluation"]
    assert evaluations_of(plain, served, suite) == [evaluation["id"]]
    assert done_before == [evaluation["id"]]
    assert (evaluation["status"], evaluation["metrics"]["tokens"]) == ("completed", 90)
    assert [case["recorded_attempts"] for case in evaluation["cases"]] == [[0, 1, 2]] * 2
