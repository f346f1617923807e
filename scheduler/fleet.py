"""How do the parts of a fleet work together when the command that submits does not stay?

`submit` puts a plan on the books and returns. `run_scheduler` drives every submission on the books, one thread each
under a short lock, so that several schedulers share them. `watch` reads how far one is. Where things are comes from the
environment: EVALFLEET_BROKER_URL, EVALFLEET_BASE_URL with EVALFLEET_TOKEN (or a target with SPLOX_API_KEY),
EVALFLEET_RESULTS_URL.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from evalfleet.artifact import find, finish, open_artifact, read_plan
from evalfleet.contract.client import Client
from evalfleet.errors import EvalfleetError, PlatformError, UsageError
from evalfleet.ledger import Ledger
from evalfleet.plan import Plan
from evalfleet.results import FolderResults, results_store
from evalfleet.settings import Settings
from evalfleet.telemetry import serve
from scheduler.conduct import missing_reasons, with_harness
from scheduler.dispatch import Dispatcher, Ended, drive
from scheduler.evaluate import Options, Reporter, state_folder
from scheduler.interrupt import Interrupts
from scheduler.prepare import Prepared
from scheduler.publisher import CeleryPublisher
from scheduler.submissions import Submissions
from scheduler.submit import Opened, books, open_submission, put_bundle, put_on_books
from scheduler.summary import Summary, exit_code, summarize

log = logging.getLogger(__name__)

LOCK_MS = 15_000
LOOK_EVERY_S = 2.0


def submit(prepared: Prepared, options: Options, settings: Settings, *, words: Sequence[str]) -> Opened:
    """Create (or find again) the submission and put it on the fleet's books."""
    store = results_store(settings.require_results_url())
    broker = settings.require_broker()
    ledger = Ledger(broker.redis_url)
    try:
        ledger.check_broker()

        async def main() -> Opened:
            async with _client(settings, prepared.plan) as client:
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
                )

        opened = asyncio.run(main())
        put_bundle(store, opened.plan, prepared.bundle)
        put_on_books(ledger, opened, store)
        return opened
    finally:
        ledger.close()


def run_scheduler(settings: Settings) -> int:
    """Drive what is on the books until SIGTERM or SIGINT; 0."""
    broker = settings.require_broker()
    results_store(settings.require_results_url())
    ledger = Ledger(broker.redis_url)
    ledger.check_broker()
    ledger.open_epoch()
    port = serve(settings.metrics_port)
    owner = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    log.info("scheduler %s on %s%s", owner, broker, f", metrics on port {port}" if port else "")
    drivers: dict[str, _Driver] = {}
    with Interrupts() as interrupts:
        for _ in ledger.wake_ups(LOOK_EVERY_S):
            if interrupts.first is not None:
                break
            drivers = {sub: driver for sub, driver in drivers.items() if driver.thread.is_alive()}
            try:
                for sub in ledger.submissions():
                    if sub not in drivers and ledger.lock(f"drive:{sub}", owner, LOCK_MS):
                        drivers[sub] = _Driver(sub, owner, settings, interrupts)
            except EvalfleetError as error:
                log.warning("looking for submissions: %s", error)
        for driver in drivers.values():
            driver.thread.join(5)
    ledger.close()
    return 0


