"""Which metrics exist?

Every metric of scheduler and worker stands here, with its unit and what moves it; the server's are read from its own
counters (`evalfleet.server.metrics`). docs/metrics.md lists both; a test holds it to that. `serve(port)` offers them at
`/metrics` in Prometheus' text format.
"""

from __future__ import annotations

import contextlib
import threading

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics, start_http_server

from evalfleet.errors import UnfitHost

_WAITS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)

# -- moved by a worker ------------------------------------------------------------------------------------------------
CLAIMS = Counter("evalfleet_claims_total", "Run messages that a worker looked at, by what the claim said", ["answer"])
ATTEMPTS = Counter("evalfleet_attempts_total", "Attempts judged by this worker, by outcome", ["outcome"])
for _outcome in ("passed", "failed", "error"):
    ATTEMPTS.labels(_outcome)  # at 0, for Prometheus sees no increase in a series that begins with its first count
CONVERSATION_SECONDS = Histogram("evalfleet_conversation_seconds", "Playing one conversation", buckets=_WAITS)
RUN_SECONDS = Histogram("evalfleet_run_seconds", "One run, from its launch to its terminal state", buckets=_WAITS)
GRADE_SECONDS = Histogram("evalfleet_grade_seconds", "All graders of one attempt", buckets=_WAITS)
RECORD_SECONDS = Histogram(
    "evalfleet_record_seconds", "One batch: evidence written and attempts recorded", buckets=_WAITS
)
BATCH_ATTEMPTS = Histogram(
    "evalfleet_batch_attempts", "Attempts in one batch", buckets=(1, 2, 5, 10, 25, 50, 100, 250, 500, 1000)
)
RETRIES = Counter("evalfleet_retries_total", "Tries of a conversation that had no result, by code", ["code"])
RETRIED = Counter("evalfleet_conversations_retried_total", "Conversations with a try that had no result")
GIVEN_UP = Counter("evalfleet_given_up_total", "Conversations given up by this worker, by code", ["code"])
REFUSALS = Counter("evalfleet_target_refusals_total", "Answers of a target that refused for now, by status", ["status"])
HELD = Gauge("evalfleet_conversations_held", "Conversations that this worker plays")
SLOTS = Gauge("evalfleet_worker_slots", "Conversations that this worker can play at once; 0 where it plays none")
HEARTBEAT_AGE = Gauge("evalfleet_heartbeat_age_seconds", "Since this worker's last confirmed heartbeat")
UNREACHABLE = Gauge(
    "evalfleet_worker_unreachable", "1 while this worker does not reach it: broker, platform, results", ["what"]
)

# -- moved by a scheduler ---------------------------------------------------------------------------------------------
REAPED = Counter("evalfleet_claims_reaped_total", "Claims taken back from dead workers")
IN_FLIGHT = Gauge("evalfleet_in_flight", "Conversations claimed over all workers, by submission", ["submission"])
WANTED = Gauge(
    "evalfleet_wanted", "Conversations that would be in flight were there slots enough, by submission", ["submission"]
)
WAITING = Gauge("evalfleet_waiting", "Attempts that wait to be graded or recorded, by submission", ["submission"])
LEFT_OUT = Gauge("evalfleet_left_out", "Conversations and attempts given up, by submission", ["submission"])
PAUSED = Gauge("evalfleet_paused", "1 while a submission is not fed or not graded, by submission", ["submission"])
TARGET_MOST = Gauge(
    "evalfleet_target_runs_most", "Runs that may be open on a limited target, over all submissions", ["target"]
)
TARGET_DOWN = Gauge(
    "evalfleet_target_down", "1 while a target takes nothing: one conversation goes on asking", ["target"]
)
SPEND = Gauge("evalfleet_spend", "What its chats have cost, in its own currency, by submission", ["submission"])
SUBMISSIONS = Gauge("evalfleet_submissions_driven", "Submissions that this scheduler drives")
WORKERS = Gauge("evalfleet_workers_alive", "Worker processes with a living heartbeat")
QUEUED = Gauge("evalfleet_queue_messages", "Messages that no worker has taken, by queue", ["queue"])
OLDEST = Gauge("evalfleet_oldest_message_seconds", "Age of the message that is taken next, by queue", ["queue"])
BROKER_BYTES = Gauge("evalfleet_broker_memory_bytes", "Memory that the broker uses")
BROKER_LIMIT = Gauge("evalfleet_broker_memory_limit_bytes", "Memory that the broker may use; 0: no limit")
BROKER_AWAY = Gauge("evalfleet_broker_away", "1 while the broker does not answer this scheduler")

# -- moved by both ----------------------------------------------------------------------------------------------------
PUBLISHED = Counter("evalfleet_published_total", "Messages sent by this process, by queue", ["queue"])

MOST_CODES = 64
_codes: set[str] = set()
_guard = threading.Lock()


def code_label(code: str) -> str:
    """`code` as a label. Agents and platforms may invent any number of codes, a metric must not have as many series:
    after the first `MOST_CODES` in a process the rest are `other`."""
    short = code[:40] or "none"
    with _guard:
        if short in _codes or len(_codes) < MOST_CODES:
            _codes.add(short)
            return short
    return "other"


def forget_submission(submission: str) -> None:
    """A submission that is not driven here any more has no series."""
    for metric in (IN_FLIGHT, WANTED, WAITING, LEFT_OUT, PAUSED, SPEND):
        with contextlib.suppress(KeyError):  # it never had one
            metric.remove(submission)


def forget_target(name: str) -> None:
    """A target whose submission is not driven here any more; another submission's driver sets it again."""
    for gauge in (TARGET_MOST, TARGET_DOWN):
        with contextlib.suppress(KeyError):
            gauge.remove(name)


def serve(port: int | None, host: str = "0.0.0.0") -> int | None:  # noqa: S104  - Prometheus asks from elsewhere
    """Serve this process' metrics; answers the port (0 asks for a free one), None = off. UnfitHost if it is taken."""
    if port is None:
        return None
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, which nobody reads
    try:
        server, _ = start_http_server(port, addr=host)
    except OSError as error:
        raise UnfitHost(f"--metrics-port {port}: {error.strerror or error}; choose another port") from error
    return int(server.server_port)
