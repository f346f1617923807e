"""The summary is a pure function of plan and lines, in any order (S16, S18, S29, S30, S35, S36)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from evalfleet.plan import Conversation
from scheduler.allowed import AllowedMissing
from scheduler.gate import exit_code, lost
from scheduler.render import incomplete_message
from scheduler.spend import SpendCounter, _lines_of
from scheduler.summary import Summary, summarize
from tests.scheduler.samples import SUBMISSION, line, plan, scenario, trial_record


def summary_of(outcomes: Sequence[str], *, documents: Sequence[Mapping[str, Any]] = (), **more: Any) -> Summary:
    """One scenario `a` with a trial for each outcome; "-" has no line."""
    lines = [line("a", n, o, reason=f"{o} {n}") for n, o in enumerate(outcomes) if o != "-"]
    asked = plan({"tone": [scenario("a", trials=len(outcomes))]}, ks=[len(outcomes)])
    return summarize(asked, lines, artifact="evals/results/x", evaluations=documents, **more)


def evaluation(status: str, recorded: Sequence[int] | None, *, state: str = "running", **more: Any) -> dict[str, Any]:
    case = {"key": "tone/a", "status": status, "recorded_attempts": recorded}
    return {"id": "eval_0", "status": state, "cases": [case], **more}


class TestScenarios:
    @pytest.mark.parametrize(
        ("outcomes", "verdict", "counts"),
        [
            pytest.param(["passed"], "pass", (1, 0, 0, 0), id="one pass"),
            pytest.param(["failed"], "fail", (0, 1, 0, 0), id="one fail"),
            pytest.param(["error"], "fail", (0, 0, 1, 0), id="an error is no pass"),
            pytest.param(["passed", "failed", "error"], "flaky", (1, 1, 1, 0), id="some"),
            pytest.param(["failed", "error"], "fail", (0, 1, 1, 0), id="none"),
            pytest.param(["passed", "missing"], "incomplete", (1, 0, 0, 1), id="a missing line"),
            pytest.param(["passed", "-"], "incomplete", (1, 0, 0, 1), id="no line"),
        ],
    )
    def test_verdicts_and_counts(self, outcomes: list[str], verdict: str, counts: tuple[int, ...]) -> None:
        """S16, S29: disjoint, and they sum to the trials."""
        [found] = summary_of(outcomes).scenarios
        assert found.verdict == verdict
        assert (found.passed, found.failed, found.errors, len(found.missing)) == counts
        assert sum(counts) == found.trials

    @pytest.mark.parametrize(
        ("outcomes", "first", "trial"),
        [
            pytest.param(["passed", "error", "failed"], "error 1", 1, id="the first trial that did not pass"),
            pytest.param(["missing", "failed"], "failed 1", 1, id="a failure before what is missing"),
            pytest.param(["passed", "missing"], "missing 1", 1, id="why the first missing one is"),
            pytest.param(["passed", "-"], "not played yet", 1, id="nothing is known of it"),
            pytest.param(["passed"], None, None, id="nothing failed"),
        ],
    )
    def test_the_first_failure_in_its_own_words(
        self, outcomes: list[str], first: str | None, trial: int | None
    ) -> None:
        """S23"""
        [found] = summary_of(outcomes).scenarios
        assert (found.first_failure, found.first_failure_trial) == (first, trial)

    def test_s17_s21_a_crash_that_passed_and_tries_that_were_repeated_are_counted(self) -> None:
        """Of missing attempts their reason says how often they were tried. A line of an artifact from before tries had
        a code says its sentence."""

        def tries(*why: tuple[str, str | None]) -> list[dict[str, Any]]:
            before = [{"try": n, "reason": reason, "code": code} for n, (reason, code) in enumerate(why)]
            return [*before, {"try": len(why), "reason": None, "code": None}]

        crashed = trial_record(error="the run failed: agent_exit: 3")
        lines = [
            line("a", 0, trial_record=crashed, tries=tries(("the run failed: rate_limited: 429", "rate_limited"))),
            line(
                "a",
                1,
                "failed",
                trial_record=crashed,
                tries=tries(("the run was cancelled", None), ("x" * 99, "rate_limited")),
            ),
            line("a", 2, trial_record=crashed),
            line("a", 3, "missing", reason="away (3 tries)", tries=tries(("away", "away"), ("away", "away"))),
        ]
        asked = plan({"tone": [scenario("a", trials=4)]}, ks=[4])
        [found] = summarize(asked, lines, artifact="x").scenarios
        assert found.passed_with_failed_turn == 2
        assert found.repeated_tries == {"rate_limited": 2, "the run was cancelled": 1}
        assert found.remarks == (
            "2 of 4 trials passed although a turn failed",
            "3 tries repeated (2 rate_limited, 1 the run was cancelled)",
        )
        assert found.document()["repeated_tries"] == {"rate_limited": 2, "the run was cancelled": 1}

    def test_item_22_notes_on_how_agents_were_read_are_counted_and_the_first_is_shown(self) -> None:
        """First by the plan, in whatever order lines come; a note changes no verdict and no scenario's words."""
        asked = plan({"tone": [scenario("a", trials=2), scenario("b", trials=2)]}, ks=[2, 2])
        lines = [
            line("a", 0),
            line("b", 0, trial_record=trial_record(notes=["of b, 0"])),
            line("b", 1, "failed", trial_record=trial_record(notes=["turn 1: of b, 1", "turn 2: of b, 1"])),
            line("a", 1, "missing", trial_record=trial_record(notes=["of a, 1"])),
            line("b", 5, trial_record=trial_record(notes=["of no attempt"])),
            line("a", 0, context=True, trial_record=trial_record(notes=["of a context"])),
        ]
        for order in itertools.permutations(lines):
            notes = summarize(asked, order, artifact="x").agent_notes
            assert notes is not None
            first = {"case": "tone", "scenario": "a", "trial": 1, "note": "of a, 1"}
            assert notes.document() == {"trials": 3, "first": first}
        found = summarize(asked, lines, artifact="x")
        assert [row.verdict for row in found.scenarios] == ["incomplete", "flaky"]
        assert [row.remarks for row in found.scenarios] == [(), ()]

    def test_why_an_attempt_without_a_line_is_missing_can_be_told(self) -> None:
        [found] = summary_of(["-", "-"], reasons={("tone", "a", 1): "workers were lost 5 times"}).scenarios
        assert [attempt.reason for attempt in found.missing] == ["not played yet", "workers were lost 5 times"]

    def test_the_duration_is_the_median_of_trials_with_evidence(self) -> None:
        asked = plan({"tone": [scenario("a", trials=5)]}, ks=[5])
        times = [100, 9000, 300, 200]
        lines = [line("a", n, trial_record=trial_record(duration_ms=t)) for n, t in enumerate(times)]
        [found] = summarize(asked, lines, artifact="").scenarios
        assert found.duration_ms == 250

    def test_the_order_of_lines_changes_nothing(self) -> None:
        asked = plan({"tone": [scenario(id_, trials=3) for id_ in "abc"]}, ks=[3])
        lines = [
            *(
                line(i, n, o, usage=usage(f"chat_{n}", 10 * n))
                for i, n, o in itertools.product("ab", range(3), ["failed"])
            ),
            line("b", 2, "passed", context=True),
            line("c", 0, "failed", recorded="elsewhere"),
            line("c", 1, "missing", reason="server_lost"),
            line("unheard-of", 0, "failed"),
        ]
        wanted = summarize(asked, lines, artifact="x")
        for seed in range(20):
            random.Random(seed).shuffle(lines)
            assert summarize(asked, iter(lines), artifact="x") == wanted

    def test_context_is_never_scored(self) -> None:
        """S9"""
        asked = plan({"tone": [scenario("a", trials=1), scenario("b", trials=2, evaluation=1)]}, ks=[1, 2])
        lines = [line("a", 0), line("a", 1, "failed", context=True), line("b", 0), line("b", 1)]
        found = summarize(asked, lines, artifact="")
        assert [s.verdict for s in found.scenarios] == ["pass", "pass"]
        assert found.context_turns == 1
        assert found.evaluations[0].pass_at_1.value == 1.0

    def test_scenarios_that_were_not_selected_are_not_listed(self) -> None:
        asked = plan({"tone": [scenario("a", evaluation=None), scenario("b")]})
        assert [s.scenario for s in summarize(asked, [line("b")], artifact="").scenarios] == ["b"]

    def test_the_verdict_of_all_is_the_worst(self) -> None:
        asked = plan({"tone": [scenario(i) for i in "abcd"]})
        words = ["passed", "passed", "missing", "failed"]
        for count, wanted in ((2, "pass"), (3, "incomplete"), (4, "fail")):
            lines = [line(i, 0, o) for i, o in zip("abcd", words[:count], strict=False)]
            lines += [line(i, 0, "passed") for i in "abcd"[count:]]
            assert summarize(asked, lines, artifact="").verdict == wanted


