"""JUnit reports, read by strict parsers, and held to what CI servers read in them (S16, S18, S29, B11, B12, A08)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.reports import xmltext
from scheduler.reports.junit import MOST_OF_A_SCENARIO, junit_xml
from scheduler.reports.report import Report
from tests.scheduler.reports.making import asked, every_kind, failed, made
from tests.scheduler.samples import line, trial_record

CASES = Path(__file__).resolve().parents[2] / "cases"
HOSTILE: list[str] = [
    *json.loads((CASES / "B12.json").read_text(encoding="utf-8")),
    json.loads((CASES / "B11.json").read_text(encoding="utf-8"))["answer"],
    "".join(map(chr, range(0xA0))),
    "]]>" * 3 + "<!DOCTYPE a [<!ENTITY b 'c'>]>&b;<![CDATA[",
    "\ufdd0\U0001fffe\U0010ffff日本語\N{FAMILY}",
]


def read(report: Report) -> ElementTree.Element:
    """As expat reads it, which takes nothing that XML 1.0 forbids; from bytes, so that the declaration is held to."""
    root = ElementTree.fromstring("".join(junit_xml(report)).encode("utf-8"))
    check_structure(root)
    return root


def check_structure(root: ElementTree.Element) -> None:
    """What the schemas that go around (Ant's, Jenkins') have in common: names, order, counts, numbers."""
    assert root.tag == "testsuites"
    assert {suite.tag for suite in root} == {"testsuite"}
    for level in (root, *root):
        cases = list(level.iter("testcase"))
        assert int(level.attrib["tests"]) == len(cases)
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(level.attrib[attribute]) == sum(case.find(tag) is not None for case in cases), attribute
        assert all(finite(element.attrib["time"]) for element in level.iter() if "time" in element.attrib)
    for suite in root:
        assert [child.tag for child in suite] == ["properties", *["testcase"] * int(suite.attrib["tests"])]
        for case in suite.iter("testcase"):
            order = ["properties", "skipped", "error", "failure", "system-out", "system-err"]
            tags = [child.tag for child in case]
            assert tags == sorted(set(tags), key=order.index), "each once, in the schemas' order"
            assert len({"skipped", "error", "failure"} & set(tags)) <= 1, "readers take the first alone"
            assert case.attrib["name"]
            assert case.attrib["classname"]


def finite(time: str) -> bool:
    return math.isfinite(float(time)) and float(time) >= 0 and "," not in time


def case_of(root: ElementTree.Element, name: str) -> ElementTree.Element:
    (found,) = [case for case in root.iter("testcase") if case.attrib["name"] == name]
    return found


def output(case: ElementTree.Element) -> str:
    return case.findtext("system-out") or ""


class TestWhatAScenarioCountsAs:
    @pytest.fixture
    def root(self, tmp_path: Path) -> ElementTree.Element:
        return read(every_kind(tmp_path, ended="interrupted"))

    def test_a_scenario_is_a_testcase_at_its_place(self, root: ElementTree.Element) -> None:
        passes = case_of(root, "passes")
        assert [child.tag for child in passes] == ["system-out"]
        assert passes.attrib == {
            "classname": "tone",
            "name": "passes",
            "time": "3.600",
            "file": "evals/cases/tone.yaml",
            "line": "3",
        }

    def test_its_trials_are_in_its_output(self, root: ElementTree.Element) -> None:
        assert output(case_of(root, "passes")).splitlines() == [
            f"trial {n + 1}: PASSED 1.200s run_tone_passes_{n}" for n in range(3)
        ]
        said = output(case_of(root, "wavers"))
        assert "trial 2: FAILED 1.200s run_tone_wavers_1\n    tone/wavers  trial 2 of 3  FAILED" in said
        assert '      FAILED   final_answer_contains: the final answer does not contain "Paris"' in said

    @pytest.mark.parametrize(
        ("name", "tag", "kind", "message"),
        [
            ("wavers", "failure", "flaky", "2 of 3 trials passed; trial 2: the final answer does not contain"),
            ("fails", "failure", "failed", "0 of 3 trials passed; trial 1: the final answer does not contain"),
            (
                "breaks",
                "error",
                "error",
                "1 of 3 trials passed; 1 ended in an error; trial 2: error: timed out: 301 s spent",
            ),
            ("waits", "error", "incomplete", "1 of 3 trials passed; 2 of 3 missing; trial 2: missing: server_lost, 3"),
            ("elsewhere", "error", "incomplete", "3 of 3 recorded elsewhere, no evidence here"),
        ],
    )
    def test_s16_what_did_not_pass_says_in_which_way(
        self, root: ElementTree.Element, name: str, tag: str, kind: str, message: str
    ) -> None:
        found = case_of(root, name).find(tag)
        assert found is not None
        assert found.attrib["type"] == kind
        assert found.attrib["message"].startswith(message)

    def test_a_failure_names_each_assertion_with_its_place_and_the_trials(self, root: ElementTree.Element) -> None:
        said = case_of(root, "fails").findtext("failure") or ""
        assert said.startswith("trials 1–3: evals/cases/tone.yaml:27:9: final_answer_contains: the final answer does")
        assert len(said.splitlines()) == 1

    def test_s18_a_missing_attempt_is_red_and_says_why(self, root: ElementTree.Element) -> None:
        """`skipped` is green everywhere, and the exit code is 3."""
        said = case_of(root, "waits").findtext("error") or ""
        assert said.splitlines() == ["trial 2: missing: server_lost, 3 tries", "trial 3: missing: not played yet"]
        assert "trial 3: MISSING: not played yet" in output(case_of(root, "waits"))

    def test_s18_missing_attempts_that_are_allowed_are_skipped_and_counted_apart(self, tmp_path: Path) -> None:
        root = read(every_kind(tmp_path / "allowed", missing_allowed=True))
        waits = case_of(root, "waits")
        assert [child.tag for child in waits] == ["skipped", "system-out"]
        skipped = waits.find("skipped")
        assert skipped is not None
        assert skipped.attrib["message"] == (
            "1 of 3 recorded; what is missing is allowed to be; 1 of 3 trials passed; 2 of 3 missing; "
            "trial 2: missing: server_lost, 3 tries"
        )
        [suite] = root.iter("testsuite")
        assert [suite.attrib[name] for name in ("tests", "skipped", "errors")] == ["6", "1", "2"]

    def test_flaky_is_a_property_of_its_own(self, root: ElementTree.Element) -> None:
        flaky = [case.attrib["name"] for case in root.iter("testcase") if case.find("properties/property") is not None]
        assert flaky == ["wavers", "breaks"]
        found = case_of(root, "wavers").find("properties/property")
        assert found is not None
        assert found.attrib == {"name": "flaky", "value": "true"}

    def test_s21_a_pass_beside_a_failed_turn_is_told(self, tmp_path: Path) -> None:
        crashed = line("a", trial_record=trial_record(error="the run failed: agent_exit: 3"))
        case = case_of(read(made(tmp_path, {"tone": [asked("a", trials=1)]}, [crashed])), "a")
        found = case.find("properties/property")
        assert found is not None
        assert found.attrib == {"name": "remarks", "value": "passed although a turn failed"}
        assert "although the run failed: agent_exit: 3" in str(case.findtext("system-out"))

    def test_flaky_stays_a_property_where_it_is_allowed(self, tmp_path: Path) -> None:
        wavers = case_of(read(every_kind(tmp_path / "allowed", allow_flaky=True)), "wavers")
        assert [child.tag for child in wavers] == ["properties", "system-out"]

    def test_the_suite_says_what_was_evaluated_and_that_it_ended_early(self, root: ElementTree.Element) -> None:
        found = {p.attrib["name"]: p.attrib["value"] for p in root.iterfind("testsuite/properties/property")}
        assert set(found) == {"submission", "commit", "artifact", "pass_rate", "ended"}
        assert found["ended"] == "interrupted"


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:40])
def test_b12_whatever_an_agent_printed_a_strict_parser_reads_the_report(tmp_path: Path, text: str) -> None:
    """As answer, tool call, failure message, grader's why and error, and reason of a missing attempt."""
    tool = {"run_id": "run_0", "id": "c", "name": text, "args": {text: text}, "result": text, "has_result": True}
    record = trial_record(answer=text, tools=[{**tool, "turn": 0, "message": 1}])
    graders = [{"name": "q.a", "kind": "error", "error": text, "why": text, "log": text}]
    report = made(
        tmp_path,
        {"tone": [asked("a", trials=2)]},
        [
            failed("a", 0, answer=text, trial_record=record, graders=graders, reason=text),
            line("a", 1, "missing", reason=text),
        ],
        ks=(2,),
        ended=text,
    )
    found = case_of(read(report), "a")
    assert (found.findtext("failure") or "").startswith("trial 1: evals/cases/tone.yaml:7:9: ")


