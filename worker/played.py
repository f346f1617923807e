"""What comes of playing a conversation: its tries, what was played, what was given up, and why it was left.

Values and nothing else: `worker.play` makes them, `worker.tasks` and `worker.evidence` read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evalfleet.checks.outcome import RunMeaning
from evalfleet.checks.trial import TurnRecord
from evalfleet.givenup import entry
from evalfleet.plan import Attempt


@dataclass(slots=True)
class Try:
    """One try of a conversation, as the artifact keeps it: {try, chat_id, run_ids, reason, code, usage}. `reason` and
    `code` say why it had no result."""

    number: int
    chat_id: str | None = None
    run_ids: list[str] = field(default_factory=list)
    reason: str | None = None
    code: str | None = None
    usage: Mapping[str, Any] | None = None
    is_over: bool = False
    """Its chat has come to its end, and its usage was asked for."""

    def to_json(self) -> dict[str, Any]:
        return {
            "try": self.number,
            "chat_id": self.chat_id,
            "run_ids": list(self.run_ids),
            "reason": self.reason,
            "code": self.code,
            "usage": None if self.usage is None else dict(self.usage),
        }


@dataclass(frozen=True, slots=True)
class Played:
    """One scored scenario that has something to judge."""

    attempt: Attempt
    turns: tuple[TurnRecord, ...]
    meaning: RunMeaning
    tries: tuple[dict[str, Any], ...]
    not_played: str | None = None
    link: Mapping[str, Any] | None = None
    """The run to record when no turn of this scenario was played: the chat's last (S8)."""
    usage: Mapping[str, Any] | None = None
    context: bool = False
    """Played because a later scenario needs it: for the artifact, never scored (S9)."""


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The conversation ended without a result for these attempts; a resume plays them again. `scenario`: the index of
    the one whose reason it is; None: of all."""

    attempts: tuple[Attempt, ...]
    reason: str
    code: str
    tries: tuple[dict[str, Any], ...] = ()
    scenario: int | None = None

    def entry(self) -> dict[str, Any]:
        """What the ledger keeps of it."""
        return entry(self.reason, self.code, scenario=self.scenario)


class StopSubmission(Exception):
    """Every further launch would fail too (S17); says so in words for people and a word for programs."""

    def __init__(self, reason: str, code: str) -> None:
        super().__init__(reason)
        self.reason, self.code = reason, code


class Draining(Exception):
    """The command is leaving: this conversation starts no further run and goes back."""


class TurnedAway(Exception):
    """The target takes or answers nothing now. The conversation goes back, and whoever plays it next finds its runs;
    `gave_up` is what is given up if it is turned away where others are not."""

    def __init__(self, gave_up: GaveUp) -> None:
        super().__init__(gave_up.reason)
        self.gave_up = gave_up


def fault_of_ours(fault: Exception) -> str:
    return f"a fault of evalfleet's, please report it: {type(fault).__name__}: {fault}"
