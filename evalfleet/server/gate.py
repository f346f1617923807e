"""What happens to every request before it is routed, and to every failure after it? (Outermost ASGI layer.)

Bearer tokens are checked here, `X-Request-Id` is taken up, answers are counted, and whatever escapes the routes becomes
a problem document: no traceback and no HTML ever leaves the server (E08).
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evalfleet.contract.problems import Problem
from evalfleet.errors import EvalfleetError, StorageError
from evalfleet.server.accounts import Accounts
from evalfleet.server.logs import access_logged, log_access
from evalfleet.server.refusal import Refusal
from evalfleet.server.requests import ACCOUNT

_log = logging.getLogger(__name__)

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"})
_TRACE: Final = re.compile(rb"[\x21-\x7e]{1,200}")


class Gate:
    """Asks `accounts` who calls; counts and logs what is answered. Every answer has an `X-Request-Id`."""

    def __init__(self, app: ASGIApp, accounts: Accounts) -> None:
        self._app = app
        self._accounts = accounts
        self.answers: Counter[int] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        authorization, trace = _headers(scope)
        answer = _Answer(send, trace or uuid4().hex, self.answers)
        began = time.perf_counter()
        try:
            await self._answer(scope, receive, answer, authorization, trace)
        finally:
            if access_logged():
                log_access(
                    request_id=answer.request_id,
                    method=scope["method"],
                    path=scope["path"],
                    status=answer.status,
                    seconds=time.perf_counter() - began,
                    size=answer.size,
                    account=scope.get(ACCOUNT),
                    client=scope["client"][0] if scope.get("client") else None,
                )

    async def _answer(
        self, scope: Scope, receive: Receive, answer: _Answer, authorization: bytes, trace: str | None
    ) -> None:
        try:
            if scope["path"] not in OPEN_PATHS:
                account = await self._account(authorization)
                if account is None:
                    problem = Problem.of("unauthorized", "Send a valid bearer token in the Authorization header.")
                    await problem_response(problem, trace)(scope, receive, answer)
                    return
                scope[ACCOUNT] = account
            await self._app(scope, receive, answer)
        except Exception as problem:  # the true boundary: a request's failure must not end the server
            if answer.finished:
                return  # answered already: Starlette answers what nobody handles, and raises it again
            if answer.status is not None:
                raise  # too late for a document: the connection is closed
            await problem_response(problem_of(problem), trace)(scope, receive, answer)

    async def _account(self, authorization: bytes) -> str | None:
        scheme, _, token = authorization.partition(b" ")
        return await self._accounts.account_of(token.strip()) if scheme.lower() == b"bearer" else None


class _Answer:
    """`send` of one request: sees what goes out, and adds the request's id to it."""

    __slots__ = ("_answers", "_send", "finished", "request_id", "size", "status")

    def __init__(self, send: Send, request_id: str, answers: Counter[int]) -> None:
        self._send = send
        self._answers = answers
        self.request_id = request_id
        self.status: int | None = None
        self.size = 0
        self.finished = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._answers[message["status"]] += 1
            headers = [*message.get("headers", ()), (b"x-request-id", self.request_id.encode("ascii"))]
            message = {**message, "headers": headers}
        else:
            self.size += len(message.get("body", b""))
            self.finished = not message.get("more_body", False)
        await self._send(message)


def _headers(scope: Scope) -> tuple[bytes, str | None]:
    authorization, trace = b"", None
    for name, value in scope["headers"]:
        if name == b"authorization":
            authorization = value
        elif name == b"x-request-id" and _TRACE.fullmatch(value):
            trace = value.decode("ascii")
    return authorization, trace


def problem_of(error: BaseException) -> Problem:
    """The problem document of anything that was raised. What is nobody's fault but ours is logged and says little."""
    if isinstance(error, Refusal):
        return error.problem
    if isinstance(error, StorageError):
        _log.error("%s", error.message)
        return Problem.of("service_unavailable", error.message, headers={"Retry-After": "5"})
    if isinstance(error, EvalfleetError):
        code = {502: "upstream_unavailable", 503: "service_unavailable"}.get(error.http_status, "internal_error")
        return Problem.of(code, error.message)
    _log.error("a request failed", exc_info=error)
    return Problem.of("internal_error", "The server failed at this request; its log says more.")


def problem_response(problem: Problem, trace: str | None) -> Response:
    if trace is not None:
        problem = replace(problem, trace_id=trace)
    headers = problem.response_headers()
    media = headers.pop("Content-Type")
    return Response(problem.body(), problem.status, headers, media_type=media)


async def answer_refusal(request: Request, error: Exception) -> Response:
    """Starlette's handler for what the routes raise on purpose."""
    _authorization, trace = _headers(request.scope)
    return problem_response(problem_of(error), trace)


async def answer_http_error(request: Request, error: Exception) -> Response:
    """404 of an unknown path and 405 of a wrong method, as Starlette's router raises them."""
    _authorization, trace = _headers(request.scope)
    status: int = getattr(error, "status_code", 500)
    if status == 405:
        allowed = ", ".join(sorted(_methods(request)))
        detail = f"This path takes {allowed}, not {request.method}."
        return problem_response(Problem.of("method_not_allowed", detail, headers={"Allow": allowed}), trace)
    if status == 404:
        return problem_response(Problem.of("not_found", "There is no such path."), trace)
    return problem_response(Problem(status, "invalid_body", str(getattr(error, "detail", ""))), trace)


class _Nothing(Response):
    """The answer to a client that has gone: not a byte."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pass


async def answer_nobody(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """The client left in the middle of its body: that is nobody's failure, and there is nobody to tell."""
    return _Nothing()


def _methods(request: Request) -> set[str]:
    """All methods of the path: the router itself names those of its first match only."""
    methods: set[str] = set()
    for route in request.app.routes:
        match, _scope = route.matches({**request.scope, "method": "GET"})
        if match.value:
            methods |= set(_methods_of(route))
    return methods


def _methods_of(route: Any) -> set[str]:
    return set(getattr(route, "methods", None) or ())
