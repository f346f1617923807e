"""The ledger's scripts against a real Valkey: who may claim what, and what comes back when somebody dies."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalfleet.checks.case import parse_case
from evalfleet.errors import StorageError
from evalfleet.givenup import entry
from evalfleet.ledger import Claimed, Hold, JudgeRow, Ledger
from evalfleet.ledger.rows import WORDS
from evalfleet.plan import (
    Attempt,
    Conversation,
    Limits,
    Plan,
    PlannedCase,
    PlannedEvaluation,
    PlannedScenario,
    PlannedTarget,
    Scorer,
    SuiteName,
)

CASES = b"""
defaults: {trials: 3}
scenarios:
  - {id: one, user: hi, expect: [{no_error: true}]}
  - {id: two, user: ho, expect: [{no_error: true}]}
"""


def make_plan(*, concurrency: int = 2, losses: int = 5) -> Plan:
    [case] = parse_case(CASES, name="c", file="evals/cases/c.yaml").cases
    return Plan(
        id=f"sub_{uuid.uuid4().hex[:26].upper()}",
        pin="0" * 64,
        generation=0,
        created_at="2026-01-01T00:00:00Z",
        evalfleet="0",
        suite="checks",
        artifact="20260101T000000Z-abcdefgh",
        target=PlannedTarget(None, "h_0", None, "h"),
        commit="0" * 40,
        concurrency=concurrency,
        limits=Limits(losses=losses),
        scorer=Scorer("evalfleet-checks", "1"),
        infra_codes=(),
        evaluations=(PlannedEvaluation(3, "eval_0", SuiteName("checks/k3", "v", "checks")),),
        cases=(PlannedCase("c", "evals/cases/c.yaml", tuple(PlannedScenario(s, 0) for s in case.scenarios)),),
        graders=None,
    )


@pytest.fixture
def ledger(valkey: str) -> Iterator[Ledger]:
    made = Ledger(valkey, prefix=f"t{uuid.uuid4().hex[:8]}:")
    made.open_epoch(mine=True)
    yield made
    made.redis.delete(*made.redis.keys(f"{made.prefix}*"))
    made.close()


def tries_from(ledger: Ledger, plan: Plan) -> int | None:
    return ledger.so_far(plan.id, Conversation(0, 0), plan.attempts(Conversation(0, 0)))[1]


def claim(ledger: Ledger, plan: Plan, trial: int, who: str) -> Claimed:
    conversation = Conversation(0, trial)
    return ledger.claim(plan.id, conversation, plan.attempts(conversation), who)


def alive(ledger: Ledger, *who: str) -> None:
    for name in who:
        ledger.beat(name, {}, [])


def test_a_conversation_is_claimed_once_and_again_after_it_went_back(ledger: Ledger) -> None:
    plan = make_plan()
    ledger.add(plan, {})
    alive(ledger, "a", "b")
    assert claim(ledger, plan, 0, "a") is Claimed.CLAIMED
    assert claim(ledger, plan, 0, "b") is Claimed.DUPLICATE
    assert not ledger.release(plan.id, Conversation(0, 0), "b", played=False)
    assert ledger.release(plan.id, Conversation(0, 0), "a", played=False)
    assert ledger.take_returned(plan.id) == [Conversation(0, 0)]
    assert claim(ledger, plan, 0, "b") is Claimed.CLAIMED


def test_i7_the_claim_refuses_above_the_concurrency_and_a_dead_owner_keeps_its_slot(ledger: Ledger) -> None:
    plan = make_plan(concurrency=2)
    ledger.add(plan, {})
    alive(ledger, "a", "b")
    assert [claim(ledger, plan, trial, "a") for trial in range(3)] == [Claimed.CLAIMED, Claimed.CLAIMED, Claimed.FULL]
    assert ledger.take_returned(plan.id) == [Conversation(0, 2)], "what was refused is fed again"
    ledger.declare_dead("a")
    assert claim(ledger, plan, 2, "b") is Claimed.FULL
    assert sorted(ledger.reap(plan.id, 5)) == ["0:0", "0:1"]
    assert claim(ledger, plan, 2, "b") is Claimed.CLAIMED


def test_only_the_reaper_counts_losses_and_gives_up_at_the_limit(ledger: Ledger) -> None:
    plan = make_plan(losses=2)
    ledger.add(plan, {})
    for _ in range(2):
        alive(ledger, "a")
        assert claim(ledger, plan, 0, "a") is Claimed.CLAIMED
        ledger.declare_dead("a")
        assert ledger.reap(plan.id, 2) == ["0:0"]
    assert ledger.given_up(plan.id)["0:0"]["code"] == "worker_lost"
    alive(ledger, "a")
    assert claim(ledger, plan, 0, "a") is Claimed.GIVEN_UP
    ledger.end(plan.id, "incomplete")
    ledger.add(plan, {})
    assert claim(ledger, plan, 0, "a") is Claimed.CLAIMED, "a resume empties the given-up set"


def test_what_is_recorded_waits_or_is_judged_is_not_played_again(ledger: Ledger) -> None:
    plan = make_plan()
    ledger.add(plan, {Attempt(0, 0, 0): "passed"})
    alive(ledger, "a")
    assert ledger.so_far(plan.id, Conversation(0, 0), plan.attempts(Conversation(0, 0)))[0] == {Attempt(0, 1, 0)}
    assert ledger.put_play(plan.id, Attempt(0, 1, 0), b"{}")
    assert claim(ledger, plan, 0, "a") is Claimed.DONE


def test_the_first_record_of_an_attempt_wins_and_only_confirmed_fields_leave(ledger: Ledger) -> None:
    plan = make_plan()
    ledger.add(plan, {})
    first, second = Attempt(0, 0, 0), Attempt(0, 1, 0)
    assert ledger.put_record(plan.id, first, b"first", "passed"), "the first record calls the aggregator"
    assert not ledger.put_record(plan.id, first, b"late", "failed"), "a message is under way"
    ledger.put_record(plan.id, second, b"second", "failed")
    assert ledger.records(plan.id) == {first: b"first", second: b"second"}
    ledger.confirm(plan.id, {first: "passed"})
    assert ledger.records(plan.id) == {second: b"second"}
    assert ledger.progress(plan.id).counts == {"passed": 1, "failed": 1}
    ledger.clear_hint(plan.id)
    assert not ledger.put_record(plan.id, first, b"later still", "failed"), "recorded: a late worker changes nothing"
    assert ledger.records(plan.id) == {second: b"second"}


def test_a_heartbeat_learns_what_was_lost_and_what_was_stopped(ledger: Ledger) -> None:
    plan = make_plan()
    ledger.add(plan, {})
    alive(ledger, "a")
    claim(ledger, plan, 0, "a")
    held, never = Hold(plan.id, Conversation(0, 0)), Hold(plan.id, Conversation(0, 1))
    assert ledger.beat("a", {}, [held, never]) == ["held", "lost"]
    assert ledger.end(plan.id, "stopped", "enough", "interrupted")
    assert not ledger.end(plan.id, "completed"), "the first reason stands"
    assert ledger.beat("a", {}, [held]) == ["stopped"]
    assert claim(ledger, plan, 1, "a") is Claimed.STOPPED
    meta = ledger.meta(plan.id)
    assert meta is not None
    assert (meta.state, meta.reason, meta.code) == ("stopped", "enough", "interrupted")


def test_when_redis_came_back_empty_holds_are_registered_again_and_nothing_is_claimed(ledger: Ledger) -> None:
    plan = make_plan()
    ledger.add(plan, {})
    alive(ledger, "a")
    claim(ledger, plan, 0, "a")
    ledger.redis.delete(*ledger.redis.keys(f"{ledger.prefix}*"))
    assert ledger.beat("a", {}, [Hold(plan.id, Conversation(0, 0))]) == ["held"]
    ledger.add(plan, {})
    assert claim(ledger, plan, 1, "a") is Claimed.GRACE
    assert ledger.reap(plan.id, 5) == []
    ledger.redis.set(f"{ledger.prefix}epoch", ledger.now_ms())
    assert claim(ledger, plan, 0, "b") is Claimed.DUPLICATE, "its owner said so during the grace"
    assert claim(ledger, plan, 1, "a") is Claimed.CLAIMED


def test_a_grading_is_one_workers_until_the_reaper_has_counted_its_death(ledger: Ledger) -> None:
    plan = make_plan()
    ledger.add(plan, {})
    attempt = Attempt(0, 0, 0)
    alive(ledger, "a", "b")
    assert ledger.claim_grade(plan.id, attempt, "a") is None, "nothing to grade yet"
    ledger.put_play(plan.id, attempt, b"play")
    assert ledger.claim_grade(plan.id, attempt, "a") == b"play"
    assert ledger.claim_grade(plan.id, attempt, "b") is None
    ledger.declare_dead("a")
    assert ledger.claim_grade(plan.id, attempt, "b") is None, "a grader that kills its workers would never be counted"
    assert ledger.reap(plan.id, 5) == ["0:0:0"]
    assert ledger.claim_grade(plan.id, attempt, "b") == b"play"


def test_three_new_tries_are_counted_from_the_first_one_that_this_command_made(ledger: Ledger) -> None:
    plan = make_plan()
    ledger.add(plan, {})
    assert ledger.first_new_try(plan.id, Conversation(0, 0), 2) == 2
    assert ledger.first_new_try(plan.id, Conversation(0, 0), 4) == 2


def test_an_ended_submission_leaves_nothing_behind(ledger: Ledger) -> None:
    before = set(ledger.redis.keys(f"{ledger.prefix}*"))
    plan = make_plan()
    ledger.add(plan, {Attempt(0, 0, 1): "passed"})
    ledger.publish(plan.id, list(plan.conversations()))
    ledger.put_record(plan.id, Attempt(0, 0, 0), b"x", "passed")
    ledger.give_up(plan.id, Conversation(0, 2), "why")
    ledger.put_note(plan.id, "0:0:2", b"y")
    ledger.forget(plan.id)
    assert set(ledger.redis.keys(f"{ledger.prefix}*")) == before
    assert ledger.submissions() == []


def test_a_lock_is_one_owners_and_can_be_renewed(ledger: Ledger) -> None:
    assert ledger.lock("x", "a", 10_000)
    assert ledger.lock("x", "a", 10_000)
    assert not ledger.lock("x", "b", 10_000)
    ledger.unlock("x", "b")
    assert not ledger.lock("x", "b", 10_000)
    ledger.unlock("x", "a")
    assert ledger.lock("x", "b", 10_000)


def test_i6_a_dead_workers_lock_is_free_at_once(ledger: Ledger) -> None:
    """Else a killed aggregator would cost the lock's time as well: nothing is recorded for 30 s."""
    ledger.beat("a1", {}, [])
    assert ledger.lock("aggregate:sub", "worker:a1:thread", 30_000)
    assert not ledger.lock("aggregate:sub", "worker:b2:thread", 30_000)
    ledger.declare_dead("a1")
    assert ledger.lock("aggregate:sub", "worker:b2:thread", 30_000)
    assert ledger.lock("drive:sub", "some-dispatcher", 30_000), "an owner that is no worker has no heartbeat"
    assert not ledger.lock("drive:sub", "another-dispatcher", 30_000)


