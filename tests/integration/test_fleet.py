"""The same parts over several processes, as four terminals would start them (issue 2, "The fleet, plainly")."""

from __future__ import annotations

import json
import os
import signal
import time
import zlib
from pathlib import Path
from typing import cast
from xml.etree import ElementTree

import pytest
import redis

from evalfleet.artifact import open_result
from evalfleet.ledger import ENDED_TTL_S
from tests.chaos.processes import children
from tests.integration.fleet import ATTEMPTS, CALLS, PLAN_KEY, TOKEN, Broker, Fleet, calls, make_tree, results_of, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def keys_without_ttl(client: redis.Redis) -> set[str]:
    """What stays in the broker for ever."""
    return {key.decode() for key in client.scan_iter("*", count=500) if client.ttl(key) == -1}


def test_a_fleet_says_what_one_machine_says_though_a_worker_is_killed(
    tmp_path: Path, fleet: Fleet, redis_url: str
) -> None:
    """Two workers share the work, one is killed with -9 in the middle; nothing is paid twice (I2, I6); then Redis is
    back at its base line."""
    alone = make_tree(tmp_path / "alone", nap=0)
    shared = make_tree(tmp_path / "shared", nap=0.5)
    fleet.server(shared)
    fleet.scheduler()
    doomed = fleet.worker("doomed", "--concurrency", "2")
    fleet.worker("other", "--concurrency", "2")
    submission = fleet.submit(shared, "-j", "4")
    until(lambda: fleet.claimed("doomed") >= 1 and fleet.claimed("other") >= 1, fleet.logs)
    until(lambda: fleet.metrics("doomed")["evalfleet_conversations_held"] >= 1, fleet.logs)
    doomed.send(signal.SIGKILL)
    expected = fleet.run("eval", "--tree", str(alone), "--json")  # meanwhile
    code, document = fleet.watch(submission)

    assert results_of(document) == results_of(json.loads(expected.stdout))
    assert code == expected.returncode == 1
    outputs = [str(tmp_path / name) for name in ("r.json", "r.junit.xml")]
    again = fleet.run("watch", submission, "-o", outputs[0], "-o", outputs[1])
    assert again.returncode == 1, again.stderr
    assert json.loads(Path(outputs[0]).read_text()) == document
    junit = ElementTree.parse(outputs[1]).getroot()
    assert int(junit.attrib["tests"]) == len(document["scenarios"])
    assert [e["status"] for e in document["evaluations"]] == ["completed", "completed"]
    assert sum(s["passed"] + s["failed"] for s in document["scenarios"]) == ATTEMPTS
    assert len(calls(shared)) == CALLS, "a run that a dead worker began is found again, not paid again"
    assert fleet.metrics("scheduler")["evalfleet_claims_reaped_total"] >= 1
    until(lambda: fleet.metrics("scheduler")["evalfleet_workers_alive"] == 1, fleet.logs)  # looked at now and then
    until(lambda: "in_flight{" not in str(fleet.metrics("scheduler")), lambda: str(fleet.metrics("scheduler")))

    with redis.Redis.from_url(redis_url) as client:
        until(lambda: not cast(int, client.exists("ef:subs")), fleet.logs)
        bindings = {
            f"ef:_kombu.binding{kind}.{q}" for kind in ("", "_permanent") for q in ("run", "grade", "aggregate")
        }
        unacked = {"ef:unacked", "ef:unacked_index"}  # what the killed worker had not begun; gone after ten minutes
        assert keys_without_ttl(client) <= bindings | unacked | {"ef:epoch"}
        assert cast(int, client.hlen("ef:unacked")) <= 6
        kept = {key.decode().rpartition(":")[2] for key in client.scan_iter(f"ef:s:{submission}:*")}
        assert kept <= {"meta", "counts", "givenup", "log"}
        assert 0 < cast(int, client.ttl(f"ef:s:{submission}:meta")) <= ENDED_TTL_S
    assert TOKEN not in fleet.logs()
    assert PLAN_KEY not in fleet.logs()
    assert "Traceback" not in fleet.logs()


