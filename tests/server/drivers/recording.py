"""A sink that keeps what it is told, and says when the first thing came: for tests of drivers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from evalfleet.server.driving import Call, Turn


class Recording:
    def __init__(self, *, refuse: BaseException | None = None) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.started = asyncio.Event()
        self._refuse = refuse

    def _note(self, *what: Any) -> None:
        if self._refuse is not None:
            raise self._refuse
        self.said.append(what)
        self.started.set()

    @property
    def answers(self) -> list[Any]:
        return [what[1] for what in self.said if what[0] == "answer"]

    async def tool_calls(self, calls: Sequence[Call]) -> None:
        self._note("tool_calls", *calls)

    async def tool_result(self, call_id: str, output: Any) -> None:
        self._note("tool_result", call_id, output)

    async def hook(
        self,
        hook: str,
        decision: str,
        source: str | None = None,
        duration_ms: float | None = None,
        error: str | None = None,
    ) -> None:
        self._note("hook", hook, decision, source, duration_ms)

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
        self._note("usage", input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, amount, currency)

    async def answer(self, value: Any) -> None:
        self._note("answer", value)

    async def note(self, message: str) -> None:
        self._note("note", message)


def a_turn(message: str = "hello", *, chat: str = "chat_1", **more: Any) -> Turn:
    return Turn(run_id=more.pop("run_id", "run_1"), chat_id=chat, turn=more.pop("turn", 0), message=message, **more)
