"""Server processes on one Postgres that are killed: what the others, and the next start, make of it (E02)."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.integration.postgres import connect, end_connections, own_schema
from tests.integration.test_postgres_server import again
from tests.server import test_kills
from tests.server.dying import POINTS
from tests.server.test_process import DEADLINE, agent_of, create, ended_run, gone, refused, started, tree, until

__all__ = ["tree"]

pytestmark = pytest.mark.integration


@pytest.fixture
def schema(postgres_url: str) -> Iterator[str]:
    with own_schema(postgres_url) as url:
        yield url


@pytest.fixture
def database(schema: str) -> str:
    """Asked for by the tests of `tests/server/test_kills.py`."""
    return schema


def options(schema: str, state: Path) -> tuple[str, ...]:
    return "--database", schema, "--state", str(state)


def test_the_runs_of_a_killed_server_are_ended_by_another_one(tree: Path, tmp_path: Path, schema: str) -> None:
    with (
        started(tree, *options(schema, tmp_path / "a")) as (first, one),
        started(tree, *options(schema, tmp_path / "b")) as (_second, two),
    ):
        hanging = create(one, "hang", "k1")
        agent = agent_of(tree)
        behind = two.post(
            "/v2/runs",
            json={**body_of(hanging["harness_id"], "later"), "chat_id": hanging["chat_id"]},
            headers={"Idempotency-Key": "k2"},
        ).json()
        (tree / "started").unlink()
        first.kill()
        killed = time.monotonic()
        lost = ended_run(two, hanging["id"])  # the stream that was open at the other server ends
        assert time.monotonic() - killed < 30
        assert (lost["status"], lost["failure"]["code"], lost["failure"]["retryable"]) == (
            "failed",
            "server_lost",
            True,
        )
        journal = two.get(f"/v2/runs/{hanging['id']}/events").json()["data"]
        assert [event["sequence"] for event in journal] == list(range(1, len(journal) + 1))
        assert ended_run(two, behind["id"])["status"] == "succeeded"  # what waited for it goes on
        # The key still answers with the run that was lost; another key plays.
        again = two.post("/v2/runs", json=body_of(hanging["harness_id"], "hang"), headers={"Idempotency-Key": "k1"})
        assert again.json()["id"] == hanging["id"]
        first.wait(DEADLINE)
        with started(tree, *options(schema, tmp_path / "a")):
            until(lambda: gone(agent))  # and the agent that it left running is ended by its own next start


def test_a_restarted_server_ends_its_own_lost_runs_at_once(tree: Path, tmp_path: Path, schema: str) -> None:
    with started(tree, *options(schema, tmp_path / "a")) as (process, client):
        hanging = create(client, "hang", "k1")
        agent_of(tree)
        process.kill()
        process.wait(DEADLINE)
    with started(tree, *options(schema, tmp_path / "a")) as (_process, client):
        run = client.get(f"/v2/runs/{hanging['id']}").json()
        assert (run["status"], run["failure"]["code"]) == ("failed", "server_lost")


def test_a_server_that_leaves_takes_its_place_away(tree: Path, tmp_path: Path, schema: str) -> None:
    with started(tree, *options(schema, tmp_path / "a")) as (process, _client), connect(schema) as connection:
        assert connection.execute("SELECT pid FROM servers").fetchall() == [(process.pid,)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE) == 0
        assert connection.execute("SELECT count(*) FROM servers").fetchone() == (0,)


def test_two_servers_do_not_share_a_state_folder(tree: Path, tmp_path: Path, schema: str) -> None:
    with started(tree, *options(schema, tmp_path / "a")) as (process, _client):
        code, message = refused(tree, *options(schema, tmp_path / "a"))
        assert code == 2
        assert f"process {process.pid}" in message
        assert "--state" in message


def test_a_server_outlives_a_database_that_ends_all_connections(tree: Path, tmp_path: Path, schema: str) -> None:
    with (
        started(tree, *options(schema, tmp_path / "a")) as (_first, one),
        started(tree, *options(schema, tmp_path / "b")) as (_second, two),
    ):
        for number in range(3):
            end_connections(schema)
            run = create(one, "hello", f"k{number}")
            assert ended_run(two, run["id"])["status"] == "succeeded"


def test_twenty_creates_with_one_key_over_two_processes_make_one_evaluation_e01(
    tree: Path, tmp_path: Path, schema: str
) -> None:
    with (
        started(tree, *options(schema, tmp_path / "a")) as (_first, one),
        started(tree, *options(schema, tmp_path / "b")) as (_second, two),
    ):
        harness_id = one.get("/v2/harnesses").json()["data"][0]["id"]
        cases = [{"key": f"c{number}"} for number in range(300)]
        body = {"harness_id": harness_id, "suite": {"key": "s"}, "k": 3, "cases": cases}

        def post(number: int) -> httpx.Response:
            return (one, two)[number % 2].post("/v2/evaluations", json=body, headers={"Idempotency-Key": "k"})

        with ThreadPoolExecutor(20) as threads:
            answers = list(threads.map(post, range(20)))
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.content for answer in [*answers, post(1)]}) == 1
        assert [answer.headers.get("idempotency-replayed") for answer in answers].count("true") == 19
        assert len(one.get("/v2/evaluations", params={"harness_id": harness_id}).json()["data"]) == 1


@pytest.mark.parametrize("point", POINTS)
def test_e02_what_died_at_one_server_is_made_at_another_one_at_once(
    tree: Path, tmp_path: Path, schema: str, point: str
) -> None:
    with (
        started(tree, *options(schema, tmp_path / "a"), module=("tests.server.dying", point)) as (first, one),
        started(tree, *options(schema, tmp_path / "b")) as (_second, two),
    ):
        harness_id = test_kills.harness_of(two)
        body = {"harness_id": harness_id, "suite": {"key": "s"}, "cases": [{"key": "a"}]}
        with pytest.raises(httpx.TransportError):
            one.post("/v2/evaluations", json=body, headers={"Idempotency-Key": "k"})
        first.wait(DEADLINE)
        answer = two.post("/v2/evaluations", json=body, headers={"Idempotency-Key": "k"})
        assert answer.status_code == 201, answer.text
        assert ("idempotency-replayed" in answer.headers) == (point == "committed")
        listed = two.get("/v2/evaluations", params={"harness_id": harness_id}).json()["data"]
        assert [entry["id"] for entry in listed] == [answer.json()["id"]]


Test_kills = again(test_kills)


def body_of(harness_id: str, text: str) -> dict[str, object]:
    return {"harness_id": harness_id, "input": {"role": "user", "content": [{"type": "text", "text": text}]}}
