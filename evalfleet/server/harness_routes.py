"""The routes of harnesses: list, get, one version with its files. Publishing is refused.

Harnesses are the server's own and every account's: who holds a token may run them all.
"""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from evalfleet.server import harnesses
from evalfleet.server.refusal import not_found, refuse
from evalfleet.server.requests import id_in_path, is_commit, limit_of, one
from evalfleet.server.services import Services, ready


def add_harness_routes(app: FastAPI, services: Services) -> None:
    store = services.store

    @app.get("/v2/harnesses", tags=["harnesses"], summary="List harnesses, newest first")
    async def list_harnesses(request: Request) -> Response:
        cursor, limit = one(request, "cursor"), limit_of(request)
        return ready(await store.read(lambda connection: harnesses.page(connection, cursor, limit)))

    @app.get("/v2/harnesses/{harness_id}", tags=["harnesses"], summary="A harness and its versions")
    async def get_harness(request: Request) -> Response:
        harness_id = id_in_path(request, "harness_id", "h")
        return ready(await store.read(lambda connection: harnesses.get(connection, harness_id)))

    @app.get("/v2/harnesses/{harness_id}/versions/{commit}", tags=["harnesses"], summary="A version and its files")
    async def get_version(request: Request) -> Response:
        harness_id, commit = id_in_path(request, "harness_id", "h"), request.path_params["commit"]
        if not is_commit(commit):
            raise not_found("version of this harness")
        return ready(await store.read(lambda connection: harnesses.version(connection, harness_id, commit)))

    async def refuse_publishing(request: Request) -> Response:  # noqa: ARG001
        raise refuse(
            "forbidden",
            "Harnesses are not published through this server: it runs them on its own machine, so whoever published "
            "one would run code there. Its operator serves a tree with `evalfleet server --tree DIR`.",
        )

    app.post("/v2/harnesses", tags=["harnesses"], summary="Always refused here")(refuse_publishing)
    app.patch("/v2/harnesses/{harness_id}", tags=["harnesses"], summary="Always refused here")(refuse_publishing)
    app.delete("/v2/harnesses/{harness_id}", tags=["harnesses"], summary="Always refused here")(refuse_publishing)