@pytest.fixture
def full(ledger: Ledger) -> Iterator[Ledger]:
    """A broker that refuses writes for want of memory; what comes before `full` in a test is in."""
    yield ledger
    ledger.redis.config_set("maxmemory", "0")


def test_a_broker_that_is_full_is_a_storage_error_and_a_submission_can_still_be_ended(full: Ledger) -> None:
    """The client takes the code word off Redis' message, so that it has to be known by its class."""
    plan = make_plan()
    full.add(plan, {})
    alive(full, "a")
    full.redis.config_set("maxmemory", "1")
    with pytest.raises(StorageError, match="refuses writes"):
        full.publish(plan.id, [Conversation(0, 0)])
    with pytest.raises(StorageError, match="refuses writes"):
        full.beat("a", {}, [])
    assert full.end(plan.id, "stopped", "the broker is full", "storage")
    meta = full.meta(plan.id)
    assert meta is not None
    assert (meta.state, meta.reason) == ("stopped", "the broker is full")


def test_i8_a_claim_whose_answer_got_lost_is_the_askers_when_it_asks_again(ledger: Ledger) -> None:
    """The client sends a command again when its connection broke; `duplicate` would leave a claim that nobody plays."""
    plan = make_plan(concurrency=1)
    ledger.add(plan, {})
    alive(ledger, "a", "b")
    assert claim(ledger, plan, 0, "a") is Claimed.CLAIMED
    assert claim(ledger, plan, 0, "a") is Claimed.CLAIMED
    assert claim(ledger, plan, 0, "b") is Claimed.DUPLICATE
    ledger.put_play(plan.id, Attempt(0, 0, 0), b"play")
    assert ledger.claim_grade(plan.id, Attempt(0, 0, 0), "a") == b"play"
    assert ledger.claim_grade(plan.id, Attempt(0, 0, 0), "a") == b"play"
    assert ledger.claim_grade(plan.id, Attempt(0, 0, 0), "b") is None


