"""The official client, as it is on the package index, against our server on both stores: every resource of it.

Both of its kinds, the one with threads and the one with coroutines. What it reads as an object is compared with what
the server says to a plain request, so nothing is lost on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.conformance.conftest import Caller, calling
from tests.conformance.deployments import COMMIT, Target
from tests.integration.sdk import Sdk, official

pytestmark = pytest.mark.integration


@pytest.fixture(scope="session")
def plain(served: Target) -> Iterator[Caller]:
    """The same account by plain requests."""
    with calling(served, served.token) as caller:
        yield caller


def create(sdk: Sdk, served: Target, text: Any = "hello", **more: Any) -> dict[str, Any]:
    run = sdk.call("runs.create", text, harness_id=served.harness_id, **more)
    assert isinstance(run, dict)
    return run


def play(sdk: Sdk, served: Target, text: Any = "hello", **more: Any) -> dict[str, Any]:
    """A run to its end: told by the stream, so that nobody polls."""
    run = create(sdk, served, text, **more)
    sdk.call("runs.stream_events", run["id"])
    ended = sdk.call("runs.wait", run["id"])
    assert isinstance(ended, dict)
    return ended


def pages(sdk: Sdk, name: str, *args: Any, **keywords: Any) -> list[dict[str, Any]]:
    """All rows of a list, page by page, as the client's documentation tells to read it."""
    rows: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = sdk.call(name, *args, **keywords, **cursor)
        rows += page["data"]
        if not page["page"]["has_more"]:
            return rows
        cursor = {"cursor": page["page"]["next_cursor"]}


# -- runs


def test_a_run_is_created_awaited_and_read_whole(sdk: Sdk, served: Target, plain: Caller) -> None:
    created = create(sdk, served, "hello", metadata={"a": 1, "b": None, "c": "é"})
    assert created["status"] == "queued"
    ended = sdk.call("run.wait", created["id"], poll_interval=0.05)
    assert ended == plain.get(f"/v2/runs/{created['id']}")  # nothing more, nothing less than the document
    assert ended["status"] == "succeeded"
    assert ended["metadata"] == {"a": 1, "b": None, "c": "é"}
    assert ended["harness_commit"] == served.commits[-1]
    assert sdk.call("run.refresh", created["id"]) == ended


def test_a_raw_uuid_is_as_good_as_an_id(sdk: Sdk, served: Target) -> None:
    harness = str(sdk.call("harnesses.get", served.harness_id)["id"])
    number = 0
    for letter in harness.partition("_")[2]:
        number = number * 32 + "0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(letter)
    run = sdk.call("runs.create", "hello", harness_id=str(UUID(int=number)))
    assert run["harness_id"] == harness


@pytest.mark.parametrize(
    "value",
    [
        [{"type": "text", "text": "a"}, {"type": "json", "value": {"b": [1, None]}}],
        [{"type": "file", "url": "https://example.org/a.txt", "media_type": "text/plain", "name": "a.txt"}],
        {"role": "user", "content": [{"type": "text", "text": "é\u2028\x00"}]},
    ],
    ids=["parts", "a file", "a message"],
)
def test_input_is_text_parts_or_a_message(sdk: Sdk, served: Target, value: Any) -> None:
    run = create(sdk, served, value)
    (message, *_) = sdk.call("runs.messages", run["id"])["data"]
    parts = value if isinstance(value, list) else value["content"]
    assert [{name: item for name, item in part.items() if item is not None} for part in message["content"]] == parts


def test_the_same_key_is_the_same_run_and_a_fresh_one_is_another(sdk: Sdk, served: Target) -> None:
    key = str(uuid4())
    first = create(sdk, served, "once", idempotency_key=key)
    assert create(sdk, served, "once", idempotency_key=key)["id"] == first["id"]
    assert create(sdk, served, "once")["id"] != first["id"]


def test_a_chat_goes_on_and_its_usage_and_tree_are_read(sdk: Sdk, served: Target, plain: Caller) -> None:
    first = play(sdk, served, "one")
    second = play(sdk, served, "two", chat_id=first["chat_id"])
    assert second["chat_id"] == first["chat_id"]
    (output,) = sdk.call("runs.outputs", second["id"])["data"]
    assert (output["type"], output["name"], output["value"]) == ("result", "final_message", "1: two")
    usage = sdk.call("runs.usage", second["id"])
    assert usage == plain.get(f"/v2/runs/{second['id']}/usage")
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (20, 10, 30)
    assert (usage["amount"], usage["currency"], usage["tool_calls"], usage["final"]) == ("0.002", "USD", 2, True)
    assert sdk.call("run.usage", first["id"])["total_tokens"] == 30  # of the chat, whichever run is asked
    tree = sdk.call("run.tree", second["id"])
    assert tree["root_run_id"] == second["id"]
    assert [(item["run"], item["depth"], item["child_run_ids"]) for item in tree["runs"]] == [(second, 0, [])]


