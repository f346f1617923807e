"""`--allow-missing N|P%`: how many attempts may be missing at the end of a run (S18)."""

from __future__ import annotations

import concurrent.futures
import uuid
from collections.abc import Sequence

import pytest

from evalfleet.ledger import FAULT, Ledger, Progress
from scheduler.allowed import AllowedMissing, ended_by_itself
from scheduler.dispatch import Ended
from scheduler.enough import STOPPED_BY
from scheduler.interrupt import Interrupts
from scheduler.summary import Summary, summarize
from scheduler.watch import _until_written
from tests.scheduler.samples import line, plan, scenario
from tests.test_ledger import make_plan


def summary_of(outcomes: Sequence[str], recorded: Sequence[int] | None = None) -> Summary:
    """One scenario with a trial for each outcome; "-" has no line. `recorded`: what the evaluation holds."""
    lines = [line("a", n, o) for n, o in enumerate(outcomes) if o != "-"]
    case = {"key": "tone/a", "status": "pending", "recorded_attempts": recorded}
    documents = [] if recorded is None else [{"id": "eval_0", "status": "running", "cases": [case]}]
    asked = plan({"tone": [scenario("a", trials=len(outcomes))]}, ks=[len(outcomes)])
    return summarize(asked, lines, artifact="x", evaluations=documents)


FOUR_OF_FIVE = ["passed", "failed", "error", "passed", "-"]


@pytest.mark.parametrize(
    ("text", "outcomes", "covered"),
    [
        ("0", FOUR_OF_FIVE, False),
        ("1", FOUR_OF_FIVE, True),
        ("1", ["passed", "-", "-"], False),
        ("2", ["passed", "-", "-"], True),
        ("20%", FOUR_OF_FIVE, True),
        ("19.999999%", FOUR_OF_FIVE, False),
        ("100%", ["passed", "-", "-"], True),
        pytest.param("100%", ["-", "-"], False, id="of nothing there is no verdict"),
        pytest.param("9", ["-"], False, id="nor by a number"),
        pytest.param("9", ["passed", "passed"], False, id="nothing is missing"),
        pytest.param(" 1 ", FOUR_OF_FIVE, True, id="blanks around it, as a variable may have them"),
    ],
)
def test_no_more_than_allowed_may_be_missing(text: str, outcomes: list[str], covered: bool) -> None:
    assert AllowedMissing.parse(text).covers(summary_of(outcomes)) is covered


def test_evidence_that_is_not_recorded_yet_would_be_lost_by_ending() -> None:
    assert AllowedMissing.parse("1").covers(summary_of(["passed", "-"], recorded=[0]))
    assert not AllowedMissing.parse("1").covers(summary_of(["passed", "-"], recorded=[]))


@pytest.mark.parametrize("text", ["", "-1", "1.5", "five", "101%", "1e3", "%", "5 %", "٣", "1234567890"])
def test_what_is_no_such_number_is_refused_with_the_spelling(text: str) -> None:
    with pytest.raises(ValueError, match=r"write a number of attempts such as 3|a share is 0% to 100%"):
        AllowedMissing.parse(text)


@pytest.mark.parametrize(
    ("ended", "progress", "over"),
    [
        (Ended("incomplete", "the run failed", "given_up"), Progress(), True),
        (Ended("stopped", "no money", "out_of_funds"), Progress(), True),
        (Ended("stopped", "nothing moved", "stalled"), Progress(), True),
        (Ended("stopped", "no money", "out_of_funds"), Progress(running=1), False),
        (Ended("stopped", "no money", "out_of_funds"), Progress(waiting=1), False),
        (Ended("stopped", "interrupted", "interrupted"), Progress(), False),
        (Ended("stopped", "interrupted", "leave_running"), Progress(), False),
        (Ended("stopped", "1 scenario failed", STOPPED_BY), Progress(), False),
        (Ended("stopped", "it does not answer", "broker_away"), Progress(), False),
        (Ended("stopped", "the budget is spent", "budget"), Progress(), False),
        (Ended("stopped", "the time is over", "max_time"), Progress(), False),
        (Ended("stopped", "a fault of evalfleet's", FAULT), Progress(), False),
        (Ended("completed"), Progress(), False),
        (Ended("left"), Progress(), False),
    ],
    ids=lambda value: value.code or value.state if isinstance(value, Ended) else "",
)
def test_only_a_run_that_ended_by_itself_gives_up_what_is_missing(ended: Ended, progress: Progress, over: bool) -> None:
    assert ended_by_itself(ended, progress) is over


def test_what_is_judged_when_it_is_stopped_is_in_what_a_watcher_reads(valkey: str) -> None:
    ledger = Ledger(valkey, prefix=f"t{uuid.uuid4().hex[:8]}:")
    stopped = make_plan()
    ledger.add(stopped, {})
    attempt = next(stopped.all_attempts())
    ledger.put_record(stopped.id, attempt, b"{}", "passed")
    ledger.end(stopped.id, "stopped", "why", "out_of_funds")
    try:
        with Interrupts() as nobody, concurrent.futures.ThreadPoolExecutor() as threads:
            waiting = threads.submit(_until_written, stopped.id, ledger, nobody, retired=False)
            with pytest.raises(TimeoutError):
                waiting.result(0.5)
            ledger.confirm(stopped.id, {attempt: "passed"})
            waiting.result(10)
    finally:
        ledger.forget(stopped.id)
        ledger.close()


def test_who_says_what_may_be_missing_waits_until_the_scheduler_has_written_its_own_summary(valkey: str) -> None:
    """Else that one, a moment later, would say again that too much is missing."""
    ledger = Ledger(valkey, prefix=f"t{uuid.uuid4().hex[:8]}:")
    ended = make_plan()
    ledger.add(ended, {})
    ledger.end(ended.id, "incomplete", "why", "given_up")
    try:
        with Interrupts() as nobody, concurrent.futures.ThreadPoolExecutor() as threads:
            _until_written(ended.id, ledger, nobody, retired=False)  # whoever only looks on need not wait
            waiting = threads.submit(_until_written, ended.id, ledger, nobody, retired=True)
            with pytest.raises(TimeoutError):
                waiting.result(1.5)
            ledger.retire(ended.id)
            waiting.result(10)
    finally:
        ledger.forget(ended.id)
        ledger.close()