def test_s38_a_draining_submission_is_claimed_no_more(ledger: Ledger) -> None:
    plan = make_plan()
    ledger.add(plan, {})
    alive(ledger, "a")
    ledger.drain(plan.id)
    assert claim(ledger, plan, 0, "a") is Claimed.STOPPED


def test_a_submission_that_runs_is_not_put_on_the_books_again(ledger: Ledger) -> None:
    """`submit` twice: the second must not forget what the workers of the first have done."""
    plan = make_plan(concurrency=1)
    assert ledger.add(plan, {})
    alive(ledger, "a")
    assert claim(ledger, plan, 0, "a") is Claimed.CLAIMED
    ledger.put_record(plan.id, Attempt(0, 0, 0), b"x", "passed")
    ledger.confirm(plan.id, {Attempt(0, 0, 0): "passed"})
    ledger.give_up(plan.id, Conversation(0, 1), "why")
    ledger.first_new_try(plan.id, Conversation(0, 0), 0)
    assert not ledger.add(replace(plan, concurrency=3), {})
    assert ledger.done(plan.id) == {"0:0:0": "passed"}
    assert list(ledger.given_up(plan.id)) == ["0:1"]
    assert tries_from(ledger, plan) == 0
    assert claim(ledger, plan, 2, "a") is Claimed.CLAIMED, "only its concurrency is the new one"


