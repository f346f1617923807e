"""What goes over the queue? Names and payloads of the three tasks, as plain JSON.

A message is a hint (I3): it names a plan and what to look at, about 100 bytes, and holds no input, no verdict and no
secret. Nothing here knows Celery.

| task | queue | payload |
| --- | --- | --- |
| `evalfleet.run` | `run` | `{"plan": id, "convs": [[case, trial], …]}` |
| `evalfleet.grade` | `grade` | `{"plan": id, "attempt": [case, scenario, trial]}` |
| `evalfleet.aggregate` | `aggregate` | `{"plan": id}` |

What has to be done with a platform's key waits in a queue of that profile, such as `run-staging` (`queue_name`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

RUN_TASK: Final = "evalfleet.run"
GRADE_TASK: Final = "evalfleet.grade"
AGGREGATE_TASK: Final = "evalfleet.aggregate"

RUN_QUEUE: Final = "run"
GRADE_QUEUE: Final = "grade"
AGGREGATE_QUEUE: Final = "aggregate"

QUEUES: Final = (RUN_QUEUE, GRADE_QUEUE, AGGREGATE_QUEUE)
QUEUE_OF: Final[Mapping[str, str]] = {
    RUN_TASK: RUN_QUEUE,
    GRADE_TASK: GRADE_QUEUE,
    AGGREGATE_TASK: AGGREGATE_QUEUE,
}


def queue_name(kind: str, account: str | None) -> str:
    """The queue of one kind of work for one account (`PlannedTarget.account`). Only workers that hold the account's key
    take from it: a message never comes to one that could do nothing with it."""
    return kind if account is None else f"{kind}-{account}"


def kind_of(queue: str) -> str:
    """`run`, `grade` or `aggregate`."""
    return queue.partition("-")[0]


@dataclass(frozen=True, slots=True)
class RunOrder:
    """Play these conversations of a plan: (case, trial) pairs, each claimed by itself."""

    plan: str
    conversations: tuple[tuple[int, int], ...]

    def payload(self) -> dict[str, Any]:
        return {"plan": self.plan, "convs": [list(pair) for pair in self.conversations]}


@dataclass(frozen=True, slots=True)
class GradeOrder:
    """Run the graders of one attempt: (case, scenario, trial)."""

    plan: str
    attempt: tuple[int, int, int]

    def payload(self) -> dict[str, Any]:
        return {"plan": self.plan, "attempt": list(self.attempt)}


@dataclass(frozen=True, slots=True)
class AggregateOrder:
    """Record what is ready of a plan."""

    plan: str

    def payload(self) -> dict[str, Any]:
        return {"plan": self.plan}


def run_order(plan: str, conversations: Iterable[tuple[int, int]]) -> RunOrder:
    return RunOrder(plan, tuple((case, trial) for case, trial in conversations))


def read_run(payload: Any) -> RunOrder:
    """ValueError for a payload of another shape (a message of another version): the task drops it and says so."""
    convs = _mapping(payload).get("convs")
    if not isinstance(convs, list | tuple) or not convs:
        raise ValueError(f"a run message needs convs, a list of [case, trial]; seen {_shown(convs)}")
    return RunOrder(_plan(payload), tuple(_pair(conv) for conv in convs))


def read_grade(payload: Any) -> GradeOrder:
    """ValueError for a payload of another shape."""
    attempt = _mapping(payload).get("attempt")
    case, scenario, trial = _indexes(attempt, 3, "attempt, as [case, scenario, trial]")
    return GradeOrder(_plan(payload), (case, scenario, trial))


def read_aggregate(payload: Any) -> AggregateOrder:
    """ValueError for a payload of another shape."""
    return AggregateOrder(_plan(_mapping(payload)))


def _mapping(payload: Any) -> Mapping[str, Any]:
    if not isinstance(payload, Mapping):
        raise ValueError(f"a task payload is a JSON object; seen {_shown(payload)}")  # noqa: TRY004
    return payload


def _plan(payload: Mapping[str, Any]) -> str:
    plan = payload.get("plan")
    if not isinstance(plan, str) or not plan:
        raise ValueError(f"a task payload names its plan; seen {_shown(plan)}")
    return plan


def _pair(value: Any) -> tuple[int, int]:
    case, trial = _indexes(value, 2, "conversations as [case, trial]")
    return case, trial


def _indexes(value: Any, count: int, what: str) -> tuple[int, ...]:
    if (
        not isinstance(value, list | tuple)
        or len(value) != count
        or not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value)
    ):
        raise ValueError(f"a task payload needs {what}; seen {_shown(value)}")
    return tuple(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
