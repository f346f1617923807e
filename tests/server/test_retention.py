"""Old runs go with all that is theirs; what an evaluation, a person or another run still needs stays."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, func, select, update

from evalfleet.server import retention, runs
from evalfleet.server.retention import Retention
from evalfleet.server.schema import chats, events, idempotency, messages, outputs
from evalfleet.server.schema import runs as run_rows
from tests.server.conftest import Api, ScriptedDriver, assert_problem, run_body
from tests.server.test_evaluations import attempt, batch, created, post

SPAN = timedelta(days=30)
TABLES = (chats, run_rows, events, messages, outputs, idempotency)
LONG_AGO = "2020-01-02T03:04:05.000000Z"


async def age(api: Api, *played: dict[str, Any]) -> None:
    """Let these runs have ended long ago, and their chats have been made then."""

    def fn(connection: Connection) -> None:
        ids, of = [run["id"] for run in played], [run["chat_id"] for run in played]
        connection.execute(update(run_rows).where(run_rows.c.id.in_(ids)).values(completed_at=LONG_AGO))
        connection.execute(update(chats).where(chats.c.id.in_(of)).values(created_at=LONG_AGO))

    await api.stack.services.store.write(fn)


async def prune(api: Api, span: timedelta = SPAN) -> int:
    return await Retention(api.stack.services.store, span).make_pass()


async def rows_left(api: Api) -> dict[str, int]:
    def fn(connection: Connection) -> dict[str, int]:
        counts = {table.name: select(func.count()).select_from(table) for table in TABLES}
        return {name: connection.execute(count).scalar_one() for name, count in counts.items()}

    return await api.stack.services.store.read(fn)


async def exists(api: Api, run: dict[str, Any]) -> bool:
    return (await api.http.get(f"/v2/runs/{run['id']}")).status_code == 200


async def create_with(api: Api, key: str, **more: Any) -> httpx.Response:
    return await api.http.post("/v2/runs", json=run_body(api.harness_id, **more), headers={"Idempotency-Key": key})


async def test_an_old_chat_goes_with_all_that_is_its_own(api: Api) -> None:
    first = (await create_with(api, "the-key")).json()
    cursor = (await api.stream(first["id"]))[-1]["cursor"]
    second = await api.play("again", chat_id=first["chat_id"])
    await age(api, first, second)
    assert await prune(api) == 2
    assert set((await rows_left(api)).values()) == {0}
    for path in ("", "/messages", "/outputs", "/usage", "/tree", "/events", f"/events?cursor={cursor}"):
        assert_problem(await api.http.get(f"/v2/runs/{first['id']}{path}"), 404, "not_found")
    streamed = await api.http.get(
        f"/v2/runs/{first['id']}/events", headers={"Accept": "text/event-stream", "Last-Event-ID": cursor}
    )
    assert_problem(streamed, 404, "not_found")
    assert (await api.get("/v2/runs"))["data"] == []
    assert_problem(await create_with(api, "another", chat_id=first["chat_id"]), 404, "not_found", "/chat_id")
    # The key lived as long as what it made: it is a new one now.
    anew = await create_with(api, "the-key")
    assert (anew.status_code, "idempotency-replayed" in anew.headers) == (201, False)
    assert anew.json()["id"] != first["id"]


async def test_what_is_young_stays_and_so_does_its_whole_chat(api: Api) -> None:
    old, young = await api.play(), await api.play()
    continued = await api.play("later", chat_id=old["chat_id"])
    await age(api, old)
    before = await rows_left(api)
    assert await prune(api) == 0
    assert await rows_left(api) == before
    assert [await exists(api, run) for run in (old, young, continued)] == [True, True, True]
    usage = await api.get(f"/v2/runs/{continued['id']}/usage")
    assert usage["total_tokens"] == 30  # of both turns


@pytest.mark.parametrize("ending", ["running", "complete", "cancel"])
async def test_what_an_evaluation_holds_stays_however_the_evaluation_stands(api: Api, ending: str) -> None:
    first = await api.play()
    held = await api.play("more", chat_id=first["chat_id"])
    loose = await api.play()
    evaluation = await created(api, "a")
    assert (await batch(api, evaluation, attempt("a", 0, held))).status_code == 200
    if ending != "running":
        assert (await post(api, evaluation, ending)).status_code == 200
    document = await api.get(f"/v2/evaluations/{evaluation['id']}")
    await age(api, first, held, loose)
    assert await prune(api) == 1
    assert [await exists(api, run) for run in (first, held, loose)] == [True, True, False]
    if ending == "running":  # counting anew finds the usage of the whole chat, as the batch did
        ended = (await post(api, evaluation, "complete")).json()
        assert ended["metrics"] == document["metrics"]
        assert ended["metrics"]["tokens"] == 30
    else:
        assert await api.get(f"/v2/evaluations/{evaluation['id']}") == document
    # The key of an evaluation stays with it.
    assert (await rows_left(api))["idempotency"] == 3


async def test_an_open_run_stays_and_what_its_agent_is_told_with_it(api: Api, driver: ScriptedDriver) -> None:
    go = asyncio.Event()
    echo = driver.script

    async def slow(turn: Any, sink: Any) -> Any:
        if turn.message == "wait":
            await go.wait()
        return await echo(turn, sink)

    driver.script = slow
    old = await api.play()
    going = await api.create("wait", chat_id=old["chat_id"])
    behind = await api.create("last", chat_id=old["chat_id"])
    await age(api, old)
    assert await prune(api, timedelta(0)) == 0
    go.set()
    await api.stream(behind["id"])
    assert [text for _role, text in driver.turns[-1].history if "wait" in text] == ["wait", "1: wait"]
    assert await prune(api, timedelta(0)) == 3  # all have ended by now
    assert not await exists(api, going)


async def test_pages_go_on_where_they_were_although_their_last_row_went(api: Api) -> None:
    played = [await api.play(str(number)) for number in range(6)]
    page = await api.get("/v2/runs", limit=2)
    await age(api, *played[3:5])  # newest first: 5 and 4 are on the page
    assert await prune(api) == 2
    rest = await api.get("/v2/runs", limit=100, cursor=page["page"]["next_cursor"])
    assert [run["id"] for run in rest["data"]] == [run["id"] for run in reversed(played[:3])]


async def test_a_stream_of_another_servers_run_that_goes_meanwhile_ends(api: Api) -> None:
    run = await api.play()
    await age(api, run)
    assert await prune(api) == 1
    piece = await api.stack.services.store.read(lambda connection: runs.frames_after(connection, run["id"], 1))
    assert (piece.frames, piece.over) == ([], True)


async def test_a_pass_is_many_small_writes_and_writes_go_on_in_between(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "LOOKED_AT", 4)
    monkeypatch.setattr(retention, "AT_A_TIME", 20)
    played = list(await asyncio.gather(*(api.play(str(number)) for number in range(10))))
    await age(api, *played)
    sizes: list[int] = []
    once = retention.prune

    def counting(connection: Connection, **more: Any) -> int:
        sizes.append(once(connection, **more))
        return sizes[-1]

    monkeypatch.setattr(retention, "prune", counting)
    assert await prune(api) == 10
    assert sum(sizes) == 10
    assert max(sizes) == 2  # ten events each
    assert set((await rows_left(api)).values()) == {0}


async def test_passes_batches_and_new_turns_at_once_leave_nothing_without_what_it_needs(api: Api) -> None:
    """Two servers prune, while one client records old runs and another one continues their chats."""
    played = list(await asyncio.gather(*(api.play(str(number)) for number in range(60))))
    await age(api, *played)
    evaluation = await created(api, "a", 60)
    recorded = [batch(api, evaluation, attempt("a", number, run)) for number, run in enumerate(played)]
    continued = [create_with(api, f"more-{run['id']}", chat_id=run["chat_id"]) for run in played]
    work = [act for pair in zip(recorded, continued, strict=True) for act in pair]
    answers, _first, _second = await asyncio.gather(asyncio.gather(*work), prune(api), prune(api))
    for number, run in enumerate(played):
        batched, turn = answers[2 * number], answers[2 * number + 1]
        assert (batched.status_code, turn.status_code) in {(200, 201), (200, 404), (422, 404), (422, 201)}
        there = await exists(api, run)
        assert there or (batched.status_code, turn.status_code) == (422, 404)
        if turn.status_code == 201:
            await api.stream(turn.json()["id"])
            assert (await api.get(f"/v2/runs/{turn.json()['id']}"))["status"] == "succeeded"
    tokens = (await api.get(f"/v2/evaluations/{evaluation['id']}"))["metrics"]
    assert tokens is None or tokens["tokens"] >= 15 * sum(answer.status_code == 200 for answer in answers[::2])


async def test_a_server_that_is_told_to_prunes_by_itself(api: Api) -> None:
    run = await api.play()
    await age(api, run)
    keeping = asyncio.create_task(Retention(api.stack.services.store, SPAN).keep_up())
    try:
        async with asyncio.timeout(20):
            while await exists(api, run):  # noqa: ASYNC110 - the wire is where it shows
                await asyncio.sleep(0.01)
    finally:
        keeping.cancel()