def test_a_late_worker_neither_gives_up_nor_lets_go_what_is_anothers(ledger: Ledger) -> None:
    plan = make_plan()
    ledger.add(plan, {})
    alive(ledger, "a", "b")
    claim(ledger, plan, 0, "a")
    ledger.put_play(plan.id, Attempt(0, 0, 1), b"play")
    ledger.claim_grade(plan.id, Attempt(0, 0, 1), "a")
    ledger.declare_dead("a")
    ledger.reap(plan.id, 5)
    claim(ledger, plan, 0, "b")
    ledger.claim_grade(plan.id, Attempt(0, 0, 1), "b")
    assert not ledger.release(plan.id, Conversation(0, 0), "a", played=True, gave_up=entry("no luck", "tries"))
    ledger.release_grade(plan.id, Attempt(0, 0, 1), "a")
    assert ledger.given_up(plan.id) == {}
    assert ledger.snapshot(plan.id).grading == {"0:0:1": "b"}
    assert ledger.release(plan.id, Conversation(0, 0), "b", played=True, gave_up=entry("no luck", "tries"))
    assert ledger.given_up(plan.id) == {"0:0": {"reason": "no luck", "code": "tries"}}


def test_s26_ten_gradings_in_a_row_without_a_judge_pause_grading_with_one_message(ledger: Ledger) -> None:
    plan = make_plan()
    ledger.add(plan, {})
    alive(ledger, "a")
    ledger.put_play(plan.id, Attempt(0, 0, 0), b"play")
    assert [ledger.judge_failed(plan.id, "503") for _ in range(9)] == [JudgeRow.SHORT] * 9
    ledger.judge_answered(plan.id)
    answers = [ledger.judge_failed(plan.id, "503") for _ in range(12)]
    assert answers == [*[JudgeRow.SHORT] * 9, JudgeRow.TENTH, JudgeRow.PAUSED, JudgeRow.PAUSED]
    assert ledger.claim_grade(plan.id, Attempt(0, 0, 0), "a") is None
    assert ledger.claim_grade(plan.id, Attempt(0, 0, 0), "a", asks=False) == b"play", "its graders need no judge"
    ledger.release_grade(plan.id, Attempt(0, 0, 0), "a")
    meta = ledger.meta(plan.id)
    assert meta is not None
    assert (meta.judge_trouble, meta.judge_row) == ("503", 12)
    ledger.redis.delete(f"{ledger.prefix}s:{plan.id}:judge")  # the pause is over
    assert ledger.claim_grade(plan.id, Attempt(0, 0, 0), "a") == b"play"
    ledger.judge_answered(plan.id)
    meta = ledger.meta(plan.id)
    assert meta is not None
    assert meta.judge_trouble == ""


