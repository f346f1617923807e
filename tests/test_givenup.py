"""Why an attempt is missing when its conversation was given up: its own reason, never another scenario's."""

from __future__ import annotations

import pytest

from evalfleet.givenup import entry, reason_of
from evalfleet.plan import Attempt
from scheduler.conduct import missing_reasons
from scheduler.dispatch import Ended
from tests.scheduler.samples import plan, scenario
from worker.evidence import missing_line
from worker.played import GaveUp

PLAN = plan({"tone": [scenario("a"), scenario("b"), scenario("c")]})
LOST = "the run failed: server_lost: gone"


@pytest.mark.parametrize(
    ("given_up", "reasons"),
    [
        pytest.param({}, [None, None, None], id="nothing was"),
        pytest.param({"0:1": entry(LOST)}, [None, None, None], id="another trial was"),
        pytest.param({"0:0": entry(LOST)}, [LOST, LOST, LOST], id="all of it was: its workers died"),
        pytest.param(
            {"0:0": entry(LOST, scenario=1)},
            [None, LOST, f"not played: b before it gave no result: {LOST}"],
            id="in one scenario: before it all was well, after it nothing was played",
        ),
        pytest.param(
            {"0:0": entry(LOST, scenario=1), "0:2:0": entry("the judge is away"), "0:0:0": entry("no judge")},
            ["no judge", LOST, "the judge is away"],
            id="what an attempt itself was given up for wins",
        ),
    ],
)
def test_each_attempt_has_its_own_reason(given_up: dict[str, dict[str, str]], reasons: list[str | None]) -> None:
    assert [reason_of(PLAN, Attempt(0, number, 0), given_up) for number in range(3)] == reasons


def test_the_summary_and_the_artifact_say_the_same() -> None:
    gave_up = GaveUp((Attempt(0, 1, 0), Attempt(0, 2, 0)), LOST, "server_lost", (), scenario=1)
    ended = Ended("incomplete", LOST, "given_up", {"0:0": gave_up.entry()})
    said = missing_reasons(PLAN, ended)
    assert ("tone", "a", 0) not in said
    for attempt, name in zip(gave_up.attempts, "bc", strict=True):
        assert missing_line(PLAN, attempt, gave_up)["reason"] == said[("tone", name, 0)]


def test_what_was_played_before_is_not_given_the_reason_of_what_came_after() -> None:
    """Stopped while the first scenario waits for its judge: it is missing because of the stop."""
    ended = Ended("stopped", "interrupted", "interrupted", {"0:0": entry(LOST, scenario=1)})
    assert missing_reasons(PLAN, ended)[("tone", "a", 0)] == "interrupted"
