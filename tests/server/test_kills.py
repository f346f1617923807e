"""kill -9 of the server: at the three points of a create (E02), and at any moment of many writes.

`tests/integration/test_postgres_kills.py` runs these on Postgres. EVALFLEET_TEST_KILLS says how often the server is
killed during writes; the default is for every day.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from evalfleet.server.engines import make_engine
from evalfleet.server.journal import OPEN
from tests.server.conftest import run_body
from tests.server.dying import POINTS
from tests.server.test_process import AGENT, DEADLINE, ended_run, started, tree, until

__all__ = ["tree"]

KILLS = int(os.environ.get("EVALFLEET_TEST_KILLS", "3"))
WRITERS = 4


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'server.sqlite3'}"


def harness_of(client: httpx.Client) -> str:
    return str(client.get("/v2/harnesses").json()["data"][0]["id"])


def bodies(harness_id: str) -> dict[str, dict[str, Any]]:
    """Something to create under each route."""
    evaluation = {"harness_id": harness_id, "suite": {"key": "s"}, "cases": [{"key": "a"}]}
    return {"/v2/runs": run_body(harness_id, "hi"), "/v2/evaluations": evaluation}


@pytest.mark.parametrize("route", ["/v2/runs", "/v2/evaluations"])
@pytest.mark.parametrize("point", POINTS)
def test_e02_a_create_that_died_is_made_once_by_the_same_key(
    tree: Path, tmp_path: Path, database: str, point: str, route: str
) -> None:
    at = ("--database", database, "--state", str(tmp_path / "a"))
    headers = {"Idempotency-Key": "k"}
    with started(tree, *at, module=("tests.server.dying", point)) as (process, client):
        body = bodies(harness_of(client))[route]
        with pytest.raises(httpx.TransportError):
            client.post(route, json=body, headers=headers)
        process.wait(DEADLINE)
    with started(tree, *at) as (_process, client):
        first = client.post(route, json=body, headers=headers)
        assert first.status_code == 201, first.text  # at once: there is no "in flight" that could stay
        assert ("idempotency-replayed" in first.headers) == (point == "committed")
        again = client.post(route, json=body, headers=headers)
        assert (again.content, again.headers["idempotency-replayed"]) == (first.content, "true")
        assert again.headers["location"] == first.headers["location"]
        made = client.get(route, params={"harness_id": body["harness_id"]}).json()["data"]
        assert [one["id"] for one in made] == [first.json()["id"]]


@dataclass
class Written:
    """What was sent, and what was acknowledged of it."""

    creates: dict[tuple[str, str], bytes | None] = field(default_factory=dict)  # (route, key) → the answer
    recorded: set[str] = field(default_factory=set)  # evaluations whose batch was acknowledged
    ended: dict[str, bytes] = field(default_factory=dict)  # evaluation → the answer to its complete or cancel

    def write(self, client: httpx.Client, harness_id: str, name: str) -> None:
        """Runs, evaluations, batches and ends, one after the other, until the server is gone."""
        body = bodies(harness_id)
        step = 0
        try:
            while True:
                step += 1
                run, evaluation = (self._create(client, route, f"{name}-{step}", body[route]) for route in body)
                ended_run(client, run["id"])
                path = f"/v2/evaluations/{evaluation['id']}"
                attempt = {"case_key": "a", "attempt_index": 0, "run_id": run["id"], "verdict": "passed"}
                scorer = {"scorer_id": "s", "scorer_version": "1"}
                answer = client.post(f"{path}/attempts:batch", json={"attempts": [{**attempt, **scorer}]})
                assert answer.status_code == 200, answer.text
                self.recorded.add(path)
                answer = client.post(f"{path}/{'complete' if step % 2 else 'cancel'}")
                assert answer.status_code == 200, answer.text
                self.ended[path] = answer.content
        except httpx.TransportError:
            return  # killed

    def _create(self, client: httpx.Client, route: str, key: str, body: dict[str, Any]) -> Any:
        self.creates[route, key] = None
        answer = client.post(route, json=body, headers={"Idempotency-Key": key})
        assert answer.status_code == 201, answer.text
        self.creates[route, key] = answer.content
        return answer.json()


@pytest.mark.timeout(120 + 30 * KILLS)
def test_e02_no_acknowledged_write_is_lost_and_no_key_is_wedged_however_often_the_server_is_killed(
    tree: Path, tmp_path: Path, database: str
) -> None:
    (tree / "agent.py").write_text(AGENT.replace('open("started"', "#"), encoding="utf-8")
    at = ("--database", database, "--state", str(tmp_path / "a"))
    chance = random.Random(KILLS)
    written = Written()
    for number in range(KILLS):
        with started(tree, *at) as (process, client):
            harness_id = harness_of(client)
            before = len(written.creates)
            arguments = [(client, harness_id, f"r{number}-w{writer}") for writer in range(WRITERS)]
            writers = [threading.Thread(target=written.write, args=words) for words in arguments]
            for writer in writers:
                writer.start()
            until(lambda: len(written.creates) > before)  # noqa: B023 - called in this round
            time.sleep(chance.uniform(0, 1.5))  # a kill at any moment is what is tested
            process.kill()
            for writer in writers:
                writer.join(DEADLINE)
            assert not any(writer.is_alive() for writer in writers)
    with started(tree, *at) as (_process, client):
        check(written, client, harness_of(client))
    engine = make_engine(database)
    with engine.connect() as connection:
        runs = [key for route, key in written.creates if route == "/v2/runs"]
        assert connection.execute(text("SELECT count(*) FROM runs")).scalar() == len(runs)
        gaps = "SELECT run_id FROM events GROUP BY run_id HAVING count(*) <> max(sequence)"
        assert connection.execute(text(gaps)).all() == []
    engine.dispose()
    acknowledged = sum(answer is not None for answer in written.creates.values())
    print(
        f"{KILLS} kills: {len(written.creates)} creates sent, {acknowledged} acknowledged; "
        f"{len(written.recorded)} batches and {len(written.ended)} ends acknowledged"
    )


def check(written: Written, client: httpx.Client, harness_id: str) -> None:
    """All that was acknowledged is there as it was told; every key works; every run comes to its end."""
    made: set[str] = set()
    for (route, key), told in written.creates.items():
        answer = client.post(route, json=bodies(harness_id)[route], headers={"Idempotency-Key": key})
        assert answer.status_code == 201, answer.text  # never "in flight", never a conflict
        assert told is None or (answer.content, answer.headers["idempotency-replayed"]) == (told, "true")
        made.add(answer.json()["id"])
    assert len(made) == len(written.creates)
    for path in written.recorded:
        assert client.get(path).json()["cases"][0]["recorded_attempts"] == [0]
    for path, told in written.ended.items():
        assert client.get(path).content == told
    for run in open_runs(client):
        assert ended_run(client, run["id"])["status"] in ("succeeded", "failed")
    assert list(open_runs(client)) == []


def open_runs(client: httpx.Client) -> Iterator[dict[str, Any]]:
    cursor: dict[str, str] = {}
    while True:
        page = client.get("/v2/runs", params={"status": ",".join(OPEN), "limit": 100, **cursor}).json()
        yield from page["data"]
        if not page["page"]["has_more"]:
            return
        cursor = {"cursor": page["page"]["next_cursor"]}
