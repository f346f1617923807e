"""How are graders run: how many at once, in which cage, and who answers their `t.llm`?

One cage (`evalfleet.graders.cage`) for each bundle and settings, started when first needed, replaced when it died. The
pool only waits: limits are held by a process for each call, so a busy loop or a long queue never delays a kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal

from evalfleet.checks.outcome import GraderAnswer
from evalfleet.contract.retry import backoff
from evalfleet.errors import UnfitHost
from evalfleet.graders.cage import Allowed, Cage, CageLost, Ending, GraderSettings
from evalfleet.graders.ending import end_sentence
from evalfleet.graders.inside.faults import CAGE_COMPLAINT, CAGE_EXIT
from evalfleet.graders.inside.frames import Garbled
from evalfleet.graders.judge_call import JudgeNotConfigured, JudgeUnavailable, LlmAnswer, LlmCall, PromptRefused
from evalfleet.money import by_currency

__all__ = [
    "GraderPool", "GraderSettings", "JudgeNotConfigured", "JudgeUnavailable", "LlmAnswer", "LlmCall", "PromptRefused",
]  # fmt: skip

CAGES_KEPT = 8
TRIES = 2  # of a call whose cage was lost under it
_LLM_FIRST_DELAY = 0.5
_LLM_MOST_DELAYS = 16  # times the first: the longest pause between two tries
_BEYOND = 5.0  # seconds that a try may go on past the limit, which ends it: so a slow judge never looks like a lost one


@dataclass(slots=True)
class _Judging:
    """The judge calls of one grader call: what they cost in each currency, and the trouble that ended them."""

    llm: LlmCall | None
    deadline: float
    delay: float
    calls: int = 0
    tokens: int = 0
    amounts: dict[str, Decimal] = field(default_factory=dict)
    kind: Literal["judge_unavailable", "stopped", "error"] | None = None
    trouble: str = ""
    sent_at: float | None = None
    """`time.monotonic()` of the try that has no answer yet."""

    async def ask(self, asked: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The judge's answer for the grader; None ends the call. Tried again inside the limit (S26)."""
        if self.llm is None:
            self.kind, self.trouble = "stopped", "a grader called t.llm and no judge is configured; [judge] names one"
            return None
        self.calls += 1
        self.trouble = ""
        for attempt in itertools.count():
            self.sent_at = time.monotonic()
            try:
                left = max(self.deadline - self.sent_at, 0.0)
                answer = await self.llm(asked["prompt"], asked["model"], left + _BEYOND)
            except JudgeNotConfigured as error:
                self.kind, self.trouble = "stopped", error.message
                return None
            except PromptRefused as error:
                self.kind, self.trouble = "error", error.message
                return None
            except JudgeUnavailable as error:
                self.sent_at, self.trouble = None, error.message
                delay = backoff(attempt, random.random(), first=self.delay, most=_LLM_MOST_DELAYS * self.delay)
                delay = max(delay, error.retry_after or 0.0)
                if time.monotonic() + delay >= self.deadline:
                    self.kind = "judge_unavailable"
                    return None
                await asyncio.sleep(delay)
            else:
                self.trouble = ""
                self.tokens += answer.tokens
                with contextlib.suppress(InvalidOperation):
                    if answer.amount is not None:
                        spent = (answer.currency or "USD", Decimal(answer.amount))
                        self.amounts = by_currency([*self.amounts.items(), spent])
                return {"text": answer.text, "tokens": answer.tokens}
        raise AssertionError  # it counts without end

    def is_away(self, limit: float) -> bool:
        """At the limit, inside t.llm: had the judge refused, and did the try that followed last less than half of it?
        Else the judge is there and slow, and the limit is the grader's as any other (S26)."""
        waited = 0.0 if self.sent_at is None else time.monotonic() - self.sent_at
        return bool(self.trouble) and 2 * waited < limit


