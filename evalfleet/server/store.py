"""How are things written so that they are safe, and read without waiting?

    result = await store.write(fn)      # fn(conn) runs on a writer thread, inside a transaction
    result = await store.read(fn)       # fn(conn) runs on a reader thread, on one snapshot

`fn` is plain SQLAlchemy Core in SQL that SQLite and Postgres both accept. A write returns after its commit is on the
disk.

SQLite has one writer. All writes that wait when it comes round share one transaction and one fsync; each has a
SAVEPOINT of its own, so that one that raises undoes only itself.

Postgres has several, each write a transaction of its own: the database itself shares the fsyncs, and short transactions
hold their row locks shortly. What it undoes because two writes met (a deadlock, a serialization failure) and what finds
its connection dead before its commit is done again, so `fn` may run more than once: it must not do anything but SQL.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from evalfleet.errors import StorageError
from evalfleet.server.engines import (
    POSTGRES,
    has_collided,
    is_lost,
    make_engine,
    read_url,
    reading,
    storage_error,
    writing,
)

__all__ = ["Store", "read_url"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

GROUP_LIMIT: Final = 256
"""How many writes share a transaction at most: bounds how much one failing commit takes with it. (SQLite)"""

WRITERS: Final = 6
"""Connections that write at the same time. (Postgres)"""

READERS: Final = 4

COLLISIONS: Final = 8
"""How often a write is begun that meets others, before its caller is told. One of those that meet always goes on."""

PATIENCE: Final = 8.0
"""Seconds, from its call, for which a write waits for a Postgres that is away: a restart is shorter."""

ASKED_AGAIN: Final = 1.0
"""Seconds: a database that is away is not tried by everybody who waits, each for the length of a connect's timeout."""


@dataclass(slots=True)
class _Write(Generic[T]):
    fn: Callable[[Connection], T]
    future: asyncio.Future[T]
    loop: asyncio.AbstractEventLoop
    on_commit: Callable[[T], None] | None
    result: T | None = None
    error: BaseException | None = None
    asked_at: float = field(default_factory=time.monotonic)

    def settle(self) -> None:
        """On the loop: tell what came of it."""
        if self.error is not None:
            if not self.future.done():
                self.future.set_exception(self.error)
            return
        result: Any = self.result
        if self.on_commit is not None:
            self.on_commit(result)
        if not self.future.done():  # done already: who asked has gone; the write stands all the same
            self.future.set_result(result)


