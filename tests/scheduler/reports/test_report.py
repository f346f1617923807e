"""A report says what the exit code says, whatever the attempts gave (S16, S18, S29, S31, S36)."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalfleet.artifact import FolderResults, open_artifact
from evalfleet.checks.comparison import Comparison
from evalfleet.quarantine import Quarantine
from scheduler.compare import Baseline, Compared
from scheduler.gate import exit_code
from scheduler.reports import Report, Standing
from scheduler.reports.files import json_document
from scheduler.reports.github import commands
from scheduler.reports.junit import junit_xml
from scheduler.reports.markdown import markdown
from scheduler.reports.report import GATING
from scheduler.summary import summarize
from tests.scheduler.reports.making import asked, made
from tests.scheduler.samples import ARTIFACT, line, plan

OUTCOME = {"p": "passed", "f": "failed", "e": "error", "m": "missing", "-": None}
APART = Quarantine("tone/s0", "being worked on", date(2030, 1, 1))


def report_of_outcomes(
    trials: list[str], *, allow_flaky: bool, allowed: bool, quarantined: bool, compared: Compared | None = None
) -> Report:
    """A report of scenarios s0, s1, … with an outcome for each trial; s0 is in quarantine, or not."""
    k = len(trials[0])
    asked_for = plan({"tone": [asked(f"s{n}", trials=k) for n in range(len(trials))]}, ks=(k,))
    lines = {
        (f"s{n}", trial): line(f"s{n}", trial, outcome, reason=None if letter == "p" else "a reason")
        for n, letters in enumerate(trials)
        for trial, letter in enumerate(letters)
        if (outcome := OUTCOME[letter]) is not None
    }
    quarantine = (APART,) if quarantined else ()
    summary = replace(
        summarize(asked_for, lines.values(), artifact="x", quarantine=quarantine), missing_allowed=allowed
    )
    scenarios = {p.scenario.id: p.scenario for p in asked_for.cases[0].scenarios}
    code = exit_code(summary, allow_flaky=allow_flaky, regressed=compared is not None and compared.is_lost)
    return Report(
        summary,
        code,
        asked_for,
        lambda _case, id_, trial: lines.get((id_, trial)),
        lambda _case, id_: scenarios[id_],
        allow_flaky,
        compared=compared,
    )


TRIALS = st.integers(1, 3).flatmap(lambda k: st.lists(st.text("pfem-", min_size=k, max_size=k), min_size=1, max_size=4))


@given(TRIALS, st.booleans(), st.booleans(), st.booleans())
def test_every_format_is_red_exactly_where_the_command_is(
    trials: list[str], allow_flaky: bool, allowed: bool, quarantined: bool
) -> None:
    report = report_of_outcomes(trials, allow_flaky=allow_flaky, allowed=allowed, quarantined=quarantined)
    red = report.exit_code != 0
    assert any(report.standing(scenario) in GATING for scenario in report.summary.scenarios) == red
    root = ElementTree.fromstring("".join(junit_xml(report)))
    assert (int(root.attrib["failures"]) + int(root.attrib["errors"]) > 0) == red
    assert any(text.startswith("::error") for text in commands(report, None, {})) == red
    assert ("".join(markdown(report)).startswith(("## ❌", "## 💥", "## ⏳"))) == red
    assert f'"exit_code": {report.exit_code}' in "".join(json_document(report))


@pytest.mark.parametrize("quarantine", [(), (APART,)], ids=["gating", "in quarantine"])
def test_evidence_that_the_evaluation_does_not_hold_yet_is_an_open_end(quarantine: tuple[Quarantine, ...]) -> None:
    """All passed, and the command ends with 3: a resume records it."""
    report = report_of_outcomes(["pp"], allow_flaky=False, allowed=False, quarantined=False)
    evaluation = {"id": "eval_0", "status": "running", "cases": [{"key": "tone/s0", "recorded_attempts": [0]}]}
    lines = [line("s0", 0), line("s0", 1)]
    summary = summarize(report.plan, lines, artifact="x", evaluations=[evaluation], quarantine=quarantine)
    report = replace(report, summary=summary, exit_code=exit_code(summary))
    assert report.exit_code == 3
    assert report.standing(summary.scenarios[0]) is Standing.INCOMPLETE
    error = ElementTree.fromstring("".join(junit_xml(report))).find("testsuite/testcase/error")
    assert error is not None
    assert error.attrib["message"].endswith("1 of 2 not recorded yet: a resume records them")


class TestBesideABaseline:
    @pytest.fixture
    def compared(self, tmp_path: Path) -> Compared:
        """It passed twice, and now once: weaker."""
        made(tmp_path, {"tone": [asked("s0", trials=2)]}, [line("s0", 0), line("s0", 1)], ks=(2,))
        before = open_artifact(FolderResults(tmp_path), ARTIFACT)
        now = report_of_outcomes(["pf"], allow_flaky=True, allowed=False, quarantined=False)
        return Baseline(before, "any").against(now.plan, now.summary)

    def test_what_got_worse_is_red_where_that_counts_though_flaky_is_allowed(self, compared: Compared) -> None:
        """S31: `weaker` counts, and the command ends with 1."""
        report = report_of_outcomes(["pf"], allow_flaky=True, allowed=False, quarantined=False, compared=compared)
        assert report.exit_code == 1
        assert report.standing(report.summary.scenarios[0]) is Standing.REGRESSED
        failure = ElementTree.fromstring("".join(junit_xml(report))).find("testsuite/testcase/failure")
        assert failure is not None
        assert failure.attrib["type"] == "weaker"
        assert failure.attrib["message"].startswith("weaker: it was pass in the baseline; 1 of 2 trials passed")
        page = "".join(markdown(report))
        assert page.startswith("## 📉 evalfleet: flaky")
        assert "compared with" in page
        assert '"comparison": {"baseline"' in "".join(json_document(report))

    def test_all_pairs_are_looked_through_once_and_not_for_each_scenario(
        self, compared: Compared, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ten thousand scenarios, each against ten thousand pairs, would be minutes for each report."""
        asked_for = 0

        def counted(self: Comparison, *, significant: bool) -> bool:
            nonlocal asked_for
            asked_for += 1
            return whole(self, significant=significant)

        whole = Comparison.is_regression
        report = report_of_outcomes(["pf", "pp"], allow_flaky=True, allowed=False, quarantined=False, compared=compared)
        report = replace(report, compared=replace(compared))
        monkeypatch.setattr(Comparison, "is_regression", counted)
        assert [report.standing(s) for s in report.summary.scenarios] == [Standing.REGRESSED, Standing.PASSED]
        assert "".join(markdown(report))
        assert asked_for == 1

    def test_it_is_told_and_not_red_where_it_does_not_count(self, compared: Compared) -> None:
        compared = replace(compared, fail_on=None)
        report = report_of_outcomes(["pf"], allow_flaky=True, allowed=False, quarantined=False, compared=compared)
        assert (report.exit_code, report.standing(report.summary.scenarios[0])) == (0, Standing.PASSED)
        assert "1 weaker" in "".join(markdown(report))
