"""One worker process without Celery, against the real server and a real Valkey: what it claims it plays or gives back,
whatever fails under it (I6–I8); whose trouble a failing judge is (S26)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import http.server
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

import worker.heartbeat
import worker.tasks
from evalfleet.artifact import write_plan
from evalfleet.checks.outcome import GraderAnswer
from evalfleet.contract import jsontext
from evalfleet.contract.client import Client
from evalfleet.contract.tasks import AGGREGATE_TASK
from evalfleet.errors import StorageError, TargetUnreachable
from evalfleet.ledger import FAULT, JUDGE_ROW, Ledger
from evalfleet.plan import Attempt, Conversation, Plan, PlannedGraders
from evalfleet.results import FolderResults
from evalfleet.server.driving import Ended, Sink, Turn
from evalfleet.settings import Settings
from scheduler.plan import evaluation_body
from tests.server.conftest import TOKEN, Api, ScriptedDriver, serving
from tests.worker.test_play import failed, never, plan_of, well
from worker.app import add_tasks
from worker.evidence import Play
from worker.grading import Grading
from worker.intake import Intake
from worker.loop import LoopThread
from worker.play import Player
from worker.tasks import Crew

pytestmark = pytest.mark.timeout(60)

ONE = "defaults: {trials: 12}\nscenarios:\n  - {id: one, user: a, expect: [no_error: true]}\n"
GRADED = "defaults: {trials: 12}\nscenarios:\n  - {id: one, user: a, expect: [grader: {name: g.ok}]}\n"
FIRST = Conversation(0, 0)


class Wire:
    """The messages of a worker, kept."""

    def __init__(self) -> None:
        self.grades: list[Attempt] = []
        self.aggregates = 0

    def grade(self, plan: Plan, attempt: Attempt) -> None:
        self.grades.append(attempt)

    def aggregate(self, plan: Plan) -> None:
        self.aggregates += 1


class Stage:
    def __init__(
        self,
        api: Api,
        valkey: str,
        folder: Path,
        *,
        base_url: str | None = None,
        slots: int = 4,
        plan_key: str = "",
        more: Mapping[str, str] | None = None,
    ) -> None:
        self.api, self.wire = api, Wire()
        environment = {
            "EVALFLEET_BROKER_URL": valkey,
            "EVALFLEET_BASE_URL": base_url or api.url,
            "EVALFLEET_TOKEN": TOKEN,
            "EVALFLEET_RESULTS_URL": str(folder),
            "EVALFLEET_PLAN_KEY": plan_key,
            **(more or {}),
        }
        self.crew = Crew(Settings.from_env(environment), self.wire, queues="run,grade,aggregate", slots=slots)
        self.ledger = self.crew.ledger
        self.plan: Plan = plan_of(ONE, api.harness_id)

    def books(self, text: str = ONE) -> None:
        self.plan = plan_of(text, self.api.harness_id)
        if "grader" in text:
            graders = PlannedGraders("sha256:" + "0" * 64, None, (), network=False, memory_mb=64, judge=True)
            self.plan = replace(self.plan, graders=graders)
        self.ledger.add(self.plan, {})

    async def run(self, conversation: Conversation = FIRST) -> None:
        await asyncio.to_thread(self.crew.run, self.plan.id, [conversation])

    async def grade(self, attempt: Attempt) -> None:
        await asyncio.to_thread(self.crew.grade, self.plan.id, attempt)

    def claims(self) -> Mapping[str, str]:
        return self.ledger.snapshot(self.plan.id).claims

    def gave_up(self) -> dict[str, str]:
        return {what: why["code"] for what, why in self.ledger.given_up(self.plan.id).items()}


@contextlib.asynccontextmanager
async def staged(folder: Path, valkey: str, **options: Any) -> AsyncIterator[Stage]:
    with redis.Redis.from_url(valkey) as broker:
        broker.flushdb()
    async with serving(folder, ScriptedDriver(well)) as api:
        stage = Stage(api, valkey, folder, **options)
        stage.ledger.open_epoch(mine=True)
        await asyncio.to_thread(stage.crew.start)
        stage.books()
        try:
            yield stage
        finally:
            await asyncio.to_thread(stage.crew.stop)
    with redis.Redis.from_url(valkey) as broker:
        broker.flushdb()


@pytest.fixture
async def stage(tmp_path: Path, valkey: str) -> AsyncIterator[Stage]:
    async with staged(tmp_path, valkey) as made:
        made.crew.heart.every = 0.05
        made.crew.heart.beat_now()
        yield made


async def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end, f"it never came that {what}"
        await asyncio.sleep(0.02)


def failing(monkeypatch: pytest.MonkeyPatch, method: str, error: Exception, *, times: int, after: bool) -> None:
    """Let a ledger's method fail, `after` the broker has carried it out (the answer got lost) or before."""
    real = getattr(Ledger, method)
    left = [times]

    def instead(self: Ledger, *args: Any, **kwargs: Any) -> Any:
        if left[0] == 0:
            return real(self, *args, **kwargs)
        left[0] -= 1
        if after:
            real(self, *args, **kwargs)
        raise error

    monkeypatch.setattr(Ledger, method, instead)