class Store:
    """A database by URL. `open()` is cheap; call it once, and `aclose()` at the end."""

    def __init__(self, url: str) -> None:
        self._engine = make_engine(url)
        self.shared = self._engine.dialect.name == POSTGRES
        self._queue: queue.SimpleQueue[_Write[Any] | None] = queue.SimpleQueue()
        work, number = (self._write_each, WRITERS) if self.shared else (self._write_in_groups, 1)
        self._writers = [threading.Thread(target=work, name=f"store-writer-{n}", daemon=True) for n in range(number)]
        self._counting = threading.Lock()
        self._leaving = threading.Event()
        self._away: tuple[float, DBAPIError] | None = None
        self._local = threading.local()
        self._opened: list[Connection] = []
        self._opened_lock = threading.Lock()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        self.commits = 0
        self.writes = 0
        self._closed = False

    @property
    def engine(self) -> Engine:
        return self._engine

    def open(self) -> None:
        for writer in self._writers:
            writer.start()

    async def write(self, fn: Callable[[Connection], T], *, on_commit: Callable[[T], None] | None = None) -> T:
        """Run `fn` in a transaction and return its result once that is durable.

        `on_commit(result)` runs on the loop right after the commit: what wakes readers belongs there. With SQLite it
        runs in the order of the commits; with Postgres two commits may be heard of the other way round, also two of
        this process. Raises what `fn` raises, or StorageError when the database refuses the commit.
        """
        if self._closed:
            raise StorageError("the server's database is closed: the server is shutting down")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(_Write(fn, future, loop, on_commit))
        return await future

    async def read(self, fn: Callable[[Connection], T]) -> T:
        """Run `fn` on one consistent snapshot of what has been committed."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, fn)

    async def aclose(self) -> None:
        """Finish the writes that wait, then close every connection."""
        if self._closed:
            return
        self._closed = True
        self._leaving.set()
        loop = asyncio.get_running_loop()
        for _writer in self._writers:
            self._queue.put(None)
        for writer in self._writers:
            if writer.ident is not None:
                await loop.run_in_executor(None, writer.join, 10)
        await loop.run_in_executor(None, self._readers.shutdown)
        with self._opened_lock:
            for connection in self._opened:
                connection.close()
        self._engine.dispose()

    # -- the reader threads

    def _read(self, fn: Callable[[Connection], T]) -> T:
        with _translated():
            kept: Connection | None = getattr(self._local, "connection", None)
            if kept is not None:
                try:
                    with kept.begin():
                        return fn(kept)
                except DBAPIError as problem:
                    if not is_lost(problem):
                        raise
                    self._forget_reader(kept)  # the database was away meanwhile: once more, on a new connection
            connection = self._connect(reading)
            self._local.connection = connection
            with self._opened_lock:
                self._opened.append(connection)
            with connection.begin():
                return fn(connection)

    def _connect(self, how: Callable[[Engine], Connection]) -> Connection:
        away = self._away  # once: another thread may say meanwhile that it is back
        if away is not None and time.monotonic() - away[0] < ASKED_AGAIN:
            raise away[1]
        try:
            connection = how(self._engine)
        except DBAPIError as problem:
            if self.shared:
                self._away = time.monotonic(), problem
            raise
        self._away = None
        return connection

    def _forget_reader(self, connection: Connection) -> None:
        self._local.connection = None
        with self._opened_lock:
            self._opened.remove(connection)
        _drop(connection)

    # -- Postgres: the writer threads

    def _write_each(self) -> None:
        connection: Connection | None = None
        while (write := self._queue.get()) is not None:
            connection = self._write_one(connection, write)
            _settle([write])
        if connection is not None:
            connection.close()

    def _write_one(self, connection: Connection | None, write: _Write[Any]) -> Connection | None:
        """Commit one write, or keep its error. Answers the connection for the next one."""
        given_up_at = write.asked_at + PATIENCE
        collisions = losses = 0
        while True:
            committing = False
            try:
                if connection is None:
                    connection = self._connect(writing)
                with connection.begin() as transaction:
                    write.result = write.fn(connection)
                    committing = True
                    transaction.commit()
            except DBAPIError as problem:
                write.error = storage_error(problem)
                if is_lost(problem):
                    if connection is not None:
                        _drop(connection)
                    connection = None
                    losses += 1
                    if committing:  # the answer is lost and the commit may stand: only the caller can ask again
                        return connection
                    pause = min(0.05 * 2**losses, 1.0)
                    if time.monotonic() + pause > given_up_at or self._leaving.wait(pause):
                        return connection
                elif has_collided(problem):
                    collisions += 1
                    if collisions >= COLLISIONS or self._leaving.wait(random.uniform(0, 0.004 * 2**collisions)):
                        return connection
                else:
                    return connection
                continue
            except BaseException as problem:  # noqa: BLE001 - carried to whoever awaits this write
                write.error = problem
                return connection
            write.error = None
            with self._counting:
                self.commits += 1
                self.writes += 1
            return connection

    # -- SQLite: the writer thread

    def _write_in_groups(self) -> None:
        connection: Connection | None = None
        while True:
            group, last = self._next_group()
            if group:
                if connection is None:
                    try:
                        connection = writing(self._engine)
                    except DBAPIError as problem:
                        _fail(group, storage_error(problem))
                        group = []
                if connection is not None and group:
                    self._commit(connection, group)
                _settle(group)
            if last:
                if connection is not None:
                    connection.close()
                return

    def _next_group(self) -> tuple[list[_Write[Any]], bool]:
        first = self._queue.get()
        if first is None:
            return [], True
        group = [first]
        while len(group) < GROUP_LIMIT:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if item is None:
                return group, True
            group.append(item)
        return group, False

    def _commit(self, connection: Connection, group: list[_Write[Any]]) -> None:
        try:
            with connection.begin():
                for write in group:
                    _attempt(connection, write, alone=len(group) == 1)
        except _Undone:
            return  # a group of one that raised: rolled back, its error is kept
        except DBAPIError as problem:
            _fail(group, storage_error(problem))
            return
        self.commits += 1
        self.writes += len(group)


class _Undone(Exception):
    """Carries a lone write's failure out of its transaction, so that it is rolled back."""


def _attempt(connection: Connection, write: _Write[Any], *, alone: bool) -> None:
    if alone:
        try:
            write.result = write.fn(connection)
        except BaseException as problem:
            write.error = _translate(problem)
            raise _Undone from problem
        return
    savepoint = connection.begin_nested()
    try:
        write.result = write.fn(connection)
    except BaseException as problem:  # noqa: BLE001 - carried to whoever awaits this write
        savepoint.rollback()
        write.error = _translate(problem)
    else:
        savepoint.commit()


def _settle(group: list[_Write[Any]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[_Write[Any]]] = {}
    for write in group:
        by_loop.setdefault(write.loop, []).append(write)
    for loop, writes in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle_all, writes)
        except RuntimeError:  # the loop was closed under us: nobody waits any more
            _log.warning("%d writes were committed after their event loop had ended", len(writes))


def _settle_all(writes: list[_Write[Any]]) -> None:
    for write in writes:
        write.settle()


def _fail(group: list[_Write[Any]], error: BaseException) -> None:
    for write in group:
        write.error = write.error or error


def _translate(problem: BaseException) -> BaseException:
    return storage_error(problem) if isinstance(problem, DBAPIError) else problem


def _drop(connection: Connection) -> None:
    """Close a connection that is of no use any more."""
    with suppress(DBAPIError):  # it is broken: that it says so again is no news
        connection.invalidate()
        connection.close()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except DBAPIError as problem:
        raise storage_error(problem) from problem
