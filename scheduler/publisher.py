"""How do messages leave for the workers?

Celery's producer, and nothing else of Celery. A message that cannot be sent raises TargetUnreachable; the conversations
in it stay unclaimed and the reconciler sends them again (I3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError

from evalfleet.contract.tasks import (
    AGGREGATE_QUEUE,
    AGGREGATE_TASK,
    GRADE_QUEUE,
    GRADE_TASK,
    RUN_QUEUE,
    RUN_TASK,
    AggregateOrder,
    GradeOrder,
    queue_name,
    run_order,
)
from evalfleet.errors import TargetUnreachable
from evalfleet.ledger import Ledger
from evalfleet.plan import Attempt, Conversation
from evalfleet.queue import celery_config, headers
from evalfleet.settings import Broker
from evalfleet.telemetry import PUBLISHED


class CeleryPublisher:
    """Sends run, grade and aggregate messages of plans of one account. One conversation a message: whoever is free
    takes the next."""

    def __init__(self, broker: Broker, ledger: Ledger, account: str | None = None) -> None:
        self.broker = broker
        self.account = account
        self.ledger = ledger
        self.app = Celery("evalfleet", set_as_current=False)
        self.app.conf.update(celery_config(broker.celery_url, prefix=ledger.prefix))
        transport: tuple[type[Exception], ...] = self.app.connection_for_write().recoverable_connection_errors
        self._unsent: tuple[type[Exception], ...] = (OperationalError, *transport)

    def run(self, plan: str, conversations: Sequence[Conversation]) -> None:
        with self._producer() as producer:
            for c in conversations:
                self._send(RUN_TASK, RUN_QUEUE, run_order(plan, [(c.case, c.trial)]).payload(), producer)

    def grade(self, plan: str, attempt: Attempt) -> None:
        order = GradeOrder(plan, (attempt.case, attempt.scenario, attempt.trial))
        with self._producer() as producer:
            self._send(GRADE_TASK, GRADE_QUEUE, order.payload(), producer)

    def aggregate(self, plan: str) -> None:
        with self._producer() as producer:
            self._send(AGGREGATE_TASK, AGGREGATE_QUEUE, AggregateOrder(plan).payload(), producer)

    def queued(self, kind: str) -> int:
        """Messages of a kind that no worker has taken."""
        return self.ledger.queue_length(queue_name(kind, self.account))

    def close(self) -> None:
        self.app.close()

    def _producer(self) -> Any:
        return self.app.producer_or_acquire()

    def _send(self, task: str, kind: str, payload: dict[str, Any], producer: Any) -> None:
        queue = queue_name(kind, self.account)
        try:
            self.app.send_task(
                task,
                kwargs={"payload": payload},
                queue=queue,
                producer=producer,
                ignore_result=True,
                headers=headers(),
                retry=True,
                retry_policy={"max_retries": 3, "interval_start": 0, "interval_step": 0.2, "interval_max": 0.5},
            )
        except self._unsent as error:
            raise TargetUnreachable(f"the broker {self.broker} takes no message: {error}") from error
        PUBLISHED.labels(queue).inc()
