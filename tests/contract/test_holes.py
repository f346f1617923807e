"""A stream that breaks the journal's numbering, or carries what is no event, is settled by the pages (S12, S17).

Over real sockets, for every shape of `evalfleet.broken_streams`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from evalfleet.broken_streams import SHAPES, broken
from evalfleet.contract.client import Client
from evalfleet.errors import JournalHole, StreamLost, UnreadableAnswer
from evalfleet.testing import (
    Cut,
    FaultServer,
    Scripted,
    SeenRequest,
    Send,
    Stall,
    document,
    event,
    page,
    problem,
    stream,
)
from tests.contract.journal import (
    CREATED,
    END,
    HALF,
    JOURNAL,
    PATH,
    RUNNING,
    WHOLE,
    Journal,
    client_for,
    follow,
    is_stream,
)

ENDED = document({"id": "run_1", "status": "succeeded"})


@pytest.fixture
async def server() -> AsyncIterator[FaultServer]:
    async with FaultServer() as fault_server:
        yield fault_server


@pytest.fixture
async def client(server: FaultServer) -> AsyncIterator[Client]:
    async with client_for(server) as made:
        yield made


OTHERS = {**HALF, "run_id": "run_2", "data": {"name": "of another run"}}


@pytest.mark.parametrize("running", [True, False], ids=["the run goes on", "the run has ended"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_broken_stream_is_read_from_the_pages_and_nothing_is_lost(
    server: FaultServer, client: Client, shape: str, running: bool
) -> None:
    Journal(server, *broken(shape, JOURNAL), stream(*JOURNAL), run=None)
    server.on("GET", "/v2/runs/run_1", *([RUNNING, ENDED] if running else [ENDED]))
    events = client.events("run_1", deadline=time.monotonic() + 20, ask=0.2)
    assert [entry async for entry in events] == JOURNAL
    await server.until(lambda s: s.open_connections <= 1)  # the broken one is closed


async def test_a_hole_is_read_from_the_last_event_before_it(server: FaultServer, client: Client) -> None:
    journal = Journal(server, stream(CREATED, HALF, END, Stall()))
    assert await follow(client) == JOURNAL
    assert [request.query["cursor"] for request in journal.page_requests] == ["cur_2"]


async def test_a_reconnect_past_an_event_is_a_hole_and_resumes_before_it(server: FaultServer, client: Client) -> None:
    journal = Journal(server, stream(CREATED, Cut()), stream(WHOLE, END))
    assert await follow(client) == JOURNAL
    assert journal.stream_requests[1].headers["last-event-id"] == "cur_1"
    assert [request.query["cursor"] for request in journal.page_requests] == ["cur_1"]


async def test_a_page_may_hold_its_rows_in_any_order(server: FaultServer, client: Client) -> None:
    long = [event(number, "usage.updated") for number in range(1, 450)] + [
        event(450, "run.status_changed", {"to": "failed"})
    ]
    Journal(server, Scripted(204), journal=long[::-1], run=ENDED)
    assert await follow(client) == long


LACKS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "a number": ([CREATED, WHOLE, END], "event 2 is missing"),
    "its first": ([HALF, WHOLE, END], "event 1 is missing"),
    "all but the end": ([END], "event 1 is missing"),
    "its end": ([CREATED, HALF, WHOLE], "its end is missing after event 3"),
    "everything": ([], "its end is missing after event 0"),
}


@pytest.mark.parametrize("lacks", LACKS)
async def test_a_hole_that_the_pages_have_too_is_an_error_and_never_the_end(
    server: FaultServer, client: Client, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalfleet.contract.follow.HOLE_SECONDS", 0.2)
    there, words = LACKS[lacks]
    Journal(server, stream(*there), journal=there, run=ENDED)
    with pytest.raises(JournalHole, match=rf"GET /v2/runs/run_1/events: .*not whole, by stream and by pages: {words}"):
        await follow(client)


async def test_two_events_under_one_number_are_an_error(server: FaultServer, client: Client) -> None:
    other = {**HALF, "id": "evt_other", "data": {"name": "another"}}
    Journal(server, stream(CREATED, HALF, other, WHOLE, END))
    with pytest.raises(JournalHole, match="two different events have the number 2"):
        await follow(client)


async def test_a_page_that_lags_behind_the_stream_is_read_again(server: FaultServer, client: Client) -> None:
    reads = 0

    def lagging(request: SeenRequest) -> Scripted:
        nonlocal reads
        if is_stream(request):
            return stream(CREATED, END)
        reads += 1
        return page(JOURNAL[1:] if reads > 2 else [], "cur_4" if reads > 2 else None)

    server.on("GET", PATH, lagging)
    server.on("GET", "/v2/runs/run_1", ENDED)
    assert await follow(client) == JOURNAL


async def test_a_hole_is_borne_while_the_run_goes_on(
    server: FaultServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalfleet.contract.follow.HOLE_SECONDS", 0.0)
    journal = Journal(server, stream(CREATED, END), journal=[CREATED, END])
    with pytest.raises(StreamLost):
        await follow(client, within=1.0)
    assert len(journal.page_requests) > 1


@pytest.mark.parametrize("answer", [problem(502, "upstream_unavailable"), document({"no": "page"})])
async def test_pages_that_fail_leave_the_hole_to_the_next_stream(
    server: FaultServer, answer: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("READ_SECONDS", "DRAIN_SECONDS"):
        monkeypatch.setattr(f"evalfleet.contract.follow.{name}", 0.2)
    streams = [stream(*JOURNAL), stream(CREATED, END)]
    server.on("GET", PATH, lambda request: streams.pop() if is_stream(request) and streams else answer)
    server.on("GET", "/v2/runs/run_1", RUNNING)
    async with client_for(server) as client:
        assert await follow(client) == JOURNAL


async def test_a_stream_of_nothing_but_heartbeats_has_the_run_asked_and_its_pages_read(
    server: FaultServer, client: Client
) -> None:
    beats = [Send(b":hb\n\n")] * 20_000
    journal = Journal(server, stream(CREATED, *beats, Stall()), run=ENDED)
    told: list[Any] = []
    events = client.events("run_1", deadline=time.monotonic() + 20, ask=0.2, told=told.append)
    assert [entry async for entry in events] == JOURNAL
    assert len(journal.stream_requests) == 1
    assert {run["status"] for run in told} == {"succeeded"}


async def test_a_quiet_run_is_asked_beside_its_stream_which_stays_open(server: FaultServer, client: Client) -> None:
    runs = iter([RUNNING, RUNNING, RUNNING])
    journal = Journal(server, stream(CREATED, Stall()), run=lambda _request: next(runs, ENDED))
    events = client.events("run_1", deadline=time.monotonic() + 20, ask=0.1)
    assert [entry async for entry in events] == JOURNAL
    assert len(journal.stream_requests) == 1
    assert len(server.seen("GET", "/v2/runs/run_1")) >= 4


async def test_a_stream_that_is_never_opened_leaves_the_run_to_be_asked(server: FaultServer, client: Client) -> None:
    Journal(server, Scripted(0, (Stall(),)), run=ENDED)
    assert [e async for e in client.events("run_1", deadline=time.monotonic() + 20, ask=0.1)] == JOURNAL


async def test_the_journal_by_pages_alone_has_no_hole_either(server: FaultServer, client: Client) -> None:
    """As `hook-trace` reads it, and what large answers are read again by."""
    server.on("GET", PATH, page(JOURNAL[::-1]), page([CREATED, HALF]), page([CREATED, HALF]), page([CREATED, WHOLE]))
    assert [entry async for entry in client.journal("run_1")] == JOURNAL
    assert [entry async for entry in client.journal("run_1")] == [CREATED, HALF], "as far as it is there"
    with pytest.raises(JournalHole, match="its end is missing"):
        _ = [entry async for entry in client.journal("run_1", ended=True)]
    with pytest.raises(JournalHole, match="event 2 is missing"):
        _ = [entry async for entry in client.journal("run_1")]
    server.on("GET", PATH, page([OTHERS]))
    with pytest.raises(UnreadableAnswer, match="another run"):
        _ = [entry async for entry in client.journal("run_1")]
