"""A worker's host is cut off from all others in the middle of its work: what becomes of that work, and what of the host
when it is back? (I2, I4, I6)"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from evalfleet.ledger import Ledger, Snapshot
from scheduler.valkey import program
from tests.chaos import afterwards, suite
from tests.chaos.hosts import Hosts, unavailable
from tests.integration.fleet import Fleet, Part, until

CUT_S = float(os.environ.get("EVALFLEET_CHAOS_CUT", "20"))
"""How long the host is away; `make chaos` makes it a minute."""
REDONE_WITHIN_S = 30.0
CONVERSATIONS = int(20 + CUT_S * 1.2)

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(360)]

AGENT = suite.AGENT.replace("0.2 + 2.8 * chance**3", "2 + chance").replace(
    '"said", turn["message"], "after", what[2]', '"said", turn["message"], "in", what[1]'
)

GRADER = '''
def judged(t, case, run):
    """The judge says yes to everything, and writes down what it was asked."""
    return {"pass": t.llm(case["id"] + " " + run["final_answer"]) == "yes"}
'''

JUDGE = """
import http.server, json, time

class Judge(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][-1]["content"]
        with open("judged.txt", "a") as file:
            file.write(asked + "\\n")
        time.sleep(0.5)
        choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        body = json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 9090), Judge)