def test_whoever_leaves_is_replaced_and_watching_changes_nothing(tmp_path: Path, fleet: Fleet) -> None:
    """Ctrl-C of `watch`; SIGTERM of a scheduler and of a worker: others go on at once, and nothing is paid twice."""
    tree = make_tree(tmp_path / "tree", nap=0)
    (tree / "hold").touch()  # its agents are in mid-turn for as long as the test needs
    fleet.server(tree)
    first = fleet.scheduler("first")
    leaver = fleet.worker("leaver", "--concurrency", "2")
    fleet.worker("stayer", "--concurrency", "2")
    submission = fleet.submit(tree, "-j", "4")
    first.await_line(f"driving {submission}")
    assert fleet.submit(tree, "-j", "4") == submission, "the same command again is the same submission (S34)"

    watcher = fleet.start("watcher", "watch", submission, "--json")
    watcher.await_line(f"watching {submission}: {ATTEMPTS} attempts")
    watcher.send(signal.SIGINT)
    assert watcher.end() == 130
    assert f"{submission} goes on" in watcher.log

    first.send(signal.SIGTERM)
    assert first.end() == 0
    assert f"{submission} is left as it stands" in first.log
    second = fleet.scheduler("second")
    second.await_line(f"driving {submission}")

    until(lambda: fleet.metrics("leaver")["evalfleet_conversations_held"] >= 1, fleet.logs)
    held = fleet.metrics("leaver")["evalfleet_conversations_held"]
    leaver.send(signal.SIGTERM)
    assert leaver.end(10) == 0
    assert "leaves; what it plays goes back" in leaver.log
    (tree / "hold").unlink()
    code, document = fleet.watch(submission)
    assert (code, document["verdict"]) == (1, "fail"), fleet.logs()
    assert len(calls(tree)) == CALLS
    assert fleet.metrics("second")["evalfleet_claims_reaped_total"] == 0, f"{held} claims were given back, not lost"


def test_a_plan_that_somebody_changes_in_redis_is_not_played_and_the_same_submit_goes_on(
    tmp_path: Path, fleet: Fleet, redis_url: str
) -> None:
    """What is played before stays; the worker drops the message, and `watch` says why it ended."""
    tree = make_tree(tmp_path / "tree", nap=0)
    (tree / "hold").touch()
    fleet.server(tree)
    scheduler = fleet.scheduler()
    submission = fleet.submit(tree, "-j", "1")
    scheduler.await_line(f"driving {submission}")  # else it is the scheduler that refuses it
    name = f"ef:s:{submission}:plan"
    with redis.Redis.from_url(redis_url) as client:
        plan = json.loads(zlib.decompress(cast(bytes, client.get(name))))
        plan["target"]["base_url"] = "http://127.0.0.1:1/api"
        client.set(name, zlib.compress(json.dumps(plan).encode()))
    worker = fleet.worker("worker")
    worker.await_line(f"the plan of {submission} is refused: its signature is wrong")
    watched = fleet.run("watch", submission, "--json")
    assert watched.returncode == 3
    assert f"stopped: the plan of {submission} is refused: its signature is wrong" in watched.stderr
    assert calls(tree) == []
    (tree / "hold").unlink()
    assert fleet.submit(tree, "-j", "1") == submission
    assert fleet.watch(submission)[0] == 1
    assert len(calls(tree)) == CALLS

    unsigned = fleet.start("unsigned", "worker", "--queues", "run", env={"EVALFLEET_PLAN_KEY": ""})
    unsigned.await_line("plans are not signed: whoever can write to the broker decides what this worker runs")
    assert "plans are not signed" not in worker.log


LARGE_AGENT = """
import json, random, string, sys
turn = json.load(sys.stdin)
generator = random.Random(turn["metadata"]["evalfleet.trial"])
print("".join(generator.choices(string.ascii_letters + string.digits, k=10_000_000)))
"""
LARGE_CASE = """
scenarios:
  - {id: long, user: a, trials: 3, expect: [grader: {name: words.all_of_it}]}
  - {id: without, user: b, trials: 3, expect: [no_error: true]}
"""
LARGE_GRADER = "def all_of_it(t, case, run):\n    return len(run['final_answer']) == 10_000_000\n"


def test_answers_of_ten_megabytes_never_wait_in_the_broker(tmp_path: Path, fleet: Fleet, redis_url: str) -> None:
    """They hardly compress. With nobody to grade or record, all that waits for six of them is under a megabyte."""
    tree = make_tree(tmp_path / "tree", nap=0)
    (tree / "agent.py").write_text(LARGE_AGENT)
    for file in (tree / "evals/cases").iterdir():
        file.unlink()
    (tree / "evals/cases/large.yaml").write_text(LARGE_CASE)
    (tree / "evals/graders/words.py").write_text(LARGE_GRADER)
    fleet.server(tree)
    fleet.scheduler()
    fleet.worker("run", "--queues", "run")
    submission = fleet.submit(tree, "-j", "3")
    with redis.Redis.from_url(redis_url) as client:
        waits = (f"ef:s:{submission}:plays", f"ef:s:{submission}:records")
        until(lambda: [client.hlen(name) for name in waits] == [3, 3], fleet.logs)
        held = [cast(int | None, client.memory_usage(key)) for key in client.scan_iter("ef:s:*")]
        assert sum(size or 0 for size in held) < 1_000_000  # a hint may run out meanwhile
    fleet.worker("rest", "--queues", "grade,aggregate")
    code, document = fleet.watch(submission)
    assert (code, document["verdict"]) == (0, "pass"), fleet.logs()
    lines = list(open_result(tmp_path / document["artifact"]).lines())
    assert [len(line["trial_record"]["final_answer"]) for line in lines] == [10_000_000] * 6
    assert not any("trial_left_out" in line for line in lines)