def test_what_a_late_worker_says_of_a_retired_submission_runs_out_with_it(ledger: Ledger) -> None:
    plan = make_plan()
    ledger.add(plan, {})
    alive(ledger, "a")
    claim(ledger, plan, 0, "a")
    ledger.end(plan.id, "stopped", "enough")
    ledger.retire(plan.id)
    ledger.put_play(plan.id, Attempt(0, 1, 0), b"x")
    ledger.put_record(plan.id, Attempt(0, 0, 0), b"x", "passed")
    ledger.release(plan.id, Conversation(0, 0), "a", played=False)
    left = {key: ledger.redis.ttl(key) for key in ledger.redis.keys(f"{ledger.prefix}s:*")}
    assert left
    assert [key for key, ttl in left.items() if ttl < 0] == []


def test_who_slept_through_a_resume_does_not_take_it_off_the_books(ledger: Ledger) -> None:
    plan = make_plan()
    ledger.add(plan, {})
    ledger.end(plan.id, "incomplete")
    ledger.add(plan, {})
    ledger.retire(plan.id)
    assert ledger.submissions() == [plan.id]
    assert ledger.plan(plan.id) == plan
    assert ledger.redis.ttl(f"{ledger.prefix}s:{plan.id}:meta") == -1


def test_a_paused_submission_is_claimed_no_more_and_what_was_sent_comes_back(ledger: Ledger) -> None:
    plan = make_plan()
    ledger.add(plan, {})
    alive(ledger, "a")
    assert claim(ledger, plan, 0, "a") is Claimed.CLAIMED
    assert ledger.pause(plan.id)
    assert claim(ledger, plan, 1, "a") is Claimed.PAUSED
    assert ledger.take_returned(plan.id) == [Conversation(0, 1)]
    assert ledger.unpause(plan.id)
    assert claim(ledger, plan, 1, "a") is Claimed.CLAIMED
    ledger.drain(plan.id)
    assert not ledger.unpause(plan.id), "one that is to end does not go on"
    ledger.end(plan.id, "stopped")
    assert not ledger.pause(plan.id)


