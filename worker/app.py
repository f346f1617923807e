"""How does a worker process start, take messages and leave?

`evalfleet worker` (= `python -P -m worker`) starts Celery's consumer in this process with a pool of threads and hangs
three small tasks on it; the work is in `worker.tasks`. There is no choice of pool: under prefork the loop thread and
the heartbeat would be forked, under gevent the Redis transport loses messages.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from celery import Celery, bootsteps, signals
from celery.exceptions import CPendingDeprecationWarning, SecurityWarning
from celery.worker import state
from kombu.exceptions import OperationalError

from evalfleet.contract.outbound import way_to
from evalfleet.contract.tasks import (
    AGGREGATE_QUEUE,
    AGGREGATE_TASK,
    GRADE_QUEUE,
    GRADE_TASK,
    QUEUE_OF,
    QUEUES,
    RUN_TASK,
    AggregateOrder,
    GradeOrder,
    kind_of,
    queue_name,
    read_aggregate,
    read_grade,
    read_run,
)
from evalfleet.credentials import key_variable, url_variable
from evalfleet.errors import EvalfleetError, SettingError, UnfitHost
from evalfleet.graders.cage import capabilities
from evalfleet.host_limits import make_room
from evalfleet.ledger import FAULT, Ledger
from evalfleet.logs import log_to_stderr, tell_about_submissions
from evalfleet.plan import Attempt, Conversation, Plan
from evalfleet.queue import celery_config, headers
from evalfleet.results import shared_results
from evalfleet.settings import Settings
from evalfleet.telemetry import PUBLISHED, serve
from worker.intake import EXTRA, Intake, consuming, count_taken
from worker.liveness import EVERY_S, Liveness
from worker.tasks import Crew

log = logging.getLogger(__name__)

AT_ONCE = 8
MOST_AT_ONCE = 1000
DEAF_EXIT = 3


def make_app(settings: Settings) -> Celery:
    """The Celery app: configuration only, no task."""
    app = Celery("evalfleet", set_as_current=False)
    app.conf.update(celery_config(settings.require_broker().celery_url))
    return app


class CeleryPublisher:
    """Sends grade and aggregate messages from a task."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        # A lost connection comes as itself or, once kombu has retried, as its own error.
        transport: tuple[type[Exception], ...] = app.connection_for_write().recoverable_connection_errors
        self._unsent: tuple[type[Exception], ...] = (OperationalError, *transport)

    def grade(self, plan: Plan, attempt: Attempt) -> None:
        order = GradeOrder(plan.id, (attempt.case, attempt.scenario, attempt.trial))
        self._send(GRADE_TASK, queue_name(GRADE_QUEUE, plan.target.account), order.payload())

    def aggregate(self, plan: Plan) -> None:
        self._send(AGGREGATE_TASK, queue_name(AGGREGATE_QUEUE, plan.target.account), AggregateOrder(plan.id).payload())

    def _send(self, task: str, queue: str, payload: dict[str, Any]) -> None:
        """A message that cannot be sent is only a hint lost: the reconciler sends it again (I3)."""
        try:
            self.app.send_task(task, kwargs={"payload": payload}, queue=queue, ignore_result=True, headers=headers())
        except self._unsent as error:
            log.warning("%s could not be sent: %s", task, error)
            return
        PUBLISHED.labels(queue).inc()


class _Order(Protocol):
    @property
    def plan(self) -> str: ...


_O = TypeVar("_O", bound=_Order)


def add_tasks(app: Celery, crew: Crew, intake: Intake) -> None:
    """Hang the three tasks on the app. Each drops a message that it cannot read, and says so."""

    def task(name: str, read: Callable[[Any], _O], do: Callable[[_O], None]) -> None:
        def handle(payload: Mapping[str, Any]) -> None:
            with intake.finishes(QUEUE_OF[name]):
                handle_taken(payload)

        def handle_taken(payload: Mapping[str, Any]) -> None:
            try:
                order = read(payload)
            except ValueError as error:
                log.error("%s: a message is dropped: %s", name, error)  # noqa: TRY400  - the sentence is enough
                return
            try:
                do(order)
            except EvalfleetError as error:
                log.error("%s: %s", name, error)  # noqa: TRY400
            except Exception as error:
                if not crew.stopping.is_set():  # one that leaves pulls the ground from under its own tasks
                    _stop_for_a_fault(crew, order.plan, name, error)
                raise

        app.task(name=name, shared=False, acks_late=False, ignore_result=True)(handle)

    task(RUN_TASK, read_run, lambda order: crew.run(order.plan, [Conversation(*pair) for pair in order.conversations]))
    task(GRADE_TASK, read_grade, lambda order: crew.grade(order.plan, Attempt(*order.attempt)))
    task(AGGREGATE_TASK, read_aggregate, lambda order: crew.aggregate(order.plan))


