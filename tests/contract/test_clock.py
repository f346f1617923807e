"""The server's clock against ours, from `Date` headers (S12)."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from evalfleet.contract.clock import ClockOffset


def learned(*answers: tuple[float, float, float]) -> ClockOffset:
    """From answers (server time, sent, received)."""
    clock = ClockOffset()
    for server_time, sent, received in answers:
        clock.learn(formatdate(int(server_time), usegmt=True), sent=sent, received=received)
    return clock


def test_before_the_first_answer_it_is_zero() -> None:
    clock = ClockOffset()
    clock.learn(None, sent=0.0, received=0.0)
    clock.learn("soon", sent=0.0, received=0.0)
    assert clock.seconds == 0.0


@pytest.mark.parametrize("age", [0.0, 0.4, 0.999], ids=lambda age: f"a Date made {age} s ago")
@pytest.mark.parametrize("under_way", [0.0, 3.0], ids=lambda seconds: f"{seconds} s under way")
def test_clocks_that_agree_are_zero_apart_whatever_is_cut_off_or_kept(age: float, under_way: float) -> None:
    moments = [1_000_000.0 + i * 1.3 for i in range(20)]
    assert learned(*[(now - age, now - under_way, now) for now in moments]).seconds == 0.0


def test_one_answer_tells_it_to_a_second() -> None:
    assert abs(learned((1_000_100.7, 1_000_000.7, 1_000_000.7)).seconds - 100.0) <= 1.0


def test_more_answers_narrow_it() -> None:
    ours = [1_000_000.0 + i + i / 10 for i in range(10)]
    assert abs(learned(*[(now + 100.0, now, now) for now in ours]).seconds - 100.0) <= 0.6


def test_a_clock_that_was_set_is_believed() -> None:
    clock = learned((1_000_100.0, 1_000_000.0, 1_000_000.0), (1_000_500.0, 1_000_001.0, 1_000_001.0))
    assert abs(clock.seconds - 499.0) <= 1.0
