"""wire.md, "Events": the journal in pages and as a stream; cursors, resuming, the close, the heartbeat (C13)."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from tests.conformance.conftest import TERMINAL, Caller, assert_problem
from tests.conformance.deployments import DEADLINE, Target

KNOWN = {
    "run.created": {"run_id", "chat_id", "harness_id"},
    "run.status_changed": {"to"},
    "message.created": {"message_id", "role"},
    "output.created": {"output_id", "type", "name"},
    "hook.called": {"hook", "source", "decision", "duration_ms"},
}


def journal(api: Caller, run_id: str) -> list[dict[str, Any]]:
    events = api.get(f"/v2/runs/{run_id}/events", limit=500)["data"]
    assert isinstance(events, list)
    return events


def test_wire_events_the_journal_is_numbered_from_1_without_gaps(api: Caller, finished: dict[str, Any]) -> None:
    events = journal(api, finished["id"])
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    for event in events:
        assert set(event) == {"id", "cursor", "run_id", "sequence", "type", "created_at", "data"}
        assert event["run_id"] == finished["id"]
        assert KNOWN.get(event["type"], set()) <= set(event["data"]), event
    assert events[0]["type"] == "run.created"
    assert events[0]["data"]["chat_id"] == finished["chat_id"]
    assert events[-1]["type"] == "run.status_changed"
    assert events[-1]["data"]["to"] in TERMINAL
    assert len({event["id"] for event in events}) == len({event["cursor"] for event in events}) == len(events)


def test_wire_events_what_an_agent_does_is_in_the_journal_in_its_order(api: Caller, ours: Target) -> None:
    run = api.play("hi")
    assert [event["type"] for event in journal(api, run["id"]) if event["type"] != "usage.updated"] == [
        "run.created", "message.created", "run.status_changed", "message.created", "message.created", "hook.called",
        "message.created", "output.created", "run.status_changed",
    ]  # fmt: skip
    (hook,) = [event["data"] for event in journal(api, run["id"]) if event["type"] == "hook.called"]
    assert (hook["hook"], hook["decision"], hook["source"]) == ("tools.before", "answered", "hooks/tools.py")
    assert hook["duration_ms"] == 1.5


def test_wire_events_the_stream_and_the_pages_are_the_same_events(api: Caller, finished: dict[str, Any]) -> None:
    assert api.stream(finished["id"]) == journal(api, finished["id"])


def test_wire_events_a_frame_is_the_cursor_the_type_and_the_event_on_one_line(
    api: Caller, finished: dict[str, Any]
) -> None:
    with api.streaming(finished["id"]) as answer:
        text = answer.read().decode("utf-8")
    frames = [frame for frame in text.split("\n\n") if frame and not frame.startswith(":")]
    events = journal(api, finished["id"])
    assert len(frames) == len(events)
    for frame, event in zip(frames, events, strict=True):
        lines = dict(line.split(": ", 1) for line in frame.split("\n"))
        assert set(lines) == {"id", "event", "data"}
        assert (lines["id"], lines["event"]) == (event["cursor"], event["type"])
        assert json.loads(lines["data"]) == event


def test_wire_events_a_stream_is_neither_cached_nor_buffered_nor_compressed_c13(
    api: Caller, finished: dict[str, Any]
) -> None:
    with api.streaming(finished["id"], {"Accept-Encoding": "gzip, br, zstd"}) as answer:
        answer.read()
    assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
    assert "no-cache" in answer.headers["cache-control"]
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in answer.headers


@pytest.mark.parametrize("how", ["header", "query"])
def test_wire_events_a_stream_goes_on_strictly_after_a_cursor(api: Caller, finished: dict[str, Any], how: str) -> None:
    events = journal(api, finished["id"])
    for number, event in enumerate(events):
        if how == "header":
            rest = api.stream(finished["id"], {"Last-Event-ID": event["cursor"]})
        else:
            rest = api.stream(finished["id"], cursor=event["cursor"])
        assert rest == events[number + 1 :]


def test_wire_events_the_header_counts_before_the_query(api: Caller, finished: dict[str, Any]) -> None:
    events = journal(api, finished["id"])
    rest = api.stream(finished["id"], {"Last-Event-ID": events[2]["cursor"]}, cursor=events[0]["cursor"])
    assert rest == events[3:]


@pytest.mark.parametrize("limit", [1, 2, 500])
def test_wire_events_pages_go_on_from_the_last_rows_cursor(api: Caller, finished: dict[str, Any], limit: int) -> None:
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    more = True
    while more:
        page = api.get(f"/v2/runs/{finished['id']}/events", limit=limit, **cursor)
        found += page["data"]
        more = page["page"]["has_more"]
        assert page["page"]["next_cursor"] == page["data"][-1]["cursor"]  # also when there is no more
        cursor = {"cursor": page["page"]["next_cursor"]}
    assert found == journal(api, finished["id"])
    end = api.get(f"/v2/runs/{finished['id']}/events", **cursor)
    assert (end["data"], end["page"]["has_more"]) == ([], False)


@pytest.mark.parametrize("limit", ["0", "501", "x", "-1"])
def test_wire_events_a_limit_is_1_to_500(api: Caller, finished: dict[str, Any], limit: str) -> None:
    answer = api.send("GET", f"/v2/runs/{finished['id']}/events", params={"limit": limit})
    assert_problem(answer, 400, "validation_failed", "limit")
    with api.streaming(finished["id"], limit=limit) as stream:  # which has no use for one
        stream.read()
    assert_problem(stream, 400, "validation_failed", "limit")


def test_wire_events_a_page_holds_100_unless_asked(api: Caller, ours: Target) -> None:
    run = api.play("many 60")
    page = api.get(f"/v2/runs/{run['id']}/events")
    assert len(page["data"]) == 100
    assert page["page"]["has_more"] is True
    assert len(journal(api, run["id"])) > 120


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (None, "application/json"),
        ("application/json", "application/json"),
        ("*/*", "application/json"),
        ("application/*;q=0.5", "application/json"),
        ("text/event-stream", "text/event-stream"),
        ("TEXT/Event-Stream", "text/event-stream"),
        ("text/event-stream, application/json;q=0.9", "text/event-stream"),
        ("text/event-stream;q=0.1, application/json", "application/json"),
        ("text/html, */*;q=0.1", "application/json"),
    ],
)
def test_wire_events_accept_chooses_stream_or_page(
    api: Caller, finished: dict[str, Any], accept: str | None, kind: str
) -> None:
    request = api.http.build_request("GET", f"/v2/runs/{finished['id']}/events")
    del request.headers["accept"]
    if accept is not None:
        request.headers["accept"] = accept
    answer = api.http.send(request)
    assert answer.status_code == 200
    assert answer.headers["content-type"].partition(";")[0] == kind


@pytest.mark.parametrize("accept", ["text/html", "image/*", "application/xml, text/html", "text/event-stream;q=0"])
def test_wire_events_anything_else_is_406(api: Caller, finished: dict[str, Any], accept: str) -> None:
    answer = api.send("GET", f"/v2/runs/{finished['id']}/events", headers={"Accept": accept})
    assert_problem(answer, 406, "not_acceptable")


@pytest.mark.parametrize("cursor", ["x", "é", "AAAAAAAAAAAA", "A" * 1000])
def test_wire_events_a_damaged_cursor_is_400(api: Caller, finished: dict[str, Any], cursor: str) -> None:
    path = f"/v2/runs/{finished['id']}/events"
    assert_problem(api.send("GET", path, params={"cursor": cursor}), 400, "cursor_invalid", "cursor")
    with api.streaming(finished["id"], cursor=cursor) as answer:
        answer.read()
    assert_problem(answer, 400, "cursor_invalid", "cursor")
    if cursor.isascii():
        with api.streaming(finished["id"], {"Last-Event-ID": cursor}) as answer:
            answer.read()
        assert_problem(answer, 400, "cursor_invalid", "Last-Event-ID")


def test_wire_events_a_cursor_of_another_run_is_400(api: Caller, finished: dict[str, Any]) -> None:
    cursor = journal(api, api.play()["id"])[0]["cursor"]
    answer = api.send("GET", f"/v2/runs/{finished['id']}/events", params={"cursor": cursor})
    assert_problem(answer, 400, "cursor_invalid")


def test_wire_events_a_cursor_that_the_journal_does_not_reach_is_410(
    api: Caller, ours: Target, finished: dict[str, Any]
) -> None:
    from evalfleet.server.cursors import event_cursor  # no client can make one: as if the database had been set back

    beyond = event_cursor(finished["id"], 9999)
    answer = api.send("GET", f"/v2/runs/{finished['id']}/events", params={"cursor": beyond})
    assert_problem(answer, 410, "event_cursor_expired")
    with api.streaming(finished["id"], {"Last-Event-ID": beyond}) as stream:
        stream.read()
    assert_problem(stream, 410, "event_cursor_expired")


def test_wire_events_a_stream_shows_events_as_they_happen_and_ends_with_the_run(api: Caller, ours: Target) -> None:
    run = api.create("wait")
    seen: list[str] = []
    with api.streaming(run["id"]) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                event = json.loads(line[6:])
                seen.append(event["type"])
                if event["data"].get("role") == "assistant":  # the agent is at work: end it
                    api.post(f"/v2/runs/{run['id']}/cancel")
    assert seen == [event["type"] for event in journal(api, run["id"])]
    assert api.get(f"/v2/runs/{run['id']}")["status"] == "cancelled"


def test_wire_events_nothing_is_lost_between_a_page_and_the_stream(api: Caller, ours: Target) -> None:
    run = api.create("many 150")
    seen: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    for _ in range(3):  # some pages while the run goes on, then the stream from there
        page = api.get(f"/v2/runs/{run['id']}/events", limit=20, **cursor)
        seen += page["data"]
        if page["page"]["next_cursor"]:
            cursor = {"cursor": page["page"]["next_cursor"]}
    seen += api.stream(run["id"], {"Last-Event-ID": cursor["cursor"]})
    assert seen == journal(api, run["id"])
    assert len(seen) > 300


def test_wire_events_many_readers_see_the_same_events_however_late_they_come(api: Caller, ours: Target) -> None:
    run = api.create("many 40")
    results: list[list[dict[str, Any]]] = []
    readers = [threading.Thread(target=lambda: results.append(api.stream(run["id"]))) for _ in range(8)]
    for reader in readers:
        reader.start()
        time.sleep(0.01)
    for reader in readers:
        reader.join(DEADLINE)
    assert len(results) == 8
    whole = journal(api, run["id"])
    assert all(result == whole for result in results)


def test_wire_events_a_stream_that_is_cut_is_resumed_without_doubles(api: Caller, ours: Target) -> None:
    run = api.create("many 40")
    seen: list[dict[str, Any]] = []
    while not (seen and seen[-1]["data"].get("to") in TERMINAL):
        resume = {"Last-Event-ID": seen[-1]["cursor"]} if seen else {}
        with api.streaming(run["id"], resume) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    seen.append(json.loads(line[6:]))
                    if len(seen) % 7 == 0:
                        break  # cut
    assert seen == journal(api, run["id"])