class TestElsewhere:
    """S35"""

    @pytest.mark.parametrize(
        ("status", "verdict"), [("passed", "pass"), ("flaky", "flaky"), ("failed", "fail"), ("pending", "incomplete")]
    )
    def test_counts_are_unknown_and_the_verdict_is_the_case_status(self, status: str, verdict: str) -> None:
        found = summary_of(["passed", "-"], documents=[evaluation(status, [0, 1])])
        [row] = found.document(0)["scenarios"]
        assert row["verdict"] == verdict
        assert (row["passed"], row["failed"], row["errors"], row["missing"]) == (None, None, None, 0)
        assert row["first_failure"] is None
        assert found.scenarios[0].elsewhere == (1,)

    def test_an_attempt_that_somebody_else_recorded_is_not_known_by_our_line(self) -> None:
        asked = plan({"tone": [scenario("a")]})
        ours = [line("a", 0, "failed", recorded="elsewhere", reason="ours")]
        [found] = summarize(asked, ours, artifact="", evaluations=[evaluation("passed", [0])]).scenarios
        assert (found.verdict, found.first_failure, found.duration_ms) == ("pass", None, None)

    def test_rates_are_then_the_servers(self) -> None:
        metrics = {"pass_at_1": 0.5, "pass_hat_k": 0.0, "judge_score": None}
        found = summary_of(["-", "-"], documents=[evaluation("flaky", [0, 1], state="completed", metrics=metrics)])
        [rates] = found.evaluations
        assert (rates.status, rates.pass_at_1.value, rates.pass_hat_k.value) == ("completed", 0.5, 0.0)
        assert rates.pass_at_1.low is None

    def test_what_is_recorded_without_a_line_is_not_missing(self) -> None:
        found = summary_of(["-", "-", "passed"], documents=[evaluation("pending", [1, 2])])
        assert [attempt.trial for attempt in found.scenarios[0].missing] == [0]
        assert found.scenarios[0].elsewhere == (1,)

    def test_evidence_that_is_not_recorded_yet_is_counted_apart(self) -> None:
        found = summary_of(["passed", "passed"], documents=[evaluation("pending", [0])])
        assert found.scenarios[0].unrecorded == (1,)
        assert exit_code(found) == 3

    def test_null_for_no_recorded_attempts_is_read_as_none(self) -> None:
        """E10"""
        assert summary_of(["passed"], documents=[evaluation("pending", None)]).unrecorded == 1