def test_each_worker_may_do_one_thing_only(tmp_path: Path, private_fleet: Fleet) -> None:
    fleet = private_fleet
    tree = make_tree(tmp_path / "tree", nap=0)
    fleet.server(tree)
    fleet.scheduler()
    submission = fleet.submit(tree)
    watcher = fleet.start("watcher", "watch", submission)
    watcher.await_line("no worker is alive")
    for queue in ("run", "grade", "aggregate"):
        nowhere = {} if queue == "aggregate" else {"EVALFLEET_RESULTS_URL": ""}
        fleet.worker(queue, "--queues", queue, env=nowhere)  # the graders come through the broker
    assert watcher.end() == 1
    assert fleet.claimed("run") == 8
    assert fleet.metrics("run").get("evalfleet_grade_seconds_count", 0) == 0
    assert fleet.metrics("grade")["evalfleet_grade_seconds_count"] == 4
    assert fleet.metrics("aggregate")["evalfleet_batch_attempts_sum"] == ATTEMPTS
    assert fleet.claimed("grade") == fleet.claimed("aggregate") == 0


def test_a_worker_that_has_nothing_to_do_ends_only_after_it_has_left(tmp_path: Path, private_fleet: Fleet) -> None:
    """Celery's part of it ends at once then, while a cage that does not answer takes its time to close."""
    fleet = private_fleet
    tree = make_tree(tmp_path / "tree", nap=0)
    fleet.server(tree)
    fleet.scheduler()
    worker = fleet.worker("worker")
    code, _ = fleet.watch(fleet.submit(tree))
    assert code == 1
    cages = [pid for pid, words in children(worker.process.pid).items() if "zygote.py" in words]
    assert cages
    os.kill(cages[0], signal.SIGSTOP)
    worker.send(signal.SIGTERM)
    assert worker.end() == 0
    assert "Traceback" not in worker.log
    assert children(worker.process.pid) == {}


def test_work_goes_on_after_the_broker_was_away(tmp_path: Path, private_fleet: Fleet, broker: Broker) -> None:
    """D03: connections are dropped five times, then the broker is killed and comes back after 5 s; without anybody's
    help messages are taken again, and the liveness file is as old as the silence."""
    fleet = private_fleet
    alive = tmp_path / "alive"
    tree = make_tree(tmp_path / "tree", nap=0.5)
    fleet.server(tree)
    fleet.scheduler()
    worker = fleet.worker("worker", "--concurrency", "2", "--liveness-file", str(alive))
    until(alive.exists, fleet.logs)
    submission = fleet.submit(tree, "-j", "2")
    watcher = fleet.start("watcher", "watch", submission)
    until(lambda: len(calls(tree)) >= 2, fleet.logs)
    with redis.Redis.from_url(broker.url) as client:
        for _ in range(5):
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            worker.await_line("Connection to broker lost")
    until(lambda: len(calls(tree)) >= 4, fleet.logs)
    assert len(calls(tree)) < CALLS, "there is work left for after the fall"
    broker.part.kill()
    fell = time.time()
    watcher.await_line("does not answer")
    while time.time() < fell + 5:
        time.sleep(0.2)
    assert alive.stat().st_mtime < fell + 1, "nothing is taken: no sign of life"
    broker.start()
    assert watcher.end(90) == 1
    assert len(calls(tree)) == CALLS
    back = time.time()
    until(lambda: alive.stat().st_mtime > back - 4, fleet.logs)
    assert "CPendingDeprecationWarning" not in worker.log
    assert fleet.tracebacks() == []


def test_a_broker_that_forgets_while_no_scheduler_lives_gets_everything_back(
    tmp_path: Path, private_fleet: Fleet, broker: Broker
) -> None:
    """I1: the next scheduler finds the plan in the results store, and who watches sees nothing but a pause."""
    fleet = private_fleet
    tree = make_tree(tmp_path / "tree", nap=0.2)
    fleet.server(tree)
    first = fleet.scheduler("first")
    fleet.worker("worker", "--concurrency", "2")
    submission = fleet.submit(tree, "-j", "2")
    watcher = fleet.start("watcher", "watch", submission)
    until(lambda: len(calls(tree)) >= 2, fleet.logs)
    first.kill()
    with redis.Redis.from_url(broker.url) as client:
        client.flushall()
    watcher.await_line(f"has lost {submission}")
    fleet.scheduler("second")
    assert watcher.end(90) == 1
    assert len(calls(tree)) == CALLS


