"""The `http` driver: how does a service play a turn?

The JSON object of a turn (docs/agents.md) is POSTed to the URL; the answer's content type says how to read it: JSON
Lines or server-sent events of the protocol's objects, plain text, or one JSON object.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing

import httpx

from evalfleet.contract import jsontext
from evalfleet.contract.outbound import way_to
from evalfleet.contract.sse import SSEDecoder
from evalfleet.errors import OperatorError, UnreadableAnswer
from evalfleet.server.drivers.command import turn_document
from evalfleet.server.drivers.credentials import secret
from evalfleet.server.drivers.lines import LINE_LIMIT, TOTAL_LIMIT, AgentOutput
from evalfleet.server.drivers.protocol import KINDS, AgentLine, AnswerLine, Broken, from_document, read_line, shorten
from evalfleet.server.drivers.relay import Relay
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
from evalfleet.server.driving import Ended, Failure, Sink, Turn
from evalfleet.surroundings import user_environment
from evalfleet.treeconfig import HttpHarness

_ACCEPT = "application/x-ndjson, text/event-stream, application/json, text/plain"
_JSON_LINES = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"})
_TEXT = frozenset({"", "text/plain", "text/markdown"})


class HttpDriver:
    """Runs `[harness.http]`."""

    def __init__(self, harness: HttpHarness, *, environ: Mapping[str, str] | None = None) -> None:
        self._harness = harness
        self._environ = user_environment() if environ is None else environ
        self._client: httpx.AsyncClient | None = None

    def check(self) -> None:
        """ConfigError if a header's variable is not set; SettingError if the service's proxy cannot be used."""
        self._headers()
        way_to(self._harness.url, self._environ)

    async def run(self, turn: Turn, sink: Sink) -> Ended:
        relay = Relay(sink)
        url = self._harness.url
        try:
            headers = self._headers()
            if self._client is None:
                self._client = make_client(url)
        except OperatorError as error:
            return Ended(Failure("agent_not_started", error.message))
        sent = {"Content-Type": "application/json", "Accept": _ACCEPT, **headers}
        try:
            async with ask(self._client, url, turn_document(turn), sent) as response:
                if not response.is_success:
                    body = await read_some(url, response)
                    failure = status_failure(url, response.status_code, body, headers.values(), prefix="agent_http")
                    return refused(url, response.status_code, response.headers, failure)
                answer = read_answer(media_type(response.headers), pieces(url, response), address(url))
                async with aclosing(answer):
                    async for lines in answer:
                        await relay.report(lines)
                        if relay.broken:
                            break
        except Lost as lost:
            return lost.ended
        return Ended(relay.failure, relay.busy)

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _headers(self) -> dict[str, str]:
        return {
            header: secret(self._environ, name, f"[harness.http] headers_env {header}")
            for header, name in self._harness.headers_env.items()
        }


async def read_answer(kind: str, coming: AsyncGenerator[bytes], where: str) -> AsyncGenerator[list[AgentLine]]:
    """The protocol's lines in an answer of media type `kind`, as its bytes come. `where` names it in a message."""
    if kind == "text/event-stream":
        reader: _Events | _Whole | AgentOutput = _Events()
    elif kind in _JSON_LINES:
        reader = AgentOutput("lines")
    elif kind == "application/json":
        reader = _Whole()
    elif kind in _TEXT:
        reader = AgentOutput()
    else:
        wanted = "application/x-ndjson, text/event-stream, application/json or text/plain"
        yield [Broken("agent_protocol", f"{where} answers with {kind}; an agent answers with {wanted}")]
        return
    async with aclosing(coming):
        async for piece in coming:
            lines = reader.feed(piece)
            yield lines
            if lines and isinstance(lines[-1], Broken):
                return
    yield reader.finish()


class _Events:
    """Server-sent events whose data are the protocol's objects. `[DONE]` and empty data say nothing."""

    def __init__(self) -> None:
        self._decoder = SSEDecoder(max_event_bytes=LINE_LIMIT)
        self._total = 0
        self._number = 0

    def feed(self, piece: bytes) -> list[AgentLine]:
        self._total += len(piece)
        if self._total > TOTAL_LIMIT:
            return [_too_large()]
        try:
            events = self._decoder.feed(piece)
        except UnreadableAnswer as error:
            return [Broken("agent_output_too_large", str(error))]
        return list(self._lines(event.data.strip() for event in events))

    def finish(self) -> list[AgentLine]:
        return self.feed(b"\n\n")  # a last event without its blank line still counts: nothing else will come

    def _lines(self, texts: Iterator[str]) -> Iterator[AgentLine]:
        for text in texts:
            self._number += 1
            if text and text != "[DONE]":
                yield read_line(text, f"event {self._number}")


class _Whole:
    """One JSON object: `{"answer": …}` (text or any JSON), or one object of the protocol."""

    def __init__(self) -> None:
        self._body = bytearray()

    def feed(self, piece: bytes) -> list[AgentLine]:
        self._body += piece
        return [_too_large()] if len(self._body) > LINE_LIMIT else []

    def finish(self) -> list[AgentLine]:
        text = self._body.decode("utf-8", errors="replace").strip()
        if not text:
            return []
        try:
            document = jsontext.loads(text)
        except ValueError as error:
            return [self._broken(f"is not JSON ({error})", text)]
        if isinstance(document, dict) and document.get("type") in KINDS:
            return [from_document(document, "the object")]
        if not isinstance(document, dict) or "answer" not in document:
            return [self._broken("has no `answer`", text)]
        answer = document["answer"]
        return [] if answer is None else [AnswerLine(answer)]

    def _broken(self, what: str, text: str) -> Broken:
        return Broken("agent_protocol", f"the agent's JSON {what}; it starts: {shorten(text, 120)}")


def _too_large() -> Broken:
    return Broken("agent_output_too_large", "the agent's answer is larger than an answer may be (docs/agents.md)")
