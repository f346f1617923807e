"""How are Celery's broker and tasks set up, on both ends of the queue?

Plain data, no Celery import: `scheduler` publishes with it and `worker` consumes with it. Celery's acknowledgement,
visibility timeout and result backend carry no part of any argument (I3), so everything that serves them is off.
"""

from __future__ import annotations

import json
import time
from typing import Any

from evalfleet.contract.tasks import QUEUE_OF, RUN_QUEUE


def celery_config(broker_url: str, *, prefix: str = "ef:") -> dict[str, Any]:
    """Celery settings for `broker_url` in kombu's spelling; `prefix` goes before every key of the transport."""
    transport: dict[str, Any] = {
        "socket_timeout": 10,
        "health_check_interval": 10,
        "priority_steps": [0],
        "global_keyprefix": prefix,
        "max_connections": 64,
    }
    if not broker_url.startswith("redis+socket:"):
        transport |= {"socket_connect_timeout": 3, "socket_keepalive": True}
    return {
        "broker_url": broker_url,
        "broker_transport_options": transport,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_channel_error_retry": True,  # a full broker refuses even to be joined
        "broker_pool_limit": 4,
        "task_acks_late": False,
        "task_ignore_result": True,
        "task_store_errors_even_if_ignored": False,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_routes": {task: {"queue": queue} for task, queue in QUEUE_OF.items()},
        "task_default_queue": RUN_QUEUE,
        "task_create_missing_queues": True,
        "worker_prefetch_multiplier": 1,  # worker.intake decides what is taken
        "worker_enable_remote_control": False,
        "worker_send_task_events": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "enable_utc": True,
    }


SENT_AT = "evalfleet_sent_at"


def headers() -> dict[str, float]:
    """What goes beside a message's payload: when it was sent (seconds since 1970, the sender's clock)."""
    return {SENT_AT: time.time()}


def sent_at(message: bytes) -> float | None:
    """When a waiting message, as kombu keeps it, was sent; None for one that does not say."""
    try:
        at = json.loads(message)["headers"][SENT_AT]
    except (ValueError, KeyError, TypeError):
        return None
    return float(at) if isinstance(at, int | float) else None
