"""Evidence: written whole or not at all, read back the same by everybody (I4, S35)."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalfleet.artifact import (
    AttemptsIndex,
    Damage,
    FolderResults,
    append_segment,
    artifact_name,
    attempts_index,
    find,
    finish,
    list_results,
    newest,
    open_result,
    read_plan,
    read_segments,
    results_store,
    write_plan,
)
from evalfleet.checks.expectation import Finding
from evalfleet.checks.outcome import GraderAnswer, RunMeaning
from evalfleet.checks.trial import HookCall, ToolCall, Trial, TurnSummary
from evalfleet.errors import OurFault, SettingError, StorageError, UsageError
from evalfleet.evidence import encode_line
from scheduler.summary import summarize
from tests.scheduler.samples import ARTIFACT, SUBMISSION, line, plan, scenario

CASES = Path(__file__).parent / "cases"
PLAN = plan({"tone": [scenario("a", trials=3), scenario("b", trials=3)], "facts": [scenario("a", trials=3)]}, ks=[3])


@pytest.fixture
def store(tmp_path: Path) -> FolderResults:
    store = FolderResults(tmp_path / "evals" / "results")
    write_plan(store, PLAN)
    return store


def trials(store: FolderResults) -> Path:
    return store.root / ARTIFACT / "trials"


class TestSegments:
    def test_segments_are_numbered_from_one_and_hold_one_object_a_line(self, store: FolderResults) -> None:
        assert append_segment(store, ARTIFACT, [line("a"), line("b")]) == 1
        assert append_segment(store, ARTIFACT, [line("a", 1)]) == 2
        assert sorted(path.name for path in trials(store).iterdir()) == ["000001.jsonl", "000002.jsonl"]
        rows = (trials(store) / "000001.jsonl").read_bytes().split(b"\n")
        assert [json.loads(row)["scenario"] for row in rows[:-1]] == ["a", "b"]
        assert rows[-1] == b""

    def test_no_lines_make_no_segment(self, store: FolderResults) -> None:
        assert append_segment(store, ARTIFACT, []) == 0
        assert not list(trials(store).iterdir())

    def test_a_name_that_is_taken_is_left_alone_and_the_next_is_used(self, store: FolderResults) -> None:
        class Late(FolderResults):
            """Sees the folder as it was before a rival wrote segment 1."""

            looks = 0

            def list(self, path: str = "") -> dict[str, int]:
                self.looks += 1
                return {} if self.looks == 1 else super().list(path)

        append_segment(store, ARTIFACT, [line("a", outcome="passed")])
        late = Late(store.root)
        assert append_segment(late, ARTIFACT, [line("a", outcome="failed")]) == 2
        assert [row["outcome"] for row in read_segments(store, ARTIFACT)] == ["passed"]

    def test_rival_aggregators_lose_nothing_and_leave_no_gap(self, store: FolderResults) -> None:
        context = multiprocessing.get_context("spawn")
        writers = [context.Process(target=_write_twenty, args=(str(store.root), n)) for n in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(60)
            assert writer.exitcode == 0
        assert sorted(path.name for path in trials(store).iterdir()) == [f"{n:06d}.jsonl" for n in range(1, 81)]
        assert len(list(read_segments(store, ARTIFACT))) == 80

    def test_kill_9_leaves_whole_segments_only(self, store: FolderResults) -> None:
        """I4, I6: a writer of 2 MB segments, killed wherever it is; the next one goes on."""
        context = multiprocessing.get_context("spawn")
        for _ in range(3):
            before = len(store.list(f"{ARTIFACT}/trials"))
            writer = context.Process(target=_write_for_ever, args=(str(store.root),))
            writer.start()
            deadline = time.monotonic() + 60
            while len(store.list(f"{ARTIFACT}/trials")) < before + 2:
                assert time.monotonic() < deadline
                assert writer.exitcode is None
                writer.join(0.01)
            writer.kill()
            writer.join(60)
        damage: list[Damage] = []
        index = AttemptsIndex(store, ARTIFACT, damaged=damage.append)
        index.refresh()
        assert damage == []
        sizes = store.list(f"{ARTIFACT}/trials")
        assert sorted(sizes) == [f"{number:06d}.jsonl" for number in range(1, len(sizes) + 1)]

    def test_a_reader_after_appending_sees_every_line_before_its_own(self, store: FolderResults) -> None:
        """I4: two aggregators with the same attempt agree on its run, whichever came first."""
        append_segment(store, ARTIFACT, [line("a", run_id="run_first")])
        append_segment(store, ARTIFACT, [line("a", run_id="run_second")])
        assert attempts_index(store, ARTIFACT)["tone", "a", 0].run_id == "run_first"

    def test_without_hard_links_the_name_itself_is_created_exclusively(
        self, store: FolderResults, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EPERM, "no hard links here")

        monkeypatch.setattr(os, "link", refuse)
        assert append_segment(store, ARTIFACT, [line("a")]) == 1
        assert store.write_bytes_exclusive(f"{ARTIFACT}/trials/000001.jsonl", b"other") is False
        assert [row["scenario"] for row in read_segments(store, ARTIFACT)] == ["a"]
        assert [path.name for path in trials(store).iterdir()] == ["000001.jsonl"]

    def test_a_line_that_names_no_attempt_is_our_fault_and_leaves_nothing(self, store: FolderResults) -> None:
        with pytest.raises(OurFault, match="without outcome"):
            append_segment(store, ARTIFACT, [line("a"), {"case": "tone", "scenario": "b", "trial": 0}])
        assert not list(trials(store).iterdir())


def _write_for_ever(root: str) -> None:
    store = FolderResults(root)
    for number in itertools.count():
        append_segment(store, ARTIFACT, [line(f"n{number}-{part}", reason="x" * 100_000) for part in range(20)])


def _write_twenty(root: str, writer: int) -> None:
    store = FolderResults(root)
    for number in range(20):
        append_segment(store, ARTIFACT, [line(f"w{writer}-{number}")])


OUTCOMES = st.sampled_from(["passed", "failed", "error", "missing"])
WRITTEN = st.tuples(st.sampled_from("abc"), OUTCOMES, st.booleans(), st.booleans())


@given(st.lists(st.lists(WRITTEN, min_size=1, max_size=4), max_size=8))
@settings(max_examples=60)
def test_whatever_comes_in_whatever_segments_one_line_stands_for_each_attempt(
    segments: list[list[tuple[str, str, bool, bool]]],
) -> None:
    """Read at once, read as it comes, merged, and the merge read alone: all agree with docs/artifact.md."""
    with tempfile.TemporaryDirectory() as folder:
        store = FolderResults(folder)
        write_plan(store, PLAN)
        growing = AttemptsIndex(store, ARTIFACT)
        rivals = [AttemptsIndex(store, ARTIFACT) for _ in range(2)]
        wanted: dict[tuple[str, bool], tuple[str, int]] = {}
        elsewhere: set[tuple[str, bool]] = set()
        number = 0
        for segment in segments:
            lines = []
            for id_, outcome, away, context in segment:
                key = (id_, context)
                where = "elsewhere" if away else "here"
                lines.append(line(id_, outcome=outcome, at=number, recorded=where, context=context))
                if key not in wanted or wanted[key][0] == "missing":
                    wanted[key] = (outcome, number)
                if away:
                    elsewhere.add(key)
                number += 1
            rivals[number % 2].append(lines)
            growing.refresh()

        def told(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, bool], tuple[str, int, bool]]:
            return {(r["scenario"], r["context"]): (r["outcome"], r["at"], r["recorded"] == "elsewhere") for r in rows}

        expected = {key: (*value, key in elsewhere) for key, value in wanted.items()}
        assert told(read_segments(store, ARTIFACT)) == expected
        assert told(growing.lines()) == expected
        for rival in rivals:
            rival.read_on()
            assert told(rival.lines()) == expected
        finish(store, ARTIFACT, {})
        shutil.rmtree(trials(store))
        assert told(read_segments(store, ARTIFACT)) == expected


class TestReading:
    def test_the_first_line_with_an_outcome_is_the_attempt(self, store: FolderResults) -> None:
        append_segment(store, ARTIFACT, [line("a", outcome="error", reason="timed out")])
        append_segment(store, ARTIFACT, [line("a", outcome="passed"), line("a", outcome="missing")])
        [row] = read_segments(store, ARTIFACT)
        assert (row["outcome"], row["reason"]) == ("error", "timed out")

    def test_missing_is_superseded_and_else_the_newest_reason_stands(self, store: FolderResults) -> None:
        append_segment(store, ARTIFACT, [line("a", outcome="missing", reason="old"), line("b", outcome="missing")])
        append_segment(store, ARTIFACT, [line("a", outcome="missing", reason="new"), line("b", outcome="failed")])
        index = attempts_index(store, ARTIFACT)
        assert index["tone", "b", 0].verdict == "failed"
        assert index["tone", "a", 0].verdict is None
        assert {row["scenario"]: row["reason"] for row in read_segments(store, ARTIFACT)} == {"a": "new", "b": None}

    def test_an_error_is_failed_on_the_wire(self, store: FolderResults) -> None:
        """S16"""
        append_segment(store, ARTIFACT, [line("a", outcome="error", judge_score="0.5", judge_feedback="timeout")])
        entry = attempts_index(store, ARTIFACT)["tone", "a", 0]
        assert (entry.outcome, entry.verdict, entry.judge_score, entry.judge_feedback) == (
            "error",
            "failed",
            "0.5",
            "timeout",
        )

    def test_recorded_elsewhere_sticks_to_the_attempt(self, store: FolderResults) -> None:
        """S35"""
        append_segment(store, ARTIFACT, [line("a", outcome="passed")])
        append_segment(store, ARTIFACT, [line("a", outcome="missing", recorded="elsewhere")])
        [row] = read_segments(store, ARTIFACT)
        assert (row["outcome"], row["recorded"]) == ("passed", "elsewhere")
        assert attempts_index(store, ARTIFACT)["tone", "a", 0].elsewhere

    def test_context_is_kept_and_is_no_attempt(self, store: FolderResults) -> None:
        """S9, S14"""
        append_segment(store, ARTIFACT, [line("a", context=True, outcome="passed"), line("a", outcome="failed")])
        assert [row["context"] for row in read_segments(store, ARTIFACT)] == [True, False]
        assert attempts_index(store, ARTIFACT)["tone", "a", 0].outcome == "failed"

    @pytest.mark.parametrize(
        ("tail", "reason"),
        [
            pytest.param(b'{"case":"tone","scen', "torn, its writer was killed", id="torn in a key"),
            pytest.param(b'{"case":"tone"}\n', "scenario is None, expected str", id="no attempt"),
            pytest.param(b"\x00\x00\x00\n", "at character", id="zeros after a power cut"),
            pytest.param(b"[]\n", "expected an object, found list", id="not an object"),
            pytest.param(b'{"format":2}\n', "format 2 is not 1", id="a later format"),
            pytest.param(b'{"case":"t","scenario":"s","trial":true,"outcome":"x"}\n', "trial is True", id="true trial"),
        ],
    )
    def test_a_line_that_cannot_be_read_is_reported_and_left_out(
        self, store: FolderResults, tail: bytes, reason: str
    ) -> None:
        append_segment(store, ARTIFACT, [line("a")])
        with (trials(store) / "000001.jsonl").open("ab") as file:
            file.write(tail)
        damage: list[Damage] = []
        assert len(list(read_segments(store, ARTIFACT, damaged=damage.append))) == 1
        [found] = damage
        assert reason in str(found)
        assert found.line == 2
        assert found.path.endswith("000001.jsonl")

    def test_a_last_line_that_only_lacks_its_line_feed_is_whole(self, store: FolderResults) -> None:
        (trials(store) / "000001.jsonl").write_bytes(encode_line(line("a")).rstrip(b"\n"))
        assert len(list(read_segments(store, ARTIFACT))) == 1
        finish(store, ARTIFACT, {})
        assert (store.root / ARTIFACT / "trials.jsonl").read_bytes().endswith(b"}\n")

    def test_refresh_reads_only_what_came_since(self, store: FolderResults) -> None:
        opened: list[str] = []

        class Counting(FolderResults):
            def open(self, path: str, *, buffer: int = 1 << 20) -> Any:
                opened.append(path.rpartition("/")[2])
                return super().open(path, buffer=buffer)

        index = AttemptsIndex(Counting(store.root), ARTIFACT)
        append_segment(store, ARTIFACT, [line("a")])
        index.refresh()
        append_segment(store, ARTIFACT, [line("b")])
        index.refresh()
        index.refresh()
        assert opened == ["000001.jsonl", "000002.jsonl"]
        assert set(index.entries) == {("tone", "a", 0), ("tone", "b", 0)}

    def test_a_damaged_end_of_a_segment_is_told_of_once(self, store: FolderResults) -> None:
        (trials(store) / "000001.jsonl").write_bytes(encode_line(line("a")) + b'{"torn')
        told: list[Damage] = []
        index = AttemptsIndex(store, ARTIFACT, damaged=told.append)
        index.refresh()
        index.refresh()
        assert len(told) == 1

    def test_who_appends_and_reads_on_lists_the_folder_once_and_misses_no_rivals_line(
        self, store: FolderResults
    ) -> None:
        """A large submission has thousands of segments, and its aggregator looks several times a second."""
        looks: list[str] = []

        class Counting(FolderResults):
            def list(self, path: str = "") -> dict[str, int]:
                looks.append(path)
                return super().list(path)

        index = AttemptsIndex(Counting(store.root), ARTIFACT)
        index.append([line("a")])
        before = len(looks)
        for trial in range(5):
            append_segment(store, ARTIFACT, [line("rival", trial)])
            index.append([line("a", trial)])
        append_segment(store, ARTIFACT, [line("rival", 9)])
        index.read_on()
        assert len(looks) - before == 5, "once for each name that the rival had taken"
        index.append([line("a", 7)])
        assert len(looks) - before == 5
        assert set(index.entries) == {("tone", "a", n) for n in (0, 1, 2, 3, 4, 7)} | {
            ("tone", "rival", n) for n in (0, 1, 2, 3, 4, 9)
        }

    def test_temporary_files_of_a_killed_writer_are_not_read(self, store: FolderResults) -> None:
        (trials(store) / ".000001.jsonl.77-ab.tmp").write_bytes(encode_line(line("a")))
        assert list(read_segments(store, ARTIFACT)) == []


class TestWhatAgentsSay:
    def test_lines_end_at_line_feeds_only(self, store: FolderResults) -> None:
        """C01: U+2028, U+2029 and U+0085 are inside lines, byte for byte."""
        chunks = json.loads((CASES / "C01.json").read_text())["chunks_hex"]
        event = b"".join(bytes.fromhex(chunk) for chunk in chunks).split(b"data: ")[1].split(b"\n")[0]
        said = orjson.loads(event)["data"]["t"]
        assert {"\u2028", "\u2029", "\x85"} <= set(said)
        append_segment(store, ARTIFACT, [line("a", reason=said), line("b", reason=f"x\r{said}\n")])
        finish(store, ARTIFACT, {})
        assert [row["reason"] for row in read_segments(store, ARTIFACT)] == [said, f"x\r{said}\n"]
        assert (store.root / ARTIFACT / "trials.jsonl").read_bytes().count(b"\n") == 2
        assert said.encode() in (store.root / ARTIFACT / "trials.jsonl").read_bytes()

    def test_a_lone_surrogate_is_written_as_the_replacement_character(self, store: FolderResults) -> None:
        """B11"""
        said = json.loads((CASES / "B11.json").read_text())
        append_segment(store, ARTIFACT, [line("a", reason=said["answer"], findings=[said["args"]])])
        finish(store, ARTIFACT, {"first_failure": said["answer"]})
        [row] = read_segments(store, ARTIFACT)
        assert row["reason"] == "ok \ufffd"
        assert row["findings"] == [{"q": "\ufffd"}]
        for name in ("trials/000001.jsonl", "trials.jsonl", "summary.json"):
            (store.root / ARTIFACT / name).read_bytes().decode("utf-8", "strict")

    def test_texts_that_break_other_writers_come_back_the_same(self, store: FolderResults) -> None:
        """B12"""
        texts = json.loads((CASES / "B12.json").read_text())
        append_segment(store, ARTIFACT, [line("a", findings=texts)])
        [row] = read_segments(store, ARTIFACT)
        assert row["findings"] == [text.replace("\ud800", "\ufffd") for text in texts]

    @pytest.mark.parametrize(
        ("value", "written"),
        [
            pytest.param(float("nan"), None, id="nan"),
            pytest.param([float("inf"), "\ud800"], [None, "\ufffd"], id="infinity beside a surrogate"),
            pytest.param({1: "x"}, {"1": "x"}, id="a key that is no text"),
            pytest.param(("a", "b"), ["a", "b"], id="tuple"),
            pytest.param("\0", "\0", id="NUL"),
        ],
    )
    def test_odd_values_are_written_as_valid_json(self, value: Any, written: Any) -> None:
        assert orjson.loads(encode_line(line("a", reason=value)))["reason"] == written

    def test_integers_of_any_size_stay_exact_in_the_file(self) -> None:
        assert json.loads(encode_line(line("a", reason=10**40)))["reason"] == 10**40

    def test_deep_nesting_is_cut_and_says_so(self) -> None:
        deep: Any = []
        for _ in range(100_000):
            deep = [deep]
        data = encode_line(line("a", reason=deep))
        assert b"(nested deeper than 200 levels: cut)" in data
        orjson.loads(data)

    def test_a_value_that_json_cannot_hold_is_our_fault(self) -> None:
        with pytest.raises(OurFault, match="holds a set"):
            encode_line(line("a", reason={"x"}))


class TestFinish:
    def test_the_merge_is_in_plan_order_and_idempotent(self, store: FolderResults) -> None:
        append_segment(store, ARTIFACT, [line("a", case="facts"), line("b", 1), line("a", 2)])
        append_segment(store, ARTIFACT, [line("a", 0), line("b", 1, outcome="failed"), line("b", 0)])
        finish(store, ARTIFACT, {"verdict": "pass"})
        merged = (store.root / ARTIFACT / "trials.jsonl").read_bytes()
        keys = [(row["case"], row["scenario"], row["trial"]) for row in map(orjson.loads, merged.splitlines())]
        assert keys == [("tone", "a", 0), ("tone", "a", 2), ("tone", "b", 0), ("tone", "b", 1), ("facts", "a", 0)]
        finish(store, ARTIFACT, {"verdict": "pass"})
        assert (store.root / ARTIFACT / "trials.jsonl").read_bytes() == merged
        assert json.loads((store.root / ARTIFACT / "summary.json").read_text()) == {"verdict": "pass"}

    def test_equal_evidence_in_other_segments_merges_to_equal_bytes(self, store: FolderResults, tmp_path: Path) -> None:
        rows = [line("a", n) for n in range(3)] + [line("b", n) for n in range(3)]
        append_segment(store, ARTIFACT, rows)
        finish(store, ARTIFACT, {})
        other = FolderResults(tmp_path / "other")
        write_plan(other, PLAN)
        for row in reversed(rows):
            append_segment(other, ARTIFACT, [row])
        finish(other, ARTIFACT, {})
        one, two = (s.read_bytes(f"{ARTIFACT}/trials.jsonl") for s in (store, other))
        assert one == two

    def test_a_resume_adds_to_a_finished_artifact(self, store: FolderResults) -> None:
        """S35: the same folder; trials.jsonl of the first end is not taken for the whole."""
        append_segment(store, ARTIFACT, [line("a"), line("b", outcome="missing")])
        finish(store, ARTIFACT, {"verdict": "incomplete"})
        append_segment(store, ARTIFACT, [line("b", outcome="passed")])
        assert {row["scenario"]: row["outcome"] for row in open_result(store.root / ARTIFACT).lines()} == {
            "a": "passed",
            "b": "passed",
        }

    def test_the_merged_file_alone_is_enough_and_can_be_resumed(self, store: FolderResults) -> None:
        append_segment(store, ARTIFACT, [line("a"), line("b", outcome="missing")])
        finish(store, ARTIFACT, {})
        (trials(store) / "000001.jsonl").unlink()
        index = AttemptsIndex(store, ARTIFACT)
        index.refresh()
        assert set(index.entries) == {("tone", "a", 0), ("tone", "b", 0)}
        assert append_segment(store, ARTIFACT, [line("b", outcome="failed"), line("a", outcome="failed")]) == 2
        finish(store, ARTIFACT, {})
        index.refresh()
        assert {key[1]: entry.outcome for key, entry in index.entries.items()} == {"a": "passed", "b": "failed"}
        assert [row["scenario"] for row in index.lines()] == ["a", "b"]

    def test_what_killed_writers_left_is_swept_and_what_is_being_written_is_not(self, store: FolderResults) -> None:
        old, young = trials(store) / ".000009.jsonl.1-aa.tmp", trials(store) / ".000009.jsonl.2-bb.tmp"
        old.write_bytes(b"half")
        young.write_bytes(b"half")
        os.utime(old, (0, 0))
        finish(store, ARTIFACT, {})
        assert [path.name for path in trials(store).iterdir()] == [young.name]


class TestPlanAndNames:
    def test_the_plan_is_written_once_and_read_back(self, store: FolderResults) -> None:
        write_plan(store, PLAN)
        assert read_plan(store, ARTIFACT) == PLAN

    def test_another_plan_in_the_same_folder_is_refused(self, store: FolderResults) -> None:
        with pytest.raises(StorageError, match="holds another plan"):
            write_plan(store, plan({"other": [scenario("a")]}))

    def test_a_plan_that_cannot_be_read_says_where_and_why(self, store: FolderResults) -> None:
        (store.root / ARTIFACT / "suite.json").write_text('{"format": 9}')
        with pytest.raises(StorageError, match=r"suite\.json: not a plan of format 1: 9"):
            open_result(store.root / ARTIFACT)

    def test_names_sort_by_time_in_utc_and_show_the_id(self) -> None:
        at = datetime(2026, 11, 30, 13, 45, tzinfo=timezone(timedelta(hours=1)))
        assert artifact_name(at, "sub_AB12CD34EF") == "20261130T124500Z-ab12cd34"

    def test_results_are_listed_newest_first_and_foreign_folders_are_not(self, store: FolderResults) -> None:
        store.create("20261201T000000Z-zzzzzzzz")
        (store.root / "notes").mkdir()
        assert list_results(store) == ["20261201T000000Z-zzzzzzzz", ARTIFACT]

    def test_the_newest_result_is_one_with_a_plan(self, store: FolderResults) -> None:
        """B15: what a killed start left with nothing in it is not the latest."""
        store.create("20261201T000000Z-zzzzzzzz")
        assert newest(store) == ARTIFACT
        assert newest(FolderResults(store.root / "nothing")) is None

    def test_a_submission_is_found_by_id_or_name_in_a_renamed_folder_too(self, store: FolderResults) -> None:
        assert find(store, SUBMISSION) == ARTIFACT
        assert find(store, ARTIFACT) == ARTIFACT
        assert find(store, "sub_zzzz") is None
        (store.root / ARTIFACT).rename(store.root / "20200101T000000Z-renamed0")
        assert find(store, SUBMISSION) == "20200101T000000Z-renamed0"

    def test_a_folder_that_cannot_be_read_does_not_hide_the_others(self, store: FolderResults) -> None:
        store.create("20261201T000000Z-zzzzzzzz")
        store.write_bytes("20261201T000000Z-zzzzzzzz/suite.json", b"{")
        (store.root / ARTIFACT).rename(store.root / "20200101T000000Z-renamed0")
        assert find(store, SUBMISSION) == "20200101T000000Z-renamed0"

    @pytest.mark.parametrize("inside", ["", "suite.json", "trials", "trials/000001.jsonl"])
    def test_a_result_opens_by_its_folder_or_what_is_in_it(self, store: FolderResults, inside: str) -> None:
        append_segment(store, ARTIFACT, [line("a")])
        result = open_result(store.root / ARTIFACT / inside)
        assert result.plan == PLAN
        found = result.line("tone", "a", 0)
        assert found is not None
        assert found["outcome"] == "passed"
        assert result.line("tone", "a", 7) is None

    def test_a_folder_that_is_no_result_names_those_near(self, store: FolderResults) -> None:
        with pytest.raises(UsageError, match=f"is not there.*newest there: {ARTIFACT}"):
            open_result(store.root / "20990101T000000Z-nothing0")

    def test_damage_is_shown_with_the_result(self, store: FolderResults) -> None:
        (trials(store) / "000001.jsonl").write_bytes(b"{")
        (store.root / ARTIFACT / "summary.json").write_bytes(b"{")
        assert [damage.path.rpartition("/")[2] for damage in open_result(store.root / ARTIFACT).damage] == [
            "000001.jsonl",
            "summary.json",
        ]


class TestFolder:
    def test_results_keep_out_of_git(self, store: FolderResults) -> None:
        assert (store.root / ".gitignore").read_text() == "*\n"

    def test_a_gitignore_that_is_there_stays(self, tmp_path: Path) -> None:
        (tmp_path / "evals/results").mkdir(parents=True)
        (tmp_path / "evals/results/.gitignore").write_text("mine\n")
        FolderResults(tmp_path / "evals/results").create(ARTIFACT)
        assert (tmp_path / "evals/results/.gitignore").read_text() == "mine\n"

    def test_a_folder_that_holds_other_things_is_not_hidden_from_git(self, tmp_path: Path) -> None:
        """`--results .` must not make git ignore the tree."""
        (tmp_path / "README.md").write_text("hello")
        FolderResults(tmp_path).create(ARTIFACT)
        assert not (tmp_path / ".gitignore").exists()

    @pytest.mark.parametrize("name", ["../x", "x", "", ARTIFACT + "/y", "20261130T124500Z-"])
    def test_an_artifact_has_a_name_of_ours(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(StorageError, match="no name for an artifact"):
            FolderResults(tmp_path).create(name)

    @pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "a//b", "a\0b"])
    def test_nothing_is_written_outside(self, store: FolderResults, path: str) -> None:
        with pytest.raises(StorageError, match="no path inside"):
            store.write_bytes(path, b"x")

    def test_a_file_url_is_the_folder(self, tmp_path: Path) -> None:
        assert results_store(f"file://{tmp_path}/a%20b").root == tmp_path / "a b"
        assert FolderResults(f"file://{tmp_path}").root == tmp_path

    @pytest.mark.parametrize("url", ["s3://bucket/x", "file://elsewhere/x", "http://x/y"])
    def test_another_url_is_refused_by_the_settings_name(self, url: str) -> None:
        with pytest.raises(SettingError, match="EVALFLEET_RESULTS_URL"):
            results_store(url)

    def test_a_file_in_the_way_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "results").write_text("I am a file")
        with pytest.raises(StorageError, match=r"a part of that path is a file|a file stands where") as caught:
            FolderResults(tmp_path / "results").create(ARTIFACT)
        assert str(tmp_path / "results") in str(caught.value)
        assert "--results DIR" in str(caught.value)

    def test_an_artifact_that_was_removed_is_not_made_again_by_a_late_segment(self, store: FolderResults) -> None:
        shutil.rmtree(store.root / ARTIFACT)
        with pytest.raises(StorageError, match="it is not there"):
            append_segment(store, ARTIFACT, [line("a")])


BIG = [line("a", n, reason="x" * 100_000) for n in range(3)]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    place = tmp_path / "tiny"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(place)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"this user may not mount: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


class TestDisksThatRefuse:
    def test_a_full_disk_leaves_no_half_segment_and_says_what_to_do(self, tiny_disk: Path) -> None:
        store = FolderResults(tiny_disk / "results")
        write_plan(store, PLAN)
        assert append_segment(store, ARTIFACT, [line("a", 0)]) == 1
        with pytest.raises(StorageError, match="the disk is full: free some space") as caught:
            append_segment(store, ARTIFACT, BIG)
        assert str(store.root) in str(caught.value)
        assert os.listdir(trials(store)) == ["000001.jsonl"]
        assert append_segment(store, ARTIFACT, [line("a", 1)]) == 2
        assert len(list(read_segments(store, ARTIFACT))) == 2

    def test_a_full_disk_at_the_end_keeps_the_merge_that_was_there(self, tiny_disk: Path) -> None:
        store = FolderResults(tiny_disk / "results")
        write_plan(store, PLAN)
        append_segment(store, ARTIFACT, [line("a", 0)])
        finish(store, ARTIFACT, {"n": 1})
        append_segment(store, ARTIFACT, BIG[:1])
        with pytest.raises(StorageError, match="disk is full"):
            finish(store, ARTIFACT, {"pad": "x" * 200_000})
        assert json.loads((store.root / ARTIFACT / "summary.json").read_text()) == {"n": 1}

    def test_a_read_only_disk_is_told(self, tiny_disk: Path) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
        with pytest.raises(StorageError, match="read-only: choose another folder with --results DIR"):
            FolderResults(tiny_disk / "results").create(ARTIFACT)

    def test_a_size_limit_of_the_process_is_told(self, store: FolderResults) -> None:
        script = f"""
        import resource, signal, sys
        from evalfleet.artifact import FolderResults, append_segment
        from evalfleet.errors import StorageError
        from tests.test_artifact import BIG
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        try:
            append_segment(FolderResults({str(store.root)!r}), {ARTIFACT!r}, BIG)
        except StorageError as problem:
            print(problem)
        """
        assert "raise `ulimit -f`" in _python(script)
        assert os.listdir(trials(store)) == []

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who may not write there")
    def test_a_folder_that_may_not_be_written_is_told(self, store: FolderResults) -> None:
        script = f"""
        import os
        from evalfleet.artifact import FolderResults, append_segment
        from evalfleet.errors import StorageError
        from tests.test_artifact import BIG
        os.chdir({str(store.root)!r})
        os.setuid(65534)
        try:
            append_segment(FolderResults("."), {ARTIFACT!r}, BIG)
        except StorageError as problem:
            print(problem)
        """
        for folder in (store.root, store.root / ARTIFACT, trials(store)):
            folder.chmod(0o755)
        assert "let this user write there, or choose another folder with --results DIR" in _python(script)
        assert os.listdir(trials(store)) == []

    @pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
    def test_many_big_lines_are_written_merged_and_read_one_at_a_time(self, store: FolderResults) -> None:
        """200 MB of evidence in a process that may not grow by 64 MB."""
        script = f"""
        import resource
        from evalfleet.artifact import FolderResults, append_segment, finish, read_segments
        from tests.scheduler.samples import line
        store = FolderResults({str(store.root)!r})
        big = "x" * 2_000_000
        append_segment(store, {ARTIFACT!r}, [line("a", 0)])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        append_segment(store, {ARTIFACT!r}, [line("a", n, reason=big) for n in range(1, 101)])
        finish(store, {ARTIFACT!r}, {{}})
        assert sum(len(row["reason"] or "") for row in read_segments(store, {ARTIFACT!r})) == 200_000_000
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        """
        assert int(_python(script)) < 64 * 1024


def _python(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parent.parent,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_times_in_names_are_utc() -> None:
    assert artifact_name(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "sub_x").startswith("20260102T030405Z-")


def test_every_field_is_documented() -> None:
    """docs/artifact.md names each field of the plan, of a line, of a trial, of a grader's answer and of the summary."""
    text = (Path(__file__).parent.parent / "docs" / "artifact.md").read_text()
    words = set(re.findall(r"\w+", text))
    records = (Trial, TurnSummary, ToolCall, HookCall, Finding, GraderAnswer, RunMeaning)
    fields = {field.name for record in records for field in dataclasses.fields(record)}
    stored = summarize(PLAN, [line("a", usage={"chat_id": "c"})], artifact="x").stored(0)
    documents = [PLAN.to_json(), line("a"), stored, *stored["scenarios"], *stored["evaluations"], stored["spend"]]
    for document in documents:
        fields |= set(document)
    assert fields - words == set()
