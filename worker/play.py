"""How is one conversation played, so that playing it again costs nothing and decides the same?

One try (S14) is a fresh chat: every scenario in file order, every turn one run, each started after the former is
terminal (S8). A run's idempotency key is a pure function of plan, conversation, turn and try (I2): a worker that plays
a conversation again gets the finished runs back from the platform instead of paying for new ones. What a terminal run
means is decided by `evalfleet.checks.outcome.meaning_of` from the platform's own clock (S12). Nothing here writes to
Redis or to disk: each scored scenario is handed to the caller as soon as it is played.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from evalfleet.checks.outcome import HARNESS_CHANGED, STOPPING_CODES, Meaning, meaning_of, spent_seconds
from evalfleet.checks.trial import TurnRecord
from evalfleet.contract.client import Client, Created
from evalfleet.contract.leftovers import read_leftovers
from evalfleet.errors import HarnessMoved, JournalHole, PlatformError, ProblemAnswer, TargetUnreachable
from evalfleet.logs import now_about
from evalfleet.plan import Attempt, Conversation, Plan, Step, run_key
from evalfleet.telemetry import RUN_SECONDS
from worker.played import Draining, GaveUp, Played, StopSubmission, Try, TurnedAway
from worker.target import is_away
from worker.watch_run import CANCEL_GRACE_S, RunWatch

log = logging.getLogger(__name__)

TOLD_TO_WAIT = "rate_limited"
"""The code of a conversation that asked for nothing, because its target asks everybody to wait."""
WAIT_MOST_S = 60.0
"""A conversation whose next turn has to wait for longer goes back: its claim counts as an open run."""
CREATED_WITHIN_S = 5.0
"""How long a conversation that is left waits for the answer to a launch, to cancel that run."""
USAGE_WAIT_S = 10.0
"""How long `final` usage is awaited after the last turn (S15)."""
LEFT_USAGE_S = 2.0
"""The same, where the submission stops and a person waits for its end."""
STOPPING_STATUS = frozenset({401, 402, 403, 404, 422})
"""A launch refused with one of these would be refused every time: the submission stops (S17)."""


class _NoResult(Exception):
    """This try cannot give a result any more; the next one starts in a fresh chat. `final`: there is none. `away`: the
    target was not there to give one."""

    def __init__(self, reason: str, code: str, *, final: bool = False, away: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.code, self.final, self.away = reason, code, final, away


HandOver = Callable[[Played], Awaitable[None]]
FirstNewTry = Callable[[int], Awaitable[int]]


class Player:
    """Plays one conversation.

    `evidence` names the attempts that have a verdict already: they are played as context only (S14). `hand_over` takes
    each scored scenario. `first_new` is this command's first try of the conversation, if a worker has made one already,
    and `first_new_try` notes it (three new ones for each command). `play` answers None, or what it gave up on; it
    raises StopSubmission, TurnedAway, Draining as soon as it would start a run that `may_launch` forbids, and
    asyncio.CancelledError when the worker wants its claim back: then the open run is cancelled if `cancel_on_leave`
    says so, else it goes on and is found again. Before each turn but the first, which its claim has allowed, it waits
    for as many seconds as `wait_for` says, until that is 0.
    """

    def __init__(
        self,
        platform: Client,
        plan: Plan,
        conversation: Conversation,
        *,
        evidence: Collection[Attempt],
        hand_over: HandOver,
        first_new_try: FirstNewTry,
        first_new: int | None = None,
        may_launch: Callable[[], bool] = lambda: True,
        wait_for: Callable[[], Awaitable[float]] | None = None,
        cancel_on_leave: Callable[[], bool] = lambda: False,
    ) -> None:
        self.platform = platform
        self.plan = plan
        self.conversation = conversation
        self.case = plan.cases[conversation.case]
        self.open = [a for a in plan.attempts(conversation) if a not in set(evidence)]
        self.hand_over = hand_over
        self.first_new_try = first_new_try
        self.may_launch = may_launch
        self.wait_for = wait_for
        self.cancel_on_leave = cancel_on_leave
        self.tries: list[Try] = []
        self._limit = None if first_new is None else first_new + plan.limits.tries
        self._open_run: str | None = None
        self._found_again = False
        """The run that was launched last was there already: what had stopped everything then may be over."""
        self._at = 0

    async def play(self) -> GaveUp | None:
        try:
            return await self._play()
        except (Draining, StopSubmission):
            await self._read_what_was_spent()
            raise
        except asyncio.CancelledError:
            if self.cancel_on_leave():
                if self._open_run is not None:
                    await self._cancel_quietly(self._open_run)
                await self._read_what_was_spent()
            raise

    async def _play(self) -> GaveUp | None:
        number = 0
        while self.open:
            this = Try(number)
            self.tries.append(this)
            try:
                await self._play_try(this)
            except _NoResult as nothing:
                this.reason, this.code = nothing.reason, nothing.code
                if nothing.code in STOPPING_CODES and not self._found_again:
                    raise StopSubmission(nothing.reason, nothing.code) from nothing
                if nothing.away:
                    raise TurnedAway(self._gave_up(nothing.reason, nothing.code)) from nothing
                await self._read_usage(this)
                if nothing.final:
                    return self._gave_up(nothing.reason, nothing.code)
                if self._is_last(number):
                    tries = "1 try" if number == 0 else f"{number + 1} tries"
                    return self._gave_up(f"{nothing.reason} ({tries})", nothing.code)
            number += 1
        return None

    def _is_last(self, number: int) -> bool:
        """Is this the last try that the command may make? Not known before it, by any worker, has made its first."""
        return self._limit is not None and number + 1 >= self._limit

    def _gave_up(self, reason: str, code: str) -> GaveUp:
        return GaveUp(tuple(self.open), reason, code, tuple(t.to_json() for t in self.tries), self._at)

    async def _play_try(self, this: Try) -> None:
        steps = self.plan.steps(self.conversation)
        wanted = {a.scenario for a in self.open}
        until = max(wanted)
        turn_index = 0
        ended: str | None = None  # why the agent's conversation cannot go on
        last_run: Mapping[str, Any] | None = None
        for step in steps:
            if step.scenario > until:
                break
            self._at = step.scenario
            scenario = self.case.scenarios[step.scenario].scenario
            turns: list[TurnRecord] = []
            not_played: str | None = None
            for text in scenario.user:
                if ended is not None:
                    not_played = f"not played: {ended}"
                    break
                run = await self._launch(this, text, turn_index, scenario.id, last_run)
                if run is None:
                    assert last_run is not None
                    ended = f"{self._scenario_of(last_run)} ended the conversation: {_failure_text(last_run)}"
                    not_played = f"not played: {ended}"
                    break
                turn_index += 1
                record = await self._await(run, text, scenario.timeout - spent_seconds(turns), scenario.id)
                turns.append(record)
                last_run = record.run
                meaning = meaning_of(turns, timeout=scenario.timeout, infra_codes=self.plan.infra_codes)
                if meaning.meaning is not Meaning.RESULT:
                    break
            await self._settle(this, step, turns, not_played, last_run, final=step.scenario == until)

    async def _settle(
        self,
        this: Try,
        step: Step,
        turns: list[TurnRecord],
        not_played: str | None,
        last_run: Mapping[str, Any] | None,
        *,
        final: bool,
    ) -> None:
        """Decide what the scenario's turns mean and hand it over, or end this try."""
        scenario = self.case.scenarios[step.scenario].scenario
        meaning = meaning_of(turns, timeout=scenario.timeout, infra_codes=self.plan.infra_codes, not_played=not_played)
        if meaning.meaning is Meaning.NO_RESULT:
            raise _NoResult(meaning.reason, meaning.code)
        attempt = Attempt(self.conversation.case, step.scenario, self.conversation.trial)
        if attempt not in self.open and step.scored:
            return  # its evidence is there from an earlier try, or command
        if final:
            await self._read_usage(this)
        played = Played(
            attempt=attempt,
            turns=tuple(turns),
            meaning=meaning,
            tries=tuple(t.to_json() for t in self.tries),
            not_played=not_played,
            link=last_run if not turns else None,
            usage=this.usage if final else None,
            context=not step.scored,
        )
        await self.hand_over(played)
        if step.scored:
            self.open.remove(attempt)

    def _scenario_of(self, run: Mapping[str, Any]) -> str:
        return str((run.get("metadata") or {}).get("evalfleet.scenario", "an earlier scenario"))

    # -- one run ----------------------------------------------------------------------------------------------------

    async def _launch(
        self, this: Try, text: str, turn_index: int, scenario_id: str, former: Mapping[str, Any] | None
    ) -> Mapping[str, Any] | None:
        """Create the turn's run, or find it again. None: the agent's own failure ended the chat."""
        while turn_index and self.wait_for is not None and (seconds := await self.wait_for()) > 0:
            if seconds > WAIT_MOST_S:
                reason = f"the target asks to wait {seconds:.0f} s before the next turn"
                raise _NoResult(reason, TOLD_TO_WAIT, final=True, away=True)
            await asyncio.sleep(seconds)
        if not self.may_launch():
            raise Draining
        plan = self.plan
        body: dict[str, Any] = {
            "harness_id": plan.target.harness_id,
            "input": {"role": "user", "content": [{"type": "text", "text": text}]},
            "metadata": {
                "evalfleet.submission": plan.id,
                "evalfleet.case": self.case.name,
                "evalfleet.scenario": scenario_id,
                "evalfleet.trial": self.conversation.trial,
                "evalfleet.try": this.number,
            },
        }
        if this.chat_id is not None:
            body["chat_id"] = this.chat_id
        if plan.target.machine_id is not None and this.chat_id is None:
            body["machine_id"] = plan.target.machine_id
        key = run_key(plan.id, self.case.name, self.conversation.trial, turn_index, this.number, body)
        try:
            created = await self._create(body, key)
        except ProblemAnswer as refused:
            if any(error.get("code") == HARNESS_CHANGED for error in refused.errors):
                raise StopSubmission(refused.detail, HARNESS_CHANGED) from refused
            if refused.quota or refused.code in STOPPING_CODES:
                raise StopSubmission(
                    f"the platform refused to launch a run: {refused.detail}{_resets(refused)}", refused.code
                ) from refused
            if former is not None and former.get("status") != "succeeded" and _ends_the_chat(refused):
                return None
            if refused.status in STOPPING_STATUS:
                raise StopSubmission(f"the platform refused to launch a run: {refused}", refused.code) from refused
            away = is_away(refused)
            raise _NoResult(f"launch refused: {refused}", "launch_refused", final=True, away=away) from refused
        except TargetUnreachable as silent:
            raise _NoResult(f"launch failed: {silent}", "target_unreachable", final=True, away=True) from silent
        except PlatformError as unreadable:
            raise _NoResult(f"launch failed: {unreadable}", "unreadable", final=True) from unreadable
        run: Mapping[str, Any] = created.document
        if not all(isinstance(run.get(name), str) for name in ("id", "chat_id")):
            raise _NoResult(f"launch failed: the answer is no run: {str(run)[:200]}", "unreadable", final=True)
        self._open_run = str(run["id"])
        self._found_again = created.replayed
        if not created.replayed and self._limit is None:
            self._limit = await self.first_new_try(this.number) + plan.limits.tries
        this.chat_id = str(run["chat_id"])
        this.run_ids.append(str(run["id"]))
        if run.get("harness_commit") != plan.commit:
            await self._cancel_quietly(str(run["id"]))
            raise HarnessMoved(f"the harness moved from {plan.commit} to {run.get('harness_commit')}")
        return run

    async def _create(self, body: Mapping[str, Any], key: str) -> Created:
        """Left while the request is under way, a run may come of it that nobody knows: it is cancelled, too (S38)."""
        creating = asyncio.ensure_future(self.platform.create_run(body, key=key))
        try:
            return await asyncio.shield(creating)
        except asyncio.CancelledError:
            if self.cancel_on_leave() and not creating.cancelled():
                await asyncio.wait({creating}, timeout=CREATED_WITHIN_S)
                if creating.done() and creating.exception() is None:
                    await self._cancel_quietly(str(creating.result().document.get("id")))
            creating.cancel()
            raise

    async def _await(self, run: Mapping[str, Any], text: str, left: float, scenario_id: str) -> TurnRecord:
        """Await the run's terminal state on its stream, cancelling at the limit, then read what it left (S12, S13)."""
        run_id = str(run["id"])
        now_about(run=run_id)
        events: list[Mapping[str, Any]] = []
        watch = RunWatch(self.platform, run_id, queued=self.plan.limits.queued, left=max(left, 0.0))
        try:
            with RUN_SECONDS.time():
                terminal = await watch.follow(events)
        except JournalHole as hole:
            raise self._hole(scenario_id, hole) from hole
        except PlatformError as lost:
            reason = f"the event stream of {run_id} was lost: {lost}"
            raise _NoResult(reason, "stream_lost", final=True, away=is_away(lost)) from lost
        if not terminal:
            raise _NoResult(
                f"{scenario_id}: {run_id} was cancelled at its limit and is not terminal after {CANCEL_GRACE_S:.0f} s",
                "cancel_pending",
                final=True,
            )
        self._open_run = None
        try:
            left_over = await read_leftovers(self.platform, run_id, events)
        except JournalHole as hole:
            raise self._hole(scenario_id, hole) from hole
        except PlatformError as lost:
            away = is_away(lost)
            raise _NoResult(f"{run_id} could not be read: {lost}", "unreadable", final=True, away=away) from lost
        return TurnRecord(text, left_over.run, left_over.messages, left_over.outputs, events)

    def _hole(self, scenario_id: str, hole: JournalHole) -> _NoResult:
        """The run has ended, and what it did cannot be known: no result, and another try (S17)."""
        self._open_run = None
        return _NoResult(f"{scenario_id}: {hole}", "journal_hole")

    async def _cancel_quietly(self, run_id: str) -> None:
        try:
            await self.platform.cancel_run(run_id, deadline=time.monotonic() + 10)
        except PlatformError as error:
            log.warning("cancelling %s: %s", run_id, error)

    async def _read_what_was_spent(self) -> None:
        """A conversation that is left because its submission stops: what its chat has cost so far is read now, for
        nothing may ever go on with it."""
        if self.tries and self.tries[-1].usage is None:
            await self._read_usage(self.tries[-1], within=LEFT_USAGE_S, is_over=False)

    async def _read_usage(self, this: Try, *, within: float = USAGE_WAIT_S, is_over: bool = True) -> None:
        """One reading for the chat, awaited until final for a while, else marked as the estimate it is (S15)."""
        if not this.run_ids:
            return
        this.is_over = is_over
        deadline = time.monotonic() + within
        pause = 0.1
        while True:
            try:
                usage = dict(await self.platform.usage(this.run_ids[-1], deadline=deadline))
            except PlatformError as error:
                log.warning("usage of %s: %s", this.run_ids[-1], error)
                return
            this.usage = {**usage, "chat_id": this.chat_id}
            if usage.get("final") or time.monotonic() + pause > deadline:
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)


def _ends_the_chat(refused: ProblemAnswer) -> bool:
    """After a failed turn: does this refusal say that the chat cannot go on (S8)? What it says of our own request, or
    of the harness, is no deed of the agent's (S17)."""
    if refused.code in {"idempotency_key_conflict", "idempotency_key_in_flight", "harness_not_runnable"}:
        return False
    return refused.status in {404, 409, 422}


def _resets(refused: ProblemAnswer) -> str:
    """When the usage window opens again, as far as the platform said."""
    if refused.retry_after is None:
        return ""
    at = datetime.now(UTC) + timedelta(seconds=refused.retry_after)
    return f" (it resets in {refused.retry_after:.0f} s, at {at:%Y-%m-%d %H:%M} UTC)"


def _failure_text(run: Mapping[str, Any]) -> str:
    failure = run.get("failure") or {}
    return str(failure.get("message") or failure.get("code") or run.get("status"))