class TestRates:
    def test_rates_carry_their_bounds_where_attempts_are_missing(self) -> None:
        """S18: all missing failed, all passed."""
        asked = plan({"tone": [scenario("a", trials=2), scenario("b", trials=2)]}, ks=[2])
        lines = [line("a", 0), line("a", 1), line("b", 0, "passed")]
        [found] = summarize(asked, lines, artifact="").evaluations
        assert (found.pass_at_1.value, found.pass_at_1.low, found.pass_at_1.high) == (1.0, 0.75, 1.0)
        assert (found.pass_hat_k.value, found.pass_hat_k.low, found.pass_hat_k.high) == (1.0, 0.5, 1.0)
        assert (found.recorded, found.missing) == (3, 1)

    def test_rates_are_null_when_there_is_nothing(self) -> None:
        [found] = summary_of(["-"]).document(3)["evaluations"]
        assert (found["pass_at_1"], found["pass_hat_k"]) == (None, None)

    def test_the_score_is_the_mean_of_attempts_that_have_one(self) -> None:
        asked = plan({"tone": [scenario("a", trials=3)]}, ks=[3])
        lines = [line("a", 0, judge_score="0.5"), line("a", 1, judge_score="1"), line("a", 2, judge_score="odd")]
        assert summarize(asked, lines, artifact="").evaluations[0].judge_score == 0.75

    def test_each_trials_number_is_an_evaluation_of_its_own(self) -> None:
        """S10"""
        asked = plan({"tone": [scenario("a"), scenario("b", trials=2, evaluation=1)]}, ks=[1, 2])
        found = summarize(asked, [line("a"), line("b", 0), line("b", 1, "failed")], artifact="")
        assert [(e.id, e.k, e.pass_at_1.value) for e in found.evaluations] == [("eval_0", 1, 1.0), ("eval_1", 2, 0.5)]


