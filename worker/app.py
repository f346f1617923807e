"""How does a worker process start, take messages and leave?

`evalfleet worker` (= `python -P -m worker`) starts Celery's consumer in this process with a pool of threads and hangs
three small tasks on it; the work is in `worker.tasks`. Other pools are refused: under prefork the loop thread and the
heartbeat would be forked, under gevent the Redis transport loses messages (design.md, "Pool: threads").
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from celery import Celery, signals

from evalfleet.contract.tasks import (
    AGGREGATE_QUEUE,
    AGGREGATE_TASK,
    GRADE_QUEUE,
    GRADE_TASK,
    QUEUES,
    RUN_QUEUE,
    RUN_TASK,
    AggregateOrder,
    GradeOrder,
    read_aggregate,
    read_grade,
    read_run,
)
from evalfleet.errors import EvalfleetError, SettingError
from evalfleet.plan import Attempt, Conversation
from evalfleet.queue import celery_config
from evalfleet.settings import Settings
from evalfleet.telemetry import PUBLISHED, serve
from worker.tasks import Crew

log = logging.getLogger(__name__)

EXTRA_SLOTS = 4
"""Threads beyond the conversations, so that grading and recording never wait for a slot of a run."""


def make_app(settings: Settings) -> Celery:
    """The Celery app: configuration only, no task."""
    app = Celery("evalfleet", set_as_current=False)
    app.conf.update(celery_config(settings.require_broker().celery_url))
    return app


class CeleryPublisher:
    """Sends grade and aggregate messages from a task."""

    def __init__(self, app: Celery) -> None:
        self.app = app

    def grade(self, plan: str, attempt: Attempt) -> None:
        order = GradeOrder(plan, (attempt.case, attempt.scenario, attempt.trial))
        self._send(GRADE_TASK, GRADE_QUEUE, order.payload())

    def aggregate(self, plan: str) -> None:
        self._send(AGGREGATE_TASK, AGGREGATE_QUEUE, AggregateOrder(plan).payload())

    def _send(self, task: str, queue: str, payload: dict[str, Any]) -> None:
        """A message that cannot be sent is only a hint lost: the reconciler sends it again (I3)."""
        try:
            self.app.send_task(task, kwargs={"payload": payload}, queue=queue, ignore_result=True)
        except self.app.connection_for_write().transport.connection_errors as error:
            log.warning("%s could not be sent: %s", task, error)
            return
        PUBLISHED.labels(queue).inc()


def add_tasks(app: Celery, crew: Crew) -> None:
    """Hang the three tasks on the app. Each drops a message that it cannot read, and says so."""

    def task(name: str, body: Callable[[Any], None]) -> None:
        def handle(payload: Mapping[str, Any]) -> None:
            try:
                body(payload)
            except ValueError as error:
                log.error("%s: a message is dropped: %s", name, error)  # noqa: TRY400  - the sentence is enough
            except EvalfleetError as error:
                log.error("%s: %s", name, error)  # noqa: TRY400

        app.task(name=name, acks_late=False, ignore_result=True)(handle)

    def run(payload: Any) -> None:
        order = read_run(payload)
        crew.run(order.plan, [Conversation(*pair) for pair in order.conversations])

    def grade(payload: Any) -> None:
        order = read_grade(payload)
        crew.grade(order.plan, Attempt(*order.attempt))

    def aggregate(payload: Any) -> None:
        crew.aggregate(read_aggregate(payload).plan)

    task(RUN_TASK, run)
    task(GRADE_TASK, grade)
    task(AGGREGATE_TASK, aggregate)


def read_queues(text: str) -> tuple[str, ...]:
    """`run,grade,aggregate` or some of them; SettingError names an unknown one."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [name for name in names if name not in QUEUES]
    if unknown or not names:
        raise SettingError(
            "--queues", f"{', '.join(unknown) or 'nothing'} is no queue; choose from {', '.join(QUEUES)}"
        )
    return names


def run_worker(settings: Settings, *, queues: Sequence[str], concurrency: int, ready_file: Path | None = None) -> int:
    """Consume until SIGTERM; the process's exit code. Raises OperatorError for a broker that will not do."""
    app = make_app(settings)
    slots = concurrency + EXTRA_SLOTS if RUN_QUEUE in queues else concurrency
    crew = Crew(settings, CeleryPublisher(app), queues=",".join(queues), slots=concurrency)
    add_tasks(app, crew)
    crew.ledger.check_broker()
    serve(settings.metrics_port)
    crew.start()

    def leave(**_: Any) -> None:
        threading.Thread(target=crew.stop, name="evalfleet-leave").start()

    def ready(**_: Any) -> None:
        log.info("worker %s takes %s, %d at once", crew.heart.incarnation, ",".join(queues), concurrency)
        if ready_file is not None:
            ready_file.write_text(crew.heart.incarnation, encoding="ascii")

    signals.worker_shutting_down.connect(leave, weak=False)
    signals.worker_ready.connect(ready, weak=False)
    worker = app.Worker(
        pool="threads",
        concurrency=slots,
        queues=list(queues),
        hostname=f"evalfleet-{crew.heart.incarnation[:8]}@%h",
        without_heartbeat=True,
        without_mingle=True,
        without_gossip=True,
        loglevel=settings.log_level.upper(),
        quiet=True,
    )
    _end_with_the_command(settings)
    worker.start()
    return int(worker.exitcode or 0)


def _end_with_the_command(settings: Settings) -> None:
    """An embedded worker ends with the command that started it, however that one died."""
    if settings.lifeline_fd is None:
        return
    import signal

    from evalfleet.lifeline import watch

    watch(lambda: os.kill(os.getpid(), signal.SIGTERM))


def main(argv: Sequence[str] | None = None) -> int:
    """`python -P -m worker [--queues run,grade,aggregate] [--concurrency N] [--ready-file FILE]`."""
    import argparse

    parser = argparse.ArgumentParser(prog="evalfleet worker")
    parser.add_argument("--queues", default=os.environ.get("EVALFLEET_QUEUES", ",".join(QUEUES)))
    parser.add_argument("--concurrency", type=int, default=int(os.environ.get("EVALFLEET_CONCURRENCY", "8")))
    parser.add_argument("--ready-file", type=Path)
    arguments = parser.parse_args(argv)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    try:
        settings = Settings.from_env(os.environ)
        logging.getLogger().setLevel(settings.log_level.upper())
        logging.getLogger("httpx").setLevel("WARNING")
        return run_worker(
            settings,
            queues=read_queues(arguments.queues),
            concurrency=arguments.concurrency,
            ready_file=arguments.ready_file,
        )
    except EvalfleetError as error:
        print(f"evalfleet worker: {error}", file=sys.stderr)  # noqa: T201  - the process's last word
        return error.exit_code
