"""How is each database spoken to? Its URL, its connections, and what its errors mean.

SQLite: one file, WAL, an fsync per commit, one writer at a time. Postgres (psycopg 3): writers at READ COMMITTED, which
lock the rows they decide by; readers at REPEATABLE READ, so that one read sees one state. No wait is without an end:
15 s for a lock, 120 s for a statement, 60 s for a transaction whose server has stopped in the middle of it.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from evalfleet.errors import SettingError, StorageError

SQLITE: Final = "sqlite"
POSTGRES: Final = "postgresql"

_DRIVERS: Final = {"postgres": "postgresql+psycopg", POSTGRES: "postgresql+psycopg"}

_CONNECT: Final = {
    "connect_timeout": 5,
    "application_name": "evalfleet server",
    # A dead peer is noticed within 25 s although nothing is sent.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""What the URL does not say otherwise."""

SQLITE_LOCK_MS: Final = 10_000
"""How long a write waits for another program that holds the file's lock."""

_SESSION: Final = """
SET lock_timeout = '15s'; SET statement_timeout = '120s'; SET idle_in_transaction_session_timeout = '60s';
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'
"""

_COLLISIONS: Final = frozenset({"40001", "40P01"})
"""serialization_failure, deadlock_detected: Postgres has undone the transaction, and asks to do it again."""

_BUSY: Final = frozenset({"55P03", "57014"})
"""lock_not_available, query_canceled: a wait came to its end."""


_AWAY: Final = frozenset({"57P01", "57P02", "57P03", "53300"})
"""The database is being shut down or started, or has no connection left."""


def read_url(url: str) -> URL:
    """A database URL that this server can use; SettingError for any other."""
    try:
        parsed = make_url(url)
    except ArgumentError as problem:
        raise SettingError(
            "--database", "is no database URL; write sqlite:///path or postgresql://host/db"
        ) from problem
    if parsed.drivername in _DRIVERS:
        parsed = parsed.set(drivername=_DRIVERS[parsed.drivername])
    if parsed.drivername == "postgresql+psycopg":
        return parsed
    if parsed.drivername not in (SQLITE, "sqlite+pysqlite"):
        raise SettingError(
            "--database", f"{parsed.drivername} is not supported; write sqlite:///path or postgresql://host/db"
        )
    if parsed.database in (None, "", ":memory:"):
        raise SettingError("--database", "the database must be a file: readers have connections of their own")
    return parsed


def make_engine(url: str) -> Engine:
    """NullPool: the writers and each reader keep one connection for the whole life of the server."""
    parsed = read_url(url)
    return _postgres(parsed) if parsed.get_backend_name() == POSTGRES else _sqlite(parsed)


def is_postgres(connection: Connection) -> bool:
    return connection.dialect.name == POSTGRES


def _sqlite(parsed: URL) -> Engine:
    engine = create_engine(parsed, poolclass=NullPool, connect_args={"check_same_thread": False, "timeout": 10})

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves, below
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA busy_timeout={SQLITE_LOCK_MS}")
        connection.execute("PRAGMA cache_size=-32000")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # The writer takes the write lock at once: a read that is upgraded later can find its snapshot outdated.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")

    return engine


def _postgres(parsed: URL) -> Engine:
    engine = create_engine(
        parsed,
        poolclass=NullPool,
        isolation_level="READ COMMITTED",  # whatever the database's own default is
        connect_args={name: value for name, value in _CONNECT.items() if name not in parsed.query},
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: object) -> None:
        connection.execute(_SESSION)
        connection.commit()

    return engine


def reading(engine: Engine) -> Connection:
    """A connection whose transactions see one state of the database each."""
    connection = engine.connect()
    if engine.dialect.name == POSTGRES:
        return connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return connection


def writing(engine: Engine) -> Connection:
    return engine.connect().execution_options(writes=True)


def connect_arguments(engine: Engine) -> dict[str, Any]:
    """What psycopg needs to reach the same database with a connection of its own."""
    arguments: dict[str, Any] = dict(engine.dialect.create_connect_args(engine.url)[1])
    return _CONNECT | arguments


# -- what an error means


def has_collided(problem: DBAPIError) -> bool:
    """Two writes have met and this one was undone: it may be done again at once."""
    return _state_of(problem) in _COLLISIONS


def is_lost(problem: DBAPIError) -> bool:
    """The connection is gone, or could not be made."""
    state = _state_of(problem)
    return problem.connection_invalidated or state in _AWAY or state.startswith("08")


def storage_error(problem: DBAPIError) -> StorageError:
    # Only the driver's own words: SQLAlchemy's text holds the statement and its values.
    said = str(problem.orig).strip().split("\nDETAIL:", 1)[0]  # Postgres' DETAIL quotes values
    state = _state_of(problem)
    if state in _BUSY:
        said = f"{said} (other writes hold what this one needs); try again"
    elif has_collided(problem):
        said = f"{said} (again and again); try again"
    elif "sqlite" in type(problem.orig).__module__:
        said = f"{said}. Is the disk full, or the file read-only?"
    error = StorageError(f"the server's database refused: {said}")
    error.__cause__ = problem
    return error


def _state_of(problem: DBAPIError) -> str:
    return getattr(problem.orig, "sqlstate", None) or ""
