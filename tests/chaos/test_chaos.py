"""An evaluation over a fleet whose parts are killed, stopped, restarted, flushed and cut off, by a seed (I1 to I8).

At the end, always: it is complete; every attempt is recorded once; each (conversation, turn, try) was played by one
agent, and there is a second try only where a server was lost under the first; the artifact is the evaluation; Redis is
at its base line; nothing hangs, and no process is left. So it is, too, after every part was replaced in the middle of
its work, as an upgrade does it.

    EVALFLEET_CHAOS_SEEDS=1,7 python -m pytest -m chaos -s tests/chaos
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy.engine import make_url

from tests.chaos import afterwards, suite
from tests.chaos.faults import PARTS, SERVERS, schedule
from tests.chaos.fleet import ChaosFleet
from tests.chaos.links import Links
from tests.chaos.processes import adopting, children
from tests.integration.fleet import until

SEEDS = [int(word) for word in os.environ.get("EVALFLEET_CHAOS_SEEDS", "1,2,3").split(",")]
CASES = int(os.environ.get("EVALFLEET_CHAOS_CASES", "30"))
"""Of five conversations each."""
AT_ONCE = 24
"""As many as the three run workers have places."""
REPLACED_CASES, REPLACED_AT_ONCE = 12, 6
SPAN_S = float(os.environ.get("EVALFLEET_CHAOS_SPAN", "20"))
"""The faults come within this time; those that take time take it beyond."""
ENDS_WITHIN_S = 240.0
"""For the slowest machine: a hanging fleet fails, a busy one does not."""

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(480)]


@pytest.fixture
def database(postgres_url: str) -> Iterator[str]:
    """A database of this run alone."""
    name = f"evalfleet_chaos_{uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
    try:
        yield make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_dies_every_attempt_is_recorded_once(seed: int, tmp_path: Path, database: str) -> None:
    def faults(fleet: ChaosFleet, wanted: int) -> None:
        fleet.play(schedule(seed, SPAN_S), seed, lambda: len(afterwards.recorded(fleet.database)) == wanted)

    evaluated(f"seed {seed}", tmp_path, database, CASES, AT_ONCE, faults)


def test_every_part_is_replaced_in_the_middle_of_its_work_one_after_the_other(tmp_path: Path, database: str) -> None:
    """SIGTERM, a clean end, another one in its place; and between two of them something is recorded: work goes on."""

    def replace_all(fleet: ChaosFleet, wanted: int) -> None:
        hold = fleet.tree / "hold"
        for name in PARTS:
            hold.touch()  # nobody's turn ends while the part is replaced
            fleet.replace(name)
            before = len(afterwards.recorded(fleet.database))
            assert before < wanted, f"there is no work left when {name} is replaced"
            hold.unlink()
            fleet.settle(lambda before=before: len(afterwards.recorded(fleet.database)) > before, 60)  # type: ignore[misc]

    table = evaluated("every part", tmp_path, database, REPLACED_CASES, REPLACED_AT_ONCE, replace_all)
    assert table["tries_again"] <= len(SERVERS) * REPLACED_AT_ONCE, "only what a server ran when it left"


def evaluated(
    what: str, folder: Path, database: str, cases: int, at_once: int, happens: Callable[[ChaosFleet, int], None]
) -> Mapping[str, int]:
    """A suite is evaluated while something `happens` to the fleet; all must be right in the end. Its numbers."""
    before = children()
    began = time.monotonic()
    with adopting():
        with Links() as links:
            fleet = ChaosFleet(folder, links, database, cases)
            try:
                wrong = what_is_wrong(fleet, cases, at_once, happens)
            except BaseException:
                print(f"{what}\n{fleet.story()}")
                raise
            finally:
                fleet.close()
        left = {pid: words for pid, words in children().items() if pid not in before}
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    took = time.monotonic() - began
    wrong += [f"process {pid} is left: {words}" for pid, words in left.items()]
    wrong += [f"a traceback in the log of {name}" for name in fleet.fleet.tracebacks()]
    assert not wrong, f"{what}\n" + "\n".join(wrong) + f"\n{fleet.story()}"
    print(f"\n{what}: {took:.0f} s; {dict(fleet.counts)}; {fleet.table}")
    return fleet.table


def what_is_wrong(fleet: ChaosFleet, cases: int, at_once: int, happens: Callable[[ChaosFleet, int], None]) -> list[str]:
    """In the end, a sentence each."""
    fleet.start()
    submission = fleet.fleet.submit(fleet.tree, "-j", str(at_once))
    watcher = fleet.fleet.start("watcher", "watch", submission, "--json")
    until(lambda: bool(suite.calls(fleet.tree)), fleet.story)
    wanted = suite.attempts(cases)
    happens(fleet, wanted)
    fleet.settle(lambda: watcher.process.poll() is not None, ENDS_WITHIN_S)
    with fleet.redis() as client:
        until(lambda: not client.exists("ef:subs"), fleet.story)
        made, attempts, calls = (
            afterwards.runs(fleet.database),
            afterwards.recorded(fleet.database),
            suite.calls(fleet.tree),
        )
        fleet.table = afterwards.summary_of(made, calls)
        wrong = [f"watch ended with {watcher.process.returncode}"] if watcher.process.returncode not in {0, 1} else []
        wrong += afterwards.unfinished_evaluations(fleet.database)
        wrong += afterwards.all_recorded_once(attempts, wanted)
        wrong += afterwards.called_once(calls, made)
        wrong += afterwards.repeats_are_explained(made, fleet.killed_agents, fleet.faults_of((*SERVERS, "database")))
        wrong += afterwards.verdicts_are_right(attempts, made, fleet.killed_agents)
        wrong += afterwards.artifact_is_the_evaluation(fleet.folder / "results", submission, attempts)
        wrong += afterwards.nothing_stays_in_redis(client, submission)
    return wrong