def test_b12_every_character_comes_back_or_is_shown_as_its_escape() -> None:
    """Each of the 65,536 of the basic plane and the last ones of the others, as text and as attribute."""
    characters = [chr(n) for n in (*range(0x10000), *(plane * 0x10000 + 0xFFFF for plane in range(1, 17)))]
    shown = [xmltext.shown(character) for character in characters]
    document = "".join(
        f'<a b="{xmltext.attribute(character)}">{xmltext.text(character)}</a>' for character in characters
    )
    root = ElementTree.fromstring(f"<r>{document}</r>".encode())
    assert [child.text for child in root] == shown
    assert [child.attrib["b"] for child in root] == shown
    escaped = [character for character, seen in zip(characters, shown, strict=True) if seen != character]
    controls = [chr(n) for n in (*range(0x20), *range(0x7F, 0xA0)) if chr(n) not in "\t\n\r"]
    assert escaped == [*controls, *map(chr, range(0xD800, 0xE000)), "\ufffe", "\uffff"]


@settings(max_examples=200)
@given(st.text(st.characters(codec=None)))
def test_any_text_between_tags_and_quotes_is_read_back(text: str) -> None:
    root = ElementTree.fromstring(f'<a b="{xmltext.attribute(text)}">{xmltext.text(text)}</a>'.encode())
    assert (root.text or "", root.attrib["b"]) == (xmltext.shown(text), xmltext.shown(text))


