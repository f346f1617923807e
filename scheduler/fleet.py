"""How do the parts of a fleet work together when the command that submits does not stay?

`submit` puts a plan on the books and returns. `run_scheduler` drives every submission on the books, one thread each
under a short lock, so that several schedulers share them (`scheduler.watch` shows how far one is). Where things are
comes from the environment: EVALFLEET_BROKER_URL, EVALFLEET_BASE_URL with EVALFLEET_TOKEN (or a platform's keys),
EVALFLEET_RESULTS_URL (docs/fleet.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from evalfleet.artifact import finish, open_artifact
from evalfleet.contract.client import Client
from evalfleet.contract.tasks import QUEUES, queue_name
from evalfleet.credentials import token_variable
from evalfleet.errors import (
    BrokerFull,
    CredentialError,
    EvalfleetError,
    OperatorError,
    PlanRefused,
    PlatformError,
    ProblemAnswer,
    SettingError,
    TargetUnreachable,
)
from evalfleet.ledger import Ledger, queues_of
from evalfleet.logs import about, log_to_stderr, tell_about_submissions
from evalfleet.plan import Plan
from evalfleet.quarantine import in_force
from evalfleet.queue import sent_at
from evalfleet.results import ResultsStore, shared_results
from evalfleet.seal import REFUSED, Seal
from evalfleet.settings import Broker, Settings
from evalfleet.telemetry import (
    BROKER_AWAY,
    BROKER_BYTES,
    BROKER_LIMIT,
    OLDEST,
    QUEUED,
    SUBMISSIONS,
    WORKERS,
    forget_submission,
    forget_target,
    serve,
)
from scheduler.allowed import end_evaluations
from scheduler.compare import Compared, planned_baseline
from scheduler.conduct import missing_reasons, refused_records, with_harness
from scheduler.dispatch import Books, Dispatcher, Ended
from scheduler.drive import drive
from scheduler.enough import enough_of
from scheduler.evaluate import Options, state_folder
from scheduler.interrupt import Interrupts
from scheduler.prepare import Prepared
from scheduler.publisher import CeleryPublisher
from scheduler.reload import reload_unfinished
from scheduler.submissions import Submissions
from scheduler.submit import Opened, books, open_submission, put_bundle, put_graders, put_on_books
from scheduler.summary import Summary, exit_code, summarize

log = logging.getLogger(__name__)

LOCK_MS = 15_000
"""A scheduler that is killed is replaced after this long."""
LOOK_EVERY_S = 2.0
LEAVE_WITHIN_S = 5.0
AGAIN_AFTER_S = 30.0
"""A submission whose drive ended in an error of ours or of the disk is taken up again after this long."""
SWEEP_EVERY_S = 60.0
CONTACT_S = 10.0
"""A server that does not answer `submit` for this long is not there."""


def submit(prepared: Prepared, options: Options, settings: Settings, *, words: Sequence[str]) -> Opened:
    """Create (or find again) the submission and put it on the fleet's books."""
    store = shared_results(settings.require_results_url())
    store.check()
    broker = settings.require_broker()
    ledger = Ledger(broker.redis_url)
    where, token = settings.contact(prepared.plan.target, vouched=True)  # the tree's own [target]
    try:
        ledger.check_broker()

        async def main() -> Opened:
            async with Client(where, token, retry_for=CONTACT_S) as client:
                plan = await with_harness(client, prepared.plan)
                return await open_submission(
                    client,
                    plan,
                    prepared.pin,
                    store=store,
                    submissions=Submissions(state_folder(prepared.config, options)),
                    words=words,
                    files=prepared.files,
                    fresh=options.fresh,
                    own_server=False,
                    baseline=None if prepared.baseline is None else prepared.baseline.commit,
                    seal=Seal(settings.plan_key),
                )

        opened = _in_the_operators_words(main, prepared.plan, where)
        put_bundle(store, opened.plan, prepared.bundle)
        put_on_books(ledger, opened, store)
        return opened
    finally:
        ledger.close()


