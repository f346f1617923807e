"""How much standing still of the server makes a run's time unknown, in plain numbers (N27, S12)."""

from __future__ import annotations

import pytest

from evalfleet.server.pulse import BEAT, GAP, LOST_MOST, SHARE, Pulse


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Beating:
    """A pulse whose beats the test gives, by a clock of its own."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.pulse = Pulse(self.clock)
        self.pulse.start()

    def passes(self, seconds: float) -> None:
        """A beat after each BEAT, as on a machine at rest."""
        for _ in range(round(seconds / BEAT)):
            self.stands(0.0)

    def stands(self, seconds: float) -> None:
        """The next beat comes so much later."""
        self.clock.now += BEAT + seconds
        self.pulse._beat()


@pytest.mark.parametrize(
    ("runs", "stands", "lost"),
    [
        (60.0, 0.0, False),
        (3.0, GAP - 0.1, False),  # a busy machine
        (3.0, GAP, True),
        (60.0, GAP, False),  # less than the share: the time is known well enough
        (60.0, SHARE * 60 / (1 - SHARE) + 0.1, True),
        (3600.0, LOST_MOST - 0.1, False),
        (3600.0, LOST_MOST, True),  # connections do not outlive it
    ],
)
async def test_n27_a_run_is_lost_by_the_share_of_its_time_in_which_the_server_stood_still(
    runs: float, stands: float, *, lost: bool
) -> None:
    beating = Beating()
    watch = beating.pulse.begin()
    beating.passes(runs)
    beating.stands(stands)
    failure = watch.end().lost
    assert (failure is not None) is lost
    assert failure is None or (failure.code, failure.retryable) == ("server_lost", True)
    beating.pulse.stop()


async def test_a_stop_counts_before_the_beat_that_is_late_has_come_and_only_once() -> None:
    beating = Beating()
    watch = beating.pulse.begin()
    beating.clock.now += BEAT + 7
    assert watch.end().lost is not None
    assert beating.pulse.lost() == pytest.approx(7)
    beating.pulse._beat()
    assert beating.pulse.lost() == pytest.approx(7)
    beating.pulse.stop()


async def test_only_standing_still_during_the_run_counts() -> None:
    beating = Beating()
    beating.stands(50)
    watch = beating.pulse.begin()
    beating.passes(2)
    assert watch.end().lost is None
    beating.pulse.stop()
    beating.clock.now += 3600  # nothing is played: nobody measures
    beating.pulse.start()
    watch = beating.pulse.begin()
    beating.passes(2)
    assert watch.end().lost is None
    beating.pulse.stop()


async def test_time_in_which_the_store_kept_the_agent_waiting_counts_too() -> None:
    beating = Beating()
    watch = beating.pulse.begin()
    beating.passes(4)
    failure = watch.end(waited=2.0).lost
    assert failure is not None
    assert "database did not take this run's reports for 2.0 s" in failure.message
    beating.pulse.stop()
