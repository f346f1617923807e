"""wire.md, "Runs": create, read, list, cancel; messages, outputs, usage, tree; chats and states."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.conformance.conftest import TERMINAL, Caller, assert_problem, fresh
from tests.conformance.deployments import Target

FIELDS = {
    "id", "harness_id", "harness_commit", "chat_id", "parent_chat_id", "status", "created_at", "updated_at",
    "started_at", "completed_at", "failure", "metadata",
}  # fmt: skip


def test_wire_runs_create_answers_201_with_the_run_and_its_location(api: Caller) -> None:
    answer = api.post("/v2/runs", api.run_body(metadata={"a": 1}, machine_id="m_1"), key=fresh())
    assert answer.status_code == 201
    run = answer.json()
    assert answer.headers["location"] == f"/v2/runs/{run['id']}"
    assert set(run) == FIELDS
    assert run["status"] == "queued"
    assert run["metadata"] == {"a": 1}
    assert run["harness_id"] == api.harness_id
    assert re.fullmatch("[0-9a-f]{40}", run["harness_commit"])
    assert run["harness_commit"] == api.get(f"/v2/harnesses/{api.harness_id}")["versions"][0]["commit"]
    assert (run["parent_chat_id"], run["started_at"], run["completed_at"], run["failure"]) == (None,) * 4
    assert set(api.ended(run["id"])) == FIELDS


def test_wire_runs_the_machine_may_be_left_out(api: Caller) -> None:
    assert api.create()["status"] == "queued"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": "hello"},
        {"type": "text", "text": ""},
        {"type": "json", "value": {"a": [1, None]}},
        {"type": "json", "value": None},
        {"type": "file", "url": "https://example.org/a.txt", "media_type": "text/plain", "name": "a.txt"},
    ],
)
def test_wire_runs_input_is_text_json_or_a_file(api: Caller, part: dict[str, Any]) -> None:
    body = {"harness_id": api.harness_id, "input": {"role": "user", "content": [part]}}
    answer = api.post("/v2/runs", body, key=fresh())
    assert answer.status_code == 201
    messages = api.get(f"/v2/runs/{answer.json()['id']}/messages")["data"]
    assert messages[0]["role"] == "user"
    assert messages[0]["content"] == [part]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"harness_id": None}, "/harness_id"),
        ({"harness_id": 5}, "/harness_id"),
        ({"input": None}, "/input"),
        ({"input": "text"}, "/input"),
        ({"input": {"role": "system", "content": [{"type": "text", "text": "x"}]}}, "/input/role"),
        ({"input": {"content": [{"type": "text", "text": "x"}]}}, "/input/role"),
        ({"input": {"role": "user", "content": []}}, "/input/content"),
        ({"input": {"role": "user", "content": "x"}}, "/input/content"),
        ({"input": {"role": "user", "content": ["x"]}}, "/input/content/0"),
        ({"input": {"role": "user", "content": [{"type": "audio"}]}}, "/input/content/0/type"),
        ({"input": {"role": "user", "content": [{"type": {}}]}}, "/input/content/0/type"),
        ({"input": {"role": "user", "content": [{"type": "text", "text": 1}]}}, "/input/content/0/text"),
        ({"input": {"role": "user", "content": [{"type": "json"}]}}, "/input/content/0/value"),
        ({"input": {"role": "user", "content": [{"type": "file"}]}}, "/input/content/0/url"),
        ({"chat_id": 5}, "/chat_id"),
        ({"machine_id": []}, "/machine_id"),
        ({"metadata": []}, "/metadata"),
        ({"metadata": {"splox.x": 1}}, "/metadata/splox.x"),
        ({"metadata": {"a/b~c": {}}}, "/metadata/a~1b~0c"),
        ({"metadata": {"a": [1]}}, "/metadata/a"),
        ({"metadata": {str(number): number for number in range(51)}}, "/metadata"),
    ],
)
def test_wire_runs_what_a_create_cannot_be_is_422_with_its_pointer(
    api: Caller, change: dict[str, Any], pointer: str
) -> None:
    answer = api.post("/v2/runs", {**api.run_body(), **change}, key=fresh())
    assert_problem(answer, 422, "validation_failed", pointer)


@pytest.mark.parametrize("value", ["text", "", 0, 1.5, -3, True, False, None, "x" * 5000])
def test_wire_runs_metadata_values_are_strings_numbers_bools_and_null(api: Caller, value: Any) -> None:
    run = api.create(metadata={"k": value, **{str(number): 1 for number in range(49)}})
    assert api.get(f"/v2/runs/{run['id']}")["metadata"]["k"] == value


@pytest.mark.parametrize("harness_id", ["h_01M1GFRNR5F4N8S2JZV85T30A4", "nonsense", "run_01M1GFRNR5F4N8S2JZV85T30A4"])
def test_wire_runs_a_harness_that_is_not_there_is_404(api: Caller, harness_id: str) -> None:
    answer = api.post("/v2/runs", {**api.run_body(), "harness_id": harness_id}, key=fresh())
    assert_problem(answer, 404, "not_found")


@pytest.mark.parametrize("chat_id", ["chat_01M1GFRNR5F4N8S2JZV85T30A4", "nonsense"])
def test_wire_runs_a_chat_that_is_not_there_is_404(api: Caller, chat_id: str) -> None:
    answer = api.post("/v2/runs", api.run_body(chat_id=chat_id), key=fresh())
    assert_problem(answer, 404, "not_found")


def test_wire_runs_a_chat_of_another_harness_is_404(api: Caller, ours: Target, finished: dict[str, Any]) -> None:
    body = {**api.run_body(chat_id=finished["chat_id"]), "harness_id": ours.other_harness_id}
    assert_problem(api.post("/v2/runs", body, key=fresh()), 404, "not_found", "/chat_id")


# -- states


def test_wire_runs_a_run_goes_from_queued_over_running_to_its_end(api: Caller, finished: dict[str, Any]) -> None:
    changes = [event["data"]["to"] for event in api.stream(finished["id"]) if event["type"] == "run.status_changed"]
    assert changes == ["running", "succeeded"]
    assert finished["failure"] is None


def test_wire_runs_a_failure_has_a_code_a_message_and_retryable(api: Caller, ours: Target) -> None:
    run = api.play("fail")
    assert run["status"] == "failed"
    assert run["failure"] == {"code": "agent_broke", "message": "broken on request", "retryable": False}
    assert api.get(f"/v2/runs/{run['id']}/outputs")["data"] == []


def test_wire_runs_runs_of_one_chat_are_played_one_after_the_other(api: Caller, ours: Target) -> None:
    first = api.create("wait")
    api.status_of(first["id"], "running")
    second = api.create("second", chat_id=first["chat_id"])
    third = api.create("third", chat_id=first["chat_id"])
    assert api.get(f"/v2/runs/{second['id']}")["status"] == "queued"
    api.post(f"/v2/runs/{first['id']}/cancel")
    runs = [api.ended(run["id"]) for run in (first, second, third)]
    assert [run["status"] for run in runs] == ["cancelled", "succeeded", "succeeded"]
    assert {run["chat_id"] for run in runs} == {first["chat_id"]}
    assert runs[0]["completed_at"] <= runs[1]["started_at"] <= runs[1]["completed_at"] <= runs[2]["started_at"]
    outputs = api.get(f"/v2/runs/{third['id']}/outputs")["data"]
    assert [output["value"] for output in outputs] == ["2: third"]


# -- cancel


def test_wire_runs_a_running_run_is_cancelled_through_cancelling(api: Caller, ours: Target) -> None:
    run = api.create("wait")
    api.status_of(run["id"], "running")
    answers = [api.post(f"/v2/runs/{run['id']}/cancel") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert answers[0].json()["status"] == "cancelling"
    ended = api.ended(run["id"])
    assert ended["status"] == "cancelled"
    assert ended["failure"] is None
    changes = [event["data"]["to"] for event in api.stream(run["id"]) if event["type"] == "run.status_changed"]
    assert changes == ["running", "cancelling", "cancelled"]
    assert api.post(f"/v2/runs/{run['id']}/cancel").json() == ended


def test_wire_runs_a_queued_run_is_cancelled_without_being_played(api: Caller, ours: Target) -> None:
    first = api.create("wait")
    second = api.create("second", chat_id=first["chat_id"])
    assert api.post(f"/v2/runs/{second['id']}/cancel").status_code == 200
    ended = api.ended(second["id"])
    assert (ended["status"], ended["started_at"]) == ("cancelled", None)
    api.post(f"/v2/runs/{first['id']}/cancel")
    api.ended(first["id"])


def test_wire_runs_cancelling_an_ended_run_answers_it_as_it_stands(api: Caller, finished: dict[str, Any]) -> None:
    answer = api.post(f"/v2/runs/{finished['id']}/cancel")
    assert answer.status_code == 200
    assert answer.json() == finished


def test_wire_runs_cancel_uses_no_key_and_takes_a_body_of_nothing(api: Caller, finished: dict[str, Any]) -> None:
    assert api.post(f"/v2/runs/{finished['id']}/cancel", {}, key=fresh()).json() == finished


# -- lists


def test_wire_runs_the_list_is_newest_first_and_filters_by_status_harness_and_time(api: Caller, ours: Target) -> None:
    good, bad = api.play("good"), api.play("fail")
    created = api.create()["id"]
    everything = api.get("/v2/runs", limit=100)["data"]
    assert [run["created_at"] for run in everything] == sorted((run["created_at"] for run in everything), reverse=True)
    assert everything[0]["id"] == created
    assert set(everything[0]) == FIELDS
    both = api.get("/v2/runs", status="failed,succeeded", limit=100)["data"]
    assert {run["status"] for run in both} == {"failed", "succeeded"}
    assert good["id"] in [run["id"] for run in both]
    failed = api.get("/v2/runs", status="failed", limit=100)["data"]
    assert bad["id"] in [run["id"] for run in failed]
    assert good["id"] not in [run["id"] for run in failed]
    assert api.get("/v2/runs", harness_id=ours.other_harness_id)["data"] == []
    between = api.get("/v2/runs", created_after=good["created_at"], created_before=bad["completed_at"])["data"]
    assert [run["id"] for run in between] == [bad["id"]]
    hours = timedelta(hours=2)
    local = (datetime.fromisoformat(bad["completed_at"]) + hours).strftime("%Y-%m-%dT%H:%M:%S.%f") + "+02:00"
    assert api.get("/v2/runs", created_after=good["created_at"], created_before=local)["data"] == between
    api.ended(created)


@pytest.mark.parametrize(
    ("name", "value"),
    [("status", "done"), ("status", "failed,done"), ("harness_id", "nonsense"), ("harness_id", "run_1"),
     ("created_after", "yesterday"), ("created_before", "2026-13-01T00:00:00Z"), ("created_after", "2026-01-01")],
)  # fmt: skip
def test_wire_runs_a_filter_that_is_not_understood_is_400(api: Caller, name: str, value: str) -> None:
    answer = api.send("GET", "/v2/runs", params={name: value})
    assert_problem(answer, 400, "invalid_parameter", name)


# -- what a run leaves


def test_wire_runs_messages_are_oldest_first_with_tool_calls_as_json_parts(api: Caller, ours: Target) -> None:
    run = api.play("hi")
    messages = api.get(f"/v2/runs/{run['id']}/messages")["data"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    for message in messages:
        assert set(message) == {"id", "run_id", "role", "content", "created_at"}
        assert message["run_id"] == run["id"]
    call = messages[1]["content"][0]
    assert (call["type"], call["value"]["type"]) == ("json", "tool_call")
    assert call["value"]["tool_call"] == {"id": "c1", "name": "echo", "args": {"text": "hi"}}
    result = messages[2]["content"][0]["value"]
    assert result["type"] == "tool_result"
    assert result["tool_result"]["tool_call_id"] == "c1"
    assert result["tool_result"]["output"] == "hi"
    assert messages[3]["content"] == [{"type": "text", "text": "0: hi"}]
    first = api.get(f"/v2/runs/{run['id']}/messages", limit=3)
    rest = api.get(f"/v2/runs/{run['id']}/messages", cursor=first["page"]["next_cursor"])
    assert first["data"] + rest["data"] == messages
    assert rest["page"]["has_more"] is False


def test_wire_runs_the_answer_is_the_result_named_final_message(api: Caller, ours: Target) -> None:
    run = api.play("hi")
    (output,) = api.get(f"/v2/runs/{run['id']}/outputs")["data"]
    assert set(output) == {"id", "run_id", "type", "name", "value", "created_at"}
    assert (output["run_id"], output["type"], output["name"]) == (run["id"], "result", "final_message")
    assert output["value"] == "0: hi"
    silent = api.play("silent")
    assert silent["status"] == "succeeded"
    assert api.get(f"/v2/runs/{silent['id']}/outputs")["data"] == []


def test_wire_runs_usage_covers_the_whole_chat_and_is_final_when_nothing_goes_on(api: Caller, ours: Target) -> None:
    first = api.play("one")
    usage = api.get(f"/v2/runs/{first['id']}/usage")
    assert set(usage) == {
        "run_id", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "total_tokens",
        "tool_calls", "duration_ms", "amount", "currency", "final", "updated_at",
    }  # fmt: skip
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (10, 5, 15)
    assert (usage["tool_calls"], usage["amount"], usage["currency"], usage["final"]) == (1, "0.001", "USD", True)
    going = api.create("wait", chat_id=first["chat_id"])
    assert api.get(f"/v2/runs/{first['id']}/usage")["final"] is False
    api.post(f"/v2/runs/{going['id']}/cancel")
    api.ended(going["id"])
    second = api.play("two", chat_id=first["chat_id"])
    of_first, of_second = (api.get(f"/v2/runs/{run['id']}/usage") for run in (first, second))
    assert of_first["total_tokens"] == 30
    assert of_first["amount"] == "0.002"
    assert {**of_first, "run_id": ""} == {**of_second, "run_id": ""}
    assert of_first["final"] is True


def test_wire_runs_the_tree_has_the_run_at_its_root(api: Caller, finished: dict[str, Any]) -> None:
    tree = api.get(f"/v2/runs/{finished['id']}/tree")
    assert set(tree) == {"root_run_id", "runs", "generated_at"}
    assert tree["root_run_id"] == finished["id"]
    assert tree["runs"][0] == {"run": finished, "depth": 0, "child_run_ids": tree["runs"][0]["child_run_ids"]}
    assert tree["generated_at"] >= finished["completed_at"]


def test_wire_runs_terminal_states_are_final(api: Caller, finished: dict[str, Any]) -> None:
    assert finished["status"] in TERMINAL
    assert api.get(f"/v2/runs/{finished['id']}") == finished
