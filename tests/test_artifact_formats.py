"""What was recorded by any earlier evalfleet is read and scored by this one (docs/artifact.md, "Compatibility").

`tests/artifacts/format-<N>…` are real artifacts, as the programs of their days wrote them, and are never changed.
`verdicts.json` beside each is what they say: scenario → verdict, passed, failed, errors, missing. When a format's
number moves, an artifact of the new one joins them.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from evalfleet.artifact import Result, open_result
from evalfleet.errors import StorageError
from evalfleet.evidence import LINE_FORMAT
from evalfleet.plan import FORMAT
from scheduler.compare import Baseline
from scheduler.score import Today, recorded, rescored
from scheduler.summary import Summary

FOLDER = Path(__file__).parent / "artifacts"
KEPT = sorted(path for path in FOLDER.iterdir() if path.is_dir())
every_kept = pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.name)


def counts(summary: Summary) -> dict[str, list[Any]]:
    return {
        f"{row.case}/{row.scenario}": [row.verdict, row.passed, row.failed, row.errors, len(row.missing)]
        for row in summary.scenarios
    }


def wanted(kept: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = json.loads((kept / "verdicts.json").read_text(encoding="utf-8"))
    return found


def test_there_is_an_artifact_of_every_format_that_ever_was() -> None:
    numbers = {int(found[1]) for path in KEPT if (found := re.match(r"format-(\d+)", path.name))}
    assert numbers == set(range(1, max(FORMAT, LINE_FORMAT) + 1))
    for path in KEPT:
        found = re.match(r"format-(\d+)", path.name)
        assert found is not None
        assert json.loads((path / "suite.json").read_bytes())["format"] == int(found[1])


@every_kept
def test_it_says_today_what_it_said_then(kept: Path) -> None:
    result = open_result(kept)
    assert counts(recorded(result)) == wanted(kept)
    assert recorded(result).verdict == json.loads((kept / "summary.json").read_bytes())["verdict"]
    assert result.damage == ()


@every_kept
def test_todays_rules_judge_it_anew_to_the_same_verdicts(kept: Path) -> None:
    """S32. The rules' version has not moved, so no verdict may; every trial is read, none is stale."""
    result = open_result(kept)
    found = rescored(result, Today(result.plan, None))
    assert counts(found.summary) == wanted(kept)
    assert (found.changes.scenarios, found.changes.stale) == ((), ())
    reasons = {row.scenario: row.first_failure for row in found.before.scenarios}
    assert {row.scenario: row.first_failure for row in found.summary.scenarios} == reasons, "in the same words"


@every_kept
def test_it_can_be_a_baseline(kept: Path) -> None:
    result = open_result(kept)
    compared = Baseline(result).against(result.plan, recorded(result))
    assert len(compared.comparison.pairs) == len(wanted(kept))
    assert compared.comparison.p == 1.0


@every_kept
def test_what_a_later_evalfleet_adds_is_passed_over(kept: Path, tmp_path: Path) -> None:
    """Rule 7: a field that is new today says nothing to yesterday's reader, and takes nothing from it."""
    copy = tmp_path / "later"
    shutil.copytree(kept, copy)
    suite = json.loads((copy / "suite.json").read_bytes()) | {"of_tomorrow": {"x": 1}}
    (copy / "suite.json").write_text(json.dumps(suite))
    for file in [*copy.glob("trials/*.jsonl"), *copy.glob("trials.jsonl")]:
        lines = [
            json.loads(line) | {"of_tomorrow": [1]} for line in file.read_text(encoding="utf-8").split("\n") if line
        ]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    result = open_result(copy)
    assert counts(rescored(result, Today(result.plan, None)).summary) == wanted(kept)


class TestTomorrow:
    """A number that this evalfleet does not know yet."""

    @pytest.fixture
    def copy(self, tmp_path: Path) -> Path:
        shutil.copytree(FOLDER / "format-1-first", tmp_path / "later")
        return tmp_path / "later"

    def test_a_plan_of_a_later_format_is_refused_and_says_who_wrote_it(self, copy: Path) -> None:
        suite = json.loads((copy / "suite.json").read_bytes())
        (copy / "suite.json").write_text(json.dumps(suite | {"format": FORMAT + 1, "evalfleet": "9.8.7"}))
        with pytest.raises(StorageError, match=rf"not a plan of format {FORMAT}: {FORMAT + 1}; .* evalfleet 9\.8\.7$"):
            open_result(copy)

    def test_lines_of_a_later_format_are_damage_and_never_a_verdict(self, copy: Path) -> None:
        file = copy / "trials.jsonl"
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
        lines[0]["format"] = LINE_FORMAT + 1
        file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        result: Result = open_result(copy)
        [damage] = result.damage
        assert f"format {LINE_FORMAT + 1} is not {LINE_FORMAT}" in str(damage)
        assert recorded(result).missing == 1
