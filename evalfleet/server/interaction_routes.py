"""The routes of interactions: none of our drivers asks a person, so there are none to list, to read or to answer."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from evalfleet.server.cursors import read_page_cursor
from evalfleet.server.documents import page_of
from evalfleet.server.refusal import not_found
from evalfleet.server.requests import id_in_path, id_in_query, limit_of, one
from evalfleet.server.services import ready


def add_interaction_routes(app: FastAPI) -> None:
    @app.get("/v2/interactions", tags=["interactions"], summary="List interactions (there are none)")
    async def list_interactions(request: Request) -> Response:
        id_in_query(request, "run_id", "run")
        limit_of(request)
        cursor = one(request, "cursor")
        if cursor is not None:  # no page of ours has ever had a next one
            read_page_cursor(cursor, "/v2/interactions", {})
        return ready(page_of([], next_cursor=None, has_more=False))

    @app.get("/v2/interactions/{interaction_id}", tags=["interactions"], summary="An interaction (404)")
    async def get_interaction(request: Request) -> Response:
        id_in_path(request, "interaction_id", "int")
        raise not_found("interaction")

    @app.post("/v2/interactions/{interaction_id}/responses", tags=["interactions"], summary="Answer one (404)")
    async def answer_interaction(request: Request) -> Response:
        id_in_path(request, "interaction_id", "int")
        raise not_found("interaction")
