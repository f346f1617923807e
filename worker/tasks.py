"""What does each task do, without Celery?

`Crew` is one worker process: its ledger, its loop thread, its clients, its grader pool. The three task bodies are its
methods; `worker.app` hangs them on Celery. A message is a hint (I3): each method asks the ledger first whether there is
anything to do, and dropping the message is always right.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from evalfleet.checks.outcome import GraderAnswer
from evalfleet.contract import jsontext
from evalfleet.contract.client import Client
from evalfleet.errors import (
    EvalfleetError,
    HarnessMoved,
    ProblemAnswer,
    StorageError,
    TargetUnreachable,
    UnfitHost,
)
from evalfleet.graders.bundle import unpack
from evalfleet.ledger import Claimed, Hold, Ledger
from evalfleet.plan import Attempt, Conversation, Plan
from evalfleet.results import ResultsStore, results_store
from evalfleet.settings import Settings
from evalfleet.telemetry import ATTEMPTS, CLAIMS, CONVERSATION_SECONDS, GIVEN_UP, HELD, RETRIES, SLOTS, code_label
from worker.aggregate import Aggregator, aggregate
from worker.evidence import Play, attempt_line, context_line, missing_line
from worker.grade import MORE_GRADES, grade, judge_now, needs_graders
from worker.grader_pool import (
    GraderPool,
    GraderSettings,
    JudgeNotConfigured,
    JudgeUnavailable,
    LlmAnswer,
)
from worker.heartbeat import Heartbeat
from worker.loop import LoopThread
from worker.play import Draining, GaveUp, Played, Player, StopSubmission

log = logging.getLogger(__name__)

PLANS_KEPT = 16


class Publisher(Protocol):
    """Sends the two messages that a worker makes."""

    def grade(self, plan: str, attempt: Attempt) -> None: ...
    def aggregate(self, plan: str) -> None: ...


class Crew:
    """Everything that one worker process shares between its tasks."""

    def __init__(self, settings: Settings, publisher: Publisher, *, queues: str, slots: int) -> None:
        self.settings = settings
        self.publisher = publisher
        self.ledger = Ledger(settings.require_broker().redis_url)
        self.loop = LoopThread()
        self.heart = Heartbeat(self.ledger, queues, slots)
        self.stopping = threading.Event()
        self._guard = threading.Lock()
        self._clients: dict[str | None, Client] = {}
        self._plans: dict[str, Plan] = {}
        self._aggregators: dict[str, Aggregator] = {}
        self._pool: GraderPool | None = None
        self._bundles: dict[str, Path] = {}
        self._listener = threading.Thread(target=self._listen, name="evalfleet-wakes", daemon=True)
        self._bundle_folder = tempfile.TemporaryDirectory(
            prefix="evalfleet-graders-", dir=settings.state, ignore_cleanup_errors=True
        )
        SLOTS.set(slots)
        HELD.set_function(lambda: self.heart.held)

    def start(self) -> None:
        self.heart.start()
        self._listener.start()

    def stop(self) -> None:
        """Waits end at once, claims go back, runs go on and are found again (design.md, "Stop")."""
        self.stopping.set()
        self.loop.submit(self._close()).result(10)
        self.loop.stop()
        self.heart.stop()  # its last word is a wake-up, which ends the listener
        self._listener.join(5.5)
        self.ledger.close()
        self._bundle_folder.cleanup()

    async def _close(self) -> None:
        mine = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not mine]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=3)
        if self._pool is not None:
            await self._pool.aclose()
        for client in self._clients.values():
            await client.aclose()

    def _listen(self) -> None:
        """A wake-up may tell of a stop: look at the flags at once instead of at the next beat."""
        for woken in self.ledger.wake_ups(5.0):
            if self.stopping.is_set():
                return
            if woken is not None and self.heart.held and self._is_ending(woken):
                self.heart.beat_now()

    def _is_ending(self, submission: str) -> bool:
        try:
            meta = self.ledger.meta(submission)
        except EvalfleetError as error:
            log.warning("reading the state of %s: %s", submission, error)
            return False
        return meta is not None and (meta.state != "running" or meta.draining)

    # -- run --------------------------------------------------------------------------------------------------------

    def run(self, submission: str, conversations: Sequence[Conversation]) -> None:
        """Play the conversations of one message, each claimed by itself, one after the other."""
        for conversation in conversations:
            if self.stopping.is_set():
                return  # never claimed: the reconciler sends it again
            self._run_one(submission, conversation)

    def _run_one(self, submission: str, conversation: Conversation) -> None:
        plan = self.plan(submission)
        if plan is None:
            CLAIMS.labels("unknown").inc()
            log.warning("no plan %s on the books: the message is dropped", submission)
            return
        attempts = plan.attempts(conversation)
        answer = self.ledger.claim(submission, conversation, attempts, self.heart.incarnation)
        CLAIMS.labels(answer.value).inc()
        if answer is not Claimed.CLAIMED:
            return
        played = False
        hold = Hold(submission, conversation)
        try:
            with CONVERSATION_SECONDS.time():
                played = self._play(plan, conversation, hold)
        finally:
            self.heart.drop(hold)
            self.ledger.release(submission, conversation, self.heart.incarnation, played=played)

    def _play(self, plan: Plan, conversation: Conversation, hold: Hold) -> bool:
        """True when the conversation needs no further playing in this command."""
        evidence = set(plan.attempts(conversation)) - self.ledger.open_attempts(plan.id, plan.attempts(conversation))
        leave = _Leave(self.ledger, plan.id)

        async def play() -> GaveUp | None:
            player = Player(
                self.client(plan),
                plan,
                conversation,
                evidence=evidence,
                hand_over=functools.partial(self._hand_over, plan),
                first_new_try=lambda number: asyncio.to_thread(
                    self.ledger.first_new_try, plan.id, conversation, number
                ),
                may_launch=lambda: not leave.draining,
                cancel_on_leave=leave.cancels_runs,
            )
            try:
                return await player.play()
            finally:
                for former in player.tries[:-1]:
                    RETRIES.labels(code_label(_code_of(former.reason))).inc()

        future = self.loop.submit(play())

        def told(state: str) -> None:
            if state == "draining":
                leave.draining = True
                return
            leave.why = state
            future.cancel()

        self.heart.hold(hold, told)
        try:
            gave_up = future.result()
        except concurrent.futures.CancelledError:
            return False
        except StopSubmission as stop:
            self.ledger.end(plan.id, "stopped", stop.reason, stop.code)
            return False
        except HarnessMoved as moved:
            self.ledger.end(plan.id, "stopped", moved.message, "harness_moved")
            return False
        except Draining:
            return False
        except (StorageError, TargetUnreachable) as trouble:
            log.warning("conversation %s of %s goes back: %s", conversation, plan.id, trouble)
            return False
        if gave_up is not None:
            self._give_up(plan, conversation, gave_up)
        return True

    async def _hand_over(self, plan: Plan, played: Played) -> None:
        await asyncio.to_thread(self._take, plan, played)

    def _take(self, plan: Plan, played: Played) -> None:
        play = Play.of(played)
        if played.context:
            self.ledger.put_note(plan.id, f"context {play.attempt}", jsontext.dumps(context_line(plan, play)))
        elif needs_graders(plan, play):
            if self.ledger.put_play(plan.id, play.attempt, jsontext.dumps(play.to_json())):
                self.publisher.grade(plan.id, play.attempt)
        else:
            judgement = judge_now(plan, play)
            self._record(plan, play.attempt, attempt_line(plan, play, judgement, ()))

    def _give_up(self, plan: Plan, conversation: Conversation, gave_up: GaveUp) -> None:
        GIVEN_UP.labels(code_label(gave_up.code)).inc()
        for attempt in gave_up.attempts:
            self.ledger.put_note(plan.id, str(attempt), jsontext.dumps(missing_line(plan, attempt, gave_up)))
        self.ledger.give_up(plan.id, conversation, gave_up.reason, gave_up.code)
        self.publisher.aggregate(plan.id)

    def _record(self, plan: Plan, attempt: Attempt, line: Mapping[str, Any]) -> None:
        ATTEMPTS.labels(line["outcome"]).inc()
        if self.ledger.put_record(plan.id, attempt, jsontext.dumps(line), line["outcome"]):
            self.publisher.aggregate(plan.id)

    # -- grade ------------------------------------------------------------------------------------------------------

    def grade(self, submission: str, attempt: Attempt) -> None:
        plan = self.plan(submission)
        if plan is None or self.stopping.is_set():
            return
        blob = self.ledger.claim_grade(submission, attempt, self.heart.incarnation)
        if blob is None:
            return
        try:
            play = Play.from_json(jsontext.loads(blob))
            graded = self.loop.run(grade(plan, play, functools.partial(self._call_grader, plan)))
        except concurrent.futures.CancelledError:
            self.ledger.release_grade(submission, attempt)
            return
        except UnfitHost as unfit:
            self._cannot_grade(plan, attempt, unfit)
            return
        except (StorageError, TargetUnreachable) as trouble:
            log.warning("grading %s of %s goes back: %s", attempt, submission, trouble)
            self.ledger.release_grade(submission, attempt)
            return
        if graded.stopped is not None:
            self.ledger.end(submission, "stopped", graded.stopped, "judge")
            self.ledger.release_grade(submission, attempt)
            return
        assert graded.judgement is not None
        line = attempt_line(plan, play, graded.judgement, graded.answers)
        if graded.judgement.outcome != "missing":
            self._record(plan, attempt, line)
        elif self.ledger.count_grade(submission, attempt) > MORE_GRADES:
            self.ledger.put_note(submission, str(attempt), jsontext.dumps({**line, "code": "judge_unavailable"}))
            self.ledger.give_up(submission, attempt, graded.judgement.reason or "", "judge_unavailable")
            self.ledger.drop_play(submission, attempt)
            self.publisher.aggregate(submission)
        else:
            self.ledger.release_grade(submission, attempt)
            self.publisher.grade(submission, attempt)

    def _cannot_grade(self, plan: Plan, attempt: Attempt, unfit: UnfitHost) -> None:
        """This host lost its cage twice under one call: another worker may do better, and somebody has to end it."""
        log.warning("grading %s of %s: %s", attempt, plan.id, unfit)
        if self.ledger.count_grade(plan.id, attempt) > MORE_GRADES:
            self.ledger.end(plan.id, "stopped", unfit.message, "grader_cage")
        self.ledger.release_grade(plan.id, attempt)

    async def _call_grader(
        self, plan: Plan, name: str, case: dict[str, Any], run: dict[str, Any], play: Play
    ) -> GraderAnswer:
        assert plan.graders is not None
        bundle = await asyncio.to_thread(self._bundle, plan)
        if self._pool is None:
            self._pool = GraderPool(workers=self.settings.graders_at_once or 4)
        config = GraderSettings(
            python=plan.graders.python,
            env=plan.graders.env,
            network=plan.graders.network,
            memory_mb=plan.graders.memory_mb,
        )

        async def ask(prompt: str, model: str | None, seconds: float) -> LlmAnswer:
            assert play.run_id is not None
            try:
                answer = await self.client(plan).judge(play.run_id, prompt, model, deadline=time.monotonic() + seconds)
            except ProblemAnswer as problem:
                if problem.status in {401, 402, 403, 404, 422}:
                    raise JudgeNotConfigured(f"the judge refused: {problem.detail}") from problem
                raise JudgeUnavailable(str(problem)) from problem
            except EvalfleetError as error:
                raise JudgeUnavailable(error.message) from error
            return LlmAnswer(
                text=str(answer["text"]), tokens=int(answer.get("tokens") or 0), amount=answer.get("amount")
            )

        return await self._pool.grade(bundle, config, name, case, run, ask)

    def _bundle(self, plan: Plan) -> Path:
        """The unpacked bundle that the plan names, verified against its digest."""
        assert plan.graders is not None
        digest = plan.graders.digest
        with self._guard:
            known = self._bundles.get(digest)
            if known is None:
                data = self.store.read_bytes(f"{plan.artifact}/graders.tar")
                known = Path(self._bundle_folder.name) / digest.rpartition(":")[2][:32]
                unpack(data, digest, known)
                self._bundles[digest] = known
            return known

    # -- aggregate --------------------------------------------------------------------------------------------------

    def aggregate(self, submission: str) -> None:
        plan = self.plan(submission)
        if plan is None:
            return
        with self._guard:
            aggregator = self._aggregators.get(submission)
            if aggregator is None:
                if len(self._aggregators) >= PLANS_KEPT:
                    self._aggregators.clear()
                aggregator = Aggregator(self.ledger, plan, self.store, _Recorder(self, plan))
                self._aggregators[submission] = aggregator
        aggregate(aggregator, self.heart.incarnation + threading.current_thread().name, self.stopping)

    # -- shared -----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def store(self) -> ResultsStore:
        return results_store(self.settings.require_results_url())

    def plan(self, submission: str) -> Plan | None:
        """The plan by its id; kept, since plans never change (their concurrency does not count here)."""
        with self._guard:
            plan = self._plans.get(submission)
        if plan is None:
            plan = self.ledger.plan(submission)
            if plan is not None:
                with self._guard:
                    if len(self._plans) >= PLANS_KEPT:
                        self._plans.clear()
                    self._plans[submission] = plan
        return plan

    def client(self, plan: Plan) -> Client:
        """One client per target and process; only ever called on the loop thread, which owns the clients.

        Our own server's address and token come from the environment, as a platform's key does.
        """
        base = plan.target.base_url
        client = self._clients.get(base)
        if client is None:
            if base is None:
                client = Client(self.settings.require_base_url(), self.settings.require_token())
            else:
                client = Client(base, self.settings.require_api_key())
            self._clients[base] = client
        return client


class _Recorder:
    """The evaluation calls, blocking, for the aggregator."""

    def __init__(self, crew: Crew, plan: Plan) -> None:
        self.crew, self.plan = crew, plan

    def record_attempts(self, evaluation: str, attempts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        return self._call(lambda client: client.record_attempts(evaluation, [dict(a) for a in attempts]))

    def get_evaluation(self, evaluation: str) -> Mapping[str, Any]:
        return self._call(lambda client: client.get_evaluation(evaluation))

    def complete_evaluation(self, evaluation: str) -> Mapping[str, Any]:
        return self._call(lambda client: client.complete_evaluation(evaluation))

    def _call(self, call: Callable[[Client], Awaitable[Mapping[str, Any]]]) -> Mapping[str, Any]:
        async def on_loop() -> Mapping[str, Any]:
            return await call(self.crew.client(self.plan))

        return self.crew.loop.run(on_loop())


class _Leave:
    """Why a conversation is left, and whether its open run is cancelled then (S38)."""

    def __init__(self, ledger: Ledger, submission: str) -> None:
        self.ledger, self.submission = ledger, submission
        self.why = ""
        self.draining = False

    def cancels_runs(self) -> bool:
        if self.why != "stopped":
            return False  # a worker that leaves, or lost its claim: the run goes on and is found again
        try:
            meta = self.ledger.meta(self.submission)
        except EvalfleetError as error:
            log.warning("reading why %s stopped: %s", self.submission, error)
            return False
        return meta is not None and meta.code != "leave_running"


def _code_of(reason: str | None) -> str:
    return (reason or "no_result").split(":", 1)[0].split(" ", 1)[0][:40]
