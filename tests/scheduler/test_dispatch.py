"""The dispatcher against a real Valkey; the test plays the workers by hand, message by message (I1, I3, I6–I8)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from evalfleet.errors import ResultsAway, TargetUnreachable
from evalfleet.givenup import entry
from evalfleet.ledger import JUDGE_ROW, Claimed, Ledger, Progress, Reading
from evalfleet.plan import Attempt, Conversation, Plan, PlannedGraders
from scheduler.dispatch import Books, Dispatcher, Ended
from scheduler.drive import drive
from scheduler.enough import Enough
from scheduler.share import AHEAD
from tests.scheduler.samples import plan as plan_of
from tests.scheduler.samples import scenario
from tests.test_ledger import make_plan


class Wire:
    """Where messages go: lists, which the test reads as a worker would; it can be cut."""

    def __init__(self) -> None:
        self.runs: list[Conversation] = []
        self.grades: list[Attempt] = []
        self.aggregates = 0
        self.cut = False

    def run(self, plan: str, conversations: Sequence[Conversation]) -> None:
        if self.cut:
            raise TargetUnreachable("the broker takes no message")
        self.runs += conversations

    def grade(self, plan: str, attempt: Attempt) -> None:
        self.grades.append(attempt)

    def aggregate(self, plan: str) -> None:
        self.aggregates += 1

    def queued(self, queue: str) -> int:
        return {"run": len(self.runs), "grade": len(self.grades), "aggregate": self.aggregates}[queue]


class Scene:
    def __init__(self, ledger: Ledger, plan: Plan) -> None:
        self.ledger, self.plan, self.wire = ledger, plan, Wire()
        self.now = 1000.0
        self.reloaded: dict[Attempt, str] = {}
        self.dispatcher = self.another()
        ledger.add(plan, {})
        self.live("w")

    def another(self) -> Dispatcher:
        return Dispatcher(
            self.ledger, self.plan, self.wire, reload=lambda: Books(self.reloaded), clock=lambda: self.now
        )

    def live(self, *workers: str) -> None:
        for worker in workers:
            self.ledger.beat(worker, {"queues": "run,grade,aggregate"}, [])

    def step(self, seconds: float = 0.0) -> Ended | None:
        self.now += seconds
        return self.dispatcher.step()

    def take(self, worker: str = "w") -> Conversation:
        """A worker takes the next message and claims what it names."""
        conversation = self.wire.runs.pop(0)
        answer = self.ledger.claim(self.plan.id, conversation, self.plan.attempts(conversation), worker)
        assert answer is Claimed.CLAIMED
        return conversation

    def play(self, conversation: Conversation, worker: str = "w") -> None:
        """… plays it to the end, and an aggregator records it."""
        attempts = self.plan.attempts(conversation)
        for attempt in attempts:
            self.ledger.put_record(self.plan.id, attempt, b"{}", "passed")
        self.ledger.release(self.plan.id, conversation, worker, played=True)
        self.ledger.confirm(self.plan.id, dict.fromkeys(attempts, "passed"))


@pytest.fixture
def ledger(valkey: str) -> Iterator[Ledger]:
    made = Ledger(valkey, prefix=f"t{uuid.uuid4().hex[:8]}:")
    made.open_epoch(mine=True)
    yield made
    made.redis.delete(*made.redis.keys(f"{made.prefix}*"))
    made.close()


@pytest.fixture
def scene(ledger: Ledger) -> Scene:
    return Scene(ledger, make_plan(concurrency=2))


def test_i7_never_more_than_the_concurrency_is_in_flight(scene: Scene) -> None:
    scene.step()
    scene.step()
    assert len(scene.wire.runs) == 2
    first = scene.take()
    scene.step()
    assert len(scene.wire.runs) == 1, "one claimed and one queued are two in flight"
    scene.play(first)
    scene.step()
    assert len(scene.wire.runs) == 2


def test_a_submission_is_fed_to_its_end_and_then_completed_by_the_aggregator(scene: Scene) -> None:
    played = []
    for _ in range(10):
        assert scene.step() is None
        if not scene.wire.runs:
            break
        played.append(scene.take())
        scene.play(played[-1])
    assert sorted(c.trial for c in played) == [0, 1, 2]
    scene.ledger.end(scene.plan.id, "completed")
    assert scene.step() == Ended("completed", "", "", {})


def test_s36_nothing_is_fed_any_more_when_enough_has_failed(scene: Scene) -> None:
    """`--max-failures 1`: what is in flight goes on, and no further message is sent."""
    enough = Enough(scene.plan, 1, allow_flaky=False)
    scene.dispatcher = Dispatcher(
        scene.ledger, scene.plan, scene.wire, reload=lambda: Books({}), enough=enough, clock=lambda: scene.now
    )
    scene.step()
    first, second = scene.take(), scene.take()
    scene.play(first)
    assert (scene.step(), scene.dispatcher.stopping) == (None, "")
    scene.wire.runs.clear()
    scene.ledger.put_record(scene.plan.id, scene.plan.attempts(second)[0], b"{}", "failed")
    scene.ledger.release(scene.plan.id, second, "w", played=True)
    assert scene.step(60) is None
    assert scene.dispatcher.stopping == "1 scenario failed (c/one), and --max-failures is 1"
    assert scene.wire.runs == []
    meta = scene.ledger.meta(scene.plan.id)
    assert meta is not None
    assert (meta.state, meta.draining) == ("running", True)


def test_i1_a_new_dispatcher_goes_on_from_the_ledger_alone(scene: Scene) -> None:
    scene.step()
    scene.play(scene.take())
    held = scene.take()
    scene.wire.runs.clear()
    scene.dispatcher = scene.another()
    scene.step()
    assert scene.wire.runs == [Conversation(0, 2)], "what is done or claimed is not sent again"
    assert held == Conversation(0, 1)


def test_i3_a_message_that_got_lost_is_sent_again(scene: Scene) -> None:
    scene.step()
    lost = list(scene.wire.runs)
    scene.wire.runs.clear()
    scene.ledger.redis.hset(  # they were sent two seconds ago
        f"{scene.ledger.prefix}s:{scene.plan.id}:published",
        mapping={str(c): scene.ledger.now_ms() - 2_000 for c in lost},
    )
    scene.step(11)
    assert sorted(scene.wire.runs, key=str) == sorted(lost, key=str)


def test_i3_a_broker_that_takes_no_message_costs_time_only(scene: Scene) -> None:
    scene.wire.cut = True
    with pytest.raises(TargetUnreachable):
        scene.step()
    scene.wire.cut = False
    for name in scene.ledger.snapshot(scene.plan.id).published:
        scene.ledger.redis.hset(f"{scene.ledger.prefix}s:{scene.plan.id}:published", name, 0)
    scene.step(11)
    assert len(scene.wire.runs) == 2


def test_i6_what_a_dead_worker_held_is_fed_again(scene: Scene) -> None:
    scene.step()
    taken = {scene.take(), scene.take()}
    scene.live("v")
    scene.ledger.declare_dead("w")
    scene.step(3)
    scene.step()
    assert set(scene.wire.runs) == taken


def test_a_grading_without_a_message_is_sent_again(scene: Scene) -> None:
    scene.step()
    conversation = scene.take()
    waiting, recorded = scene.plan.attempts(conversation)
    scene.ledger.put_play(scene.plan.id, waiting, b"{}")
    scene.ledger.put_record(scene.plan.id, recorded, b"{}", "passed")
    scene.ledger.release(scene.plan.id, conversation, "w", played=True)
    scene.step(11)
    assert scene.wire.grades == [waiting]
    assert scene.wire.aggregates == 1


def test_too_much_that_awaits_grading_or_recording_stops_the_feeding(scene: Scene) -> None:
    scene.step()
    for conversation in (scene.take(), scene.take()):
        for attempt in scene.plan.attempts(conversation):
            scene.ledger.put_play(scene.plan.id, attempt, b"{}")
        scene.ledger.release(scene.plan.id, conversation, "w", played=True)
    scene.step()
    assert scene.wire.runs == [], "four attempts wait, twice the concurrency"
    scene.ledger.confirm(scene.plan.id, {Attempt(0, 0, 0): "passed"})
    scene.step()
    assert scene.wire.runs == [Conversation(0, 2)]


def test_it_ends_incomplete_when_all_that_is_missing_was_given_up(scene: Scene) -> None:
    for _ in range(2):
        scene.step()
        scene.play(scene.take())
    scene.step()
    conversation = scene.take()
    scene.ledger.give_up(scene.plan.id, conversation, "the platform is down", "target_unreachable")
    scene.ledger.put_note(scene.plan.id, "0:0:2", b"{}")
    scene.ledger.release(scene.plan.id, conversation, "w", played=True)
    assert scene.step() is None, "what is known of it goes to the artifact first"
    assert scene.wire.aggregates == 1
    scene.ledger.drop_notes(scene.plan.id, ["0:0:2"])
    scene.step()
    ended = scene.step()
    assert ended is not None
    assert (ended.state, ended.reason) == ("incomplete", "the platform is down")
    assert ended.given_up is not None
    assert set(ended.given_up) == {str(conversation)}


def test_i8_a_submission_without_progress_ends_with_the_reason(scene: Scene) -> None:
    scene.ledger.declare_dead("w")
    scene.step()
    scene.step()
    scene.step(31)
    assert "no worker is alive" in scene.dispatcher.idle_reason
    assert scene.step() is None
    scene.step(scene.plan.limits.stall)
    ended = scene.step()
    assert ended is not None
    assert (ended.state, ended.code) == ("stopped", "stalled")
    assert "no worker is alive" in ended.reason


def test_enough_failures_end_a_fleets_submission_when_what_is_in_flight_is_recorded(scene: Scene) -> None:
    """Nobody sits there who would press Ctrl-C: the dispatcher ends it, and with what is missing it can go on."""
    scene.dispatcher = Dispatcher(
        scene.ledger, scene.plan, scene.wire, reload=lambda: Books({}), enough=Enough(scene.plan, 1, allow_flaky=False),
        clock=lambda: scene.now,
    )  # fmt: skip
    scene.step()
    lost, other = scene.take(), scene.take()
    for attempt, outcome in zip(scene.plan.attempts(lost), ("failed", "passed"), strict=True):
        scene.ledger.put_record(scene.plan.id, attempt, b"{}", outcome)
    scene.ledger.release(scene.plan.id, lost, "w", played=True)
    assert scene.step() is None
    assert scene.dispatcher.stopping == "1 scenario failed (c/one), and --max-failures is 1"
    assert scene.step(40) is None, "one is in flight, and one waits to be recorded"
    assert scene.wire.runs == [], "nothing more is fed"
    meta = scene.ledger.meta(scene.plan.id)
    assert meta is not None
    assert meta.state == "running"
    scene.play(other)
    scene.ledger.confirm(scene.plan.id, dict.fromkeys(scene.plan.attempts(lost), "failed"))
    scene.step()
    ended = scene.step()
    assert ended is not None
    assert (ended.state, ended.code, ended.reason) == ("stopped", "max_failures", scene.dispatcher.stopping)
    assert not ended.is_by_limit, "the gate is lost: exit code 1"


def test_what_waits_to_be_recorded_is_waited_for_no_longer_than_ever_when_enough_has_failed(scene: Scene) -> None:
    scene.dispatcher.enough = Enough(scene.plan, 1, allow_flaky=False)
    scene.step()
    lost = scene.take()
    for attempt in scene.plan.attempts(lost):
        scene.ledger.put_record(scene.plan.id, attempt, b"{}", "failed")
    scene.ledger.release(scene.plan.id, lost, "w", played=True)
    for _ in range(3):
        assert scene.step() is None
    scene.step(scene.plan.limits.stall)
    ended = scene.step()
    assert ended is not None
    assert ended.code == "stalled"


def test_what_no_worker_has_the_key_for_is_sent_to_none_and_says_which_variable_is_not_set_where(scene: Scene) -> None:
    target = replace(scene.plan.target, base_url="https://p.example/api", profile="acme-eu")
    cases = tuple(replace(scene.plan.cases[0], name=f"c{number}") for number in range(4))
    scene.plan = replace(scene.plan, id="sub_of_another_account", target=target, concurrency=20, cases=cases)
    scene.ledger.add(scene.plan, {})
    scene.dispatcher = scene.another()
    busy = {"host": "box", "pid": 7, "slots": 64}
    scene.ledger.declare_dead("w")
    scene.ledger.beat("f" * 32, {**busy, "queues": "run,run-default,run-acme"}, [])
    scene.ledger.beat("e" * 32, {**busy, "queues": "grade,grade-acme-eu"}, [])
    scene.step()
    assert len(scene.wire.runs) == AHEAD, "the places of others are not its own"
    scene.step()
    scene.step(31)
    wanted = "SPLOX_API_KEY_ACME_EU is not set on any worker that could take its messages: box-7-ffffffff"
    assert scene.dispatcher.note == wanted
    scene.ledger.beat("d" * 32, {**busy, "pid": 8, "queues": "run-acme-eu"}, [])
    scene.take("d" * 32)
    scene.step(1)
    assert scene.dispatcher.note == ""


def test_i8_a_long_run_is_not_a_stall(scene: Scene) -> None:
    scene.step()
    scene.take()
    scene.take()
    for _ in range(5):
        scene.live("w")
        assert scene.step(scene.plan.limits.stall) is None
    meta = scene.ledger.meta(scene.plan.id)
    assert meta is not None
    assert meta.state == "running"


def test_redis_came_back_empty_and_the_plan_goes_back_on_the_books(scene: Scene) -> None:
    scene.step()
    scene.play(scene.take())
    scene.reloaded = dict.fromkeys(scene.plan.attempts(Conversation(0, 0)), "recorded")
    scene.wire.runs.clear()
    scene.ledger.redis.delete(*scene.ledger.redis.keys(f"{scene.ledger.prefix}*"))
    assert scene.step() is None
    scene.step()
    assert scene.wire.runs == [], "in the grace a message would only be dropped by its claim"
    scene.ledger.open_epoch(mine=True)
    scene.step()
    assert sorted(c.trial for c in scene.wire.runs) == [1, 2]
    assert scene.ledger.asked_replay(scene.plan.id), "evidence that Redis forgot is sent again"


def test_a_pause_outlives_a_broker_that_forgets(scene: Scene) -> None:
    scene.ledger.pause(scene.plan.id)
    scene.step()
    scene.ledger.redis.delete(*scene.ledger.redis.keys(f"{scene.ledger.prefix}*"))
    scene.step()
    scene.ledger.open_epoch(mine=True)
    scene.step()
    assert scene.wire.runs == []
    scene.ledger.unpause(scene.plan.id)
    scene.step()
    assert scene.wire.runs


def test_s38_a_draining_submission_is_not_fed(scene: Scene) -> None:
    scene.ledger.drain(scene.plan.id)
    scene.step()
    assert scene.wire.runs == []


def test_driving_shows_progress_and_ends_when_told(scene: Scene) -> None:
    shown: list[int] = []

    def tick(progress: object, note: str) -> bool:
        shown.append(len(scene.wire.runs))
        return len(shown) == 2

    scene.dispatcher.clock = time.monotonic
    assert drive(scene.dispatcher, tick=tick, every=0.01).state == "left"
    assert shown[-1] == 2


def test_driving_ends_with_the_submission(scene: Scene) -> None:
    scene.ledger.end(scene.plan.id, "stopped", "out of money", "out_of_funds")
    ended = drive(scene.dispatcher, tick=lambda _progress, _note: False, every=0.01)
    assert (ended.state, ended.reason, ended.code) == ("stopped", "out of money", "out_of_funds")


def test_what_is_judged_when_a_submission_is_stopped_is_waited_for(scene: Scene) -> None:
    """Three of eight attempts stood in the summary and in trials.jsonl: the other five were recorded a moment later."""
    scene.step()
    conversation = scene.take()
    [attempt] = scene.plan.attempts(conversation)[:1]
    scene.ledger.end(scene.plan.id, "stopped", "out of money", "out_of_funds")
    steps: list[Callable[[], object]] = [
        lambda: scene.ledger.put_record(scene.plan.id, attempt, b"{}", "passed"),
        lambda: scene.ledger.release(scene.plan.id, conversation, "w", played=True),
        lambda: scene.ledger.confirm(scene.plan.id, {attempt: "passed"}),
    ]
    said: list[str] = []

    def tick(_progress: object, note: str) -> bool:
        said.append(note)
        if steps:
            steps.pop(0)()
        return False

    ended = drive(scene.dispatcher, tick=tick, every=0.01)
    assert (ended.state, ended.code, steps) == ("stopped", "out_of_funds", [])
    assert said[0] == "recording what is judged already"
    assert scene.ledger.progress(scene.plan.id).recorded == 1


def test_what_never_gets_recorded_is_waited_for_no_longer_than_its_limit(scene: Scene) -> None:
    scene.step()
    scene.take()
    scene.ledger.end(scene.plan.id, "stopped", "out of money", "out_of_funds")

    def tick(_progress: object, _note: str) -> bool:
        scene.now += 4
        return False

    began = scene.now
    assert drive(scene.dispatcher, tick=tick, every=0.01).state == "stopped"
    assert scene.now - began < 20
    assert drive(scene.dispatcher, tick=lambda *_: True, every=0.01).state == "left", "a scheduler that leaves"


def test_what_is_noted_of_given_up_attempts_calls_the_aggregator_once(scene: Scene) -> None:
    for _ in range(3):
        scene.step()
        conversation = scene.take()
        scene.ledger.give_up(scene.plan.id, conversation, "the platform is down", "target_unreachable")
        scene.ledger.release(scene.plan.id, conversation, "w", played=True)
    scene.ledger.put_note(scene.plan.id, "0:0:2", b"{}")
    for _ in range(20):
        scene.step(0.5)
    assert scene.wire.aggregates == 1


def test_s26_a_pause_for_want_of_a_judge_is_said_and_ends_as_a_stall_with_that_reason(scene: Scene) -> None:
    scene.step()
    conversation = scene.take()
    for attempt in scene.plan.attempts(conversation):
        scene.ledger.put_play(scene.plan.id, attempt, b"{}")
    scene.ledger.release(scene.plan.id, conversation, "w", played=True)
    scene.play(scene.take())
    for _ in range(JUDGE_ROW):
        scene.ledger.judge_failed(scene.plan.id, "503 from the judge")
    scene.step()
    assert scene.dispatcher.note == "grading is paused, the judge failed 10 times in a row: 503 from the judge"
    scene.play(scene.take())
    for _ in range(4):
        scene.step(scene.plan.limits.stall)
    ended = scene.step()
    assert ended is not None
    assert (ended.state, ended.code) == ("stopped", "stalled")
    assert "503 from the judge" in ended.reason


JUDGE = "http://judge.test/v1"


@pytest.fixture
def judged(ledger: Ledger) -> Scene:
    """Twenty trials of a scenario whose grader may ask the judge, and twenty of one whose grader does not."""
    expect = [{"grader": {"name": "g.asks"}}], [{"grader": {"name": "g.counts"}}]
    rows = {
        "judged": [scenario("a", trials=20, expect=expect[0])],
        "plain": [scenario("b", trials=20, expect=expect[1])],
    }
    graders = PlannedGraders(
        "sha256:0", None, (), network=False, memory_mb=64, judge=True, judge_address=JUDGE, asking=("g.asks",)
    )
    return Scene(ledger, replace(plan_of(rows, ks=(20,)), concurrency=2, graders=graders))


def test_s26_what_is_awaited_is_named_with_its_address_before_the_judge_has_failed(judged: Scene) -> None:
    """Item 23: it said "do the target and the results store answer?" for 94 s."""
    judged.step()
    for conversation in (judged.take(), judged.take()):
        (attempt,) = judged.plan.attempts(conversation)
        judged.ledger.put_play(judged.plan.id, attempt, b"{}")
        judged.ledger.release(judged.plan.id, conversation, "w", played=True)
        assert judged.ledger.claim_grade(judged.plan.id, attempt, "w") is not None
    judged.dispatcher.queue.clear()
    judged.wire.cut = True
    judged.dispatcher.idle_reason = judged.dispatcher._why_idle(0, 2)
    assert judged.dispatcher.note == f"2 attempts wait for their graders, which ask the judge at {JUDGE}"
    judged.ledger.judge_failed(judged.plan.id, f"judge_unavailable: g.asks: the judge: {JUDGE} cannot be reached")
    judged.wire.cut = False
    judged.step()
    assert judged.dispatcher.note == (
        f"graders are asked again, they had no judge: judge_unavailable: g.asks: the judge: {JUDGE} cannot be reached"
    )


def test_s26_scenarios_that_need_no_judge_go_on_while_it_is_away(judged: Scene) -> None:
    waiting = 0
    while waiting < 4:  # twice the concurrency
        judged.step()
        conversation = judged.take()
        if conversation.case == 1:
            judged.play(conversation)
            continue
        for attempt in judged.plan.attempts(conversation):
            judged.ledger.put_play(judged.plan.id, attempt, b"{}")
        judged.ledger.release(judged.plan.id, conversation, "w", played=True)
        waiting += 1
    while judged.wire.runs:
        judged.play(judged.take())
    judged.step()
    assert judged.wire.runs == [], "graders are slow: no more is begun than may wait"
    judged.ledger.judge_failed(judged.plan.id, "503")
    played: list[Conversation] = []
    for _ in range(40):
        judged.step(1.0)
        while judged.wire.runs:
            played.append(judged.take())
            judged.play(played[-1])
    assert {conversation.case for conversation in played} == {1}
    done = judged.ledger.snapshot(judged.plan.id).done
    assert all(Attempt(1, 0, trial) in done for trial in range(20))


@pytest.fixture
def full(scene: Scene) -> Iterator[Scene]:
    """The broker takes no write for want of memory, until it is given some."""
    scene.ledger.redis.config_set("maxmemory", "1")
    yield scene
    scene.ledger.redis.config_set("maxmemory", "0")


def test_i8_results_that_are_not_taken_are_said_and_waited_for_and_only_after_the_stall_limit_it_ends(
    scene: Scene,
) -> None:
    scene.step()
    conversation = scene.take()
    for attempt in scene.plan.attempts(conversation):
        scene.ledger.put_record(scene.plan.id, attempt, b"{}", "passed")
    scene.ledger.release(scene.plan.id, conversation, "w", played=True)
    scene.ledger.store_away(scene.plan.id, "s3://b: no route")
    assert scene.step() is None
    assert scene.dispatcher.note.startswith("nothing can be recorded since ")
    assert "UTC: s3://b: no route; what is judged waits, and goes on by itself" in scene.dispatcher.note
    for _ in range(30):
        scene.step(1)
    asked = scene.wire.aggregates
    assert asked == 1, "a message that waits is enough"
    scene.wire.aggregates = 0
    scene.step(10)
    assert scene.wire.aggregates == 1, "it is asked again and again"

    scene.ledger.store_back(scene.plan.id)
    scene.ledger.confirm(scene.plan.id, {scene.plan.attempts(conversation)[0]: "passed"})
    scene.step()
    assert scene.dispatcher.note == ""
    scene.ledger.store_away(scene.plan.id, "s3://b: no route")
    scene.ledger.redis.hincrby(f"{scene.ledger.prefix}s:{scene.plan.id}:meta", "store_since", -601_000)
    assert scene.ledger.pause(scene.plan.id)
    assert scene.step() is None
    assert scene.step() is None, "who pauses it may take his time"
    scene.ledger.unpause(scene.plan.id)
    scene.step()
    ended = scene.step()
    assert ended is not None
    assert (ended.state, ended.code) == ("stopped", "storage")
    assert ended.reason.startswith("nothing could be recorded for 601 s: s3://b: no route; what is judged waits")
    assert len(scene.ledger.records(scene.plan.id)) == 1


def test_while_results_are_not_taken_the_last_word_of_what_is_missing_is_not_tried_without_a_pause(
    scene: Scene,
) -> None:
    scene.step()
    while scene.wire.runs:
        conversation = scene.take()
        scene.ledger.release(
            scene.plan.id, conversation, "w", played=True, gave_up=entry("every try failed", "agent_not_started")
        )
        scene.ledger.put_note(scene.plan.id, str(conversation), b"{}")
        scene.step()
    scene.ledger.store_away(scene.plan.id, "s3://b: no route")
    asked = 0
    for _ in range(40):
        scene.wire.aggregates = 0  # a worker has taken it, in vain
        scene.step(0.5)
        asked += scene.wire.aggregates
    assert 2 <= asked <= 5, "in 20 s"


def test_results_that_cannot_be_read_again_after_redis_forgot_are_waited_for(scene: Scene) -> None:
    scene.step()
    scene.ledger.forget(scene.plan.id)
    reload, away = scene.dispatcher.reload, True

    def reloaded() -> Books:
        if away:
            raise ResultsAway("s3://b: no route")
        return reload()

    scene.dispatcher.reload = reloaded
    notes: list[str] = []

    def tick(_: Progress, note: str) -> bool:
        nonlocal away
        notes.append(note)
        scene.now += 1
        if len(notes) == 3:
            away = False
        meta = scene.ledger.meta(scene.plan.id)
        return meta is not None and meta.state == "running"

    assert drive(scene.dispatcher, tick=tick, every=0.01) == Ended("left")
    assert notes[:3] == ["s3://b: no route"] * 3


def test_a_broker_that_is_full_is_waited_for_and_what_it_holds_goes_on(full: Scene) -> None:
    """D08: one moment of it must not stop every submission of a fleet."""
    notes: list[str] = []

    def tick(_progress: Progress, note: str) -> bool:
        notes.append(note)
        if len(notes) == 3:
            full.ledger.redis.config_set("maxmemory", "0")
        return bool(full.wire.runs)

    full.dispatcher.clock = time.monotonic
    assert drive(full.dispatcher, tick=tick, every=0.01) == Ended("left")
    assert "refuses writes" in notes[2]
    assert full.wire.runs, "what was about to be sent when it was full is found again"


def test_i8_a_broker_that_stays_full_ends_the_driving_and_the_submission_too(full: Scene) -> None:
    """Else it is dropped by its scheduler, played on by its workers and waited for by everybody else."""

    def tick(_progress: Progress, _note: str) -> bool:
        full.now += full.plan.limits.stall
        return False

    ended = drive(full.dispatcher, tick=tick, every=0.01)
    assert (ended.state, ended.code) == ("stopped", "broker_away")
    assert "refuses writes" in ended.reason
    meta = full.ledger.meta(full.plan.id)
    assert meta is not None
    assert (meta.state, meta.reason) == ("stopped", ended.reason)


@pytest.mark.parametrize(
    ("ended", "ours"),
    [
        pytest.param(Ended("stopped", "x", "fault"), True, id="stopped by a bug of ours"),
        pytest.param(
            Ended("incomplete", "x", "given_up", {"0:1": {"reason": "x", "code": "fault"}}), True, id="one of it"
        ),
        pytest.param(
            Ended("incomplete", "x", "given_up", {"0:1": {"reason": "x", "code": "tries"}}), False, id="theirs"
        ),
        pytest.param(Ended("completed"), False, id="completed"),
    ],
)
def test_s36_a_bug_of_ours_is_told_from_trouble(ended: Ended, ours: bool) -> None:
    assert ended.is_our_fault is ours


def test_s36_a_used_up_budget_ends_it_when_all_in_flight_has_ended(scene: Scene) -> None:
    plan = replace(scene.plan, limits=replace(scene.plan.limits, budget="0.01"))
    scene.plan = plan
    scene.dispatcher = scene.another()
    scene.ledger.end(plan.id, "stopped")
    scene.ledger.add(plan, {})
    scene.step()
    first, second = scene.take(), scene.take()
    scene.ledger.release(plan.id, first, "w", played=True, readings=[Reading(0, 20_000_000, "USD")])
    for attempt in plan.attempts(first):
        scene.ledger.put_record(plan.id, attempt, b"{}", "passed")
    scene.ledger.confirm(plan.id, dict.fromkeys(plan.attempts(first), "passed"))
    assert scene.step(10) is None
    assert scene.wire.runs == [], "nothing more is begun"
    scene.play(second)
    assert scene.step() is None
    ended = scene.step()
    assert ended is not None
    assert (ended.state, ended.code, ended.is_by_limit) == ("stopped", "budget", True)
    assert "0.02 USD spent by 1 conversation, and --budget is 0.01" in ended.reason


def test_a_budget_that_is_used_up_by_the_last_conversation_completes(scene: Scene) -> None:
    plan = replace(scene.plan, limits=replace(scene.plan.limits, budget="0.03"))
    scene.ledger.end(plan.id, "stopped")
    scene.ledger.add(plan, {})
    while scene.step() is None and (scene.wire.runs or scene.ledger.progress(plan.id).recorded < 6):
        conversation = scene.take()
        attempts = plan.attempts(conversation)
        scene.ledger.release(plan.id, conversation, "w", played=True, readings=[Reading(0, 10_000_000, "USD")])
        for attempt in attempts:
            scene.ledger.put_record(plan.id, attempt, b"{}", "passed")
        scene.ledger.confirm(plan.id, dict.fromkeys(attempts, "passed"))
    assert scene.ledger.load(plan.id).closed == "budget"
    scene.step()
    meta = scene.ledger.meta(plan.id)
    assert meta is not None
    assert meta.state == "running", "the aggregator is about to complete it"


def test_s17_while_the_target_is_down_one_goes_on_asking_and_the_note_says_so(scene: Scene) -> None:
    scene.ledger.target_down("server", "connection refused")
    scene.step()
    assert len(scene.wire.runs) == 1, "concurrency is 2"
    conversation = scene.take()
    scene.ledger.release(scene.plan.id, conversation, "w", played=False)
    assert scene.step(30) is None
    assert "server is down since" in scene.dispatcher.note
    assert scene.ledger.given_up(scene.plan.id) == {}
    scene.ledger.target_answered("server")
    scene.step()
    assert scene.dispatcher.note == ""
    assert len(scene.wire.runs) == 2


def test_nothing_is_sent_before_the_time_that_the_target_named(scene: Scene) -> None:
    scene.ledger.target_busy("server", 60_000, "429 rate_limited")
    scene.step()
    assert scene.wire.runs == []
    assert "asked everybody to wait until" in scene.dispatcher.note


def test_i8_a_target_that_takes_nothing_for_too_long_ends_it_resumable_though_one_goes_on_asking(scene: Scene) -> None:
    scene.ledger.target_down("server", "connection refused")
    scene.step()
    scene.take()
    scene.ledger.redis.hincrby(f"{scene.ledger.prefix}t:server", "since", -1000 * scene.plan.limits.stall - 1)
    assert scene.step() is None
    ended = scene.step()
    assert ended is not None
    assert (ended.state, ended.code) == ("stopped", "target_down")
    assert "connection refused; nothing was given up" in ended.reason


def test_a_fleets_limit_on_a_target_is_repeated_and_counts_over_submissions(scene: Scene) -> None:
    other = make_plan()
    scene.ledger.add(other, {})
    scene.dispatcher.target_limit = 1
    scene.step()
    assert len(scene.wire.runs) == 1
    scene.take()
    conversation = Conversation(0, 0)
    assert scene.ledger.claim(other.id, conversation, other.attempts(conversation), "w") is Claimed.BUSY
    assert scene.step(10) is None
    assert 50_000 < scene.ledger.redis.pttl(f"{scene.ledger.prefix}t:server:ceiling") <= 60_000
