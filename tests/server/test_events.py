"""The journal as a stream and in pages (C13; wire.md, "Events")."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from evalfleet.server import streams
from evalfleet.server.cursors import event_cursor
from evalfleet.server.driving import Ended, Sink, Turn
from tests.server.conftest import TIMEOUT, Api, ScriptedDriver, assert_problem, types_of

SSE = {"Accept": "text/event-stream"}


async def test_the_stream_says_what_proxies_must_know_c13(api: Api) -> None:
    run = await api.play()
    headers = {**SSE, "Accept-Encoding": "gzip, br"}
    answer = await api.http.get(f"/v2/runs/{run['id']}/events", headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["cache-control"].startswith("no-cache")
    assert "content-encoding" not in answer.headers


async def test_a_frame_is_the_cursor_the_type_and_the_whole_event_on_one_line(api: Api) -> None:
    run = await api.play("two\nlines and \u2028")
    text = (await api.http.get(f"/v2/runs/{run['id']}/events", headers=SSE)).text
    page = await api.get(f"/v2/runs/{run['id']}/events")
    frames = text.removesuffix("\n\n").split("\n\n")
    assert len(frames) == len(page["data"])
    for frame, event in zip(frames, page["data"], strict=True):
        cursor, kind, data = frame.split("\n")
        assert cursor == f"id: {event['cursor']}"
        assert kind == f"event: {event['type']}"
        assert json.loads(data.removeprefix("data: ")) == event


async def test_the_first_byte_comes_at_once_and_events_as_they_happen_c13(api: Api, driver: ScriptedDriver) -> None:
    go = asyncio.Event()

    async def slow(turn: Turn, sink: Sink) -> Ended:
        await sink.hook("tools.before", "answered")
        await go.wait()
        return Ended()

    driver.script = slow
    run = await api.create()
    async with asyncio.timeout(TIMEOUT):
        async with api.http.stream("GET", f"/v2/runs/{run['id']}/events", headers=SSE) as answer:
            text = ""
            async for chunk in answer.aiter_text():
                text += chunk
                if "hook.called" in text and not go.is_set():
                    assert '"to":"succeeded"' not in text
                    go.set()
    assert '"to":"succeeded"' in text
    assert text.endswith("\n\n")


async def test_silence_is_filled_with_comments(
    api: Api, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT", 0.05)
    go = asyncio.Event()

    async def slow(turn: Turn, sink: Sink) -> Ended:
        await go.wait()
        return Ended()

    driver.script = slow
    run = await api.create()
    async with asyncio.timeout(TIMEOUT):
        async with api.http.stream("GET", f"/v2/runs/{run['id']}/events", headers=SSE) as answer:
            text = ""
            async for chunk in answer.aiter_text():
                text += chunk
                if text.count(":hb\n\n") == 3:
                    go.set()
    assert '"to":"succeeded"' in text


async def test_a_resumed_stream_starts_strictly_after_its_cursor(api: Api) -> None:
    run = await api.play()
    events = await api.stream(run["id"])
    for place in (0, 4, len(events) - 2):
        cursor = events[place]["cursor"]
        assert await api.stream(run["id"], **{"Last-Event-ID": cursor}) == events[place + 1 :]
        answer = await api.http.get(f"/v2/runs/{run['id']}/events", params={"cursor": cursor}, headers=SSE)
        assert answer.text.count("\ndata: ") == len(events) - place - 1
    # From the very end: nothing more, and the stream ends.
    assert await api.stream(run["id"], **{"Last-Event-ID": events[-1]["cursor"]}) == []


async def test_many_streams_of_one_run_see_the_same_events(api: Api, driver: ScriptedDriver) -> None:
    go = asyncio.Event()

    async def chatty(turn: Turn, sink: Sink) -> Ended:
        await go.wait()
        for number in range(700):  # more than the frames that are kept in memory
            await sink.hook(f"point-{number}", "answered")
        return Ended()

    driver.script = chatty
    run = await api.create()
    reading = [asyncio.create_task(api.stream(run["id"])) for _ in range(5)]
    go.set()
    seen = await asyncio.gather(*reading)
    assert all(events == seen[0] for events in seen)
    assert [event["sequence"] for event in seen[0]] == list(range(1, 705))
    assert await api.stream(run["id"]) == seen[0]


async def test_a_stream_whose_start_is_not_kept_any_more_reads_it_from_the_store(
    api: Api, driver: ScriptedDriver
) -> None:
    go, said = asyncio.Event(), asyncio.Event()

    async def chatty(turn: Turn, sink: Sink) -> Ended:
        for number in range(1200):
            await sink.hook(f"point-{number}", "answered")
        said.set()
        await go.wait()
        return Ended()

    driver.script = chatty
    run = await api.create()
    await asyncio.wait_for(said.wait(), TIMEOUT)
    reading = asyncio.create_task(api.stream(run["id"]))
    async with asyncio.timeout(TIMEOUT):
        while api.stack.services.streams.open == 0:  # noqa: ASYNC110 - the server tells nobody who comes
            await asyncio.sleep(0.01)
    go.set()
    assert [event["sequence"] for event in await reading] == list(range(1, 1205))


async def test_a_client_that_leaves_is_forgotten(api: Api, driver: ScriptedDriver) -> None:
    go = asyncio.Event()

    async def slow(turn: Turn, sink: Sink) -> Ended:
        await go.wait()
        return Ended()

    driver.script = slow
    run = await api.create()
    path = f"/v2/runs/{run['id']}/events"
    async with (
        httpx.AsyncClient(base_url=api.url, headers=api.http.headers) as visitor,
        visitor.stream("GET", path, headers=SSE) as answer,
    ):
        await anext(answer.aiter_raw())
        assert api.stack.services.streams.open == 1
    async with asyncio.timeout(TIMEOUT):
        while api.stack.services.streams.open:  # noqa: ASYNC110 - nor who leaves
            await asyncio.sleep(0.01)
    go.set()


async def test_pages_hand_on_the_last_cursor_even_at_the_end(api: Api) -> None:
    run = await api.play()
    events = await api.stream(run["id"])
    read, cursor = [], None
    while True:
        page = await api.get(f"/v2/runs/{run['id']}/events", limit=4, **({"cursor": cursor} if cursor else {}))
        read += page["data"]
        assert page["page"]["next_cursor"] == read[-1]["cursor"]
        cursor = page["page"]["next_cursor"]
        if not page["page"]["has_more"]:
            break
    assert read == events
    beyond = await api.get(f"/v2/runs/{run['id']}/events", cursor=cursor)
    assert beyond == {"data": [], "page": {"has_more": False, "next_cursor": cursor}}


@pytest.mark.parametrize("limit", ["0", "501", "-1", "x", "1.5", "", "9999999999"])
async def test_the_journals_limit_is_1_to_500(api: Api, limit: str) -> None:
    run = await api.play()
    answer = await api.http.get(f"/v2/runs/{run['id']}/events", params={"limit": limit})
    assert_problem(answer, 400, "validation_failed", "limit")
    assert (await api.http.get(f"/v2/runs/{run['id']}/events", params={"limit": "500"})).status_code == 200


async def test_damaged_and_foreign_cursors_are_invalid(api: Api) -> None:
    run, other = await api.play(), await api.play()
    cursor = (await api.stream(run["id"]))[2]["cursor"]
    bad = [cursor[:-1], cursor + "A", cursor.swapcase(), "", "évil", "AAAA", "x" * 5000]
    for damaged in bad[:3] + bad[4:]:
        for answer in (
            await api.http.get(f"/v2/runs/{run['id']}/events", params={"cursor": damaged}),
            await api.http.get(f"/v2/runs/{run['id']}/events", params={"cursor": damaged}, headers=SSE),
        ):
            assert_problem(answer, 400, "cursor_invalid", "cursor")
    answer = await api.http.get(f"/v2/runs/{other['id']}/events", headers={**SSE, "Last-Event-ID": cursor})
    assert_problem(answer, 400, "cursor_invalid", "Last-Event-ID")


async def test_a_cursor_of_a_longer_journal_has_expired(api: Api) -> None:
    run = await api.play()
    answer = await api.http.get(f"/v2/runs/{run['id']}/events", params={"cursor": event_cursor(run["id"], 9000)})
    assert_problem(answer, 410, "event_cursor_expired")


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        pytest.param(None, "page", id="none"),
        pytest.param("application/json", "page", id="json"),
        pytest.param("*/*", "page", id="anything"),
        pytest.param("text/event-stream", "stream", id="sse"),
        pytest.param("text/event-stream, application/json", "stream", id="both, the first of equals"),
        pytest.param("application/json;q=0.5, text/event-stream", "stream", id="by q"),
        pytest.param("application/json, text/event-stream;q=0.1", "page", id="by q, the other way"),
        pytest.param("text/html", None, id="html"),
        pytest.param("text/event-stream;q=0", None, id="refused"),
        pytest.param("image/*;q=x", None, id="nonsense"),
    ],
)
async def test_the_accept_header_decides(api: Api, accept: str | None, kind: str | None) -> None:
    run = await api.play()
    request = api.http.build_request("GET", f"/v2/runs/{run['id']}/events")
    del request.headers["accept"]
    if accept is not None:
        request.headers["accept"] = accept
    answer = await api.http.send(request)
    if kind is None:
        assert_problem(answer, 406, "not_acceptable")
    else:
        assert answer.status_code == 200
        assert ("event-stream" in answer.headers["content-type"]) == (kind == "stream")


async def test_usage_updated_carries_running_totals(api: Api, driver: ScriptedDriver) -> None:
    async def twice(turn: Turn, sink: Sink) -> Ended:
        await sink.usage(input_tokens=1, output_tokens=2, amount="0.1", currency="EUR")
        await sink.usage(input_tokens=10, cache_read_tokens=5, amount="0.02")
        return Ended()

    driver.script = twice
    run = await api.play()
    events = [event["data"] for event in await api.stream(run["id"]) if event["type"] == "usage.updated"]
    assert [(data["input_tokens"], data["total_tokens"], data["amount"]) for data in events] == [
        (1, 3, "0.1"),
        (11, 18, "0.12"),
    ]
    usage = await api.get(f"/v2/runs/{run['id']}/usage")
    assert (usage["amount"], usage["currency"], usage["cache_read_tokens"]) == ("0.12", "EUR", 5)


async def test_an_answer_said_twice_has_one_final_message(api: Api, driver: ScriptedDriver) -> None:
    async def twice(turn: Turn, sink: Sink) -> Ended:
        await sink.answer("first")
        await sink.answer({"json": [1, 2.5, None]})
        return Ended()

    driver.script = twice
    run = await api.play()
    outputs = (await api.get(f"/v2/runs/{run['id']}/outputs"))["data"]
    assert [output["value"] for output in outputs] == [{"json": [1, 2.5, None]}]
    assert types_of(await api.stream(run["id"])).count("message.created") == 3
