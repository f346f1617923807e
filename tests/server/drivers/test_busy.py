"""What drivers say of an endpoint that is limited or away: for how long, and whether the turn can be asked again
(N15)."""

from __future__ import annotations

import email.utils
import json
import time
from pathlib import Path

import pytest

from evalfleet.server.drivers.command import CommandDriver
from evalfleet.server.drivers.http import HttpDriver
from evalfleet.server.drivers.openai import OpenAIDriver
from evalfleet.server.driving import Busy, Driver, Ended
from evalfleet.treeconfig import CommandHarness, HttpHarness, OpenAIHarness
from tests.server.drivers.recording import Recording, a_turn
from tests.server.drivers.service import CUT, Service, ndjson, sse

IN_50_MINUTES = email.utils.formatdate(time.time() + 3000, usegmt=True)
DATE = email.utils.formatdate(time.time() + 3600, usegmt=True)
LIMITED_LINE = {"type": "error", "message": "no tokens left", "code": "rate_limited", "retry_after": 7}


async def turn_of(driver: Driver) -> Ended:
    try:
        return await driver.run(a_turn(), Recording())
    finally:
        await driver.aclose()


@pytest.mark.parametrize("kind", ["http", "openai"])
@pytest.mark.parametrize(
    ("status", "headers", "seconds", "limited", "again"),
    [
        (429, {"Retry-After": "12"}, 12.0, True, True),
        (429, {"Retry-After": DATE}, 3600.0, True, True),
        (
            429,
            {"Retry-After": DATE, "Date": IN_50_MINUTES},
            600.0,
            True,
            True,
        ),
        (429, {}, None, True, True),
        (503, {"Retry-After": "12"}, 12.0, True, True),
        (503, {}, None, False, True),
        (502, {}, None, False, False),  # a gateway's: the service behind it may have begun
        (500, {"Retry-After": "1"}, 1.0, False, False),
    ],
)
async def test_n15_a_refusal_says_for_how_long_and_whether_anything_was_done(
    kind: str, status: int, headers: dict[str, str], seconds: float | None, *, limited: bool, again: bool
) -> None:
    async with Service(status=status, headers=headers, pieces=[b'{"error": {"message": "slow down"}}']) as service:
        driver: Driver = HttpDriver(HttpHarness(f"{service.url}/turn?key=q1w2"), environ={})
        if kind == "openai":
            driver = OpenAIDriver(OpenAIHarness(service.url, "m"), environ={})
        busy = (await turn_of(driver)).busy
    assert busy is not None
    assert (busy.limited, busy.again) == (limited, again)
    assert busy.seconds == (None if seconds is None else pytest.approx(seconds, abs=5))
    assert f"the agent's endpoint {service.url}" in busy.why
    assert "q1w2" not in busy.why
    if seconds == 12:
        assert "asks to wait 12 s" in busy.why


@pytest.mark.parametrize("status", [400, 401, 402, 404])
async def test_what_an_endpoint_refuses_for_good_is_no_limit(status: int) -> None:
    async with Service(status=status, headers={"Retry-After": "12"}, pieces=[b"no"]) as service:
        ended = await turn_of(HttpDriver(HttpHarness(service.url), environ={}))
    assert ended.failure is not None
    assert ended.busy is None


async def test_n15_a_service_that_cannot_be_connected_to_has_done_nothing(free_port: int) -> None:
    ended = await turn_of(HttpDriver(HttpHarness(f"http://127.0.0.1:{free_port}"), environ={}))
    assert ended.busy is not None
    assert (ended.busy.again, ended.busy.limited, ended.busy.seconds) == (True, False, None)
    assert "cannot be reached" in ended.busy.why


async def test_n15_a_service_that_breaks_off_may_have_done_something() -> None:
    async with Service(pieces=[CUT]) as service:
        ended = await turn_of(HttpDriver(HttpHarness(service.url), environ={}))
        assert ended.busy is not None
        assert not ended.busy.again
    async with Service(content_type="text/event-stream", pieces=[sse({"error": {"message": "full"}})]) as service:
        ended = await turn_of(OpenAIDriver(OpenAIHarness(service.url, "m"), environ={}))
        assert ended.busy is not None
        assert not ended.busy.again


async def test_n15_a_command_says_the_same_with_an_error_line(tmp_path: Path) -> None:
    agent = tmp_path / "agent.sh"
    agent.write_text(f"#!/bin/sh\necho '{json.dumps(LIMITED_LINE)}'\n")
    agent.chmod(0o755)
    driver = CommandDriver(CommandHarness((str(agent),)), root=tmp_path, state=tmp_path / "state", environ={})
    ended = await turn_of(driver)
    assert ended.failure is not None
    assert ended.failure.code == "rate_limited"
    assert ended.busy == Busy("the agent asks to wait 7 s: no tokens left", 7, limited=True)


async def test_n15_a_service_that_answers_in_lines_says_the_same(tmp_path: Path) -> None:
    async with Service(content_type="application/x-ndjson", pieces=[ndjson(LIMITED_LINE)]) as service:
        ended = await turn_of(HttpDriver(HttpHarness(service.url), environ={}))
    assert ended.busy is not None
    assert (ended.busy.seconds, ended.busy.limited) == (7, True)


@pytest.mark.parametrize("seconds", ['"soon"', "-1", "true"])
async def test_a_time_to_wait_that_is_no_number_of_seconds_is_named(seconds: str) -> None:
    line = json.dumps(LIMITED_LINE).replace("7", seconds).encode()
    async with Service(content_type="application/x-ndjson", pieces=[line + b"\n"]) as service:
        ended = await turn_of(HttpDriver(HttpHarness(service.url), environ={}))
    assert ended.failure is not None
    assert ended.failure.code == "agent_protocol"
    assert "needs `retry_after` to be a number of seconds" in ended.failure.message
