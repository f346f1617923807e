"""Which metrics exist? Every one of every part stands here, with its unit and what moves it.

`serve(port)` offers them at `/metrics` in Prometheus' text format.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram, start_http_server

from evalfleet.errors import UnfitHost

_WAITS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)

CLAIMS = Counter("evalfleet_claims_total", "Messages that a worker looked at, by what the claim answered", ["answer"])
ATTEMPTS = Counter("evalfleet_attempts_total", "Attempts judged by this worker, by outcome", ["outcome"])
CONVERSATION_SECONDS = Histogram("evalfleet_conversation_seconds", "Playing one conversation", buckets=_WAITS)
GRADE_SECONDS = Histogram("evalfleet_grade_seconds", "All graders of one attempt", buckets=_WAITS)
RECORD_SECONDS = Histogram(
    "evalfleet_record_seconds", "One batch: evidence written and attempts recorded", buckets=_WAITS
)
BATCH_ATTEMPTS = Histogram(
    "evalfleet_batch_attempts", "Attempts in one batch", buckets=(1, 2, 5, 10, 25, 50, 100, 250, 500, 1000)
)
RETRIES = Counter("evalfleet_retries_total", "Tries after the first, by the reason's code", ["code"])
GIVEN_UP = Counter("evalfleet_given_up_total", "Conversations or gradings given up, by code", ["code"])
REAPED = Counter("evalfleet_claims_reaped_total", "Claims taken back from dead workers")
PUBLISHED = Counter("evalfleet_published_total", "Messages sent, by queue", ["queue"])
IN_FLIGHT = Gauge("evalfleet_in_flight", "Conversations claimed, all workers, by submission state", ["submission"])
HELD = Gauge("evalfleet_conversations_held", "Conversations that this worker plays")
SLOTS = Gauge("evalfleet_worker_slots", "Conversations that this worker can play at once")
HEARTBEAT_AGE = Gauge("evalfleet_heartbeat_age_seconds", "Since this worker's last confirmed heartbeat")


def serve(port: int | None, host: str = "0.0.0.0") -> int | None:  # noqa: S104  - Prometheus asks from elsewhere
    """Serve this process' metrics; answers the port (0 asks for a free one), None = off. UnfitHost if it is taken."""
    if port is None:
        return None
    try:
        server, _ = start_http_server(port, addr=host)
    except OSError as error:
        raise UnfitHost(f"--metrics-port {port}: {error.strerror or error}; choose another port") from error
    return int(server.server_port)
