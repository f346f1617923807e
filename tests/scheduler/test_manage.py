"""What `list` says of the submissions of a tree: how each ended, as its artifact holds it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from evalfleet.tree import read_tree_config
from scheduler.manage import listed, render_log, render_submissions
from scheduler.submissions import Status, Submission

RECORD = Submission(
    id="sub_00000000000000000000000001",
    pin="pin",
    generation=0,
    started_at="2026-12-01T10:00:00.000Z",
    artifact="20261201T100000Z-00000000",
    commit="ab" * 20,
    evaluations=("eval_1",),
    status="running",
    words=(),
    parts={},
    files={},
)


@pytest.mark.parametrize(
    ("status", "server", "summary", "shown"),
    [
        ("completed", "", '{"verdict": "flaky"}', "completed  flaky"),
        ("running", "", '{"verdict": "incomplete"}', "unfinished  incomplete"),
        ("running", "", None, "unfinished  -"),
        ("running", "http://fleet", None, "submitted  -"),
        ("running", "http://fleet", '{"verdict": "fail"}', "completed  fail"),  # its scheduler has ended it
        ("running", "http://fleet", '{"verdict": "incomplete"}', "unfinished  incomplete"),
        ("cancelled", "http://fleet", '{"verdict": "incomplete"}', "cancelled  incomplete"),
        ("completed", "", "damaged", "completed  -"),
        ("completed", "", '["no object"]', "completed  -"),
    ],
)
def test_list_shows_verdicts_and_a_fleets_submission_that_ended_as_ended(
    status: Status, server: str, summary: str | None, shown: str, tmp_path: Path
) -> None:
    (tmp_path / "evals/cases").mkdir(parents=True)
    artifact = tmp_path / "evals/results" / RECORD.artifact
    artifact.mkdir(parents=True)
    if summary is not None:
        (artifact / "summary.json").write_text(summary)
    found = listed(read_tree_config(tmp_path), [replace(RECORD, status=status, server=server)])
    line = render_submissions(found)
    assert line == f"{RECORD.id}  2026-12-01T10:00:00Z  {shown}  abababababab  {RECORD.artifact}  all"
    document = found[0].document()
    assert (document["status"], document["verdict"] or "-") == tuple(shown.split())


def test_results_that_are_gone_or_elsewhere_do_not_stop_the_list(tmp_path: Path) -> None:
    (tmp_path / "evals").mkdir()
    config = read_tree_config(tmp_path)
    gone = replace(RECORD, status="completed")
    elsewhere = replace(gone, id=RECORD.id[:-1] + "2", results=str(tmp_path / "no" / "such"))
    assert [each.verdict for each in listed(config, [gone, elsewhere])] == [None, None]
    assert render_submissions([]) == "no submission was started from this tree yet; `evalfleet eval` starts one"


def test_a_log_line_names_its_trial_as_people_count_them() -> None:
    """Issue 9, item 23: the field is an index, the text counts from 1."""
    written = {"at": "2026-11-30T12:45:00.5Z", "level": "WARNING", "part": "worker", "message": "lost"}
    assert render_log([{**written, "case": "tone", "scenario": "a", "trial": 0}]) == (
        "2026-11-30T12:45:00Z  WARNING  worker  [tone/a trial 1] lost"
    )
