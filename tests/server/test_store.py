"""The store: what is written together, what fails alone, and in which order the world hears of it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, MetaData, insert, inspect, select, text

from evalfleet.errors import SettingError, StorageError, UnfitHost
from evalfleet.server.migrate import prepare, upgrade
from evalfleet.server.schema import SCHEMA_VERSION, harnesses, installation, metadata
from evalfleet.server.store import Store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store(f"sqlite:///{tmp_path / 'a.sqlite3'}")
    prepare(opened.engine)
    opened.open()
    yield opened
    await opened.aclose()


def named(name: str) -> dict[str, str]:
    return {"id": f"h_{name}", "name": name, "created_at": "2026-01-01T00:00:00.000000Z"}


async def names(store: Store) -> list[str]:
    return await store.read(
        lambda connection: list(connection.execute(select(harnesses.c.name).order_by(harnesses.c.name)).scalars())
    )


async def test_writes_that_wait_share_a_commit_and_are_heard_of_in_order(store: Store) -> None:
    heard: list[int] = []

    def add(number: int) -> asyncio.Future[int]:
        def fn(connection: Connection) -> int:
            connection.execute(insert(harnesses), named(f"{number:03}"))
            return number

        return asyncio.ensure_future(store.write(fn, on_commit=heard.append))

    before = store.commits
    assert await asyncio.gather(*(add(number) for number in range(200))) == list(range(200))
    assert heard == list(range(200))
    assert store.commits - before < 200
    assert len(await names(store)) == 200


async def test_a_write_that_fails_undoes_itself_and_nothing_else(store: Store) -> None:
    def good(name: str) -> asyncio.Future[None]:
        def fn(connection: Connection) -> None:
            connection.execute(insert(harnesses), named(name))

        return asyncio.ensure_future(store.write(fn))

    def bad(name: str) -> asyncio.Future[None]:
        def fn(connection: Connection) -> None:
            connection.execute(insert(harnesses), named(name))
            raise KeyError(name)

        return asyncio.ensure_future(store.write(fn))

    results = await asyncio.gather(
        *(good(f"good-{number}") if number % 2 else bad(f"bad-{number}") for number in range(40)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, KeyError) for result in results) == 20
    assert all(name.startswith("good-") for name in await names(store))
    assert len(await names(store)) == 20
    with pytest.raises(KeyError):  # alone in its transaction
        await bad("alone")
    assert "alone" not in await names(store)


async def test_what_the_database_refuses_is_a_storage_error_without_our_values(store: Store) -> None:
    def twice(connection: Connection) -> None:
        connection.execute(insert(harnesses), [named("a-secret-name"), named("a-secret-name")])

    with pytest.raises(StorageError) as caught:
        await store.write(twice)
    assert "a-secret-name" not in caught.value.message


async def test_whoever_left_does_not_undo_the_write(store: Store) -> None:
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(connection: Connection) -> None:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(20)
        connection.execute(insert(harnesses), named("kept"))

    task = asyncio.create_task(store.write(slow))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()
    await store.write(lambda connection: None)
    assert await names(store) == ["kept"]


async def test_writes_are_durable_when_they_return(store: Store, tmp_path: Path) -> None:
    def add(connection: Connection) -> None:
        connection.execute(insert(harnesses), named("durable"))

    await store.write(add)
    with sqlite3.connect(tmp_path / "a.sqlite3") as other:
        assert other.execute("SELECT name FROM harnesses").fetchall() == [("durable",)]
    other.close()
    settings = await store.read(
        lambda connection: [
            connection.execute(text(f"PRAGMA {name}")).scalar() for name in ("journal_mode", "synchronous")
        ]
    )
    assert settings == ["wal", 2]  # 2 = FULL


async def test_the_file_can_be_copied_while_it_is_written(store: Store, tmp_path: Path) -> None:
    """As docs/server.md says it: SQLite's own backup. The copy is whole, and has all that was acknowledged before."""
    writing = asyncio.create_task(_write_names(store, 400))
    while len(before := await names(store)) < 20:
        assert not writing.done()
    copy = tmp_path / "copy.sqlite3"
    await asyncio.to_thread(_back_up, tmp_path / "a.sqlite3", copy)
    await writing
    with contextlib.closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        copied = {name for (name,) in connection.execute("SELECT name FROM harnesses")}
    assert set(before) <= copied <= set(await names(store))