def _stop_for_a_fault(crew: Crew, plan: str, task: str, error: Exception) -> None:
    """A bug of ours would be met by every worker again: the submission ends with it named, and can be resumed. Without
    this a person sees only that nothing moves. What breaks in a worker that leaves is none."""
    if crew.stopping.is_set():
        return
    reason = f"a fault of ours in {task}: {type(error).__name__}: {error} (the worker's log has the traceback)"
    try:
        crew.ledger.end(plan, "stopped", reason, FAULT)
    except EvalfleetError as away:
        log.error("%s could not be ended: %s", plan, away)  # noqa: TRY400  - Celery logs the fault itself


def read_queues(text: str) -> tuple[str, ...]:
    """`run,grade,aggregate` or some of them; SettingError names an unknown one."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [name for name in names if name not in QUEUES]
    if unknown or not names:
        raise SettingError(
            "--queues", f"{', '.join(unknown) or 'nothing'} is no queue; choose from {', '.join(QUEUES)}"
        )
    return names


def run_worker(
    settings: Settings,
    *,
    queues: Sequence[str],
    concurrency: int,
    ready_file: Path | None = None,
    liveness_file: Path | None = None,
) -> int:
    """Consume until SIGTERM; the process's exit code. Raises OperatorError for a broker or an environment that will
    not do, TargetUnreachable when the broker is not there."""
    check_environment(settings, queues)
    if settings.lifeline_fd is None:  # the command of an embedded one has made room for all of its parts
        make_room(concurrency, "--concurrency")
    app = make_app(settings)
    intake = Intake(queues, concurrency)
    names = [queue_name(kind, account) for kind in queues for account in settings.accounts]
    crew = Crew(settings, CeleryPublisher(app), queues=",".join(names), slots=concurrency)
    add_tasks(app, crew, intake)
    crew.ledger.check_broker()
    liveness = Liveness(
        liveness_file,
        waiting=lambda: sum(crew.ledger.queue_length(name) for name in names if intake.asks(kind_of(name))),
        deaf=lambda: os.kill(os.getpid(), signal.SIGTERM),
        unreachable=crew.health.look,
    )
    liveness.check_file()
    tell_about_submissions(
        Ledger(settings.require_broker().redis_url, within=2.0).put_log,
        part=f"worker {crew.heart.name}",
        secrets=settings.secrets,
    )
    app.steps["consumer"].update({consuming(intake, names), _look_with(liveness)})
    metrics_port = serve(settings.metrics_port)
    if GRADE_QUEUE in queues and settings.lifeline_fd is None:  # nobody reads the log of a laptop's embedded one
        say_walls()
    crew.start()

    def leave() -> None:
        log.info("worker %s leaves; what it plays goes back", crew.heart.incarnation)
        crew.stop()
        # Everything has been given back. What Celery would still wait for, up to a second, is an answer of the broker
        # to a question for more work; whether that is acknowledged or not carries no part of any argument (I3).
        logging.shutdown()
        os._exit(DEAF_EXIT if liveness.is_deaf else 0)

    leaving = threading.Thread(target=leave, name="evalfleet-leave")

    def ready(**_: Any) -> None:
        _on_signals(leaving)
        # Celery turns them on as it starts, and says at each lost connection what a setting of ours will mean one day.
        warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)
        log.info(
            "worker %s takes %s, %d at once%s",
            crew.heart.incarnation,
            ",".join(names),
            concurrency,
            "" if metrics_port is None else f", metrics on port {metrics_port}",
        )
        if settings.plan_key is None and settings.lifeline_fd is None:  # the embedded broker is nobody else's
            log.warning("plans are not signed: whoever can write to the broker decides what this worker runs and calls")
        if ready_file is not None:
            ready_file.write_text(crew.heart.incarnation, encoding="ascii")

    signals.worker_ready.connect(ready, weak=False)
    count_taken(intake, liveness.received)
    # Celery advises against root because its tasks may be pickled code of strangers. Ours are JSON that is checked, and
    # the image runs as nobody special; on a laptop it says this to whoever is root there anyway.
    warnings.filterwarnings("ignore", "You're running the worker with superuser privileges", SecurityWarning)
    worker = app.Worker(
        pool="threads",
        concurrency=intake.threads,
        queues=names,
        hostname=f"evalfleet-{crew.heart.incarnation[:8]}@{socket.gethostname()}",
        without_heartbeat=True,
        without_mingle=True,
        without_gossip=True,
        loglevel=settings.log_level.upper(),
        quiet=True,
    )
    _end_with_the_command(settings)
    worker.start()
    if leaving.is_alive():
        leaving.join()  # where the interpreter ends, no thread of ours can start anything any more
    return DEAF_EXIT if liveness.is_deaf else int(worker.exitcode or 0)


def say_walls() -> None:
    """Log which of the walls around graders this host gives, and what each that it does not give means (S28)."""
    try:
        cages = capabilities()
    except UnfitHost as unfit:
        log.error("graders cannot be run here: %s", unfit)  # noqa: TRY400  - the sentence is enough
        return
    weak = cages.weak()
    log.log(
        logging.WARNING if weak else logging.INFO,
        "graders run behind these walls: %s%s",
        ", ".join(cages.standing()) or "none",
        f"; but {'; '.join(weak)} (docs/graders.md)" if weak else "",
    )


def _on_signals(leaving: threading.Thread) -> None:
    """SIGTERM and Ctrl-C: `leaving` starts, and Celery takes nothing more and waits for its threads. A second one ends
    the process at once: others notice within seconds. Instead of Celery's handlers, which differ for the two and print.
    """

    def handle(number: int, _frame: object) -> None:
        if state.should_stop is not None:
            os._exit(128 + number)
        state.should_stop = 0
        leaving.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def check_environment(settings: Settings, queues: Sequence[str]) -> None:
    """What is missing is said at the start, not by every message. Raises SettingError or CredentialError."""
    settings.require_broker()
    if not settings.keys or settings.base_url is not None:
        way_to(settings.require_base_url())
        settings.require_token()
    if settings.plan_key is None:
        for profile in settings.keys:
            if settings.address(profile) is None:
                raise SettingError(
                    url_variable(profile),
                    f"is not set: without EVALFLEET_PLAN_KEY a worker has to be told where {key_variable(profile)} may "
                    "be sent",
                )
    if AGGREGATE_QUEUE in queues:
        shared_results(settings.require_results_url()).check()
    if settings.state is not None:  # graders are unpacked there
        try:
            settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
            tempfile.TemporaryDirectory(dir=settings.state).cleanup()
        except OSError as error:
            raise SettingError("EVALFLEET_STATE", f"{settings.state}: {error.strerror or error}") from error


def _look_with(liveness: Liveness) -> type[bootsteps.StartStopStep]:
    """A step of the consumer: its timer looks at the worker's life for as long as there is a connection."""

    class Look(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
        requires = ("celery.worker.consumer.tasks:Tasks",)
        entry: Any = None

        def start(self, consumer: Any) -> None:
            liveness.connected()
            self.entry = consumer.timer.call_repeatedly(EVERY_S, liveness.look)

        def stop(self, consumer: Any) -> None:  # noqa: ARG002  - Celery's signature
            if self.entry is not None:
                self.entry.cancel()

    return Look


def _end_with_the_command(settings: Settings) -> None:
    """An embedded worker ends with the command that started it, however that one died."""
    if settings.lifeline_fd is None:
        return
    from evalfleet.lifeline import watch

    watch(lambda: os.kill(os.getpid(), signal.SIGTERM))


def main(argv: Sequence[str] | None = None) -> int:
    """`python -P -m worker`; the process's exit code (S36)."""
    arguments = _parser().parse_args(argv)
    try:
        settings = Settings.from_env(os.environ)
        if arguments.metrics_port is not None:
            settings = replace(settings, metrics_port=_whole("--metrics-port", arguments.metrics_port, 0, 65_535))
        log_to_stderr(settings.log_level, settings.log_format)
        return run_worker(
            settings,
            queues=read_queues(arguments.queues),
            concurrency=_whole("--concurrency", arguments.concurrency, 1, MOST_AT_ONCE),
            ready_file=arguments.ready_file,
            liveness_file=arguments.liveness_file,
        )
    except EvalfleetError as error:
        print(f"evalfleet worker: {error}", file=sys.stderr)  # noqa: T201  - the process's last word
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    """Values are text here and read by us, whether they came as a flag or as a variable."""
    environ = os.environ
    parser = argparse.ArgumentParser(
        prog="evalfleet worker",
        description="Plays conversations, runs graders, records attempts. Where things are comes from the environment:"
        " EVALFLEET_BROKER_URL, EVALFLEET_RESULTS_URL, EVALFLEET_BASE_URL with EVALFLEET_TOKEN, or platforms'"
        " keys."
        " SIGTERM or Ctrl-C: it gives back what it plays and leaves.",
    )
    add = parser.add_argument
    add(
        "--queues",
        default=environ.get("EVALFLEET_QUEUES") or ",".join(QUEUES),
        metavar="LIST",
        help=f"what it does: some of {','.join(QUEUES)} (default: all)",
    )
    add(
        "--concurrency",
        default=environ.get("EVALFLEET_CONCURRENCY") or str(AT_ONCE),
        metavar="N",
        help=f"conversations at once; {EXTRA} more threads grade and record (default: {AT_ONCE})",
    )
    add("--metrics-port", metavar="PORT", help="Prometheus metrics; 0 takes a free port (EVALFLEET_METRICS_PORT)")
    add(
        "--liveness-file",
        type=Path,
        default=environ.get("EVALFLEET_LIVENESS_FILE") or None,
        metavar="FILE",
        help=f"touched every {EVERY_S:.0f} s while messages are taken: older than 30 s means restart it; holds what it "
        "does not reach: not empty means unhealthy",
    )
    add("--ready-file", type=Path, metavar="FILE", help="written once, when the first message can come")
    return parser


def _whole(flag: str, text: str, low: int, high: int) -> int:
    """SettingError for what is no whole number from `low` to `high`."""
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()) or not low <= int(text) <= high:
        raise SettingError(flag, f"must be a whole number from {low} to {high}, not {text[:40]!r}")
    return int(text)