def usage(chat: str, tokens: int, amount: str | None = "0.01", *, final: bool = True, **more: Any) -> dict[str, Any]:
    return {"chat_id": chat, "total_tokens": tokens, "amount": amount, "currency": "USD", "final": final, **more}


class TestSpend:
    """S15"""

    def spent(self, *lines: Mapping[str, Any]) -> dict[str, Any]:
        counter = SpendCounter()
        for one in lines:
            counter.add(one)
        return counter.total().document()

    def test_a_chat_counts_once_however_many_scenarios_report_it(self) -> None:
        found = self.spent(
            *(line(i, usage=usage("chat_1", 100, "0.1")) for i in "abc"), line("a", 1, usage=usage("c2", 5))
        )
        assert (found["amount"], found["currency"], found["tokens"], found["final"]) == ("0.11", "USD", 105, True)

    def test_the_final_reading_of_a_chat_wins(self) -> None:
        early, late = usage("c", 900, "9", final=False), usage("c", 100, "0.1")
        for order in ([early, late], [late, early]):
            assert self.spent(*(line("a", usage=reading) for reading in order))["amount"] == "0.1"

    def test_an_estimate_is_marked(self) -> None:
        assert self.spent(line("a", usage=usage("c", 1, final=False)))["final"] is False

    def test_tries_before_were_paid_for_too(self) -> None:
        tries = [{"try": 0, "chat_id": "c0", "usage": usage("c0", 7)}, {"try": 1, "chat_id": "c1", "usage": None}]
        assert self.spent(line("a", usage=usage("c1", 10), tries=tries))["tokens"] == 17

    def test_judge_calls_are_apart(self) -> None:
        graders: list[dict[str, Any]] = [
            {"llm_calls": 2, "llm_tokens": 30, "llm_amount": "0.002", "llm_currency": "EUR"},
            {"llm_calls": 1, "llm_amount": None},
        ]
        found = self.spent(line("a", graders=graders))
        assert found["judge"] == {"calls": 3, "tokens": 30, "amount": "0.002", "currency": "EUR"}
        assert (found["amount"], found["tokens"]) == (None, 0)
        graders.append({"llm_calls": 1, "llm_amount": "1"})  # an artifact from before it had a currency
        several = {"amount": None, "currency": None, "amounts": {"EUR": "0.002", "USD": "1"}}
        assert self.spent(line("a", graders=graders))["judge"] == {"calls": 4, "tokens": 30, **several}

    def test_currencies_are_never_added(self) -> None:
        found = self.spent(line("a", usage=usage("c", 1, "1")), line("b", usage=usage("d", 1, "2", currency="EUR")))
        assert found["amount"] is None
        assert found["amounts"] == {"EUR": "2", "USD": "1"}
        both = {**usage("c", 1, None), "amounts": {"EUR": "2", "USD": "1"}}  # as our server has them of one chat
        assert self.spent(line("a", usage=both), line("b", usage=usage("d", 1, "3")))["amounts"] == {
            "EUR": "2",
            "USD": "4",
        }

    def test_n20_amounts_stay_exact_and_one_currency_is_one_in_either_case(self) -> None:
        tiny = usage("c", 1, "0.00000000000000000000000123456789", currency="usd")
        found = self.spent(line("a", usage=tiny), line("b", usage=usage("d", 1, "1000000")))
        assert (found["amount"], found["currency"]) == ("1000000.00000000000000000000000123456789", "USD")

    @pytest.mark.parametrize("odd", [None, "", "free", "NaN", "Infinity"])
    def test_a_price_that_is_none_loses_nothing_else(self, odd: str | None) -> None:
        assert self.spent(line("a", usage=usage("c", 3, odd)))["tokens"] == 3

    def test_odd_shapes_in_a_line_cost_only_themselves(self) -> None:
        odd = line("a", usage="much", graders=[None, 3], tries={"try": 0}, trial_record=[1])
        assert self.spent(odd)["tokens"] == 0
        [found] = summarize(plan({"tone": [scenario("a")]}), [odd], artifact="").scenarios
        assert (found.verdict, found.duration_ms) == ("pass", None)

    def test_money_is_decimal_text_without_exponent(self) -> None:
        lines = [line("a", n, usage=usage(f"c{n}", 0, "0.0000001")) for n in range(3)]
        assert self.spent(*lines)["amount"] == "0.0000003"

    def test_a_conversation_is_let_go_when_all_its_lines_are_in(self) -> None:
        """Memory: readings are kept for incomplete conversations only."""
        asked = plan({"tone": [scenario("a", trials=3), scenario("b", trials=1)], "facts": [scenario("a")]}, ks=[3])
        for number, case in enumerate(asked.cases):
            for trial in range(case.trials):
                assert _lines_of(case)[trial] == len(asked.steps(Conversation(number, trial)))
        counter = SpendCounter(asked)
        early, late = usage("c", 900, "9", final=False), usage("c", 100, "0.1")
        counter.add(line("a", 0, usage=early))
        assert len(counter._open) == 1
        counter.add(line("b", 0, usage=late))
        counter.add(line("a", 1, usage=usage("d", 1, "0.02")))
        assert counter._open == {}
        counter.add(line("a", 2, case="facts", usage=usage("e", 1, "0.003")))
        assert counter.total().document()["amount"] == "0.123"

    def test_rows_of_a_suite_share_a_name_and_no_conversation(self) -> None:
        made = plan({"one": [scenario("a")], "two": [scenario("b")]})
        rows = replace(made, cases=tuple(replace(case, name="capitals") for case in made.cases))
        lines = [line(id_, case="capitals", usage=usage(id_, 5, "0.1")) for id_ in "ab"]
        found = summarize(rows, lines, artifact="")
        assert found.spend.document()["amount"] == "0.2"
        assert [row.verdict for row in found.scenarios] == ["pass", "pass"]


