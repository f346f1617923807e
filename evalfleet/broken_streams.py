"""In which ways can a run's event stream be broken? A table of shapes for tests, on top of `evalfleet.testing`.

    answers = broken("skips a number", events)      # one answer for each connection, of what the journal holds
    server.on("GET", f"/v2/runs/{run_id}/events", *answers)

What a shape loses is the journal's first `hook.called`, or its middle: an event that a verdict may depend on. After the
answers of a shape the stream is whole again; so are the pages, which `lacking` takes an event from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from evalfleet.testing import Cut, Reset, Scripted, Send, Stall, Step, frame, problem, stream, text

Event = Mapping[str, Any]
Made = Callable[[Sequence[Event], int], Sequence[Scripted]]

_HTML: Final = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
_BEATS: Final = 200


def _carries(change: Callable[[Sequence[Event], int], Sequence[Event | Step]]) -> Made:
    """A shape of one connection: the events around the one at a place, changed."""
    return lambda events, place: [stream(*change(events, place))]


def _instead(data: bytes, kind: bytes = b"message") -> Made:
    """At the place comes this, and then the rest, the event itself among it."""
    said = Send(b"event: " + kind + b"\ndata: " + data + b"\n\n")
    return _carries(lambda events, place: [*events[:place], said, *events[place:]])


SHAPES: Final[Mapping[str, Made]] = {
    "skips a number": _carries(lambda events, place: [*events[:place], *events[place + 1 :]]),
    "starts late": _carries(lambda events, place: events[place + 1 :]),
    "is the end alone": _carries(lambda events, _: events[-1:]),
    "passes an event by when it is resumed": lambda events, place: [
        stream(*events[:place], Cut()),
        stream(*events[place + 1 :]),
    ],
    "has the end before what comes before it": _carries(
        lambda events, place: [*events[:place], *events[place + 1 :], events[place]]
    ),
    "is backwards": _carries(lambda events, _: events[::-1]),
    "says everything twice": _carries(
        lambda events, _: [again for event in events for again in (event, {**event, "id": f"{event['id']}_2"})]
    ),
    "says an event again under the next number": _carries(
        lambda events, place: [
            *events[:place],
            {**events[place - 1], "sequence": events[place]["sequence"]},
            *events[place + 1 :],
        ]
    ),
    "carries another run's event": _carries(
        lambda events, place: [*events[:place], {**events[place], "run_id": "run_other"}, *events[place + 1 :]]
    ),
    "carries an event without a number": _carries(
        lambda events, place: [
            *events[:place],
            {key: value for key, value in events[place].items() if key != "sequence"},
            *events[place + 1 :],
        ]
    ),
    "carries what is no JSON": _instead(b"{half"),
    "carries what is no object": _instead(b"[1]"),
    "carries what has no type": _instead(b'{"id": "evt_2"}'),
    "carries a gateway's error": _instead(b'{"error": {"message": "upstream timed out"}}', b"error"),
    "carries an error with a type": _instead(b'{"type": "error", "message": "upstream timed out"}', b"error"),
    "turns into HTML": _carries(lambda events, place: [*events[:place], Send(_HTML), Cut()]),
    "is HTML": lambda _events, _place: [text(_HTML, 200, "text/html")],
    "ends in half an event": _carries(
        lambda events, place: [*events[:place], Send(frame(events[place])[:40]), Cut()],
    ),
    "is reset": _carries(lambda events, place: [*events[:place], Reset()]),
    "has an event without an end": _carries(lambda events, place: [*events[:place], Send(b"data: x\n" * 70_000)]),
    "has a line without an end": _carries(
        lambda events, place: [*events[:place], Send(b"data: "), *[Send(b"x" * 4_000_000)] * 9, Stall()]
    ),
    "is heartbeats alone": _carries(lambda _events, _place: [*[Send(b":hb\n\n")] * _BEATS, Stall()]),
    "says nothing": _carries(lambda _events, _place: [Stall()]),
    "is refused, then away": lambda _events, _place: [
        problem(429, "rate_limited", headers={"Retry-After": "0"}),
        problem(502, "upstream_unavailable"),
    ],
}
"""By what the stream does: its answers, of the journal's events and the place of the one that it loses."""


def place_of(events: Sequence[Event]) -> int:
    """The index of the event that a shape loses."""
    hooks = [index for index, event in enumerate(events) if event["type"] == "hook.called"]
    return hooks[0] if hooks else len(events) // 2


def broken(shape: str, events: Sequence[Event]) -> Sequence[Scripted]:
    """The answers of a stream with this shape, one for each connection, where `events` is the whole journal."""
    return SHAPES[shape](events, place_of(events))


def lacking(events: Sequence[Event]) -> list[Event]:
    """A journal with a hole."""
    place = place_of(events)
    return [event for index, event in enumerate(events) if index != place]