async def _write_names(store: Store, count: int) -> None:
    for number in range(count):
        await store.write(partial(_insert, name=f"n{number}"))


def _insert(connection: Connection, name: str) -> None:
    connection.execute(insert(harnesses), named(name))


def _back_up(file: Path, copy: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as source, contextlib.closing(sqlite3.connect(copy)) as target:
        source.backup(target, pages=1)


async def test_a_closed_store_says_so(store: Store) -> None:
    await store.aclose()
    with pytest.raises(StorageError, match="shutting down"):
        await store.write(lambda connection: None)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://h/d", "nonsense"])
def test_a_database_that_cannot_be_is_named(url: str) -> None:
    with pytest.raises(SettingError, match="--database"):
        Store(url)


# -- migrations


def shape(engine: Engine) -> dict[str, object]:
    """Columns, keys, unique constraints and indexes of every table."""
    seen = inspect(engine)
    return {
        table: (
            [(column["name"], str(column["type"]), column["nullable"]) for column in seen.get_columns(table)],
            seen.get_pk_constraint(table)["constrained_columns"],
            sorted(str(constraint) for constraint in seen.get_unique_constraints(table)),
            sorted(str(index) for index in seen.get_indexes(table)),
        )
        for table in seen.get_table_names()
    }


def test_a_fresh_database_and_a_migrated_one_have_the_same_shape(tmp_path: Path) -> None:
    fresh, migrated = (Store(f"sqlite:///{tmp_path / name}") for name in ("fresh", "migrated"))
    prepare(fresh.engine)
    upgrade(migrated.engine, None)
    assert shape(fresh.engine) == shape(migrated.engine)
    assert set(shape(fresh.engine)) == set(metadata.tables) | {"alembic_version"}
    for store in (fresh, migrated):
        with store.engine.connect() as connection:
            assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == SCHEMA_VERSION
            assert connection.execute(select(installation.c.id)).scalar_one()
        store.engine.dispose()


@pytest.mark.parametrize("revision", ["0001", "0002", "0003", "0004", "0005"])
def test_an_earlier_database_is_brought_up_to_date_with_what_is_in_it(tmp_path: Path, revision: str) -> None:
    old, fresh = (Store(f"sqlite:///{tmp_path / name}") for name in ("old", "fresh"))
    upgrade(old.engine, None, revision)
    with old.engine.begin() as connection:
        connection.execute(insert(harnesses), named("kept"))
    prepare(old.engine)
    prepare(fresh.engine)
    assert shape(old.engine) == shape(fresh.engine)
    with old.engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == SCHEMA_VERSION
        assert connection.execute(select(harnesses.c.name)).scalar() == "kept"
    for store in (old, fresh):
        store.engine.dispose()


def test_what_was_spent_before_amounts_had_currencies_is_kept(tmp_path: Path) -> None:
    """Revision 0006, there and back."""
    store = Store(f"sqlite:///{tmp_path / 'old'}")
    upgrade(store.engine, None, "0005")
    old = MetaData()
    old.reflect(store.engine)

    def row(table: str, **values: object) -> None:
        columns = old.tables[table].columns
        blank = {c.name: 0 if "INT" in str(c.type) else "" for c in columns if not c.nullable}
        with store.engine.begin() as connection:
            connection.execute(insert(old.tables[table]), blank | values)

    row("runs", id="judged", judge_amount="0.25")
    row("runs", id="not judged")
    row("evaluations", id="paid", amount="1.5", currency="EUR")
    row("evaluations", id="free", amount="0", currency="USD")
    prepare(store.engine)
    with store.engine.connect() as connection:
        judged = {row[0]: row[1] for row in connection.execute(text("SELECT id, judge_amounts FROM runs"))}
        paid = {row[0]: row[1] for row in connection.execute(text("SELECT id, amounts || judge FROM evaluations"))}
    assert judged == {"judged": '{"USD": "0.25"}', "not judged": None}
    assert paid == {"paid": '{"EUR": "1.5"}{}', "free": "{}{}"}
    store.engine.dispose()


def test_a_prepared_database_is_left_as_it_is(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'a'}")
    prepare(store.engine)
    with store.engine.connect() as connection:
        first = connection.execute(select(installation.c.id)).scalar_one()
    prepare(store.engine)
    with store.engine.connect() as connection:
        assert connection.execute(select(installation.c.id)).scalar_one() == first


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'a'}")
    prepare(store.engine)
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(UnfitHost, match="9999"):
        prepare(store.engine)