def test_what_is_known_of_an_ended_submission_is_how_far_it_was(ledger: Ledger) -> None:
    plan = make_plan()
    ledger.add(plan, {Attempt(0, 0, 0): "passed"})
    ledger.end(plan.id, "stopped")
    ledger.retire(plan.id)
    meta = ledger.meta(plan.id)
    assert meta is not None
    assert (meta.recorded, meta.total, meta.planned_at) == (1, 6, plan.created_at)
    assert ledger.known() == [plan.id]
    ledger.add(plan, {})
    meta = ledger.meta(plan.id)
    assert meta is not None
    assert meta.recorded is None, "it runs again"


def test_the_last_lines_that_were_said_are_kept_and_run_out(ledger: Ledger) -> None:
    ledger.put_log({"sub_1": [{"message": str(number)} for number in range(150)]})
    ledger.put_log({"sub_1": [{"message": str(number)} for number in range(150, 300)]})
    assert [line["message"] for line in ledger.log("sub_1")] == [str(number) for number in range(100, 300)]
    assert 0 < ledger.redis.ttl(f"{ledger.prefix}s:sub_1:log") <= 24 * 3600


SOME = st.dictionaries(
    st.builds(Attempt, st.integers(0, 3), st.integers(0, 2), st.integers(0, 12)), st.sampled_from(WORDS), max_size=30
)


@given(before=SOME, later=SOME)
def test_outcomes_are_kept_alike_by_what_is_put_on_the_books_and_by_what_the_server_confirms(
    ledger: Ledger, before: dict[Attempt, str], later: dict[Attempt, str]
) -> None:
    plan = make_plan()
    ledger.add(plan, before)
    ledger.confirm(plan.id, later)
    now = {**before, **later}
    assert ledger.done(plan.id) == {str(attempt): word for attempt, word in now.items()}
    assert ledger.progress(plan.id).recorded == len(now)
    done = ledger.snapshot(plan.id).done
    for case, scenario, trial in itertools.product(range(5), range(4), range(14)):
        attempt = Attempt(case, scenario, trial)
        assert (attempt in done) == (attempt in now)
        assert (ledger.put_play(plan.id, attempt, b"play")) == (attempt not in now)
        if case == scenario == 0:
            assert attempt not in ledger.so_far(plan.id, Conversation(0, 0), [attempt, Attempt(9, 9, 9)])[0]
    ledger.forget(plan.id)


def test_what_is_recorded_takes_a_few_bytes_an_attempt(ledger: Ledger) -> None:
    """A fleet's broker holds what is under way; a submission of 200,000 attempts must not fill it by ending."""
    plan = make_plan()
    ledger.add(plan, {})

    def used() -> int:
        return sum(ledger.redis.memory_usage(key) or 0 for key in ledger.redis.scan_iter(f"{ledger.prefix}s:*"))

    def record(case: int) -> None:
        for trial in range(100):
            ledger.put_record(plan.id, Attempt(case, 0, trial), b"line", "passed")
        ledger.confirm(plan.id, {Attempt(case, 0, trial): "passed" for trial in range(100)})

    record(0)
    before = used()
    for case in range(1, 11):
        record(case)
    assert used() - before < 5 * 1000


def test_a_conversation_that_is_played_leaves_nothing_of_its_tries(ledger: Ledger) -> None:
    plan = make_plan()
    ledger.add(plan, {})
    alive(ledger, "a")
    claim(ledger, plan, 0, "a")
    ledger.first_new_try(plan.id, Conversation(0, 0), 2)
    ledger.release(plan.id, Conversation(0, 0), "a", played=False)
    assert tries_from(ledger, plan) == 2, "it is played again by this command"
    claim(ledger, plan, 0, "a")
    ledger.release(plan.id, Conversation(0, 0), "a", played=True)
    assert tries_from(ledger, plan) is None
