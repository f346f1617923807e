"""What streams know of a run: frames in order, also when commits are heard of in another one; other servers' runs."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from evalfleet.contract.ids import new_id
from evalfleet.errors import StorageError
from evalfleet.server.journal import Appended
from evalfleet.server.neighbours import PAYLOAD, channel_of, payloads, read_payload
from evalfleet.server.servers import Note
from evalfleet.server.streams import PIECE, EventStream, LiveRun, Piece, Streams


def frames(*numbers: int) -> tuple[tuple[int, bytes], ...]:
    return tuple((number, b"%d," % number) for number in numbers)


def test_frames_are_kept_in_order() -> None:
    run = LiveRun()
    run.add(frames(1, 2), over=False)
    run.add(frames(3), over=False)
    assert run.after(0) == [b"1,", b"2,", b"3,"]
    assert run.after(2) == [b"3,"]
    assert run.after(3) == []


def test_two_commits_that_are_heard_of_the_other_way_round_are_read_from_the_store() -> None:
    run = LiveRun()
    run.add(frames(1, 2), over=False)
    run.add(frames(4, 5), over=True)
    assert run.after(2) is None
    run.add(frames(3), over=False)
    assert run.after(2) is None
    assert run.after(5) == []
    assert run.over
    run.add(frames(6), over=True)
    assert run.after(5) == [b"6,"]


class Client:
    """Takes what a stream sends."""

    def __init__(self) -> None:
        self.body = b""
        self.ended = False

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            self.body += message["body"]
            self.ended = not message["more_body"]

    async def receive(self) -> Any:
        raise AssertionError("nobody asks")


async def sent(
    streams: Streams,
    live: LiveRun | None,
    stored: list[Piece],
    *,
    after: int = 0,
    meanwhile: Callable[[], None] = lambda: None,
) -> Client:
    """What a stream sends when its reads of the store come to these pieces; `meanwhile` happens during each."""

    async def missing(sequence: int) -> Piece:
        meanwhile()
        return stored.pop(0)

    client = Client()
    stream = EventStream(streams, live, after, missing)
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    await stream._send_all(client.send, gone)
    assert not stored
    return client


async def test_a_run_that_nobody_will_publish_any_more_is_read_to_its_end() -> None:
    streams = Streams()
    streams.publish(Appended("run_1", frames(1, 2), "queued"))
    live = streams.of("run_1")
    streams.abandon("run_1")
    client = await sent(streams, live, [Piece(list(frames(1, 2, 3)), over=True)])
    assert client.ended
    assert client.body == b"1,2,3,"
    assert len(streams) == 0


async def test_a_journal_that_cannot_be_written_ends_its_streams() -> None:
    streams = Streams()
    streams.publish(Appended("run_1", frames(1), "queued"))
    live = streams.of("run_1")
    streams.abandon("run_1")
    client = await sent(streams, live, [Piece([], over=False)], after=1)
    assert client.ended


async def test_a_journal_that_cannot_be_read_ends_the_stream_and_is_no_bug() -> None:
    """Its head has gone out: there is no document any more, and the client asks again from where it came to."""

    async def missing(sequence: int) -> Piece:
        if sequence:
            raise StorageError("the database is away")
        return Piece(list(frames(*range(1, PIECE + 1))), over=False)

    async def nothing() -> Any:
        await asyncio.get_running_loop().create_future()

    client = Client()
    await EventStream(Streams(), None, 0, missing)({}, nothing, client.send)
    assert client.body.endswith(f"{PIECE},".encode())
    assert client.ended


async def test_a_stream_of_another_servers_run_reads_what_it_is_told_of() -> None:
    streams = Streams(tell=lambda appended: None)
    live = streams.of("run_1")
    assert live is not None
    pieces = [Piece(list(frames(1, 2)), over=False), Piece(list(frames(3)), over=True)]
    client = await sent(streams, live, pieces, meanwhile=lambda: streams.heard("run_1", 3, over=True))
    assert client.body == b"1,2,3,"
    assert client.ended


async def test_a_server_that_leaves_ends_the_streams_of_other_servers_runs() -> None:
    streams = Streams(tell=lambda appended: None)
    live = streams.of("run_1")
    streams.leave()
    client = await sent(streams, live, [Piece(list(frames(1)), over=False)])
    assert client.body == b"1,"
    assert client.ended


def test_a_run_is_watched_as_long_as_somebody_looks() -> None:
    told: list[Appended] = []
    streams = Streams(tell=told.append)
    live = streams.of("run_1")
    assert streams.of("run_1") is live
    assert list(streams.watched()) == ["run_1"]
    cancelled = Appended("run_1", frames(4, 5), "cancelled")
    streams.publish(cancelled)  # written here, played elsewhere
    assert live is not None
    assert (live.last, live.over, told) == (5, True, [cancelled])
    del live
    gc.collect()
    assert list(streams.watched()) == []


def test_a_server_alone_watches_nothing() -> None:
    streams = Streams()
    assert streams.of("run_1") is None
    streams.heard("run_1", 3, over=False)
    assert len(streams) == 0


@pytest.mark.parametrize("count", [0, 1, 100, 1000])
def test_notes_fit_into_notifications_and_come_out_as_they_went_in(count: int) -> None:
    notes = [Note(new_id("run"), 2**31 - number, ("", "cancelling", "failed")[number % 3]) for number in range(count)]
    made = list(payloads("f" * 32, {note.run_id: note for note in notes}))
    assert made  # also when there is nothing to say: it is a sign of life
    assert max(len(payload.encode()) for payload in made) <= PAYLOAD
    read = [read_payload(payload) for payload in made]
    assert {sender for sender, _notes in read} == {"f" * 32}
    assert [note for _sender, some in read for note in some] == notes


@pytest.mark.parametrize("text", ["", "{}", "[1]", '["s",[["run"]]]', '["s",[["run","x",""]]]', "null", '["s",1]'])
def test_what_no_server_says_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no note"):
        read_payload(text)


def test_a_channel_is_a_name_that_postgres_takes() -> None:
    channel = channel_of("0f8fad5b-d9cb-469f-a165-70867728950e")
    assert channel.isidentifier()
    assert len(channel) < 63
