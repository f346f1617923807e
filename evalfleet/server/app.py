"""How do the parts make one ASGI application?"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

import evalfleet
from evalfleet.errors import EvalfleetError
from evalfleet.server.documents import text_of
from evalfleet.server.evaluation_routes import add_evaluation_routes
from evalfleet.server.gate import Gate, answer_http_error, answer_refusal
from evalfleet.server.harness_routes import add_harness_routes
from evalfleet.server.refusal import Refusal
from evalfleet.server.run_routes import add_run_routes
from evalfleet.server.services import Services, ready


def create_app(services: Services, accounts: Mapping[str, str]) -> Gate:
    """The whole API behind its gate. `accounts`: bearer token → account name."""
    app = FastAPI(
        title="evalfleet",
        version=evalfleet.__version__,
        summary="The self-hosted v2 API: runs, their events, evaluations, harnesses.",
        redoc_url=None,
        redirect_slashes=False,
        swagger_ui_oauth2_redirect_url=None,
    )
    app.add_exception_handler(Refusal, answer_refusal)
    app.add_exception_handler(EvalfleetError, answer_refusal)
    app.add_exception_handler(Exception, answer_refusal)
    app.add_exception_handler(HTTPException, answer_http_error)
    gate = Gate(app, accounts)
    add_run_routes(app, services)
    add_harness_routes(app, services)
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

    @app.get("/metrics", tags=["operators"], summary="Prometheus' text format (no token needed)")
    async def show_metrics(request: Request) -> Response:  # noqa: ARG001
        from evalfleet.server.metrics import exposition  # prometheus_client is imported when somebody asks first

        body, media = exposition(services, gate.answers)
        return Response(body, media_type=media)
