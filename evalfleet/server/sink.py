"""What becomes of an agent's report? Journal entries, messages and totals, written in order and in groups.

The first report is written at once; what comes while a write is on its way goes with the next one. A report is awaited
only when too much is waiting (back-pressure on an agent that floods).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import Connection

from evalfleet.money import exact_sum
from evalfleet.server import pulse
from evalfleet.server.documents import counted, money_text, now, text_of
from evalfleet.server.driving import Call, OtherCurrency
from evalfleet.server.journal import Appended, Entry, Event, Message, Output, append
from evalfleet.server.spending import DEFAULT
from evalfleet.server.store import Store
from evalfleet.server.streams import Streams

WAITING_ENTRIES: Final = 256
WAITING_BYTES: Final = 1024 * 1024


class RunSink:
    """The `Sink` of one run. `drain()` hands over what is not written yet, for the write that ends the run.

    `waited`: seconds for which the store kept the agent waiting, in waits long enough to matter (S17). `is_silent`:
    the agent has done nothing that a journal shows, so that its turn can be asked for again.
    """

    def __init__(self, run_id: str, store: Store, streams: Streams, *, currency: str | None = None) -> None:
        """`currency`: the one of the chat's earlier usage."""
        self.waited = 0.0
        self.is_silent = True
        self._run_id = run_id
        self._store = store
        self._streams = streams
        self._entries: list[Entry] = []
        self._bytes = 0
        self._writing: asyncio.Task[None] | None = None
        self._answer: str | None = None
        self._tokens = {"input_tokens": 0, "output_tokens": 0, "cache_read_tokens": 0, "cache_write_tokens": 0}
        self._tool_calls = 0
        self._amount: Decimal | None = None
        self._currency = currency

    # -- the driver's side

    async def tool_calls(self, calls: Sequence[Call]) -> None:
        self._tool_calls += len(calls)
        said = [{"type": "tool_call", "tool_call": {"id": c.id, "name": c.name, "args": c.args}} for c in calls]
        await self._add(Message("assistant", _json_parts(*said), now()))

    async def tool_result(self, call_id: str, output: Any) -> None:
        result = {"type": "tool_result", "tool_result": {"tool_call_id": call_id, "output": output, "metadata": {}}}
        await self._add(Message("tool", _json_parts(result), now()))

    async def hook(
        self,
        hook: str,
        decision: str,
        source: str | None = None,
        duration_ms: float | None = None,
        error: str | None = None,
    ) -> None:
        data = {"hook": hook, "source": source, "decision": decision, "duration_ms": duration_ms}
        data |= {"error": error} if error is not None else {}
        await self._add(Event("hook.called", text_of(data), now()))

    async def usage(
        self,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cache_read_tokens: int = 0,
        cache_write_tokens: int = 0,
        amount: Decimal | str | int | None = None,
        currency: str | None = None,
    ) -> None:
        if currency is not None and currency != (self._currency or currency):
            raise OtherCurrency(currency, self._currency or "")
        used = {
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "cache_read_tokens": cache_read_tokens,
            "cache_write_tokens": cache_write_tokens,
        }
        self._tokens = {name: counted(self._tokens[name], count) for name, count in used.items()}
        if amount is not None:
            currency = currency or self._currency or DEFAULT
            self._amount = exact_sum([self._amount or Decimal(0), Decimal(amount)])
        if currency is not None:
            self._currency = currency
        totals = {
            **self._tokens,
            "total_tokens": counted(*self._tokens.values()),
            "tool_calls": self._tool_calls,
            "amount": money_text(self._amount or Decimal(0)),
            "currency": self._currency or DEFAULT,
        }
        await self._add(Event("usage.updated", text_of(totals), now()))

    async def answer(self, value: Any) -> None:
        self._answer = text_of(value)
        part = {"type": "text", "text": value} if isinstance(value, str) else {"type": "json", "value": value}
        await self._add(Message("assistant", text_of([part]), now()))

    async def note(self, message: str) -> None:
        await self._add(Event("agent.note", text_of({"message": message}), now()))

    # -- the runner's side

    async def drain(self, at: str) -> tuple[list[Entry], Mapping[str, Any]]:
        """Wait for the write on its way; then what is left, with the final message, and the run's totals. `at`: when
        the agent ended."""
        if self._writing is not None:
            await self._writing
        entries = self._taken()
        if self._answer is not None:
            entries.append(Output("result", "final_message", self._answer, at))
        return entries, self._totals()

    async def _add(self, entry: Entry) -> None:
        self.is_silent = self.is_silent and isinstance(entry, Event) and entry.type == "usage.updated"
        self._entries.append(entry)
        self._bytes += 200 + (len(entry.data) if isinstance(entry, Event) else len(_body(entry)))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name=f"journal {self._run_id}")
        elif self._writing.done():
            self._writing.result()  # the journal cannot be written: the driver hears it here
        if len(self._entries) > WAITING_ENTRIES or self._bytes > WAITING_BYTES:
            began = pulse.elapsed()
            await asyncio.shield(self._writing)
            waited = pulse.elapsed() - began
            self.waited += waited if waited >= pulse.GAP else 0.0

    async def _write(self) -> None:
        while self._entries:
            entries, totals = self._taken(), self._totals()

            def fn(connection: Connection, entries: list[Entry] = entries, totals: Any = totals) -> Appended:
                return append(connection, self._run_id, entries, totals)

            await self._store.write(fn, on_commit=self._streams.publish)
        self._writing = None

    def _taken(self) -> list[Entry]:
        entries, self._entries, self._bytes = self._entries, [], 0
        return entries

    def _totals(self) -> dict[str, Any]:
        return {
            **self._tokens,
            "tool_calls": self._tool_calls,
            "amount": None if self._amount is None else money_text(self._amount),
            "currency": None if self._amount is None else self._currency,
            "answer": self._answer,
        }


def _body(entry: Message | Output) -> str:
    return entry.content if isinstance(entry, Message) else entry.value


def _json_parts(*values: Any) -> str:
    return text_of([{"type": "json", "value": value} for value in values])
