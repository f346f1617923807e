"""Evaluations: every example of the seed, the refusals, the sums (S29–S31, E11). E09 is in `test_races.py`."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, select

from evalfleet.checks.verdict import CaseAttempts, evaluation_rates
from evalfleet.server.documents import MOST
from evalfleet.server.driving import Call, Ended, Sink, Turn
from evalfleet.server.evaluation_documents import running_rates
from evalfleet.server.runs import add_judge_call
from evalfleet.server.schema import evaluation_cases
from evalfleet.server.spending import JudgeSpend
from tests.server.conftest import COMMIT, OTHER_COMMIT, OTHER_TOKEN, Api, ScriptedDriver, assert_problem, serving

SEED_CREATE = {
    "harness_commit": COMMIT,
    "suite": {"key": "compute-contract", "version": "v1", "name": "Compute contract"},
    "scorer": {"id": "compute-contract", "version": "v1"},
    "k": 1,
    "cases": [
        {
            "key": "uname",
            "name": "reports the kernel and arch",
            "input": {"prompt": "Run `uname -sm` and reply with what it printed."},
            "expected": {"contains": "Linux"},
        },
        {
            "key": "arch",
            "name": "remembers the architecture",
            "input": {"prompt": "What architecture did you just report?"},
            "expected": {"contains": "x86_64"},
        },
    ],
}


async def created(api: Api, keys: str = "a", k: int = 1, **more: Any) -> dict[str, Any]:
    """An evaluation with one case for each letter of `keys`."""
    body = {
        "harness_id": api.harness_id,
        "suite": {"key": "suite"},
        "k": k,
        "cases": [{"key": key} for key in keys],
        **more,
    }
    answer = await api.http.post("/v2/evaluations", json=body, headers=api.key())
    assert answer.status_code == 201, answer.text
    return cast(dict[str, Any], answer.json())


def attempt(key: str, index: int, run: dict[str, Any], verdict: str = "passed", **more: Any) -> dict[str, Any]:
    return {
        "case_key": key,
        "attempt_index": index,
        "run_id": run["id"],
        "verdict": verdict,
        "scorer_id": "compute-contract",
        "scorer_version": "v1",
        **more,
    }


async def batch(api: Api, evaluation: dict[str, Any], *attempts: dict[str, Any], **headers: str) -> httpx.Response:
    path = f"/v2/evaluations/{evaluation['id']}/attempts:batch"
    return await api.http.post(path, json={"attempts": list(attempts)}, headers=headers)


async def post(api: Api, evaluation: dict[str, Any], act: str) -> httpx.Response:
    return await api.http.post(f"/v2/evaluations/{evaluation['id']}/{act}")


async def test_the_seeds_walk_create_record_complete_read_list(api: Api, driver: ScriptedDriver) -> None:
    async def agent(turn: Turn, sink: Sink) -> Ended:
        await sink.usage(input_tokens=26000, output_tokens=159, amount="0.027065")
        await sink.answer("Linux x86_64")
        return Ended()

    driver.script = agent
    answer = await api.http.post(
        "/v2/evaluations", json={"harness_id": api.harness_id, **SEED_CREATE}, headers=api.key()
    )
    assert answer.status_code == 201
    made = answer.json()
    assert answer.headers["location"] == f"/v2/evaluations/{made['id']}"
    assert list(made) == [
        "id", "status", "harness_version", "baseline_version", "scorer", "suite", "k", "progress", "metrics",
        "comparison", "cases", "created_at", "completed_at",
    ]  # fmt: skip
    assert made["status"] == "running"
    assert made["harness_version"] == {"number": 1, "commit": COMMIT}
    assert made["baseline_version"] is None
    assert made["scorer"] == {"id": "compute-contract", "version": "v1"}
    assert made["suite"] == SEED_CREATE["suite"]
    assert made["progress"] == {"done": 0, "total": 2}
    assert made["metrics"] is None
    assert made["comparison"] is None
    assert made["completed_at"] is None
    assert [list(case) for case in made["cases"]] == [
        ["id", "key", "name", "status", "recorded_attempts", "missing_attempts"]
    ] * 2
    assert made["cases"][0] | {"id": ""} == {
        "id": "", "key": "uname", "name": "reports the kernel and arch", "status": "pending",
        "recorded_attempts": None, "missing_attempts": [0],
    }  # fmt: skip

    runs = [await api.play("one"), await api.play("two")]
    more = {"judge_score": "1.00", "judge_feedback": "printed Linux x86_64"}
    recorded = await batch(
        api, made, attempt("uname", 0, runs[0], **more), attempt("arch", 0, runs[1], judge_score="1.00")
    )
    assert recorded.status_code == 200
    body = recorded.json()
    assert body["results"] == [
        {"case_id": case["id"], "attempt_index": 0, "status": "recorded"} for case in made["cases"]
    ]
    metrics = {
        "pass_at_1": 1, "pass_hat_k": 1, "k": 1, "judge_score": 1, "tokens": 52318, "amount": "0.05413",
        "currency": "USD",
    }  # fmt: skip
    assert body["evaluation"]["progress"] == {"done": 2, "total": 2}
    assert body["evaluation"]["metrics"] == metrics
    assert list(body["evaluation"]["metrics"]) == list(metrics)
    assert '"pass_at_1":1,' in recorded.text  # a number as the seed writes it
    assert [case["status"] for case in body["evaluation"]["cases"]] == ["passed", "passed"]
    assert [case["recorded_attempts"] for case in body["evaluation"]["cases"]] == [[0], [0]]
    assert [case["missing_attempts"] for case in body["evaluation"]["cases"]] == [[], []]

    done = (await post(api, made, "complete")).json()
    assert done["status"] == "completed"
    assert done["metrics"] == metrics
    assert done["comparison"] is None
    assert done["completed_at"] > done["created_at"]
    assert await api.get(f"/v2/evaluations/{made['id']}") == done
    again = await post(api, made, "complete")
    assert again.status_code == 200
    assert again.json() == done

    listed = await api.get("/v2/evaluations", harness_commit=COMMIT, limit=5)
    assert listed["data"] == [
        {
            "id": made["id"],
            "name": "Compute contract",
            "status": "completed",
            "harness_version": {"number": 1, "commit": COMMIT},
            "progress": {"done": 2, "total": 2},
            "pass_at_1": 1,
            "created_at": made["created_at"],
        }
    ]
    assert listed["page"] == {"has_more": False, "next_cursor": None}
    cannot = await post(api, made, "cancel")
    problem = assert_problem(cannot, 409, "evaluation_completed")
    assert problem["detail"] == "A completed evaluation cannot be cancelled."


async def test_completing_names_what_is_missing(api: Api) -> None:
    made = await created(api, "ab", k=2)
    await batch(api, made, attempt("a", 0, await api.play()), attempt("a", 1, await api.play()))
    await batch(api, made, attempt("b", 1, await api.play()))
    problem = assert_problem(await post(api, made, "complete"), 409, "evaluation_incomplete")
    assert problem["detail"] == "The evaluation cannot be completed until every case has all required attempts."
    assert problem["errors"] == [
        {
            "name": f"/cases/{made['cases'][1]['id']}",
            "location": "server",
            "reason": "case has 1 of 2 required attempts",
            "code": "incomplete",
        }
    ]
    read = await api.get(f"/v2/evaluations/{made['id']}")
    assert read["status"] == "running"
    assert read["cases"][1]["missing_attempts"] == [0]
    assert read["cases"][1]["recorded_attempts"] == [1]


async def test_cancelling_keeps_what_is_recorded_and_nulls_the_rates_of_nothing(api: Api) -> None:
    made = await created(api, "s")
    stopped = (await post(api, made, "cancel")).json()
    assert stopped["status"] == "cancelled"
    assert stopped["metrics"] == {
        "pass_at_1": None, "pass_hat_k": None, "k": 1, "judge_score": None, "tokens": 0, "amount": "0",
        "currency": "USD",
    }  # fmt: skip
    assert stopped["cases"][0]["recorded_attempts"] is None
    assert stopped["cases"][0]["missing_attempts"] == [0]
    again = await post(api, made, "cancel")
    assert again.json() == stopped
    assert_problem(await post(api, made, "complete"), 409, "evaluation_cancelled")
    late = await batch(api, made, attempt("s", 0, await api.play()))
    assert_problem(late, 409, "evaluation_cancelled")


async def test_an_attempt_sent_again_is_a_duplicate_and_another_run_a_conflict(api: Api) -> None:
    made = await created(api, "ab")
    one, two = await api.play(), await api.play()
    first = await batch(api, made, attempt("a", 0, one))
    assert [result["status"] for result in first.json()["results"]] == ["recorded"]
    by_id = {**attempt("a", 0, one), "case_id": made["cases"][0]["id"]}
    del by_id["case_key"]
    second = await batch(api, made, by_id, attempt("b", 0, two))
    assert [result["status"] for result in second.json()["results"]] == ["duplicate", "recorded"]
    before = await api.get(f"/v2/evaluations/{made['id']}")
    # Nothing of a batch with a conflict is applied, whatever else it holds.
    other = await created(api, "ab")
    await batch(api, other, attempt("a", 0, one))
    conflict = await batch(api, other, attempt("b", 0, two), attempt("a", 0, two))
    assert_problem(conflict, 409, "attempt_conflict", "/attempts/1/run_id")
    assert (await api.get(f"/v2/evaluations/{other['id']}"))["cases"][1]["recorded_attempts"] is None
    inside = await batch(api, other, attempt("b", 0, two), attempt("b", 0, one))
    assert_problem(inside, 409, "attempt_conflict", "/attempts/1/run_id")
    await post(api, made, "complete")
    after = await batch(api, made, attempt("a", 0, one))
    assert after.json()["results"][0]["status"] == "duplicate"  # E09: stored ones stay 200 after the end
    assert after.json()["evaluation"]["metrics"] == before["metrics"]


async def test_a_run_that_is_no_evidence_is_refused(api: Api, driver: ScriptedDriver) -> None:
    go = asyncio.Event()

    async def wait(turn: Turn, sink: Sink) -> Ended:
        await go.wait()
        return Ended()

    driver.script = wait
    going = await api.create()
    made = await created(api, "a", k=5)
    other = await api.http.post(
        "/v2/runs",
        json={"harness_id": api.harness_id, "input": {"role": "user", "content": [{"type": "text", "text": "x"}]}},
        headers={**api.key(), "Authorization": f"Bearer {OTHER_TOKEN}"},
    )
    answer = await batch(
        api,
        made,
        attempt("a", 0, going),
        attempt("a", 1, {"id": "run_00000000000000000000000000"}),
        attempt("a", 2, other.json()),
        attempt("x", 3, going),
        attempt("a", 5, going),
    )
    pointers = [f"/attempts/{number}/run_id" for number in range(3)]
    problem = assert_problem(
        answer, 422, "validation_failed", *pointers, "/attempts/3/case_key", "/attempts/4/attempt_index"
    )
    assert len(problem["errors"]) == 5
    assert (await api.get(f"/v2/evaluations/{made['id']}"))["metrics"] is None
    go.set()


async def test_a_run_of_another_commit_is_no_evidence(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedDriver(), commit=OTHER_COMMIT) as before:
        old = await before.play()
    async with serving(tmp_path, ScriptedDriver()) as api:
        versions = (await api.get(f"/v2/harnesses/{api.harness_id}"))["versions"]
        assert versions == [{"number": 2, "commit": COMMIT}, {"number": 1, "commit": OTHER_COMMIT}]
        made = await created(api, "a")
        assert made["harness_version"] == {"number": 2, "commit": COMMIT}
        answer = await batch(api, made, attempt("a", 0, old))
        assert_problem(answer, 422, "validation_failed", "/attempts/0/run_id")


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"suite": None}, "/suite"),
        ({"suite": {}}, "/suite/key"),
        ({"suite": {"key": "  "}}, "/suite/key"),
        ({"scorer": "x"}, "/scorer"),
        ({"scorer": {"version": "1"}}, "/scorer/id"),
        ({"k": 0}, "/k"),
        ({"k": 101}, "/k"),
        ({"k": True}, "/k"),
        ({"k": 1.5}, "/k"),
        ({"k": "3"}, "/k"),
        ({"cases": []}, "/cases"),
        ({"cases": [{"key": f"k{n}"} for n in range(2001)]}, "/cases"),
        ({"cases": [{}]}, "/cases/0/key"),
        ({"cases": [{"key": "a"}, {"key": "b"}, {"key": "a"}]}, "/cases/2/key"),
        ({"cases": ["a"]}, "/cases/0"),
        ({"harness_commit": "371758"}, "/harness_commit"),
        ({"harness_commit": OTHER_COMMIT}, "/harness_commit"),
        ({"baseline_harness_commit": OTHER_COMMIT}, "/baseline_harness_commit"),
    ],
)
async def test_what_is_wrong_with_an_evaluation_is_pointed_at_e11(
    api: Api, change: dict[str, Any], pointer: str
) -> None:
    body = {"harness_id": api.harness_id, **SEED_CREATE, **change}
    answer = await api.http.post("/v2/evaluations", json=body, headers=api.key())
    assert_problem(answer, 422, "validation_failed", pointer)
    assert (await api.get("/v2/evaluations", harness_id=api.harness_id))["data"] == []


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"verdict": "flaky"}, "/attempts/0/verdict"),
        ({"verdict": None}, "/attempts/0/verdict"),
        ({"attempt_index": -1}, "/attempts/0/attempt_index"),
        ({"attempt_index": "0"}, "/attempts/0/attempt_index"),
        ({"run_id": "x"}, "/attempts/0/run_id"),
        ({"judge_score": 0.5}, "/attempts/0/judge_score"),
        ({"judge_score": "NaN"}, "/attempts/0/judge_score"),
        ({"judge_score": "1e5"}, "/attempts/0/judge_score"),
        ({"judge_feedback": 5}, "/attempts/0/judge_feedback"),
        ({"case_key": None}, "/attempts/0/case_key"),
        ({"case_id": "ecase_1"}, "/attempts/0/case_key"),
        ({"scorer_id": None}, "/attempts/0/scorer_id"),
    ],
)
async def test_what_is_wrong_with_an_attempt_is_pointed_at(api: Api, change: dict[str, Any], pointer: str) -> None:
    made = await created(api, "a")
    answer = await batch(api, made, {**attempt("a", 0, await api.play()), **change})
    assert_problem(answer, 422, "validation_failed", pointer)


async def test_statuses_and_rates_follow_the_attempts_s29_s30(api: Api) -> None:
    made = await created(api, "abc", k=2)
    runs = [await api.play(str(number)) for number in range(5)]
    answer = await batch(
        api,
        made,
        attempt("a", 0, runs[0], judge_score="0.5"),
        attempt("a", 1, runs[1], judge_score="1"),
        attempt("b", 0, runs[2], "failed"),
        attempt("b", 1, runs[3]),
        attempt("c", 1, runs[4], "failed"),
    )
    evaluation = answer.json()["evaluation"]
    assert [case["status"] for case in evaluation["cases"]] == ["passed", "flaky", "pending"]
    assert evaluation["progress"] == {"done": 2, "total": 3}
    metrics = evaluation["metrics"]
    assert metrics["pass_at_1"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert metrics["pass_hat_k"] == 0.5
    assert metrics["judge_score"] == 0.75
    assert metrics["tokens"] == 5 * 15
    assert metrics["amount"] == "0.005"
    stopped = (await post(api, made, "cancel")).json()
    assert stopped["metrics"] == metrics  # counted on and counted anew say the same


@given(
    k=st.integers(1, 5),
    letters=st.lists(st.lists(st.sampled_from("-pf"), min_size=5, max_size=5), max_size=12),
    scores=st.lists(st.decimals(0, 1, places=3), max_size=9),
)
def test_the_running_rates_are_the_exact_ones_s30(k: int, letters: list[list[str]], scores: list[Decimal]) -> None:
    verdicts = ["".join(row[:k]) for row in letters]
    words = {"p": "passed", "f": "failed"}
    cases = [
        CaseAttempts({index: words[letter] for index, letter in enumerate(row) if letter != "-"}, {})
        for row in verdicts
    ]
    cases.append(CaseAttempts({}, dict(enumerate(scores))))
    total = sum(scores, Decimal(0))
    assert running_rates(k, verdicts, scored=len(scores), score_sum=total) == evaluation_rates(k, cases)


async def test_a_chat_is_counted_once_s30(api: Api) -> None:
    made = await created(api, "ab")
    first = await api.play("one")
    second = await api.play("two", chat_id=first["chat_id"])
    await batch(api, made, attempt("a", 0, first))
    counted = (await batch(api, made, attempt("b", 0, second))).json()["evaluation"]["metrics"]
    assert (counted["tokens"], counted["amount"]) == (30, "0.002")
    await api.play("three", chat_id=first["chat_id"])
    done = (await post(api, made, "complete")).json()["metrics"]
    assert (done["tokens"], done["amount"]) == (45, "0.003")  # what the chat has used by the time of completion


@pytest.mark.parametrize("silent_first", [True, False])
async def test_a_run_that_reports_no_usage_does_not_turn_the_currency_into_dollars(
    api: Api, driver: ScriptedDriver, silent_first: bool
) -> None:
    async def script(turn: Turn, sink: Sink) -> Ended:
        if turn.message == "paid":
            await sink.usage(input_tokens=1, amount="2.5", currency="EUR")
        return Ended()

    driver.script = script
    made = await created(api, "ab")
    for key, text in zip("ab", ("silent", "paid") if silent_first else ("paid", "silent"), strict=True):
        metrics = (await batch(api, made, attempt(key, 0, await api.play(text)))).json()["evaluation"]["metrics"]
    assert (metrics["amount"], metrics["currency"]) == ("2.5", "EUR")
    metrics = (await post(api, made, "complete")).json()["metrics"]
    assert (metrics["amount"], metrics["currency"]) == ("2.5", "EUR")


async def test_s15_amounts_of_two_currencies_are_never_added(api: Api, driver: ScriptedDriver) -> None:
    """Chats in different currencies: each has its own amount, to the last digit, in between and at the end."""
    tiny = "0.00000000000000000000000123456789"

    async def script(turn: Turn, sink: Sink) -> Ended:
        amount, currency = turn.message.split()
        await sink.usage(input_tokens=1, amount=amount, currency=currency)
        return Ended()

    driver.script = script
    made = await created(api, "abc")
    shown = []
    for key, text in zip("abc", (f"{tiny} USD", "100 JPY", "1000000 USD"), strict=True):
        metrics = (await batch(api, made, attempt(key, 0, await api.play(text)))).json()["evaluation"]["metrics"]
        shown.append((metrics["amount"], metrics["currency"], metrics.get("amounts")))
    assert shown == [
        (tiny, "USD", None),
        (None, None, {"JPY": "100", "USD": tiny}),
        (None, None, {"JPY": "100", "USD": f"1000000{tiny[1:]}"}),
    ]
    metrics = (await post(api, made, "complete")).json()["metrics"]
    assert (metrics["amount"], metrics["currency"], metrics["amounts"]) == shown[-1]


@pytest.mark.parametrize("second_turn", [False, True])
async def test_n20_a_chat_that_names_a_second_currency_fails_by_name(
    api: Api, driver: ScriptedDriver, second_turn: bool
) -> None:
    """In one turn or in the next: what was counted before stands, and nothing is added to it."""

    async def script(turn: Turn, sink: Sink) -> Ended:
        for currency in turn.message.split():
            await sink.usage(input_tokens=1, amount="0.5", currency=currency)
        return Ended()

    driver.script = script
    first = await api.play("EUR" if second_turn else "EUR EUR USD")
    run = await api.play("USD", chat_id=first["chat_id"]) if second_turn else first
    assert run["status"] == "failed"
    assert run["failure"]["code"] == "agent_protocol"
    assert "usage in USD after EUR" in run["failure"]["message"]
    usage = await api.get(f"/v2/runs/{run['id']}/usage")
    assert (usage["amount"], usage["currency"]) == ("0.5" if second_turn else "1", "EUR")


async def test_the_baseline_is_compared_by_case_key_s31(tmp_path: Path) -> None:
    verdicts = {"a": "failed", "b": "passed", "c": "passed", "old": "passed"}
    async with serving(tmp_path, ScriptedDriver(), commit=OTHER_COMMIT) as before:
        for fate in ("passed", "given"):  # the newest completed one counts
            made = await created(before, cases=[{"key": key} for key in verdicts])
            attempts = [
                attempt(key, 0, await before.play(), verdict if fate == "given" else "passed")
                for key, verdict in verdicts.items()
            ]
            await batch(before, made, *attempts)
            assert (await post(before, made, "complete")).status_code == 200
        unfinished = await created(before, "abc")
        await post(before, unfinished, "cancel")
    async with serving(tmp_path, ScriptedDriver()) as api:
        cases = [{"key": key} for key in ("a", "b", "c", "new")]
        made = await created(api, cases=cases, baseline_harness_commit=OTHER_COMMIT)
        assert made["baseline_version"] == {"number": 1, "commit": OTHER_COMMIT}
        now = {"a": "passed", "b": "failed", "c": "passed", "new": "passed"}
        last = await batch(api, made, *[attempt(key, 0, await api.play(), verdict) for key, verdict in now.items()])
        assert last.json()["evaluation"]["comparison"] is None
        done = (await post(api, made, "complete")).json()
        assert done["comparison"] == {"version": {"number": 1, "commit": OTHER_COMMIT}, "improved": 1, "regressed": 1}
        alone = await created(api, "a", suite={"key": "another suite"}, baseline_harness_commit=OTHER_COMMIT)
        await batch(api, alone, attempt("a", 0, await api.play()))
        assert (await post(api, alone, "complete")).json()["comparison"] is None


async def test_a_batch_with_a_key_is_replayed(api: Api) -> None:
    made = await created(api, "a")
    run = await api.play()
    key = {"Idempotency-Key": "batch"}
    one = await batch(api, made, attempt("a", 0, run), **key)
    two = await batch(api, made, attempt("a", 0, run), **key)
    assert one.content == two.content
    assert two.headers["idempotency-replayed"] == "true"
    wrong = await batch(api, made, attempt("a", 0, run), **{"Idempotency-Key": "a b"})
    assert_problem(wrong, 400, "idempotency_key_invalid")
    completed = await api.http.post(f"/v2/evaluations/{made['id']}/complete", headers=key)
    assert completed.json()["status"] == "completed"


async def test_defaults_of_what_may_be_left_out(api: Api) -> None:
    made = await created(api, cases=[{"key": "only-a-key"}])
    assert made["k"] == 1
    assert made["scorer"] is None
    assert made["suite"] == {"key": "suite", "version": "", "name": "suite"}
    assert made["harness_version"]["commit"] == COMMIT
    assert made["cases"][0]["name"] == "only-a-key"


async def test_somebody_elses_evaluation_is_not_there(api: Api) -> None:
    made = await created(api, "a")
    run = await api.play()
    other = {"Authorization": f"Bearer {OTHER_TOKEN}"}
    assert_problem(await api.http.get(f"/v2/evaluations/{made['id']}", headers=other), 404, "not_found")
    for act in ("complete", "cancel"):
        answer = await api.http.post(f"/v2/evaluations/{made['id']}/{act}", headers=other)
        assert_problem(answer, 404, "not_found")
    assert_problem(await batch(api, made, attempt("a", 0, run), **other), 404, "not_found")
    listed = await api.http.get("/v2/evaluations", params={"harness_commit": COMMIT}, headers=other)
    assert listed.json()["data"] == []


async def test_evaluations_are_listed_newest_first_by_status(api: Api) -> None:
    made = [await created(api, "a") for _ in range(5)]
    await post(api, made[1], "cancel")
    page = await api.get("/v2/evaluations", harness_id=api.harness_id, limit=2)
    read = [item["id"] for item in page["data"]]
    while page["page"]["has_more"]:
        cursor = page["page"]["next_cursor"]
        page = await api.get("/v2/evaluations", harness_id=api.harness_id, limit=2, cursor=cursor)
        read += [item["id"] for item in page["data"]]
    assert read == [evaluation["id"] for evaluation in reversed(made)]
    stopped = await api.get("/v2/evaluations", harness_commit=COMMIT, status="cancelled,completed")
    assert [item["id"] for item in stopped["data"]] == [made[1]["id"]]
    assert stopped["data"][0]["pass_at_1"] is None


async def test_two_thousand_cases_are_answered_whole(api: Api) -> None:
    cases = [{"key": f"case/{number}", "expected": "x" * 1025} for number in range(2000)]
    made = await created(api, cases=cases, k=100)
    assert len(made["cases"]) == 2000
    answer = await batch(api, made, attempt("case/7", 99, await api.play()))
    evaluation = answer.json()["evaluation"]
    assert len(evaluation["cases"]) == 2000  # the SDK completes only if all cases are there (wire.md)
    assert evaluation["cases"][7]["recorded_attempts"] == [99]
    assert len(evaluation["cases"][7]["missing_attempts"]) == 99


async def test_counts_of_tokens_stand_still_at_the_largest_that_every_reader_takes(
    api: Api, driver: ScriptedDriver
) -> None:
    """Sums past 2**63, which no database takes, are no failure: not of the run, the batch, the end or a judge call."""

    async def boastful(_turn: Turn, sink: Sink) -> Ended:
        for _report in range(1100):
            await sink.usage(input_tokens=MOST, output_tokens=MOST)
        await sink.answer("done")
        return Ended()

    driver.script = boastful
    played = [await api.play(), await api.play()]
    assert [run["status"] for run in played] == ["succeeded", "succeeded"]
    usage = await api.get(f"/v2/runs/{played[0]['id']}/usage")
    assert (usage["input_tokens"], usage["total_tokens"]) == (MOST, MOST)
    evaluation = await created(api, "ab")
    recorded = await batch(api, evaluation, *(attempt(key, 0, run) for key, run in zip("ab", played, strict=True)))
    assert recorded.json()["evaluation"]["metrics"]["tokens"] == MOST
    assert (await post(api, evaluation, "complete")).json()["metrics"]["tokens"] == MOST
    store = api.stack.services.store
    for _call in range(2):
        await store.write(lambda connection: add_judge_call(connection, "main", played[0]["id"], JudgeSpend(1, MOST)))


async def test_s17_the_end_counts_what_the_other_tries_of_its_conversations_cost(
    api: Api, driver: ScriptedDriver
) -> None:
    """Tries without a result are recorded nowhere and were paid for: those before a recorded one, and all of an attempt
    that is missing. Not those of other trials, cases, submissions or harnesses, nor a chat twice."""

    async def priced(turn: Turn, sink: Sink) -> Ended:
        await sink.usage(input_tokens=1, amount=turn.message)
        return Ended()

    driver.script = priced

    async def tried(amount: str, submission: str, case: str, trial: int, number: int, **more: Any) -> dict[str, Any]:
        whose = {"submission": submission, "case": case, "scenario": "any", "trial": trial, "try": number}
        return await api.play(amount, metadata={f"evalfleet.{name}": value for name, value in whose.items()}, **more)

    made = await created(api, cases=[{"key": "tone/a"}, {"key": "tone/b"}, {"key": "été/c"}], k=2)
    kept = await tried("1", "sub_1", "tone", 0, 0)
    await tried("2", "sub_1", "tone", 1, 0)  # recorded at its third try
    await tried("4", "sub_1", "tone", 1, 1)
    third = await tried("8", "sub_1", "tone", 1, 2)
    await tried("16", "sub_1", "tone", 1, 3)  # after it: some other scenario's
    await tried("32", "sub_1", "tone", 2, 0)  # no trial of this evaluation
    await tried("64", "sub_2", "tone", 1, 0)
    await tried("128", "sub_1", "tone2", 1, 0)
    of_c = await tried("256", "sub_1", "été", 0, 1)
    await tried("512", "sub_1", "été", 0, 0)
    await tried("1024", "sub_1", "été", 0, 0, chat_id=of_c["chat_id"])  # a chat of its own counts once
    verdicts = {"a": "passed", "b": "failed"}  # what one run is evidence for passed once at the most
    runs = list(enumerate((kept, third)))
    recorded = [attempt(f"tone/{key}", n, run, verdicts[key]) for key in "ab" for n, run in runs]
    recorded += [attempt("été/c", 0, of_c)]
    assert (await batch(api, made, *recorded)).json()["evaluation"]["metrics"]["amount"] == "1289"
    complete = await created(api, cases=[{"key": "tone/a"}, {"key": "tone/b"}], k=2)
    await batch(api, complete, *recorded[:4])
    assert (await post(api, complete, "complete")).json()["metrics"]["amount"] == str(1 + 2 + 4 + 8)
    await tried("2048", "sub_1", "été", 1, 0)  # its attempt stays missing
    await tried("4096", "sub_1", "été", 1, 1)
    ended = (await post(api, made, "cancel")).json()["metrics"]
    assert ended["amount"] == str(1 + 2 + 4 + 8 + 256 + 512 + 1024 + 2048 + 4096)


async def test_the_longest_key_is_taken_in_any_script_e11(api: Api) -> None:
    key = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(1000))  # 6,000 bytes that hardly compress
    made = await created(api, "", cases=[{"key": key}])
    recorded = await batch(api, made, attempt(key, 0, await api.play()))
    assert recorded.json()["evaluation"]["cases"][0]["key"] == key


@pytest.mark.parametrize("size", [1_025, 300_000])
async def test_long_values_are_kept_and_come_back_whole_e11(api: Api, driver: ScriptedDriver, size: int) -> None:
    long = "é" + "x" * (size - 1)
    case = {"key": "k" * 300, "name": "n" * 900, "input": {"p": long}, "expected": [long]}
    headers = api.key()
    body = {"harness_id": api.harness_id, "suite": {"key": "suite"}, "cases": [case]}
    first = await api.http.post("/v2/evaluations", json=body, headers=headers)
    again = await api.http.post("/v2/evaluations", json=body, headers=headers)
    assert (first.status_code, again.content, again.headers["idempotency-replayed"]) == (201, first.content, "true")
    read = await api.get(f"/v2/evaluations/{first.json()['id']}")
    assert read == first.json()
    assert (read["cases"][0]["key"], read["cases"][0]["name"]) == ("k" * 300, "n" * 900)

    def stored(connection: Connection) -> Any:
        return connection.execute(select(evaluation_cases.c.input, evaluation_cases.c.expected)).one()

    row = await api.stack.services.store.read(stored)
    assert (json.loads(row.input), json.loads(row.expected)) == ({"p": long}, [long])

    async def long_winded(turn: Turn, sink: Sink) -> Ended:
        await sink.tool_calls([Call("c", "read", {"path": turn.message})])
        await sink.tool_result("c", long)
        await sink.answer({"said": long})
        return Ended()

    driver.script = long_winded
    run = await api.play(long)
    messages = (await api.get(f"/v2/runs/{run['id']}/messages"))["data"]
    assert messages[0]["content"][0]["text"] == driver.turns[0].message == long
    assert messages[2]["content"][0]["value"]["tool_result"]["output"] == long
    assert (await api.get(f"/v2/runs/{run['id']}/outputs"))["data"][0]["value"] == {"said": long}
    recorded = await batch(api, read, attempt("k" * 300, 0, run, judge_feedback=long))
    assert recorded.status_code == 200
