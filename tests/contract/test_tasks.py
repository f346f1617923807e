"""Queue messages: names, queues, plain JSON payloads (I3)."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from evalfleet.contract import tasks


def test_payloads_survive_json_and_stay_small() -> None:
    run = tasks.run_order("sub_01M1GFXMZ8EDKS45DA3VXS7B42", [(0, 0), (12, 4)])
    grade = tasks.GradeOrder("sub_1", (1, 2, 3))
    aggregate = tasks.AggregateOrder("sub_1")
    assert run.payload() == {"plan": "sub_01M1GFXMZ8EDKS45DA3VXS7B42", "convs": [[0, 0], [12, 4]]}
    assert len(json.dumps(run.payload())) < 100
    assert tasks.read_run(json.loads(json.dumps(run.payload()))) == run
    assert tasks.read_grade(json.loads(json.dumps(grade.payload()))) == grade
    assert tasks.read_aggregate(json.loads(json.dumps(aggregate.payload()))) == aggregate


def test_each_task_has_its_queue() -> None:
    assert tasks.QUEUE_OF == {"evalfleet.run": "run", "evalfleet.grade": "grade", "evalfleet.aggregate": "aggregate"}
    assert set(tasks.QUEUE_OF.values()) == set(tasks.QUEUES)


BAD_RUNS: list[Any] = [
    None,
    [],
    {},
    {"plan": "p"},
    {"plan": "p", "convs": []},
    {"plan": "p", "convs": [[1]]},
    {"plan": "p", "convs": [[1, -1]]},
    {"plan": "p", "convs": [[1, True]]},
    {"plan": "p", "convs": [[1, "2"]]},
    {"plan": "", "convs": [[1, 2]]},
    {"plan": 7, "convs": [[1, 2]]},
]


@pytest.mark.parametrize("payload", BAD_RUNS, ids=repr)
def test_a_run_message_of_another_shape_is_a_value_error(payload: Any) -> None:
    with pytest.raises(ValueError):
        tasks.read_run(payload)


@pytest.mark.parametrize(
    "payload", [None, {"plan": "p"}, {"plan": "p", "attempt": [1, 2]}, {"attempt": [1, 2, 3]}], ids=repr
)
def test_a_grade_message_of_another_shape_is_a_value_error(payload: Any) -> None:
    with pytest.raises(ValueError):
        tasks.read_grade(payload)


@pytest.mark.parametrize("payload", [None, {}, {"plan": ""}], ids=repr)
def test_an_aggregate_message_of_another_shape_is_a_value_error(payload: Any) -> None:
    with pytest.raises(ValueError):
        tasks.read_aggregate(payload)


def test_ids_problems_and_tasks_import_no_http_client_and_no_celery() -> None:
    program = (
        "import sys; from evalfleet.contract import ids, problems, tasks, models, sse, retry; "
        "print([name for name in ('httpx', 'aiohttp', 'celery', 'fastapi') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
