"""wire.md, "Harnesses" and "Interactions": what is served, its versions, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.conformance.conftest import Caller, assert_problem, fresh
from tests.conformance.deployments import COMMIT, Target

ABSENT = "01M1GFRNR5F4N8S2JZV85T30A4"


def test_wire_harnesses_the_index_has_ids_and_names(api: Caller) -> None:
    entries = api.get("/v2/harnesses", limit=100)["data"]
    assert all(set(entry) == {"id", "name"} for entry in entries)
    assert api.harness_id in [entry["id"] for entry in entries]


def test_wire_harnesses_several_trees_stand_side_by_side_in_pages(api: Caller, ours: Target) -> None:
    entries = api.get("/v2/harnesses")["data"]
    assert {entry["name"] for entry in entries} == {"concierge", "porter"}
    first = api.get("/v2/harnesses", limit=1)
    second = api.get("/v2/harnesses", limit=1, cursor=first["page"]["next_cursor"])
    assert first["data"] + second["data"] == entries
    assert (first["page"]["has_more"], second["page"]["has_more"]) == (True, False)


def test_wire_harnesses_a_harness_has_its_versions_newest_first(api: Caller) -> None:
    harness = api.get(f"/v2/harnesses/{api.harness_id}")
    assert set(harness) == {"id", "name", "versions"}
    numbers = [version["number"] for version in harness["versions"]]
    assert numbers == sorted(numbers, reverse=True)
    for version in harness["versions"]:
        assert set(version) == {"number", "commit"}
        assert re.fullmatch("[0-9a-f]{40}", version["commit"])


def test_wire_harnesses_a_version_has_its_files(api: Caller) -> None:
    for version in api.get(f"/v2/harnesses/{api.harness_id}")["versions"]:
        document = api.get(f"/v2/harnesses/{api.harness_id}/versions/{version['commit']}")
        assert set(document) == {"harness_id", "number", "commit", "message", "created_at", "files"}
        assert {key: document[key] for key in ("number", "commit")} == version
        assert document["harness_id"] == api.harness_id
        assert all(isinstance(text, str) for text in document["files"].values())


def test_wire_harnesses_an_older_version_stays_readable(api: Caller, ours: Target) -> None:
    versions = api.get(f"/v2/harnesses/{api.harness_id}")["versions"]
    assert [version["number"] for version in versions] == [2, 1]
    assert versions[1]["commit"] == COMMIT
    assert set(api.get(f"/v2/harnesses/{api.harness_id}/versions/{COMMIT}")["files"]) == {"agent.py", "evalfleet.toml"}


@pytest.mark.parametrize("harness_id", [f"h_{ABSENT}", "nonsense", f"run_{ABSENT}"])
def test_wire_harnesses_an_absent_and_a_malformed_harness_are_the_same_404(api: Caller, harness_id: str) -> None:
    assert_problem(api.send("GET", f"/v2/harnesses/{harness_id}"), 404, "not_found")
    assert_problem(api.send("GET", f"/v2/harnesses/{harness_id}/versions/{COMMIT}"), 404, "not_found")


@pytest.mark.parametrize("commit", ["f" * 40, "F" * 40, "main", "371758e"])
def test_wire_harnesses_a_version_that_is_not_there_is_404(api: Caller, commit: str) -> None:
    assert_problem(api.send("GET", f"/v2/harnesses/{api.harness_id}/versions/{commit}"), 404, "not_found")


@pytest.mark.parametrize("act", ["POST", "PATCH", "DELETE"])
def test_issue_3_publishing_is_403_with_the_reason(api: Caller, ours: Target, act: str) -> None:
    path = "/v2/harnesses" if act == "POST" else f"/v2/harnesses/{api.harness_id}"
    body: dict[str, Any] = {} if act == "DELETE" else {"json": {"name": "mine", "files": {"agent.py": "x"}}}
    answer = api.send(act, path, headers={"Idempotency-Key": fresh()}, **body)
    detail = assert_problem(answer, 403, "forbidden")["detail"]
    assert "run code" in detail
    assert "--tree" in detail
    assert api.get(f"/v2/harnesses/{api.harness_id}")["name"] == "concierge"


# -- interactions


def test_wire_interactions_the_list_is_an_empty_page(api: Caller, ours: Target, finished: dict[str, Any]) -> None:
    empty = {"data": [], "page": {"has_more": False, "next_cursor": None}}
    assert api.get("/v2/interactions") == empty
    assert api.get("/v2/interactions", status="pending", run_id=finished["id"], limit=100) == empty
    assert_problem(api.send("GET", "/v2/interactions", params={"run_id": "x"}), 400, "invalid_parameter", "run_id")


@pytest.mark.parametrize("interaction_id", [f"int_{ABSENT}", "nonsense"])
def test_wire_interactions_one_that_is_not_there_is_404(api: Caller, interaction_id: str) -> None:
    assert_problem(api.send("GET", f"/v2/interactions/{interaction_id}"), 404, "not_found")
    body = {"type": "text", "text": "yes"}
    answer = api.post(f"/v2/interactions/{interaction_id}/responses", body, key=fresh())
    assert_problem(answer, 404, "not_found")
