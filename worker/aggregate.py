"""How do judged attempts become evidence, and evidence recorded attempts?

One aggregator at a time per submission (a short lock; correctness never hangs on it). Each round: the records that wait
become one segment of the artifact, synced (evidence before record, I4); then one `attempts:batch` per evaluation, with
the run of the *first* line of each attempt; then exactly what the server confirmed leaves Redis. When the evaluation's
`missing_attempts` is empty it is completed (I1). Whoever dies in between leaves something that the next one finishes:
evidence that is not recorded is sent again, a batch that was recorded comes back as `duplicate`.
"""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from evalfleet.artifact import AttemptsIndex, IndexEntry
from evalfleet.bulk import is_large
from evalfleet.checks.text import trial_number
from evalfleet.contract import jsontext
from evalfleet.errors import BrokerFull, EvalfleetError, ProblemAnswer, ResultsAway, StorageError
from evalfleet.ledger import Ledger
from evalfleet.plan import Attempt, Plan
from evalfleet.recording import BATCH, OF_SOME, named_attempts, refused_attempts, wire_attempt
from evalfleet.results import ResultsStore
from evalfleet.telemetry import BATCH_ATTEMPTS, RECORD_SECONDS
from worker.health import Health

log = logging.getLogger(__name__)

_K = TypeVar("_K")

LOCK_MS = 30_000
WINDOW_S = 0.1
"""How long records are collected before a round, at least: one fsync and one request serve what comes in meanwhile."""
REST = 4.0
MOST_REST_S = 1.0
"""After a round they are collected for this many times as long as it took: the platform answers each batch with all
cases of the evaluation (wire.md), which for 200,000 attempts is a megabyte."""

ENDED_CODES = frozenset({"evaluation_completed", "evaluation_cancelled", "evaluation_not_running"})
LARGE_AT_ONCE = 8
"""Records whose trials are read again for one round: all of them are in memory then."""
ALIKE = 32
"""So many refusals with nothing taken in between are not about single attempts: the submission stops."""
WORTH_WAITING = frozenset({408, 409, 425, 429})
"""Of the 4xx, those that asking later may change; any other refuses the batch for good."""


class Recorder(Protocol):
    """The evaluation calls, blocking (the worker's loop thread makes them)."""

    def record_attempts(self, evaluation: str, attempts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]: ...
    def get_evaluation(self, evaluation: str) -> Mapping[str, Any]: ...
    def complete_evaluation(self, evaluation: str) -> Mapping[str, Any]: ...
    def whole(self, document: Mapping[str, Any]) -> Mapping[str, Any]: ...


