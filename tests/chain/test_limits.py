"""The limits of a run hold whatever its stream says, and a journal with a hole is no result (S12, S13, S14, S17)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import pytest

from tests.chain.chain import Found, play
from tests.chain.clock import Clock, jumping
from tests.chain.platform import Run, Wire
from tests.chain.script import Script, Scripted, Step, Turn

if TYPE_CHECKING:
    from _typeshed import SupportsLenAndGetItem

T = TypeVar("T")

STREAMS = ("mute", "stall", "refused", "502", "503", "html", "204", "late", "end_alone", "bad_frame")
HOOK = Step("hook", ("tools.before", "deny", "hooks/a.py"), 1.0)
DENIED = ({"hook_called": {"name": "tools.before", "decision": "deny"}},)


def one(ending: str, *, timeout: int = 60, gap: float = 1.0, turns: int = 1) -> Script:
    said = tuple(Turn(f"t{number}", 1.0, (HOOK,), ending, gap) for number in range(turns))
    return Script((Scripted("s0", said, DENIED),), timeout)


class Always(Wire):
    """Meets the same fault each time, by what is asked; `until`: only up to this time."""

    def __init__(self, script: Script, clock: Clock, faults: dict[str, str], until: float = float("inf")) -> None:
        super().__init__(script.turns(), clock, _Middle(), 0.0)
        self.faults, self.until = faults, until

    def _fault(self, kinds: tuple[str, ...], of: str) -> str:
        return self.faults.get(of, "") if self.now() < self.until else ""


class _Middle(random.Random):
    """No chance: no fault but those that are named, and the first of what can be chosen."""

    def random(self) -> float:
        return 1.0 - 2**-53

    def choice(self, seq: SupportsLenAndGetItem[T]) -> T:
        return seq[0]

    def randint(self, a: int, b: int) -> int:
        return a

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return 0


def plays(script: Script, make: Callable[[Script, Clock], Wire], times: int = 1) -> tuple[Found, Wire, float]:
    """What was found the last of so many times, the wire, and the seconds that it took."""
    with jumping() as (clock, runner):
        wire = make(script, clock)
        for _ in range(times):
            began = clock.now
            found = runner.run(play(script, wire))
        return found, wire, clock.now - began


@pytest.mark.parametrize("timeout", [4, 60])
@pytest.mark.parametrize("fault", STREAMS)
def test_s12_the_limit_of_a_scenario_holds_whatever_the_stream_says(fault: str, timeout: int) -> None:
    """A 4 s limit on a stream of heartbeats ended after 11 minutes."""
    script = one("never", timeout=timeout)
    found, wire, seconds = plays(script, lambda script, clock: Always(script, clock, {"stream": fault}))
    assert found.outcomes == ["error"]
    [run] = wire.runs
    assert run.cancelled is not None
    assert timeout <= run.cancelled - run.started <= timeout + 4, "by the platform's clock, which is known to 2 s"
    assert seconds < timeout + 40


@pytest.mark.parametrize("fault", STREAMS)
def test_c06_a_run_that_has_ended_is_read_from_its_pages_whatever_the_stream_says(fault: str) -> None:
    found, wire, seconds = plays(one("succeeded"), lambda script, clock: Always(script, clock, {"stream": fault}))
    assert (found.outcomes, len(wire.runs)) == (["passed"], 1)
    assert wire.runs[0].cancelled is None
    assert seconds < 60


def test_s12_an_ended_run_has_no_limit_any_more_while_its_journal_is_read() -> None:
    faults = dict.fromkeys(("stream", "page"), "refused")
    script = one("succeeded", timeout=4)
    found, wire, _ = plays(script, lambda script, clock: Always(script, clock, faults, until=40.0))
    assert (found.outcomes, len(wire.runs), wire.cancels) == (["passed"], 1, 0)


@pytest.mark.parametrize("fault", STREAMS)
def test_s12_a_run_that_asks_a_person_is_cancelled_whatever_the_stream_says(fault: str) -> None:
    found, wire, _ = plays(one("asks"), lambda script, clock: Always(script, clock, {"stream": fault}))
    assert found.outcomes == ["error"]
    [run] = wire.runs
    assert run.cancelled is not None
    assert run.cancelled - run.started <= 33


def test_s12_a_target_that_comes_back_after_the_limit_has_the_run_cancelled_at_once() -> None:
    faults = dict.fromkeys(("stream", "page", "run"), "refused")
    found, wire, _ = plays(one("never", timeout=4), lambda script, clock: Always(script, clock, faults, until=100.0))
    assert found.outcomes == ["error"]
    [run] = wire.runs
    assert run.cancelled is not None
    assert 100 <= run.cancelled <= 125


@pytest.mark.parametrize("ending", ["succeeded", "never"])
def test_s17_a_run_whose_journal_cannot_be_read_is_no_result_though_it_is_known_to_have_ended(ending: str) -> None:
    faults = dict.fromkeys(("stream", "page"), "refused")
    found, _, seconds = plays(one(ending), lambda script, clock: Always(script, clock, faults))
    assert found.outcomes == ["missing"]
    assert found.gave_up is not None
    assert found.gave_up.code == "stream_lost"
    assert "its journal could not be read" in found.gave_up.reason
    assert seconds < 200


class Lossy(Always):
    """The journals of these runs, by their number, lack an event; `healed`: no more."""

    def __init__(self, script: Script, clock: Clock, lost: dict[int, int]) -> None:
        super().__init__(script, clock, {})
        self.lost = lost

    def _create(self, body: object, key: str) -> Run:
        run = super()._create(body, key)  # type: ignore[arg-type]  # passed through
        run.lost = frozenset({self.lost[run.number]} if run.number in self.lost else ())
        return run


@pytest.mark.parametrize("number", range(1, 6), ids=["its start", "the message", "running", "the hook", "its end"])
def test_s17_a_journal_with_a_hole_is_tried_again_in_a_fresh_chat(number: int) -> None:
    found, wire, _ = plays(one("succeeded"), lambda script, clock: Lossy(script, clock, {0: number}))
    assert found.outcomes == ["passed"]
    assert len({run.chat for run in wire.runs}) == 2
    assert "journal is not whole" in found.plays[0].tries[0]["reason"]


def test_s17_a_journal_with_a_hole_is_missing_in_the_end_with_its_reason() -> None:
    found, wire, _ = plays(one("succeeded"), lambda script, clock: Lossy(script, clock, {0: 4, 1: 4, 2: 4}))
    assert found.outcomes == ["missing"]
    assert found.gave_up is not None
    assert found.gave_up.code == "journal_hole"
    assert found.gave_up.reason == (
        "s0: GET /v2/runs/run_2/events: the run has ended, and its journal is not whole, by stream and by pages: "
        "event 4 is missing (3 tries)"
    )
    assert len(wire.runs) == 3


def test_i2_a_resume_reads_the_journal_again_and_pays_for_nothing_if_it_is_whole_by_then() -> None:
    class Healing(Lossy):
        def _create(self, body: object, key: str) -> Run:
            if len(self.runs) == 3:
                self.lost = {}
            return super()._create(body, key)

    found, wire, _ = plays(one("succeeded"), lambda script, clock: Healing(script, clock, {0: 4, 1: 4, 2: 4}), times=2)
    assert found.outcomes == ["passed"]
    assert len(wire.runs) == 3
    assert found.plays[0].run_id == "run_0"


@pytest.mark.parametrize(("of", "said"), [("messages", "names msg_2_0, which is not"), ("run", "still says queued")])
def test_s17_what_a_run_left_is_no_result_where_it_is_not_what_the_journal_says(of: str, said: str) -> None:
    """Messages without one that the journal names, a copy of the run that lags: read again, then no result."""
    script = one("succeeded")
    faults = {of: {"messages": "drop_row", "run": "stale"}[of]}
    found, wire, _ = plays(script, lambda script, clock: Always(script, clock, faults))
    assert (found.outcomes, len(wire.runs)) == (["missing"], 3)
    assert found.gave_up is not None
    assert found.gave_up.code == "journal_hole"
    assert said in found.gave_up.reason
    found, wire, _ = plays(script, lambda script, clock: Always(script, clock, faults, until=4.0))
    assert (found.outcomes, len(wire.runs)) == (["passed"], 1)
