"""Issue 3, "OpenAPI": what is served says what it is; health, readiness, metrics, no token needed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import Caller
from tests.conformance.deployments import Target
from tests.conformance.openapi import Described


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"])
def test_issue_3_the_operators_pages_need_no_token(anybody: Caller, ours: Target, path: str) -> None:
    assert anybody.send("GET", path).status_code == 200


def test_issue_3_health_and_readiness_say_so(anybody: Caller, ours: Target) -> None:
    assert anybody.get("/healthz")["status"] == "ok"
    assert anybody.get("/readyz") == {"status": "ready"}


def test_issue_3_metrics_count_the_answers(anybody: Caller, ours: Target) -> None:
    text = anybody.send("GET", "/metrics").text
    assert 'evalfleet_server_answers_total{status="200"}' in text
    assert ours.token not in text


def test_issue_3_every_answer_has_a_request_id(api: Caller, ours: Target, finished: dict[str, Any]) -> None:
    made = {api.send("GET", path).headers["x-request-id"] for path in ("/v2/runs", "/v2/nothing", "/healthz")}
    assert len(made) == 3
    assert api.send("GET", "/v2/runs", headers={"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"


def test_issue_3_every_operation_of_the_schema_is_served_and_says_its_statuses(
    api: Caller, described: Described | None
) -> None:
    assert described is not None
    methods = {"get", "post", "put", "patch", "delete"}
    for path, operations in described.document["paths"].items():
        where = path
        for name in ("run_id", "harness_id", "evaluation_id", "interaction_id", "commit"):
            where = where.replace(f"{{{name}}}", "x")
        for method, operation in operations.items():
            assert api.send(method.upper(), where).status_code != 405, (method, path)  # and its answer is described
            assert operation["responses"]
        allowed = {method.upper() for method in operations}
        wrong = next(method for method in sorted(methods) if method.upper() not in allowed)
        answer = api.send(wrong.upper(), where)
        assert answer.status_code == 405
        assert set(answer.headers["allow"].split(", ")) == allowed


def test_issue_3_every_reference_in_the_schema_leads_somewhere(described: Described | None) -> None:
    assert described is not None
    schemas = described.document["components"]["schemas"]

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                assert value["$ref"].rpartition("/")[2] in schemas
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    walk(described.document)