def test_messages_and_outputs_come_in_pages_oldest_first(sdk: Sdk, served: Target, plain: Caller) -> None:
    run = play(sdk, served, "many 30")
    messages = pages(sdk, "runs.messages", run["id"], limit=7)
    whole = plain.get(f"/v2/runs/{run['id']}/messages", limit=100)["data"]
    assert [message["id"] for message in messages] == [message["id"] for message in whole]
    values = [part["value"] for message in messages for part in message["content"] if part["type"] == "json"]
    calls = [value["tool_call"] for value in values if value["type"] == "tool_call"]
    assert [(call["name"], call["args"]) for call in calls] == [("count", {"n": number}) for number in range(30)]
    results = [value["tool_result"] for value in values if value["type"] == "tool_result"]
    assert [result["output"] for result in results] == list(range(30))
    assert [call["id"] for call in calls] == [result["tool_call_id"] for result in results]
    assert pages(sdk, "runs.outputs", run["id"], limit=1) == sdk.call("run.outputs", run["id"])["data"]


def test_the_journal_comes_in_pages_and_as_a_stream(sdk: Sdk, served: Target, plain: Caller) -> None:
    run = play(sdk, served, "many 30")
    journal = plain.get(f"/v2/runs/{run['id']}/events", limit=500)["data"]
    assert pages(sdk, "runs.list_events", run["id"], limit=9) == journal
    assert sdk.call("run.events", run["id"]) == journal
    assert sdk.call("run.events", run["id"], stream=False, limit=500)["data"] == journal
    assert sdk.call("runs.stream_events", run["id"], cursor=journal[4]["cursor"]) == journal[5:]


def test_a_failed_run_has_its_failure(sdk: Sdk, served: Target) -> None:
    run = play(sdk, served, "fail")
    assert run["status"] == "failed"
    assert run["failure"] == {"code": "agent_broke", "message": "broken on request", "retryable": False}
    assert sdk.call("runs.outputs", run["id"])["data"] == []


def test_a_run_is_cancelled_and_asks_nobody(sdk: Sdk, served: Target) -> None:
    run = create(sdk, served, "wait")
    assert sdk.call("run.pending_interactions", run["id"]) == []
    assert sdk.call("interactions.list", status=["pending", "answered"], run_id=run["id"])["data"] == []
    assert sdk.call("runs.cancel", run["id"])["status"] in ("cancelling", "cancelled")
    ended = sdk.call("runs.wait", run["id"], poll_interval=0.05)
    assert (ended["status"], ended["failure"]) == ("cancelled", None)
    assert sdk.call("run.cancel", run["id"]) == ended


def test_runs_are_listed_newest_first_with_every_filter(sdk: Sdk, served: Target) -> None:
    before = sdk.call("runs.list", limit=1)["data"]
    runs = [play(sdk, served, text) for text in ("one", "fail", "three")]
    newest_first = [run["id"] for run in reversed(runs)]
    listed = pages(sdk, "runs.list", harness_id=served.harness_id, limit=2)
    assert [run["id"] for run in listed][:3] == newest_first
    assert listed[0] == runs[2]
    assert not before or before[0]["id"] in [run["id"] for run in listed]
    since = (datetime.fromisoformat(runs[0]["created_at"]) - timedelta(microseconds=1)).isoformat()
    assert [run["id"] for run in pages(sdk, "runs.list", created_after=since, limit=1)] == newest_first
    failed = pages(sdk, "runs.list", created_after=since, status="failed")
    assert [run["id"] for run in failed] == [runs[1]["id"]]
    both = pages(sdk, "runs.list", created_after=since, status=["failed", "succeeded"], limit=1)
    assert [run["id"] for run in both] == newest_first
    until = runs[1]["created_at"]
    between = pages(sdk, "runs.list", created_after=since, created_before=until)
    assert [run["id"] for run in between] == [runs[0]["id"]]
    assert pages(sdk, "runs.list", created_after=since, harness_id=served.other_harness_id) == []


