"""How does what an agent said become what the server reports? One place for all drivers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from evalfleet.server.drivers.protocol import (
    AgentLine,
    AnswerLine,
    Broken,
    ErrorLine,
    HookLine,
    NoteLine,
    ToolCallsLine,
    ToolResultLine,
    UsageLine,
)
from evalfleet.server.driving import Busy, Failure, OtherCurrency, Sink


class Relay:
    """Passes lines on to a sink, in order, and remembers why the turn failed.

    `failure` is the first `error` line, or the breach of the protocol; a breach outweighs an earlier `error` line.
    `busy` where that line is `rate_limited`: how long the agent's own provider asks to wait.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.failure: Failure | None = None
        self.busy: Busy | None = None
        self.broken = False

    async def report(self, lines: Iterable[AgentLine]) -> None:
        for line in lines:
            await self._report(line)

    async def _report(self, line: AgentLine) -> None:
        match line:
            case ToolCallsLine():
                await self._sink.tool_calls(line.calls)
            case ToolResultLine():
                await self._sink.tool_result(line.id, line.output)
            case HookLine():
                await self._sink.hook(line.hook, line.decision, line.source, line.duration_ms, line.error)
            case UsageLine():
                await self._use(line)
            case AnswerLine():
                await self._sink.answer(line.value)
            case NoteLine():
                await self._sink.note(line.message)
            case ErrorLine():
                if self.failure is None:
                    self.failure, self.busy = Failure(line.code, line.message, line.retryable), _busy(line)
            case Broken():
                self.broken, self.busy = True, None
                self.failure = Failure(line.code, line.message)
            case _:
                assert_never(line)

    async def _use(self, line: UsageLine) -> None:
        try:
            await self._sink.usage(
                input_tokens=line.input_tokens,
                output_tokens=line.output_tokens,
                cache_read_tokens=line.cache_read_tokens,
                cache_write_tokens=line.cache_write_tokens,
                amount=line.amount,
                currency=line.currency,
            )
        except OtherCurrency as other:
            self.broken, self.busy = True, None
            self.failure = Failure("agent_protocol", str(other))


def _busy(line: ErrorLine) -> Busy | None:
    if line.code != "rate_limited":
        return None
    asks = "is limited" if line.retry_after is None else f"asks to wait {line.retry_after:.0f} s"
    return Busy(f"the agent {asks}: {line.message[:200]}", line.retry_after, limited=line.retry_after is not None)
