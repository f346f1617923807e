"""The http driver against a real service (S17; issue: "three drivers behind a run")."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

import pytest

from evalfleet.errors import ConfigError
from evalfleet.server.drivers.http import HttpDriver, read_answer
from evalfleet.server.drivers.protocol import AgentLine, AnswerLine, Broken, UsageLine
from evalfleet.server.driving import Ended
from evalfleet.treeconfig import HttpHarness
from tests.server.drivers.recording import Recording, a_turn
from tests.server.drivers.service import CUT, GARBAGE, Service, ndjson, sse

CALL = {"type": "tool_call", "id": "c1", "name": "lookup", "args": {"q": 1}}
USAGE = {"type": "usage", "input_tokens": 3}
ANSWER = {"type": "answer", "text": "Paris"}


async def play(
    service: Service, *, headers: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None
) -> tuple[Ended, Recording]:
    sink = Recording()
    driver = HttpDriver(HttpHarness(service.url + "/agent?key=q1w2", headers or {}), environ=environ or {})
    try:
        return await driver.run(a_turn("hi"), sink), sink
    finally:
        await driver.aclose()


@pytest.mark.parametrize(
    ("content_type", "body", "said"),
    [
        pytest.param("application/x-ndjson", ndjson(CALL, USAGE, ANSWER), 3, id="JSON Lines"),
        pytest.param(
            "application/jsonl; charset=utf-8", ndjson(CALL, USAGE, ANSWER), 3, id="JSON Lines by another name"
        ),
        pytest.param("text/event-stream", sse(CALL, USAGE, ANSWER), 3, id="server-sent events"),
        pytest.param(
            "text/event-stream", sse(CALL, ANSWER, done=False)[:-2], 2, id="events without their last blank line"
        ),
        pytest.param("text/event-stream", b":hi\n\n" + sse(ANSWER).replace(b"\n", b"\r\n"), 1, id="events with CRLF"),
        pytest.param("text/plain", b"Paris\n", 1, id="plain text"),
        pytest.param("text/plain; charset=utf-8", ndjson(CALL, ANSWER), 2, id="JSON Lines called plain text"),
        pytest.param("application/json", b'{"answer": "Paris", "other": 1}', 1, id="one object with an answer"),
        pytest.param("application/json", ndjson(ANSWER), 1, id="one object of the protocol"),
    ],
)
async def test_an_answer_is_read_by_its_content_type(content_type: str, body: bytes, said: int) -> None:
    async with Service(content_type=content_type, pieces=[body[:7], body[7:]]) as service:
        ended, sink = await play(service)
    assert ended == Ended()
    assert sink.answers == ["Paris"]
    assert len(sink.said) == said


async def test_the_service_is_asked_with_the_turn_and_the_headers_from_the_environment() -> None:
    async with Service(pieces=[b'{"answer": {"a": [1]}}'], headers={"Set-Cookie": "session=1; Path=/"}) as service:
        harness = HttpHarness(service.url + "/agent", {"X-Key": "AGENT_KEY"})
        driver = HttpDriver(harness, environ={"AGENT_KEY": "s3cret\n"})
        driver.check()
        sink = Recording()
        for number in range(2):
            assert await driver.run(a_turn("hi", turn=number, history=(("user", "a"),)), sink) == Ended()
        await driver.aclose()
    assert sink.answers == [{"a": [1]}, {"a": [1]}]
    first, second = service.asked
    assert first.path == "/agent"
    assert first.document["message"] == "hi"
    assert first.document["history"] == [{"role": "user", "text": "a"}]
    assert (first.headers["x-key"], first.headers["content-type"]) == ("s3cret", "application/json")
    assert "cookie" not in second.headers, "a session of one chat must not reach another"


async def test_no_answer_is_none() -> None:
    for content_type, body in [
        ("application/json", b'{"answer": null}'),
        ("application/json", b""),
        ("text/plain", b""),
    ]:
        async with Service(content_type=content_type, pieces=[body] if body else []) as service:
            ended, sink = await play(service)
        assert (ended, sink.said) == (Ended(), [])


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, "agent_http_400", False),
        (302, "agent_http_302", False),
        (401, "agent_unauthorized", False),
        (402, "out_of_funds", False),
        (404, "agent_http_404", False),
        (429, "rate_limited", True),
        (500, "upstream_unavailable", True),
        (503, "upstream_unavailable", True),
    ],
)
async def test_a_status_says_whose_trouble_it_is(status: int, code: str, retryable: bool) -> None:
    body = b'{"error": {"message": "no, s3cret is wrong"}}'
    async with Service(status=status, pieces=[body]) as service:
        ended, sink = await play(service, headers={"X-Key": "KEY"}, environ={"KEY": "s3cret"})
    assert ended.failure is not None
    assert (ended.failure.code, ended.failure.retryable) == (code, retryable)
    assert f"answered {status}: no, *** is wrong" in ended.failure.message
    assert "q1w2" not in ended.failure.message
    assert not sink.said


async def test_a_service_that_is_not_there_is_no_fault_of_the_agent(free_port: int) -> None:
    driver = HttpDriver(HttpHarness(f"http://127.0.0.1:{free_port}/a?key=q1w2"), environ={})
    ended = await driver.run(a_turn(), Recording())
    await driver.aclose()
    assert ended.failure is not None
    assert (ended.failure.code, ended.failure.retryable) == ("upstream_unavailable", True)
    assert f"http://127.0.0.1:{free_port}/a cannot be reached" in ended.failure.message
    assert "q1w2" not in ended.failure.message


@pytest.mark.parametrize(
    "pieces",
    [[CUT], [ndjson(CALL), CUT], [ndjson(CALL), GARBAGE]],
    ids=["before the answer", "in the middle of it", "with garbage in the middle"],
)
async def test_a_connection_that_breaks_is_no_fault_of_the_agent(pieces: list[bytes | object]) -> None:
    """C06: what just stops is not success."""
    async with Service(content_type="application/x-ndjson", pieces=pieces) as service:
        ended, sink = await play(service)
    assert ended.failure is not None
    assert (ended.failure.code, ended.failure.retryable) == ("upstream_unavailable", True)
    assert len(sink.said) <= len(pieces) - 1


async def test_a_report_that_cannot_be_taken_is_raised_and_is_no_lost_connection() -> None:
    async with Service(content_type="application/x-ndjson", pieces=[ndjson(CALL)]) as service:
        driver = HttpDriver(HttpHarness(service.url), environ={})
        with pytest.raises(OSError, match="disk full"):
            await driver.run(a_turn(), Recording(refuse=OSError("disk full")))
        await driver.aclose()


async def test_a_large_turn_arrives_whole() -> None:
    async with Service(content_type="text/plain", pieces=[b"read"]) as service:
        driver = HttpDriver(HttpHarness(service.url), environ={})
        assert await driver.run(a_turn("x" * 3_000_000), Recording()) == Ended()
        await driver.aclose()
    assert len(service.asked[0].document["message"]) == 3_000_000


async def test_a_port_where_something_else_answers_is_no_fault_of_the_agent() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        driver = HttpDriver(HttpHarness(f"http://127.0.0.1:{port}"), environ={})
        ended = await driver.run(a_turn(), Recording())
        await driver.aclose()
    assert ended.failure is not None
    assert (ended.failure.code, ended.failure.retryable) == ("upstream_unavailable", True)


@pytest.mark.parametrize(
    ("content_type", "body", "says"),
    [
        pytest.param("text/html", b"<h1>Log in</h1>", "answers with text/html", id="a login page (C08)"),
        pytest.param("application/json", b"[1]", "has no `answer`", id="a list"),
        pytest.param("application/json", b'{"text": "x"}', "has no `answer`", id="another object"),
        pytest.param("application/json", b'{"answer": "x', "is not JSON", id="half an object"),
        pytest.param("application/x-ndjson", b"hello\n", "line 1", id="text called JSON Lines"),
        pytest.param("application/x-ndjson", ndjson(CALL) + b'{"type": "ans', "line 2", id="half a line"),
        pytest.param("text/event-stream", sse(CALL, 7), "event 2", id="an event that is a number"),
    ],
)
async def test_an_answer_that_is_not_of_the_protocol_is_the_agents(content_type: str, body: bytes, says: str) -> None:
    async with Service(content_type=content_type, pieces=[body]) as service:
        ended, _ = await play(service)
    assert ended.failure is not None
    assert (ended.failure.code, ended.failure.retryable) == ("agent_protocol", False)
    assert says in ended.failure.message


async def test_lines_are_reported_while_the_answer_still_comes() -> None:
    more = asyncio.Event()
    async with Service(content_type="application/x-ndjson", pieces=[ndjson(CALL), more, ndjson(ANSWER)]) as service:
        sink = Recording()
        driver = HttpDriver(HttpHarness(service.url), environ={})
        playing = asyncio.create_task(driver.run(a_turn(), sink))
        await asyncio.wait_for(sink.started.wait(), 30)
        assert not playing.done()
        more.set()
        assert await playing == Ended()
        assert sink.answers == ["Paris"]
        await driver.aclose()


async def test_cancelling_closes_the_connection() -> None:
    async with Service(content_type="text/event-stream", pieces=[sse(CALL, done=False), asyncio.Event()]) as service:
        sink = Recording()
        driver = HttpDriver(HttpHarness(service.url), environ={})
        playing = asyncio.create_task(driver.run(a_turn(), sink))
        await asyncio.wait_for(sink.started.wait(), 30)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        await asyncio.wait_for(service.left.wait(), 30)
        await driver.aclose()


@pytest.mark.parametrize("value", [None, "", "  ", "two\nlines", "schlüssel"])
async def test_a_header_that_cannot_be_sent_is_told_beforehand(value: str | None) -> None:
    environ = {} if value is None else {"AGENT_KEY": value}
    driver = HttpDriver(HttpHarness("http://127.0.0.1:1", {"X-Key": "AGENT_KEY"}), environ=environ)
    with pytest.raises(ConfigError, match=r"\[harness\.http\] headers_env X-Key names AGENT_KEY") as caught:
        driver.check()
    assert value is None or not value.strip() or value not in caught.value.message
    ended = await driver.run(a_turn(), Recording())
    assert ended.failure is not None
    assert ended.failure.code == "agent_not_started"


async def read(kind: str, *pieces: bytes) -> list[AgentLine]:
    async def feed() -> AsyncGenerator[bytes]:
        for piece in pieces:
            yield piece

    return [line async for lines in read_answer(kind, feed(), "the agent") for line in lines]


async def test_where_events_are_cut_makes_no_difference() -> None:
    """C02, C04: the same bytes, cut at every offset."""
    body = sse(USAGE, {"type": "answer", "text": "日本\u2028語"})
    for at in range(1, len(body)):
        assert await read("text/event-stream", body[:at], body[at:]) == [UsageLine(3), AnswerLine("日本\u2028語")]


async def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """C11: an event without an end does not eat the memory."""
    monkeypatch.setattr("evalfleet.server.drivers.http.LINE_LIMIT", 1000)
    lines = await read("text/event-stream", b"data: " + b"x" * 600, b"x" * 600)
    assert [line.code for line in lines if isinstance(line, Broken)] == ["agent_output_too_large"]