def _in_the_operators_words(main: Callable[[], Coroutine[Any, Any, Opened]], plan: Plan, where: str) -> Opened:
    try:
        return asyncio.run(main())
    except ProblemAnswer as problem:
        if problem.status == 401:
            name = token_variable(plan.target.account)
            raise CredentialError(f"{where} refuses {name}: {problem.detail}") from problem
        if problem.status == 422 and "harness_commit" in str(problem) and plan.target.base_url is None:
            raise OperatorError(
                f"{where} serves another version of {plan.target.harness} than this tree's, {plan.commit}; "
                "start it again with this tree"
            ) from problem
        raise
    except TargetUnreachable as away:
        raise TargetUnreachable(f"{where} is not there: {away}; nothing was submitted") from away


def run_scheduler(settings: Settings) -> int:
    """Drive what is on the books until SIGTERM or SIGINT; 0."""
    log_to_stderr(settings.log_level, settings.log_format)
    broker = settings.require_broker()
    shared_results(settings.require_results_url()).check()
    ledger = Ledger(broker.redis_url)
    ledger.check_broker()
    ledger.open_epoch()
    port = serve(settings.metrics_port)
    owner = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    tell_about_submissions(
        Ledger(broker.redis_url, within=2.0).put_log, part=f"scheduler {owner}", secrets=settings.secrets
    )
    log.info("scheduler %s on %s%s", owner, broker, f", metrics on port {port}" if port else "")
    grace = ledger.grace_ms()
    if grace:
        log.info("this broker is new to us: work begins in %.0f s, when every living worker has spoken", grace / 1000)
    with Interrupts() as interrupts:
        drivers = _Drivers(ledger, owner, settings, interrupts)
        drivers.look()
        while not interrupts.wait(LOOK_EVERY_S):
            drivers.look()
        log.info("scheduler %s leaves; another one can go on at once", owner)
        drivers.join(LEAVE_WITHIN_S)
    ledger.close()
    return 0


class _Drivers:
    """The submissions that this scheduler drives: one thread each, under a lock that other schedulers see."""

    def __init__(self, ledger: Ledger, owner: str, settings: Settings, interrupts: Interrupts) -> None:
        self.ledger, self.owner, self.settings, self.interrupts = ledger, owner, settings, interrupts
        self.running: dict[str, _Driver] = {}
        self.queues = set(QUEUES)
        self.again_at: dict[str, float] = {}
        self.errors: dict[str, str] = {}
        self.sweep_at = 0.0
        self.away = ""
        self.epoch = 0
        self.reloading: threading.Thread | None = None

    def look(self) -> None:
        """Take up what nobody drives; a drive that failed is tried again after a while, here or elsewhere."""
        now = time.monotonic()
        for sub, driver in list(self.running.items()):
            if not driver.thread.is_alive():
                del self.running[sub]
                if driver.failed:
                    self.again_at[sub] = now + AGAIN_AFTER_S
                    self.errors[sub] = driver.error
                else:
                    self.errors.pop(sub, None)
        self.again_at = {sub: at for sub, at in self.again_at.items() if at > now}
        try:
            self._remember(self.ledger.open_epoch())
            for sub in self.ledger.submissions():
                if sub in self.running or sub in self.again_at:
                    continue
                if self.ledger.lock(f"drive:{sub}", self.owner, LOCK_MS):
                    self.running[sub] = self._driver(sub)
            self._measure()
            if now >= self.sweep_at and self.ledger.lock("sweep", self.owner, int(SWEEP_EVERY_S * 1000)):
                self.sweep_at = now + SWEEP_EVERY_S
                self.ledger.sweep()
        except EvalfleetError as error:
            if not self.away:
                log.warning("waiting for the broker: %s", error)
            self.away = str(error)
            BROKER_AWAY.set(1)
            self.epoch = 0
            return
        if self.away:
            log.info("the broker is back")
        self.away = ""
        BROKER_AWAY.set(0)

    def _driver(self, submission: str) -> _Driver:
        last_error = self.errors.get(submission, "")
        return _Driver(submission, self.owner, self.settings, self.interrupts, last_error=last_error)

    def _remember(self, epoch: int) -> None:
        """Once for each epoch: put back on the books what the broker may have forgotten. On a thread of its own, for
        the target has its time to answer."""
        if epoch == self.epoch or (self.reloading is not None and self.reloading.is_alive()):
            return

        def reload() -> None:
            ledger = Ledger(self.settings.require_broker().redis_url)
            store = shared_results(self.settings.require_results_url())
            try:
                if reload_unfinished(
                    ledger,
                    store,
                    lambda plan: evaluations_of(self.settings, plan, retry_for=CONTACT_S),
                    Seal(self.settings.plan_key),
                ):
                    self.epoch = epoch
            except EvalfleetError as error:
                log.warning("unfinished submissions are not looked for: %s", error)
            finally:
                ledger.close()

        self.reloading = threading.Thread(target=reload, name="reload", daemon=True)
        self.reloading.start()

    def _measure(self) -> None:
        SUBMISSIONS.set(len(self.running))
        workers = self.ledger.workers()
        WORKERS.set(len(workers))
        self.queues.update(*map(queues_of, workers), *(driver.queues for driver in self.running.values()))
        for queue in self.queues:
            QUEUED.labels(queue).set(self.ledger.queue_length(queue))
            oldest = self.ledger.oldest_message(queue)
            sent = None if oldest is None else sent_at(oldest)
            OLDEST.labels(queue).set(0 if sent is None else max(0.0, time.time() - sent))
        used, limit = self.ledger.memory()
        BROKER_BYTES.set(used)
        BROKER_LIMIT.set(limit)

    def join(self, seconds: float) -> None:
        """Wait for the drivers, which leave by themselves once a signal was noticed."""
        end = time.monotonic() + seconds
        for driver in self.running.values():
            driver.thread.join(max(0.0, end - time.monotonic()))