class Aggregator:
    """Aggregates one plan; keep one per plan and process, it remembers what it has read of the artifact.

    `run(owner)` returns when nothing waits, or another aggregator is at work. It raises PlatformError when the platform
    does not answer and ResultsAway when the results store does not take or give (what waits, waits on), and ends the
    submission in the ledger when there can be no evidence or the evaluation takes no more attempts. Unless it `waits`,
    a results store that is away ends the submission, too.
    """

    def __init__(
        self,
        ledger: Ledger,
        plan: Plan,
        store: ResultsStore,
        recorder: Recorder,
        *,
        health: Health,
        waits: bool = True,
    ) -> None:
        self.ledger = ledger
        self.plan = plan
        self.store = store
        self.recorder = recorder
        self.index = AttemptsIndex(store, plan.artifact)
        self.completed: set[int] = set()
        self.health = health
        self.waits = waits
        self.said = ""
        """What the last run ended with, so that it is logged once."""

    def run(self, owner: str, stopping: threading.Event) -> None:
        name = f"aggregate:{self.plan.id}"
        if not self.ledger.lock(name, owner, LOCK_MS):
            return
        renewing = _Renewing(self.ledger, name, owner)
        try:
            if self.ledger.load(self.plan.id).claimed:
                stopping.wait(WINDOW_S)  # nothing else is coming when nothing is played
            began = time.monotonic()
            while self.ledger.lock(name, owner, LOCK_MS) and self._round():
                took = time.monotonic() - began
                if self._rest(min(max(WINDOW_S, REST * took), MOST_REST_S), stopping):
                    break
                began = time.monotonic()
        except BrokerFull:
            raise  # what waits, waits on
        except ResultsAway as away:
            if self.waits:
                self._note_away(away)
            else:
                self.ledger.end(self.plan.id, "stopped", away.message, "storage")
            raise
        except StorageError as error:
            self.ledger.end(self.plan.id, "stopped", error.message, "storage")
            raise
        finally:
            renewing.stop()
            self.ledger.unlock(name, owner)

    def _note_away(self, away: ResultsAway) -> None:
        still = functools.partial(self.ledger.is_store_away, self.plan.id)
        self.health.away("results", self.plan.id, away.message, still)
        self.ledger.store_away(self.plan.id, away.message)

    def _rest(self, seconds: float, stopping: threading.Event) -> bool:
        """Let records come in for so long, or until nothing is played any more: the last ones wait for nobody. Answers
        whether to stop."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and self.ledger.load(self.plan.id).claimed:
            if stopping.wait(min(WINDOW_S, left)):
                return True
        return stopping.is_set()

    def _round(self) -> bool:
        """One pass; True if there may be more to do."""
        sub = self.plan.id
        self.ledger.clear_hint(sub)
        replay = self.ledger.asked_replay(sub)
        records = _few_large(self.ledger.records(sub, BATCH))
        notes = _few_large(self.ledger.notes(sub, BATCH))
        if not records and not notes and replay is None:
            return False
        with RECORD_SECONDS.time():
            self._write(records, notes)
            self.health.back("results", self.plan.id)
            self.ledger.store_back(self.plan.id)
            self.ledger.drop_notes(sub, notes)
            chosen = {a: self._evidence(a) for a in records}
            if replay is not None:
                chosen |= self._unrecorded()
            BATCH_ATTEMPTS.observe(len(chosen))
            again = self._record(chosen, force=replay is not None)
        if replay is not None:
            self.ledger.fulfil_replay(sub, replay)
        return again

    def _write(self, records: Mapping[Attempt, Mapping[str, Any]], notes: Mapping[str, Mapping[str, Any]]) -> None:
        """Evidence before record: what is not in the artifact yet becomes its next segment."""
        self.index.read_on()
        new = [*(line for a, line in records.items() if self._entry(a) is None), *notes.values()]
        self.index.append([self._whole(line) for line in new])

    def _whole(self, line: Mapping[str, Any]) -> Mapping[str, Any]:
        """The line with its trial. StorageError where the platform has it no more: there is no evidence then."""
        if not is_large(line):
            return line
        try:
            return self.recorder.whole(line)
        except ProblemAnswer as problem:
            if problem.status >= 500 or problem.status in WORTH_WAITING:
                raise
            what = f"{line['case']}/{line['scenario']}, trial {trial_number(line['trial'])}"
            raise StorageError(f"the runs of {what} cannot be read again for the artifact: {problem}") from problem

    def _entry(self, attempt: Attempt) -> IndexEntry | None:
        """The attempt's evidence; a missing line is none."""
        case = self.plan.cases[attempt.case]
        entry = self.index.entries.get((case.name, self.plan.scenario(attempt).id, attempt.trial))
        return entry if entry is not None and entry.verdict is not None else None

    def _evidence(self, attempt: Attempt) -> IndexEntry:
        """The entry of what has just been written. Without it the next round would only write the same line again."""
        entry = self._entry(attempt)
        if entry is None:
            where = self.store.shown(self.plan.artifact)
            raise StorageError(f"{where}: the line of {self.plan.key_of(attempt)} was written and cannot be read back")
        return entry

    def _unrecorded(self) -> dict[Attempt, IndexEntry]:
        """Evidence that the evaluations do not hold: an aggregator died between segment and batch."""
        owed: dict[Attempt, IndexEntry] = {}
        by_wire = {(self.plan.key_of(a), a.trial): a for a in self.plan.all_attempts()}
        for number, planned in enumerate(self.plan.evaluations):
            assert planned.id is not None
            document = self.recorder.get_evaluation(planned.id)
            self._note_ended(number, document)
            for case in document["cases"]:
                for trial in case.get("missing_attempts") or ():
                    attempt = by_wire.get((case["key"], trial))
                    entry = None if attempt is None else self._entry(attempt)
                    if attempt is not None and entry is not None:
                        owed[attempt] = entry
        return owed

    def _record(self, chosen: Mapping[Attempt, IndexEntry], *, force: bool) -> bool:
        """False when the submission ended because attempts are not taken: there is no further round."""
        groups: dict[int, dict[Attempt, IndexEntry]] = {}
        for attempt, entry in chosen.items():
            index = self.plan.cases[attempt.case].scenarios[attempt.scenario].evaluation
            assert index is not None
            groups.setdefault(index, {})[attempt] = entry
        for index, group in groups.items():
            if not self._record_group(index, group):
                return False
        if force:
            for index in range(len(self.plan.evaluations)):
                if index not in groups:
                    self._complete_if_done(index, None)
        return True

    def _record_group(self, index: int, group: Mapping[Attempt, IndexEntry]) -> bool:
        evaluation = self.plan.evaluations[index].id
        assert evaluation is not None
        try:
            answer, refused = self._send(evaluation, dict(group))
        except ProblemAnswer as problem:
            if problem.code in ENDED_CODES:
                reason = f"{evaluation} takes no more attempts: {problem.detail}"
            elif 400 <= problem.status < 500 and problem.status not in WORTH_WAITING:
                reason = f"attempts were refused: {problem}"
            else:
                raise
            self.ledger.end(self.plan.id, "stopped", reason, problem.code)
            return False
        for attempt, why in refused.items():
            log.error("%s, trial %d: %s", self.plan.key_of(attempt), trial_number(attempt.trial), why)
        self.ledger.set_aside(self.plan.id, refused)
        self.ledger.confirm(self.plan.id, {a: e.outcome for a, e in group.items() if a not in refused})
        if len(refused) < len(group):
            self._complete_if_done(index, answer.get("evaluation"))
        return True

    def _send(self, evaluation: str, todo: dict[Attempt, IndexEntry]) -> tuple[Mapping[str, Any], dict[Attempt, str]]:
        """All of it, in one batch where the server takes that; its last answer, and what it refuses with the reasons.

        A batch is all or nothing. What somebody else recorded with another run is marked in the artifact (I4, S35),
        what the answer names as refused is set aside, and the rest is sent again; where it names nothing, by halves.
        """
        answer: Mapping[str, Any] = {}
        refused: dict[Attempt, str] = {}
        waiting = [list(todo)]
        in_a_row = 0
        while waiting:
            part = waiting.pop()
            try:
                answer = self.recorder.record_attempts(evaluation, [self._wire(a, todo[a]) for a in part])
                in_a_row = 0
            except ProblemAnswer as problem:
                in_a_row += 1
                if problem.code == "attempt_conflict":
                    gone = self._note_conflicts(evaluation, problem, part)
                elif problem.status in OF_SOME and in_a_row <= ALIKE:
                    gone = refused_attempts(problem, part)
                    refused |= gone
                else:
                    raise
                if gone:
                    waiting.append([attempt for attempt in part if attempt not in gone])
                elif len(part) > 1:
                    waiting += [part[len(part) // 2 :], part[: len(part) // 2]]
                else:
                    raise
            waiting = [part for part in waiting if part]
        return answer, refused

    def _note_conflicts(self, evaluation: str, problem: ProblemAnswer, sent: Sequence[Attempt]) -> Collection[Attempt]:
        """Mark in the artifact what somebody else recorded with another run."""
        theirs = self._conflicts(evaluation, problem, sent)
        if not theirs:
            raise problem
        self.index.append([{**self.index.line(self._evidence(attempt)), "recorded": "elsewhere"} for attempt in theirs])
        log.warning("%d attempts of %s were recorded by somebody else", len(theirs), evaluation)
        return set(theirs)

    def _conflicts(self, evaluation: str, problem: ProblemAnswer, sent: Sequence[Attempt]) -> list[Attempt]:
        """Which of them the answer names; where it names none, all that the evaluation holds already."""
        named = named_attempts(problem, sent)
        if named:
            return list(named)
        document = self.recorder.get_evaluation(evaluation)
        recorded = {(case["key"], trial) for case in document["cases"] for trial in case.get("recorded_attempts") or ()}
        return [attempt for attempt in sent if (self.plan.key_of(attempt), attempt.trial) in recorded]

    def _wire(self, attempt: Attempt, entry: IndexEntry) -> dict[str, Any]:
        """The attempt as the first line of its evidence has it."""
        return wire_attempt(
            self.plan,
            attempt,
            {
                "run_id": entry.run_id,
                "outcome": entry.outcome,
                "judge_score": entry.judge_score,
                "judge_feedback": entry.judge_feedback,
            },
        )

    def _complete_if_done(self, index: int, document: Mapping[str, Any] | None) -> None:
        evaluation = self.plan.evaluations[index].id
        assert evaluation is not None
        if document is None or "cases" not in document:
            document = self.recorder.get_evaluation(evaluation)
        if document["status"] == "running" and not any(case.get("missing_attempts") for case in document["cases"]):
            document = self.recorder.complete_evaluation(evaluation)
        self._note_ended(index, document)

    def _note_ended(self, index: int, document: Mapping[str, Any]) -> None:
        status = document["status"]
        if status == "completed":
            self.completed.add(index)
            self.ledger.mark_completed(self.plan.id, self.completed)
            if len(self.completed) == len(self.plan.evaluations):
                self.ledger.end(self.plan.id, "completed")
        elif status != "running":
            evaluation = self.plan.evaluations[index].id
            self.ledger.end(self.plan.id, "stopped", f"{evaluation} is {status}", f"evaluation_{status}")


def _few_large(waiting: Mapping[_K, bytes]) -> dict[_K, dict[str, Any]]:
    """What waits, read; of the large ones only some, the others wait for the next round."""
    chosen: dict[_K, dict[str, Any]] = {}
    large = 0
    for name, blob in waiting.items():
        line = jsontext.loads(blob)
        large += is_large(line)
        if large <= LARGE_AT_ONCE or not is_large(line):
            chosen[name] = line
    return chosen


class _Renewing:
    """Renews a lock while a round takes longer than it lasts: a batch that the platform thinks about has minutes."""

    def __init__(self, ledger: Ledger, name: str, owner: str) -> None:
        self._ledger, self._name, self._owner = ledger, name, owner
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._main, name="evalfleet-lock", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _main(self) -> None:
        while not self._over.wait(LOCK_MS / 3000):
            try:
                self._ledger.lock(self._name, self._owner, LOCK_MS)
            except EvalfleetError as error:
                log.warning("the lock %s is not renewed: %s", self._name, error)


def aggregate(aggregator: Aggregator, owner: str, stopping: threading.Event) -> None:
    """The aggregate task without Celery. What is away leaves everything for the next message, and is logged once."""
    began = time.monotonic()
    try:
        aggregator.run(owner, stopping)
        aggregator.said = ""
    except concurrent.futures.CancelledError:
        log.info("aggregate %s: this worker leaves; the next message goes on", aggregator.plan.id)
    except EvalfleetError as error:
        again, aggregator.said = error.message == aggregator.said, error.message
        level = logging.DEBUG if again else logging.WARNING
        log.log(level, "aggregate %s after %.1f s: %s", aggregator.plan.id, time.monotonic() - began, error)
