"""What a target's trouble is called, while it lasts and when it lasted too long."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from evalfleet.ledger import Target
from scheduler.reasons import gave_out, trouble

NOON = datetime(2026, 9, 2, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Target(), ""),
        (Target(most=5, open=5), ""),  # an operator's limit is no trouble
        (Target(most=1, down="refused", since_ms=61_000), "t is down since 11:58:59 UTC (refused); one conversation"),
        (Target(most=4, wait_ms=90_000, why="429"), "t asked everybody to wait until 12:01:30 UTC (429)"),
        (Target(most=4, wait_ms=200, why="429"), ""),  # over before anybody has read it
        (Target(most=14, why="429", cut=4, cut_ms=10_000), "refused runs at 11:59:50 UTC (429): 4 at once since then"),
        (Target(most=24, why="429", cut=4, cut_ms=20_000), ""),  # more than is wanted
        (Target(most=1, down="d", since_ms=1, wait_ms=9000, why="429"), "is down since"),
    ],
)
def test_what_a_submission_waits_for_at_its_target(target: Target, words: str) -> None:
    said = trouble("t", target, 20, NOON)
    assert (words in said) if words else said == ""


def test_the_same_trouble_is_said_in_the_same_words_while_it_lasts() -> None:
    """A log has one line of it."""
    later = datetime(2026, 9, 2, 12, 0, 30, tzinfo=UTC)
    for before, after in (
        (Target(most=1, down="d", since_ms=1000), Target(most=1, down="d", since_ms=31_000)),
        (Target(wait_ms=90_000, why="429"), Target(wait_ms=60_000, why="429")),
        (Target(most=4, cut=4, cut_ms=1000, why="429"), Target(most=9, cut=4, cut_ms=31_000, why="429")),
    ):
        assert trouble("t", before, 20, NOON) == trouble("t", after, 20, later) != ""


def test_the_end_of_a_submission_whose_target_takes_nothing() -> None:
    assert gave_out("t", Target(down="connection refused", since_ms=601_000)).startswith(
        "t has taken no run for 601 s: connection refused"
    )
    assert ": 429 rate_limited; nothing was given up" in gave_out("t", Target(why="429 rate_limited", since_ms=1))
