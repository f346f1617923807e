"""What does Celery's configuration promise?  (I3)"""

from __future__ import annotations

import base64
import json
import subprocess
import sys

import pytest

from evalfleet.contract.tasks import AGGREGATE_TASK, GRADE_TASK, QUEUE_OF, QUEUES, RUN_TASK
from evalfleet.ledger import Ledger
from evalfleet.plan import Attempt, Conversation
from evalfleet.queue import celery_config
from evalfleet.settings import Broker
from scheduler.publisher import CeleryPublisher


def test_nothing_of_celerys_bookkeeping_is_on() -> None:
    config = celery_config("redis://127.0.0.1:6379/0")
    assert config["task_acks_late"] is False, "the claim is the acknowledgement"
    assert config["task_ignore_result"] is True
    assert "result_backend" not in config
    assert config["worker_enable_remote_control"] is False
    assert config["worker_send_task_events"] is False
    assert config["worker_cancel_long_running_tasks_on_connection_loss"] is False


def test_only_json_is_read() -> None:
    config = celery_config("redis://127.0.0.1:6379/0")
    assert config["accept_content"] == ["json"]
    assert config["task_serializer"] == "json"


def test_a_lost_broker_is_waited_for_without_end() -> None:
    config = celery_config("redis://127.0.0.1:6379/0")
    assert config["broker_connection_max_retries"] is None
    assert config["broker_connection_retry_on_startup"] is True


@pytest.mark.parametrize(
    ("url", "has_tcp_options"),
    [
        pytest.param("redis://127.0.0.1:6379/0", True, id="tcp"),
        pytest.param("rediss://host:6379/0", True, id="tls"),
        pytest.param("redis+socket:///run/valkey.sock?virtual_host=0", False, id="a socket has no keepalive"),
    ],
)
def test_connections_have_deadlines(url: str, has_tcp_options: bool) -> None:
    transport = celery_config(url)["broker_transport_options"]
    assert transport["socket_timeout"] == 10
    assert transport["health_check_interval"] == 10
    assert ("socket_connect_timeout" in transport) is has_tcp_options
    assert ("socket_keepalive" in transport) is has_tcp_options


def test_every_task_has_its_queue() -> None:
    assert {QUEUE_OF[task] for task in (RUN_TASK, GRADE_TASK, AGGREGATE_TASK)} == set(QUEUES)
    routes = celery_config("redis://127.0.0.1:6379/0")["task_routes"]
    assert routes == {task: {"queue": queue} for task, queue in QUEUE_OF.items()}


def test_a_message_is_small_and_stands_in_its_queue_under_our_prefix(valkey: str) -> None:
    """About 100 bytes of our own (design, "One trip through the house"); `queue_length` counts what kombu keeps."""
    ledger = Ledger(valkey, prefix="ef-queue-test:")
    publisher = CeleryPublisher(Broker.parse(valkey), ledger)
    try:
        publisher.run("sub_0123456789ABCDEFGHJKMNPQRS", [Conversation(0, 0), Conversation(0, 1)])
        publisher.grade("sub_0123456789ABCDEFGHJKMNPQRS", Attempt(0, 0, 0))
        publisher.aggregate("sub_0123456789ABCDEFGHJKMNPQRS")
        assert [publisher.queued(queue) for queue in ("run", "grade", "aggregate")] == [2, 1, 1]
        raw = ledger.redis.lindex("ef-queue-test:run", 0)
        assert isinstance(raw, bytes)
        assert len(raw) < 1500, "Celery's envelope, and ours within"
        _, arguments, _ = json.loads(base64.b64decode(json.loads(raw)["body"]))
        assert arguments == {"payload": {"plan": "sub_0123456789ABCDEFGHJKMNPQRS", "convs": [[0, 1]]}}
        assert len(json.dumps(arguments)) < 120
        staging = CeleryPublisher(Broker.parse(valkey), ledger, "staging")
        staging.run("sub_0123456789ABCDEFGHJKMNPQRT", [Conversation(0, 0)])
        assert [staging.queued(kind) for kind in ("run", "grade")] == [ledger.queue_length("run-staging"), 0] == [1, 0]
        assert publisher.queued("run") == 2, "who has no key of that profile is not sent its messages"
        staging.close()
    finally:
        publisher.close()
        ledger.redis.delete(*ledger.redis.keys("ef-queue-test:*"))
        ledger.close()


def test_the_configuration_needs_no_celery() -> None:
    """`evalfleet` imports neither Celery nor kombu: the laptop's command line starts without them."""
    code = "import sys, evalfleet.queue; sys.exit(any(m.split('.')[0] in {'celery', 'kombu'} for m in sys.modules))"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False, timeout=60).returncode == 0
