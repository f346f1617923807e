"""What the client promises about event streams, over real sockets (wire.md, "Events"; C06, C08, C11–C13)."""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from evalfleet.contract.client import Client
from evalfleet.errors import ProblemAnswer, StreamLost, TargetUnreachable, UnreadableAnswer
from evalfleet.testing import (
    Await,
    Cut,
    FaultServer,
    Reset,
    Scripted,
    SeenRequest,
    Send,
    Stall,
    document,
    event,
    frame,
    page,
    problem,
    stream,
    text,
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


@pytest.fixture
async def server() -> AsyncIterator[FaultServer]:
    async with FaultServer() as fault_server:
        yield fault_server


@pytest.fixture
async def client(server: FaultServer) -> AsyncIterator[Client]:
    async with client_for(server) as made:
        yield made


async def test_a_journal_is_read_to_its_end_as_received(server: FaultServer, client: Client) -> None:
    journal = Journal(server, stream(*JOURNAL))
    assert await follow(client) == JOURNAL
    (request,) = journal.stream_requests
    assert request.headers["accept-encoding"] == "identity"
    assert "last-event-id" not in request.headers


async def test_one_page_is_drained_after_the_close_because_the_journal_is_the_authority(
    server: FaultServer, client: Client
) -> None:
    late = event(5, "usage.updated")
    journal = Journal(server, stream(*JOURNAL), journal=[*JOURNAL, late])
    assert await follow(client) == [*JOURNAL, late]
    assert [request.query["cursor"] for request in journal.page_requests] == ["cur_4"]


async def test_the_connection_of_a_finished_stream_is_used_again(server: FaultServer, client: Client) -> None:
    Journal(server, stream(*JOURNAL))
    await follow(client)
    await follow(client)
    assert server.connections == 1


BREAKS = [
    pytest.param(stream(CREATED, HALF), id="a chunked body that ends"),
    pytest.param(stream(CREATED, HALF, framing="close"), id="a connection that closes"),
    pytest.param(stream(CREATED, HALF, Cut()), id="a chunked body that is cut"),
    pytest.param(stream(CREATED, HALF, Reset()), id="a reset"),
    pytest.param(stream(CREATED, HALF, Send(frame(WHOLE)[:20]), Cut()), id="half an event"),
]


@pytest.mark.parametrize("broken", BREAKS)
async def test_c06_a_stream_that_just_stops_is_resumed_after_the_last_cursor(
    server: FaultServer, client: Client, broken: Scripted
) -> None:
    down = problem(502, "upstream_unavailable")

    def rest(request: SeenRequest) -> Scripted:
        cursor = request.headers.get("last-event-id")
        return stream(*JOURNAL[int(cursor.removeprefix("cur_")) :] if cursor else JOURNAL)

    answers: list[Any] = [broken, down, down, rest]
    streams: list[SeenRequest] = []

    def answer(request: SeenRequest) -> Scripted:
        if not is_stream(request):
            return page([], request.query.get("cursor"))
        streams.append(request)
        following = answers.pop(0)
        return following if isinstance(following, Scripted) else following(request)

    server.on("GET", PATH, answer)
    server.on("GET", "/v2/runs/run_1", RUNNING)
    assert await follow(client) == JOURNAL
    assert len(streams) == 4


async def test_c06_a_stream_that_stops_while_the_run_goes_on_is_waited_for(server: FaultServer, client: Client) -> None:
    Journal(server, stream(), stream(), stream(*JOURNAL), journal=[])
    assert await follow(client) == JOURNAL


async def test_c06_a_run_that_failed_without_a_word_in_the_stream_is_read_from_the_journal(
    server: FaultServer, client: Client
) -> None:
    failed = event(3, "run.status_changed", {"to": "failed"})
    Journal(server, stream(CREATED, HALF, Cut()), stream(), journal=[CREATED, HALF, failed])
    assert await follow(client) == [CREATED, HALF, failed]


async def test_an_event_delivered_twice_is_handed_on_once(server: FaultServer, client: Client) -> None:
    Journal(server, stream(CREATED, CREATED, HALF, Cut()), stream(*JOURNAL))
    assert await follow(client) == JOURNAL


async def test_c08_204_stops_streaming_and_reads_pages(server: FaultServer, client: Client) -> None:
    journal = Journal(server, stream(CREATED, Cut()), Scripted(204))
    assert await follow(client) == JOURNAL
    assert len(journal.stream_requests) == 2


async def test_c08_204_polls_until_the_run_has_ended(server: FaultServer, client: Client) -> None:
    def grow(request: SeenRequest) -> Scripted:
        journal.journal = JOURNAL[: len(server.seen("GET", "/v2/runs/run_1"))]
        return RUNNING

    journal = Journal(server, Scripted(204), journal=[], run=grow)
    assert await follow(client) == JOURNAL
    assert len(journal.stream_requests) == 1


async def test_c08_410_starts_over_without_a_cursor_and_drops_what_was_seen(
    server: FaultServer, client: Client
) -> None:
    journal = Journal(server, stream(CREATED, HALF, Cut()), problem(410, "event_cursor_expired"), stream(*JOURNAL))
    assert await follow(client) == JOURNAL
    assert [request.headers.get("last-event-id") for request in journal.stream_requests] == [None, "cur_2", None]


async def test_c08_410_again_and_again_is_an_error(server: FaultServer, client: Client) -> None:
    gone = problem(410, "event_cursor_expired")
    Journal(server, *[stream(CREATED, Cut()), gone] * 5, journal=[])
    with pytest.raises(ProblemAnswer, match="event_cursor_expired"):
        await follow(client)


REFUSED = [
    (400, "cursor_invalid"),
    (401, "unauthorized"),
    (403, "forbidden"),
    (404, "not_found"),
    (406, "not_acceptable"),
]


@pytest.mark.parametrize("reconnect", [False, True], ids=["at first", "on reconnect"])
@pytest.mark.parametrize(("status", "code"), REFUSED, ids=str)
async def test_c08_a_refusal_is_a_clear_error_at_once(
    server: FaultServer, client: Client, status: int, code: str, reconnect: bool
) -> None:
    journal = Journal(server, *([stream(CREATED, Cut())] if reconnect else []), problem(status, code, "because"))
    with pytest.raises(ProblemAnswer) as caught:
        await follow(client)
    assert (caught.value.status, caught.value.code) == (status, code)
    assert len(journal.stream_requests) == 1 + reconnect


async def test_c08_429_is_waited_for_as_told(server: FaultServer, client: Client) -> None:
    limited = problem(429, "rate_limited", headers={"Retry-After": "1"})
    Journal(server, stream(CREATED, Cut()), limited, stream(*JOURNAL))
    before = time.monotonic()
    assert await follow(client) == JOURNAL
    assert time.monotonic() - before >= 1.0


async def test_c08_429_for_longer_than_the_deadline_is_an_error_at_once(server: FaultServer, client: Client) -> None:
    Journal(server, stream(CREATED, Cut()), problem(429, "rate_limited", headers={"Retry-After": "3600"}))
    with pytest.raises(ProblemAnswer) as caught:
        await follow(client)
    assert caught.value.retry_after == 3600


async def test_c08_a_used_up_quota_is_an_error_at_once(server: FaultServer, client: Client) -> None:
    Journal(server, document({"error": "usage_window_exceeded", "retry_after_seconds": 17604}, 429))
    with pytest.raises(ProblemAnswer) as caught:
        await follow(client)
    assert caught.value.quota


WRONG_TYPES = [
    pytest.param(text(b"<html>login</html>", 200, "text/html; charset=utf-8"), "text/html", id="a login page"),
    pytest.param(page([]), "application/json", id="a page"),
    pytest.param(Scripted(200, (Send(frame(CREATED)),)), "of no type", id="no type"),
]


@pytest.mark.parametrize(("answer", "named"), WRONG_TYPES)
async def test_c08_a_wrong_content_type_is_never_an_empty_journal_the_pages_are_read(
    server: FaultServer, client: Client, answer: Scripted, named: str
) -> None:
    journal = Journal(server, stream(CREATED, Cut()), answer)
    assert await follow(client) == JOURNAL
    assert [request.query["cursor"] for request in journal.page_requests] == ["cur_1"]


@pytest.mark.parametrize(("answer", "named"), WRONG_TYPES[:1])
async def test_c08_what_answers_in_the_api_s_place_for_long_is_an_error(
    server: FaultServer, client: Client, answer: Scripted, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalfleet.contract.follow.UNREADABLE_SECONDS", 0.4)
    streams = [stream(CREATED, Cut())]
    server.on("GET", PATH, lambda request: streams.pop() if is_stream(request) and streams else answer)
    server.on("GET", "/v2/runs/run_1", RUNNING, answer)
    with pytest.raises(UnreadableAnswer, match=named):
        await follow(client)


async def test_a_redirect_of_the_stream_is_not_followed(server: FaultServer, client: Client) -> None:
    Journal(server, text(b"", 307, headers={"Location": "https://elsewhere.example/"}))
    with pytest.raises(ProblemAnswer, match=r"https://elsewhere\.example"):
        await follow(client)


@pytest.mark.parametrize("tail", [Cut(), Reset()], ids=["cut", "reset"])
async def test_c12_the_end_event_before_a_broken_transfer_is_the_end(
    server: FaultServer, client: Client, tail: Cut | Reset
) -> None:
    Journal(server, stream(*JOURNAL, tail), stream(END))
    assert await follow(client) == JOURNAL


async def test_c12_a_drain_that_fails_does_not_undo_the_end_and_says_so(
    server: FaultServer, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    server.on("GET", PATH, lambda request: stream(*JOURNAL) if is_stream(request) else problem(403, "forbidden"))
    with caplog.at_level(logging.WARNING, "evalfleet.contract"):
        assert await follow(client) == JOURNAL
    assert "run_1" in caplog.text
    assert "forbidden" in caplog.text


async def test_a_stream_that_stays_open_after_the_end_does_not_hold_the_reader(
    server: FaultServer, client: Client
) -> None:
    Journal(server, stream(*JOURNAL, Stall()))
    assert await follow(client) == JOURNAL
    await server.until(lambda s: s.open_connections <= 1)  # the stalled one is closed; the drain's may be kept


async def test_c13_a_stream_that_is_compressed_all_the_same_is_decoded_as_it_comes(
    server: FaultServer, client: Client
) -> None:
    packer = zlib.compressobj(wbits=31)
    read = asyncio.Event()
    first = packer.compress(frame(CREATED)) + packer.flush(zlib.Z_SYNC_FLUSH)
    rest = packer.compress(b"".join(map(frame, JOURNAL[1:]))) + packer.flush()
    Journal(server, stream(Send(first), Await(read), Send(rest), headers={"Content-Encoding": "gzip"}))
    seen = []
    async for entry in client.events("run_1", deadline=time.monotonic() + 20):
        seen.append(entry)
        read.set()  # the rest is only sent after the first event has arrived
    assert seen == JOURNAL


async def test_events_arrive_as_they_are_sent(server: FaultServer, client: Client) -> None:
    read = [asyncio.Event() for _ in JOURNAL]
    steps = [part for entry, gate in zip(JOURNAL, read, strict=True) for part in (entry, Await(gate))]
    Journal(server, stream(*steps[:-1]))
    async for entry in client.events("run_1", deadline=time.monotonic() + 20):
        read[entry["sequence"] - 1].set()
    assert all(gate.is_set() for gate in read[:-1])


async def test_a_silent_stream_is_dropped_and_resumed(server: FaultServer) -> None:
    journal = Journal(server, stream(CREATED, Stall()), stream(*JOURNAL[1:]))
    async with client_for(server, silence=0.1) as client:
        assert await follow(client) == JOURNAL
    assert journal.stream_requests[1].headers["last-event-id"] == "cur_1"


async def test_heartbeats_are_no_events_and_no_end(server: FaultServer, client: Client) -> None:
    beat = Send(b":hb\n\n")
    journal = Journal(server, stream(beat, CREATED, beat, HALF, beat, beat, WHOLE, END))
    assert await follow(client) == JOURNAL
    assert len(journal.stream_requests) == 1


async def test_the_deadline_ends_a_stream_that_goes_on(server: FaultServer, client: Client) -> None:
    Journal(server, stream(CREATED, Stall()))
    with pytest.raises(StreamLost, match="GET /v2/runs/run_1/events"):
        await follow(client, within=0.3)
    await server.until(lambda s: s.open_connections == 0)


async def test_the_deadline_ends_a_stream_that_only_breaks(server: FaultServer, client: Client) -> None:
    Journal(server, stream(Cut()), journal=[])
    with pytest.raises(StreamLost):
        await follow(client, within=0.6)


async def test_a_target_that_went_away_is_a_stream_lost_with_the_reason(server: FaultServer, client: Client) -> None:
    Journal(server, stream(CREATED, Stall()))
    async with aclosing(client.events("run_1", deadline=time.monotonic() + 1.0)) as events:
        assert await anext(events) == CREATED
        await server.stop()
        with pytest.raises(StreamLost, match="Connect"):
            await anext(events)


async def test_a_target_that_never_answered_is_unreachable(server: FaultServer, client: Client) -> None:
    await server.stop()
    with pytest.raises(TargetUnreachable) as caught:
        await follow(client, within=0.4)
    assert server.url in str(caught.value)
    assert "secret-token" not in str(caught.value)


async def test_a_cancelled_reader_ends_at_once_and_leaks_no_connection(server: FaultServer, client: Client) -> None:
    server.on("GET", PATH, stream(CREATED, Stall()))
    readers = [asyncio.create_task(follow(client)) for _ in range(20)]
    await server.until(lambda s: len(s.requests) == 20)
    for reader in readers:
        reader.cancel()
    results = await asyncio.gather(*readers, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    await server.until(lambda s: s.open_connections == 0)


async def test_a_reader_that_leaves_early_closes_its_connection(server: FaultServer, client: Client) -> None:
    server.on("GET", PATH, stream(CREATED, HALF, Stall()))
    async with aclosing(client.events("run_1", deadline=time.monotonic() + 20)) as events:
        assert await anext(events) == CREATED
    await server.until(lambda s: s.open_connections == 0)


async def test_c11_an_event_of_8_mb_arrives_whole(server: FaultServer, client: Client) -> None:
    large = event(2, "output.created", {"t": "x" * 8_000_000})
    end = event(3, "run.status_changed", {"to": "succeeded"})
    Journal(server, stream(CREATED, large, end), journal=[CREATED, large, end])
    assert await follow(client) == [CREATED, large, end]


async def test_an_event_type_that_does_not_exist_yet_passes_through(server: FaultServer, client: Client) -> None:
    future = {**event(2, "moon.landed", {"x": 1}), "more": [1]}
    Journal(server, stream(CREATED, future, *JOURNAL[2:]))
    assert await follow(client) == [CREATED, future, *JOURNAL[2:]]


async def test_b11_half_an_emoji_in_an_event_is_kept(server: FaultServer, client: Client) -> None:
    data = frame(CREATED).replace(b'"data": {}', b'"data": {"t": "ok \\ud83d"}')
    Journal(server, stream(Send(data), *JOURNAL[1:]))
    first, *_ = await follow(client)
    assert first["data"]["t"] == "ok \ud83d"


async def test_a_cursor_that_no_header_can_carry_goes_into_the_query(server: FaultServer, client: Client) -> None:
    odd = {**CREATED, "cursor": "cür 1"}
    journal = Journal(server, stream(odd, Cut()), stream(*JOURNAL[1:]), journal=[])
    assert await follow(client) == [odd, *JOURNAL[1:]]
    assert journal.stream_requests[1].query == {"cursor": "cür 1"}
    assert "last-event-id" not in journal.stream_requests[1].headers


async def test_a_frame_without_an_id_resumes_at_the_event_s_own_cursor(server: FaultServer, client: Client) -> None:
    bare = Send(frame(CREATED).removeprefix(b"id: cur_1\n"))
    journal = Journal(server, stream(bare, Cut()), stream(*JOURNAL[1:]))
    assert await follow(client) == JOURNAL
    assert journal.stream_requests[1].headers["last-event-id"] == "cur_1"


async def test_the_server_s_retry_field_is_the_least_pause(server: FaultServer, client: Client) -> None:
    Journal(server, stream(Send(b"retry: 700\n"), CREATED, Cut()), stream(*JOURNAL[1:]))
    before = time.monotonic()
    assert await follow(client) == JOURNAL
    assert time.monotonic() - before >= 0.7


async def test_long_journals_are_drained_over_several_pages(server: FaultServer, client: Client) -> None:
    pages = {None: ([CREATED, HALF], "cur_2", True), "cur_2": ([WHOLE, END], "cur_4", False)}

    def answer(request: SeenRequest) -> Scripted:
        if is_stream(request):
            return Scripted(204)
        rows, cursor, more = pages[request.query.get("cursor")]
        return page(rows, cursor, has_more=more)

    server.on("GET", PATH, answer)
    server.on("GET", "/v2/runs/run_1", RUNNING)
    assert await follow(client) == JOURNAL