class TestJson:
    def test_the_object_of_json_has_exactly_these_keys(self) -> None:
        document = summary_of(["passed"]).document(0)
        assert set(document) == {
            *("verdict", "exit_code", "submission", "artifact", "commit", "spend", "pass_rate", "evaluations"),
            *("graders", "scenarios", "agent_notes"),
        }
        assert document["agent_notes"] is None
        assert set(document["evaluations"][0]) == {
            *("id", "k", "status", "pass_at_1", "pass_hat_k", "judge_score", "scenarios", "recorded", "missing"),
            "rates",
        }
        assert list(document["scenarios"][0]) == [
            *("case", "scenario", "verdict", "trials", "passed", "failed", "errors", "missing", "unrecorded"),
            *("passed_with_failed_turn", "repeated_tries", "first_failure", "duration_ms"),
            "quarantine",
        ]
        assert (document["submission"], document["artifact"]) == (SUBMISSION, "evals/results/x")

    def test_s18_what_the_server_refuses_to_record_is_named_with_its_reason(self) -> None:
        """It has evidence and is no result yet: exit 3, unless so many may be missing."""
        why = "the server refuses to record it: judge_score is too large"
        documents = [evaluation("pending", [0])]
        summary = summary_of(["passed", "passed"], documents=documents, refused={("tone", "a", 1): why})
        assert (summary.unrecorded, summary.refused, summary.missing) == (1, 1, 0)
        assert summary.stored(3)["scenarios"][0]["refused_attempts"] == {"1": why}
        said = incomplete_message(summary)
        assert "1 attempt with evidence here, refused by the server" in said
        assert f"tone/a  trial 2  {why}" in said
        assert "not recorded on the evaluation yet" not in said
        assert f"evalfleet cancel {SUBMISSION}" in said
        assert exit_code(summary) == 3
        assert AllowedMissing.parse("1").covers(summary)
        assert exit_code(replace(summary, missing_allowed=True)) == 0

    def test_what_is_stored_says_more_to_a_later_reader(self) -> None:
        stored = summary_of(["passed", "-"], seconds=2.5).stored(3)
        assert stored["format"] == 1
        assert stored["seconds"] == 2.5
        assert stored["scenarios"][0]["missing_attempts"] == {"1": "not played yet"}
        assert stored["evaluations"][0]["rates"]["pass_at_1"] == {
            "value": 1.0,
            "n": 1,
            "missing": 1,
            "low": 0.5,
            "high": 1.0,
            "interval": None,
        }

    def test_graders_stand_on_what_is_evidence_here(self) -> None:
        """S30, S35: another run's verdict is not this trial's answer."""
        answer = {"name": "q.a", "kind": "answered", "passed": True, "score": 0.25}
        lines = [
            line("a", 0, graders=[answer]),
            line("a", 1, graders=[{**answer, "score": 0.75}]),
            line("a", 2, graders=[answer], recorded="elsewhere"),
            line("b", 0, graders=[answer], context=True),
        ]
        asked = plan({"tone": [scenario("a", trials=3), scenario("b", evaluation=None)]}, ks=[3])
        [found] = summarize(asked, lines, artifact="").document(0)["graders"]
        assert found == {"name": "q.a", "calls": 2, "answered": 2, "passed": 2, "scored": 2, "score": 0.5}


