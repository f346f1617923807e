"""Pruning on Postgres meets other writes: what is locked by them is passed over, what they decided stays true."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert, select, update

from evalfleet.server import engines, recording, runs
from evalfleet.server.idempotency import Answer, Key, once
from evalfleet.server.migrate import prepare
from evalfleet.server.retention import look, prune
from evalfleet.server.schema import chats, evaluation_chats
from evalfleet.server.schema import runs as run_rows
from evalfleet.server.store import Store
from tests.integration.postgres import connect, emptied, own_schema
from tests.integration.test_postgres_store import new_run, somebody_waits

pytestmark = pytest.mark.integration

NOW = "2026-01-01T00:00:00.000000Z"
LONG_AGO = "2020-01-01T00:00:00.000000Z"


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
async def old(store: Store) -> runs.Created:
    """A run that has ended long ago, made under the key "k"."""

    def fn(connection: Connection) -> runs.Created:
        made: list[runs.Created] = []

        def act() -> Answer:
            answer, created = runs.create(connection, new_run(), owner="nobody")
            made.append(created)
            return answer

        once(connection, Key("main", "POST /v2/runs", "k", "f"), act)
        connection.execute(update(run_rows).values(status="succeeded", completed_at=LONG_AGO))
        connection.execute(update(chats).values(created_at=LONG_AGO))
        return made[0]

    return await store.write(fn)


def record(connection: Connection, run: runs.Created) -> list[Any]:
    """What a batch does before it looks whether the run is evidence, and after."""
    found = recording.runs_of(connection, "main", [run.run_id])
    if found:
        connection.execute(insert(evaluation_chats).values(evaluation_id="eval_1", chat_id=run.chat_id))
    return list(found)


async def test_a_run_that_a_batch_has_looked_at_stays(schema: str, store: Store, old: runs.Created) -> None:
    engine = engines.make_engine(schema)
    with engine.connect() as batch:
        assert record(batch, old) == [old.run_id]
        assert await store.write(lambda connection: prune(connection, [old.chat_id], NOW)) == 0
        batch.commit()
    assert await store.write(lambda connection: prune(connection, [old.chat_id], NOW)) == 0  # it is held now
    assert (await store.read(lambda connection: look(connection, "", NOW))).going == []
    engine.dispose()


async def test_a_batch_that_comes_while_its_run_goes_finds_none(schema: str, store: Store, old: runs.Created) -> None:
    engine = engines.make_engine(schema)
    with engine.connect() as pruning:
        assert prune(pruning, [old.chat_id], NOW) == 1
        batch = asyncio.ensure_future(store.write(lambda connection: record(connection, old)))
        while not await store.read(somebody_waits):  # noqa: ASYNC110 - the database tells nobody who waits
            await asyncio.sleep(0.01)
        pruning.commit()
        assert await batch == []
    engine.dispose()


async def test_a_chat_that_a_new_turn_is_being_added_to_stays(schema: str, store: Store, old: runs.Created) -> None:
    engine = engines.make_engine(schema)
    with engine.connect() as client:
        client.execute(update(chats).where(chats.c.id == old.chat_id).values(turns=2))
        assert await store.write(lambda connection: prune(connection, [old.chat_id], NOW)) == 0
        client.rollback()
    assert await store.write(lambda connection: prune(connection, [old.chat_id], NOW)) == 1
    engine.dispose()


async def test_a_key_that_goes_between_its_claim_and_its_look_is_claimed_anew(
    schema: str, store: Store, old: runs.Created
) -> None:
    """Else the second effect would stand without its key, and a third one would follow."""
    key = Key("main", "POST /v2/runs", "k", "f")
    gone: list[str] = []

    def after(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        if not gone and statement.startswith("INSERT INTO idempotency"):
            gone.append(statement)
            with connect(schema) as other:
                other.execute("DELETE FROM idempotency")

    event.listen(store.engine, "after_cursor_execute", after)
    acted: list[int] = []

    def act() -> Answer:
        acted.append(1)
        return Answer(201, b"{}", "/v2/runs/new")

    first = await store.write(lambda connection: once(connection, key, act))
    second = await store.write(lambda connection: once(connection, key, act))
    assert (gone != [], len(acted), first.replayed, second.replayed) == (True, 1, False, True)
    assert await store.read(lambda connection: connection.execute(select(chats.c.id)).scalars().all()) == [old.chat_id]
