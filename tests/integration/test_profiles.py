"""One fleet that serves two accounts at once, each on a platform of its own: two real servers of ours with different
tokens, and what came to each over the wire."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from tests.integration.fleet import ATTEMPTS, CALLS, Fleet, calls, make_tree, until
from tests.relay import Relay

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

KEYS = {"alpha": "key-of-alpha-only", "beta-eu": "key-of-beta-only"}
VARIABLES = {"alpha": "SPLOX_API_KEY_ALPHA", "beta-eu": "SPLOX_API_KEY_BETA_EU"}
GRADER = '''
import os


def few(t, case, run):
    """Holds nothing of ours."""
    held = [name for name, value in os.environ.items() if name.startswith("SPLOX_") or "key-of" in value]
    return {"pass": not held, "score": 1.0, "why": repr(held)}
'''


class Platform:
    """A server of ours behind a relay that keeps what it is asked, and a tree that is evaluated there."""

    def __init__(self, fleet: Fleet, profile: str) -> None:
        self.key = KEYS[profile]
        self.tree = make_tree(fleet.folder / profile, nap=0)
        (self.tree / "evals/graders/words.py").write_text(GRADER)
        settings = (
            f'[harness]\nname = "counter"\nfiles = ["agent.py"]\n[harness.command]\nenv = {{ NAP = "0" }}\n'
            f'argv = ["{sys.executable}", "-S", "agent.py"]\n'
        )
        (self.tree / "evalfleet.toml").write_text(settings)
        ready = fleet.folder / f"{profile}-url"
        words = ("--port", "0", "--state", str(fleet.folder / f"{profile}-state"), "--ready-file", str(ready))
        part = fleet.start(
            f"server-{profile}", "server", "--tree", str(self.tree), *words, env={"EVALFLEET_TOKEN": self.key}
        )
        until(lambda: ready.exists() and part.process.poll() is None, lambda: part.log)
        url = ready.read_text().strip()
        asking = urllib.request.Request(f"{url}/v2/harnesses", headers={"Authorization": f"Bearer {self.key}"})
        with urllib.request.urlopen(asking, timeout=30) as answer:
            harness = json.load(answer)["data"][0]["id"]
        self.road = Relay(urlsplit(url).port or 0)
        self.road.up()
        target = f'[target]\nbase_url = "{self.road.url}"\nharness_id = "{harness}"\nprofile = "{profile}"\n'
        (self.tree / "evalfleet.toml").write_text(settings + target)

    def keys_seen(self) -> set[str]:
        said = b"\n".join(bytes(asked) for asked in self.road.asked).decode("latin-1")
        return set(re.findall(r"(?im)^authorization: bearer (\S+?)\r?$", said))

    def requests(self, path: str) -> int:
        said = b"\n".join(bytes(asked) for asked in self.road.asked).decode("latin-1")
        return len(re.findall(rf"(?m)^[A-Z]+ {path}", said))


@pytest.fixture
def alpha_and_beta(private_fleet: Fleet) -> Iterator[tuple[Platform, Platform]]:
    fleet = private_fleet
    del fleet.environment["EVALFLEET_TOKEN"]
    made = Platform(fleet, "alpha"), Platform(fleet, "beta-eu")
    yield made
    for platform in made:
        platform.road.down()


def keys_of(*profiles: str) -> dict[str, str]:
    return {VARIABLES[profile]: KEYS[profile] for profile in profiles}


def test_one_fleet_serves_two_accounts_and_each_platform_sees_its_own_key_only(
    tmp_path: Path, private_fleet: Fleet, alpha_and_beta: tuple[Platform, Platform]
) -> None:
    fleet, (alpha, beta) = private_fleet, alpha_and_beta
    done = fleet.run("submit", "--tree", str(beta.tree), "--target", "--state", str(tmp_path / "submissions"))
    assert done.returncode == 2
    assert "SPLOX_API_KEY_BETA_EU is not set" in done.stderr
    assert beta.road.asked == [], "refused before anything was asked"

    partial = fleet.start("partial-scheduler", "scheduler", env=keys_of("alpha"))
    fleet.worker("partial", env=keys_of("alpha")).await_line("takes run-alpha,grade-alpha,aggregate-alpha, 8 at once")
    fleet.environment |= keys_of("alpha", "beta-eu")
    of_beta = fleet.submit(beta.tree, "--target")
    partial.await_line(f"{of_beta}: SPLOX_API_KEY_BETA_EU is not set")
    said = fleet.run("status", of_beta).stdout
    assert re.search(r"the last word was: scheduler \S+: SPLOX_API_KEY_BETA_EU is not set", said), said
    fleet.scheduler()  # which has both
    of_alpha = fleet.submit(alpha.tree, "--target")
    code, document = fleet.watch(of_alpha)
    assert (code, document["verdict"]) == (1, "fail"), fleet.logs()
    assert sum(s["passed"] + s["failed"] for s in document["scenarios"]) == ATTEMPTS

    until(lambda: 'evalfleet_queue_messages{queue="run-beta-eu"}' in fleet.metrics("scheduler"), fleet.logs)
    assert calls(beta.tree) == [], "no worker that lives has its key"
    assert beta.requests("/v2/runs") == 0
    assert fleet.claimed("partial") == 8, "the conversations of alpha"
    fleet.worker("late", env={VARIABLES["alpha"]: ""})
    code, document = fleet.watch(of_beta)
    assert (code, document["verdict"]) == (1, "fail"), fleet.logs()
    assert sum(s["passed"] + s["failed"] for s in document["scenarios"]) == ATTEMPTS
    answered = next(s for s in document["scenarios"] if s["scenario"] == "answers")
    assert answered["passed"] == 4, "graders hold nothing of ours"
    assert (len(calls(alpha.tree)), len(calls(beta.tree))) == (CALLS, CALLS), "nothing was tried in vain"

    assert (alpha.keys_seen(), beta.keys_seen()) == ({KEYS["alpha"]}, {KEYS["beta-eu"]})
    assert alpha.requests("/v2/evaluations") and beta.requests("/v2/evaluations")  # noqa: PT018
    kept = b"".join(file.read_bytes() for file in (tmp_path / "results").rglob("*") if file.is_file())
    with redis.Redis.from_url(fleet.environment["EVALFLEET_BROKER_URL"]) as client:
        kept += b"".join(client.dump(key) or b"" for key in client.scan_iter("*"))
    for key in KEYS.values():
        assert key not in fleet.logs()
        assert key.encode() not in kept
    assert "Traceback" not in fleet.logs()
