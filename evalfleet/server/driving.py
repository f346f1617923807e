"""What does the server ask of whatever runs an agent, and how does that report back?

A *driver* plays one turn: it gets a `Turn`, tells what the agent does through a `Sink` in the order it happens, and
says with `Ended` how it went. The drivers that ship live in `evalfleet.server.drivers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Turn:
    """One run, as an agent needs to see it.

    `turn` counts from 0 inside the chat. `message` is the text of the user's parts joined by a line feed (a `json` part
    is compact JSON, a `file` part its URL). `history` holds the earlier turns of the chat, oldest first, as
    (role, text) with role `user` or `assistant`. `metadata` is the run's own; `raw_input` the `input` as posted.
    """

    run_id: str
    chat_id: str
    turn: int
    message: str
    history: tuple[tuple[str, str], ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    raw_input: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run failed, as the wire shows it."""

    code: str
    message: str
    retryable: bool = False


HARNESS_CHANGED: Final = "harness_changed"
"""The code of a run during which the harness's files were not those of its commit: no result, whatever else it was. A
launch is refused with the same word in `errors[]` (S33)."""


@dataclass(frozen=True, slots=True)
class Busy:
    """The agent's endpoint did not play the turn now. `why` in words that show no secret.

    `seconds`: how long it asks to wait, None where it does not say. `limited`: it says "later" itself, so that it is
    asked again for as long as it says so; else it is away. `again`: nothing was done for this turn, so that it can be
    asked for again within the same run.
    """

    why: str
    seconds: float | None = None
    limited: bool = False
    again: bool = True


@dataclass(frozen=True, slots=True)
class Ended:
    """How the agent's turn went; `failure` is None when it went well (with or without an answer, S21). `busy`: beside a
    failure that is the endpoint's limit or absence; the failure stands where the turn is not asked for again."""

    failure: Failure | None = None
    busy: Busy | None = None


class Call(NamedTuple):
    """A tool call as the agent makes it. Its id is the agent's own, and may come again."""

    id: str
    name: str
    args: Any


class OtherCurrency(ValueError):
    """Usage in another currency than the chat's: one chat has one, since amounts of two are never added."""

    def __init__(self, named: str, before: str) -> None:
        super().__init__(
            f"the agent's output has usage in {named} after {before}: the turns of one chat report one currency"
        )


class Sink(Protocol):
    """How a driver reports. Each call is awaited and returns when the report is in order (back-pressure)."""

    async def tool_calls(self, calls: Sequence[Call]) -> None:
        """The agent calls tools, all at once: one assistant message with a `tool_call` part for each."""
        ...

    async def tool_result(self, call_id: str, output: Any) -> None:
        """What that tool answered: a message of role `tool`."""
        ...

    async def hook(
        self,
        hook: str,
        decision: str,
        source: str | None = None,
        duration_ms: float | None = None,
        error: str | None = None,
    ) -> None:
        """A hook of the agent was asked and decided: `hook.called` in the journal. `error`: its own words about why
        it failed."""
        ...

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
        """What the turn has used since the last such report; reports add up. `amount` is money, exact, in `currency`:
        three capital letters; None: that of the chat's other usage, else USD. Raises OtherCurrency for a second one."""
        ...

    async def answer(self, value: Any) -> None:
        """The agent's answer (text or JSON); a later one takes the earlier one's place as the final message."""
        ...

    async def note(self, message: str) -> None:
        """What a person has to know of this turn and no check asks for: `agent.note` in the journal. One sentence."""
        ...


class Driver(Protocol):
    """Runs the agent of one harness."""

    async def run(self, turn: Turn, sink: Sink) -> Ended:
        """Play one turn. On cancellation it ends the agent (5 s to leave, then for good) before it re-raises."""
        ...

    async def aclose(self) -> None:
        """End everything that is still going, at once: what still runs is killed. Returns within a second."""
        ...