class _Driver:
    """Drives one submission on a thread of its own; its lock is renewed by each tick."""

    def __init__(self, submission: str, owner: str, settings: Settings, interrupts: Interrupts) -> None:
        self.submission = submission
        self.owner = owner
        self.settings = settings
        self.interrupts = interrupts
        self.thread = threading.Thread(target=self._main, name=f"drive-{submission[-8:]}", daemon=True)
        self.thread.start()

    def _main(self) -> None:
        ledger = Ledger(self.settings.require_broker().redis_url)
        publisher = CeleryPublisher(self.settings.require_broker(), ledger)
        try:
            self._drive(ledger, publisher)
        except EvalfleetError as error:
            log.error("%s: %s", self.submission, error)  # noqa: TRY400  - the sentence is enough
        finally:
            with contextlib.suppress(EvalfleetError):  # it runs out by itself
                ledger.unlock(f"drive:{self.submission}", self.owner)
            publisher.close()
            ledger.close()

    def _drive(self, ledger: Ledger, publisher: CeleryPublisher) -> None:
        store = results_store(self.settings.require_results_url())
        plan = ledger.plan(self.submission)
        if plan is None:
            log.warning("%s has no plan on the books: dropped", self.submission)
            ledger.forget(self.submission)
            return
        log.info("driving %s", plan.id)

        def reload() -> dict[Any, str]:
            return books(plan, documents(self.settings, plan), store)

        def tick(_progress: Any, note: str) -> bool:
            if note:
                log.warning("%s: %s", plan.id, note)
            mine = ledger.lock(f"drive:{plan.id}", self.owner, LOCK_MS)
            return self.interrupts.first is not None or not mine

        ended = drive(Dispatcher(ledger, plan, publisher, reload=reload), tick=tick)
        if ended.state == "left":
            return
        summary = summarize_fleet(plan, store, documents(self.settings, plan), ended)
        finish(store, plan.artifact, summary.stored(exit_code(summary)))
        ledger.retire(plan.id)
        log.info("%s ended: %s %s (%s)", plan.id, ended.state, ended.reason, summary.verdict)


def watch(submission: str, settings: Settings, reporter: Reporter, *, allow_flaky: bool) -> tuple[Summary, int]:
    """Follow a submission to its end; its summary and exit code. UsageError when nobody knows it."""
    store = results_store(settings.require_results_url())
    ledger = Ledger(settings.require_broker().redis_url)
    ended: Ended | None = None
    total = 0
    with Interrupts() as interrupts:
        for _ in ledger.wake_ups(0.5):
            meta = ledger.meta(submission)
            if meta is None:
                if find(store, submission) is None:
                    raise UsageError(
                        f"nobody knows a submission {submission}; `evalfleet list` shows what was started here"
                    )
                ended = Ended("unknown")
            elif meta.state != "running":
                ended = Ended(meta.state, meta.reason, meta.code, ledger.given_up(submission))
            if ended is not None or interrupts.first is not None:
                break
            if not total:
                known = ledger.plan(submission)
                total = sum(1 for _ in known.all_attempts()) if known is not None else 0
            alive = ledger.workers()
            reporter.progress(ledger.progress(submission), total, "" if alive else "no worker is alive")
    reporter.done()
    artifact = find(store, submission)
    if artifact is None:
        raise UsageError(f"{store.shown()} holds no artifact of {submission}")
    plan = read_plan(store, artifact)
    summary = summarize_fleet(plan, store, documents(settings, plan), ended or Ended("left"))
    signal = interrupts.first if ended is None else None
    if ended is not None and ended.state == "stopped" and ended.reason:
        reporter.warn(f"stopped: {ended.reason}")
    ledger.close()
    return summary, exit_code(summary, allow_flaky=allow_flaky, signal=signal)


def summarize_fleet(
    plan: Plan, store: FolderResults, evaluations: Sequence[Mapping[str, Any]], ended: Ended
) -> Summary:
    return summarize(
        plan,
        open_artifact(store, plan.artifact).lines(),
        artifact=store.shown(plan.artifact),
        evaluations=evaluations,
        reasons=missing_reasons(plan, ended),
    )


def documents(settings: Settings, plan: Plan) -> tuple[Mapping[str, Any], ...]:
    """The evaluations as they stand; () when the platform does not answer."""

    async def main() -> tuple[Mapping[str, Any], ...]:
        async with _client(settings, plan) as client:
            return tuple([await client.get_evaluation(e.id) for e in plan.evaluations if e.id is not None])

    try:
        return asyncio.run(main())
    except PlatformError as error:
        log.warning("the evaluations of %s could not be read: %s", plan.id, error)
        return ()


def _client(settings: Settings, plan: Plan) -> Client:
    if plan.target.base_url is None:
        return Client(settings.require_base_url(), settings.require_token())
    return Client(plan.target.base_url, settings.require_api_key())
