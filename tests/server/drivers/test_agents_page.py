"""Every agent in docs/agents.md is run as it stands there, and every table that it shows can be read."""

from __future__ import annotations

import re
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from evalfleet.checks.case import load_cases
from evalfleet.server.drivers import command, make_driver
from evalfleet.server.drivers.http import HttpDriver
from evalfleet.server.drivers.protocol import KINDS
from evalfleet.server.driving import Ended
from evalfleet.treeconfig import CommandHarness, HarnessConfig, HttpHarness, parse_tree_config, read_tree_config
from tests.server.drivers.recording import Recording, a_turn

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
SHELL_TREE = ROOT / "examples" / "shell-agent"


def snippet(name: str) -> str:
    found = re.search(rf"<!-- agent: {name} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


async def test_the_python_agent_of_the_page_runs(tmp_path: Path) -> None:
    text = snippet("python")
    assert len(text.splitlines()) <= 15
    (tmp_path / "agent.py").write_text(text)
    driver = make_driver(HarnessConfig("h", CommandHarness((sys.executable, "agent.py"))), tmp_path, tmp_path / "state")
    sink = Recording()
    assert await driver.run(a_turn("Hello", turn=1, history=(("user", "a"), ("assistant", "b"))), sink) == Ended()
    await driver.aclose()
    assert [what[0] for what in sink.said] == ["tool_calls", "tool_result", "usage", "answer"]
    assert sink.answers == ["5 characters, after 1 turns."]


async def test_the_shell_agent_of_the_page_is_the_example_and_runs(tmp_path: Path) -> None:
    assert snippet("shell") == (SHELL_TREE / "agent.sh").read_text(encoding="utf-8")
    assert len(snippet("shell").splitlines()) <= 15
    loaded = load_cases(SHELL_TREE)
    assert not loaded.problems
    driver = make_driver(read_tree_config(SHELL_TREE).harness, SHELL_TREE, tmp_path)
    driver.check()
    sink = Recording()
    assert await driver.run(a_turn(loaded.cases[0].scenarios[0].user[0]), sink) == Ended()
    assert sink.answers == ["That is 5 words."]
    quotes = await driver.run(a_turn('say "hi"'), Recording())
    assert quotes.failure is not None
    assert quotes.failure.code == "not_understood"
    await driver.aclose()


@pytest.fixture
def page_service() -> Iterator[str]:
    """The HTTP agent of the page, on a port that is free."""
    text, served = snippet("http").rsplit("\n\n", 1)
    assert served.strip() == 'ThreadingHTTPServer(("127.0.0.1", 8123), Agent).serve_forever()'
    names: dict[str, type[BaseHTTPRequestHandler]] = {}
    exec(text, names)
    agent = type("Quiet", (names["Agent"],), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), agent) as service:
        thread = threading.Thread(target=service.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{service.server_port}/turn"
        service.shutdown()
        thread.join(10)


async def test_the_http_agent_of_the_page_runs(page_service: str) -> None:
    driver = HttpDriver(HttpHarness(page_service), environ={})
    sink = Recording()
    assert await driver.run(a_turn("Hello"), sink) == Ended()
    await driver.aclose()
    assert sink.answers == ["You said: Hello"]


def test_every_table_of_the_page_can_be_read() -> None:
    tables = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert [next(iter(tomllib.loads(table))) for table in tables] == ["harness", "harness", "harness", "judge"]
    for table in tables:
        parse_tree_config(table.encode(), root=ROOT)


def test_the_page_lists_every_type_and_every_number_as_the_code_has_it() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \|", PAGE.partition("## The answer")[2].partition("## What a failed")[0], re.MULTILINE
    )
    assert rows == ["type", *KINDS]
    assert "(8 KiB)" in PAGE
    assert command.STDERR_KEPT == 8 * 1024
    assert "and 5 s;" in PAGE
    assert command.GRACE == 5.0
