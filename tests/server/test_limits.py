"""How an agent's endpoint is left alone and asked again, in plain numbers (N15)."""

from __future__ import annotations

import pytest

from evalfleet.server.driving import Busy
from evalfleet.server.limits import AWAY_MOST, FORGOTTEN, PAUSE_FIRST, PAUSE_MOST, RISE, EndpointLimit


class Story:
    """A limit by a clock of its own; `jitter` is the same at each draw."""

    def __init__(self, jitter: float = 0.0) -> None:
        self.now = 1000.0
        self.limit = EndpointLimit(lambda: self.now, lambda: jitter)

    def begin(self, turns: int) -> list[float]:
        return [self.limit.begins() for _ in range(turns)]

    def refuse(self, began: float, busy: Busy) -> float | None:
        wait = self.limit.refused(began, busy)
        self.limit.ended()
        return wait

    def ask(self, busy: Busy) -> float | None:
        """One turn that is refused at once."""
        return self.refuse(self.limit.begins(), busy)

    def room(self) -> int:
        """How many more may be asked for at this moment."""
        begun = 0
        while self.limit.seconds_to_wait() <= 0 and begun < 100:
            self.limit.begins()
            begun += 1
        for _ in range(begun):
            self.limit.ended()
        return begun


def told(seconds: float | None) -> Busy:
    return Busy("slow down", seconds, limited=True)


AWAY = Busy("it cannot be reached")
CUT = Busy("it broke off", again=False)


@pytest.fixture
def story() -> Story:
    return Story()


def test_n15_nothing_is_asked_before_the_time_that_it_named_and_then_half_as_much_and_one_more_each_second(
    story: Story,
) -> None:
    assert story.room() == 100
    for began in story.begin(8):
        assert story.refuse(began, told(15)) == 15
    assert story.limit.seconds_to_wait() == 15
    story.now += 14.9
    assert story.room() == 0
    story.now += 0.1
    assert story.room() == 4
    story.now += 3 * RISE
    assert story.room() == 7


def test_n15_refusals_of_one_burst_cut_once_and_a_later_one_cuts_again(story: Story) -> None:
    first, second, third, fourth = story.begin(4)
    story.now += 1
    story.refuse(first, told(5))
    story.refuse(second, told(5))  # asked for before the first refusal came
    story.now += 5
    assert story.room() == 0, "two are open, and two may be"
    for began in (third, fourth):
        story.refuse(began, told(0))
    story.now += 2 * RISE
    began = story.begin(3)[0]
    story.refuse(began, told(1))
    story.now += 1
    story.limit.ended()
    assert story.room() == 0
    story.limit.ended()
    assert story.room() == 1


def test_n15_those_who_were_told_the_same_do_not_come_back_in_one_instant() -> None:
    waits = []
    for jitter in (0.0, 0.5, 1.0):
        story = Story(jitter)
        waits.append(story.ask(told(20)))
    assert waits == [20.0, 21.0, 22.0]


@pytest.mark.parametrize("seconds", [0.0, None])
def test_n15_a_refusal_that_names_no_time_is_no_hot_loop_and_the_pauses_grow(seconds: float | None) -> None:
    story, waits = Story(1.0), []
    for _ in range(12):
        wait = story.ask(told(seconds))
        assert wait is not None
        waits.append(wait)
        story.now += wait
    assert waits[0] >= 0.25
    assert waits == sorted(waits)
    assert waits[-1] <= PAUSE_MOST


def test_n15_it_is_asked_again_for_as_long_as_it_says_later(story: Story) -> None:
    for _ in range(500):
        wait = story.ask(told(60))
        assert wait == 60
        story.now += wait


def test_n15_an_endpoint_that_is_away_is_asked_by_one_turn_and_after_a_while_turns_fail_at_once(story: Story) -> None:
    began = story.begin(4)
    waits = [story.refuse(at, AWAY) for at in began]
    assert waits[0] is not None
    assert PAUSE_FIRST / 2 <= waits[0] <= PAUSE_FIRST
    story.now += waits[0] + 0.01
    assert story.room() == 1
    away = 0.0
    while (wait := story.ask(AWAY)) is not None:
        away += wait
        story.now += wait
    assert AWAY_MOST - PAUSE_MOST < away < AWAY_MOST + PAUSE_MOST
    assert story.room() == 100
    assert story.ask(AWAY) is None
    story.limit.answered()
    assert story.ask(AWAY) is not None


def test_n15_what_may_have_been_processed_is_not_asked_again_and_the_next_try_waits(story: Story) -> None:
    assert story.ask(CUT) is None
    assert story.limit.seconds_to_wait() >= PAUSE_FIRST / 2


def test_a_trouble_of_long_ago_is_forgotten(story: Story) -> None:
    wait = story.ask(AWAY)
    assert wait is not None
    story.now += wait + FORGOTTEN + 1
    assert story.ask(AWAY) == wait
