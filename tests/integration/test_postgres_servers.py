"""Two servers on one database: one sees what the other writes, and together they keep every promise of one (E01, E09).

Both run in this process, each with a store, a runner and an incarnation of its own; `test_postgres_kills.py` has real
processes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select, update

from evalfleet.errors import StorageError
from evalfleet.server import neighbours, streams
from evalfleet.server import runs as stored
from evalfleet.server.driving import Call, Ended, Sink, Turn
from evalfleet.server.journal import Appended
from evalfleet.server.lifecycle import request_cancel
from evalfleet.server.schema import runs, servers
from evalfleet.server.servers import end_lost_runs
from evalfleet.server.spending import JudgeSpend
from evalfleet.server.streams import PIECE
from tests.integration.postgres import emptied, end_connections, own_schema
from tests.integration.test_postgres_store import new_run
from tests.server.conftest import TIMEOUT, Api, ScriptedDriver, assert_problem, echo, run_body, serving, types_of
from tests.server.test_races import assert_counted, attempt, evaluation_body, recount

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def schema(postgres_url: str) -> Iterator[str]:
    with own_schema(postgres_url) as url:
        yield url


class Gated(ScriptedDriver):
    """Its agent says "begun", waits to be let go, and echoes."""

    def __init__(self) -> None:
        super().__init__(self._play)
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    async def _play(self, turn: Turn, sink: Sink) -> Ended:
        await sink.answer("begun")
        self.begun.set()
        await self.go.wait()
        return await echo(turn, sink)


@dataclass
class Pair:
    one: Api
    two: Api
    gate_one: Gated
    gate_two: Gated


@pytest.fixture
async def pair(schema: str, tmp_path: Path) -> AsyncIterator[Pair]:
    emptied(schema)
    gates = Gated(), Gated()
    folders = tmp_path / "one", tmp_path / "two"
    for folder in folders:
        folder.mkdir()
    async with (
        serving(folders[0], gates[0], database=schema) as one,
        serving(folders[1], gates[1], database=schema) as two,
    ):
        assert one.harness_id == two.harness_id
        yield Pair(one, two, *gates)


async def begun(api: Api, gate: Gated, **more: Any) -> dict[str, Any]:
    """A run of which the agent is at work and has said something."""
    run = await api.create(**more)
    await asyncio.wait_for(gate.begun.wait(), TIMEOUT)
    return run


async def watch(api: Api, run_id: str, wanted: int) -> tuple[asyncio.Task[list[dict[str, Any]]], asyncio.Event]:
    """A stream in a task of its own, and an event for when it has had that many."""
    there = asyncio.Event()

    async def read() -> list[dict[str, Any]]:
        seen = []
        headers = {"Accept": "text/event-stream"}
        async with api.http.stream("GET", f"/v2/runs/{run_id}/events", headers=headers) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    seen.append(json.loads(line.removeprefix("data: ")))
                    if len(seen) >= wanted:
                        there.set()
        return seen

    return asyncio.create_task(read()), there


def states(events: list[dict[str, Any]]) -> list[str]:
    return [event["data"]["to"] for event in events if event["type"] == "run.status_changed"]


# -- events


async def test_a_stream_at_one_server_shows_what_another_one_plays(pair: Pair) -> None:
    run = await begun(pair.one, pair.gate_one)
    stream, there = await watch(pair.two, run["id"], 4)  # created, the user's message, running, "begun"
    await asyncio.wait_for(there.wait(), TIMEOUT)
    pair.gate_one.go.set()
    # Nothing polls: a stream that was not told would say nothing before its heartbeat, after 15 s.
    events = await asyncio.wait_for(stream, 10)
    assert states(events) == ["running", "succeeded"]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert events == (await pair.one.get(f"/v2/runs/{run['id']}/events"))["data"]
    assert events == await pair.two.stream(run["id"])


async def test_a_long_journal_of_another_server_comes_whole(pair: Pair) -> None:
    calls = 2 * PIECE + 100

    async def talk(turn: Turn, sink: Sink) -> Ended:
        for number in range(calls):
            await sink.tool_calls([Call(str(number), "t", {})])
        pair.gate_one.begun.set()
        await pair.gate_one.go.wait()
        return Ended()

    pair.gate_one.script = talk
    run = await begun(pair.one, pair.gate_one)
    streams = [await watch(pair.two, run["id"], calls) for _ in range(3)]
    for _stream, there in streams:
        await asyncio.wait_for(there.wait(), TIMEOUT)
    pair.gate_one.go.set()
    for stream, _there in streams:
        events = await asyncio.wait_for(stream, 10)
        assert [event["sequence"] for event in events] == list(range(1, calls + 5))


async def test_a_server_that_was_deaf_has_lost_nothing(
    pair: Pair, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "AGAIN", 0.2)
    run = await begun(pair.one, pair.gate_one)
    stream, there = await watch(pair.two, run["id"], 4)
    await asyncio.wait_for(there.wait(), TIMEOUT)

    await asyncio.to_thread(end_connections, schema, "query LIKE 'LISTEN%'")
    pair.gate_one.go.set()  # the run goes on and ends while nobody listens
    events = await asyncio.wait_for(stream, 10)
    assert states(events) == ["running", "succeeded"]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))


async def test_a_server_that_was_deaf_and_then_could_not_read_catches_up_later(
    pair: Pair, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database comes back for its ear first: what it did not hear it still does not know."""
    monkeypatch.setattr(neighbours, "AGAIN", 0.2)
    run = await begun(pair.one, pair.gate_one)
    stream, there = await watch(pair.two, run["id"], 4)
    await asyncio.wait_for(there.wait(), TIMEOUT)
    keeper, heard = pair.two.stack.keeper, pair.two.stack.services.streams.heard
    look, failed, over = keeper._look_at, asyncio.Event(), asyncio.Event()

    async def refused(run_ids: Sequence[str]) -> None:
        if run_ids and not failed.is_set():
            failed.set()
            raise StorageError("the database is not there yet")
        await look(run_ids)

    def deaf(run_id: str, last: int, *, over_there: bool) -> None:
        if over.is_set():
            heard(run_id, last, over=over_there)

    monkeypatch.setattr(keeper, "_look_at", refused)
    monkeypatch.setattr(
        pair.two.stack.services.streams, "heard", lambda run_id, last, *, over: deaf(run_id, last, over_there=over)
    )
    await asyncio.to_thread(end_connections, schema, "query LIKE 'LISTEN%'")
    pair.gate_one.go.set()
    await asyncio.wait_for(failed.wait(), TIMEOUT)
    await pair.one.stream(run["id"])
    over.set()  # from now on it would hear, and there is nothing more to be heard
    assert states(await asyncio.wait_for(stream, 12)) == ["running", "succeeded"]


