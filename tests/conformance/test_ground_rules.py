"""wire.md, "Ground rules": tokens, ids, times, pages and cursors, request ids; what is whose."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest

from tests.conformance.conftest import Caller, assert_problem, fresh
from tests.conformance.deployments import Target

ABSENT = "01M1GFRNR5F4N8S2JZV85T30A4"
BASE32 = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
READS = ["", "/tree", "/usage", "/messages", "/outputs", "/events"]


def raw(public_id: str) -> str:
    """The UUID inside a public id."""
    number = 0
    for letter in public_id.partition("_")[2]:
        number = number * 32 + BASE32.index(letter)
    return str(UUID(int=number))


# -- who may call


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer wrong", "Basic dG9rZW4=", "Bearer eft_wrong", "Token x", "Bearer é"],
)
@pytest.mark.parametrize("path", ["/v2/runs", "/v2/evaluations", "/v2/harnesses", "/v2/interactions", "/v2/nothing"])
def test_wire_ground_rules_a_missing_or_wrong_token_is_401_with_its_challenge(
    anybody: Caller, header: str | None, path: str
) -> None:
    headers = [] if header is None else [(b"Authorization", header.encode())]
    answer = anybody.send("GET", path, headers=headers)
    assert_problem(answer, 401, "unauthorized")
    assert answer.headers["www-authenticate"] == 'Bearer realm="splox"'


@pytest.mark.parametrize("which", [0, 1], ids=["revoked", "expired"])
def test_wire_ground_rules_a_token_that_has_ended_is_401(anybody: Caller, ours: Target, which: int) -> None:
    headers = {"Authorization": f"Bearer {ours.ended_tokens[which]}"}
    assert_problem(anybody.send("GET", "/v2/runs", headers=headers), 401, "unauthorized")


def test_wire_ground_rules_a_token_is_looked_at_before_the_body(anybody: Caller) -> None:
    assert_problem(anybody.send("POST", "/v2/runs", content=b"{"), 401, "unauthorized")


def test_wire_ground_rules_the_scheme_is_read_in_any_case(anybody: Caller, target: Target) -> None:
    answer = anybody.send("GET", "/v2/runs", headers={"Authorization": f"bearer {target.token}"})
    assert answer.status_code == 200


# -- what is whose


@pytest.mark.parametrize("read", READS)
def test_wire_ground_rules_a_foreign_an_absent_and_a_malformed_run_are_the_same_404(
    api: Caller, other: Caller, finished: dict[str, Any], read: str
) -> None:
    answers = [
        other.send("GET", f"/v2/runs/{finished['id']}{read}"),
        api.send("GET", f"/v2/runs/run_{ABSENT}{read}"),
        api.send("GET", f"/v2/runs/nonsense{read}"),
        api.send("GET", f"/v2/runs/{finished['chat_id']}{read}"),  # an id of another kind
        api.send("GET", f"/v2/runs/run_{'Z' * 26}{read}"),  # more than 128 bits
    ]
    for answer in answers:
        assert_problem(answer, 404, "not_found")
    assert len({answer.content for answer in answers}) == 1


def test_wire_ground_rules_a_stream_of_a_foreign_run_is_404(other: Caller, finished: dict[str, Any]) -> None:
    with other.streaming(finished["id"]) as answer:
        answer.read()
    assert_problem(answer, 404, "not_found")


@pytest.mark.parametrize("act", ["cancel"])
def test_wire_ground_rules_nobody_cancels_a_foreign_run(
    api: Caller, other: Caller, finished: dict[str, Any], act: str
) -> None:
    answers = [other.post(f"/v2/runs/{finished['id']}/{act}"), api.post(f"/v2/runs/run_{ABSENT}/{act}")]
    for answer in answers:
        assert_problem(answer, 404, "not_found")
    assert answers[0].content == answers[1].content


@pytest.mark.parametrize("act", ["", "/attempts:batch", "/complete", "/cancel"])
def test_wire_ground_rules_a_foreign_an_absent_and_a_malformed_evaluation_are_the_same_404(
    api: Caller, other: Caller, finished: dict[str, Any], act: str
) -> None:
    made = api.evaluation()
    body = {
        "attempts": [
            {"case_key": "a", "attempt_index": 0, "run_id": finished["id"], "verdict": "passed", "scorer_id": "s",
             "scorer_version": "1"}
        ]
    }  # fmt: skip
    answers = []
    for caller, evaluation_id in ((other, made["id"]), (api, f"eval_{ABSENT}"), (api, "nonsense")):
        path = f"/v2/evaluations/{evaluation_id}{act}"
        if not act:
            answers.append(caller.send("GET", path))
        else:
            answers.append(caller.post(path, body if "batch" in act else None))
    for answer in answers:
        assert_problem(answer, 404, "not_found")
    assert len({answer.content for answer in answers}) == 1
    assert api.get(f"/v2/evaluations/{made['id']}") == made


def test_wire_ground_rules_lists_hold_ones_own_only(api: Caller, other: Caller, finished: dict[str, Any]) -> None:
    mine = api.evaluation()
    theirs = other.create()
    assert theirs["id"] not in [run["id"] for run in api.get("/v2/runs", limit=100)["data"]]
    assert finished["id"] not in [run["id"] for run in other.get("/v2/runs", limit=100)["data"]]
    listed = other.get("/v2/evaluations", harness_id=other.harness_id, limit=100)["data"]
    assert mine["id"] not in [evaluation["id"] for evaluation in listed]


def test_wire_ground_rules_a_foreign_chat_cannot_be_continued(other: Caller, finished: dict[str, Any]) -> None:
    answer = other.post("/v2/runs", other.run_body(chat_id=finished["chat_id"]), key=fresh())
    assert_problem(answer, 404, "not_found", "/chat_id")


def test_wire_ground_rules_a_foreign_run_is_no_evidence(other: Caller, finished: dict[str, Any]) -> None:
    evaluation = other.evaluation(harness_commit=finished["harness_commit"])
    evidence = {"case_key": "a", "attempt_index": 0, "run_id": finished["id"], "verdict": "passed", "scorer_id": "s",
                "scorer_version": "1"}  # fmt: skip
    answer = other.record(evaluation, evidence)
    assert_problem(answer, 422, "validation_failed", "/attempts/0/run_id")
    absent = other.record(evaluation, {**evidence, "run_id": f"run_{ABSENT}"})
    assert absent.json()["errors"][0]["reason"] == answer.json()["errors"][0]["reason"]


# -- ids and times


def test_wire_ground_rules_an_id_is_a_prefix_and_26_crockford_characters_of_a_uuidv7(
    api: Caller, finished: dict[str, Any]
) -> None:
    evaluation = api.evaluation()
    ids = {
        "run": finished["id"],
        "chat": finished["chat_id"],
        "eval": evaluation["id"],
        "ecase": evaluation["cases"][0]["id"],
        "msg": api.get(f"/v2/runs/{finished['id']}/messages")["data"][0]["id"],
        "out": api.get(f"/v2/runs/{finished['id']}/outputs")["data"][0]["id"],
        "evt": api.get(f"/v2/runs/{finished['id']}/events")["data"][0]["id"],
    }
    for prefix, public in ids.items():
        assert re.fullmatch(f"{prefix}_[0-7][{BASE32}]{{25}}", public), public
        assert UUID(raw(public)).version == 7
    assert re.fullmatch(f"h_[0-7][{BASE32}]{{25}}", api.harness_id)


def test_wire_ground_rules_a_raw_uuid_is_taken_for_an_id(api: Caller, finished: dict[str, Any]) -> None:
    assert api.get(f"/v2/runs/{raw(finished['id'])}") == finished
    assert api.get(f"/v2/runs/{finished['id'].lower().replace('run_', 'run_')}") == finished
    evaluation = api.evaluation()
    assert api.get(f"/v2/evaluations/{raw(evaluation['id'])}") == evaluation
    assert api.get(f"/v2/harnesses/{raw(api.harness_id)}")["id"] == api.harness_id
    made = api.post("/v2/runs", {**api.run_body(), "harness_id": raw(api.harness_id)}, key=fresh())
    assert made.json()["harness_id"] == api.harness_id


def test_wire_ground_rules_times_are_rfc_3339_utc(api: Caller, finished: dict[str, Any]) -> None:
    for name in ("created_at", "updated_at", "started_at", "completed_at"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", finished[name]), name
    assert finished["created_at"] <= finished["started_at"] <= finished["completed_at"] <= finished["updated_at"]


# -- pages


def pages(api: Caller, path: str, limit: int, **filters: Any) -> list[list[dict[str, Any]]]:
    """All pages of a list."""
    found: list[list[dict[str, Any]]] = []
    cursor: dict[str, str] = {}
    while True:
        page = api.get(path, limit=limit, **filters, **cursor)
        assert set(page) == {"data", "page"}
        assert set(page["page"]) == {"has_more", "next_cursor"}
        found.append(page["data"])
        if not page["page"]["has_more"]:
            return found
        assert page["page"]["next_cursor"]
        cursor = {"cursor": page["page"]["next_cursor"]}


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_wire_ground_rules_pages_hold_every_row_once_newest_first_e05(api: Caller, limit: int) -> None:
    chat = api.play("first")["chat_id"]
    since = api.get("/v2/runs", limit=1)["data"][0]["created_at"]
    made = [api.create("more", chat_id=chat)["id"] for _ in range(5)]
    found = pages(api, "/v2/runs", limit, created_after=since)
    rows = [run["id"] for page in found for run in page]
    assert rows == made[::-1]
    assert all(len(page) == limit for page in found[:-1])
    for run_id in made:
        api.ended(run_id)


def test_wire_ground_rules_rows_that_come_between_two_pages_do_not_shift_them_e05(api: Caller) -> None:
    made = [api.evaluation()["id"] for _ in range(3)]
    commit = api.get(f"/v2/evaluations/{made[0]}")["harness_version"]["commit"]
    first = api.get("/v2/evaluations", harness_commit=commit, limit=2)
    assert [entry["id"] for entry in first["data"]] == made[:0:-1]
    api.evaluation()
    second = api.get("/v2/evaluations", harness_commit=commit, limit=1, cursor=first["page"]["next_cursor"])
    assert [entry["id"] for entry in second["data"]] == [made[0]]


LISTS = ["/v2/runs", "/v2/harnesses", "/v2/evaluations", "/v2/interactions", "messages", "outputs"]


def listed(path: str, run: dict[str, Any], harness_id: str) -> tuple[str, dict[str, str]]:
    if not path.startswith("/"):
        return f"/v2/runs/{run['id']}/{path}", {}
    return path, {"harness_id": harness_id} if path == "/v2/evaluations" else {}


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("limit", ["0", "101", "-1", "x", "1.5", "1e1", "٣", ""])
def test_wire_ground_rules_a_limit_is_1_to_100(api: Caller, finished: dict[str, Any], path: str, limit: str) -> None:
    where, filters = listed(path, finished, api.harness_id)
    answer = api.send("GET", where, params={**filters, "limit": limit})
    assert_problem(answer, 400, "invalid_parameter", "limit")
    for fine in ("1", "100"):
        assert api.send("GET", where, params={**filters, "limit": fine}).status_code == 200


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("cursor", ["x", "====", "é", "AAAA", "A" * 300, "\x00", "run_1"])
def test_wire_ground_rules_a_damaged_cursor_is_400_e05(
    api: Caller, finished: dict[str, Any], path: str, cursor: str
) -> None:
    where, filters = listed(path, finished, api.harness_id)
    answer = api.send("GET", where, params={**filters, "cursor": cursor})
    assert_problem(answer, 400, "cursor_invalid", "cursor")


def test_wire_ground_rules_a_cursor_is_bound_to_its_endpoint_and_filters_e05(
    api: Caller, finished: dict[str, Any]
) -> None:
    api.create()
    cursor = api.get("/v2/runs", limit=1)["page"]["next_cursor"]
    changed = api.send("GET", "/v2/runs", params={"cursor": cursor, "status": "failed"})
    assert_problem(changed, 400, "cursor_filter_mismatch")
    for path in ("/v2/interactions", "/v2/harnesses", f"/v2/runs/{finished['id']}/messages"):
        assert_problem(api.send("GET", path, params={"cursor": cursor}), 400, "cursor_invalid")
    evaluations = api.send("GET", "/v2/evaluations", params={"cursor": cursor, "harness_id": api.harness_id})
    assert_problem(evaluations, 400, "cursor_invalid")
    for place in range(len(cursor)):
        other = "A" if cursor[place] != "A" else "B"
        damaged = cursor[:place] + other + cursor[place + 1 :]
        assert_problem(api.send("GET", "/v2/runs", params={"cursor": damaged}), 400, "cursor_invalid")


def test_wire_ground_rules_a_cursor_is_of_no_use_to_another_account(api: Caller, other: Caller) -> None:
    api.create()
    cursor = api.get("/v2/runs", limit=1)["page"]["next_cursor"]
    answer = other.send("GET", "/v2/runs", params={"cursor": cursor})
    assert_problem(answer, 400, "cursor_filter_mismatch")


# -- request ids


def test_wire_ground_rules_the_request_id_is_the_trace_id_of_a_problem(api: Caller, anybody: Caller) -> None:
    for caller, status in ((api, 404), (anybody, 401)):
        answer = caller.send("GET", f"/v2/runs/run_{ABSENT}", headers={"X-Request-Id": "trace-1"})
        assert answer.status_code == status
        assert answer.json()["trace_id"] == "trace-1"
