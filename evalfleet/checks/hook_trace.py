"""Was each hook point reached, did it decide, and what did it say when it failed?

A fold of a run's journal, or of any hook calls in the order they came, into one line for each point. A hook that
agrees and one that times out make the same conversation; here they differ.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from evalfleet.checks.hooks import NO_ANSWER, by_the_platform, questions
from evalfleet.checks.text import one_line, plain_number
from evalfleet.checks.trial import HookCall

DEFERRED = "use_default"
LAST = 3
"""Failures that are shown in the hook's own words."""
MOST_OF_A_FAILURE = 200


@dataclass(frozen=True, slots=True)
class HookPoint:
    """One point of the loop. `reached`: times a hook of the tree was asked; `default`: of these, times it did not
    decide (it deferred, failed, or its answer was unreadable); `failures`: of these, times it failed; `median_ms` over
    the times that are known. `last`: its last failures, the newest last. `sources`: which files were asked, in the
    order they first came. `by_platform`: times the platform's own code answered instead, in none of the others."""

    name: str
    reached: int
    default: int
    failures: int
    median_ms: float | None
    last: tuple[str, ...]
    sources: tuple[str, ...]
    by_platform: int = 0

    def sentence(self) -> str:
        """`reached 4 times, 2 by default (1 failure), median 12ms (hooks/stay.py); last failures: …`."""
        own = f"the platform's own code answered {_times(self.by_platform)}" if self.by_platform else ""
        if not self.reached:
            return f"no hook file of the tree was asked; {own}" if own else "never asked"
        parts = [f"reached {_times(self.reached)}"]
        failed = f" ({self.failures} failure{'' if self.failures == 1 else 's'})" if self.failures else ""
        parts.append(f"{self.default} by default{failed}" if self.default else "decided each time")
        if self.median_ms is not None:
            parts.append(f"median {plain_number(round(self.median_ms, 1))}ms")
        source = f" ({', '.join(self.sources)})" if self.sources else ""
        which = "last failure" if len(self.last) == 1 else "last failures"
        said = f"; {which}: {' | '.join(self.last)}" if self.last else ""
        beside = f"; {own}" if own else ""
        return one_line(", ".join(parts) + source, 400) + said + beside

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
            "by_platform": self.by_platform,
        }


def hook_trace(calls: Iterable[HookCall]) -> list[HookPoint]:
    """One for each hook point, in the order they were first reached, read as `hook_called` reads them (S22)."""
    seen = list(calls)
    asked: dict[str, list[HookCall]] = {call.hook: [] for call in seen}
    for call in questions(seen):
        asked[call.hook].append(call)
    own = Counter(call.hook for call in seen if by_the_platform(call))
    return [_folded(name, asked[name], own[name]) for name in asked]


def never_reached(points: Sequence[HookPoint], known: Iterable[str]) -> Iterator[str]:
    """The known hook points that do not appear in the journal."""
    seen = {point.name for point in points}
    return (name for name in known if name not in seen)


def _folded(name: str, asked: Sequence[HookCall], by_platform: int) -> HookPoint:
    failed = [call for call in asked if call.decision in NO_ANSWER]
    durations = [call.duration_ms for call in asked if call.duration_ms is not None]
    return HookPoint(
        name=name,
        reached=len(asked),
        default=sum(call.decision == DEFERRED for call in asked) + len(failed),
        failures=len(failed),
        median_ms=statistics.median(durations) if durations else None,
        last=tuple(one_line(call.error or call.decision, MOST_OF_A_FAILURE) for call in failed[-LAST:]),
        sources=tuple(dict.fromkeys(call.source for call in asked if call.source)),
        by_platform=by_platform,
    )


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
