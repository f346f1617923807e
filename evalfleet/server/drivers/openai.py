"""The `openai` driver: how does an OpenAI-compatible endpoint play a turn?

One streamed chat completion for each turn; the chat's history is ours and is sent whole. Tool calls in the answer are
reported (nobody executes them: the endpoint is the agent). Usage comes from the endpoint, its price from the settings.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import httpx

from evalfleet.contract import jsontext
from evalfleet.contract.outbound import way_to
from evalfleet.contract.sse import SSEDecoder
from evalfleet.errors import OperatorError, UnreadableAnswer
from evalfleet.server.drivers.chat_completions import ChatAnswer, completions_url, price_of
from evalfleet.server.drivers.credentials import secret
from evalfleet.server.drivers.lines import LINE_LIMIT, TOTAL_LIMIT
from evalfleet.server.drivers.protocol import shorten
from evalfleet.server.drivers.upstream import (
    Lost,
    address,
    ask,
    make_client,
    media_type,
    pieces,
    read_some,
    refused,
    status_failure,
)
from evalfleet.server.driving import Busy, Ended, Failure, Sink, Turn
from evalfleet.surroundings import user_environment
from evalfleet.treeconfig import OpenAIHarness


class OpenAIDriver:
    """Runs `[harness.openai]`."""

    def __init__(self, harness: OpenAIHarness, *, environ: Mapping[str, str] | None = None) -> None:
        self._harness = harness
        self._environ = user_environment() if environ is None else environ
        self._url = completions_url(harness.base_url)
        self._client: httpx.AsyncClient | None = None

    def check(self) -> None:
        """ConfigError if the key's variable is named and not set; SettingError if the proxy to it cannot be used."""
        self._key()
        way_to(self._url, self._environ)

    async def run(self, turn: Turn, sink: Sink) -> Ended:
        try:
            key = self._key()
            if self._client is None:
                self._client = make_client(self._url)
        except OperatorError as error:
            return Ended(Failure("agent_not_started", error.message))
        headers = {"Accept": "text/event-stream, application/json", "Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        answer = ChatAnswer()
        try:
            async with ask(self._client, self._url, self._body(turn), headers) as response:
                if not response.is_success:
                    body = await read_some(self._url, response)
                    secrets = [key] if key else []
                    refusal = status_failure(self._url, response.status_code, body, secrets, prefix="agent_http")
                    if response.status_code == 404:  # nobody has answered yet: the address or the model is a wrong one
                        said = f"{refusal.message}; look at base_url and model of [harness.openai]"
                        refusal = Failure("agent_not_started", said)
                    return refused(self._url, response.status_code, response.headers, refusal)
                ended = _ended(await read_completion(self._url, response, answer))
        except Lost as lost:
            ended = lost.ended
        await self._report(answer, sink)
        return ended

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _report(self, answer: ChatAnswer, sink: Sink) -> None:
        """What came in, also where the rest did not: it was said and has to be paid."""
        if answer.calls:  # of one response, so made at once (S20)
            await sink.tool_calls(answer.calls)
        if answer.usage is not None:
            price = self._harness.price
            await sink.usage(
                input_tokens=answer.usage.input - answer.usage.cached,
                output_tokens=answer.usage.output,
                cache_read_tokens=answer.usage.cached,
                amount=price_of(answer.usage, price),
                currency=price.currency if price else None,
            )
        if answer.text:
            await sink.answer(answer.text)

    def _body(self, turn: Turn) -> bytes:
        messages = [{"role": role, "content": text} for role, text in turn.history]
        messages.append({"role": "user", "content": turn.message})
        return jsontext.dumps(
            {
                "model": self._harness.model,
                "messages": messages,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )

    def _key(self) -> str:
        name = self._harness.api_key_env
        return secret(self._environ, name, "[harness.openai] api_key_env") if name else ""


def _ended(failure: Failure | None) -> Ended:
    """What an answer that began well came to: the endpoint's own trouble in its middle is no agent's."""
    if failure is None or failure.code != "upstream_unavailable":
        return Ended(failure)
    return Ended(failure, Busy(f"the agent's endpoint {failure.message}", again=False))


async def read_completion(url: str, response: httpx.Response, answer: ChatAnswer) -> Failure | None:
    """Read a 2xx answer, streamed or whole, into `answer`. The failure it amounts to, if any. Raises Lost."""
    kind, where = media_type(response.headers), address(url)
    async with aclosing(pieces(url, response)) as coming:
        if kind == "text/event-stream":
            failure = await _read_stream(coming, answer, where)
        elif kind in ("application/json", ""):
            failure = await _read_whole(coming, answer, where)
        else:
            failure = Failure("agent_protocol", f"{where} answers with {kind}, which is no chat completion")
    if failure is None and answer.error is not None:
        message = f"{where} answered with an error: {shorten(answer.error, 300)}"
        return Failure("upstream_unavailable", message, retryable=True)
    return failure


async def _read_stream(coming: AsyncGenerator[bytes], answer: ChatAnswer, where: str) -> Failure | None:
    decoder = SSEDecoder(max_event_bytes=LINE_LIMIT)
    total = 0
    async for piece in coming:
        total += len(piece)
        if total > TOTAL_LIMIT:
            return _too_large(where)
        try:
            events = decoder.feed(piece)
        except UnreadableAnswer:
            return _too_large(where)
        for event in events:
            if event.data.strip() == "[DONE]":
                return None
            if event.data.strip() and (failure := _add(answer, event.data, where)):
                return failure
    if answer.finished or answer.error:
        return None
    return Failure("upstream_unavailable", f"{where} ended its stream in the middle of the answer", retryable=True)


async def _read_whole(coming: AsyncGenerator[bytes], answer: ChatAnswer, where: str) -> Failure | None:
    body = bytearray()
    async for piece in coming:
        body += piece
        if len(body) > LINE_LIMIT:
            return _too_large(where)
    try:
        document: Any = jsontext.loads(bytes(body))
    except ValueError as error:
        return _unreadable(where, error, body.decode("utf-8", errors="replace"))
    answer.add_whole(document)
    if isinstance(document, dict) and not document.get("choices") and answer.error is None:
        return _unreadable(where, "it has no `choices`", body.decode("utf-8", errors="replace"))
    return None


def _add(answer: ChatAnswer, data: str, where: str) -> Failure | None:
    try:
        answer.add_chunk(jsontext.loads(data))
    except ValueError as error:
        return _unreadable(where, error, data)
    return None


def _unreadable(where: str, why: object, text: str) -> Failure:
    return Failure(
        "agent_protocol", f"{where} sent what is no chat completion ({why}); it starts: {shorten(text, 120)}"
    )


def _too_large(where: str) -> Failure:
    return Failure(
        "agent_output_too_large",
        f"{where} sent more than {TOTAL_LIMIT // 2**20} MiB, or {LINE_LIMIT // 2**20} MiB in one piece",
    )
