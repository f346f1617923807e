"""S17: a target that goes away pauses its evaluation, which says so and goes on by itself; nothing is given up or paid
for twice."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.command import Command, await_true
from tests.e2e.conftest import Tree
from tests.relay import Relay

pytestmark = pytest.mark.e2e

TOKEN = "token-of-a-platform"
CASE = "defaults: {trials: 12}\nscenarios:\n  - {id: one, user: [sleep 0.3 hi, ho], expect: [{no_error: true}]}\n"


def harness_of(url: str) -> str:
    request = urllib.request.Request(f"{url}/v2/harnesses", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(json.load(answer)["data"][0]["id"])


def test_a_target_that_goes_down_pauses_the_evaluation_and_no_conversation_is_given_up(
    tree: Tree, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tree.case("a", CASE)
    elsewhere: Path = tmp_path_factory.mktemp("platform")
    ready = elsewhere / "url"
    arguments = ("--tree", str(tree.root), "--port", "0", "--state", str(elsewhere), "--ready-file", str(ready))
    counted = {"EVALFLEET_TOKEN": TOKEN, "COUNT_FILE": str(tree.count_file)}
    with Command("server", *arguments, home=tree.root, environment=counted) as server, Relay() as road:
        await_true(ready.exists, "the platform is up")
        url = ready.read_text().strip()
        road.to = urlsplit(url).port or 0
        tree.configure(f'[target]\nbase_url = "{road.url}"\nharness_id = "{harness_of(url)}"\n')
        with tree.start("eval", "--target", "-j", "3", environment={"SPLOX_API_KEY": TOKEN}) as evaluation:
            await_true(lambda: tree.started() >= 2, "runs are in flight")
            road.down()
            evaluation.await_line(f"{road.url} is down since")
            road.up()
            evaluation.wait(90).check(0, "12/12")
        assert tree.started() == 24, "every turn was played once"
        server.signal(15)
        server.wait(30)