class TestExitCode:
    """S36, B13"""

    @pytest.mark.parametrize(
        ("outcomes", "options", "wanted"),
        [
            pytest.param(["passed"], {}, 0, id="all passed"),
            pytest.param(["failed"], {}, 1, id="failed"),
            pytest.param(["error"], {}, 1, id="an error"),
            pytest.param(["passed", "failed"], {}, 1, id="flaky"),
            pytest.param(["passed", "failed"], {"allow_flaky": True}, 0, id="flaky allowed"),
            pytest.param(["passed", "error"], {"allow_flaky": True}, 1, id="an error where flaky is allowed"),
            pytest.param(["failed", "failed"], {"allow_flaky": True}, 1, id="fail where flaky is allowed"),
            pytest.param(["passed"], {"regressed": True}, 1, id="regressed"),
            pytest.param(["passed", "-"], {}, 3, id="incomplete"),
            pytest.param(["failed", "-"], {}, 1, id="lost whatever the missing give"),
            pytest.param(["failed", "-"], {"allow_flaky": True}, 3, id="could still be flaky, which is allowed"),
            pytest.param(["passed", "-"], {"stopped": True}, 4, id="stopped by budget"),
            pytest.param(["failed", "-"], {"stopped": True}, 1, id="lost before it was stopped"),
            pytest.param(["passed"], {"usage": True, "stopped": True}, 2, id="usage before stopped"),
            pytest.param(["failed"], {"fault": True, "usage": True}, 70, id="a fault of ours before all but signals"),
            pytest.param(["passed"], {"signal": 2, "fault": True}, 130, id="Ctrl-C"),
            pytest.param(["passed"], {"signal": 15}, 143, id="SIGTERM"),
        ],
    )
    def test_the_first_that_applies(self, outcomes: list[str], options: dict[str, Any], wanted: int) -> None:
        assert exit_code(summary_of(outcomes), **options) == wanted

    @pytest.mark.parametrize(
        ("outcomes", "allow_flaky", "wanted"),
        [
            pytest.param(["passed", "-"], False, 0, id="all that is there passed"),
            pytest.param(["passed", "failed", "-"], True, 0, id="flaky, which is allowed"),
            pytest.param(["passed", "failed", "-"], False, 1, id="flaky"),
            pytest.param(["failed", "-"], True, 1, id="given up, never passed"),
            pytest.param(["error", "-"], True, 1, id="an error"),
            pytest.param(["-", "-"], False, 0, id="nothing of this scenario"),
        ],
    )
    def test_s18_what_may_be_missing_gives_nothing(self, outcomes: list[str], allow_flaky: bool, wanted: int) -> None:
        summary = replace(summary_of(outcomes), missing_allowed=True)
        assert exit_code(summary, allow_flaky=allow_flaky) == wanted

    @pytest.mark.parametrize(
        ("one", "other", "wanted"),
        [
            ("passed", "failed", 1),
            ("failed", "passed", 1),
            ("passed", "-", 3),
            ("-", "passed", 3),
            ("passed", "passed", 0),
        ],
    )
    def test_one_scenario_decides_for_all(self, one: str, other: str, wanted: int) -> None:
        lines = [line(name, 0, outcome) for name, outcome in (("a", one), ("b", other)) if outcome != "-"]
        summary = summarize(plan({"tone": [scenario("a"), scenario("b")]}), lines, artifact="")
        assert exit_code(summary) == wanted

    def test_nothing_is_allowed_that_was_not_asked_for(self) -> None:
        flaky, [half] = summary_of(["passed", "failed"]).scenarios, summary_of(["failed", "-"]).scenarios
        assert lost(flaky[0])
        assert not lost(half, allow_flaky=True), "what is missing may still pass"
        assert lost(half, allow_flaky=True, allow_missing=True)

    def test_nothing_at_all_is_not_ok(self) -> None:
        assert exit_code(summarize(plan({}), [], artifact="")) == 2

    @pytest.mark.parametrize(("status", "wanted"), [("passed", 0), ("flaky", 1), ("failed", 1), ("pending", 3)])
    def test_recorded_elsewhere_exits_by_the_case_status(self, status: str, wanted: int) -> None:
        assert exit_code(summary_of(["-", "-"], documents=[evaluation(status, [0, 1])])) == wanted