def test_a_broker_that_throws_keys_away_is_refused(tmp_path: Path, private_fleet: Fleet) -> None:
    """D08: by every part, at its start, with the setting's name."""
    folder = tmp_path / "evicting"
    folder.mkdir()
    evicting = Broker(folder, "--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")
    fleet = private_fleet
    tree = make_tree(tmp_path / "tree", nap=0)
    fleet.environment |= {"EVALFLEET_BROKER_URL": evicting.url, "EVALFLEET_BASE_URL": "http://127.0.0.1:1"}
    try:
        for command in (("worker",), ("scheduler",), ("submit", "--tree", str(tree))):
            done = fleet.run(*command)
            assert done.returncode == 2
            assert "allkeys-lru" in done.stderr
            assert "maxmemory-policy noeviction" in done.stderr
    finally:
        evicting.part.kill()


def test_submitting_needs_nothing_that_graders_need(tmp_path: Path, private_fleet: Fleet) -> None:
    """Graders are checked as text (S6): their imports and the interpreter that they run on are the workers' matter."""
    fleet = private_fleet
    tree = make_tree(tmp_path / "tree", nap=0)
    judge = tree / "evals/graders/words.py"
    judge.write_text("import a_library_that_only_workers_have\n" + judge.read_text())
    config = tree / "evalfleet.toml"
    config.write_text(config.read_text() + '\n[graders]\npython = "/opt/only/on/workers/bin/python"\n')
    fleet.server(tree)
    fleet.submit(tree)
    judge.write_text("def other(t):\n    return True\n")
    refused = fleet.run("submit", "--tree", str(tree), "--state", str(tmp_path / "state"))
    assert refused.returncode == 2
    assert "words.few" in refused.stderr


def test_a_server_that_serves_another_version_is_named(tmp_path: Path, private_fleet: Fleet) -> None:
    """S33: evaluations are pinned; nothing is submitted that no run could be made for."""
    fleet = private_fleet
    tree = make_tree(tmp_path / "tree", nap=0)
    fleet.server(tree)
    agent = tree / "agent.py"
    agent.write_text(agent.read_text() + "# another version\n")
    refused = fleet.run("submit", "--tree", str(tree), "--state", str(tmp_path / "state"))
    assert refused.returncode == 2
    assert "serves another version of counter than this tree's" in refused.stderr
    assert refused.stdout == ""


def test_s18_what_a_fleet_was_handed_is_listed_and_cancelled_here(tmp_path: Path, private_fleet: Fleet) -> None:
    """No embedded server is started for it, and `resume` finds it there."""
    fleet = private_fleet
    tree = make_tree(tmp_path / "tree", nap=0)
    fleet.server(tree)
    submission = fleet.submit(tree)
    state = fleet.folder / "submissions"
    here = ("--tree", str(tree), "--state", str(state))
    assert f"{submission}  " in (listed := fleet.run("list", *here).stdout)
    assert "  submitted  " in listed
    resumed = fleet.run("resume", submission, *here)
    assert (resumed.returncode, resumed.stdout) == (
        0,
        f"{submission} runs already; `evalfleet watch {submission}` follows it\n",
    )
    cancelled = fleet.run("cancel", submission, *here)
    assert (cancelled.returncode, cancelled.stderr) == (0, "")
    assert "0 recorded attempts are kept" in cancelled.stdout
    assert "  cancelled  " in fleet.run("list", *here).stdout
    assert not (state / "server.sqlite3").exists()


def test_s18_watching_ends_the_evaluation_where_no_more_is_missing_than_allowed(tmp_path: Path, fleet: Fleet) -> None:
    tree = make_tree(tmp_path / "tree", nap=0)
    (tree / "agent.py").write_text(
        "import json, sys\n"
        "trial = json.load(sys.stdin)['metadata']['evalfleet.trial']\n"
        "lost = {'type': 'error', 'message': 'gone', 'code': 'upstream_unavailable', 'retryable': True}\n"
        "print(json.dumps(lost) if trial == 3 else 'hi')\n"
    )
    for case in ("greeting", "parity"):
        (tree / f"evals/cases/{case}.yaml").unlink()
    (tree / "evals/cases/one.yaml").write_text(
        "scenarios:\n  - {id: one, user: hi, trials: 4, expect: [{final_answer_contains: hi}]}\n"
    )
    fleet.server(tree)
    fleet.scheduler()
    fleet.worker("worker")
    submission = fleet.submit(tree)
    code, document = fleet.watch(submission)
    assert (code, document["scenarios"][0]["missing"]) == (3, 1), fleet.logs()
    assert document["evaluations"][0]["status"] == "running"
    ended = fleet.run("watch", submission, "--allow-missing", "25%", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["evaluations"][0]["status"] == "cancelled"
    code, document = fleet.watch(submission)
    assert (code, document["evaluations"][0]["status"], document["scenarios"][0]["passed"]) == (0, "cancelled", 3)
