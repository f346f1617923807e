"""How do the parts make one ASGI application?"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from sqlalchemy import select
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import evalfleet
from evalfleet.errors import EvalfleetError
from evalfleet.server.accounts import Accounts
from evalfleet.server.documents import text_of
from evalfleet.server.evaluation_routes import add_evaluation_routes
from evalfleet.server.gate import Gate, answer_http_error, answer_nobody, answer_refusal
from evalfleet.server.harness_routes import add_harness_routes
from evalfleet.server.interaction_routes import add_interaction_routes
from evalfleet.server.refusal import Refusal, refuse
from evalfleet.server.run_routes import add_run_routes
from evalfleet.server.services import Services, ready

READY_WITHIN: Final = 2.0
"""Seconds that the database may take to answer `/readyz`."""


class _Api(FastAPI):
    """FastAPI, but its schema is ours: the routes read their requests themselves."""

    def openapi(self) -> dict[str, Any]:
        from evalfleet.server.openapi import document  # only when somebody asks

        return document()


def create_app(services: Services, accounts: Mapping[str, str]) -> Gate:
    """The whole API behind its gate. `accounts`: fixed bearer tokens → account; more are in the database."""
    app = _Api(
        title="evalfleet",
        version=evalfleet.__version__,
        redoc_url=None,
        redirect_slashes=False,
        swagger_ui_oauth2_redirect_url=None,
    )
    app.add_exception_handler(Refusal, answer_refusal)
    app.add_exception_handler(EvalfleetError, answer_refusal)
    app.add_exception_handler(Exception, answer_refusal)
    app.add_exception_handler(HTTPException, answer_http_error)
    app.add_exception_handler(ClientDisconnect, answer_nobody)
    gate = Gate(app, Accounts(services.store, accounts))
    add_run_routes(app, services)
    add_harness_routes(app, services)
    add_interaction_routes(app)
    add_evaluation_routes(app, services)
    _add_operators_routes(app, services, gate)
    return gate


def _add_operators_routes(app: FastAPI, services: Services, gate: Gate) -> None:
    @app.get("/healthz", tags=["operators"], summary="Is the server up? (no token needed)")
    async def health(request: Request) -> Response:  # noqa: ARG001
        stopping = services.runner.stopping
        status = "stopping" if stopping else "ok"
        document = {"status": status, "pid": os.getpid(), "version": evalfleet.__version__}
        return ready(text_of(document).encode("ascii"), 503 if stopping else 200)

    @app.get("/readyz", tags=["operators"], summary="Can the server take requests? (no token needed)")
    async def readiness(request: Request) -> Response:  # noqa: ARG001
        if services.runner.stopping:
            raise refuse("service_unavailable", "The server is stopping.", headers={"Retry-After": "2"})
        try:
            async with asyncio.timeout(READY_WITHIN):
                await services.store.read(lambda connection: connection.execute(select(1)).scalar())
        except TimeoutError:
            raise refuse(
                "service_unavailable",
                f"The database has not answered within {READY_WITHIN:g} s.",
                headers={"Retry-After": "5"},
            ) from None
        return ready(b'{"status":"ready"}')

    @app.get("/metrics", tags=["operators"], summary="Prometheus' text format (no token needed)")
    async def show_metrics(request: Request) -> Response:  # noqa: ARG001
        from evalfleet.server.metrics import exposition  # prometheus_client is imported when somebody asks first

        body, media = exposition(services, gate.answers)
        return Response(body, media_type=media)
