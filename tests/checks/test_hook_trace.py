"""One line for each hook point of a run, as the wire says it (S22)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalfleet.checks import HookCall
from evalfleet.checks.assertions import HOOK_POINTS
from evalfleet.checks.hook_trace import HookPoint, hook_trace, never_reached
from evalfleet.checks.hooks import judge_hook


def call(
    decision: str,
    *,
    hook: str = "tools.before",
    ms: float | None = 10.0,
    error: str | None = None,
    source: str = "h.py",
) -> HookCall:
    return HookCall("run_1", hook, decision, source, ms, fallback=False, error=error)


def replay(error: str | None = None, hook: str = "tools.before") -> HookCall:
    return HookCall("run_1", hook, "failed", "", None, fallback=True, error=error)


@pytest.mark.parametrize(
    ("calls", "reached", "default", "failures", "last"),
    [
        ([call("answered"), call("deny")], 2, 0, 0, ()),
        ([call("use_default"), call("answered")], 2, 1, 0, ()),
        ([call("failed"), call("malformed"), call("use_default")], 3, 3, 2, ("failed", "malformed")),
        ([call("failed", error="KeyError: 'price'")], 1, 1, 1, ("KeyError: 'price'",)),
        ([call("failed", error=f"no {n}") for n in range(5)], 5, 5, 5, ("no 2", "no 3", "no 4")),
        ([call("failed"), replay("TypeError"), call("answered")], 2, 1, 1, ("TypeError",)),
        ([call("failed", error="its own"), replay("TypeError")], 1, 1, 1, ("its own",)),
        ([replay("TypeError"), call("answered")], 2, 1, 1, ("TypeError",)),
        ([call("failed"), replay("one"), replay("two")], 2, 2, 2, ("one", "two")),
        ([call(said) for said in ("retry", "switch", "escalate", "done", "reject", "ask_again")], 6, 0, 0, ()),
        ([call("")], 1, 0, 0, ()),
    ],
    ids=[
        "decided", "deferred", "each kind of not deciding", "its own words", "the last three",
        "a replay belongs to it", "its own words before the replay's", "a replay alone is a failure",
        "one replay for one failure",
        "every verdict decides", "no decision named",
    ],
)  # fmt: skip
def test_what_a_point_did(
    calls: list[HookCall], reached: int, default: int, failures: int, last: tuple[str, ...]
) -> None:
    (point,) = hook_trace(calls)
    assert (point.reached, point.default, point.failures, point.last) == (reached, default, failures, last)


def test_points_come_in_the_order_they_were_reached_with_the_median_of_their_times() -> None:
    calls = [call("answered", hook="b", ms=1), call("answered", hook="a", ms=None), call("deny", hook="b", ms=4)]
    calls += [call("deny", hook="b", ms=100, source="other.py")]
    first, second = hook_trace(calls)
    assert (first.name, first.median_ms, first.sources) == ("b", 4, ("h.py", "other.py"))
    assert (second.name, second.median_ms) == ("a", None)


def test_the_sentence_says_it_all_on_one_line() -> None:
    point = HookPoint("tools.before", 4, 2, 1, 12.04, ("KeyError:\n'price'",), ("hooks/stay.py",))
    said = HookPoint(**{**{f: getattr(point, f) for f in point.__slots__}, "last": ("one", "two")}).sentence()
    assert said == "reached 4 times, 2 by default (1 failure), median 12ms (hooks/stay.py); last failures: one | two"
    assert HookPoint("h", 1, 0, 0, None, (), ()).sentence() == "reached once, decided each time"


JOURNALS = st.lists(
    st.builds(
        HookCall,
        st.just("run_1"),
        st.sampled_from(["tools.before", "stop.done"]),
        st.sampled_from(["answered", "deny", "use_default", "failed", "malformed"]),
        st.sampled_from(["h.py", "", "splox.toolkit", "splox.toolkit.stop", "splox.toolkits.py"]),
        st.none() | st.integers(0, 9),
        st.booleans(),
    ).map(lambda call: replace(call, decision="failed") if call.fallback else call),
    max_size=12,
)


@given(JOURNALS)
def test_s22_the_trace_and_hook_called_read_a_journal_alike(journal: list[HookCall]) -> None:
    points = {point.name: point for point in hook_trace(journal)}
    for name in ("tools.before", "stop.done"):
        point = points.get(name)
        passed, sentence = judge_hook(journal, name, None)
        if point is None:
            assert sentence.startswith(f'"{name}" was never asked')
        elif not point.reached:
            assert sentence == (
                f'"{name}" was answered by the platform\'s own code, {point.by_platform}×; '
                "no hook file of the tree was asked"
            )
        else:
            assert passed is (point.reached > point.failures)
            times = "once" if point.reached == 1 else f"{point.reached} times"
            assert f"was asked {times} and" in sentence


def test_s22_what_the_platforms_own_code_answered_is_told_apart() -> None:
    """Observed: the trace counted `splox.toolkit.…` as the tree's hook, and `hook_called` did not."""
    own = call("answered", source="splox.toolkit.guard", ms=500)
    (alone,) = hook_trace([own, own])
    assert (alone.reached, alone.by_platform, alone.sources, alone.median_ms) == (0, 2, (), None)
    assert alone.sentence() == "no hook file of the tree was asked; the platform's own code answered 2 times"
    (both,) = hook_trace([own, call("deny")])
    assert (
        both.sentence() == "reached once, decided each time, median 10ms (h.py); the platform's own code answered once"
    )
    assert both.document()["by_platform"] == 1


def test_a_hooks_words_are_one_line_and_bounded() -> None:
    (point,) = hook_trace([call("failed", error="a\n\x1b[31m" + "x" * 5000)])
    assert point.last[0].startswith("a\\n\\u001b[31mxxx")
    assert len(point.last[0]) == 200
    assert len(point.sentence()) < 700


def test_a_point_that_was_never_asked_is_told_apart_from_one_that_deferred() -> None:
    points = hook_trace([call("use_default", hook="context.build"), call("answered", hook="my.own")])
    assert list(never_reached(points, HOOK_POINTS)) == [name for name in HOOK_POINTS if name != "context.build"]