def test_a08_ids_are_carried_as_they_are(tmp_path: Path) -> None:
    ids = ["✅ ok", "❌ ok", "a_b", "..", "CON", "x" * 200, "A", "<&\"'>", "]]>", "日本語", "%s $(id) `id`"]
    root = read(made(tmp_path, {"tone": [asked(id_, trials=1) for id_ in ids]}, [line(id_) for id_ in ids]))
    assert [case.attrib["name"] for case in root.iter("testcase")] == ids


def test_ten_megabytes_of_answer_are_cut_and_the_report_says_so(tmp_path: Path) -> None:
    answer = "Lyon \x1b]]> " * 1_000_000
    report = made(
        tmp_path,
        {"tone": [asked("a", trials=20)]},
        [failed("a", n, answer=answer if n < 2 else "Lyon. " * 900) for n in range(20)],
        ks=(20,),
    )
    text = "".join(junit_xml(report))
    assert len(text) < 4 * MOST_OF_A_SCENARIO
    said = output(case_of(read(report), "a"))
    assert "(… 9,996,000 more characters)" in said
    assert "trial 20: FAILED" in said
    assert "(… cut here: `evalfleet show tone/a --trial 20` has all)" in said


def test_a_large_suite_is_bounded_and_keeps_every_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.reports.junit.MOST_IN_ALL", 20_000)
    ids = [f"s{n}" for n in range(300)]
    lines = [failed(id_, 0, answer="Lyon. " * 500) for id_ in ids]
    report = made(tmp_path, {"tone": [asked(id_, trials=1) for id_ in ids]}, lines)
    root = read(report)
    assert root.attrib["failures"] == "300"
    assert sum(len(output(case)) for case in root.iter("testcase")) < 20_000 + 300 * 200
    assert "cut here" in output(case_of(root, "s299"))


@pytest.mark.parametrize("duration", [None, "x", True, -5, 10**400])
def test_a_duration_that_is_none_does_not_break_the_report(tmp_path: Path, duration: Any) -> None:
    record = trial_record() | {"duration_ms": duration}
    read(made(tmp_path, {"tone": [asked("a", trials=1)]}, [line("a", trial_record=record)]))
