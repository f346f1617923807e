"""How services are called: what a message shows of an address, and when a proxy is used."""

from __future__ import annotations

import asyncio

import pytest

from evalfleet.server.drivers.http import HttpDriver
from evalfleet.server.drivers.upstream import address, make_client
from evalfleet.server.driving import Ended
from evalfleet.treeconfig import HttpHarness
from tests.server.drivers.recording import Recording, a_turn
from tests.server.drivers.service import Service


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8123/turn", "http://127.0.0.1:8123/turn"),
        ("https://user:pass@api.example.com/v1?key=1#x", "https://api.example.com/v1"),
    ],
)
def test_an_address_in_a_message_holds_no_secret(url: str, shown: str) -> None:
    assert address(url) == shown


async def test_a_proxy_of_the_environment_is_used_for_other_hosts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Service(content_type="text/plain", pieces=[b"from the proxy"]) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "other.invalid")
        for url, wanted in [("http://agent.invalid/turn", "from the proxy"), (proxy.url + "/turn", "from the proxy")]:
            sink = Recording()
            driver = HttpDriver(HttpHarness(url), environ={})
            assert await driver.run(a_turn(), sink) == Ended()
            await driver.aclose()
            assert sink.answers == [wanted]
    assert [asked.path for asked in proxy.asked] == ["http://agent.invalid/turn", "/turn"]


async def test_a_client_is_made_anywhere_and_used_on_one_loop() -> None:
    client = await asyncio.to_thread(make_client, "https://example.invalid")
    await client.aclose()
