"""The openai driver against a real service (S17; issue: "three drivers behind a run")."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from decimal import Decimal
from typing import Any

import pytest

from evalfleet.errors import ConfigError
from evalfleet.server.drivers.openai import OpenAIDriver
from evalfleet.server.driving import Ended
from evalfleet.treeconfig import OpenAIHarness, Price
from tests.server.drivers.recording import Recording, a_turn
from tests.server.drivers.service import CUT, Service, sse

PRICE = Price(Decimal("2.50"), Decimal(10))
MakeDriver = Callable[..., OpenAIDriver]


@pytest.fixture
async def driver() -> AsyncIterator[MakeDriver]:
    made: list[OpenAIDriver] = []

    def make(service: Service, *, environ: Mapping[str, str] | None = None, **settings: Any) -> OpenAIDriver:
        harness = OpenAIHarness(service.url + "/v1/", "small-model", **settings)
        made.append(OpenAIDriver(harness, environ=environ or {}))
        return made[-1]

    yield make
    for each in made:
        await each.aclose()


def delta(finish: str | None = None, **message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": message, "finish_reason": finish}]}


def called(index: int, call_id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"index": index, "function": function} | ({"id": call_id, "type": "function"} if call_id else {})


USAGE = {
    "choices": [],
    "usage": {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "total_tokens": 120,
        "prompt_tokens_details": {"cached_tokens": 60},
    },
}
TWO_CALLS = [
    delta(role="assistant", content=None),
    delta(content="Let me "),
    delta(tool_calls=[called(0, "call_a", "look__up", '{"ci')]),
    delta(tool_calls=[called(1, "call_b", "book", "")]),
    delta(tool_calls=[called(0, None, None, 'ty": "Par')]),
    delta(tool_calls=[called(1, None, None, "{not json"), called(0, None, None, 'is"}')]),
    delta(content="see."),
    delta("tool_calls"),
    USAGE,
]
SAID = [
    ("tool_calls", ("call_a", "look__up", {"city": "Paris"}), ("call_b", "book", "{not json")),  # made at once
    ("usage", 40, 20, 60, 0, Decimal("0.00045"), "USD"),
    ("answer", "Let me see."),
]


async def play(driver: OpenAIDriver) -> tuple[Ended, Recording]:
    sink = Recording()
    return await driver.run(a_turn("hi"), sink), sink


async def test_a_stream_becomes_calls_usage_and_an_answer(driver: MakeDriver) -> None:
    body = sse(*TWO_CALLS)
    async with Service(content_type="text/event-stream", pieces=[body[:333], body[333:]]) as service:
        ended, sink = await play(driver(service, price=PRICE))
    assert (ended, sink.said) == (Ended(), SAID)


async def test_an_answer_in_one_piece_says_the_same(driver: MakeDriver) -> None:
    message = {
        "content": [{"type": "text", "text": "Let me "}, {"type": "text", "text": "see."}],
        "tool_calls": [
            {"id": "call_a", "function": {"name": "look__up", "arguments": '{"city": "Paris"}'}},
            {"id": "call_b", "function": {"name": "book", "arguments": "{not json"}},
        ],
    }
    whole = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE["usage"]}
    async with Service(pieces=[json.dumps(whole).encode()]) as service:
        ended, sink = await play(driver(service, price=PRICE))
    assert (ended, sink.said) == (Ended(), SAID)


async def test_the_endpoint_gets_the_history_the_key_and_asks_for_usage(driver: MakeDriver) -> None:
    async with Service(content_type="text/event-stream", pieces=[sse(delta("stop", content="x"))]) as service:
        agent = driver(service, environ={"KEY": "sk-1"}, api_key_env="KEY")
        agent.check()
        turn = a_turn("and now? \ud83d", turn=1, history=(("user", "hi"), ("assistant", "ho")))
        assert await agent.run(turn, Recording()) == Ended()
    [asked] = service.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == "Bearer sk-1"
    assert asked.document == {
        "model": "small-model",
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "ho"},
            {"role": "user", "content": "and now? \ud83d"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("chunks", "said"),
    [
        pytest.param(
            [delta(tool_calls=[{"function": {"name": "a", "arguments": "{}"}}]), delta("stop")],
            [("tool_calls", ("call_0", "a", {}))],
            id="a call without an index or an id",
        ),
        pytest.param(
            [delta(tool_calls=[called(0, "x", "a", "")]), delta("stop", tool_calls=[called(0, "y", "b", "{}")])],
            [("tool_calls", ("x", "a", {}), ("y", "b", {}))],
            id="two calls under one index",
        ),
        pytest.param(
            [
                delta(tool_calls=[called(0, "1", "ls", "{}")]),
                delta(tool_calls=[called(0, "1", "rm", '{"f": ')]),
                delta(tool_calls=[called(0, "1", "rm", '"a"}')]),
                delta("stop", tool_calls=[called(0, "1", "rm", '{"f": "b"}')]),
            ],
            [("tool_calls", ("1", "ls", {}), ("1", "rm", {"f": "a"}), ("1", "rm", {"f": "b"}))],
            id="S11: calls under one index and one id, each named in every piece",
        ),
        pytest.param([delta("stop", content="")], [], id="an empty answer is none"),
        pytest.param([delta("stop", refusal="I will not")], [("answer", "I will not")], id="a refusal is an answer"),
        pytest.param([delta("length", content="cut sho")], [("answer", "cut sho")], id="cut by the model's own limit"),
        pytest.param(
            [delta("stop", content="x"), {"choices": [], "usage": {"prompt_tokens": 1}}, USAGE],
            [("usage", 40, 20, 60, 0, None, None), ("answer", "x")],
            id="usage twice is the last, without a price no money",
        ),
        pytest.param([delta("stop", content="ok \ud83d")], [("answer", "ok \ud83d")], id="half a character (B11)"),
    ],
)
async def test_small_differences_between_endpoints_are_read(
    driver: MakeDriver, chunks: list[Any], said: list[Any]
) -> None:
    async with Service(content_type="text/event-stream", pieces=[sse(*chunks)]) as service:
        ended, sink = await play(driver(service))
    assert (ended, sink.said) == (Ended(), said)


async def test_a_stream_without_done_ends_well_if_it_was_finished(driver: MakeDriver) -> None:
    async with Service(
        content_type="text/event-stream", pieces=[sse(delta("stop", content="x"), done=False)]
    ) as service:
        assert (await play(driver(service)))[0] == Ended()


@pytest.mark.parametrize("end", [[], [CUT]], ids=["it just ends", "the connection is cut"])
async def test_a_stream_that_stops_is_no_success_and_what_it_said_is_kept(
    driver: MakeDriver, end: list[object]
) -> None:
    """C06."""
    pieces = [sse(delta(content="half"), done=False), *end]
    async with Service(content_type="text/event-stream", pieces=pieces) as service:
        ended, sink = await play(driver(service))
    assert ended.failure is not None
    assert (ended.failure.code, ended.failure.retryable) == ("upstream_unavailable", True)
    assert sink.answers == ["half"]


@pytest.mark.parametrize(
    ("status", "body", "code", "retryable"),
    [
        (401, {"error": {"message": "Incorrect API key provided: sk-1"}}, "agent_unauthorized", False),
        (403, {"error": "forbidden"}, "agent_unauthorized", False),
        (404, {"error": {"message": "no such model"}}, "agent_not_started", False),
        (429, {"error": {"message": "slow down"}}, "rate_limited", True),
        (429, {"error": {"message": "quota", "code": "insufficient_quota"}}, "out_of_funds", False),
        (500, {"detail": "oops"}, "upstream_unavailable", True),
        (503, {}, "upstream_unavailable", True),
    ],
)
async def test_a_status_says_whose_trouble_it_is_and_shows_no_key(
    driver: MakeDriver, status: int, body: Any, code: str, retryable: bool
) -> None:
    async with Service(status=status, pieces=[json.dumps(body).encode()]) as service:
        ended, _ = await play(driver(service, environ={"KEY": "sk-1"}, api_key_env="KEY"))
    assert ended.failure is not None
    assert (ended.failure.code, ended.failure.retryable) == (code, retryable)
    assert "sk-1" not in ended.failure.message
    assert str(status) in ended.failure.message


@pytest.mark.parametrize(
    ("content_type", "body", "code", "says"),
    [
        ("text/html", b"<html>", "agent_protocol", "text/html"),
        ("application/json", b"{", "agent_protocol", "it starts: {"),
        ("application/json", b'{"object": "list"}', "agent_protocol", "no `choices`"),
        ("text/event-stream", b"data: {oops\n\n", "agent_protocol", "{oops"),
        ("application/json", b'{"error": {"message": "overloaded"}}', "upstream_unavailable", "overloaded"),
        ("text/event-stream", sse({"error": {"message": "overloaded"}}), "upstream_unavailable", "overloaded"),
    ],
)
async def test_what_is_no_chat_completion_is_said(
    driver: MakeDriver, content_type: str, body: bytes, code: str, says: str
) -> None:
    async with Service(content_type=content_type, pieces=[body]) as service:
        ended, _ = await play(driver(service))
    assert ended.failure is not None
    assert ended.failure.code == code
    assert says in ended.failure.message


async def test_cancelling_closes_the_connection(driver: MakeDriver) -> None:
    pieces = [sse(delta(content="x"), done=False), asyncio.Event()]
    async with Service(content_type="text/event-stream", pieces=pieces) as service:
        playing = asyncio.create_task(driver(service).run(a_turn(), Recording()))
        await asyncio.wait_for(service.came.wait(), 30)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        await asyncio.wait_for(service.left.wait(), 30)


async def test_a_key_that_is_not_set_is_told_beforehand(driver: MakeDriver) -> None:
    agent = driver(Service(url="http://127.0.0.1:1"), api_key_env="NO_KEY")
    with pytest.raises(ConfigError, match=r"\[harness\.openai\] api_key_env names NO_KEY"):
        agent.check()
    ended = await agent.run(a_turn(), Recording())
    assert ended.failure is not None
    assert ended.failure.code == "agent_not_started"
