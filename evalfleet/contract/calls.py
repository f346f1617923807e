"""How is one call made: sent until it is answered or given up?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from evalfleet.contract import jsontext
from evalfleet.contract.answers import document_of, page_of, problem_answer
from evalfleet.contract.retry import GiveUp, Retry, Seen, decide
from evalfleet.contract.transport import NoAnswer, Transport
from evalfleet.errors import ProblemAnswer, TargetUnreachable, UnreadableAnswer

PAGE_LIMIT: Final = 100
LONG_SECONDS: Final = 300.0
"""For `attempts:batch`, `complete` and `cancel` of an evaluation, whose work grows with it."""


@dataclass(frozen=True, slots=True)
class Created:
    """A created resource. `replayed`: the key was known, the document is from its creation, so GET it again (S34)."""

    document: dict[str, Any]
    replayed: bool


@dataclass(frozen=True, slots=True)
class Heard:
    """What one try of a request to `/v2/` came to, for whoever wants to know how the target is. `status` None: no
    answer. `is_launch`: it was `POST /v2/runs`. `retry_after` in seconds, if told; `why` in words."""

    status: int | None
    is_launch: bool = False
    quota: bool = False
    retry_after: float | None = None
    why: str = ""


Hear = Callable[[Heard], None]


class Calls:
    """Requests over one transport, each with a deadline (a `time.monotonic()` value), repeated where that is safe."""

    def __init__(
        self,
        transport: Transport,
        *,
        timeout: float,
        retry_for: float,
        jitter: Callable[[], float],
        hear: Hear | None = None,
    ) -> None:
        self._transport = transport
        self._timeout = timeout
        self._retry_for = retry_for
        self._jitter = jitter
        self._hear = hear if hear is not None else lambda _heard: None

    async def get(
        self, path: str, params: Mapping[str, Any] | None = None, *, deadline: float | None = None
    ) -> dict[str, Any]:
        return (await self.call("GET", path, params=params, deadline=deadline)).document

    async def post(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        *,
        key: str | None = None,
        deadline: float | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        call = self.call("POST", path, body=body, key=key, repeatable=True, deadline=deadline, timeout=timeout)
        return (await call).document

    async def post_long(
        self, path: str, body: Mapping[str, Any] | None, *, key: str | None = None, deadline: float | None
    ) -> dict[str, Any]:
        """A post whose single try may take as long as the call: cutting it short would only start it over."""
        until = time.monotonic() + LONG_SECONDS if deadline is None else deadline
        return await self.post(path, body, key=key, deadline=until, timeout=max(until - time.monotonic(), 0.0))

    async def create(self, path: str, body: Mapping[str, Any], *, key: str, deadline: float | None) -> Created:
        return await self.call("POST", path, body=body, key=key, deadline=deadline)

    async def all_rows(self, path: str, deadline: float | None) -> list[dict[str, Any]]:
        """All pages under one deadline."""
        return [row async for row in self.rows(path, {}, deadline=self._until(deadline))]

    async def rows(
        self, path: str, filters: Mapping[str, Any], *, deadline: float | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The rows of all pages. The cursor is bound to the filters that made it, so both are sent.

        Without a deadline each page has its own `retry_for`: a listing is as long as its reader wants it to be.
        """
        cursor: str | None = None
        while True:
            params = {"limit": PAGE_LIMIT, **filters, "cursor": cursor}
            page = page_of(f"GET {path}", await self.get(path, params, deadline=deadline))
            for row in page["data"]:
                yield row
            following = page["page"].get("next_cursor")
            if not page["page"].get("has_more"):
                return
            if not isinstance(following, str) or following == cursor:
                raise UnreadableAnswer(f"GET {path}: a page says that there is more, and not where")
            cursor = following

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        key: str | None = None,
        repeatable: bool = False,
        once: bool = False,
        deadline: float | None = None,
        timeout: float | None = None,
    ) -> Created:
        """Send until answered or given up, by `retry.decide`; the document and whether it is a replay."""
        request = f"{method} {path}"
        until = self._until(deadline)
        headers, content = _headers_and_content(body, key)
        query = {name: _query(value) for name, value in (params or {}).items() if value is not None}
        attempt = 0
        while True:
            problem: ProblemAnswer | None = None
            trouble = "no time was left to ask"
            seen = Seen(None)
            left = until - time.monotonic()
            try:
                if left > 0:
                    answer = await self._transport.exchange(
                        method,
                        path,
                        within=min(left, self._timeout if timeout is None else timeout),
                        params=query,
                        headers=headers,
                        body=content,
                    )
                    if 200 <= answer.status < 300:
                        self._tell(method, path, Seen(answer.status), "")
                        replayed = answer.headers.get("idempotency-replayed", "").strip().lower() == "true"
                        return Created(document_of(request, answer), replayed)
                    problem = problem_answer(request, answer, url=self._transport.base_url + path)
                    seen = Seen(problem.status, problem.code, problem.quota, problem.retry_after)
                    self._tell(method, path, seen, f"{problem.status} {problem.code}".strip())
            except NoAnswer as none:
                trouble = str(none)
                self._tell(method, path, seen, trouble)
            decision = decide(
                seen,
                method=method,
                has_key=key is not None,
                repeatable=repeatable,
                attempt=attempt,
                remaining=0.0 if once else until - time.monotonic(),
                jitter=self._jitter(),
            )
            match decision:
                case Retry(after_seconds):
                    attempt += 1
                    await asyncio.sleep(after_seconds)
                case GiveUp() if problem is not None:
                    raise problem
                case GiveUp():
                    tries = "" if attempt == 0 else f" in {attempt + 1} tries"
                    raise TargetUnreachable(
                        f"{request}: no answer from {self._transport.base_url}{tries}: {trouble}; "
                        "is it up, and is the base URL right?"
                    )

    def _tell(self, method: str, path: str, seen: Seen, why: str) -> None:
        if path.startswith("/v2/"):  # the judge behind /v1/ has troubles of its own
            launch = method == "POST" and path == "/v2/runs"
            self._hear(Heard(seen.status, launch, seen.quota, seen.retry_after, why))

    def _until(self, deadline: float | None) -> float:
        return time.monotonic() + self._retry_for if deadline is None else deadline


def _headers_and_content(body: Mapping[str, Any] | None, key: str | None) -> tuple[dict[str, str], bytes | None]:
    headers: dict[str, str] = {}
    if key is not None:
        if not 1 <= len(key) <= 255 or not all("!" <= character <= "~" for character in key):
            raise ValueError(f"an Idempotency-Key is 1–255 visible ASCII characters, not {key[:80]!r}")
        headers["Idempotency-Key"] = key
    if body is None:
        return headers, None
    headers["Content-Type"] = "application/json"
    return headers, jsontext.dumps(body)


def _query(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(sorted(str(item) for item in value))
    return str(value)
