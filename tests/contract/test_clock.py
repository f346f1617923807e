"""The server's clock against ours, from `Date` headers (S12)."""

from __future__ import annotations

from email.utils import formatdate

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


def test_one_answer_tells_it_to_half_a_second_and_the_time_under_way() -> None:
    assert abs(learned((1_000_100.7, 1_000_000.7, 1_000_000.7)).seconds - 100.0) <= 0.5


def test_more_answers_narrow_it() -> None:
    seconds = [(1_000_100.0 + i + i / 10, 1_000_000.0 + i + i / 10, 1_000_000.0 + i + i / 10) for i in range(10)]
    assert abs(learned(*seconds).seconds - 100.0) <= 0.06


def test_a_clock_that_was_set_is_believed() -> None:
    clock = learned((1_000_100.0, 1_000_000.0, 1_000_000.0), (1_000_500.0, 1_000_001.0, 1_000_001.0))
    assert abs(clock.seconds - 499.0) <= 0.5
