"""`[[quarantine]]`: played and reported, never gating, until its last day."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest

from evalfleet.artifact import FolderResults, append_segment, finish, open_artifact, write_plan
from evalfleet.checks.case import load_cases
from evalfleet.errors import ConfigError
from evalfleet.plan import Plan, PlannedTarget
from evalfleet.quarantine import Quarantine, in_force
from evalfleet.tree import parse_tree_config, read_tree_config
from scheduler.enough import lost_scenarios
from scheduler.gate import exit_code
from scheduler.pins import Pin
from scheduler.plan import build_plan
from scheduler.render import summary_lines
from scheduler.reports import report_of
from scheduler.reports.github import commands
from scheduler.reports.junit import junit_xml
from scheduler.score import recorded, score
from scheduler.select import select
from scheduler.summary import Summary, summarize
from scheduler.validate import check_quarantine, quarantines_over, validate
from tests.scheduler.samples import ARTIFACT, line, plan, scenario, trial_record

UNTIL = date(2026, 12, 31)
B = Quarantine("tone/b", "the price service is moved", UNTIL)
TODAY = datetime.now(UTC).date()


def entry(scenario_: str = "tone/b", reason: str = "moved", until: str = "2026-12-31") -> str:
    return f'[[quarantine]]\nscenario = "{scenario_}"\nreason = "{reason}"\nuntil = {until}\n'


class TestTheSetting:
    def test_a_day_is_a_toml_date_or_a_text_of_that_form(self) -> None:
        text = entry() + entry("tone/c", until='"2027-01-02"')
        found = parse_tree_config(text.encode(), root=Path("/t")).quarantine
        assert [(q.scenario, q.reason, q.until) for q in found] == [
            ("tone/b", "moved", UNTIL),
            ("tone/c", "moved", date(2027, 1, 2)),
        ]
        assert str(found[1].place) == "evalfleet.toml:6:1"

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (
                entry(until="2026-12-31T10:00:00"),
                "evalfleet.toml:4:1: until must be a day such as 2026-12-31, not a date",
            ),
            (entry(until='"soon"'), "evalfleet.toml:4:1: until must be a day such as 2026-12-31, not text 'soon'"),
            (
                entry(until='"2026-02-30"'),
                "evalfleet.toml:4:1: until must be a day such as 2026-12-31, not '2026-02-30': day",
            ),
            (entry(until="true"), "until must be a day such as 2026-12-31, not a boolean true"),
            (entry(reason=" "), "evalfleet.toml:3:1: reason must be one line of text"),
            ('[[quarantine]]\nscenario = "a/b"\n', "evalfleet.toml:1:3: [[quarantine]] needs reason"),
            (entry() + entry("TONE/B"), "evalfleet.toml:6:1: 'TONE/B' is in quarantine twice; keep one"),
            (
                entry() + "scenarios = 3\n",
                "evalfleet.toml:5:1: unknown key 'scenarios' in [[quarantine]] (did you mean",
            ),
            ("[quarantine]\nreason = 'x'\n", "quarantine must be tables, each headed [[quarantine]], not a table"),
            ("quarantine = [3]\n", "quarantine must be tables, each headed [[quarantine]], not an array"),
        ],
        ids=[
            "a time",
            "a word",
            "no such day",
            "a bool",
            "blank",
            "left out",
            "twice",
            "unknown",
            "one table",
            "numbers",
        ],
    )
    def test_what_is_wrong_with_it_is_told_with_its_place(self, text: str, said: str) -> None:
        with pytest.raises(ConfigError) as refused:
            parse_tree_config(text.encode(), root=Path("/t"))
        assert said in refused.value.message

    def test_it_holds_to_the_end_of_its_last_day(self) -> None:
        assert in_force([B], UNTIL) == (B,)
        assert in_force([B], UNTIL + timedelta(days=1)) == ()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "evals/cases").mkdir(parents=True)
    rows = "".join(f"  - {{id: {id_}, user: hi, expect: [{{final_answer_contains: Paris}}]}}\n" for id_ in "abc")
    (tmp_path / "evals/cases/tone.yaml").write_text(f"scenarios:\n{rows}")
    return tmp_path


class TestTheTree:
    def test_a_scenario_that_the_tree_does_not_hold_is_refused_with_the_near_name(self, tree: Path) -> None:
        (tree / "evalfleet.toml").write_text(entry("tone/b") + entry("tne/c") + entry("zzzzzzzz"))
        with pytest.raises(ConfigError) as refused:
            check_quarantine(read_tree_config(tree), load_cases(tree).cases)
        assert refused.value.message == (
            "evalfleet.toml:6:1: the tree has no scenario 'tne/c' (did you mean 'tone/c'?)\n"
            "evalfleet.toml:10:1: the tree has no scenario 'zzzzzzzz'; write it as CASE/SCENARIO"
        )
        assert refused.value.message in [error.message for error in validate(tree, words=["tone/a"]).errors]

    def test_a_name_is_the_same_whatever_its_letter_case(self, tree: Path) -> None:
        (tree / "evalfleet.toml").write_text(entry("Tone/B"))
        check_quarantine(read_tree_config(tree), load_cases(tree).cases)
        made, _ = planned(tree)
        assert [q.scenario for q in made.quarantine] == ["Tone/B"]
        assert outcome({"a": "passed", "b": "failed", "c": "passed"}, made).verdict == "pass"

    def test_past_its_day_it_gates_again_and_every_command_says_so(self, tree: Path) -> None:
        (tree / "evalfleet.toml").write_text(entry(until="2020-01-31"))
        [warning] = quarantines_over(read_tree_config(tree), TODAY)
        said = (
            "evalfleet.toml:2:1: the quarantine of tone/b ended on 2020-01-31, so it gates again (moved); "
            "remove it, or give it another day"
        )
        assert warning.render() == said
        assert said in [problem.render() for problem in validate(tree).warnings]
        assert planned(tree)[0].quarantine == ()

    def test_it_is_no_part_of_the_pin_and_only_of_what_is_chosen(self, tree: Path) -> None:
        (tree / "evalfleet.toml").write_text("")
        without, pin = planned(tree)
        (tree / "evalfleet.toml").write_text(entry())
        made, again = planned(tree)
        assert pin.digest == again.digest
        assert (without.quarantine, made.quarantine) == ((), (replace(B, reason="moved"),))
        assert planned(tree, "tone/a")[0].quarantine == ()
        assert Plan.from_json(json.loads(made.dumps())) == made


def planned(tree: Path, *words: str) -> tuple[Plan, Pin]:
    return build_plan(
        read_tree_config(tree),
        select(load_cases(tree).cases, words),
        target=PlannedTarget(None, "h_0", None, "concierge"),
        commit="c" * 40,
        graders=None,
        created_at=datetime(2026, 11, 30, tzinfo=UTC),
    )


def outcome(outcomes: Mapping[str, str | None], made: Plan | None = None) -> Summary:
    """Of tone/a, tone/b, …: one trial each. None: it is missing."""
    asked = made or replace(plan({"tone": [scenario(id_) for id_ in outcomes]}), quarantine=(B,))
    lines = [line(id_, 0, o, reason=f"{id_} {o}") for id_, o in outcomes.items() if o is not None]
    return summarize(asked, lines, artifact="x")


@pytest.mark.parametrize(
    ("outcomes", "verdict", "code"),
    [
        pytest.param({"a": "passed", "b": "failed"}, "pass", 0, id="it fails"),
        pytest.param({"a": "passed", "b": "error"}, "pass", 0, id="it ends in an error"),
        pytest.param({"a": "passed", "b": None}, "pass", 0, id="it is missing"),
        pytest.param({"a": "failed", "b": "passed"}, "fail", 1, id="another one fails"),
        pytest.param({"a": None, "b": "failed"}, "incomplete", 3, id="another one is missing"),
        pytest.param({"b": "failed"}, "pass", 0, id="there is no other"),
    ],
)
def test_s36_it_counts_for_no_verdict_and_no_exit_code(
    outcomes: Mapping[str, str | None], verdict: str, code: int
) -> None:
    summary = outcome(outcomes)
    assert (summary.verdict, exit_code(summary)) == (verdict, code)
    [apart] = [s for s in summary.scenarios if s.scenario == "b"]
    assert apart.document()["quarantine"] == {"reason": "the price service is moved", "until": "2026-12-31"}
    assert apart.verdict != "pass" or outcomes["b"] == "passed", "its own verdict stays"


def test_it_is_no_failure_to_stop_at() -> None:
    asked = replace(plan({"tone": [scenario("a"), scenario("b")]}), quarantine=(B,))
    assert lost_scenarios(asked, {"0:0:0": "failed", "0:1:0": "failed"}, allow_flaky=False) == ["tone/a"]


def test_its_line_says_why_and_the_counts_say_that_it_does_not_gate() -> None:
    shown = [text.plain for text in summary_lines(outcome({"a": "passed", "b": "failed"}), None)]
    assert shown[1].startswith("tone  b  FAIL")
    assert shown[1].endswith("b failed; quarantined until 2026-12-31: the price service is moved")
    assert "2 scenarios: 1 pass, 1 fail; 1 in quarantine (fail), which gates nothing" in shown


class TestTheArtifact:
    @pytest.fixture
    def store(self, tmp_path: Path) -> FolderResults:
        made = FolderResults(tmp_path)
        write_plan(made, replace(plan({"tone": [scenario("a"), scenario("b")]}), quarantine=(B,)))
        append_segment(
            made, ARTIFACT, [line("a"), line("b", 0, "failed", reason="no", trial_record=trial_record(answer="Rome"))]
        )
        return made

    def test_reports_are_green_with_a_mark_of_its_own(self, store: FolderResults) -> None:
        result = open_artifact(store, ARTIFACT)
        summary = recorded(result)
        report = report_of(result, summary, exit_code(summary))
        root = ElementTree.fromstring("".join(junit_xml(report)))
        assert [root.attrib[name] for name in ("tests", "failures", "errors", "skipped")] == ["2", "0", "0", "1"]
        [case] = root.iterfind(".//testcase[@name='b']")
        skipped, mark = case.find("skipped"), case.find("properties/property")
        assert skipped is not None
        assert mark is not None
        assert skipped.attrib["message"] == "quarantined until 2026-12-31: the price service is moved; no"
        assert mark.attrib == {
            "name": "quarantine",
            "value": "quarantined until 2026-12-31: the price service is moved",
        }
        [told] = commands(report, None, {})
        assert told.startswith("::warning ")
        assert "quarantined until" in told

    def test_what_was_recorded_keeps_it_and_todays_rules_go_by_the_tree(self, store: FolderResults) -> None:
        assert exit_code(recorded(open_artifact(store, ARTIFACT))) == 0
        finish(store, ARTIFACT, recorded(open_artifact(store, ARTIFACT)).stored(0))
        result = open_artifact(store, ARTIFACT)
        assert exit_code(recorded(result)) == 0
        assert recorded(result).scenarios[1].quarantine == B
        assert exit_code(score(result, as_recorded=True, quarantine=())) == 0
        assert exit_code(score(result, quarantine=[B])) == 0
        assert exit_code(score(result, quarantine=())) == 1

    def test_an_older_artifact_knows_of_none(self, store: FolderResults) -> None:
        stored = recorded(open_artifact(store, ARTIFACT)).stored(1)
        for scenario_ in stored["scenarios"]:
            del scenario_["quarantine"]
        finish(store, ARTIFACT, stored)
        assert exit_code(recorded(open_artifact(store, ARTIFACT))) == 1