@dataclass(slots=True)
class _Slot:
    """A cage, or the start of one."""

    cage: Cage | None = None
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class GraderPool:
    """At most `workers` graders at once, each with `limit_s` seconds for everything it does (S24). One event loop.

    `allowed` "plain" does without namespaces, as a host that has none."""

    def __init__(
        self,
        *,
        workers: int,
        limit_s: float = 30.0,
        llm_delay_s: float = _LLM_FIRST_DELAY,
        allowed: Allowed = "best",
    ) -> None:
        self.limit_s = limit_s
        self._allowed = allowed
        self._llm_delay = llm_delay_s
        self._free = asyncio.Semaphore(workers)
        self._slots: dict[tuple[Path, GraderSettings], _Slot] = {}
        self._closed = False

    async def grade(
        self,
        bundle_folder: Path,
        config: GraderSettings,
        name: str,
        case: dict[str, Any],
        run: dict[str, Any],
        llm: LlmCall | None,
        *,
        about: Mapping[str, Any] | None = None,
        judge: str = "the judge",
    ) -> GraderAnswer:
        """One call of the grader `name` ("file.function") in the unpacked bundle. `case` and `run` by S27; `about`:
        what `t` knows of the trial (`judging.about`); `judge`: who answers `llm`, for sentences.

        Everything a grader does comes back as a value. Raises UnfitHost only where this host lost the cage twice: the
        attempt is then nobody's failure, and may be graded elsewhere. When cancelled, the grader is killed."""
        file, _, function = name.partition(".")
        request = {"op": "grade", "file": file, "function": function, "case": case, "run": run, "about": about or {}}
        lost = ""
        async with self._free:
            for _ in range(TRIES):
                judging = _Judging(llm, 0.0, self._llm_delay)
                try:
                    async with self._cage(bundle_folder, config) as cage:
                        judging.deadline = time.monotonic() + self.limit_s
                        ending = await cage.call(request, limit=self.limit_s, on_llm=judging.ask)
                except CageLost as error:
                    lost = str(error)
                    continue
                except Garbled as error:
                    return GraderAnswer(name=name, kind="error", error=f"the run cannot be handed to it: {error}")
                except UnfitHost as error:
                    return GraderAnswer(name=name, kind="stopped", error=error.message)
                if ending.end == "died" and _is_cage_exit(ending):
                    lost = ending.log.strip()
                    continue
                return _answer(name, ending, judging, self.limit_s, judge)
        raise UnfitHost(f"{name} could not be run on this host: {lost}")

    @contextlib.asynccontextmanager
    async def _cage(self, folder: Path, config: GraderSettings) -> AsyncIterator[Cage]:
        if self._closed:
            raise CageLost("the grader pool is closed")
        key = (folder, config)
        slot = self._slots.pop(key) if key in self._slots else _Slot()
        self._slots[key] = slot  # the newest is last
        slot.users += 1
        try:
            async with slot.starting:
                if slot.cage is not None and not slot.cage.alive:
                    dead, slot.cage = slot.cage, None
                    await dead.aclose()
                if slot.cage is None:
                    slot.cage = await Cage.start(folder, config, allowed=self._allowed)
            await self._drop_surplus()
            yield slot.cage
        finally:
            slot.users -= 1

    async def _drop_surplus(self) -> None:
        idle = [key for key, slot in self._slots.items() if slot.users == 0]
        for key in idle[: max(len(self._slots) - CAGES_KEPT, 0)]:
            cage = self._slots.pop(key).cage
            if cage is not None:
                await cage.aclose()

    async def drop(self, folder: Path) -> None:
        """End the cages of an unpacked bundle, of which no call is under way."""
        for key in [key for key in self._slots if key[0] == folder]:
            cage = self._slots.pop(key).cage
            if cage is not None:
                await cage.aclose()

    async def aclose(self) -> None:
        """End every grader and every cage. Calls under way raise."""
        self._closed = True
        cages = [slot.cage for slot in self._slots.values() if slot.cage is not None]
        self._slots.clear()
        await asyncio.gather(*(cage.aclose() for cage in cages))


def _is_cage_exit(ending: Ending) -> bool:
    """The child's own word that its walls did not stand: before any code of the grader's ran."""
    return ending.status == CAGE_EXIT << 8 and ending.log.startswith(CAGE_COMPLAINT)


def _answer(name: str, ending: Ending, judging: _Judging, limit: float, judge: str) -> GraderAnswer:
    kind, error = "error", None
    answer: Mapping[str, Any] = {}
    if judging.kind is not None and ending.end == "stopped":
        kind, error = judging.kind, judging.trouble
    elif ending.end == "said" and "answer" in ending.said:
        kind, answer = "answered", ending.said["answer"]
    elif ending.end == "said":
        error = str(ending.said["error"])
    elif ending.end == "limit" and ending.in_llm and judging.is_away(limit):
        kind, error = "judge_unavailable", judging.trouble
    else:
        error = end_sentence(ending, limit, judge)
        if ending.end == "limit" and ending.in_llm and judging.trouble:
            error += f"; before that it failed: {judging.trouble}"
    currency, amount = next(iter(judging.amounts.items())) if len(judging.amounts) == 1 else (None, None)
    return GraderAnswer(
        name=name,
        kind=kind,
        passed=answer.get("pass"),
        score=answer.get("score"),
        why=answer.get("why"),
        error=error,
        log=ending.log,
        duration_ms=ending.ms,
        llm_calls=judging.calls,
        llm_tokens=judging.tokens,
        llm_amount=None if amount is None else format(amount, "f"),
        llm_currency=currency,
    )
