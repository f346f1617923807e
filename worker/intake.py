"""Which messages does this worker take from the broker, and when?

A message that is taken waits for nothing: a worker whose places are full asks for no further conversation, so that a
worker with a free place gets it (I3: where a message waits decides nothing, but it decides how long). Redis hands a
message to whoever has asked for the longest time; so conversations are asked for on a channel of their own, which asks
only while a place is free, beside the channel for grading and recording, which need none.

The claim is the acknowledgement (I3): a message is gone from the broker as soon as it is taken. What a worker takes and
dies with is sent again by the reconciler, long before a visibility timeout would.

Celery's own setting for this (`worker_disable_prefetch`) counts all messages as one: a worker that plays as many
conversations as it may would go on taking those that others have places for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from celery import bootsteps, signals

from evalfleet.contract.tasks import QUEUE_OF, RUN_QUEUE, kind_of

EXTRA = 4
"""Threads beyond the conversations, so that grading and recording never wait for a place of a run."""


class Intake:
    """Counts what this worker has taken and not finished, of `places` conversations and `threads` tasks in all.

    `asks(queue)` is whether it would take another message of that kind. `on_free` is called, from the task's thread,
    when a queue may be asked again that could not be before.
    """

    def __init__(self, queues: Sequence[str], concurrency: int) -> None:
        self.queues = tuple(queues)
        self.others = tuple(queue for queue in queues if queue != RUN_QUEUE)
        self.plays = RUN_QUEUE in queues
        self.places = concurrency if self.plays else 0
        mixed = self.plays and self.others
        self.most = concurrency + EXTRA if mixed else concurrency
        self.threads = self.most + 1 if mixed else self.most
        """Each of two channels may have asked for what is the last thread."""
        self.on_free: Callable[[], object] = lambda: None
        self._taken = dict.fromkeys(queues, 0)
        self._guard = threading.Lock()

    def asks(self, queue: str) -> bool:
        with self._guard:
            return self._asks(queue)

    def _asks(self, queue: str) -> bool:
        if queue == RUN_QUEUE and self._taken[RUN_QUEUE] >= self.places:
            return False
        return sum(self._taken.values()) < self.most

    def took(self, queue: str) -> None:
        with self._guard:
            self._taken[queue] += 1

    @contextmanager
    def finishes(self, queue: str) -> Iterator[None]:
        """Around a task's body: its message is finished however that ends."""
        try:
            yield
        finally:
            with self._guard:
                shut = [name for name in self.queues if not self._asks(name)]
                self._taken[queue] -= 1
                opened = any(self._asks(name) for name in shut)
            if opened:
                self.on_free()


def consuming(intake: Intake, names: Sequence[str]) -> type[bootsteps.StartStopStep]:
    """The step of Celery's consumer that lets `intake` decide. It is made anew with each connection. `names`: the
    queues as the broker has them, several for each kind where this worker holds keys of several accounts."""
    run_names = [name for name in names if kind_of(name) == RUN_QUEUE]

    class Consuming(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
        requires = ("celery.worker.consumer.tasks:Tasks",)
        runs: Any = None

        def start(self, consumer: Any) -> None:
            intake.on_free = lambda: consumer.hub.call_soon(_look_again)
            first = consumer.task_consumer
            first.no_ack = True
            if intake.plays and intake.others:
                for name in run_names:
                    first.cancel_by_queue(name)
                self.runs = consumer.app.amqp.TaskConsumer(
                    consumer.connection.channel(),
                    queues=[consumer.app.amqp.queues[name] for name in run_names],
                    on_decode_error=consumer.on_decode_error,
                    no_ack=True,
                )
                self.runs.channel.qos.can_consume = lambda: intake.asks(RUN_QUEUE)
                self.runs.on_message = consumer.create_task_handler()
                self.runs.consume()
            one = intake.others[0] if intake.others else RUN_QUEUE  # the others are asked for together
            first.channel.qos.can_consume = lambda: intake.asks(one)

        def stop(self, consumer: Any) -> None:  # noqa: ARG002  - Celery's signature
            if self.runs is not None:
                self.runs.cancel()

        def shutdown(self, consumer: Any) -> None:
            self.stop(consumer)
            if self.runs is not None:
                self.runs.channel.close()
                self.runs = None

    return Consuming


def _look_again() -> None:
    """Nothing: the consumer's loop looks at its channels before it waits again."""


def count_taken(intake: Intake, heard: Callable[[], object]) -> None:
    """Celery tells of each message that it has taken for a task, on the consumer's thread."""

    def received(request: Any, **_: Any) -> None:
        request.acknowledged = True  # it has not been kept: there is nothing to tell the broker
        intake.took(QUEUE_OF[request.name])
        heard()

    signals.task_received.connect(received, weak=False)
