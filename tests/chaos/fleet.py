"""A whole fleet whose parts a test may kill, stop and cut off, and that starts again what died, as an operator's would.

Every part has links of its own (`<part>>broker`, `<part>>servers`, `<server>>database`), so that one can be cut off
while the others are not. What was done to whom, and what ended by itself, is in `log`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
import redis
from sqlalchemy.engine import make_url

from tests.chaos import suite
from tests.chaos.faults import PARTS, SCHEDULERS, SERVERS, WORKERS, Fault
from tests.chaos.links import Links
from tests.integration.fleet import Broker, Fleet, Part, free_port, until

AT_ONCE = 8
"""Conversations of one run worker."""
BY_ITSELF = {2, 3}
"""Exit codes of parts that may end by themselves: what they need was not there at their start; or a deaf worker."""
AT_WORK = {
    **dict.fromkeys(WORKERS, "takes "),
    **dict.fromkeys(SCHEDULERS, "scheduler .* on redis"),
    **dict.fromkeys(SERVERS, "listening on"),
}
"""What each part says when it is ready."""
START_WITHIN_S = 150.0
"""Nine parts at once, beside other tests."""
LEAVES_WITHIN_S = 30.0
LOG_SHOWN = 6000


class ChaosFleet:
    """Nine parts, one broker, one database. `start`, `play` (the faults), `settle`, and `close` whatever happened."""

    def __init__(self, folder: Path, links: Links, database: str, cases: int) -> None:
        self.folder = folder
        self.links = links
        self.log: list[str] = []
        self._began = time.monotonic()
        self.counts: Counter[str] = Counter()
        self.hurt: Counter[str] = Counter()
        self.table: Mapping[str, int] = {}
        self.killed_agents: set[str] = set()
        self._running: dict[str, Part] = {}
        self._leaving: dict[str, tuple[Part, float]] = {}
        self._repairs: list[_Repair] = []
        self.tree = suite.make(folder / "tree", cases)
        (folder / "broker").mkdir()
        self.broker = Broker(folder / "broker")
        self.ports = {name: free_port() for name in SERVERS}
        self.database = database
        url = make_url(database)
        for name in (*WORKERS, *SCHEDULERS, "person"):
            links.link(f"{name}>broker", self.broker.port)
            links.link(f"{name}>servers", *self.ports.values())
        for name in SERVERS:
            links.link(f"{name}>database", url.port or 5432, host=url.host or "127.0.0.1")
        self.fleet = Fleet(folder, self.broker.url)
        self.fleet.environment |= self._addresses("person")

    def _addresses(self, name: str) -> dict[str, str]:
        return {
            "EVALFLEET_BROKER_URL": f"redis://127.0.0.1:{self.links[f'{name}>broker'].port}/0",
            "EVALFLEET_BASE_URL": f"http://127.0.0.1:{self.links[f'{name}>servers'].port}",
        }

    def note(self, what: str) -> None:
        self.log.append(f"{time.monotonic() - self._began:6.1f} s  {what}")

    # -- the parts

    def launch(self, name: str) -> Part:
        """Start a part anew, and do not wait for it."""
        number = 1 + sum(part.name.startswith(f"{name}.") for part in self.fleet.parts)
        env: dict[str, str] = {}
        words: tuple[str, ...]
        if name in SERVERS:
            far = make_url(self.database).set(host="127.0.0.1", port=self.links[f"{name}>database"].port)
            database = far.render_as_string(hide_password=False)
            place = ("--port", str(self.ports[name]), "--state", str(self.folder / name))
            words = ("server", "--tree", str(self.tree), *place, "--database", database, "--log-level", "warning")
        elif name in SCHEDULERS:
            env = self._addresses(name)
            words = ("scheduler",)
        else:
            env = self._addresses(name) | {"EVALFLEET_STATE": str(self.folder)}
            queues = "run" if name.startswith("run") else "grade,aggregate"
            words = ("worker", "--queues", queues, "--concurrency", str(AT_ONCE))
        part = self.fleet.start(f"{name}.{number}", *words, env=env)
        self._running[name] = part
        return part

    def start(self) -> None:
        for name in PARTS:
            self.launch(name)
        for name in (*SERVERS, *WORKERS):
            self._running[name].await_line(AT_WORK[name], START_WITHIN_S)
        self._began = time.monotonic()

    def look(self) -> None:
        """Start again what ended, by itself or because it was told to; a part that does not go is a failure."""
        for name, (part, since) in list(self._leaving.items()):
            took = time.monotonic() - since
            if part.process.poll() is None:
                assert took < LEAVES_WITHIN_S, f"{name} was told to go {took:.0f} s ago and is there:\n{part.log}"
                continue
            self.note(f"{name} has left after {took:.1f} s with {part.process.returncode}, and is started again")
            assert part.process.returncode in {0, -signal.SIGTERM}, part.log  # the latter before it had begun
            del self._leaving[name]
            self.launch(name)
        for name, part in list(self._running.items()):
            code = part.process.poll()
            if code is not None:
                self.note(f"{name} has ended by itself with {code}, and is started again")
                assert code in BY_ITSELF, f"{name} ended with {code}:\n{part.log}"
                self.launch(name)

    # -- the faults

    def play(self, faults: Sequence[Fault], seed: int, done: Callable[[], bool]) -> None:
        """Each at its time, for as long as it lasts; returns when all are over and repaired."""
        chance = random.Random(seed)
        began = time.monotonic()
        todo = list(faults)
        while todo or self._repairs or self._leaving:
            now = time.monotonic() - began
            for repair in [repair for repair in self._repairs if repair.at <= now]:
                self._repairs.remove(repair)
                self.note(repair.what)
                repair.act()
            while todo and todo[0].at <= now:
                fault = todo.pop(0)
                if done():
                    self.note(f"too late, all is recorded: {fault}")
                else:
                    self._do(fault, chance, now)
            self.look()
            time.sleep(0.05)

    def replace(self, name: str) -> None:
        """It is told to go, goes, and another one is at work in its place."""
        self._do(Fault(0, "term", name), random.Random(0), 0)
        self.settle(lambda: not self._leaving, 2 * LEAVES_WITHIN_S)
        self._running[name].await_line(AT_WORK[name], START_WITHIN_S)

    def _do(self, fault: Fault, chance: random.Random, now: float) -> None:
        on = fault.on
        part = self._running.get(on)
        if part is None and on in PARTS:
            self.note(f"{on} is away already: no {fault.kind}")
            return
        self.note(str(fault))
        self.counts[fault.kind] += 1
        self.hurt[on.partition(">")[0]] += 1

        def later(what: str, act: Callable[[], object]) -> None:
            self._repairs.append(_Repair(now + fault.seconds, what, act))

        match fault.kind, on:
            case "kill", "agent":
                self._kill_an_agent(chance)
            case "kill", _:
                assert part is not None
                del self._running[on]
                part.kill()
                later(f"{on} is started again", lambda: self.launch(on))
            case "term", _:
                assert part is not None
                del self._running[on]
                part.send(signal.SIGTERM)
                part.send(signal.SIGCONT)  # it may be stopped
                self._leaving[on] = part, time.monotonic()
            case "stop", _:
                assert part is not None
                part.send(signal.SIGSTOP)
                later(f"{on} goes on", lambda: part.send(signal.SIGCONT))
            case "restart", _:
                self.broker.part.kill()
                later("the broker is started again", self.broker.start)
            case "flush", _:
                self._tell_the_broker("FLUSHALL")
            case "fill", _:
                self._tell_the_broker("CONFIG", "SET", "maxmemory", "1")
                later("the broker has room again", lambda: self._tell_the_broker("CONFIG", "SET", "maxmemory", "0"))
            case "drop", _:
                self._drop_connections()
            case "cut", _:
                self.links[on].cut()
            case "refuse", _:
                self.links[on].refuse()
                later(f"{on} is mended", self.links[on].mend)
            case "silence", _:
                self.links[on].silence()
                later(f"{on} is mended", self.links[on].mend)
            case unknown:
                raise AssertionError(unknown)

    def _tell_the_broker(self, *words: str) -> None:
        try:
            with self.redis() as client:
                client.execute_command(*words)
        except redis.ConnectionError:
            self.note(f"not told, the broker is away: {' '.join(words)}")

    def _drop_connections(self) -> None:
        """The database ends all connections, as its restart does."""
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    def _kill_an_agent(self, chance: random.Random) -> None:
        """Some agent that is at work."""
        at_work = [call for call in suite.calls(self.tree) if is_agent(call.pid)]
        if not at_work:
            self.note("no agent is at work")
            return
        call = chance.choice(at_work)
        with contextlib.suppress(ProcessLookupError):
            os.kill(call.pid, signal.SIGKILL)
            self.killed_agents.add(call.run)
            self.note(f"killed the agent of {call.place}, {call.run}")

    # -- and after them

    def faults_of(self, names: Collection[str]) -> int:
        """How many faults these parts had."""
        return sum(self.hurt[name] for name in names)

    def redis(self) -> redis.Redis:
        """Straight to the broker, past all links."""
        return redis.Redis.from_url(self.broker.url)

    def settle(self, done: Callable[[], bool], within: float) -> None:
        """Everything is whole again: wait for the end of what is evaluated, starting again what dies."""

        def looked() -> bool:
            self.look()
            return done()

        until(looked, self.story, within)

    def story(self) -> str:
        """What happened, and what each part said of it."""
        logs = [f"== {part.name}\n{part.log[-LOG_SHOWN:]}" for part in self.fleet.parts]
        return "\n".join([*self.log, *logs])

    def close(self) -> None:
        self.links.mend()
        for part in self.fleet.parts:
            if part.process.poll() is None:
                part.send(signal.SIGCONT)
        self.fleet.close()
        self.broker.part.kill()


@dataclass(frozen=True, slots=True)
class _Repair:
    at: float
    what: str
    act: Callable[[], object]


def is_agent(pid: int) -> bool:
    """Is this pid still an agent's? One that ended may have been given away again."""
    try:
        return b"agent.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
