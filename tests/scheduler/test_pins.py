"""The pin, the ids made of it, the local records, and why a submission is not gone on with (S34)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from evalfleet.checks.case import Case, parse_case
from evalfleet.errors import StorageError, UsageError
from evalfleet.plan import Plan, PlannedGraders, PlannedTarget
from evalfleet.tree import (
    CommandHarness,
    GradersConfig,
    HarnessConfig,
    JudgeConfig,
    Price,
    TreeConfig,
    TreeVersion,
)
from scheduler.pins import Asked, Pin, evaluation_key, file_digests, submission_id, what_changed
from scheduler.plan import at_generation, build_plan
from scheduler.select import select
from scheduler.submissions import Submission, Submissions, submission_of, why_not_resumed

CASE = "scenarios:\n  - {id: a, user: hi, trials: 2, expect: [final_answer_contains: x]}\n"
HARNESS = HarnessConfig("concierge", CommandHarness(("python3", "agent.py"), {"MODE": "test"}), pin_env=("MODEL",))
CONFIG = TreeConfig(root=Path("/tree"), harness=HARNESS)
TARGET = PlannedTarget(None, "h_1", None, "concierge")
NOW = datetime(2026, 11, 30, 12, 45, tzinfo=UTC)


def cases(text: str = CASE) -> tuple[Case, ...]:
    loaded = parse_case(text.encode(), name="tone", file="evals/cases/tone.yaml")
    assert loaded.problems == ()
    return loaded.cases


def build(**change: Any) -> tuple[Plan, Pin]:
    arguments: dict[str, Any] = {
        "config": CONFIG,
        "selection": select(cases()),
        "target": TARGET,
        "commit": "c" * 40,
        "graders": None,
        "created_at": NOW,
        "environment": {"MODEL": "small", "OTHER": "1"},
        **change,
    }
    return build_plan(arguments.pop("config"), arguments.pop("selection"), **arguments)


def pin(**change: Any) -> Pin:
    return build(**change)[1]


def harness(**change: Any) -> TreeConfig:
    return replace(CONFIG, harness=replace(HARNESS, **change))


MOVES: list[Any] = [
    pytest.param({"selection": select(cases(CASE.replace("contains: x", "contains: y")))}, id="an assertion"),
    pytest.param({"selection": select(cases(), trials=3)}, id="trials"),
    pytest.param({"commit": "d" * 40}, id="commit"),
    pytest.param({"target": replace(TARGET, harness="other")}, id="the harness's name"),
    pytest.param({"target": replace(TARGET, base_url="https://p.example/api")}, id="a platform"),
    pytest.param({"target": replace(TARGET, machine_id="m_1")}, id="a machine"),
    pytest.param({"baseline": "b" * 40}, id="baseline"),
    pytest.param({"server": "http://fleet:8080"}, id="a fleet's server"),
    pytest.param({"config": harness(infra_codes=("x",))}, id="infra_codes"),
    pytest.param({"config": harness(driver=CommandHarness(("python3", "b.py")))}, id="argv"),
    pytest.param({"config": harness(driver=CommandHarness(("python3", "agent.py"), {"MODE": "prod"}))}, id="env"),
    pytest.param({"config": replace(CONFIG, judge=JudgeConfig("http://h", "m"))}, id="judge"),
    pytest.param({"config": replace(CONFIG, graders=GradersConfig(network=True))}, id="graders"),
    pytest.param({"environment": {"MODEL": "big"}}, id="a pin_env value"),
    pytest.param({"environment": {"MODEL": ""}}, id="an empty pin_env value"),
    pytest.param({"environment": {}}, id="no pin_env value"),
]


@pytest.mark.parametrize("change", MOVES)
def test_the_pin_moves_with_each_of_its_parts(change: Mapping[str, Any]) -> None:
    assert pin(**change).digest != pin().digest


STAYS: list[Any] = [
    pytest.param({"environment": {"MODEL": "small"}}, id="a variable that is not in pin_env"),
    pytest.param({"concurrency": 100}, id="concurrency"),
    pytest.param({"created_at": NOW + timedelta(days=1)}, id="time"),
    pytest.param({"config": replace(CONFIG, root=Path("/elsewhere"))}, id="the folder"),
    pytest.param({"target": replace(TARGET, harness_id="h_2")}, id="the embedded server's id of the harness"),
    pytest.param({"graders": PlannedGraders("sha256:bb", None, (), False, 1024, False)}, id="graders nobody calls"),
    pytest.param({"selection": select(cases("# comment\n" + CASE))}, id="a comment in a case"),
]


@pytest.mark.parametrize("change", STAYS)
def test_the_pin_stays_with_everything_else(change: Mapping[str, Any]) -> None:
    assert pin(**change).digest == pin().digest


def test_equal_prices_are_one_pin_however_they_are_written() -> None:
    def of(text: str) -> str:
        return pin(
            config=replace(CONFIG, judge=JudgeConfig("http://h", "m", None, Price(Decimal(text), Decimal(1))))
        ).digest

    assert of("0.10") == of("0.1") != of("0.2")


def test_no_value_of_a_variable_is_kept_in_the_clear() -> None:
    made = pin(environment={"MODEL": "a-very-secret-value"})
    assert "a-very-secret-value" not in repr(made)


def test_a_variable_with_bytes_that_are_no_text_has_a_pin() -> None:
    assert pin(environment={"MODEL": "a\udc80b"}).digest != pin(environment={"MODEL": "ab"}).digest


def test_submission_ids_are_a_pure_function_of_pin_and_generation() -> None:
    # As released: another value would not find what an earlier version started.
    assert submission_id("ab" * 32, 0) == "sub_7FXHXZ6CVYXTTGQ792EM9A70VY"
    ids = {submission_id(p * 64, g) for p in "ab" for g in range(3)}
    assert len(ids) == 6
    assert all(len(i) == 30 for i in ids)
    assert evaluation_key("sub_1", 3) != evaluation_key("sub_1", 1) != evaluation_key("sub_2", 1)


def record(
    *,
    generation: int = 0,
    started: datetime = NOW,
    files: Mapping[str, str] | None = None,
    words: tuple[str, ...] = ("tone",),
    **change: Any,
) -> Submission:
    plan, made = build(**change)
    plan = at_generation(plan, generation, started).with_evaluations(["eval_1"])
    return submission_of(plan, made, words=words, files=files or {}, results="/results")


@pytest.fixture
def submissions(tmp_path: Path) -> Submissions:
    return Submissions(tmp_path / "state")


def test_a_record_survives_the_disk(submissions: Submissions) -> None:
    assert submissions.all() == []
    written = record(files={"agent.py": "ab"})
    submissions.write(written)
    assert submissions.all() == [written]
    assert submissions.find(written.id) == written
    assert [path.name for path in submissions.folder.iterdir()] == [f"{written.id}.json"]
    assert submissions.folder.stat().st_mode & 0o077 == 0


def test_the_newest_generation_of_a_pin_is_found(submissions: Submissions) -> None:
    for generation in (0, 2, 1):
        submissions.write(record(generation=generation))
    submissions.write(record(generation=5, commit="d" * 40))
    newest = submissions.newest(pin().digest)
    assert newest is not None
    assert newest.generation == 2
    assert submissions.newest("ff" * 32) is None


def test_the_list_is_newest_first(submissions: Submissions) -> None:
    for days in (1, 3, 2):
        submissions.write(record(generation=days, started=NOW + timedelta(days=days)))
    assert [s.generation for s in submissions.all()] == [3, 2, 1]


def test_a_submission_is_found_by_any_beginning_of_its_id(submissions: Submissions) -> None:
    one = record()
    submissions.write(one)
    tail = one.id.removeprefix("sub_")
    for text in (one.id, tail, tail[:6], f"sub_{tail[:4]}", tail[:8].lower(), one.id.upper()):
        assert submissions.find(text) == one


def test_an_ambiguous_beginning_lists_what_it_could_be(submissions: Submissions) -> None:
    written = [record(generation=generation) for generation in range(40)]
    for one in written:
        submissions.write(one)
    letter = next(i.id[4] for i in written if sum(o.id[4] == i.id[4] for o in written) > 1)
    with pytest.raises(UsageError, match="is the beginning of") as caught:
        submissions.find(letter)
    assert sum(line.startswith(f"  sub_{letter}") for line in str(caught.value).splitlines()) > 1


@pytest.mark.parametrize("text", ["", "sub_", "zzz", "../../etc/passwd"])
def test_an_unknown_id_says_what_there_is(submissions: Submissions, text: str) -> None:
    one = record()
    submissions.write(one)
    with pytest.raises(UsageError, match="no submission") as caught:
        submissions.find(text)
    assert one.id in str(caught.value)


def test_a_status_is_written_over(submissions: Submissions) -> None:
    one = record()
    submissions.write(one)
    assert submissions.latest_unfinished() == one
    submissions.set_status(one.id, "completed")
    assert submissions.find(one.id).status == "completed"
    with pytest.raises(UsageError, match="nothing to resume"):
        submissions.latest_unfinished()


def test_a_damaged_record_is_named_and_the_others_are_read(submissions: Submissions) -> None:
    one = record()
    submissions.write(one)
    (submissions.folder / f"sub_{'0' * 26}.json").write_text("{")
    (submissions.folder / f"sub_{'1' * 26}.json").write_text('{"format": 9}')
    found, damaged = submissions.read()
    assert found == [one]
    assert len(damaged) == 2
    assert "delete it" in damaged[0]


def test_a_state_folder_that_takes_no_write_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file stands in the way")
    with pytest.raises(StorageError, match="takes no write"):
        Submissions(tmp_path / "state").write(record())


def test_a_record_that_cannot_be_written_whole_leaves_the_old_one(
    submissions: Submissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = record()
    submissions.write(one)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        submissions.write(replace(one, status="completed"))
    monkeypatch.undo()
    assert submissions.all() == [one]
    assert [path.name for path in submissions.folder.iterdir()] == [f"{one.id}.json"]


def version(changed: Mapping[str, str]) -> TreeVersion:
    return TreeVersion("c" * 40, None, "", tuple(changed), changed)


WHY: list[Any] = [
    pytest.param({"commit": "d" * 40}, {"agent.py": "2"}, "agent.py changed;", id="a harness file"),
    pytest.param({"commit": "d" * 40}, {"agent.py": "1"}, "the commit was cccccccccccc and is dddddddddddd", id="HEAD"),
    pytest.param(
        {"selection": select(cases(CASE.replace("user: hi", "user: hey")))},
        {"agent.py": "1"},
        "the scenarios changed",
        id="a case",
    ),
    pytest.param({"selection": select(cases(), trials=5)}, {"agent.py": "1"}, "trials were 2 and are 5", id="trials"),
    pytest.param(
        {"environment": {"MODEL": "big"}}, {"agent.py": "1"}, "environment variable MODEL changed", id="pin_env"
    ),
    pytest.param(
        {"config": replace(CONFIG, judge=JudgeConfig("http://h", "m"))},
        {"agent.py": "1"},
        r"\[judge\] settings changed",
        id="judge",
    ),
]


@pytest.mark.parametrize(("change", "files", "wanted"), WHY)
def test_why_a_submission_is_not_gone_on_with_is_said(
    change: Mapping[str, Any], files: Mapping[str, str], wanted: str
) -> None:
    before = record(files={"agent.py": "1"}, started=NOW + timedelta(microseconds=781_824))
    now = record(files=files, **change)
    said = why_not_resumed(before, now)
    assert "(started 2026-11-30T12:45:00Z)" in said
    assert re.search(wanted, said)
    assert f"evalfleet resume {before.id}" in said


def test_there_is_nothing_to_say_when_it_is_gone_on_with_or_finished() -> None:
    before = record()
    assert why_not_resumed(None, before) == ""
    assert why_not_resumed(before, record(generation=1)) == ""
    assert why_not_resumed(replace(before, status="completed"), record(commit="d" * 40)) == ""
    assert why_not_resumed(replace(before, server="http://fleet:8080"), record(commit="d" * 40)) == ""


ASKED = [
    pytest.param(("guard",), (), "it was asked for `guard`, and this is all cases", id="a selection before"),
    pytest.param((), ("guard",), "it was asked for all cases, and this is `guard`", id="a selection now"),
    pytest.param((), ("-k", "5"), "it was asked for all cases, and this is `-k 5`", id="-k"),
    pytest.param(("--failed",), ("--failed",), "--failed chooses other scenarios now", id="--failed"),
]


@pytest.mark.parametrize(("before_words", "words", "why"), ASKED)
def test_what_was_asked_for_is_the_reason_and_no_file_that_nobody_touched(
    before_words: tuple[str, ...], words: tuple[str, ...], why: str
) -> None:
    """Of a case file only what is selected is known: that it differs says nothing about the file."""
    files = {"evals/cases/guard.yaml": "1", "evals/cases/tone.yaml": "1", "evals/graders/q.py": "1"}
    other = select(cases(CASE.replace("user: hi", "user: hey")))
    before = record(files=files, words=before_words)
    now = record(files={"evals/cases/guard.yaml": "2", "evals/graders/q.py": "1"}, words=words, selection=other)
    assert f"Z): {why}; `evalfleet" in why_not_resumed(before, now)
    graders = record(files={"evals/graders/q.py": "2"}, words=words, selection=other)
    assert f"Z): evals/graders/q.py changed; {why}; `evalfleet" in why_not_resumed(before, graders)


def test_trials_that_changed_in_a_file_are_said_where_the_file_is_not_known() -> None:
    parts = {"suite checks/k3": "a", "trials": "3", "commit": "c"}
    now = {"suite checks/k5": "b", "trials": "5", "commit": "c"}
    assert what_changed(Asked((), parts, {}), Asked((), now, {})) == "trials were 3 and are 5"
    assert (
        what_changed(Asked((), parts, {}), Asked((), {**parts, "suite checks/k3": "b"}, {})) == "the scenarios changed"
    )


def test_a_fleets_unfinished_submission_is_not_called_none(tmp_path: Path) -> None:
    known = Submissions(tmp_path)
    with pytest.raises(UsageError, match="no submission here is unfinished"):
        known.latest_unfinished()
    known.write(replace(record(), server="http://fleet:8080"))
    with pytest.raises(UsageError, match=r"is unfinished and was submitted to the fleet of http://fleet:8080"):
        known.latest_unfinished()


def test_a_changed_case_file_is_named_by_its_path(tmp_path: Path) -> None:
    config = replace(CONFIG, root=tmp_path)
    (tmp_path / "evals/graders/__pycache__").mkdir(parents=True)
    (tmp_path / "evals/graders/q.py").write_text("1")
    (tmp_path / "evals/graders/__pycache__/q.pyc").write_text("1")
    one = file_digests(config, select(cases()), version({"agent.py": "1"}))
    assert set(one) == {"agent.py", "evals/cases/tone.yaml", "evals/graders/q.py"}
    changed = select(cases(CASE.replace("user: hi", "user: hey")))
    (tmp_path / "evals/graders/q.py").write_text("2")
    two = file_digests(config, changed, version({"agent.py": "1"}))
    before, now = record(files=one), record(files=two, selection=changed)
    assert "evals/cases/tone.yaml, evals/graders/q.py changed" in why_not_resumed(before, now)
