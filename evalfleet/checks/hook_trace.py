"""Was each hook point reached, did it decide, and what did it say when it failed?

A fold of a run's journal, or of any hook calls in the order they came, into one line for each point. A hook that
agrees and one that times out make the same conversation; here they differ.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from evalfleet.checks.hooks import NO_ANSWER
from evalfleet.checks.text import one_line, plain_number
from evalfleet.checks.trial import HookCall

DEFERRED = "use_default"
LAST = 3
"""Failures that are shown in the hook's own words."""
MOST_OF_A_FAILURE = 200


@dataclass(frozen=True, slots=True)
class HookPoint:
    """One point of the loop. `reached`: times it was asked; `default`: of these, times it did not decide (it deferred,
    failed, or its answer was unreadable); `failures`: of these, times it failed; `median_ms` over the times that are
    known. `last`: its last failures, the newest last. `sources`: who was asked, in the order they first came."""

    name: str
    reached: int
    default: int
    failures: int
    median_ms: float | None
    last: tuple[str, ...]
    sources: tuple[str, ...]

    def sentence(self) -> str:
        """`reached 4 times, 2 by default (1 failure), median 12ms (hooks/stay.py); last failures: …`."""
        parts = [f"reached {_times(self.reached)}"]
        failed = f" ({self.failures} failure{'' if self.failures == 1 else 's'})" if self.failures else ""
        parts.append(f"{self.default} by default{failed}" if self.default else "decided each time")
        if self.median_ms is not None:
            parts.append(f"median {plain_number(round(self.median_ms, 1))}ms")
        source = f" ({', '.join(self.sources)})" if self.sources else ""
        which = "last failure" if len(self.last) == 1 else "last failures"
        said = f"; {which}: {' | '.join(self.last)}" if self.last else ""
        return one_line(", ".join(parts) + source, 400) + said

    def document(self) -> dict[str, Any]:
        """One entry of `hook-trace --json`."""
        return {
            "hook": self.name,
            "reached": self.reached,
            "default": self.default,
            "failures": self.failures,
            "median_ms": self.median_ms,
            "last_failures": list(self.last),
            "sources": list(self.sources),
        }


def hook_trace(calls: Iterable[HookCall]) -> list[HookPoint]:
    """One for each hook point, in the order they were first reached. A fallback that follows the failure it stands for
    is not a second question; one alone is a failure (S22)."""
    points: dict[str, _Point] = {}
    for call in calls:
        points.setdefault(call.hook, _Point()).take(call)
    return [point.folded(name) for name, point in points.items()]


def never_reached(points: Sequence[HookPoint], known: Iterable[str]) -> Iterator[str]:
    """The known hook points at which nobody was asked."""
    seen = {point.name for point in points}
    return (name for name in known if name not in seen)


@dataclass(slots=True)
class _Point:
    reached: int = 0
    default: int = 0
    failures: list[str] = field(default_factory=list)
    count: int = 0
    replays_due: int = 0
    durations: list[float] = field(default_factory=list)
    sources: dict[str, None] = field(default_factory=dict)

    def take(self, call: HookCall) -> None:
        if call.source:
            self.sources[call.source] = None
        if call.duration_ms is not None:
            self.durations.append(call.duration_ms)
        if call.fallback and self.replays_due:
            self.replays_due -= 1
            if call.error and self.failures and self.failures[-1] in NO_ANSWER:
                self.failures[-1] = call.error  # the call itself had no words
            return
        self.reached += 1
        if call.decision == DEFERRED or call.decision in NO_ANSWER:
            self.default += 1
        if call.decision in NO_ANSWER:
            self.count += 1
            self.replays_due += not call.fallback
            self.failures = [*self.failures, call.error or call.decision][-LAST:]

    def folded(self, name: str) -> HookPoint:
        return HookPoint(
            name=name,
            reached=self.reached,
            default=self.default,
            failures=self.count,
            median_ms=statistics.median(self.durations) if self.durations else None,
            last=tuple(one_line(said, MOST_OF_A_FAILURE) for said in self.failures),
            sources=tuple(self.sources),
        )


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
