"""A run's journal of four events behind a fault server, and a client that follows it."""

from __future__ import annotations

import time
from typing import Any

from evalfleet.contract.client import Client
from evalfleet.testing import Answering, FaultServer, Scripted, SeenRequest, document, event, page

PATH = "/v2/runs/run_1/events"
CREATED = event(1, "run.created")
HALF = event(2, "output.created", {"name": "half"})
WHOLE = event(3, "output.created", {"name": "final_message"})
END = event(4, "run.status_changed", {"to": "succeeded"})
JOURNAL = [CREATED, HALF, WHOLE, END]
RUNNING = document({"id": "run_1", "status": "running"})


def client_for(server: FaultServer, **settings: Any) -> Client:
    return Client(server.url, "secret-token", jitter=lambda: 0.0, **settings)


async def follow(client: Client, within: float = 20.0) -> list[dict[str, Any]]:
    return [entry async for entry in client.events("run_1", deadline=time.monotonic() + within)]


def is_stream(request: SeenRequest) -> bool:
    return request.headers["accept"] == "text/event-stream"


class Journal:
    """Answers the events path as the platform does: streams by script, pages strictly after a cursor."""

    def __init__(
        self,
        server: FaultServer,
        *streams: Scripted,
        journal: list[dict[str, Any]] | None = None,
        run: Answering | None = RUNNING,
    ) -> None:
        self.streams = list(streams)
        self.journal = JOURNAL if journal is None else journal
        self.stream_requests: list[SeenRequest] = []
        self.page_requests: list[SeenRequest] = []
        server.on("GET", PATH, self)
        if run is not None:
            server.on("GET", "/v2/runs/run_1", run)

    def __call__(self, request: SeenRequest) -> Scripted:
        if is_stream(request):
            self.stream_requests.append(request)
            return self.streams.pop(0) if len(self.streams) > 1 else self.streams[0]
        self.page_requests.append(request)
        cursors = [entry["cursor"] for entry in self.journal]
        cursor = request.query.get("cursor")
        rows = self.journal[cursors.index(cursor) + 1 if cursor in cursors else 0 :]
        return page(rows, rows[-1]["cursor"] if rows else cursor)