async def test_a_stream_whose_servers_notes_are_all_lost_reads_the_store_at_each_sign_of_life(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT", 0.3)
    monkeypatch.setattr(pair.two.stack.services.streams, "heard", lambda *_, **__: None)
    run = await begun(pair.one, pair.gate_one)
    stream, there = await watch(pair.two, run["id"], 4)
    await asyncio.wait_for(there.wait(), TIMEOUT)
    pair.gate_one.go.set()
    assert states(await asyncio.wait_for(stream, 10)) == ["running", "succeeded"]


async def test_many_streams_of_many_runs_over_both_servers_end_with_the_same_events(pair: Pair) -> None:
    pair.gate_one.go.set()
    pair.gate_two.go.set()
    apis = [pair.one, pair.two]

    async def one(number: int) -> None:
        run = await apis[number % 2].create(str(number))
        here, there = await asyncio.gather(*(api.stream(run["id"]) for api in apis))
        assert here == there
        assert types_of(here)[:2] == ["run.created", "message.created"]
        assert states(here) == ["running", "succeeded"]

    await asyncio.gather(*(one(number) for number in range(60)))
    for api in apis:
        assert len(api.stack.services.streams) == 0
        assert list(api.stack.services.streams.watched()) == []


# -- runs


async def test_a_run_is_played_by_the_server_that_made_it_and_by_no_other(pair: Pair) -> None:
    pair.gate_one.go.set()
    pair.gate_two.go.set()
    headers = {"Idempotency-Key": "the-same-at-both"}
    body = run_body(pair.one.harness_id)
    answers = await asyncio.gather(
        *(api.http.post("/v2/runs", json=body, headers=headers) for _ in range(16) for api in (pair.one, pair.two))
    )
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1
    await pair.one.stream(answers[0].json()["id"])
    assert len(pair.gate_one.turns) + len(pair.gate_two.turns) == 1


async def test_a_running_run_is_cancelled_from_the_other_server(pair: Pair) -> None:
    run = await begun(pair.one, pair.gate_one)
    answer = await pair.two.http.post(f"/v2/runs/{run['id']}/cancel")
    assert answer.json()["status"] == "cancelling"
    assert states(await asyncio.wait_for(pair.two.stream(run["id"]), 10)) == ["running", "cancelling", "cancelled"]
    assert pair.gate_one.cancelled == 1
    again = await pair.two.http.post(f"/v2/runs/{run['id']}/cancel")
    assert again.json()["status"] == "cancelled"


async def test_a_cancel_that_its_server_did_not_live_to_tell_is_heard_of_all_the_same(pair: Pair) -> None:
    run = await begun(pair.one, pair.gate_one)
    # As of a server that is killed between its commit and its note.
    await pair.two.stack.services.store.write(lambda connection: request_cancel(connection, "main", run["id"]))
    assert states(await asyncio.wait_for(pair.one.stream(run["id"]), TIMEOUT))[-1] == "cancelled"
    assert pair.gate_one.cancelled == 1


async def test_the_runs_of_a_chat_follow_one_another_over_both_servers(pair: Pair) -> None:
    first = await begun(pair.one, pair.gate_one)
    second = await pair.two.create("and then?", chat_id=first["chat_id"])
    third = await pair.one.create("and last?", chat_id=first["chat_id"])
    stream, _there = await watch(pair.two, third["id"], 1)
    async with asyncio.timeout(TIMEOUT):
        while not pair.two.stack.services.runner.waited_for():  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    for run in (second, third):
        assert (await pair.one.get(f"/v2/runs/{run['id']}"))["status"] == "queued"
    assert pair.two.stack.services.runner.active == 0  # who waits takes no agent's place
    pair.gate_one.go.set()
    pair.gate_two.go.set()
    assert states(await asyncio.wait_for(stream, 10)) == ["running", "succeeded"]
    assert pair.gate_two.turns[0].history == (("user", "hello"), ("assistant", "0: hello"))
    last = pair.gate_one.turns[1]
    assert (last.turn, last.message, len(last.history)) == (2, "and last?", 4)


async def test_a_run_that_waits_for_another_servers_run_can_be_cancelled_and_its_chat_goes_on(pair: Pair) -> None:
    first = await begun(pair.one, pair.gate_one)
    second = await pair.two.create("never", chat_id=first["chat_id"])
    third = await pair.two.create("after all", chat_id=first["chat_id"])
    async with asyncio.timeout(TIMEOUT):
        while not pair.two.stack.services.runner.waited_for():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    answer = await pair.one.http.post(f"/v2/runs/{second['id']}/cancel")
    assert answer.json()["status"] == "cancelled"
    pair.gate_two.go.set()
    pair.gate_one.go.set()
    assert states(await asyncio.wait_for(pair.one.stream(third["id"]), 10)) == ["running", "succeeded"]
    assert [turn.message for turn in pair.gate_two.turns] == ["after all"]
    assert states(await pair.one.stream(second["id"])) == ["cancelling", "cancelled"]


async def test_a_server_that_stops_ends_its_own_runs_only(schema: str, tmp_path: Path) -> None:
    emptied(schema)
    one, two = Gated(), Gated()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    async with serving(tmp_path / "a", one, database=schema) as stays:
        kept = await begun(stays, one)
        async with serving(tmp_path / "b", two, database=schema) as leaves:
            lost = await begun(leaves, two)
            stream, there = await watch(stays, lost["id"], 4)
            await asyncio.wait_for(there.wait(), TIMEOUT)
        assert states(await asyncio.wait_for(stream, 10)) == ["running", "failed"]
        assert (await stays.get(f"/v2/runs/{lost['id']}"))["failure"]["code"] == "server_lost"
        assert (await stays.get(f"/v2/runs/{kept['id']}"))["status"] == "running"
        one.go.set()
        assert states(await stays.stream(kept["id"])) == ["running", "succeeded"]
        assert await stays.stack.services.store.read(ids_of_servers) == [stays.stack.services.runner.server]


def ids_of_servers(connection: Connection) -> list[str]:
    return list(connection.execute(select(servers.c.id)).scalars())


async def test_a_server_that_is_taken_for_dead_ends_its_agents_and_goes_on(pair: Pair) -> None:
    run = await begun(pair.one, pair.gate_one)
    store, me = pair.one.stack.services.store, pair.one.stack.services.runner.server

    def long_ago(connection: Connection) -> list[Appended]:
        connection.execute(update(servers).where(servers.c.id == me).values(seen=0))
        return end_lost_runs(connection)  # as the other one's keeper does; no heartbeat comes in between

    async with asyncio.timeout(TIMEOUT):
        while not (lost := await pair.two.stack.services.store.write(long_ago)):
            continue  # passed over while what its agent said is being written
    for appended in lost:
        pair.two.stack.services.streams.publish(appended)
    failed = await pair.two.get(f"/v2/runs/{run['id']}")
    assert (failed["status"], failed["failure"]["code"], failed["failure"]["retryable"]) == (
        "failed",
        "server_lost",
        True,
    )
    async with asyncio.timeout(TIMEOUT):
        while not pair.gate_one.cancelled:  # noqa: ASYNC110 - its agent is ended once it hears of that
            await asyncio.sleep(0.01)
        while me not in await store.read(ids_of_servers):  # noqa: ASYNC110 - and it is back at its next heartbeat
            await asyncio.sleep(0.1)
    pair.gate_one.go.set()
    assert (await pair.one.play("again"))["status"] == "succeeded"
    events = await pair.one.stream(run["id"])
    assert states(events) == ["running", "failed"]
    assert events[-1]["data"] == {"to": "failed"}  # the zombie has added nothing after the end


async def test_a_run_that_slipped_out_of_its_servers_hands_is_ended(pair: Pair) -> None:
    """Its create was committed, but the answer of the commit was lost, so nobody plays it."""
    runner = pair.one.stack.services.runner
    new = new_run()
    _answer, made = await pair.one.stack.services.store.write(
        lambda connection: stored.create(connection, new, owner=runner.server)
    )
    async with asyncio.timeout(TIMEOUT):
        while (await pair.two.get(f"/v2/runs/{made.run_id}"))["status"] != "failed":  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert len(pair.gate_one.turns) == 0


# -- races


async def test_twenty_creates_with_one_key_over_two_servers_make_one_evaluation_e01(pair: Pair) -> None:
    body = evaluation_body(pair.one.harness_id, 200, 3)
    headers = {"Idempotency-Key": "one-evaluation"}
    answers = await asyncio.gather(
        *(
            api.http.post("/v2/evaluations", json=body, headers=headers)
            for _ in range(10)
            for api in (pair.one, pair.two)
        )
    )
    assert {answer.status_code for answer in answers} == {201}
    assert len({(answer.content, answer.headers["location"]) for answer in answers}) == 1
    assert [answer.headers.get("idempotency-replayed") for answer in answers].count("true") == 19
    late = await pair.two.http.post("/v2/evaluations", json=body, headers=headers)
    assert late.content == answers[0].content
    assert late.headers["idempotency-replayed"] == "true"
    listed = await pair.one.get("/v2/evaluations", harness_id=pair.one.harness_id)
    assert len(listed["data"]) == 1


async def evidence(pair: Pair, count: int) -> list[str]:
    pair.gate_one.go.set()
    pair.gate_two.go.set()
    apis = [pair.one, pair.two]
    return [run["id"] for run in await asyncio.gather(*(apis[n % 2].play(str(n)) for n in range(count)))]


async def test_complete_cancel_and_the_last_batch_race_over_two_servers_e09(pair: Pair) -> None:
    k, cases = 2, 3
    run_ids = await evidence(pair, k * cases)
    ends: set[str] = set()
    for number in range(20):
        made = await pair.one.http.post(
            "/v2/evaluations", json=evaluation_body(pair.one.harness_id, cases, k), headers=pair.one.key()
        )
        path = f"/v2/evaluations/{made.json()['id']}"
        batch = [
            attempt(c, i, run_ids[c * k + i], "failed" if (c + i) % 3 == 0 else "passed", f"0.{c}{i}")
            for c in range(cases)
            for i in range(k)
        ]
        early, last = batch[: number % len(batch)], batch[number % len(batch) :]
        if early:
            done = await pair.two.http.post(f"{path}/attempts:batch", json={"attempts": early})
            assert done.status_code == 200, done.text
        acts = [pair.one.http.post(f"{path}/attempts:batch", json={"attempts": last})]
        for api in (pair.one, pair.two, pair.one, pair.two, pair.one):
            acts += [api.http.post(f"{path}/complete"), api.http.post(f"{path}/cancel")]
        answers = await asyncio.gather(*acts)
        assert {answer.status_code for answer in answers} <= {200, 409}, [answer.text for answer in answers]
        end = await pair.one.get(path)
        assert end["status"] in ("completed", "cancelled")
        assert end == await pair.two.get(path)
        assert_counted(end, await recount(pair.two, end["id"], k))
        ends.add(end["status"])
        # After the end: nothing new, duplicates are welcome, both ends idempotent or refused.
        recorded = sum(len(case["recorded_attempts"] or []) for case in end["cases"])
        again = await pair.two.http.post(f"{path}/attempts:batch", json={"attempts": batch})
        assert again.status_code == (200 if recorded == len(batch) else 409)
        right, wrong = ("complete", "cancel") if end["status"] == "completed" else ("cancel", "complete")
        assert (await pair.one.http.post(f"{path}/{right}")).json() == end
        assert_problem(await pair.two.http.post(f"{path}/{wrong}"), 409, f"evaluation_{end['status']}")
        assert await pair.one.get(path) == end
    assert ends  # which of them win is the race's


async def test_thirty_two_clients_record_the_same_attempts_once(pair: Pair) -> None:
    k, cases = 2, 8
    run_ids = await evidence(pair, k * cases)
    body = evaluation_body(pair.one.harness_id, cases, k)
    made = await pair.one.http.post("/v2/evaluations", json=body, headers=pair.one.key())
    path = f"/v2/evaluations/{made.json()['id']}"
    everything = [
        attempt(c, i, run_ids[c * k + i], "passed" if c % 3 else "failed", f"0.{c}")
        for c in range(cases)
        for i in range(k)
    ]

    async def client(number: int) -> list[str]:
        api = (pair.one, pair.two)[number % 2]
        said: list[str] = []
        shift = number % len(everything)
        mine = [*everything[shift:], *everything[:shift]]
        for start in range(0, len(mine), 4):
            answer = await api.http.post(f"{path}/attempts:batch", json={"attempts": mine[start : start + 4]})
            assert answer.status_code == 200, answer.text
            said += [result["status"] for result in answer.json()["results"]]
        done = await api.http.post(f"{path}/complete")
        assert done.status_code == 200, done.text
        return said

    said = [word for words in await asyncio.gather(*(client(number) for number in range(32))) for word in words]
    assert said.count("recorded") == len(everything)
    assert said.count("duplicate") == 31 * len(everything)
    end = await pair.two.get(path)
    assert (end["status"], end["progress"]) == ("completed", {"done": cases, "total": cases})
    assert_counted(end, await recount(pair.one, end["id"], k))
    assert end["metrics"]["tokens"] == 15 * k * cases  # echo's 10 + 5, each run's chat once
    assert Decimal(end["metrics"]["amount"]) == Decimal("0.001") * k * cases


async def test_two_runs_for_one_attempt_over_two_servers_one_is_recorded(pair: Pair) -> None:
    run_ids = await evidence(pair, 16)
    body = evaluation_body(pair.one.harness_id, 1, 1)
    made = await pair.one.http.post("/v2/evaluations", json=body, headers=pair.one.key())
    path = f"/v2/evaluations/{made.json()['id']}/attempts:batch"
    apis = [pair.one, pair.two]
    answers = await asyncio.gather(
        *(apis[n % 2].http.post(path, json={"attempts": [attempt(0, 0, run_id)]}) for n, run_id in enumerate(run_ids))
    )
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 15
    for answer in answers:
        if answer.status_code == 409:
            assert_problem(answer, 409, "attempt_conflict", "/attempts/0/run_id")


async def test_judge_calls_at_the_same_time_all_count(pair: Pair) -> None:
    run_id = (await evidence(pair, 1))[0]
    stores = [pair.one.stack.services.store, pair.two.stack.services.store]

    def note(connection: Connection) -> None:
        stored.add_judge_call(connection, "main", run_id, JudgeSpend(1, 7, {"USD": Decimal("0.01")}))

    await asyncio.gather(*(stores[number % 2].write(note) for number in range(40)))
    row = await stores[0].read(lambda connection: connection.execute(select(runs).where(runs.c.id == run_id)).one())
    assert (row.judge_calls, row.judge_tokens, row.judge_amounts) == (40, 280, '{"USD":"0.4"}')