AWAY = TargetUnreachable("the broker does not answer")


@pytest.mark.parametrize("after", [False, True], ids=["not carried out", "answer lost"])
async def test_i8_a_claim_that_could_not_be_given_back_is_given_back_by_a_later_beat(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Its owner lives, so no reaper takes it: it would be waited for without end, and its slot be lost."""
    failing(monkeypatch, "release", AWAY, times=2, after=after)
    with contextlib.suppress(TargetUnreachable):
        await stage.run()
    await until(lambda: stage.claims() == {}, "the claim went back")
    assert stage.ledger.snapshot(stage.plan.id).records == {"0:0:0"}


async def test_i8_a_claim_whose_answer_got_lost_goes_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, "claim", AWAY, times=1, after=True)
    with pytest.raises(TargetUnreachable):
        await stage.run()
    await until(lambda: stage.claims() == {}, "the claim went back")
    assert stage.ledger.take_returned(stage.plan.id) == [FIRST]
    await stage.run()
    assert stage.ledger.snapshot(stage.plan.id).records == {"0:0:0"}


async def test_i8_a_claim_that_is_ours_on_the_books_only_goes_back(stage: Stage) -> None:
    """An order that a slow network delivers after all, when its sender has given up on it; or a beat that was under way
    while its hold was given back, in a grace. Its owner lives, so no reaper takes it."""
    stage.api.driver.script = never
    playing = asyncio.create_task(stage.run(Conversation(0, 1)))
    await until(lambda: set(stage.claims()) == {"0:1"}, "one is played")
    inc, attempt = stage.crew.heart.incarnation, Attempt(0, 0, 2)
    stage.ledger.claim(stage.plan.id, FIRST, stage.plan.attempts(FIRST), inc)
    stage.ledger.put_play(stage.plan.id, attempt, b"{}")
    assert stage.ledger.claim_grade(stage.plan.id, attempt, inc) == b"{}"
    await until(lambda: set(stage.claims()) == {"0:1"}, "the other one went back, and what is played did not")
    await until(lambda: not stage.ledger.snapshot(stage.plan.id).grading, "and so did the grading")
    assert stage.ledger.take_returned(stage.plan.id) == [FIRST]
    stage.ledger.end(stage.plan.id, "stopped")
    await playing


async def test_i3_a_message_that_comes_twice_is_played_once(stage: Stage) -> None:
    going, release = asyncio.Event(), asyncio.Event()

    async def waits(turn: Turn, sink: Sink) -> Ended:
        going.set()
        await release.wait()
        return await well(turn, sink)

    stage.api.driver.script = waits
    first = asyncio.create_task(stage.run())
    await asyncio.wait_for(going.wait(), 10)
    await asyncio.wait_for(stage.run(), 10)  # it comes back at once, while the first goes on
    assert list(stage.claims()) == [str(FIRST)]
    release.set()
    await first
    assert len(stage.api.driver.turns) == 1
    assert stage.claims() == {}


@pytest.mark.parametrize("times", [1, 2])
async def test_i8_a_grading_that_cannot_be_handed_in_goes_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    stage.books(GRADED)
    answering(monkeypatch, "answered")
    await stage.run()
    [attempt] = stage.wire.grades
    failing(monkeypatch, "put_record", AWAY, times=1, after=False)
    failing(monkeypatch, "release_grade", AWAY, times=times - 1, after=False)
    with contextlib.suppress(TargetUnreachable):
        await stage.grade(attempt)
    await until(lambda: stage.ledger.snapshot(stage.plan.id).grading == {}, "the grading went back")
    await stage.grade(attempt)
    assert stage.ledger.snapshot(stage.plan.id).records == {"0:0:0"}


class Garbage(http.server.BaseHTTPRequestHandler):
    """A captive portal: 201 to whatever is asked."""

    body = b"<html>welcome</html>"
    asked = 0

    def do_POST(self) -> None:
        type(self).asked += 1
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(201)
        self.send_header("content-length", str(len(self.body)))
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(params=[b"<html>welcome</html>", b'{"status": "ok"}'], ids=["no JSON", "no run"])
def portal(request: pytest.FixtureRequest) -> Iterator[str]:
    handler = type("Handler", (Garbage,), {"body": request.param})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_i8_a_platform_that_answers_garbage_is_given_up_and_not_asked_forever(
    tmp_path: Path, valkey: str, portal: str
) -> None:
    async with staged(tmp_path, valkey, base_url=portal) as stage:
        await stage.run()
        assert stage.gave_up() == {"0:0": "unreadable"}
        assert stage.ledger.take_returned(stage.plan.id) == []


async def test_i8_what_we_did_not_foresee_is_given_up_and_not_played_forever(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(worker.tasks, "judge", broken)
    with contextlib.suppress(ZeroDivisionError):
        await stage.run()
    assert stage.gave_up() == {"0:0": FAULT}
    assert stage.claims() == {}
    assert stage.ledger.take_returned(stage.plan.id) == []
    assert set(stage.ledger.notes(stage.plan.id)) == {"0:0:0"}, "and the artifact says so"


async def test_s38_a_stopped_run_is_cancelled_before_its_claim_goes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command waits for the claims: were they gone first, the worker would be ended while it cancels."""
    going = asyncio.Event()

    async def waits(turn: Turn, sink: Sink) -> Ended:
        going.set()
        return await never(turn, sink)

    real = Client.cancel_run

    async def slowly(self: Client, run_id: str, **options: Any) -> dict[str, Any]:
        await asyncio.sleep(0.3)
        return await real(self, run_id, **options)

    monkeypatch.setattr(Client, "cancel_run", slowly)
    stage.api.driver.script = waits
    running = asyncio.create_task(stage.run())
    await asyncio.wait_for(going.wait(), 10)
    stage.ledger.end(stage.plan.id, "stopped", "interrupted", "interrupted")
    await until(lambda: stage.claims() == {}, "the claim went")
    page = await stage.api.get("/v2/runs")
    assert page["data"][0]["status"] in {"cancelling", "cancelled"}
    await running


async def test_s38_leave_running_leaves_the_run(stage: Stage) -> None:
    going = asyncio.Event()

    async def waits(turn: Turn, sink: Sink) -> Ended:
        going.set()
        return await never(turn, sink)

    stage.api.driver.script = waits
    running = asyncio.create_task(stage.run())
    await asyncio.wait_for(going.wait(), 10)
    stage.ledger.end(stage.plan.id, "stopped", "interrupted", "leave_running")
    await running
    page = await stage.api.get("/v2/runs")
    assert page["data"][0]["status"] == "running"


async def test_a_worker_that_leaves_closes_its_ledger_after_its_tasks_have_given_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a task of its own meets a closed connection, and the submission ends by a fault that is none."""
    going = asyncio.Event()

    async def waits(turn: Turn, sink: Sink) -> Ended:
        going.set()
        return await never(turn, sink)

    order: list[str] = []
    release, close = Ledger.release, Ledger.close

    def slowly(self: Ledger, *args: Any, **kwargs: Any) -> None:
        time.sleep(0.3)
        release(self, *args, **kwargs)
        order.append("given back")

    def closing(self: Ledger) -> None:
        order.append("closed")
        close(self)

    monkeypatch.setattr(Ledger, "release", slowly)
    monkeypatch.setattr(Ledger, "close", closing)
    stage.api.driver.script = waits
    running = asyncio.create_task(stage.run())
    await asyncio.wait_for(going.wait(), 10)
    await asyncio.to_thread(stage.crew.stop)
    await running
    assert order == ["given back", "closed", "closed"]


async def test_s14_who_plays_a_dead_workers_conversation_has_only_the_tries_that_are_left(stage: Stage) -> None:
    stage.api.driver.script = lambda _turn, _sink: done(failed("server_lost"))
    stage.ledger.first_new_try(stage.plan.id, FIRST, 0)  # a worker made try 0, and died
    await stage.run()
    first = len(stage.api.driver.turns)
    assert first == 3
    stage.ledger.redis.hdel(f"ef:s:{stage.plan.id}:givenup", str(FIRST))  # … and now one dies before it says so
    await stage.run()
    assert len(stage.api.driver.turns) == first, "tries 0 to 2 are found again, and there is no fourth"
    assert stage.gave_up() == {"0:0": "server_lost"}


async def done(ended: Ended) -> Ended:
    return ended


async def test_what_a_leaving_worker_took_and_did_not_claim_is_fed_again_at_once(stage: Stage) -> None:
    stage.ledger.publish(stage.plan.id, [FIRST])
    stage.crew.stopping.set()
    try:
        await stage.run()
    finally:
        stage.crew.stopping.clear()
    assert stage.ledger.snapshot(stage.plan.id).published == {}
    assert stage.ledger.take_returned(stage.plan.id) == [FIRST]
    assert stage.claims() == {}


async def test_a_refused_token_is_told_with_the_worker_that_has_it(tmp_path: Path, valkey: str) -> None:
    """Fifty workers, and one of them was started with last month's."""
    async with staged(tmp_path, valkey, more={"EVALFLEET_TOKEN": "last-months-token"}) as stage:
        await stage.run()
        meta = stage.ledger.meta(stage.plan.id)
        assert meta is not None
        assert (meta.state, meta.code) == ("stopped", "unauthorized")
        assert meta.reason.endswith(f" (the token of worker {stage.crew.heart.name})")
        assert "last-months-token" not in meta.reason


async def test_a_completed_submission_leaves_nothing_in_its_aggregators_memory(stage: Stage) -> None:
    """An index of 200,000 attempts has some 100 MB."""
    async with Client(stage.api.url, TOKEN) as client:
        created = await client.create_evaluation(evaluation_body(stage.plan, 0), key="create")
    stage.plan = stage.plan.with_evaluations([created.document["id"]])
    write_plan(FolderResults(stage.crew.settings.require_results_url()), stage.plan)
    stage.ledger.forget(stage.plan.id)
    stage.ledger.add(stage.plan, {})
    for conversation in stage.plan.conversations():
        await stage.run(conversation)
    await asyncio.to_thread(stage.crew.aggregate, stage.plan.id)
    meta = stage.ledger.meta(stage.plan.id)
    assert meta is not None
    assert (meta.state, meta.reason) == ("completed", "")
    assert not stage.crew._aggregators


async def test_a_resume_with_other_limits_is_played_by_these_also_where_the_plan_is_known(stage: Stage) -> None:
    stage.api.driver.script = lambda _turn, _sink: done(failed("server_lost"))
    await stage.run()
    assert len(stage.api.driver.turns) == 3
    stage.ledger.end(stage.plan.id, "incomplete")
    stage.ledger.add(replace(stage.plan, limits=replace(stage.plan.limits, tries=1)), {})
    await stage.run()
    assert len(stage.api.driver.turns) == 4


async def test_i6_a_heartbeat_outlives_whatever_its_ledger_raises(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    heart = stage.crew.heart
    for error in (StorageError("the broker refuses writes"), redis.ResponseError("something new")):
        failing(monkeypatch, "beat", error, times=2, after=False)
        await asyncio.sleep(0.2)
    await until(lambda: heart.age < 0.2, "it beats again")


def test_what_is_handed_to_a_loop_that_has_stopped_is_cancelled_and_nobody_waits_for_it() -> None:
    loop = LoopThread()
    loop.stop()

    async def late() -> None:
        raise AssertionError

    with pytest.raises(concurrent.futures.CancelledError):
        loop.submit(late()).result(2)


# -- the judge


def answering(monkeypatch: pytest.MonkeyPatch, kind: str) -> list[str]:
    """Graders that answer so; the list may be changed meanwhile."""
    kinds = [kind]

    async def call(_self: Grading, _plan: Plan, _play: Play, name: str, *_: Any) -> GraderAnswer:
        if kinds[0] == "answered":
            return GraderAnswer(name, "answered", passed=True, llm_calls=1)
        return GraderAnswer(name, kinds[0], error="503 from the judge", llm_calls=1)

    monkeypatch.setattr(Grading, "_call_grader", call)
    return kinds


async def test_s26_without_a_judge_an_attempt_is_graded_three_times_and_then_missing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.books(GRADED)
    answering(monkeypatch, "judge_unavailable")
    await stage.run()
    graded = 0
    while stage.wire.grades:
        await stage.grade(stage.wire.grades.pop())
        graded += 1
    assert graded == 3
    assert stage.gave_up() == {"0:0:0": "judge_unavailable"}
    assert set(stage.ledger.notes(stage.plan.id)) == {"0:0:0"}


@pytest.mark.parametrize("kind", ["judge_unavailable", "stopped"])
async def test_s23_an_attempt_that_an_assertion_decided_is_recorded_without_a_judge(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It is not graded again, not missing, and stops nothing."""
    stage.books(GRADED.replace("expect: [", "expect: [tool_called: {name: t}, "))
    answering(monkeypatch, kind)
    await stage.run()
    await stage.grade(stage.wire.grades.pop())
    assert (stage.wire.grades, stage.gave_up()) == ([], {})
    [line] = map(jsontext.loads, stage.ledger.records(stage.plan.id).values())
    assert (line["outcome"], line["reason"]) == ("failed", '"t" was never called; no tool was called')
    meta = stage.ledger.meta(stage.plan.id)
    assert meta is not None
    assert meta.state == "running"


async def test_s26_ten_in_a_row_pause_grading_with_one_message_and_use_up_nobodys_turn(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage.books(GRADED)
    kinds = answering(monkeypatch, "judge_unavailable")
    for trial in range(12):
        await stage.run(Conversation(0, trial))
    attempts = [Attempt(0, 0, trial) for trial in range(12)]
    for attempt in attempts:
        await stage.grade(attempt)
    assert stage.gave_up() == {}
    assert len(stage.ledger.snapshot(stage.plan.id).plays) == 12
    said = [r.getMessage() for r in caplog.records if "in a row" in r.getMessage()]
    assert said == [
        f"{JUDGE_ROW} gradings in a row had no judge; grading pauses: judge_unavailable: g.ok: 503 from the judge"
    ]
    kinds[0] = "answered"
    await stage.grade(attempts[0])
    assert stage.ledger.snapshot(stage.plan.id).records == frozenset(), "it is paused"
    stage.ledger.redis.delete(f"ef:s:{stage.plan.id}:judge")  # half a minute later
    for attempt in attempts:
        await stage.grade(attempt)
    assert len(stage.ledger.snapshot(stage.plan.id).records) == 12
    meta = stage.ledger.meta(stage.plan.id)
    assert meta is not None
    assert meta.judge_trouble == ""


# -- a broker that is silent


async def test_i6_a_worker_whose_broker_is_silent_stops_what_it_plays_and_it_is_fed_again(
    tmp_path: Path, valkey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent, not gone: a heartbeat that waited as patiently as a command would learn it a minute too late."""
    monkeypatch.setattr(worker.tasks, "ANSWER_S", 0.2)
    monkeypatch.setattr(worker.heartbeat, "UNCONFIRMED_S", 0.6)
    left = asyncio.Event()

    async def waits(turn: Turn, sink: Sink) -> Ended:
        return await never(turn, sink)

    real = Player.play

    async def play(self: Any) -> Any:
        try:
            return await real(self)
        finally:
            left.set()

    monkeypatch.setattr(Player, "play", play)
    async with staged(tmp_path, valkey) as stage:
        stage.crew.heart.every = 0.1
        stage.crew.heart.beat_now()
        stage.api.driver.script = waits
        running = asyncio.create_task(stage.run())
        await until(lambda: stage.crew.heart.held == 1 and stage.api.driver.now == 1, "it plays")
        with redis.Redis.from_url(valkey) as broker:
            broker.execute_command("CLIENT", "PAUSE", 3000, "ALL")
        began = time.monotonic()
        await asyncio.wait_for(left.wait(), 10)
        assert time.monotonic() - began < 2.5, "it was left while the broker was silent"
        await running
        await until(lambda: stage.claims() == {}, "the claim went back")
        assert stage.ledger.take_returned(stage.plan.id) == [FIRST]


async def test_a_bug_of_ours_ends_the_submission_by_its_name(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it shows in a worker's log only, and a person sees that nothing moves."""

    def broken(*_: Any) -> None:
        raise AttributeError("no such thing")

    monkeypatch.setattr(stage.crew, "aggregate", broken)
    app = Celery("test", set_as_current=False)
    add_tasks(app, stage.crew, Intake(["aggregate"], 1))
    with pytest.raises(AttributeError):
        app.tasks[AGGREGATE_TASK].run({"plan": stage.plan.id})
    meta = stage.ledger.meta(stage.plan.id)
    assert meta is not None
    assert (meta.state, meta.code) == ("stopped", FAULT)
    assert "AttributeError: no such thing" in meta.reason


def test_a_message_that_cannot_be_read_is_dropped(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """I3: one of another version, or of somebody else."""
    app = Celery("test", set_as_current=False)
    add_tasks(app, stage.crew, Intake(["aggregate"], 1))
    app.tasks[AGGREGATE_TASK].run({"plan": 7})
    assert "a message is dropped" in caplog.text
