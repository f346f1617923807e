"""How do several servers on one Postgres hear of each other, so that a stream shows at once what another server wrote?

After a commit its server says "run X goes to event N now", with NOTIFY; the others read from the store what the streams
they serve lack. The note follows the commit in a transaction of its own: NOTIFY inside the write would make all commits
of the database follow one another. So a note can be lost, and is never relied on alone:

- an `Ear` that was deaf catches up: it reads how far each watched run goes now, and what became of its own runs;
- every server hears its own heartbeat; an ear that does not for DEAF seconds makes a new connection;
- what a server that dies had not told yet, its neighbours tell when they end its runs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

import psycopg
from sqlalchemy import Engine

from evalfleet.server.engines import connect_arguments
from evalfleet.server.journal import Appended
from evalfleet.server.servers import BEAT, Note, Server

_log = logging.getLogger(__name__)

DEAF: Final = 10.0
AGAIN: Final = 1.0
"""Seconds until a lost connection is tried again."""

PAYLOAD: Final = 7900
"""Bytes: Postgres takes less than 8000 in one notification."""

_SEEN: Final = "UPDATE servers SET seen = date_part('epoch', clock_timestamp()) WHERE id = %s"
_BACK: Final = """
INSERT INTO servers (id, node, host, pid, started_at, seen)
VALUES (%s, %s, %s, %s, to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        date_part('epoch', clock_timestamp()))
"""
_GONE: Final = "DELETE FROM servers WHERE id = %s"
_TELL: Final = "SELECT pg_notify(%s, %s)"


def channel_of(installation: str) -> str:
    """Databases (and schemas of one database) have channels of their own."""
    return f"evalfleet_{installation.replace('-', '')}"


def payloads(server_id: str, notes: Mapping[str, Note]) -> Iterator[str]:
    """`[sender, [[run, last, status], …]]`, each small enough for one notification. At least one: it is a heartbeat."""
    head = f'["{server_id}",['
    words: list[str] = []
    size = len(head)
    for note in notes.values():
        word = f'["{note.run_id}",{note.last},"{note.status}"]'
        if size + len(word) + 3 > PAYLOAD:
            yield head + ",".join(words) + "]]"
            words, size = [], len(head)
        words.append(word)
        size += len(word) + 1
    yield head + ",".join(words) + "]]"


def read_payload(text: str) -> tuple[str, list[Note]]:
    """Who says what. ValueError for what no server of this kind says."""
    try:
        sender, notes = json.loads(text)
        return str(sender), [Note(str(run_id), int(last), str(status)) for run_id, last, status in notes]
    except (TypeError, ValueError) as problem:
        raise ValueError(f"no note of an evalfleet server: {text[:80]!r}") from problem


class Herald:
    """Says that this server lives, and what it has committed. A thread: a busy event loop is no dead server."""

    def __init__(self, arguments: Mapping[str, Any], server: Server, channel: str) -> None:
        """`arguments` of `psycopg.connect`."""
        self._arguments = arguments
        self._server = server
        self._channel = channel
        self._taken_for_dead: Callable[[], None] | None = None
        self._queue: queue.SimpleQueue[Note | None] = queue.SimpleQueue()
        self._notes: dict[str, Note] = {}
        self._thread = threading.Thread(target=self._run, name="herald", daemon=True)
        self._connection: psycopg.Connection[Any] | None = None

    def start(self, taken_for_dead: Callable[[], None]) -> None:
        """`taken_for_dead` is called, on the thread, when the others had ended this server."""
        self._taken_for_dead = taken_for_dead
        self._thread.start()

    def tell(self, appended: Appended) -> None:
        """Returns at once."""
        status = appended.status if appended.over or appended.status == "cancelling" else None
        self._queue.put(Note(appended.run_id, appended.frames[-1][0], status or ""))

    def stop(self) -> None:
        """Say what is left, take this server's row away, and end. Waits for that, 5 s at most."""
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(5)

    def _run(self) -> None:
        beat_at = time.monotonic()
        leaving = False
        while not leaving:
            leaving = self._collect(max(0.0, beat_at - time.monotonic()))
            beating = time.monotonic() >= beat_at
            if not (beating or leaving or self._notes):
                continue
            try:
                self._speak(beating=beating, leaving=leaving)
            except psycopg.Error as problem:
                _log.warning("the other servers cannot be told: %s", str(problem).strip())
                self._disconnect()
                beat_at = time.monotonic() + AGAIN
            else:
                self._notes.clear()
                if beating:
                    beat_at = time.monotonic() + BEAT
        self._disconnect()

    def _collect(self, seconds: float) -> bool:
        """Wait for the next note, and take all that are there. True when it is time to leave."""
        try:
            note = self._queue.get(timeout=seconds)
            while note is not None:
                before = self._notes.get(note.run_id)
                if before is None or note.last >= before.last:
                    status = note.status or (before.status if before is not None else "")
                    self._notes[note.run_id] = Note(note.run_id, note.last, status)
                note = self._queue.get_nowait()
        except queue.Empty:
            return False
        return True

    def _speak(self, *, beating: bool, leaving: bool) -> None:
        if self._connection is None:
            self._connection = psycopg.connect(**self._arguments, autocommit=True)
            # A heartbeat need not be on the disk: after a crash of the database it would be too old in any case.
            self._connection.execute("SET statement_timeout = '10s'; SET synchronous_commit = off")
        connection = self._connection
        if beating and not leaving and connection.execute(_SEEN, [self._server.id]).rowcount == 0:
            connection.execute(_BACK, [self._server.id, self._server.node, self._server.host, self._server.pid])
            if self._taken_for_dead is not None:
                self._taken_for_dead()
        for payload in payloads(self._server.id, self._notes):
            connection.execute(_TELL, [self._channel, payload])
        if leaving:
            connection.execute(_GONE, [self._server.id])

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Ear:
    """Hears what the other servers say."""

    def __init__(self, arguments: Mapping[str, Any], server: Server, channel: str) -> None:
        self._arguments = arguments
        self._server = server
        self._channel = channel

    async def listen(self, hear: Callable[[Note], None], catch_up: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled. `hear` gets the notes; `catch_up` is awaited whenever some may have been lost."""
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(**self._arguments, autocommit=True) as connection:
                    await connection.execute(f'LISTEN "{self._channel}"')
                    await catch_up()
                    await self._hear_all(connection, hear)
            except TimeoutError:
                _log.warning("nothing was heard for %g s, not even from here: a new connection is made", DEAF)
            except (psycopg.Error, OSError) as problem:
                _log.warning("the other servers are not heard: %s", str(problem).strip())
            await asyncio.sleep(AGAIN)

    async def _hear_all(self, connection: psycopg.AsyncConnection[Any], hear: Callable[[Note], None]) -> None:
        said = connection.notifies()
        while True:
            async with asyncio.timeout(DEAF):
                notification = await anext(said)
            try:
                sender, notes = read_payload(notification.payload)
            except ValueError as problem:
                _log.warning("%s", problem)
                continue
            if sender != self._server.id:
                for note in notes:
                    hear(note)


class Neighbours:
    """This server's mouth and ear, for the other servers of the same installation."""

    def __init__(self, engine: Engine, server: Server, installation: str) -> None:
        arguments, channel = connect_arguments(engine), channel_of(installation)
        self.herald = Herald(arguments, server, channel)
        self.ear = Ear(arguments, server, channel)