# -- harnesses


def test_harnesses_and_their_versions_are_read(sdk: Sdk, served: Target, plain: Caller) -> None:
    entries = pages(sdk, "harnesses.list", limit=1)
    assert {entry["name"] for entry in entries} == {"concierge", "porter"}
    harness = sdk.call("harnesses.get", served.harness_id)
    assert [version["number"] for version in harness["versions"]] == [2, 1]
    assert [version["commit"] for version in harness["versions"]] == list(reversed(served.commits))
    for commit in served.commits:
        version = sdk.call("harness_versions.get", served.harness_id, commit)
        document = plain.get(f"/v2/harnesses/{served.harness_id}/versions/{commit}")
        assert version == {name: document[name] for name in version}
        assert "agent.py" in version["files"]


# -- evaluations


def evaluation_of(sdk: Sdk, served: Target, cases: list[dict[str, Any]], k: int = 1, **more: Any) -> dict[str, Any]:
    suite = {"suite_id": f"suite-{uuid4()}", "scorer_id": "checks", "scorer_version": "1", **more}
    evaluation = sdk.call("evaluations.create", served.harness_id, cases, k=k, **suite)
    assert isinstance(evaluation, dict)
    return evaluation


def attempt(case: str, index: int, run: dict[str, Any], verdict: str = "passed", **more: Any) -> dict[str, Any]:
    scorer = {"scorer_id": "checks", "scorer_version": "1"}
    return {"case_key": case, "attempt_index": index, "run_id": run["id"], "verdict": verdict, **scorer, **more}


def test_an_evaluation_from_its_creation_to_its_end(sdk: Sdk, served: Target) -> None:
    cases: list[dict[str, Any]] = [
        {"key": "a", "input": "hello", "expected": {"x": [1.5, None]}},
        {"key": "b", "input": "b", "name": "the b"},
    ]
    evaluation = evaluation_of(sdk, served, cases, 2, suite_name="Suite", harness_commit=served.commits[-1])
    assert (evaluation["status"], evaluation["k"], evaluation["suite_name"]) == ("running", 2, "Suite")
    assert (evaluation["harness_commit"], evaluation["harness_version_number"]) == (served.commits[-1], 2)
    assert (evaluation["metrics"], evaluation["progress"]) == (None, {"done": 0, "total": 2})
    assert [(case["key"], case["name"], case["status"]) for case in evaluation["cases"]] == [
        ("a", "a", "pending"),
        ("b", "the b", "pending"),
    ]
    runs = [play(sdk, served, "hello") for _ in range(4)]
    one = [attempt("a", 0, runs[0], judge_score="1.00", judge_feedback="good"), attempt("a", 1, runs[1], "failed")]
    batch = sdk.call("evaluations.submit_attempts", evaluation["id"], one)
    assert [result["status"] for result in batch["results"]] == ["recorded", "recorded"]
    assert batch["evaluation"]["progress"] == {"done": 1, "total": 2}
    assert [case["missing_attempts"] for case in batch["evaluation"]["cases"]] == [[], [0, 1]]
    two = [*one, attempt("b", 0, runs[2]), attempt("b", 1, runs[3])]
    batch = sdk.call("evaluations.submit_attempts", evaluation["id"], two)
    assert [result["status"] for result in batch["results"]] == ["duplicate", "duplicate", "recorded", "recorded"]
    done = sdk.call("evaluations.complete", evaluation["id"])
    assert (done["status"], [case["status"] for case in done["cases"]]) == ("completed", ["flaky", "passed"])
    assert done["metrics"] == {
        "pass_at_1": 0.75, "pass_hat_k": 0.5, "k": 2, "judge_score": 1,
        "tokens": 60, "amount": "0.004", "currency": "USD",
    }  # fmt: skip
    assert sdk.call("evaluations.complete", evaluation["id"]) == done
    assert sdk.call("evaluations.get", evaluation["id"]) == done


def test_an_evaluation_that_is_cancelled_keeps_what_it_has(sdk: Sdk, served: Target) -> None:
    evaluation = evaluation_of(sdk, served, [{"key": "a", "input": 1}, {"key": "b", "input": 2}])
    sdk.call("evaluations.submit_attempts", evaluation["id"], [attempt("a", 0, play(sdk, served))])
    cancelled = sdk.call("evaluations.cancel", evaluation["id"])
    assert (cancelled["status"], cancelled["progress"]) == ("cancelled", {"done": 1, "total": 2})
    assert (cancelled["metrics"]["pass_at_1"], cancelled["metrics"]["tokens"]) == (1, 15)
    assert sdk.call("evaluations.cancel", evaluation["id"]) == cancelled
    empty = sdk.call("evaluations.cancel", evaluation_of(sdk, served, [{"key": "a", "input": 1}])["id"])
    assert (empty["metrics"]["pass_at_1"], empty["metrics"]["amount"]) == (None, "0")


