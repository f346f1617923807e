"""A worker takes what it can begin at once, and leaves the rest to others."""

from __future__ import annotations

import pytest

from worker.intake import EXTRA, Intake


class Seen:
    """An intake, and how often it told that there is room again."""

    def __init__(self, *queues: str, concurrency: int) -> None:
        self.intake = Intake(queues, concurrency)
        self.freed = 0
        self.intake.on_free = self._free

    def _free(self) -> None:
        self.freed += 1

    def take(self, queue: str, times: int = 1) -> None:
        for _ in range(times):
            assert self.intake.asks(queue)
            self.intake.took(queue)

    def finish(self, queue: str) -> None:
        with self.intake.finishes(queue):
            pass


def test_a_worker_of_all_queues_whose_places_are_full_asks_for_no_conversation_and_goes_on_with_the_rest() -> None:
    seen = Seen("run", "grade", "aggregate", concurrency=2)
    seen.take("run", 2)
    assert not seen.intake.asks("run")
    seen.take("grade", EXTRA)
    assert not seen.intake.asks("aggregate"), "every thread has its work"
    seen.finish("run")
    assert seen.intake.asks("run")
    assert seen.intake.asks("aggregate")


def test_threads_of_conversations_that_are_not_there_judge_and_record() -> None:
    seen = Seen("run", "grade", concurrency=8)
    seen.take("grade", 8 + EXTRA)
    assert not seen.intake.asks("run")


@pytest.mark.parametrize("queue", ["run", "grade"])
def test_a_worker_of_one_queue_takes_as_much_as_it_does_at_once(queue: str) -> None:
    seen = Seen(queue, concurrency=3)
    assert seen.intake.threads == 3
    seen.take(queue, 3)
    assert not seen.intake.asks(queue)


def test_it_tells_when_it_may_ask_again_and_only_then() -> None:
    seen = Seen("run", "grade", concurrency=1)
    seen.take("grade")
    seen.finish("grade")
    assert seen.freed == 0, "it asks for both all the time"
    seen.take("run")
    seen.finish("run")
    assert seen.freed == 1


def test_a_task_that_breaks_is_finished_too() -> None:
    seen = Seen("run", concurrency=1)
    seen.take("run")
    with pytest.raises(ZeroDivisionError), seen.intake.finishes("run"):
        raise ZeroDivisionError
    assert seen.intake.asks("run")
    assert seen.freed == 1
