"""What do the v2 documents look like? Typed views of the plain dicts that go over the wire (wire.md, the seeds).

They are `TypedDict`s: no parsing, no copying, nothing lost. A document may carry keys that are not named here, and an
event a type that does not exist yet; both pass through as received.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NotRequired, TypedDict

RUN_ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})
"""The terminal statuses of a run."""

RUN_STATUSES: Final = frozenset({"queued", "running", "waiting", "cancelling"}) | RUN_ENDED
EVALUATION_STATUSES: Final = frozenset({"running", "completed", "failed", "cancelled"})
EVALUATION_ENDED: Final = EVALUATION_STATUSES - {"running"}
CASE_STATUSES: Final = frozenset({"pending", "passed", "flaky", "failed"})
EVENT_TYPES: Final = frozenset(
    {
        "run.created",
        "run.status_changed",
        "message.created",
        "output.created",
        "interaction.created",
        "interaction.answered",
        "usage.updated",
        "hook.called",
        "hook.fallback",
        "output.rejected",
    }
)
"""The event types known today. Never a filter: others pass through."""

RunStatus = Literal["queued", "running", "waiting", "cancelling", "succeeded", "failed", "cancelled"]
Verdict = Literal["passed", "failed"]


class Failure(TypedDict):
    code: str
    message: str
    retryable: bool


class Run(TypedDict):
    """Times are RFC 3339 UTC; `harness_commit` is 40 hex, the tip when the run was created."""

    id: str
    harness_id: str
    harness_commit: str
    chat_id: str
    parent_chat_id: str | None
    status: RunStatus
    created_at: str
    updated_at: str
    started_at: str | None
    completed_at: str | None
    failure: Failure | None
    metadata: dict[str, str | int | float | bool | None]


class TextPart(TypedDict):
    type: Literal["text"]
    text: str


class JsonPart(TypedDict):
    """`value` is any JSON; a tool call, a tool result and reasoning are objects with a `type` of their own."""

    type: Literal["json"]
    value: Any


class FilePart(TypedDict):
    type: Literal["file"]
    url: str
    media_type: str
    name: str


Part = TextPart | JsonPart | FilePart


class Message(TypedDict):
    id: str
    run_id: str
    role: Literal["user", "assistant", "tool", "system"]
    content: list[Part]
    created_at: str


class Output(TypedDict):
    """The answer is of type `result`, named `final_message`; its `value` is any JSON."""

    id: str
    run_id: str
    type: Literal["result", "artifact"]
    name: str
    value: Any
    created_at: str


class Usage(TypedDict):
    """Covers the run's whole chat and what it spawned. `amount` is a decimal string; `final` may lag the run's end."""

    run_id: str
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    total_tokens: int
    tool_calls: int
    duration_ms: int
    amount: str
    currency: str
    final: bool
    updated_at: str


class Event(TypedDict):
    """`sequence` counts from 1 without gaps inside a run; `cursor` is where to resume, `id` what to de-duplicate by."""

    id: str
    cursor: str
    run_id: str
    sequence: int
    type: str
    created_at: str
    data: dict[str, Any]


class VersionIndex(TypedDict):
    number: int
    commit: str


class Harness(TypedDict):
    id: str
    name: str
    versions: list[VersionIndex]


class HarnessVersion(TypedDict):
    harness_id: str
    number: int
    commit: str
    message: str
    created_at: str
    files: dict[str, str]


class ScorerId(TypedDict):
    id: str
    version: str


class Suite(TypedDict):
    key: str
    version: str
    name: str


class Progress(TypedDict):
    """Counts *cases* whose attempts are all in."""

    done: int
    total: int


class Metrics(TypedDict):
    pass_at_1: float | None
    pass_hat_k: float | None
    k: int
    judge_score: float | None
    tokens: int
    amount: str
    currency: str


class Comparison(TypedDict):
    version: VersionIndex
    improved: int
    regressed: int


class EvaluationCase(TypedDict):
    """The attempt lists may be null (= empty): read them with `recorded_attempts` and `missing_attempts`."""

    id: str
    key: str
    name: NotRequired[str]
    status: Literal["pending", "passed", "flaky", "failed"]
    recorded_attempts: list[int] | None
    missing_attempts: list[int] | None


class Evaluation(TypedDict):
    id: str
    status: Literal["running", "completed", "failed", "cancelled"]
    harness_version: VersionIndex
    baseline_version: VersionIndex | None
    scorer: ScorerId
    suite: Suite
    k: int
    progress: Progress
    metrics: Metrics | None
    comparison: Comparison | None
    cases: list[EvaluationCase]
    created_at: str
    completed_at: str | None


class Attempt(TypedDict):
    """One entry of `attempts:batch`; `judge_score` is a decimal string. The case is named by key or by id."""

    case_key: NotRequired[str]
    case_id: NotRequired[str]
    attempt_index: int
    run_id: str
    verdict: Verdict
    judge_score: NotRequired[str]
    judge_feedback: NotRequired[str]
    scorer_id: str
    scorer_version: str


class PageInfo(TypedDict):
    has_more: bool
    next_cursor: str | None


class Page(TypedDict):
    """A page of any listing, and of the event journal."""

    data: list[dict[str, Any]]
    page: PageInfo


def is_ended(run: Mapping[str, Any]) -> bool:
    """Whether a run document is terminal."""
    return run.get("status") in RUN_ENDED


def is_end_event(event: Mapping[str, Any]) -> bool:
    """Whether an event is the `run.status_changed` to a terminal status, after which the stream closes."""
    if event.get("type") != "run.status_changed":
        return False
    data = event.get("data")
    return isinstance(data, Mapping) and data.get("to") in RUN_ENDED


def recorded_attempts(case: Mapping[str, Any]) -> list[int]:
    """The recorded attempt indexes of an evaluation's case; null is none (E10)."""
    return list(case.get("recorded_attempts") or ())


def missing_attempts(case: Mapping[str, Any]) -> list[int]:
    """The attempt indexes that an evaluation's case still owes; null is none (E10)."""
    return list(case.get("missing_attempts") or ())
