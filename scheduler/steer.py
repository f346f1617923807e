"""What can a person do to a fleet's submissions, from any machine that reaches its parts?

Find one by the beginning of its id, see how far it is, hold it and let it go on, play again what is missing, end it,
read what the parts said of it. Each answers at once; what it asks for is done by whoever drives the submission. Nothing
here needs the tree or the records of the folder that it was submitted from.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from evalfleet.artifact import find, list_results, open_artifact, read_plan, read_summary
from evalfleet.checks.case import case_key
from evalfleet.errors import ResultsAway, StorageError, UsageError
from evalfleet.ledger import Ledger, Progress
from evalfleet.plan import Plan
from evalfleet.results import ResultsStore, shared_results
from evalfleet.seal import Seal
from evalfleet.settings import Settings
from scheduler.allowed import end_evaluations
from scheduler.budget import left, money
from scheduler.fleet import CONTACT_S, client_for, evaluations_of
from scheduler.prepare import with_limits
from scheduler.score import recorded
from scheduler.submit import CUT_SHORT, Opened, put_on_books, recorded_attempts
from scheduler.watch import out_of_reach, why_idle

log = logging.getLogger(__name__)

CANCELLED = "evaluation_cancelled"
"""The code of a submission whose evaluations were cancelled, by whomever."""


@dataclass(frozen=True, slots=True)
class Row:
    """A submission in one line. `state`: running | paused | completed | incomplete | stopped; `driver`: the scheduler
    that drives it, "" if none does; `planned_at`: RFC 3339 UTC."""

    id: str
    state: str
    recorded: int
    total: int
    running: int
    given_up: int
    driver: str
    planned_at: str
    reason: str

    def document(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Status:
    """One look at one submission. `note`: what it waits for; `unreachable`: what workers say that they do not
    reach; `artifact` as a person opens it; `verdict` and `exit_code`: how it ended, as `watch` would say it, once
    it has."""

    row: Row
    counts: Mapping[str, int]
    waiting: int
    workers: int
    slots: int
    unreachable: Sequence[str]
    spent: str
    to_go: str
    note: str
    artifact: str | None
    verdict: str | None
    exit_code: int | None

    def document(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self.__slots__ if name != "row"}
        return {**self.row.document(), **own, "counts": dict(self.counts)}


@dataclass(frozen=True, slots=True)
class Steering:
    """The books and the results of one fleet. Every method raises TargetUnreachable when the broker is not there."""

    settings: Settings
    ledger: Ledger
    store: ResultsStore

    def find(self, text: str) -> str:
        """The id that `text` is a beginning of, with or without `sub_`, in either case. UsageError: none, several."""
        found = self.matching(text)
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"{text!r} is the beginning of {len(found)} submissions: {', '.join(found[:10])}")
        raise UsageError(
            f"the fleet knows no submission {text!r}: neither its broker nor {self.store.shown()}; "
            "`evalfleet list` shows what there is"
        )

    def matching(self, text: str) -> list[str]:
        """All ids that begin so: of the books, and of the artifacts that the books have forgotten."""
        wanted = text.strip().upper().removeprefix("SUB_")
        if not wanted:
            return []
        found = {sub for sub in self.ledger.known() if sub.removeprefix("sub_").startswith(wanted)}
        if f"sub_{wanted}" in found:
            return [f"sub_{wanted}"]  # needs no results store, which may be what it waits for
        shorts = {sub.removeprefix("sub_")[:8] for sub in found}
        for name in list_results(self.store):
            short = name.rpartition("-")[2].upper()
            if short in shorts or not (short.startswith(wanted) or wanted.startswith(short)):
                continue
            with contextlib.suppress(StorageError):  # damaged, or another evalfleet's
                plan = read_plan(self.store, name)
                if plan.id.removeprefix("sub_").startswith(wanted):
                    found.add(plan.id)
        return sorted(found)

    def rows(self) -> list[Row]:
        """What runs, and what ended less than a day ago; the newest first."""
        rows = [self._row(sub, self.ledger.progress(sub)) for sub in self.ledger.known()]
        return sorted((row for row in rows if row is not None), key=lambda row: row.planned_at, reverse=True)

    def _row(self, submission: str, progress: Progress) -> Row | None:
        meta = self.ledger.meta(submission)
        if meta is None:
            return None
        runs = meta.state == "running"
        return Row(
            id=submission,
            state="paused" if runs and meta.paused else meta.state,
            recorded=progress.recorded if meta.recorded is None else meta.recorded,
            total=meta.total,
            running=progress.running,
            given_up=progress.given_up,
            driver=(self.ledger.lock_owner(f"drive:{submission}") or "") if runs else "",
            planned_at=meta.planned_at,
            reason=meta.reason,
        )

    def status(self, submission: str) -> Status:
        """How far it is now."""
        progress = self.ledger.progress(submission)
        artifact = self._artifact(submission)
        workers = self.ledger.workers()
        stored: Mapping[str, Any] = {}
        note = ""
        row = self._row(submission, progress)
        if row is None or row.state not in {"running", "paused"}:
            stored = self._summary(artifact)
        if row is None:
            row = self._forgotten(submission, artifact, stored)
            if not stored:
                note = "the broker does not know it, and it has not ended: a scheduler puts it back on the books"
        elif row.state in {"running", "paused"}:
            meta = self.ledger.meta(submission)
            note = "" if meta is None else why_idle(self.ledger, submission, meta)
        estimate = left(progress, row.total)
        return Status(
            row=row,
            counts=progress.counts,
            waiting=progress.waiting,
            workers=len(workers),
            slots=self.ledger.slots(),
            unreachable=out_of_reach(workers),
            spent=money(progress.spent),
            to_go="" if estimate is None else str(estimate),
            note=note,
            artifact=None if artifact is None else self.store.shown(artifact),
            verdict=stored.get("verdict"),
            exit_code=stored.get("exit_code"),
        )

    def _artifact(self, submission: str) -> str | None:
        """Its name; None, too, while the results store is away and the books know it."""
        try:
            return find(self.store, submission)
        except ResultsAway as away:
            if self.ledger.meta(submission) is None:
                raise
            log.warning("%s", away)
            return None

    def _summary(self, artifact: str | None) -> Mapping[str, Any]:
        if artifact is None:
            return {}
        try:
            return read_summary(self.store, artifact) or {}
        except ValueError as problem:
            log.warning("%s: %s", self.store.shown(f"{artifact}/summary.json"), problem)
            return {}

    def _forgotten(self, submission: str, artifact: str | None, stored: Mapping[str, Any]) -> Row:
        """What is known of one that has left the books, by its artifact."""
        plan = self._plan(submission, artifact)
        scenarios: Sequence[Mapping[str, Any]] = stored.get("scenarios") or ()
        total = sum(1 for _ in plan.all_attempts())
        missing = sum(int(row.get("missing") or 0) for row in scenarios)
        state = "unknown" if not stored else "incomplete" if missing else "completed"
        return Row(submission, state, total - missing if stored else 0, total, 0, 0, "", plan.created_at, "")

    def _plan(self, submission: str, artifact: str | None = None) -> Plan:
        artifact = artifact or find(self.store, submission)
        if artifact is None:
            raise UsageError(
                f"{self.store.shown()} holds no artifact of {submission}; is EVALFLEET_RESULTS_URL the fleet's?"
            )
        return read_plan(self.store, artifact)

    # -- what changes something ---------------------------------------------------------------------------------------

    def pause(self, submission: str) -> str:
        """Begin nothing more of it; what is under way ends. Answers what was done, in words. UsageError if it does not
        run."""
        if not self.ledger.pause(submission):
            raise UsageError(f"{submission} {self._does_not_run(submission)}: there is nothing to pause")
        return (
            f"{submission} is paused: nothing more of it is begun, {self.ledger.progress(submission).running} "
            f"conversations are under way and end; `evalfleet resume {submission}` goes on"
        )

    def go_on(self, submission: str, budget: str | None = None, max_time: str | None = None) -> str | None:
        """Let a paused one go on, or play again what is missing in one that ended; None: nothing is missing."""
        meta = self.ledger.meta(submission)
        if meta is not None and meta.state == "running":
            if budget or max_time:
                raise UsageError(f"{submission} runs: its limits can be changed by the same `evalfleet submit` only")
            if meta.paused and self.ledger.unpause(submission):
                return f"{submission} goes on"
            return f"{submission} runs already; `evalfleet watch {submission}` follows it"
        return self.play_again(submission, budget, max_time)

    def play_again(self, submission: str, budget: str | None = None, max_time: str | None = None) -> str | None:
        """Put what is missing back on the books, given-up included; None: nothing is missing. UsageError for one that
        runs, or was cancelled; PlanRefused for one that our key has not signed."""
        meta = self.ledger.meta(submission)
        if meta is not None and meta.state == "running":
            raise UsageError(
                f"{submission} runs, and what is missing of it is being played; what it gives up can be tried again "
                "when it has ended"
            )
        plan = self._plan(submission)
        found = evaluations_of(self.settings, plan, retry_for=CONTACT_S)
        total, have = sum(1 for _ in plan.all_attempts()), len(set(recorded_attempts(plan, found)))
        if {document["status"] for document in found} & CUT_SHORT:
            raise UsageError(
                f"{submission} was cancelled with {have} of {total} recorded, and takes no more; "
                "`evalfleet submit --fresh` starts over"
            )
        if have == total:
            return None
        seal = Seal(self.settings.plan_key)
        limits = with_limits(seal.check(submission, plan).limits, budget, max_time)
        plan = seal.signed(replace(plan, limits=replace(limits, grade=True)))
        put_on_books(self.ledger, Opened(plan, found, True, ""), self.store)
        return (
            f"{submission} goes on with what is missing, {total - have} of {total} attempts; "
            f"`evalfleet watch {submission}` follows it"
        )

    def errored(self, submission: str) -> tuple[Plan, frozenset[str]]:
        """Its plan, and `<case>/<scenario id>` of the scenarios with a trial that ended in an error."""
        plan = self._plan(submission)
        rows = recorded(open_artifact(self.store, plan.artifact)).scenarios
        return plan, frozenset(case_key(row.case, row.scenario) for row in rows if row.errors)

    def cancel(self, submission: str) -> tuple[Literal["cancelled", "completed"], str]:
        """End it with what is recorded (S18): its evaluations first, so that nothing is recorded any more, then what
        workers do. Answers how it has ended, and what was done, in words."""
        meta = self.ledger.meta(submission)
        plan = self._plan(submission)
        found = evaluations_of(self.settings, plan, retry_for=CONTACT_S)
        runs = meta is not None and meta.state == "running"
        if not runs and all(document["status"] != "running" for document in found):
            cut_short = {str(document["status"]) for document in found} & CUT_SHORT
            status: Literal["cancelled", "completed"] = "cancelled" if cut_short else "completed"
            return status, f"{submission} is {status} already"

        async def main() -> Sequence[Mapping[str, Any]]:
            async with client_for(self.settings, plan, retry_for=CONTACT_S) as client:
                return await end_evaluations(client, found)

        ended = asyncio.run(main())
        self.ledger.end(submission, "stopped", "it was cancelled", CANCELLED)
        kept = sum(1 for _ in recorded_attempts(plan, ended))
        return "cancelled", f"{submission} is cancelled; {kept} recorded attempts are kept"

    def _does_not_run(self, submission: str) -> str:
        meta = self.ledger.meta(submission)
        return "has ended" if meta is None or meta.state == "running" else f"is {meta.state}"


@contextlib.contextmanager
def steering(settings: Settings) -> Iterator[Steering]:
    """The fleet that the environment names."""
    store = shared_results(settings.require_results_url())
    with contextlib.suppress(ResultsAway):  # who needs it will say so
        store.check()
    ledger = Ledger(settings.require_broker().redis_url)
    try:
        yield Steering(settings, ledger, store)
    finally:
        ledger.close()
