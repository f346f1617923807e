"""Thirty-two clients at once: a key has one effect, an evaluation one end, and its metrics are a recount (E01, E09).

`test_postgres_server.py` runs these on Postgres, `test_postgres_servers.py` has them over two servers.
"""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, select

from evalfleet.checks.verdict import CaseAttempts, evaluation_rates
from evalfleet.server.schema import attempts, evaluation_cases
from tests.server.conftest import Api, assert_problem

CLIENTS = 32
ROUNDS = 100
"""As E09 has it."""


def evaluation_body(harness_id: str, cases: int, k: int) -> dict[str, Any]:
    return {"harness_id": harness_id, "suite": {"key": "s"}, "k": k, "cases": [{"key": f"c{n}"} for n in range(cases)]}


def attempt(case: int, index: int, run_id: str, verdict: str = "passed", score: str | None = "0.5") -> dict[str, Any]:
    scorer = {"scorer_id": "x", "scorer_version": "1"}
    place = {"case_key": f"c{case}", "attempt_index": index, "run_id": run_id}
    return {**place, "verdict": verdict, "judge_score": score, **scorer}


async def recount(api: Api, evaluation_id: str, k: int) -> dict[str, Any]:
    """The metrics, from the rows of the attempts alone; each run is a chat of its own, of echo's 10 + 5 tokens."""

    def fn(connection: Connection) -> Any:
        cases = connection.execute(
            select(evaluation_cases.c.position).where(evaluation_cases.c.evaluation_id == evaluation_id)
        ).scalars()
        rows = connection.execute(select(attempts).where(attempts.c.evaluation_id == evaluation_id)).all()
        return list(cases), rows

    cases, rows = await api.stack.services.store.read(fn)
    verdicts: dict[int, dict[int, str]] = {position: {} for position in cases}
    scores: dict[int, dict[int, Decimal | None]] = {position: {} for position in cases}
    for row in rows:
        verdicts[row.position][row.attempt_index] = row.verdict
        scores[row.position][row.attempt_index] = None if row.judge_score is None else Decimal(row.judge_score)
    rates = evaluation_rates(k, [CaseAttempts(verdicts[position], scores[position]) for position in cases])
    return {
        "pass_at_1": rates.pass_at_1,
        "pass_hat_k": rates.pass_hat_k,
        "judge_score": rates.judge_score,
        "tokens": 15 * len({row.run_id for row in rows}),
    }


def assert_counted(document: dict[str, Any], counted: dict[str, Any]) -> None:
    """The document's metrics are the recount; `metrics` is null before the first attempt."""
    if document["metrics"] is None:
        assert (counted["tokens"], document["status"]) == (0, "running")
        return
    assert {name: document["metrics"][name] for name in counted} == counted


def statuses_of(answers: list[httpx.Response]) -> list[int]:
    return sorted({answer.status_code for answer in answers})


async def test_e01_thirty_two_clients_with_one_key_have_one_effect_on_every_route(api: Api) -> None:
    run = await api.play()
    made = await api.http.post("/v2/evaluations", json=evaluation_body(api.harness_id, 1, 1), headers=api.key())
    path = f"/v2/evaluations/{made.json()['id']}"
    for route, body, status in (
        ("/v2/evaluations", evaluation_body(api.harness_id, 40, 3), 201),
        (f"{path}/attempts:batch", {"attempts": [attempt(0, 0, run["id"])]}, 200),
        (f"{path}/complete", None, 200),
    ):
        headers = {"Idempotency-Key": "one"}
        answers = await asyncio.gather(*(api.http.post(route, json=body, headers=headers) for _ in range(CLIENTS)))
        assert statuses_of(answers) == [status]
        assert len({(answer.content, answer.headers.get("location")) for answer in answers}) == 1
        assert [answer.headers.get("idempotency-replayed") for answer in answers].count("true") == CLIENTS - 1
    assert len((await api.get("/v2/evaluations", harness_id=api.harness_id))["data"]) == 2


async def test_thirty_two_clients_record_the_same_attempts_once(api: Api) -> None:
    k, cases = 2, 8
    runs = await asyncio.gather(*(api.play(str(number)) for number in range(k * cases)))
    made = await api.http.post("/v2/evaluations", json=evaluation_body(api.harness_id, cases, k), headers=api.key())
    path = f"/v2/evaluations/{made.json()['id']}"
    everything = [
        attempt(c, i, runs[c * k + i]["id"], "passed" if c % 3 else "failed", f"0.{c}")
        for c in range(cases)
        for i in range(k)
    ]

    async def client(number: int) -> list[str]:
        said: list[str] = []
        mine = [*everything[number % len(everything) :], *everything[: number % len(everything)]]
        for start in range(0, len(mine), 4):
            answer = await api.http.post(f"{path}/attempts:batch", json={"attempts": mine[start : start + 4]})
            assert answer.status_code == 200, answer.text
            said += [result["status"] for result in answer.json()["results"]]
        return said

    said = [word for words in await asyncio.gather(*(client(number) for number in range(CLIENTS))) for word in words]
    assert said.count("recorded") == len(everything)
    assert said.count("duplicate") == (CLIENTS - 1) * len(everything)
    counted = await recount(api, made.json()["id"], k)
    assert_counted(await api.get(path), counted)
    assert_counted((await api.http.post(f"{path}/complete")).json(), counted)


