"""How are things written so that they are safe, and read without waiting? One writer with group commit, many readers.

    result = await store.write(fn)      # fn(conn) runs on the writer thread, inside a transaction
    result = await store.read(fn)       # fn(conn) runs on a reader thread, on one snapshot

`fn` is plain SQLAlchemy Core in SQL that SQLite and Postgres both accept. A write returns after its commit is on the
disk (SQLite: WAL, `synchronous=FULL`, so an fsync per commit). All writes that wait when the writer comes round share
one transaction and one fsync; each has a SAVEPOINT of its own, so that one that raises undoes only itself.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from evalfleet.errors import SettingError, StorageError

_log = logging.getLogger(__name__)

T = TypeVar("T")

GROUP_LIMIT: Final = 256
"""How many writes share a transaction at most: bounds how much one failing commit takes with it."""

READERS: Final = 4


@dataclass(slots=True)
class _Write(Generic[T]):
    fn: Callable[[Connection], T]
    future: asyncio.Future[T]
    loop: asyncio.AbstractEventLoop
    on_commit: Callable[[T], None] | None
    result: T | None = None
    error: BaseException | None = None

    def settle(self) -> None:
        """On the loop: tell what came of it, in the order of the commits."""
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
        self._engine = _engine(url)
        self._queue: queue.SimpleQueue[_Write[Any] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_for_ever, name="store-writer", daemon=True)
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
        self._writer.start()

    async def write(self, fn: Callable[[Connection], T], *, on_commit: Callable[[T], None] | None = None) -> T:
        """Run `fn` in a transaction and return its result once that is durable.

        `on_commit(result)` runs on the loop right after the commit, in the order of the commits: what wakes readers
        belongs there. Raises what `fn` raises, or StorageError when the database refuses the commit.
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
        self._queue.put(None)
        loop = asyncio.get_running_loop()
        if self._writer.ident is not None:
            await loop.run_in_executor(None, self._writer.join, 10)
        await loop.run_in_executor(None, self._readers.shutdown)
        with self._opened_lock:
            for connection in self._opened:
                connection.close()
        self._engine.dispose()

    # -- the reader threads

    def _read(self, fn: Callable[[Connection], T]) -> T:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._engine.connect()
            self._local.connection = connection
            with self._opened_lock:
                self._opened.append(connection)
        with _translated(), connection.begin():
            return fn(connection)

    # -- the writer thread

    def _write_for_ever(self) -> None:
        connection: Connection | None = None
        while True:
            group, last = self._next_group()
            if group:
                if connection is None:
                    try:
                        connection = self._engine.connect().execution_options(writes=True)
                    except DBAPIError as problem:
                        _fail(group, _storage_error(problem))
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
            _fail(group, _storage_error(problem))
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
    return _storage_error(problem) if isinstance(problem, DBAPIError) else problem


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except DBAPIError as problem:
        raise _storage_error(problem) from problem


def _storage_error(problem: DBAPIError) -> StorageError:
    # Only the driver's own words: SQLAlchemy's text holds the statement and its values.
    error = StorageError(f"the server's database refused: {problem.orig}. Is the disk full, or the file read-only?")
    error.__cause__ = problem
    return error


def read_url(url: str) -> URL:
    """A database URL that this server can use; SettingError for any other."""
    try:
        parsed = make_url(url)
    except ArgumentError as problem:
        raise SettingError("--database", "is no database URL; write sqlite:///path/to/file.sqlite3") from problem
    if parsed.get_backend_name() != "sqlite":
        raise SettingError("--database", f"{parsed.get_backend_name()} is not supported yet; write sqlite:///path")
    if parsed.database in (None, "", ":memory:"):
        raise SettingError("--database", "the database must be a file: readers have connections of their own")
    return parsed


def _engine(url: str) -> Engine:
    parsed = read_url(url)
    # NullPool: the writer and each reader keep one connection for the whole life of the server.
    engine = create_engine(parsed, poolclass=NullPool, connect_args={"check_same_thread": False, "timeout": 10})

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves, below
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA busy_timeout=10000")
        connection.execute("PRAGMA cache_size=-32000")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # The writer takes the write lock at once: a read that is upgraded later can find its snapshot outdated.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")

    return engine
