"""The order and the holes of a journal, without a wire (wire.md, "Events": `sequence` from 1, no gaps)."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from evalfleet.contract.ordering import HELD_MOST, JournalOrder, checked_event
from evalfleet.testing import event

END = event(4, "run.status_changed", {"to": "succeeded"})
JOURNAL = [event(1, "run.created"), event(2, "message.created"), event(3, "hook.called"), END]


def taken(order: JournalOrder, *events: dict[str, Any]) -> list[int]:
    return [out["sequence"] for entry in events for out in order.take(entry, entry["cursor"])]


def test_events_leave_by_their_number_in_whatever_order_they_come() -> None:
    for events in itertools.permutations(JOURNAL):
        order = JournalOrder()
        assert taken(order, *events) == [1, 2, 3, 4]
        assert (order.hole, order.fault, order.ended, order.cursor) == (None, "", True, "cur_4")


def test_nothing_leaves_beyond_a_hole_and_the_cursor_stays_before_it() -> None:
    order = JournalOrder()
    assert taken(order, JOURNAL[0], JOURNAL[2], END) == [1]
    assert (order.hole, order.cursor, order.ended) == (2, "cur_1", False)
    assert order.fault == "event 2 is missing"
    assert taken(order, JOURNAL[1]) == [2, 3, 4]
    assert order.ended


def test_a_journal_that_starts_late_lacks_its_first_event() -> None:
    order = JournalOrder()
    assert taken(order, END) == []
    assert (order.hole, order.cursor, order.ended) == (1, None, False)


def test_an_event_delivered_again_is_dropped_by_its_id_and_by_its_number() -> None:
    order = JournalOrder()
    again = {**JOURNAL[1], "id": "evt_other", "cursor": "cur_other"}
    assert taken(order, *JOURNAL[:2], JOURNAL[0], again, *JOURNAL) == [1, 2, 3, 4]
    assert order.fault == ""


def test_an_event_that_comes_again_under_another_number_fills_no_hole() -> None:
    order = JournalOrder()
    assert taken(order, *JOURNAL[:2], {**JOURNAL[1], "sequence": 3}, END) == [1, 2]
    assert order.hole == 3


@pytest.mark.parametrize("held", [False, True])
def test_two_different_events_under_one_number_are_a_fault(held: bool) -> None:
    order = JournalOrder()
    other = {**JOURNAL[1], "id": "evt_other", "data": {"message_id": "msg_2"}}
    taken(order, *(JOURNAL[1:] if held else JOURNAL), other, JOURNAL[0])
    assert order.fault == "two different events have the number 2: message.created and message.created"


def test_what_waits_beyond_a_hole_is_bounded_and_comes_again() -> None:
    long = [event(number, "usage.updated") for number in range(1, 3 * HELD_MOST)]
    order = JournalOrder()
    assert taken(order, *reversed(long)) == [1]
    assert len(order._held) <= HELD_MOST
    while order.last < len(long):
        before = order.last
        taken(order, *long[before:])
        assert order.last > before
    assert order.fault == ""


def test_any_shuffled_and_doubled_delivery_gives_the_journal() -> None:
    draw = random.Random(9)
    for _ in range(200):
        events = [event(number, "usage.updated") for number in range(1, draw.randint(2, 40))]
        delivery = [*events, *draw.choices(events, k=draw.randint(0, 20))]
        draw.shuffle(delivery)
        assert taken(JournalOrder(), *delivery) == [entry["sequence"] for entry in events]


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        pytest.param([1], "no event", id="no object"),
        pytest.param({"error": "upstream"}, "no event", id="a gateway's error"),
        pytest.param({**END, "type": None}, "no event", id="no type"),
        pytest.param({k: v for k, v in END.items() if k != "sequence"}, "sequence is 'None'", id="no number"),
        pytest.param({**END, "sequence": True}, "sequence is 'True'", id="true is no number"),
        pytest.param({**END, "sequence": 0}, "sequence is '0'", id="numbers start at 1"),
        pytest.param({**END, "sequence": "4"}, "sequence is '4'", id="text is no number"),
        pytest.param({**END, "run_id": "run_2"}, "another run, 'run_2'", id="another run's"),
        pytest.param({**END, "run_id": None}, "another run", id="no run's"),
    ],
)
def test_what_is_no_event_of_the_run_is_refused_by_name(value: object, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        checked_event(value, "run_1")


def test_an_unknown_type_and_more_fields_pass_through() -> None:
    future = {**event(2, "moon.landed"), "more": [1]}
    assert checked_event(future, "run_1") is future
    bare = {"sequence": 1, "type": "run.created"}
    assert checked_event(bare, "run_1") is bare