print("the judge listens", flush=True)
server.serve_forever()
"""


def make_tree(root: Path) -> Path:
    """Conversations of two turns of two to three seconds, each judged by a model."""
    (root / "evals/cases").mkdir(parents=True)
    (root / "evals/graders").mkdir()
    (root / "agent.py").write_text(AGENT)
    (root / "evals/graders/words.py").write_text(GRADER)
    expect = "[final_answer_contains: said two, grader: {name: words.judged}]"
    (root / "evals/cases/c.yaml").write_text(
        f"scenarios:\n  - {{id: s, user: [one, two], trials: {CONVERSATIONS}, expect: {expect}}}\n"
    )
    (root / "evalfleet.toml").write_text(
        '[harness]\nname = "counter"\nfiles = ["agent.py", "evalfleet.toml"]\n[harness.command]\n'
        f'argv = ["{sys.executable}", "-S", "-E", "agent.py"]\n'
        '[judge]\nbase_url = "http://127.0.0.1:9090/v1"\nmodel = "judge"\n'
    )
    return root


class HostedFleet(Fleet):
    """Parts start on the host that `at` names; people and scheduler sit beside the broker."""

    def __init__(self, folder: Path, hosts: Hosts) -> None:
        self.hosts = hosts
        self.at: dict[str, str] = {}
        socket = folder / "valkey.sock"
        words = [str(program()), "--port", "6379", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", ""]
        command = hosts.command("broker", [*words, "--unixsocket", str(socket), "--dir", str(folder)])
        self.broker = Part("valkey", command, os.environ, folder)
        self.broker.await_line("Ready to accept connections")
        super().__init__(folder, f"unix://{socket}")
        self.environment |= {
            "EVALFLEET_BROKER_URL": f"redis://{hosts.address('broker')}:6379/0",
            "EVALFLEET_BASE_URL": f"http://{hosts.address('server')}:8080",
        }
        self.ledger = Ledger(f"unix://{socket}")

    def command(self, name: str, argv: list[str]) -> list[str]:
        return self.hosts.command(self.at.get(name, "broker"), argv)

    def close(self) -> None:
        super().close()
        self.ledger.close()
        self.broker.kill()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[HostedFleet]:
    if why := unavailable():
        pytest.skip(why)
    with Hosts("broker", "server", "one", "two") as hosts:
        made = HostedFleet(tmp_path, hosts)
        try:
            yield made
        finally:
            made.close()


def held_by(incarnation: str, seen: Snapshot) -> set[str]:
    return {name for name, owner in seen.claims.items() if owner == incarnation}


def graded_by(incarnation: str, seen: Snapshot) -> set[str]:
    return {name for name, owner in seen.grading.items() if owner == incarnation}


def test_a_host_that_is_cut_off_is_replaced_and_changes_nothing_when_it_is_back(
    fleet: HostedFleet, tmp_path: Path
) -> None:
    tree = make_tree(tmp_path / "tree")
    fleet.at = {"server": "server", "judge": "server", "one": "one", "two": "two"}
    judge = Part("judge", fleet.hosts.command("server", [sys.executable, "-c", JUDGE]), os.environ, tmp_path)
    fleet.parts.append(judge)
    judge.await_line("listens")
    address = ("--host", fleet.hosts.address("server"), "--port", "8080")
    fleet.start("server", "server", "--tree", str(tree), *address, "--state", str(tmp_path / "state")).await_line(
        "listening on"
    )
    fleet.start("scheduler", "scheduler")
    incarnations: dict[str, str] = {}
    for name in ("one", "two"):
        part = fleet.start(name, "worker", "--concurrency", "4")
        incarnations[name] = part.await_line(r"worker (\w+) takes ")[1]
    one, two = incarnations["one"], incarnations["two"]
    submission = fleet.submit(tree, "-j", "8")

    def seen() -> Snapshot:
        return fleet.ledger.snapshot(submission)

    def in_the_middle() -> bool:
        now = seen()
        return len(fleet.ledger.done(submission)) >= 4 and len(held_by(one, now)) >= 2 and bool(graded_by(one, now))

    until(in_the_middle, fleet.logs)
    before = seen()
    fleet.hosts.cut("one")
    cut = time.monotonic()
    after = seen()
    held = held_by(one, after)
    in_flight = graded_by(one, before) | graded_by(one, after)

    def redone() -> bool:
        now = seen()
        over = {name.replace(":0:", ":") for name in fleet.ledger.done(submission).keys() | now.records | now.plays}
        return all(now.claims.get(name) == two or name in over for name in held) and not held_by(one, now)

    until(redone, fleet.logs)
    took = time.monotonic() - cut
    while time.monotonic() < cut + CUT_S:  # it is away for as long as it is away
        time.sleep(0.2)
    assert len(fleet.ledger.done(submission)) < CONVERSATIONS, "there is work left for when it is back"
    fleet.hosts.mend("one")
    until(lambda: bool(held_by(one, seen())), fleet.logs, within=90)
    code, document = fleet.watch(submission, within=150)

    database = f"sqlite:///{tmp_path / 'state/server.sqlite3'}"
    made, attempts, calls = afterwards.runs(database), afterwards.recorded(database), suite.calls(tree)
    wrong = [] if code == 0 else [f"watch ended with {code}: {document['verdict']}"]
    wrong += afterwards.unfinished_evaluations(database)
    wrong += afterwards.all_recorded_once(attempts, CONVERSATIONS)
    wrong += afterwards.called_once(calls, made)
    wrong += [f"{run.id} of {run.place} is a second run" for run in made if run.number > 0]
    wrong += afterwards.verdicts_are_right(attempts, made, ())
    wrong += afterwards.artifact_is_the_evaluation(tmp_path / "results", submission, attempts)
    wrong += judged_once((tmp_path / "judged.txt").read_text().splitlines(), in_flight)
    if took > REDONE_WITHIN_S:
        wrong.append(f"its work was redone elsewhere only after {took:.1f} s")
    if "Traceback" in fleet.logs():
        wrong.append("a traceback in a log")
    assert not wrong, "\n".join([*wrong, fleet.logs()])
    print(
        f"\ncut off for {CUT_S:.0f} s: {len(held)} conversations were redone elsewhere after {took:.1f} s; "
        f"{len(in_flight)} gradings were in flight; {len(calls)} calls for {CONVERSATIONS} conversations"
    )


def judged_once(asked: list[str], in_flight: set[str]) -> Iterator[str]:
    """The judge was asked once for each attempt, but for those whose grading was under way at the cut."""
    times: Mapping[str, int] = Counter(asked)
    if len(times) != CONVERSATIONS:
        yield f"{len(times)} attempts were judged, of {CONVERSATIONS}"
    for text, n in times.items():
        attempt = f"0:0:{text.rpartition(' ')[2]}"
        if n > (2 if attempt in in_flight else 1):
            yield f"the judge was asked {n} times of {text!r}, {attempt}"