class _Driver:
    """Drives one submission on a thread of its own; its lock is renewed by each tick. `error` is what ended the drive
    if that `failed`, logged unless it is the `last_error`."""

    def __init__(
        self, submission: str, owner: str, settings: Settings, interrupts: Interrupts, *, last_error: str = ""
    ) -> None:
        self.submission = submission
        self.owner = owner
        self.settings = settings
        self.interrupts = interrupts
        self.failed = True
        self.error = ""
        self.last_error = last_error
        self.said: str | None = None
        self.queues: tuple[str, ...] = ()
        self.thread = threading.Thread(target=self._main, name=f"drive-{submission[-8:]}", daemon=True)
        self.thread.start()

    def _main(self) -> None:
        broker = self.settings.require_broker()
        ledger = Ledger(broker.redis_url)
        try:
            with about(submission=self.submission):
                self._drive(ledger, broker)
            self.failed = False
        except EvalfleetError as error:
            self.error = error.message
            if self.error != self.last_error:
                log.error("%s: %s", self.submission, error)  # noqa: TRY400  - the sentence is enough
        finally:
            forget_submission(self.submission)
            with contextlib.suppress(EvalfleetError):  # it runs out by itself
                ledger.unlock(f"drive:{self.submission}", self.owner)
            ledger.close()

    def _drive(self, ledger: Ledger, broker: Broker) -> None:
        store = shared_results(self.settings.require_results_url())
        try:
            plan = ledger.plan(self.submission)
            if plan is not None:
                Seal(self.settings.plan_key).check(self.submission, plan)
                self.settings.contact(plan.target, vouched=self.settings.plan_key is not None)
        except CredentialError as lacking:  # another scheduler may have the key; this one looks again after a while
            ledger.say(self.submission, f"scheduler {self.owner}: {lacking}")
            raise
        except (PlanRefused, SettingError) as refused:  # its artifact is whole: the same submit goes on
            log.error("%s", refused)  # noqa: TRY400  - the sentence is enough
            ledger.end(self.submission, "stopped", refused.message, REFUSED)
            ledger.retire(self.submission)
            return
        if plan is None:
            log.warning("%s has no plan on the books: dropped", self.submission)
            ledger.forget(self.submission)
            return
        total = sum(1 for _ in plan.all_attempts())
        self.queues = tuple(queue_name(kind, plan.target.account) for kind in QUEUES)
        log.info("driving %s: %d attempts, %d at once", plan.id, total, plan.concurrency)

        def reload() -> Books:
            put_graders(ledger, store, plan)
            return books(plan, documents(self.settings, plan), store)

        def tick(_progress: Any, note: str) -> bool:
            mine = True
            try:
                mine = ledger.lock(f"drive:{plan.id}", self.owner, LOCK_MS)
                self._say(ledger, note)
            except (TargetUnreachable, BrokerFull) as away:
                self._log(str(away))  # whether the lock is still ours is asked again when the broker answers
            return self.interrupts.first is not None or not mine

        publisher = CeleryPublisher(broker, ledger, plan.target.account)
        with contextlib.closing(publisher):
            ended = drive(
                Dispatcher(
                    ledger,
                    plan,
                    publisher,
                    reload=reload,
                    enough=enough_of(plan),
                    target_limit=self.settings.target_limit,
                ),
                tick=tick,
            )
        forget_target(plan.target.name)
        if ended.state == "left":
            log.info("%s is left as it stands", plan.id)
            return
        summary = summarize_fleet(plan, store, documents(self.settings, plan), ended)
        compared = self._compared(plan, store, summary)
        regressed = compared is not None and compared.is_lost
        stored = summary.stored(exit_code(summary, regressed=regressed, stopped=ended.is_by_limit))
        finish(store, plan.artifact, stored | ({} if compared is None else {"comparison": compared.document()}))
        ledger.retire(plan.id)
        why = f" ({ended.reason})" if ended.reason else ""
        log.info("%s is %s%s: %s, in %s", plan.id, ended.state, why, summary.verdict, plan.artifact)

    def _compared(self, plan: Plan, store: ResultsStore, summary: Summary) -> Compared | None:
        """Beside the baseline that it was submitted with; None where there is none, or it cannot be read here."""
        try:
            baseline = planned_baseline(plan, store, None, log.warning)
            return None if baseline is None else baseline.against(plan, summary)
        except EvalfleetError as error:
            log.warning("%s is not compared: %s", plan.id, error)
            return None

    def _say(self, ledger: Ledger, note: str) -> None:
        """Why it stands still, for whoever watches; once in the log."""
        if note != self.said:
            ledger.say(self.submission, note)
        self._log(note)

    def _log(self, note: str) -> None:
        if note and note != self.said:
            log.warning("%s: %s", self.submission, note)
        self.said = note


