"""What do the routes need? One object, made at the start and handed to all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.responses import Response

from evalfleet.server.idempotency import Answer
from evalfleet.server.runner import Runner
from evalfleet.server.store import Store
from evalfleet.server.streams import Streams

if TYPE_CHECKING:
    from evalfleet.server.judge import Judge


@dataclass(frozen=True, slots=True)
class Services:
    """`commits`: harness id → the commit that its runs are made at. `judges`: harness id → who answers `t.llm`."""

    store: Store
    streams: Streams
    runner: Runner
    commits: Mapping[str, str]
    judges: Mapping[str, Judge]


def ready(body: bytes, status: int = 200) -> Response:
    """Ready JSON."""
    return Response(body, status, media_type="application/json")


def answered(answer: Answer) -> Response:
    """An answer that may be a replay."""
    headers = {}
    if answer.location is not None:
        headers["Location"] = answer.location
    if answer.replayed:
        headers["Idempotency-Replayed"] = "true"
    return Response(answer.body, answer.status, headers, media_type="application/json")
