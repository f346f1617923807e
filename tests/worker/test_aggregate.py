"""Evidence before record (I4), against the real server and a real Valkey; every place where an aggregator can die."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import scheduler.record
import worker.aggregate
from evalfleet.artifact import append_segment, attempts_index, read_segments, write_plan
from evalfleet.checks.outcome import judge
from evalfleet.contract import jsontext
from evalfleet.contract.client import Client
from evalfleet.errors import ProblemAnswer, ResultsAway, StorageError, TargetUnreachable
from evalfleet.ledger import Claimed, Ledger, Meta
from evalfleet.plan import Attempt, Conversation, Plan
from evalfleet.recording import wire_attempt
from evalfleet.results import FolderResults
from scheduler.plan import evaluation_body
from tests.server.conftest import TOKEN, ScriptedDriver, serving
from tests.worker.test_play import plan_of
from worker.aggregate import Aggregator, aggregate
from worker.evidence import Play, attempt_line
from worker.health import Health
from worker.play import Player
from worker.played import Played

pytestmark = pytest.mark.timeout(60)

CASE = "scenarios:\n  - {id: one, user: a, trials: 3, expect: [final_answer_contains: a]}\n"


class Died(BaseException):
    """Stands for kill -9: nothing catches it, nothing after it runs."""


def die() -> None:
    raise Died


class Recorder:
    """The evaluation calls, blocking as in a worker; `before` and `after` may die."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self.client, self.loop = client, loop
        self.sent: list[list[dict[str, Any]]] = []
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.look: Callable[[Sequence[Mapping[str, Any]]], None] = lambda attempts: None

    def record_attempts(self, evaluation: str, attempts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        self.before()
        self.sent.append([dict(a) for a in attempts])
        self.look(attempts)
        answer: Mapping[str, Any] = self._do(self.client.record_attempts(evaluation, self.sent[-1]))
        self.after()
        return answer

    def whole(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        raise AssertionError(f"nothing here is large: {document}")

    def get_evaluation(self, evaluation: str) -> Mapping[str, Any]:
        document: Mapping[str, Any] = self._do(self.client.get_evaluation(evaluation))
        return document

    def complete_evaluation(self, evaluation: str) -> Mapping[str, Any]:
        document: Mapping[str, Any] = self._do(self.client.complete_evaluation(evaluation))
        return document

    def _do(self, call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(20)


class Stage:
    def __init__(self, ledger: Ledger, plan: Plan, store: FolderResults, client: Client, recorder: Recorder) -> None:
        self.ledger, self.plan, self.store, self.client, self.recorder = ledger, plan, store, client, recorder

    async def judge(self, trial: int) -> tuple[Attempt, dict[str, Any]]:
        """Play one conversation for real and judge it; its attempt line."""
        played: list[Played] = []

        async def hand_over(one: Played) -> None:
            played.append(one)

        async def first(number: int) -> int:
            return number

        player = Player(
            self.client, self.plan, Conversation(0, trial), evidence=(), hand_over=hand_over, first_new_try=first
        )
        assert await player.play() is None
        play = Play.of(played[0])
        judgement = judge(self.plan.scenario(play.attempt), play.trial, play.meaning, ())
        return play.attempt, attempt_line(self.plan, play, judgement, ())

    async def put(self, trial: int) -> None:
        attempt, line = await self.judge(trial)
        self.ledger.put_record(self.plan.id, attempt, jsontext.dumps(line), line["outcome"])

    async def aggregate(self, aggregator: Aggregator | None = None) -> None:
        """A fresh aggregator, as another process would have, unless the worker's own is given."""
        aggregator = aggregator or Aggregator(self.ledger, self.plan, self.store, self.recorder, health=Health())
        self.ledger.redis.delete(f"{self.ledger.prefix}lock:aggregate:{self.plan.id}")  # a dead one's runs out
        await asyncio.to_thread(aggregator.run, uuid.uuid4().hex, threading.Event())

    @property
    def evaluation(self) -> str:
        evaluation = self.plan.evaluations[0].id
        assert evaluation is not None
        return evaluation

    async def recorded(self) -> list[int] | None:
        case = (await self.client.get_evaluation(self.evaluation))["cases"][0]
        recorded: list[int] | None = case["recorded_attempts"]
        return recorded

    def evidence(self) -> list[int]:
        return sorted(line["trial"] for line in read_segments(self.store, self.plan.artifact))

    @property
    def meta(self) -> Meta:
        meta = self.ledger.meta(self.plan.id)
        assert meta is not None
        return meta


@pytest.fixture
async def stage(tmp_path: Path, valkey: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(worker.aggregate, "WINDOW_S", 0.01)
    ledger = Ledger(valkey, prefix=f"t{uuid.uuid4().hex[:8]}:")
    ledger.open_epoch(mine=True)
    async with serving(tmp_path, ScriptedDriver()) as api, Client(api.url, TOKEN) as client:
        plan = plan_of(CASE, api.harness_id)
        created = await client.create_evaluation(evaluation_body(plan, 0), key="create")
        plan = plan.with_evaluations([created.document["id"]])
        store = FolderResults(tmp_path / "results")
        write_plan(store, plan)
        ledger.add(plan, {})
        yield Stage(ledger, plan, store, client, Recorder(client, asyncio.get_running_loop()))
    ledger.forget(plan.id)
    ledger.close()


async def test_what_is_judged_becomes_evidence_then_recorded_then_the_evaluation_is_completed(stage: Stage) -> None:
    await stage.put(0)
    await stage.put(1)
    await stage.aggregate()
    assert await stage.recorded() == [0, 1]
    assert stage.meta.state == "running"
    await stage.put(2)
    await stage.aggregate()
    document = await stage.client.get_evaluation(stage.evaluation)
    assert (document["status"], document["metrics"]["pass_hat_k"]) == ("completed", 1)
    assert stage.meta.state == "completed"
    assert stage.ledger.records(stage.plan.id) == {}
    assert stage.evidence() == [0, 1, 2]


async def test_i4_nothing_is_recorded_that_is_not_in_evidence(stage: Stage) -> None:
    seen: list[list[int]] = []
    stage.recorder.before = lambda: seen.append(stage.evidence())
    await stage.put(0)
    await stage.aggregate()
    assert seen == [[0]]


async def test_an_aggregator_that_dies_between_evidence_and_record_is_finished_by_the_next(stage: Stage) -> None:
    await stage.put(0)
    stage.recorder.before = die
    with pytest.raises(Died):
        await stage.aggregate()
    assert await stage.recorded() is None
    stage.recorder.before = lambda: None
    await stage.aggregate()
    assert await stage.recorded() == [0]
    assert len(list((stage.store.root / stage.plan.artifact / "trials").iterdir())) == 1, "no second line was written"


async def test_an_aggregator_that_dies_after_the_record_leaves_a_duplicate_and_nothing_else(stage: Stage) -> None:
    await stage.put(0)
    stage.recorder.after = die
    with pytest.raises(Died):
        await stage.aggregate()
    stage.recorder.after = lambda: None
    await stage.aggregate()
    assert stage.recorder.sent[0] == stage.recorder.sent[1]
    assert await stage.recorded() == [0]
    assert stage.ledger.records(stage.plan.id) == {}


async def test_evidence_whose_record_was_lost_with_redis_is_sent_by_a_replay(stage: Stage) -> None:
    await stage.put(0)
    stage.recorder.before = die
    with pytest.raises(Died):
        await stage.aggregate()
    stage.recorder.before = lambda: None
    stage.ledger.forget(stage.plan.id)  # Redis came back empty
    stage.ledger.add(stage.plan, {}, replay=True)
    await stage.aggregate()
    assert await stage.recorded() == [0]


async def test_i4_the_first_line_of_an_attempt_is_the_attempt_and_its_run_is_sent(stage: Stage) -> None:
    """Two aggregators wrote the same attempt with two runs: both send the run of the first line."""
    attempt, line = await stage.judge(0)
    other = {**line, "run_id": (await stage.judge(1))[1]["run_id"], "outcome": "failed"}
    append_segment(stage.store, stage.plan.artifact, [line])
    append_segment(stage.store, stage.plan.artifact, [other])
    stage.ledger.put_record(stage.plan.id, attempt, jsontext.dumps(other), "failed")
    await stage.aggregate()
    assert [(a["run_id"], a["verdict"]) for a in stage.recorder.sent[0]] == [(line["run_id"], "passed")]


async def test_s35_an_attempt_that_somebody_else_recorded_is_marked_and_the_rest_is_sent(stage: Stage) -> None:
    attempt, theirs = await stage.judge(0)
    await stage.client.record_attempts(stage.evaluation, [wire_attempt(stage.plan, attempt, theirs)])
    ours = {**theirs, "run_id": (await stage.judge(1))[1]["run_id"]}
    stage.ledger.put_record(stage.plan.id, attempt, jsontext.dumps(ours), "passed")
    await stage.put(2)
    await stage.aggregate()
    assert await stage.recorded() == [0, 2]
    index = attempts_index(stage.store, stage.plan.artifact)
    assert index[("c", "one", 0)].elsewhere
    assert not index[("c", "one", 2)].elsewhere
    assert stage.ledger.records(stage.plan.id) == {}


async def test_a_platform_that_is_away_leaves_everything_for_the_next_message(stage: Stage) -> None:
    def away() -> None:
        raise TargetUnreachable("nobody answers")

    await stage.put(0)
    stage.recorder.before = away
    with pytest.raises(TargetUnreachable):
        await stage.aggregate()
    assert list(stage.ledger.records(stage.plan.id)) == [Attempt(0, 0, 0)]
    stage.recorder.before = lambda: None
    await stage.aggregate()
    assert stage.ledger.records(stage.plan.id) == {}
    assert await stage.recorded() == [0]


async def test_evidence_that_cannot_be_written_stops_the_submission_and_records_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> bool:
        raise StorageError("the disk is full: free some space")

    await stage.put(0)
    with monkeypatch.context() as patched:
        patched.setattr(stage.store, "write_bytes_exclusive", full)
        with pytest.raises(StorageError):
            await stage.aggregate()
    assert (stage.meta.state, stage.meta.code) == ("stopped", "storage")
    assert "disk is full" in stage.meta.reason
    assert stage.recorder.sent == []
    assert await stage.recorded() is None


@pytest.fixture
def away(stage: Stage) -> Callable[[], None]:
    """The artifact's folder is a file, which root cannot write into either; the function puts it back."""
    folder = stage.store.root / stage.plan.artifact
    kept = folder.rename(folder.with_name("kept"))
    folder.touch()

    def back() -> None:
        folder.unlink()
        kept.rename(folder)

    return back


async def test_a_results_store_that_is_away_is_waited_for_and_what_is_judged_goes_on_when_it_is_back(
    stage: Stage, away: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    health = Health()
    aggregator = Aggregator(stage.ledger, stage.plan, stage.store, stage.recorder, health=health)
    await stage.put(0)
    with pytest.raises(ResultsAway, match="Not a directory"):
        await stage.aggregate(aggregator)
    assert stage.meta.state == "running"
    assert "Not a directory; a part of that path is a file" in stage.meta.store_trouble
    assert "Not a directory" in health.unreachable()["results"]
    assert list(stage.ledger.records(stage.plan.id)) == [Attempt(0, 0, 0)]
    assert stage.recorder.sent == [], "evidence before record"
    for _ in range(3):
        await asyncio.to_thread(aggregate, aggregator, "again", threading.Event())
    warnings = [r for r in caplog.records if r.name.startswith("worker.") and r.levelname == "WARNING"]
    assert len(warnings) == 2, "its health and its submission, once each"

    away()
    await stage.aggregate(aggregator)
    assert (stage.meta.store_trouble, dict(health.unreachable())) == ("", {})
    assert await stage.recorded() == [0]
    assert stage.evidence() == [0]


async def test_a_persons_own_results_folder_that_fails_ends_the_evaluation_at_once(
    stage: Stage, away: Callable[[], None]
) -> None:
    aggregator = Aggregator(stage.ledger, stage.plan, stage.store, stage.recorder, health=Health(), waits=False)
    await stage.put(0)
    with pytest.raises(ResultsAway):
        await stage.aggregate(aggregator)
    assert (stage.meta.state, stage.meta.code) == ("stopped", "storage")
    assert "Not a directory; a part of that path is a file" in stage.meta.reason
    away()
    stage.ledger.add(stage.plan, {}, replay=True)
    await stage.aggregate()
    assert await stage.recorded() == [0], "what was judged waited for the resume"


async def test_an_evaluation_that_was_cancelled_meanwhile_ends_the_submission(stage: Stage) -> None:
    await stage.put(0)
    await stage.client.cancel_evaluation(stage.evaluation)
    await stage.aggregate()
    assert (stage.meta.state, stage.meta.code) == ("stopped", "evaluation_cancelled")


async def test_only_one_aggregator_is_at_work_for_a_submission(stage: Stage) -> None:
    await stage.put(0)
    assert stage.ledger.lock(f"aggregate:{stage.plan.id}", "somebody", 10_000)
    aggregator = Aggregator(stage.ledger, stage.plan, stage.store, stage.recorder, health=Health())
    await asyncio.to_thread(aggregator.run, "another", threading.Event())
    assert stage.recorder.sent == []


async def test_the_lock_outlives_a_batch_that_the_platform_thinks_about(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a second aggregator would do the same work beside it, and a third one."""
    monkeypatch.setattr(worker.aggregate, "LOCK_MS", 400)
    lock = f"{stage.ledger.prefix}lock:aggregate:{stage.plan.id}"
    taken: list[bool] = []

    def think() -> None:
        least = 400
        for _ in range(3):  # renewed three times: longer than it lasts
            deadline = time.monotonic() + 20
            while (left := stage.ledger.redis.pttl(lock)) <= least:
                least = min(least, left)
                assert time.monotonic() < deadline, f"not renewed, {left} ms are left"
            least = left
        taken.append(stage.ledger.lock(f"aggregate:{stage.plan.id}", "another", 400))

    await stage.put(0)
    stage.recorder.before = think
    await stage.aggregate()
    assert taken == [False]
    assert stage.ledger.lock(f"aggregate:{stage.plan.id}", "another", 400), "it is given back at the end"


async def test_s35_what_a_conflict_does_not_name_stays_ours(stage: Stage) -> None:
    """An attempt that is recorded with *our* run, by an aggregator that died, is not somebody else's."""
    ours, line = await stage.judge(0)
    other, theirs = await stage.judge(1)
    await stage.client.record_attempts(stage.evaluation, [wire_attempt(stage.plan, ours, line)])
    await stage.client.record_attempts(stage.evaluation, [wire_attempt(stage.plan, other, theirs)])
    stage.ledger.put_record(stage.plan.id, ours, jsontext.dumps(line), "passed")
    replayed = {**theirs, "run_id": (await stage.judge(2))[1]["run_id"]}
    stage.ledger.put_record(stage.plan.id, other, jsontext.dumps(replayed), "passed")
    await stage.aggregate()
    index = attempts_index(stage.store, stage.plan.artifact)
    assert [index[("c", "one", trial)].elsewhere for trial in (0, 1)] == [False, True]
    assert stage.ledger.records(stage.plan.id) == {}


async def test_a_replay_that_died_is_still_asked_for(stage: Stage) -> None:
    await stage.put(0)
    stage.recorder.before = die
    with pytest.raises(Died):
        await stage.aggregate()
    stage.ledger.forget(stage.plan.id)
    stage.ledger.add(stage.plan, {}, replay=True)
    with pytest.raises(Died):
        await stage.aggregate()
    stage.recorder.before = lambda: None
    await stage.aggregate()
    assert await stage.recorded() == [0]
    assert stage.ledger.asked_replay(stage.plan.id) is None


async def test_a_worker_that_completed_it_before_says_so_again_to_the_next_command(stage: Stage) -> None:
    """A worker outlives commands; what it remembers of the last one must not keep the next one waiting."""
    aggregator = Aggregator(stage.ledger, stage.plan, stage.store, stage.recorder, health=Health())
    for trial in range(3):
        await stage.put(trial)
    await stage.aggregate(aggregator)
    assert stage.meta.state == "completed"
    stage.ledger.add(stage.plan, {}, replay=True)
    await stage.aggregate(aggregator)
    assert stage.meta.state == "completed"


async def test_an_evaluation_that_was_cancelled_while_nothing_waited_ends_the_submission(stage: Stage) -> None:
    await stage.client.cancel_evaluation(stage.evaluation)
    stage.ledger.ask_replay(stage.plan.id)
    await stage.aggregate()
    assert (stage.meta.state, stage.meta.code) == ("stopped", "evaluation_cancelled")


def given_up(stage: Stage) -> dict[str, tuple[str, str]]:
    found = stage.ledger.given_up(stage.plan.id)
    return {name: (entry["code"], entry["reason"]) for name, entry in found.items()}


async def test_what_the_server_refuses_is_set_aside_and_the_rest_is_recorded(stage: Stage) -> None:
    """Our own server names the attempt: here one with the run of another. A resume asks once more, not without end."""
    await stage.put(0)
    attempt, line = await stage.judge(1)
    line["run_id"] = (await stage.judge(0))[1]["run_id"]
    stage.ledger.put_record(stage.plan.id, attempt, jsontext.dumps(line), "passed")
    await stage.put(2)
    for _command in range(2):
        stage.recorder.sent.clear()
        await stage.aggregate()
        assert await stage.recorded() == [0, 2]
        assert stage.meta.state == "running"  # its dispatcher ends it as incomplete: nothing more comes of it
        assert stage.ledger.records(stage.plan.id) == {}
        assert set(stage.ledger.done(stage.plan.id)) == {"0:0:0", "0:0:2"}
        [(code, reason)] = given_up(stage).values()
        assert code == "record_refused"
        assert reason.startswith(
            "the server refuses to record it: run_id is the evidence for attempt_index 0 of ecase_"
        )
        assert len(stage.recorder.sent) == 2 - _command, "named, so the rest goes with the next request"
        done = {Attempt(0, 0, trial): "passed" for trial in range(3)}  # by the evidence, as a resume reads it
        stage.ledger.end(stage.plan.id, "incomplete")
        stage.ledger.add(stage.plan, done, replay=True)


async def test_score_record_sets_aside_what_the_server_refuses_too(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    attempt, line = await stage.judge(0)
    same_run = {**wire_attempt(stage.plan, attempt, line), "attempt_index": 1}
    no_score = {**wire_attempt(stage.plan, *(await stage.judge(2))), "judge_score": "much"}
    sent = [wire_attempt(stage.plan, attempt, line), same_run, no_score]
    await scheduler.record._send(stage.client, stage.evaluation, sent, "the server")
    assert await stage.recorded() == [0]
    assert "c/one, trial 2: the server refuses to record it: run_id is the evidence for attempt_index 0" in caplog.text
    assert "c/one, trial 3: the server refuses to record it: judge_score write a plain decimal" in caplog.text


@pytest.mark.parametrize("bad", [{0}, {1}, {2}, {0, 2}, {0, 1, 2}], ids=str)
@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_refusal_that_names_no_attempt_is_found_by_halves(stage: Stage, status: int, bad: set[int]) -> None:
    """Some server's answer has no pointer: whatever holds the attempt that it does not take is refused."""

    def refuse(attempts: Sequence[Mapping[str, Any]]) -> None:
        if any(attempt["attempt_index"] in bad for attempt in attempts):
            raise ProblemAnswer(status, "some_code", "a score of that size is not to be had")

    for trial in range(3):
        await stage.put(trial)
    stage.recorder.look = refuse
    await stage.aggregate()
    assert (await stage.recorded() or []) == sorted({0, 1, 2} - bad)
    reason = "the server refuses to record it: a score of that size is not to be had"
    assert given_up(stage) == {f"0:0:{trial}": ("record_refused", reason) for trial in bad}
    assert stage.ledger.records(stage.plan.id) == {}


async def test_a_server_that_takes_nothing_is_not_asked_about_every_attempt(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong is not one attempt then: the submission stops with the reason, and all of it waits."""
    monkeypatch.setattr(worker.aggregate, "ALIKE", 3)

    def refuse(attempts: Sequence[Mapping[str, Any]]) -> None:
        raise ProblemAnswer(422, "some_code", "not today")

    for trial in range(3):
        await stage.put(trial)
    stage.recorder.look = refuse
    await stage.aggregate()
    assert (stage.meta.state, stage.meta.code) == ("stopped", "some_code")
    assert "attempts were refused: 422 some_code: not today" in stage.meta.reason
    assert len(stage.ledger.records(stage.plan.id)) == 3


@pytest.mark.parametrize(("status", "ends"), [(403, True), (404, True), (429, False), (503, False)])
async def test_a_batch_that_is_refused_for_good_ends_the_submission_with_the_reason(
    stage: Stage, status: int, ends: bool
) -> None:
    def refuse() -> None:
        raise ProblemAnswer(status, "some_code", "it is not to be had")

    await stage.put(0)
    stage.recorder.before = refuse
    if ends:
        await stage.aggregate()
        assert (stage.meta.state, stage.meta.code) == ("stopped", "some_code")
        assert "it is not to be had" in stage.meta.reason
    else:
        with pytest.raises(ProblemAnswer):
            await stage.aggregate()
        assert stage.meta.state == "running"
    assert len(stage.ledger.records(stage.plan.id)) == 1


async def test_i4_only_what_was_sent_leaves_redis(stage: Stage) -> None:
    """What is judged while a batch is under way waits for the next one."""
    await stage.put(0)
    attempt, line = await stage.judge(1)

    def meanwhile() -> None:
        stage.recorder.after = lambda: None
        stage.ledger.put_record(stage.plan.id, attempt, jsontext.dumps(line), line["outcome"])

    stage.recorder.after = meanwhile
    await stage.aggregate()
    assert await stage.recorded() == [0, 1]


async def test_i8_evidence_that_cannot_be_read_back_ends_the_submission_and_is_not_written_for_ever(
    stage: Stage,
) -> None:
    attempt, line = await stage.judge(0)
    stage.ledger.put_record(stage.plan.id, attempt, jsontext.dumps({**line, "format": 2}), "passed")
    with pytest.raises(StorageError, match="cannot be read back"):
        await stage.aggregate()
    assert (stage.meta.state, stage.meta.code) == ("stopped", "storage")


async def test_d09_two_finalisers_and_a_broker_that_forgets_complete_it_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no counter that could be lost: what completes an evaluation is that it misses nothing (I1)."""
    monkeypatch.setattr(Ledger, "lock", lambda *_: True)  # as if two were sure that they are alone
    both = threading.Barrier(2)
    stage.recorder.before = lambda: (both.wait(20), None)[1]
    for trial in range(3):
        await stage.put(trial)
    await asyncio.gather(stage.aggregate(), stage.aggregate())
    assert len(stage.recorder.sent) == 2
    document = await stage.client.get_evaluation(stage.evaluation)
    assert document["status"] == "completed"
    assert await stage.recorded() == [0, 1, 2]
    stage.recorder.before = lambda: None
    stage.ledger.forget(stage.plan.id)
    stage.ledger.add(stage.plan, {}, replay=True)
    await stage.aggregate()
    assert (await stage.client.get_evaluation(stage.evaluation)) == document, "nothing happens a second time"
    assert stage.meta.state == "completed"
    assert stage.evidence() == [0, 1, 2], "one line for each"


async def test_the_rest_after_a_round_ends_when_nothing_is_played_any_more(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.aggregate, "REST", 1e9)
    monkeypatch.setattr(worker.aggregate, "MOST_REST_S", 45.0)
    last = Conversation(0, 2)
    stage.ledger.beat("w", {}, [])
    assert stage.ledger.claim(stage.plan.id, last, stage.plan.attempts(last), "w") is Claimed.CLAIMED
    await stage.put(0)
    await stage.put(1)
    first, loop = asyncio.Event(), asyncio.get_running_loop()

    def after() -> None:
        loop.call_soon_threadsafe(first.set)

    stage.recorder.after = after
    aggregating = asyncio.create_task(stage.aggregate())
    await first.wait()
    await stage.put(2)
    stage.ledger.release(stage.plan.id, last, "w", played=True)
    await asyncio.wait_for(aggregating, 15)
    assert await stage.recorded() == [0, 1, 2]