async def test_different_runs_for_the_same_attempts_one_of_each_is_recorded(api: Api) -> None:
    runs = await asyncio.gather(*(api.play(str(number)) for number in range(2 * CLIENTS)))
    made = await api.http.post("/v2/evaluations", json=evaluation_body(api.harness_id, 2, 1), headers=api.key())
    path = f"/v2/evaluations/{made.json()['id']}"

    async def client(number: int) -> httpx.Response:
        both = {"attempts": [attempt(case, 0, runs[2 * number + case]["id"]) for case in range(2)]}
        return await api.http.post(f"{path}/attempts:batch", json=both)

    answers = await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    assert [answer.status_code for answer in answers].count(200) == 1
    for answer in answers:
        if answer.status_code != 200:
            assert_problem(answer, 409, "attempt_conflict", "/attempts/0/run_id", "/attempts/1/run_id")
    assert_counted(await api.get(path), await recount(api, made.json()["id"], 1))


async def test_one_run_for_different_attempts_at_once_is_evidence_for_one_of_them(api: Api) -> None:
    run = await api.play()
    body = evaluation_body(api.harness_id, CLIENTS, 1)
    made = await api.http.post("/v2/evaluations", json=body, headers=api.key())
    path = f"/v2/evaluations/{made.json()['id']}"

    async def client(case: int) -> httpx.Response:
        return await api.http.post(f"{path}/attempts:batch", json={"attempts": [attempt(case, 0, run["id"])]})

    answers = await asyncio.gather(*(client(case) for case in range(CLIENTS)))
    assert [answer.status_code for answer in answers].count(200) == 1
    for answer in answers:
        if answer.status_code != 200:
            assert_problem(answer, 422, "validation_failed", "/attempts/0/run_id")
    cases = (await api.get(path))["cases"]
    assert [case["recorded_attempts"] for case in cases].count([0]) == 1
    assert_counted(await api.get(path), await recount(api, made.json()["id"], 1))


@pytest.mark.timeout(600)
async def test_e09_a_hundred_rounds_of_complete_cancel_and_the_last_batch(api: Api) -> None:
    k, cases = 2, 2
    runs = [run["id"] for run in await asyncio.gather(*(api.play(str(number)) for number in range(k * cases)))]
    batch = [
        attempt(c, i, runs[c * k + i], "failed" if (c + i) % 3 == 0 else "passed", f"0.{c}{i}")
        for c in range(cases)
        for i in range(k)
    ]

    async def race(number: int) -> str:
        """The state that one evaluation ends in, over which eleven clients fall out."""
        made = await api.http.post("/v2/evaluations", json=evaluation_body(api.harness_id, cases, k), headers=api.key())
        path = f"/v2/evaluations/{made.json()['id']}"
        early, last = {"attempts": batch[:-1]}, {"attempts": batch[-1:]}
        assert (await api.http.post(f"{path}/attempts:batch", json=early)).status_code == 200
        acts = [api.http.post(f"{path}/{act}") for act in ("complete", "cancel") * 5]
        # Which of them is sent first is a matter of the round: both ends are seen.
        acts.insert(number % 3, api.http.post(f"{path}/attempts:batch", json=last))
        answers = await asyncio.gather(*acts)
        assert statuses_of(answers) in ([200], [200, 409]), [answer.text for answer in answers]
        end = await api.get(path)
        assert end["status"] in ("completed", "cancelled")
        assert_counted(end, await recount(api, end["id"], k))
        recorded = sum(len(case["recorded_attempts"] or []) for case in end["cases"])
        assert end["status"] == "cancelled" or recorded == len(batch)
        # After the end: nothing new, duplicates are welcome, both ends idempotent or refused.
        right, wrong = ("complete", "cancel") if end["status"] == "completed" else ("cancel", "complete")
        assert (await api.http.post(f"{path}/{right}")).json() == end
        assert_problem(await api.http.post(f"{path}/{wrong}"), 409, f"evaluation_{end['status']}")
        again = await api.http.post(f"{path}/attempts:batch", json={"attempts": batch})
        if recorded == len(batch):
            assert {result["status"] for result in again.json()["results"]} == {"duplicate"}
        else:
            assert_problem(again, 409, "evaluation_cancelled")
        assert await api.get(path) == end
        return str(end["status"])

    ends: set[str] = set()
    at_once = CLIENTS // 11 + 1
    for start in range(0, ROUNDS, at_once):
        rounds = range(start, min(start + at_once, ROUNDS))
        ends.update(await asyncio.gather(*(race(number) for number in rounds)))
    assert ends == {"completed", "cancelled"}


async def test_e09_an_incomplete_one_is_not_completed_and_an_empty_one_has_no_rates(api: Api) -> None:
    run = await api.play()
    made = await api.http.post("/v2/evaluations", json=evaluation_body(api.harness_id, 2, 1), headers=api.key())
    path = f"/v2/evaluations/{made.json()['id']}"
    await api.http.post(f"{path}/attempts:batch", json={"attempts": [attempt(0, 0, run["id"])]})
    answers = await asyncio.gather(*(api.http.post(f"{path}/complete") for _ in range(CLIENTS)))
    missing = made.json()["cases"][1]["id"]
    for answer in answers:
        assert_problem(answer, 409, "evaluation_incomplete", f"/cases/{missing}")
    assert (await api.get(path))["status"] == "running"
    empty = await api.http.post("/v2/evaluations", json=evaluation_body(api.harness_id, 2, 1), headers=api.key())
    cancelled = await asyncio.gather(
        *(api.http.post(f"/v2/evaluations/{empty.json()['id']}/cancel") for _ in range(CLIENTS))
    )
    assert len({answer.content for answer in cancelled}) == 1
    assert cancelled[0].json()["metrics"] == {
        "pass_at_1": None, "pass_hat_k": None, "k": 1, "judge_score": None, "tokens": 0, "amount": "0",
        "currency": "USD",
    }  # fmt: skip
