"""`make_driver`: each table of `evalfleet.toml` has its driver, and only who needs an HTTP client imports it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from evalfleet.errors import ConfigError
from evalfleet.server.drivers import make_driver
from evalfleet.server.drivers.command import CommandDriver
from evalfleet.server.drivers.http import HttpDriver
from evalfleet.server.drivers.openai import OpenAIDriver
from evalfleet.treeconfig import CommandHarness, HarnessConfig, HttpHarness, OpenAIHarness


@pytest.mark.parametrize(
    ("harness", "kind"),
    [
        (CommandHarness(("sh",)), CommandDriver),
        (HttpHarness("http://127.0.0.1:1"), HttpDriver),
        (OpenAIHarness("http://127.0.0.1:1", "m"), OpenAIDriver),
    ],
    ids=["command", "http", "openai"],
)
async def test_each_table_has_its_driver(
    tmp_path: Path, harness: CommandHarness | HttpHarness | OpenAIHarness, kind: type[object]
) -> None:
    driver = make_driver(HarnessConfig("h", harness), tmp_path, tmp_path)
    driver.check()
    assert type(driver) is kind
    await driver.aclose()


def test_a_harness_without_a_driver_is_refused(tmp_path: Path) -> None:
    for harness in (None, HarnessConfig("h")):
        with pytest.raises(ConfigError, match=r"\[harness\.command\], \[harness\.http\] or \[harness\.openai\]"):
            make_driver(harness, tmp_path, tmp_path)


def test_a_tree_with_a_command_does_not_wait_for_an_http_client() -> None:
    asks = (
        "import sys, evalfleet.server.drivers, evalfleet.server.judge; print({'httpx', 'aiohttp'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.strip() == "set()"