def summarize_fleet(plan: Plan, store: ResultsStore, evaluations: Sequence[Mapping[str, Any]], ended: Ended) -> Summary:
    return summarize(
        plan,
        open_artifact(store, plan.artifact).lines(),
        artifact=store.shown(plan.artifact),
        evaluations=evaluations,
        reasons=missing_reasons(plan, ended),
        refused=refused_records(plan, ended),
        quarantine=in_force(plan.quarantine, datetime.now(UTC).date()),
    )


def documents(settings: Settings, plan: Plan) -> tuple[Mapping[str, Any], ...]:
    """The evaluations as they stand; () when the platform does not answer."""
    try:
        return evaluations_of(settings, plan)
    except PlatformError as error:
        log.warning("the evaluations of %s could not be read: %s", plan.id, error)
        return ()


def evaluations_of(settings: Settings, plan: Plan, *, retry_for: float = 60.0) -> tuple[Mapping[str, Any], ...]:
    async def main() -> tuple[Mapping[str, Any], ...]:
        async with client_for(settings, plan, retry_for=retry_for) as client:
            return tuple([await client.get_evaluation(e.id) for e in plan.evaluations if e.id is not None])

    return asyncio.run(main())


def end(settings: Settings, plan: Plan, evaluations: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """The evaluations, ended with what is recorded; as they were when the platform does not answer."""

    async def main() -> tuple[Mapping[str, Any], ...]:
        async with client_for(settings, plan) as client:
            return await end_evaluations(client, evaluations)

    try:
        return asyncio.run(main())
    except PlatformError as error:
        log.warning("the evaluations of %s could not be ended: %s", plan.id, error)
        return tuple(evaluations)


def client_for(settings: Settings, plan: Plan, *, retry_for: float = 60.0) -> Client:
    """For the calls of a plan as it stands in the books or in the results, which others may write to. Raises what
    `Settings.contact` does."""
    where, token = settings.contact(plan.target, vouched=Seal(settings.plan_key).vouches_for(plan))
    return Client(where, token, retry_for=retry_for)
