"""What can somebody make a worker do with the keys that it holds, who writes plans into the broker? Against the real
server, a real Valkey, and a thief who only listens."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalfleet.contract.client import Client
from evalfleet.plan import Attempt, Plan
from evalfleet.seal import REFUSED, Seal
from tests.server.conftest import TOKEN
from tests.worker.test_crew import Stage, staged

PLAN_KEY = "the-fleets-own-secret"


class Thief:
    """An address that answers everything with 404 and remembers who asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        thief = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                thief.asked.append(str(self.headers.get("Authorization")))
                self.send_error(404)

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                """Nothing on stderr."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def thief() -> Iterator[Thief]:
    made = Thief()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(params=["unsigned", "signed"])
async def stage(request: pytest.FixtureRequest, tmp_path: Path, valkey: str) -> AsyncIterator[Stage]:
    """A worker with two keys; where they belong is only known once the server runs."""
    key = PLAN_KEY if request.param == "signed" else ""
    async with staged(tmp_path, valkey, plan_key=key) as made:
        settings = made.crew.settings
        keys = {"default": "key-of-default", "staging": TOKEN}
        made.crew.settings = replace(settings, keys=keys, addresses={"staging": made.api.url, "default": "http://d"})
        yield made


def put(stage: Stage, base_url: str, profile: str) -> Plan:
    """As somebody who knows the fleet's secret, where it has one."""
    target = replace(stage.plan.target, base_url=base_url, profile=profile)
    stage.plan = Seal(stage.crew.settings.plan_key).signed(replace(stage.plan, id=f"sub_{profile}", target=target))
    stage.ledger.add(stage.plan, {})
    return stage.plan


async def all_of_it(stage: Stage) -> None:
    attempt = Attempt(0, 0, 1)
    stage.ledger.put_play(stage.plan.id, attempt, b"{}")
    await stage.run()
    await stage.grade(attempt)
    await asyncio.to_thread(stage.crew.aggregate, stage.plan.id)


async def test_a_plan_is_played_with_the_key_of_its_profile(stage: Stage) -> None:
    put(stage, stage.api.url, "staging")
    await stage.run()
    async with Client(stage.api.url, TOKEN) as client:
        assert len([run async for run in client.list_runs()]) == 1


@pytest.mark.parametrize("profile", ["default", "staging"])
async def test_no_plan_can_have_a_key_sent_elsewhere(
    stage: Stage, thief: Thief, profile: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan = put(stage, thief.url, profile)
    await all_of_it(stage)
    assert thief.asked == []
    meta = stage.ledger.meta(plan.id)
    assert meta is not None
    assert (meta.state, meta.code) == ("stopped", REFUSED)
    assert f"and runs would go to {thief.url}: SPLOX_API_KEY" in meta.reason
    assert meta.reason in caplog.text
    assert TOKEN not in caplog.text + meta.reason
    assert stage.claims() == {}


async def test_where_nothing_says_where_a_key_belongs_only_a_signature_does(stage: Stage, thief: Thief) -> None:
    stage.crew.settings = replace(stage.crew.settings, addresses={})
    plan = put(stage, thief.url, "staging")
    await all_of_it(stage)
    meta = stage.ledger.meta(plan.id)
    assert meta is not None
    if stage.crew.settings.plan_key:
        assert thief.asked
        assert set(thief.asked) == {f"Bearer {TOKEN}"}, "whoever has the fleet's secret has decided it"
    else:
        assert thief.asked == []
        assert "SPLOX_BASE_URL_STAGING: is not set, and nobody vouches for" in meta.reason


async def test_a_message_for_a_key_that_this_worker_lacks_costs_the_submission_nothing(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    plan = put(stage, stage.api.url, "prod")
    await all_of_it(stage)
    meta = stage.ledger.meta(plan.id)
    assert meta is not None
    assert meta.state == "running"
    assert stage.gave_up() == {}
    assert stage.claims() == {}
    assert (
        f"this worker, {stage.crew.heart.name}, cannot work on {plan.id}: SPLOX_API_KEY_PROD is not set" in caplog.text
    )
