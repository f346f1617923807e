"""Lists of runs, evaluations and harnesses: filters and cursors (E05)."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, update

from evalfleet.server.schema import runs
from tests.server.conftest import COMMIT, OTHER_COMMIT, Api, assert_problem


async def made_at_once(api: Api, count: int) -> list[str]:
    """`count` ended runs that share one created_at."""
    ids = [(await api.play(f"number {number}"))["id"] for number in range(count)]

    def same_time(connection: Connection) -> None:
        connection.execute(update(runs).values(created_at="2026-09-02T07:21:48.254011Z"))

    await api.stack.services.store.write(same_time)
    return sorted(ids, reverse=True)


async def all_pages(api: Api, path: str, **params: Any) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = await api.get(path, **params, **cursor)
        read += page["data"]
        assert page["page"]["has_more"] == (page["page"]["next_cursor"] is not None)
        if not page["page"]["has_more"]:
            return read
        cursor = {"cursor": page["page"]["next_cursor"]}


@pytest.mark.parametrize("limit", [1, 7, 20])
async def test_rows_with_one_time_are_neither_skipped_nor_repeated_e05(api: Api, limit: int) -> None:
    ids = await made_at_once(api, 50)
    assert [run["id"] for run in await all_pages(api, "/v2/runs", limit=limit)] == ids


async def test_new_rows_between_pages_change_nothing_behind_e05(api: Api) -> None:
    ids = await made_at_once(api, 6)
    page = await api.get("/v2/runs", limit=3)
    await api.play("newer")
    rest = await api.get("/v2/runs", limit=3, cursor=page["page"]["next_cursor"])
    assert [run["id"] for run in page["data"] + rest["data"]] == ids


async def test_a_cursor_is_bound_to_its_filters_and_its_endpoint_e05(api: Api) -> None:
    await made_at_once(api, 4)
    cursor = (await api.get("/v2/runs", limit=2, status="succeeded"))["page"]["next_cursor"]
    other = await api.http.get("/v2/runs", params={"status": "failed", "cursor": cursor})
    assert_problem(other, 400, "cursor_filter_mismatch")
    elsewhere = await api.http.get("/v2/evaluations", params={"harness_commit": COMMIT, "cursor": cursor})
    assert_problem(elsewhere, 400, "cursor_invalid", "cursor")
    same = await api.http.get("/v2/runs", params={"status": "succeeded,succeeded", "cursor": cursor})
    assert same.status_code == 200


async def test_every_damage_of_a_cursor_is_seen_e05(api: Api) -> None:
    await made_at_once(api, 3)
    cursor = (await api.get("/v2/runs", limit=2))["page"]["next_cursor"]
    for place in range(len(cursor)):
        damaged = cursor[:place] + ("A" if cursor[place] != "A" else "B") + cursor[place + 1 :]
        assert_problem(await api.http.get("/v2/runs", params={"cursor": damaged}), 400, "cursor_invalid", "cursor")


async def test_runs_are_filtered(api: Api) -> None:
    first = await api.play("one")
    second = await api.play("two")
    assert [run["id"] for run in (await api.get("/v2/runs"))["data"]] == [second["id"], first["id"]]
    after = await api.get("/v2/runs", created_after=first["created_at"])
    assert [run["id"] for run in after["data"]] == [second["id"]]
    before = await api.get("/v2/runs", created_before=second["created_at"].replace("Z", "+00:00"))
    assert [run["id"] for run in before["data"]] == [first["id"]]
    assert len((await api.get("/v2/runs", harness_id=api.harness_id, status="succeeded,failed"))["data"]) == 2
    assert (await api.get("/v2/runs", status="running"))["data"] == []
    assert (await api.get("/v2/runs", harness_id="h_00000000000000000000000000"))["data"] == []


@pytest.mark.parametrize(
    ("path", "params", "name"),
    [
        ("/v2/runs", {"status": "done"}, "status"),
        ("/v2/runs", {"limit": "101"}, "limit"),
        ("/v2/runs", {"limit": "0"}, "limit"),
        ("/v2/runs", {"harness_id": "run_x"}, "harness_id"),
        ("/v2/runs", {"created_after": "yesterday"}, "created_after"),
        ("/v2/runs", {"created_before": "2026-09-02"}, "created_before"),
        ("/v2/harnesses", {"limit": "101"}, "limit"),
        ("/v2/evaluations", {}, "harness_commit"),
        ("/v2/evaluations", {"harness_commit": COMMIT, "harness_id": "h_00000000000000000000000000"}, "harness_commit"),
        ("/v2/evaluations", {"harness_commit": "371758"}, "harness_commit"),
        ("/v2/evaluations", {"harness_commit": COMMIT, "status": "queued"}, "status"),
    ],
)
async def test_a_wrong_parameter_is_named(api: Api, path: str, params: dict[str, str], name: str) -> None:
    assert_problem(await api.http.get(path, params=params), 400, "invalid_parameter", name)


async def test_harnesses_are_listed_and_read(api: Api) -> None:
    listed = await api.get("/v2/harnesses")
    assert listed["data"] == [{"id": api.harness_id, "name": "concierge"}]
    harness = await api.get(f"/v2/harnesses/{api.harness_id}")
    assert harness == {"id": api.harness_id, "name": "concierge", "versions": [{"number": 1, "commit": COMMIT}]}
    version = await api.get(f"/v2/harnesses/{api.harness_id}/versions/{COMMIT}")
    assert list(version) == ["harness_id", "number", "commit", "message", "created_at", "files"]
    assert version["files"]["agent.py"] == "print('hi')\n"
    missing = await api.http.get(f"/v2/harnesses/{api.harness_id}/versions/{OTHER_COMMIT}")
    assert_problem(missing, 404, "not_found")
    for bad in ("h_x", "run_00000000000000000000000000", "x"):
        assert_problem(await api.http.get(f"/v2/harnesses/{bad}"), 404, "not_found")