def test_a_baseline_is_compared_by_case_key(sdk: Sdk, served: Target) -> None:
    """S31. The baseline's runs are those of the harness as it stands: the client can make no others."""
    cases = [{"key": key, "input": key} for key in "abc"]
    suite, commit = f"suite-{uuid4()}", served.commits[-1]
    runs = [play(sdk, served) for _ in range(3)]
    for verdicts in (("passed", "failed", "passed"), ("failed", "passed", "passed")):
        evaluation = evaluation_of(sdk, served, cases, suite_id=suite, baseline_harness_commit=commit)
        attempts = [attempt(key, 0, run, verdict) for key, run, verdict in zip("abc", runs, verdicts, strict=True)]
        sdk.call("evaluations.submit_attempts", evaluation["id"], attempts)
        done = sdk.call("evaluations.complete", evaluation["id"])
    assert (done["baseline_commit"], done["baseline_version_number"]) == (commit, 2)
    assert done["baseline"] == {"version_commit": commit, "version_number": 2, "improved": 1, "regressed": 1}


def test_evaluations_are_listed_by_harness_or_commit_with_states_and_pages(sdk: Sdk, served: Target) -> None:
    run = play(sdk, served)
    made = [evaluation_of(sdk, served, [{"key": "a", "input": 1}], suite_name=f"n{number}") for number in range(5)]
    sdk.call("evaluations.submit_attempts", made[1]["id"], [attempt("a", 0, run)])
    sdk.call("evaluations.complete", made[1]["id"])
    sdk.call("evaluations.cancel", made[3]["id"])
    older = evaluation_of(sdk, served, [{"key": "a", "input": 1}], harness_commit=COMMIT)
    elsewhere = sdk.call(
        "evaluations.create", served.other_harness_id, [{"key": "a", "input": 1}],
        k=1, suite_id="elsewhere", scorer_id="s", scorer_version="1",
    )  # fmt: skip

    def listed(**filters: Any) -> list[str]:
        return [entry["id"] for entry in pages(sdk, "evaluations.list", limit=2, **filters)]

    ids = [evaluation["id"] for evaluation in reversed(made)]
    by_harness = listed(harness_id=served.harness_id)
    assert by_harness[:6] == [older["id"], *ids]
    assert len(set(by_harness)) == len(by_harness)
    assert elsewhere["id"] not in by_harness
    assert listed(harness_commit=served.commits[-1])[:5] == ids
    assert listed(harness_commit=COMMIT)[0] == older["id"]
    assert elsewhere["id"] in listed(harness_id=served.other_harness_id)
    assert listed(harness_id=served.harness_id, statuses=["completed"])[0] == made[1]["id"]
    assert listed(harness_id=served.harness_id, statuses=["cancelled", "completed"])[:2] == [ids[1], ids[3]]
    assert listed(harness_id=served.harness_id, statuses=["failed"]) == []
    (entry,) = [entry for entry in sdk.call("evaluations.list", harness_id=served.harness_id, limit=100)["data"]
                if entry["id"] == made[1]["id"]]  # fmt: skip
    assert entry == {
        "id": made[1]["id"], "name": "n1", "status": "completed", "harness_commit": served.commits[-1],
        "harness_version_number": 2, "progress": {"done": 1, "total": 1}, "created_at": made[1]["created_at"],
        "pass_at_1": 1,
    }  # fmt: skip


def test_another_account_sees_none_of_it(sdk: Sdk, served: Target, strangers: str) -> None:
    run = play(sdk, served)
    evaluation_of(sdk, served, [{"key": "a", "input": 1}])
    assert served.other_token is not None
    with official(strangers, served.urls[0], served.other_token) as other:
        assert run["id"] not in [entry["id"] for entry in pages(other, "runs.list")]
        assert pages(other, "evaluations.list", harness_id=served.harness_id) == []
        assert {entry["id"] for entry in pages(other, "harnesses.list")} == {
            served.harness_id,
            served.other_harness_id,
        }
