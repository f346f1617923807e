"""What does each task do, without Celery?

`Crew` is one worker process: its ledger, its loop thread, its clients, its grader pool. The three task bodies are its
methods; `worker.app` hangs them on Celery. A message is a hint (I3): each method asks the ledger first whether there is
anything to do, and dropping the message is always right.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from evalfleet.bulk import made_whole, packed
from evalfleet.checks.outcome import LEFT_OUT, judge, leave_out
from evalfleet.contract import jsontext
from evalfleet.contract.client import Client
from evalfleet.contract.outbound import way_to
from evalfleet.contract.tasks import RUN_QUEUE, kind_of
from evalfleet.errors import (
    CredentialError,
    EvalfleetError,
    HarnessMoved,
    PlanRefused,
    SettingError,
    StorageError,
    TargetUnreachable,
)
from evalfleet.graders.judging import needs_graders
from evalfleet.ledger import FAULT, Claimed, Hold, Ledger, Reading
from evalfleet.logs import about
from evalfleet.plan import Attempt, Conversation, Plan
from evalfleet.results import ResultsStore, shared_results
from evalfleet.seal import REFUSED, Seal
from evalfleet.settings import Settings
from evalfleet.telemetry import (
    ATTEMPTS,
    CLAIMS,
    CONVERSATION_SECONDS,
    GIVEN_UP,
    HELD,
    RETRIED,
    RETRIES,
    SLOTS,
    code_label,
)
from worker.aggregate import Aggregator, aggregate
from worker.evidence import Play, attempt_line, context_line, missing_line
from worker.grading import Grading
from worker.health import Health
from worker.heartbeat import ANSWER_S, Heartbeat
from worker.loop import Leave, LoopThread
from worker.play import TOLD_TO_WAIT, Player
from worker.played import Draining, GaveUp, Played, StopSubmission, Try, TurnedAway, fault_of_ours
from worker.target import TargetEar, Teller

log = logging.getLogger(__name__)

PLANS_KEPT = 16
UNAUTHORIZED = "unauthorized"
TASKS_END_S = 2.0
"""The threads of tasks, whose coroutines have ended, have this long to give back what they held."""


class Publisher(Protocol):
    """Sends the two messages that a worker makes."""

    def grade(self, plan: Plan, attempt: Attempt) -> None: ...
    def aggregate(self, plan: Plan) -> None: ...


class Crew:
    """Everything that one worker process shares between its tasks."""

    def __init__(self, settings: Settings, publisher: Publisher, *, queues: str, slots: int) -> None:
        self.settings = settings
        self.publisher = publisher
        self.seal = Seal(settings.plan_key)
        broker = settings.require_broker().redis_url
        self.ledger = Ledger(broker)
        self.loop = LoopThread()
        self.health = Health()
        self.heart = Heartbeat(Ledger(broker, within=ANSWER_S), queues, slots, unreachable=self.health.unreachable)
        self.stopping = threading.Event()
        self._tasks = 0
        self._task_ended = threading.Condition()
        self._guard = threading.Lock()
        self._clients: dict[str, Client] = {}
        self._teller = Teller()
        self._plans: dict[str, tuple[str, Plan]] = {}
        self._aggregators: dict[str, Aggregator] = {}
        self.grading = Grading(self)
        self._listener = threading.Thread(target=self._listen, name="evalfleet-endings", daemon=True)
        SLOTS.set(slots if any(kind_of(queue) == RUN_QUEUE for queue in queues.split(",")) else 0)
        HELD.set_function(lambda: self.heart.held)

    def start(self) -> None:
        self.heart.start()
        self._listener.start()

    def stop(self) -> None:
        """Waits end at once, claims go back, runs go on and are found again (design.md, "Stop"). The ledger is closed
        last: the threads of the tasks give back through it. A second call does nothing."""
        if self.stopping.is_set():
            return
        self.stopping.set()
        try:
            self.loop.submit(self._close()).result(10)
        except TimeoutError:
            log.warning("the graders and connections of this worker do not close; it leaves without them")
        except Exception:  # the claims below are given back whatever breaks here
            log.exception("closing graders and connections")
        self.loop.stop()
        with self._task_ended:
            if not self._task_ended.wait_for(lambda: self._tasks == 0, TASKS_END_S):
                log.warning("%d tasks do not end; what they hold is taken back by others", self._tasks)
        self.heart.stop()  # its last word is a wake-up, which ends the listener
        self._listener.join(5.5)
        self.heart.ledger.close()
        self.ledger.close()
        self.grading.cleanup()

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        with self._task_ended:
            self._tasks += 1
        try:
            yield
        finally:
            with self._task_ended:
                self._tasks -= 1
                self._task_ended.notify_all()

    async def _close(self) -> None:
        mine = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not mine]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=3)
        await self.grading.aclose()
        for client in self._clients.values():
            await client.aclose()

    def _listen(self) -> None:
        """A stop is obeyed at once instead of at the next beat."""
        for told in self.ledger.endings(5.0):
            if self.stopping.is_set():
                return
            if told is not None and self.heart.held:
                self.heart.beat_now()

    # -- run --------------------------------------------------------------------------------------------------------

    def run(self, submission: str, conversations: Sequence[Conversation]) -> None:
        """Play the conversations of one message, each claimed by itself, one after the other."""
        for conversation in conversations:
            with self._at_work():
                if self.stopping.is_set():
                    self.ledger.decline(submission, conversation)
                    continue
                with about(submission=submission):
                    self._run_one(submission, conversation)

    def _run_one(self, submission: str, conversation: Conversation) -> None:
        plan = self.plan(submission)
        if plan is None:
            CLAIMS.labels("unknown").inc()
            log.warning("a message is dropped: there is no plan of ours for %s", submission)
            return
        hold = Hold(submission, conversation)
        if self.heart.take(hold):
            self._claim_and_play(plan, hold)
        else:
            CLAIMS.labels("own_duplicate").inc()

    def _claim_and_play(self, plan: Plan, hold: Hold) -> None:
        attempts = plan.attempts(hold.conversation)
        end: GaveUp | bool = False  # True: it needs no further playing in this command; False: it is fed again
        claimed: Claimed | None = None
        tries: list[Try] = []
        began = time.monotonic()
        try:
            claimed = self.ledger.claim(plan.id, hold.conversation, attempts, self.heart.incarnation)
            CLAIMS.labels(claimed.value).inc()
            if claimed is Claimed.CLAIMED:
                case = plan.cases[hold.conversation.case].name
                with CONVERSATION_SECONDS.time(), about(case=case, trial=hold.conversation.trial):
                    end = self._play(plan, hold, tries)
        finally:
            # Whatever went wrong: a claim of a living worker that nobody plays would be waited for without end.
            mine = claimed in {None, Claimed.CLAIMED}
            release = functools.partial(
                Ledger.release,
                submission=hold.submission,
                conversation=hold.conversation,
                inc=self.heart.incarnation,
                played=bool(end),
                gave_up=end.entry() if isinstance(end, GaveUp) else None,
                readings=[Reading.of(t.number, t.usage) for t in tries if t.is_over],
                played_ms=int(1000 * (time.monotonic() - began)),
                attempts=len(attempts),
            )
            self.heart.give_back(hold, release if mine else None)
        if isinstance(end, GaveUp):
            self.publisher.aggregate(plan)

    def _play(self, plan: Plan, hold: Hold, tries: list[Try]) -> GaveUp | bool:
        """True or what was given up when the conversation needs no further playing in this command; `tries` takes
        those that were made."""
        conversation = hold.conversation
        still_open, first_new = self.ledger.so_far(plan.id, conversation, plan.attempts(conversation))
        leave = Leave(self.loop)
        left: list[Attempt] = []

        async def play() -> GaveUp | None:
            leave.begin()
            player = Player(
                self.client(plan),
                plan,
                conversation,
                evidence=set(plan.attempts(conversation)) - still_open,
                hand_over=functools.partial(self._hand_over, plan),
                first_new=first_new,
                first_new_try=lambda number: asyncio.to_thread(
                    self.ledger.first_new_try, plan.id, conversation, number
                ),
                may_launch=lambda: not leave.draining,
                wait_for=lambda: asyncio.to_thread(self._seconds_to_wait, plan),
                cancel_on_leave=lambda: leave.why == "stopped",
            )
            try:
                return await player.play()
            finally:
                tries.extend(player.tries)
                left.extend(player.open)
                for former in player.tries[:-1]:
                    RETRIES.labels(code_label(former.code or "")).inc()
                if len(player.tries) > 1:
                    RETRIED.inc()

        future = self.loop.submit(play())
        self.heart.hold(hold, leave.told)
        try:
            gave_up = future.result()
            if gave_up is not None and self.stopping.is_set():
                return False  # a worker that leaves closes its own connections: nobody is given up for that
            if gave_up is not None:
                self._note_missing(plan, gave_up)
        except (concurrent.futures.CancelledError, Draining):
            if leave.draining or leave.why == "stopped":
                self._note_left(plan, left, tries)
            return False
        except TurnedAway as away:
            if not self._is_refused_alone(plan, conversation, away):
                return False
            gave_up = away.gave_up
            self._note_missing(plan, gave_up)
        except StopSubmission as stop:
            mine = stop.code == UNAUTHORIZED and self.settings.lifeline_fd is None  # another worker's may be right
            reason = f"{stop.reason} (the token of worker {self.heart.name})" if mine else stop.reason
            self._note_left(plan, left, tries, reason, stop.code)
            self.ledger.end(plan.id, "stopped", reason, stop.code)
            return False
        except HarnessMoved as moved:
            self.ledger.end(plan.id, "stopped", moved.message, "harness_moved")
            return False
        except (StorageError, TargetUnreachable) as trouble:  # the ledger's: the player makes values of the platform's
            log.warning("conversation %s of %s goes back: %s", conversation, plan.id, trouble)
            return False
        except Exception as fault:  # what we did not foresee would only come again, at once and without end
            if self.stopping.is_set():
                raise
            log.exception("conversation %s of %s", conversation, plan.id)
            gave_up = GaveUp(tuple(sorted(still_open, key=str)), fault_of_ours(fault), FAULT)
            self._note_missing(plan, gave_up)
        return True if gave_up is None else gave_up

    def _seconds_to_wait(self, plan: Plan) -> float:
        return self.ledger.target_wait_ms(plan.target.name) / 1000

    def _is_refused_alone(self, plan: Plan, conversation: Conversation, away: TurnedAway) -> bool:
        """Whether the target has turned this one away as often as it is tried, and taken others' runs meanwhile."""
        if self.stopping.is_set():
            return False
        log.warning("conversation %s of %s goes back: %s", conversation, plan.id, away)
        if away.gave_up.code == TOLD_TO_WAIT:
            return False  # it asked for nothing; a target that says "later" for too long is the stall limit's
        try:
            return self.ledger.turned_away(plan.id, conversation) >= plan.limits.tries
        except EvalfleetError as trouble:
            log.warning("it is counted another time: %s", trouble)
            return False

    async def _hand_over(self, plan: Plan, played: Played) -> None:
        await asyncio.to_thread(self._take, plan, played)

    def _take(self, plan: Plan, played: Played) -> None:
        play = Play.of(played)
        if played.context:
            self.ledger.put_note(plan.id, f"context {play.attempt}", packed(context_line(plan, play), play.attempt))
        elif needs_graders(plan.scenario(play.attempt), play.trial, play.meaning):
            if not plan.limits.grade:
                self._leave_graders_out(plan, play)
            elif self.ledger.put_play(plan.id, play.attempt, packed(play.to_json(), play.attempt)):
                self.publisher.grade(plan, play.attempt)
        else:
            judgement = judge(plan.scenario(play.attempt), play.trial, play.meaning, ())
            self.record(plan, play.attempt, attempt_line(plan, play, judgement, ()))

    def _leave_graders_out(self, plan: Plan, play: Play) -> None:
        """`--no-graders`: failed by an assertion, or missing with its trial in the artifact, which a resume grades."""
        scenario = plan.scenario(play.attempt)
        answers = leave_out(scenario)
        judgement = judge(scenario, play.trial, play.meaning, answers)
        line = attempt_line(plan, play, judgement, answers)
        if judgement.outcome == "missing":
            self.grading.leave_ungraded(plan, play.attempt, {**line, "code": LEFT_OUT}, judgement.reason or "")
        else:
            self.record(plan, play.attempt, line)

    def _note_missing(self, plan: Plan, gave_up: GaveUp) -> None:
        GIVEN_UP.labels(code_label(gave_up.code)).inc()
        for attempt in gave_up.attempts:
            self.ledger.put_note(plan.id, str(attempt), jsontext.dumps(missing_line(plan, attempt, gave_up)))

    def _note_left(
        self,
        plan: Plan,
        attempts: Sequence[Attempt],
        tries: Sequence[Try],
        reason: str = "it was left when the submission stopped",
        code: str = "left",
    ) -> None:
        """A conversation that was left in the middle, as its submission stopped: what it has cost is in the artifact.
        A resume goes on with it, and each chat counts once."""
        if not any(t.usage is not None for t in tries):
            return
        spent = GaveUp(tuple(attempts), reason, code, tuple(t.to_json() for t in tries))
        for attempt in attempts:
            self.ledger.put_note(plan.id, str(attempt), jsontext.dumps(missing_line(plan, attempt, spent)))
        self.publisher.aggregate(plan)

    def record(self, plan: Plan, attempt: Attempt, line: Mapping[str, Any]) -> None:
        ATTEMPTS.labels(line["outcome"]).inc()
        if self.ledger.put_record(plan.id, attempt, packed(line, attempt), line["outcome"]):
            self.publisher.aggregate(plan)

    # -- grade ------------------------------------------------------------------------------------------------------

    def grade(self, submission: str, attempt: Attempt) -> None:
        with self._at_work():
            if not self.stopping.is_set():
                with about(submission=submission):
                    self.grading.grade(submission, attempt)

    # -- aggregate --------------------------------------------------------------------------------------------------

    def aggregate(self, submission: str) -> None:
        with self._at_work():
            if not self.stopping.is_set():
                with about(submission=submission):
                    self._aggregate(submission)

    def _aggregate(self, submission: str) -> None:
        plan = self.plan(submission)
        if plan is None:
            return
        with self._guard:
            aggregator = self._aggregators.get(submission)
            if aggregator is None:
                if len(self._aggregators) >= PLANS_KEPT:
                    self._aggregators.clear()
                embedded = self.settings.lifeline_fd is not None  # a person sits before it: that one is told at once
                aggregator = Aggregator(
                    self.ledger, plan, self.store, _Recorder(self, plan), health=self.health, waits=not embedded
                )
                self._aggregators[submission] = aggregator
        owner = f"worker:{self.heart.incarnation}:{threading.current_thread().name}"
        aggregate(aggregator, owner, self.stopping)
        if len(aggregator.completed) == len(plan.evaluations):
            with self._guard:  # nobody asks again where in the artifact its 200,000 attempts are
                self._aggregators.pop(submission, None)

    # -- shared -----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def store(self) -> ResultsStore:
        return shared_results(self.settings.require_results_url())

    def plan(self, submission: str) -> Plan | None:
        """The plan by its id, kept: what is played never changes, and its limits only with a new edition (a resume).
        None where there is none, or none of ours: the message that named it is dropped."""
        edition = self.ledger.edition(submission)
        with self._guard:
            kept = self._plans.get(submission)
        if kept is not None and kept[0] == edition:
            return kept[1]
        try:
            plan = self.ledger.plan(submission)
            if plan is not None:
                self.seal.check(submission, plan)
                way_to(self._contact(plan)[0])
        except CredentialError as lacking:  # it was sent to another queue than the one of its plan
            log.error("this worker, %s, cannot work on %s: %s", self.heart.name, submission, lacking)  # noqa: TRY400
            return None
        except (PlanRefused, SettingError) as refused:
            log.error("%s", refused)  # noqa: TRY400  - the sentence is enough
            self.ledger.end(submission, "stopped", refused.message, REFUSED)
            return None
        if plan is not None and edition is not None:
            with self._guard:
                if len(self._plans) >= PLANS_KEPT:
                    self._plans.clear()
                self._plans[submission] = edition, plan
        return plan

    def client(self, plan: Plan) -> Client:
        """One client per target; only ever called on the loop thread, which owns the clients."""
        name = plan.target.name
        client = self._clients.get(name)
        if client is None:
            hear = TargetEar(name, self.ledger, self._teller, self.health).heard
            client = self._clients[name] = Client(*self._contact(plan), hear=hear)
        return client

    def _contact(self, plan: Plan) -> tuple[str, str]:
        """Address and token; both are of this worker's environment, but for the address in a signed plan."""
        return self.settings.contact(plan.target, vouched=self.settings.plan_key is not None)


class _Recorder:
    """The evaluation calls, blocking, for the aggregator."""

    def __init__(self, crew: Crew, plan: Plan) -> None:
        self.crew, self.plan = crew, plan

    def record_attempts(self, evaluation: str, attempts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        return self._call(lambda client: client.record_attempts(evaluation, [dict(a) for a in attempts]))

    def get_evaluation(self, evaluation: str) -> Mapping[str, Any]:
        return self._call(lambda client: client.get_evaluation(evaluation))

    def whole(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._call(lambda client: made_whole(document, self.plan, client))

    def complete_evaluation(self, evaluation: str) -> Mapping[str, Any]:
        return self._call(lambda client: client.complete_evaluation(evaluation))

    def _call(self, call: Callable[[Client], Awaitable[Mapping[str, Any]]]) -> Mapping[str, Any]:
        async def on_loop() -> Mapping[str, Any]:
            return await call(self.crew.client(self.plan))

        return self.crew.loop.run(on_loop())
