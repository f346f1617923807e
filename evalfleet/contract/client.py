"""How does the engine talk to a platform that speaks the v2 API?

One `Client` per process, used on one asyncio loop. Every call has a deadline, is sent again only where wire.md says
that this is safe, and fails with one of `evalfleet.errors`:

    TargetUnreachable   no whole answer before the deadline
    ProblemAnswer       the API said no (or redirected)
    UnreadableAnswer    the answer is not what the wire promises
    StreamLost          `events` only: the run's end was not seen before the deadline
    JournalHole         `events` and `journal` only: an event is missing, by stream and by pages

Documents are plain dicts as received (`evalfleet.contract.models` names their fields). In what we send, a lone
surrogate is written as the JSON escape it came as; in what we read, it stays in the string, and `NaN` is null.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from evalfleet import __version__
from evalfleet.contract.answers import page_of
from evalfleet.contract.calls import Calls, Created, Hear
from evalfleet.contract.follow import ASK_SECONDS, SILENCE_SECONDS, Follower
from evalfleet.contract.ids import uuid_of
from evalfleet.contract.ordering import JournalOrder, checked_event
from evalfleet.contract.transport import Transport
from evalfleet.errors import JournalHole, UnreadableAnswer

__all__ = ["Client", "Created"]

EVENT_PAGE_LIMIT: Final = 500


class Client:
    """The v2 API, asynchronously. Deadlines are `time.monotonic()` values; without one, a call has `retry_for` s."""

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        timeout: float = 30.0,
        connect_timeout: float = 5.0,
        retry_for: float = 60.0,
        silence: float = SILENCE_SECONDS,
        user_agent: str = f"evalfleet/{__version__}",
        jitter: Callable[[], float] = random.random,
        hear: Hear | None = None,
    ) -> None:
        """`timeout` bounds one try of one request, `connect_timeout` its connection, `retry_for` all tries of a call,
        `silence` how long a stream may say nothing, in seconds. `hear` is told of every try as it ends.

        SettingError for a base URL that is none, or a proxy to it that cannot be used; CredentialError for a token
        that no header can carry.
        """
        self._transport = Transport(base_url, token, connect_timeout=connect_timeout, user_agent=user_agent)
        self._calls = Calls(self._transport, timeout=timeout, retry_for=retry_for, jitter=jitter, hear=hear)
        self.hear: Hear = hear if hear is not None else lambda _heard: None
        self._silence = silence
        self._jitter = jitter

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    @property
    def base_url(self) -> str:
        return self._transport.base_url

    @property
    def clock_offset(self) -> float:
        """The server's clock minus ours, in seconds, good to about one; see `evalfleet.contract.clock`."""
        return self._transport.clock.seconds

    # Runs

    async def create_run(self, body: Mapping[str, Any], *, key: str, deadline: float | None = None) -> Created:
        """POST /v2/runs. The same key and body give the same run, however often they are sent."""
        return await self._calls.create("/v2/runs", body, key=key, deadline=deadline)

    async def get_run(self, run_id: str, *, deadline: float | None = None) -> dict[str, Any]:
        return await self._calls.get(f"/v2/runs/{_segment(run_id)}", deadline=deadline)

    async def cancel_run(self, run_id: str, *, deadline: float | None = None) -> dict[str, Any]:
        """Ask for the end; the run as it stands, normally `cancelling`. Idempotent."""
        return await self._calls.post(f"/v2/runs/{_segment(run_id)}/cancel", None, deadline=deadline)

    async def messages(self, run_id: str, *, deadline: float | None = None) -> list[dict[str, Any]]:
        """All messages of the run, oldest first."""
        return await self._calls.all_rows(f"/v2/runs/{_segment(run_id)}/messages", deadline)

    async def outputs(self, run_id: str, *, deadline: float | None = None) -> list[dict[str, Any]]:
        """All outputs of the run."""
        return await self._calls.all_rows(f"/v2/runs/{_segment(run_id)}/outputs", deadline)

    async def usage(self, run_id: str, *, deadline: float | None = None) -> dict[str, Any]:
        """What the run's whole chat used so far; `final` says whether that is the last word."""
        return await self._calls.get(f"/v2/runs/{_segment(run_id)}/usage", deadline=deadline)

    def events(
        self,
        run_id: str,
        *,
        deadline: float,
        ask: float = ASK_SECONDS,
        told: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The run's journal to its end, each event once, in order, as received; see `evalfleet.contract.follow`.

        After `ask` seconds without an event the run is asked how it stands; `told` gets its document then, and whenever
        else it was read. Leave early through `contextlib.aclosing`, so that the connection closes at once.
        """
        _segment(run_id)
        return Follower(
            transport=self._transport,
            run_id=run_id,
            deadline=deadline,
            read_page=lambda cursor, until: self.event_page(run_id, cursor, deadline=until),
            read_run=lambda until: self.get_run(run_id, deadline=until),
            jitter=self._jitter,
            silence=self._silence,
            ask=ask,
            hear=self.hear,
            told=told,
        ).events()

    async def event_page(
        self, run_id: str, cursor: str | None = None, limit: int = EVENT_PAGE_LIMIT, *, deadline: float | None = None
    ) -> dict[str, Any]:
        """One page of the journal, strictly after `cursor`; `next_cursor` is its last row's, also on the last page."""
        path = f"/v2/runs/{_segment(run_id)}/events"
        return page_of(
            f"GET {path}", await self._calls.get(path, {"cursor": cursor, "limit": limit}, deadline=deadline)
        )

    async def journal(self, run_id: str, *, ended: bool = False) -> AsyncGenerator[dict[str, Any], None]:
        """The run's events as far as they are there, page by page, in order; a run that goes on is not waited for.

        `ended`: the run is terminal, so the journal has to say so. JournalHole where it does not, or where a number is
        missing, UnreadableAnswer for a row that is no event of this run.
        """
        path = f"/v2/runs/{_segment(run_id)}/events"
        order = JournalOrder()
        async for row in self._calls.rows(path, {"limit": EVENT_PAGE_LIMIT}):
            try:
                leaving = order.take(checked_event(row, run_id), None)
            except ValueError as wrong:
                raise UnreadableAnswer(f"GET {path}: a page holds {wrong}") from wrong
            for event in leaving:
                yield event
        if fault := order.fault or ("its end is missing" if ended and not order.ended else ""):
            raise JournalHole(f"GET {path}: the run's journal is not whole: {fault}")

    def list_runs(self, **filters: Any) -> AsyncGenerator[dict[str, Any], None]:
        """Runs, newest first: `status` (one or several), `harness_id`, `created_after`, `created_before`, `limit`."""
        return self._calls.rows("/v2/runs", filters)

    # Harnesses

    def list_harnesses(self) -> AsyncGenerator[dict[str, Any], None]:
        return self._calls.rows("/v2/harnesses", {})

    async def harness(self, harness_id: str, *, deadline: float | None = None) -> dict[str, Any]:
        """The harness with its versions, newest first."""
        return await self._calls.get(f"/v2/harnesses/{_segment(harness_id)}", deadline=deadline)

    async def harness_version(self, harness_id: str, commit: str, *, deadline: float | None = None) -> dict[str, Any]:
        """One version: its number, message, time and files."""
        path = f"/v2/harnesses/{_segment(harness_id)}/versions/{_segment(commit)}"
        return await self._calls.get(path, deadline=deadline)

    # Evaluations

    async def create_evaluation(self, body: Mapping[str, Any], *, key: str, deadline: float | None = None) -> Created:
        return await self._calls.create("/v2/evaluations", body, key=key, deadline=deadline)

    async def get_evaluation(self, evaluation_id: str, *, deadline: float | None = None) -> dict[str, Any]:
        return await self._calls.get(f"/v2/evaluations/{_segment(evaluation_id)}", deadline=deadline)

    def list_evaluations(self, **filters: Any) -> AsyncGenerator[dict[str, Any], None]:
        """Evaluations of one `harness_commit` or one `harness_id` (never both), also by `status`."""
        return self._calls.rows("/v2/evaluations", filters)

    async def record_attempts(
        self,
        evaluation_id: str,
        attempts: Sequence[Mapping[str, Any]],
        *,
        key: str | None = None,
        deadline: float | None = None,
    ) -> dict[str, Any]:
        """POST attempts:batch: all or nothing. Safe to repeat with or without a key: an attempt that is in with the
        same run comes back as `duplicate`; with another run it is ProblemAnswer `attempt_conflict`, nothing applied.
        """
        path = f"/v2/evaluations/{_segment(evaluation_id)}/attempts:batch"
        return await self._calls.post_long(path, {"attempts": list(attempts)}, key=key, deadline=deadline)

    async def complete_evaluation(self, evaluation_id: str, *, deadline: float | None = None) -> dict[str, Any]:
        """Idempotent. ProblemAnswer `evaluation_incomplete` names what is missing in its `errors`."""
        return await self._calls.post_long(
            f"/v2/evaluations/{_segment(evaluation_id)}/complete", None, deadline=deadline
        )

    async def cancel_evaluation(self, evaluation_id: str, *, deadline: float | None = None) -> dict[str, Any]:
        """Idempotent; keeps what is recorded."""
        return await self._calls.post_long(f"/v2/evaluations/{_segment(evaluation_id)}/cancel", None, deadline=deadline)

    # The judge, and the server itself

    async def judge(self, run_id: str, prompt: str, model: str | None = None, *, deadline: float) -> dict[str, Any]:
        """A grader's `t.llm`: `{"text", "tokens"}`, spent on the run. Sent once: whether to ask again is for whoever
        holds the grader's limit, and knows a judge that refuses from one that is slow (S26)."""
        try:
            path = f"/v1/runs/{uuid_of(run_id, 'run')}/hook/llm"
        except ValueError as wrong:
            raise UnreadableAnswer(f"the platform's run id has no UUID in it: {wrong}") from wrong
        body = {"prompt": prompt} | ({} if model is None else {"model": model})
        left = deadline - time.monotonic()
        call = self._calls.call("POST", path, body=body, once=True, deadline=deadline, timeout=max(left, 0.0))
        document = (await call).document
        if not isinstance(document.get("text"), str):
            raise UnreadableAnswer(f"POST {path}: the judge's answer has no text; it has {', '.join(document)[:80]}")
        return document

    async def health(self) -> dict[str, Any]:
        """GET /healthz, once: no retries."""
        return (await self._calls.call("GET", "/healthz", once=True)).document


def _segment(identity: str) -> str:
    """An id as one path segment: whatever a platform calls its things, it cannot lead to another path."""
    if not identity or not identity.strip("."):
        raise ValueError(f"{identity!r} is no id")
    return quote(identity, safe="")
