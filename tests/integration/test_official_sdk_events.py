"""The official client's event stream through a proxy that cuts it: nothing is doubled, and nothing is lost.

At bytes inside an event and between two, once and again and again, on a run that has ended and on one that goes on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.conftest import Caller, calling
from tests.conformance.deployments import Target
from tests.integration.proxy import Cut, Ending, Proxy, proxied
from tests.integration.sdk import Sdk, official

pytestmark = pytest.mark.integration

ENDINGS: list[Ending] = ["clean", "torn", "reset"]


@pytest.fixture(scope="module")
def plain(served: Target) -> Iterator[Caller]:
    """The same account by plain requests."""
    with calling(served, served.token) as caller:
        yield caller


@pytest.fixture(scope="module")
def proxy(served: Target) -> Iterator[Proxy]:
    with proxied(served.urls[0]) as proxy:
        yield proxy


@pytest.fixture(scope="module", params=["sync", "async"])
def behind(request: pytest.FixtureRequest, strangers: str, served: Target, proxy: Proxy) -> Iterator[Sdk]:
    """The client, which knows the proxy only."""
    with official(strangers, proxy.url, served.token, request.param) as client:
        yield client


@pytest.fixture(scope="module")
def ended(plain: Caller) -> dict[str, Any]:
    run = plain.play("many 8")
    assert run["status"] == "succeeded"
    return run


def journal_of(plain: Caller, run: dict[str, Any]) -> list[dict[str, Any]]:
    events = plain.get(f"/v2/runs/{run['id']}/events", limit=500)["data"]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    return list(events)


def body_of(plain: Caller, run: dict[str, Any]) -> bytes:
    """The bytes of the whole stream."""
    with plain.streaming(run["id"]) as answer:
        return answer.read()


def places(body: bytes) -> dict[str, int]:
    """Where to cut a stream that starts at its beginning."""
    third = body.index(b"id: ", body.index(b"id: ", body.index(b"id: ") + 1) + 1)
    last = body.rindex(b"id: ")
    return {
        "before the first byte": 0,
        "inside the first event's data": body.index(b"data: ") + 20,
        "inside an id": third + 9,
        "after an id's line": body.index(b"\n", third) + 1,
        "after a type's line": body.index(b"data: ", third),
        "before the end of the data's line": body.index(b"\n\n", third),
        "before the blank line": body.index(b"\n\n", third) + 1,
        "between two events": body.index(b"\n\n", third) + 2,
        "before the last event": last,
        "inside the last event": body.index(b"data: ", last) + 30,
        "before the last blank line": len(body) - 1,
    }


PLACES = [
    "before the first byte", "inside the first event's data", "inside an id", "after an id's line",
    "after a type's line", "before the end of the data's line", "before the blank line", "between two events",
    "before the last event", "inside the last event", "before the last blank line",
]  # fmt: skip


@pytest.mark.parametrize("ending", ["clean", "torn"])
@pytest.mark.parametrize("place", PLACES)
def test_a_stream_that_is_cut_once_is_resumed(
    behind: Sdk, plain: Caller, proxy: Proxy, ended: dict[str, Any], place: str, ending: Ending
) -> None:
    journal, body = journal_of(plain, ended), body_of(plain, ended)
    after = places(body)[place]
    proxy.seen, proxy.cuts = [], iter([Cut(after, ending)])
    assert behind.call("runs.stream_events", ended["id"]) == journal
    whole = [event["cursor"] for event in journal if body.index(event["cursor"].encode()) < after]
    had = [cursor for cursor in whole if body.index(b"\n\n", body.index(cursor.encode())) + 2 <= after]
    resumed = [seen.last_event_id for seen in proxy.streams()[1:]]
    # A stream that the server closes, of a run that has ended: what is left is read as pages.
    assert resumed == ([] if ending == "clean" else [had[-1] if had else None])


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_stream_that_is_cut_again_and_again_makes_its_way(
    behind: Sdk, plain: Caller, proxy: Proxy, ended: dict[str, Any], ending: Ending
) -> None:
    journal, body = journal_of(plain, ended), body_of(plain, ended)
    longest = max(len(frame) + 2 for frame in body.split(b"\n\n"))
    # Each stream brings one whole event at least, and ends inside another one.
    proxy.seen, proxy.cuts = [], (Cut(longest + 7 * number, ending) for number in itertools.count())
    assert behind.call("runs.stream_events", ended["id"]) == journal
    cursors = [event["cursor"] for event in journal]
    resumed = [cursors.index(seen.last_event_id) for seen in proxy.streams()[1:] if seen.last_event_id is not None]
    assert resumed == sorted(resumed)
    assert ending != "torn" or len(resumed) > 5


def test_a_stream_that_brings_nothing_a_few_times_is_still_resumed(
    behind: Sdk, plain: Caller, proxy: Proxy, ended: dict[str, Any]
) -> None:
    proxy.seen, proxy.cuts = [], iter([Cut(300, "torn"), Cut(0, "torn"), Cut(3, "reset"), Cut(0, "torn")])
    assert behind.call("runs.stream_events", ended["id"]) == journal_of(plain, ended)
    assert len(proxy.streams()) == 5


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_stream_of_a_run_that_goes_on_is_resumed_and_ends_with_it(
    behind: Sdk, plain: Caller, proxy: Proxy, ending: Ending
) -> None:
    """The run says something, the stream is cut, and the rest happens while nobody listens, or after."""
    run = plain.create("wait")
    plain.status_of(run["id"], "running")
    longest = 600
    proxy.seen, proxy.cuts = [], iter([Cut(longest, ending), Cut(40, ending), Cut(longest, ending)])
    behind.start("runs.stream_events", run["id"])
    proxy.opened(2)
    plain.post(f"/v2/runs/{run['id']}/cancel")
    events = behind.answer()
    assert events == journal_of(plain, run)
    assert [event["data"] for event in events[-2:]] == [{"to": "cancelling"}, {"to": "cancelled"}]
