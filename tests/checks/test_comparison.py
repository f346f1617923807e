"""Two results side by side (S31)."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalfleet.checks.comparison import Comparison, Judged, Pair, capability, compare, mcnemar, moved

VERDICTS = ("pass", "flaky", "fail", "incomplete")


def judged(verdict: str = "pass", trials: int = 3, **content: str) -> Judged:
    return Judged(verdict, trials, {"turns": "t", "expectations": "e", **content})


def moves(*verdicts: tuple[str, str]) -> Comparison:
    """A scenario for each (before, now)."""
    before = {f"c/{n}": judged(one) for n, (one, _) in enumerate(verdicts)}
    now = {f"c/{n}": judged(other) for n, (_, other) in enumerate(verdicts)}
    return compare(before, now)


@pytest.mark.parametrize(
    ("before", "now", "move"),
    [
        ("pass", "pass", "same"),
        ("pass", "flaky", "weaker"),
        ("pass", "fail", "regressed"),
        ("flaky", "pass", "improved"),
        ("flaky", "flaky", "same"),
        ("flaky", "fail", "regressed"),
        ("fail", "pass", "improved"),
        ("fail", "flaky", "improved"),
        ("fail", "fail", "same"),
        ("incomplete", "pass", "undecided"),
        ("fail", "incomplete", "undecided"),
    ],
)
def test_what_became_of_a_scenario(before: str, now: str, move: str) -> None:
    assert moved(before, now) == move


@given(st.sampled_from(VERDICTS), st.sampled_from(VERDICTS))
def test_looked_at_from_the_other_side_better_is_worse(before: str, now: str) -> None:
    mirrored = {"improved": {"regressed", "weaker"}, "regressed": {"improved"}, "weaker": {"improved"}}
    move = moved(before, now)
    assert moved(now, before) in mirrored.get(move, {move})


class TestPairs:
    def test_equal_key_content_and_trials_make_a_pair(self) -> None:
        found = compare({"tone/a": judged("pass")}, {"tone/a": judged("flaky")})
        assert [(pair.key, pair.move) for pair in found.pairs] == [("tone/a", "weaker")]

    @pytest.mark.parametrize(
        ("now", "listed"),
        [
            pytest.param(judged(expectations="others"), {"changed": (("tone/a", ("expectations",)),)}, id="changed"),
            pytest.param(judged(graders="g"), {"changed": (("tone/a", ("graders",)),)}, id="what one side lacks"),
            pytest.param(judged(trials=5), {"other_k": (("tone/a", 3, 5),)}, id="other k"),
            pytest.param(judged(trials=5, turns="x"), {"changed": (("tone/a", ("turns",)),)}, id="changed before k"),
        ],
    )
    def test_the_rest_is_listed_with_its_reason(self, now: Judged, listed: dict[str, object]) -> None:
        found = compare({"tone/a": judged(graders="") if "graders" in now.content else judged()}, {"tone/a": now})
        assert found.pairs == ()
        assert {name: getattr(found, name) for name in listed} == listed

    def test_new_and_removed(self) -> None:
        found = compare({"a/1": judged(), "a/2": judged()}, {"a/2": judged(), "a/3": judged()})
        assert (found.new, found.removed, [pair.key for pair in found.pairs]) == (("a/3",), ("a/1",), ["a/2"])

    @pytest.mark.parametrize(
        ("all_before", "all_now", "new", "removed", "not_selected"),
        [
            (True, False, ("a/3",), (), ("a/1",)),
            (False, True, (), ("a/1",), ("a/3",)),
            (False, False, (), (), ("a/1", "a/3")),
        ],
    )
    def test_what_a_selection_left_out_is_neither_new_nor_removed(
        self, all_before: bool, all_now: bool, new: tuple[str], removed: tuple[str], not_selected: tuple[str]
    ) -> None:
        sides = {"a/1": judged(), "a/2": judged()}, {"a/2": judged(), "a/3": judged()}
        found = compare(*sides, all_before=all_before, all_now=all_now)
        assert (found.new, found.removed, found.not_selected) == (new, removed, not_selected)
        assert found.document()["not_selected"] == list(not_selected)
        assert [pair.key for pair in found.pairs] == ["a/2"]

    @given(
        *[
            st.dictionaries(
                st.sampled_from([f"c/{n}" for n in range(6)]),
                st.builds(judged, st.sampled_from(VERDICTS), st.sampled_from([1, 3]), turns=st.sampled_from("xy")),
            )
            for _ in range(2)
        ]
    )
    def test_every_scenario_of_both_sides_stands_in_exactly_one_list(
        self, before: dict[str, Judged], now: dict[str, Judged]
    ) -> None:
        found = compare(before, now)
        listed = [
            *(pair.key for pair in found.pairs),
            *(key for key, _ in found.changed),
            *(key for key, *_ in found.other_k),
            *found.new,
            *found.removed,
            *found.not_selected,
        ]
        assert Counter(listed) == Counter({*before, *now})


class TestMcNemar:
    @pytest.mark.parametrize(
        ("worse", "better", "p"),
        [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 0.0625), (6, 0, 0.03125), (10, 2, 0.03857421875), (3, 3, 1.0)],
    )
    def test_known_values(self, worse: int, better: int, p: float) -> None:
        """6 of 6 is the least that is significant; the exact test, so nothing is approximated."""
        assert mcnemar(worse, better) == p

    @given(st.integers(0, 9), st.integers(0, 9))
    def test_it_counts_every_way_to_split_at_least_as_uneven(self, worse: int, better: int) -> None:
        total = worse + better
        if total > 12:
            return
        ways = [sum(way) for way in itertools.product((0, 1), repeat=total)]
        uneven = abs(worse - better)
        wanted = sum(abs(total - 2 * one) >= uneven for one in ways) / len(ways)
        assert mcnemar(worse, better) == pytest.approx(wanted)

    def test_thousands_of_scenarios_are_no_trouble(self) -> None:
        assert 0 < mcnemar(1200, 800) < 1e-18


class TestRegression:
    def test_regressed_and_weaker_both_count(self) -> None:
        assert moves(("pass", "fail")).is_regression()
        assert moves(("pass", "flaky")).is_regression()
        assert not moves(("fail", "pass"), ("pass", "pass"), ("pass", "incomplete")).is_regression()

    @pytest.mark.parametrize(
        ("worse", "better", "significant"),
        [(5, 0, False), (6, 0, True), (7, 1, False), (9, 1, True), (1, 9, False)],
    )
    def test_significant_needs_p_below_5_percent_and_more_worse_than_better(
        self, worse: int, better: int, significant: bool
    ) -> None:
        """(1, 9) has p 0.02: significantly better is no regression, although one got worse."""
        found = moves(*[("pass", "flaky")] * worse, *[("fail", "pass")] * better)
        assert found.is_regression() is (worse > 0)
        assert found.is_regression(significant=True) is significant

    def test_what_is_undecided_stands_behind_no_number(self) -> None:
        found = moves(("pass", "incomplete"), ("incomplete", "fail"))
        assert (found.decided, found.p, len(found.pairs)) == (0, 1.0, 2)

    def test_the_document_counts_the_same_and_lists_what_moved(self) -> None:
        document = moves(("pass", "pass"), ("pass", "fail"), ("fail", "flaky")).document()
        counts = {name: document[name] for name in ("paired", "regressed", "weaker", "improved", "same", "undecided")}
        assert counts == {"paired": 3, "regressed": 1, "weaker": 0, "improved": 1, "same": 1, "undecided": 0}
        assert [(move["key"], move["move"]) for move in document["moves"]] == [
            ("c/1", "regressed"),
            ("c/2", "improved"),
        ]

    def test_the_document_says_why_a_scenario_is_in_no_pair(self) -> None:
        before = {"a/1": judged(), "a/2": judged(), "a/3": judged(), "a/4": judged()}
        now = {"a/2": judged(turns="x"), "a/3": judged(trials=5), "a/4": judged("fail"), "a/5": judged()}
        document = compare(before, now).document()
        assert {name: document[name] for name in ("changed", "other_k", "new", "removed", "p")} == {
            "changed": [{"key": "a/2", "what": ["turns"]}],
            "other_k": [{"key": "a/3", "before": 3, "now": 5}],
            "new": ["a/5"],
            "removed": ["a/1"],
            "p": 1.0,
        }


class TestServer:
    """`comparison` on the API counts what could and cannot, by case key."""

    def test_improved_and_regressed(self) -> None:
        before = {"a": True, "b": False, "c": True, "d": False, "gone": True}
        now = {"a": False, "b": True, "c": True, "d": False, "new": True}
        assert capability(before, now) == (1, 1)

    @given(
        st.dictionaries(st.sampled_from("abcd"), st.booleans()), st.dictionaries(st.sampled_from("abcd"), st.booleans())
    )
    def test_it_is_what_the_seed_says(self, before: dict[str, bool], now: dict[str, bool]) -> None:
        both = before.keys() & now.keys()
        improved = sum(now[key] and not before[key] for key in both)
        regressed = sum(before[key] and not now[key] for key in both)
        assert capability(before, now) == (improved, regressed)


def test_a_pair_says_how_many_of_how_many() -> None:
    pair = Pair(
        "t/a", Judged("pass", 3, {}, passed=3), Judged("fail", 3, {}, passed=0, first_failure="no"), "regressed"
    )
    assert pair.document() == {
        "key": "t/a",
        "move": "regressed",
        "trials": 3,
        "before": {"verdict": "pass", "passed": 3},
        "now": {"verdict": "fail", "passed": 0},
        "first_failure": "no",
    }
