"""The store on Postgres: writers side by side, what is done again, and what is not; the schema's migrations."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, Engine, insert, select, text, update

from evalfleet.errors import StorageError, UnfitHost
from evalfleet.server import engines, lifecycle, runs
from evalfleet.server import store as store_module
from evalfleet.server.idempotency import Answer, Key, once
from evalfleet.server.journal import Message, append
from evalfleet.server.migrate import prepare, upgrade
from evalfleet.server.process import open_stack
from evalfleet.server.schema import SCHEMA_VERSION, events, harnesses, metadata
from evalfleet.server.store import WRITERS, Store
from tests.integration.postgres import emptied, end_connections, own_schema
from tests.server.test_store import named, names, shape

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def schema(postgres_url: str) -> Iterator[str]:
    with own_schema(postgres_url) as url:
        engine = engines.make_engine(url)
        prepare(engine)
        engine.dispose()
        yield url


@pytest.fixture
async def store(schema: str) -> AsyncIterator[Store]:
    emptied(schema)
    opened = Store(schema)
    opened.open()
    yield opened
    await opened.aclose()


@pytest.fixture
def empty(postgres_url: str) -> Iterator[Engine]:
    """A schema without tables."""
    with own_schema(postgres_url) as url:
        engine = engines.make_engine(url)
        yield engine
        engine.dispose()


def end_backend(connection: Connection) -> None:
    """The database ends this connection under us, as a restart does."""
    connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))


async def test_writes_run_side_by_side(store: Store) -> None:
    together = threading.Barrier(WRITERS, timeout=20)

    def meet(connection: Connection) -> int:
        connection.execute(select(1))
        return together.wait()  # passes only when as many transactions are open

    assert sorted(await asyncio.gather(*(store.write(meet) for _ in range(WRITERS)))) == list(range(WRITERS))


async def test_a_write_that_fails_undoes_itself_and_nothing_else(store: Store) -> None:
    def write(number: int) -> asyncio.Task[None]:
        def fn(connection: Connection) -> None:
            connection.execute(insert(harnesses), named(f"{number:02}"))
            if number % 2:
                raise KeyError(number)

        return asyncio.ensure_future(store.write(fn))

    results = await asyncio.gather(*(write(number) for number in range(40)), return_exceptions=True)
    assert sum(isinstance(result, KeyError) for result in results) == 20
    assert await names(store) == [f"{number:02}" for number in range(0, 40, 2)]


async def test_what_the_database_refuses_is_a_storage_error_without_our_values(store: Store) -> None:
    def twice(connection: Connection) -> None:
        connection.execute(insert(harnesses), [named("a-secret-name"), named("a-secret-name")])

    with pytest.raises(StorageError) as caught:
        await store.write(twice)
    assert "a-secret-name" not in caught.value.message
    assert "duplicate key" in caught.value.message


async def test_two_writes_that_lock_each_other_out_are_both_done(store: Store) -> None:
    await store.write(lambda connection: connection.execute(insert(harnesses), [named("a"), named("b")]).rowcount)
    both_hold_one = threading.Barrier(2, timeout=20)
    begun: list[str] = []

    def rename(first: str, second: str) -> asyncio.Task[None]:
        def fn(connection: Connection) -> None:
            begun.append(first)
            for place, name in enumerate((first, second)):
                where = harnesses.c.id == f"h_{name}"
                connection.execute(update(harnesses).where(where).values(created_at=harnesses.c.created_at + first))
                if place == 0 and len(begun) <= 2:
                    both_hold_one.wait()  # now each wants what the other one has

        return asyncio.ensure_future(store.write(fn))

    await asyncio.gather(rename("a", "b"), rename("b", "a"))
    assert len(begun) >= 3  # Postgres undid one of the two, and it was done again; that may meet the other once more
    times = await store.read(lambda connection: list(connection.execute(select(harnesses.c.created_at)).scalars()))
    assert [sorted(time[-2:]) for time in times] == [["a", "b"]] * 2


async def test_a_write_that_collides_for_ever_ends_with_a_sentence(store: Store) -> None:
    tried = 0

    def fn(connection: Connection) -> None:
        nonlocal tried
        tried += 1
        connection.execute(text("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$"))

    with pytest.raises(StorageError, match="again and again"):
        await store.write(fn)
    assert tried == 8


async def test_a_write_whose_connection_dies_before_the_commit_is_done_again(store: Store) -> None:
    tried = 0

    def fn(connection: Connection) -> None:
        nonlocal tried
        tried += 1
        connection.execute(insert(harnesses), named("once"))
        if tried == 1:
            end_backend(connection)

    await store.write(fn)
    assert tried == 2
    assert await names(store) == ["once"]


async def test_a_write_whose_connection_dies_at_the_commit_is_not_done_again(store: Store) -> None:
    tried = 0

    def fn(connection: Connection) -> None:
        nonlocal tried
        tried += 1
        connection.execute(insert(harnesses), named("perhaps"))
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with store.engine.connect() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})

    with pytest.raises(StorageError):
        await store.write(fn)
    assert tried == 1
    await store.write(lambda connection: None)  # the next one has a connection again
    assert await names(store) == []


async def test_a_database_that_is_away_fails_everybody_who_waits_within_one_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_module, "PATIENCE", 0.5)
    away = Store("postgresql://127.0.0.1:9/nothing")
    away.open()
    async with asyncio.timeout(20):
        ended = await asyncio.gather(
            *(away.write(lambda connection: None) for _ in range(500)),
            *(away.read(lambda connection: None) for _ in range(500)),
            return_exceptions=True,
        )
    assert {type(problem) for problem in ended} == {StorageError}
    await away.aclose()


async def test_a_reader_whose_connection_died_reads_all_the_same(schema: str, store: Store) -> None:
    assert await names(store) == []
    await asyncio.to_thread(end_connections, schema)
    assert await names(store) == []


async def test_a_read_sees_one_state_whatever_is_written_meanwhile(store: Store) -> None:
    loop = asyncio.get_running_loop()

    def add(connection: Connection) -> None:
        connection.execute(insert(harnesses), named("new"))

    def twice(connection: Connection) -> list[int]:
        seen = [len(connection.execute(select(harnesses.c.id)).all())]
        asyncio.run_coroutine_threadsafe(store.write(add), loop).result(20)
        return [*seen, len(connection.execute(select(harnesses.c.id)).all())]

    assert await store.read(twice) == [0, 0]
    assert await names(store) == ["new"]


async def test_whoever_waits_for_a_key_acts_once_and_gets_the_same_answer_e01(schema: str, store: Store) -> None:
    other = Store(schema)  # as of a second process
    other.open()
    acted: list[int] = []

    def act() -> Answer:
        acted.append(1)
        return Answer(201, b'{"made":1}', "/v2/things/1")

    key = Key("main", "POST /v2/things", "k", "f")
    answers = await asyncio.gather(
        *(one.write(lambda connection: once(connection, key, act)) for _ in range(10) for one in (store, other))
    )
    await other.aclose()
    assert len(acted) == 1
    assert {(answer.status, answer.body, answer.location) for answer in answers} == {
        (201, b'{"made":1}', "/v2/things/1")
    }
    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 19


async def test_whoever_waits_for_a_key_that_is_given_up_gets_it_e02(store: Store) -> None:
    held = threading.Event()
    waits = threading.Event()
    key = Key("main", "POST /v2/things", "k", "f")

    def fails() -> Answer:
        held.set()
        assert waits.wait(20)
        raise KeyError("refused")

    first = asyncio.ensure_future(store.write(lambda connection: once(connection, key, fails)))
    await asyncio.to_thread(held.wait, 20)
    second = asyncio.ensure_future(store.write(lambda connection: once(connection, key, lambda: Answer(200, b"mine"))))
    while not await store.read(somebody_waits):  # noqa: ASYNC110 - the database tells nobody who waits
        await asyncio.sleep(0.01)
    waits.set()
    with pytest.raises(KeyError):
        await first
    assert (await second).body == b"mine"


def somebody_waits(connection: Connection) -> bool:
    return connection.execute(text("SELECT 1 FROM pg_locks WHERE NOT granted")).first() is not None


def new_run() -> runs.NewRun:
    words = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    return runs.NewRun("main", "h_0", "3" * 40, None, words, {})


async def test_a_journal_has_no_gaps_whoever_writes_it(schema: str, store: Store) -> None:
    _answer, run = await store.write(lambda connection: runs.create(connection, new_run(), owner="one"))
    other = Store(schema)
    other.open()

    def say(number: int) -> asyncio.Task[None]:
        def fn(connection: Connection) -> None:
            append(connection, run.run_id, [Message("assistant", f'["{number}"]', "2026")] * 3)
            if number % 3 == 0:
                raise KeyError(number)  # what is undone leaves no gap

        return asyncio.ensure_future((store if number % 2 else other).write(fn))

    await asyncio.gather(*(say(number) for number in range(48)), return_exceptions=True)
    await other.aclose()
    rows = await store.read(
        lambda connection: list(connection.execute(select(events.c.sequence).order_by(events.c.sequence)).scalars())
    )
    assert rows == list(range(1, 2 + 32 * 3 + 1))


async def test_nothing_is_added_to_a_run_that_has_ended(store: Store) -> None:
    _answer, run = await store.write(lambda connection: runs.create(connection, new_run(), owner="one"))
    await store.write(lambda connection: lifecycle.lose(connection, [run.run_id]))
    with pytest.raises(StorageError, match="has ended meanwhile"):
        await store.write(lambda connection: append(connection, run.run_id, [Message("assistant", "[]", "2026")]))


# -- migrations


def test_a_fresh_database_and_a_migrated_one_have_the_same_shape(empty: Engine, postgres_url: str) -> None:
    prepare(empty)
    with own_schema(postgres_url) as url:
        migrated = engines.make_engine(url)
        upgrade(migrated, None)
        assert shape(empty) == shape(migrated)
        migrated.dispose()
    assert set(shape(empty)) == set(metadata.tables) | {"alembic_version"}


@pytest.mark.parametrize("revision", ["0001", "0002", "0003", "0004", "0005"])
def test_an_earlier_database_is_brought_up_to_date_with_what_is_in_it(
    empty: Engine, postgres_url: str, revision: str
) -> None:
    upgrade(empty, None, revision)
    with empty.begin() as connection:
        connection.execute(insert(harnesses), named("kept"))
    prepare(empty)
    with own_schema(postgres_url) as url:
        fresh = engines.make_engine(url)
        prepare(fresh)
        assert shape(empty) == shape(fresh)
        fresh.dispose()
    with empty.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == SCHEMA_VERSION
        assert connection.execute(select(harnesses.c.name)).scalar() == "kept"


def test_servers_that_start_together_prepare_one_after_the_other(empty: Engine) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _number: prepare(empty), range(4)))
    with empty.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM installation")).scalar() == 1


async def test_a_newer_database_is_refused(empty: Engine) -> None:
    prepare(empty)
    with empty.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(UnfitHost, match="9999"):
        await open_stack(empty.url.render_as_string(hide_password=False), [], accounts={})


async def test_a_database_that_does_not_answer_is_named_without_its_password() -> None:
    with pytest.raises(UnfitHost) as caught:
        await open_stack("postgresql://somebody:a-secret@127.0.0.1:9/nothing", [], accounts={})
    assert "127.0.0.1:9" in caught.value.message
    assert "a-secret" not in caught.value.message
