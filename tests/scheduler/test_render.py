"""A result as a person reads it: in a pipe, at 80 and at 200 columns, in an ASCII terminal (S18, S23, S36, S37)."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from rich.cells import cell_len
from rich.text import Text

from scheduler.layout import clean, duration, fit, pad, paragraphs, width_of, wrap, write_lines
from scheduler.render import incomplete_message, print_summary, scenario_lines, summary_lines
from scheduler.summary import Summary, summarize
from tests.scheduler.samples import SUBMISSION, line, plan, scenario, trial_record

CASES = Path(__file__).parent.parent / "cases"
WORDS = 'min_tool_calls shell__run: wanted at least 2 calls, it was called once with {"cmd":"ls"}, then never again'
PLACE = "evals/results/20261130T124500Z-01234567"


def sample() -> Summary:
    asked = plan(
        {
            "tone": [scenario("one-line", trials=3), scenario("uses-the-shell", trials=5, evaluation=1)],
            "refunds": [scenario("日本語のシナリオ", trials=3), scenario("x" * 120, trials=3)],
        },
        ks=[3, 5],
    )
    lines = [line("one-line", n) for n in range(3)]
    lines += [line("uses-the-shell", n, "failed" if n == 1 else "passed", reason=WORDS) for n in range(4)]
    lines += [line("uses-the-shell", 4, "missing", reason="upstream_unavailable, 3 tries")]
    lines += [line("日本語のシナリオ", n, "error", case="refunds", reason="timed out") for n in range(3)]
    lines += [line("x" * 120, n, "passed" if n else "failed", case="refunds", reason="no") for n in range(3)]
    return summarize(asked, lines, artifact=PLACE, seconds=12.34)


def plain(lines: Iterator[Text]) -> list[str]:
    return [text.plain for text in lines]


class TestLines:
    def test_one_line_for_each_scenario_in_a_pipe_however_long(self) -> None:
        shown = plain(scenario_lines(sample().scenarios, None))
        assert len(shown) == 4
        assert [row.split()[:3] for row in shown] == [
            ["tone", "one-line", "PASS"],
            ["tone", "uses-the-shell", "INCOMPLETE"],
            ["refunds", "日本語のシナリオ", "FAIL"],
            ["refunds", "x" * 120, "FLAKY"],
        ]
        assert shown[1].endswith(f"4 of 5  1.2s  trial 2: {WORDS}")
        assert shown[0].endswith("3/3     1.2s")

    def test_columns_line_up_with_wide_letters(self) -> None:
        rows = plain(scenario_lines(sample().scenarios, None))[:3]
        starts = {
            cell_len(row[: row.index(word)]) for row, word in zip(rows, ["PASS", "INCOMPLETE", "FAIL"], strict=True)
        }
        assert len(starts) == 1

    @pytest.mark.parametrize("width", [40, 80, 100, 132, 200, 400])
    def test_nothing_is_wider_than_the_terminal(self, width: int) -> None:
        for text in scenario_lines(sample().scenarios, width):
            assert text.cell_len <= width, text.plain

    def test_at_80_columns_the_words_stand_below_and_are_all_there(self) -> None:
        shown = plain(scenario_lines(sample().scenarios, 80))
        at = next(index for index, row in enumerate(shown) if "INCOMPLETE" in row)
        below = []
        for row in shown[at + 1 :]:
            if not row.startswith("    "):
                break
            below.append(row.strip())
        assert " ".join(below) == f"trial 2: {WORDS}"

    def test_at_200_columns_the_words_stand_beside(self) -> None:
        shown = plain(scenario_lines(sample().scenarios, 200))
        assert len([row for row in shown if not row.startswith(" ")]) == 4
        assert any("4 of 5" in row and "trial 2: min_tool_calls" in row for row in shown)

    def test_a_single_trial_needs_no_number(self) -> None:
        asked = plan({"tone": [scenario("a")]})
        found = summarize(asked, [line("a", 0, "failed", reason="no Paris")], artifact=PLACE)
        assert plain(scenario_lines(found.scenarios, None)) == ["tone  a  FAIL  1.2s  no Paris"]

    def test_no_scenarios_are_no_lines(self) -> None:
        assert list(scenario_lines((), 80)) == []

    def test_what_was_recorded_elsewhere_is_said_and_nothing_invented(self) -> None:
        """S35"""
        asked = plan({"tone": [scenario("a", trials=2)]}, ks=[2])
        document = {"id": "eval_0", "status": "completed", "cases": [{"key": "tone/a", "status": "flaky"}]}
        document["cases"][0]["recorded_attempts"] = [0, 1]  # type: ignore[index]
        found = summarize(asked, [line("a")], artifact=PLACE, evaluations=[document])
        assert plain(scenario_lines(found.scenarios, None)) == [
            "tone  a  FLAKY  1.2s  trial 2 recorded elsewhere, no evidence here"
        ]

    def test_s17_s21_what_a_pass_does_not_show_stands_beside_it(self) -> None:
        tries = [{"try": 0, "reason": "away", "code": "server_lost"}, {"try": 1, "reason": None, "code": None}]
        crashed = line("a", tries=tries, trial_record=trial_record(error="the run failed: agent_exit: 3"))
        found = summarize(plan({"tone": [scenario("a")]}), [crashed], artifact=PLACE)
        text = plain(summary_lines(found, None))
        assert text[0] == "tone  a  PASS  1.2s  passed although a turn failed; 1 try repeated (1 server_lost)"
        assert text[2] == "1 scenario: 1 pass; 1 attempt passed although a turn failed"

    @pytest.mark.parametrize("width", [80, None])
    def test_item_22_notes_on_how_agents_were_read_are_one_sentence(self, width: int | None) -> None:
        noted = trial_record(notes=["line 1 of the agent's output is no JSON object of the protocol: \x1b[31mLoading"])
        asked = plan({"tone": [scenario(id_, trials=2) for id_ in "ab"]}, ks=[2])
        lines = [line(id_, n, trial_record=noted) for id_ in "ab" for n in range(2)]
        shown = [part.plain for part in summary_lines(summarize(asked, lines, artifact="x"), width)]
        text = "\n".join(shown)
        assert text.count("of the protocol") == 1
        assert "note (4 trials, first in tone/a): line 1 of the agent's output is " in text
        assert "\x1b" not in text
        assert width is None or max(map(len, shown)) <= width

    def test_the_last_line_is_spend_time_artifact(self) -> None:
        """S37"""
        usage = {"chat_id": "c", "total_tokens": 52318, "amount": "0.05413", "currency": "USD", "final": True}
        asked = plan({"tone": [scenario("a")]})
        found = summarize(asked, [line("a", usage=usage)], artifact=PLACE, seconds=12.34)
        assert plain(summary_lines(found, 80))[-1] == f"spent 0.05413 USD, 52,318 tokens  12.3s  {PLACE}"

    def test_without_usage_the_last_line_says_so(self) -> None:
        assert plain(summary_lines(sample(), 80))[-1] == f"no spend reported  12.3s  {PLACE}"

    def test_rates_stand_beside_what_they_rest_on(self) -> None:
        """S18, S30"""
        shown = plain(summary_lines(sample(), None))
        wanted = "pass@1 0.56 (too few)  pass@3 0.67 (0.21–0.94)  pass^3 0.33 (0.06–0.79)"
        assert f"k=3  {wanted}  (3 scenarios, 9 attempts)" in shown
        wanted = "pass@1 0.75 [0.60–0.80] (too few)  pass@5 1.00  pass^5 0.00"
        assert f"k=5  {wanted}  (1 scenario, 4 attempts, 1 missing)" in shown
        assert "4 scenarios: 1 flaky, 1 fail, 1 incomplete" not in shown
        assert "4 scenarios: 1 pass, 1 flaky, 1 fail, 1 incomplete; 3 attempts ended in an error" in shown

    def test_a_rate_that_stands_on_fewer_scenarios_than_there_are_says_so(self) -> None:
        asked = plan({"tone": [scenario("a", trials=2), scenario("b", trials=2)]}, ks=[2])
        shown = plain(summary_lines(summarize(asked, [line("a", 0), line("a", 1)], artifact=PLACE), None))
        assert any("pass^2 1.00 [0.50–1.00] n=1 (0.21–1.00)" in row for row in shown)

    def test_from_five_case_files_on_pass_at_1_has_an_interval(self) -> None:
        asked = plan({name: [scenario("a")] for name in "abcdef"})
        lines = [line("a", case=name, outcome="passed" if name < "d" else "failed") for name in "abcdef"]
        shown = plain(summary_lines(summarize(asked, lines, artifact=PLACE), None))
        assert "pass rate 0.50: 3 of 6 attempts passed (95 % interval 0.17–0.83)" in shown
        assert not any(row.startswith("k=") for row in shown), "with k=1 alone there is no more to say"

    def test_s18_s30_one_line_has_the_pass_rate_of_all_attempts(self) -> None:
        """Issue 9, item 23: over both numbers of trials, with what is missing and what it makes of the rate."""
        found = sample()
        wanted = "8 of 13 attempts passed; 1 missing, with them 0.57–0.64 (too few files for an interval)"
        assert f"pass rate 0.62: {wanted}" in plain(summary_lines(found, None))
        document = found.document(1)["pass_rate"]
        assert (document["passed"], document["recorded"], document["n"], document["missing"]) == (8, 13, 4, 1)
        assert (document["low"], document["high"]) == (8 / 14, 9 / 14)

    def test_with_one_number_of_trials_its_line_does_not_repeat_the_pass_rate(self) -> None:
        asked = plan({"tone": [scenario("a", trials=2)]}, ks=[2])
        found = summarize(asked, [line("a", 0), line("a", 1, "failed", reason="no")], artifact=PLACE)
        assert plain(summary_lines(found, None))[-3:-1] == [
            "pass rate 0.50: 1 of 2 attempts passed (too few files for an interval)",
            "k=2  pass@2 1.00 (0.21–1.00)  pass^2 0.00 (0.00–0.79)",
        ]

    def test_a_pass_rate_that_cannot_be_known_says_why(self) -> None:
        """S35: what somebody else recorded, and nothing recorded at all."""
        asked = plan({"tone": [scenario("a", trials=2)]}, ks=[2])
        nothing = summarize(asked, [], artifact=PLACE)
        assert "pass rate unknown: no attempt is recorded; 2 missing" in plain(summary_lines(nothing, None))
        elsewhere = summarize(asked, [line("a", 0), line("a", 1, recorded="elsewhere")], artifact=PLACE)
        assert "pass rate unknown: 1 attempt recorded elsewhere, no evidence here" in plain(
            summary_lines(elsewhere, None)
        )
        document = elsewhere.document(0)["pass_rate"]
        assert (document["passed"], document["recorded"], document["value"]) == (None, 2, None)

    def test_the_first_failure_has_its_trial_from_1_and_the_word_of_its_outcome(self) -> None:
        """Issue 9, item 23: people count from 1, JSON from 0; an error and a missing attempt say so."""
        asked = plan({"tone": [scenario("a", trials=2), scenario("b", trials=2), scenario("c", trials=2)]}, ks=[2])
        lines = [line("a", 0), line("a", 1, "failed", reason="no"), line("b", 0, "error", reason="timed out")]
        lines += [line("b", 1), line("c", 0), line("c", 1, "missing", reason="server_lost")]
        found = summarize(asked, lines, artifact=PLACE)
        said = [row.split("  ")[-1] for row in plain(scenario_lines(found.scenarios, None))]
        assert said == ["trial 2: no", "trial 1: error: timed out", "trial 2: missing: server_lost"]
        assert found.stored(3)["scenarios"][2]["missing_attempts"] == {"1": "server_lost"}

    def test_each_grader_has_its_means_and_what_they_stand_on(self) -> None:
        """S30"""
        asked = plan({"tone": [scenario("a", trials=3)]}, ks=[3])
        answers = [
            [{"name": "quality.brief", "kind": "answered", "passed": True, "score": 0.9}],
            [
                {"name": "quality.brief", "kind": "answered", "passed": False, "score": None},
                {"name": "style.polite", "kind": "answered", "passed": True},
            ],
            [{"name": "quality.brief", "kind": "error", "passed": None, "score": None}],
        ]
        lines = [line("a", n, graders=graders) for n, graders in enumerate(answers)]
        shown = plain(summary_lines(summarize(asked, lines, artifact=PLACE), None))
        assert "quality.brief: passed 1 of 2, score 0.90 (n=1), 1 call without a decision" in shown
        assert "style.polite: passed 1 of 1" in shown
        assert "4 context turns: played and paid for, in no rate" not in shown

    def test_context_turns_are_said(self) -> None:
        """S9"""
        asked = plan({"tone": [scenario("a", evaluation=None), scenario("b")]})
        shown = plain(summary_lines(summarize(asked, [line("b")], artifact=PLACE), None))
        assert "1 context turn: played and paid for, in no rate" in shown


class TestExit3:
    def test_it_names_attempts_reasons_and_both_ways_on(self) -> None:
        """S18"""
        asked = plan({"tone": [scenario("a", trials=6), scenario("b", trials=6)]}, ks=[6])
        lines = [line("a", n, "missing", reason="workers were lost 5 times") for n in (0, 1, 2, 5)]
        lines += [line("b", n) for n in range(5)]
        assert incomplete_message(summarize(asked, lines, artifact=PLACE)).split("\n") == [
            "incomplete: 7 of 12 attempts missing",
            "  tone/a  trials 1–3, 6  workers were lost 5 times",
            "  tone/a  trials 4–5  not played yet",
            "  tone/b  trial 6  not played yet",
            f"  evalfleet resume {SUBMISSION}   plays what is missing",
            f"  evalfleet cancel {SUBMISSION}   ends it and keeps what is recorded",
        ]

    def test_two_thousand_missing_scenarios_do_not_fill_the_screen(self) -> None:
        asked = plan({"tone": [scenario(f"s{n}") for n in range(2000)]})
        message = incomplete_message(summarize(asked, [], artifact=PLACE))
        assert "and 1,980 more attempts of 1,980 scenarios" in message
        assert message.count("\n") < 30

    def test_evidence_that_is_not_recorded_yet_is_no_missing_attempt(self) -> None:
        asked = plan({"tone": [scenario("a")]})
        document = {"id": "eval_0", "status": "running", "cases": [{"key": "tone/a", "recorded_attempts": None}]}
        message = incomplete_message(summarize(asked, [line("a")], artifact=PLACE, evaluations=[document]))
        assert "1 attempt with evidence here, not recorded" in message
        assert "attempts missing" not in message


class TestText:
    def test_control_characters_are_visible(self) -> None:
        """B12, S23"""
        texts = json.loads((CASES / "B12.json").read_text())
        for text in texts:
            assert clean(text).isprintable()
        assert clean("\x1b[31mred\u202e\n") == "\\u001b[31mred\\u202e\\n"

    def test_markup_is_never_read_from_data(self) -> None:
        stream = io.StringIO()
        write_lines([Text("[bold]x[/bold] :smile: [link=http://x]")], stream)
        assert stream.getvalue() == "[bold]x[/bold] :smile: [link=http://x]\n"

    @pytest.mark.parametrize(
        ("text", "width", "wanted"),
        [
            pytest.param("short", 10, "short", id="fits"),
            pytest.param("abcdefghijklmnop", 10, "abcdef…nop", id="middle"),
            pytest.param("日本語のシナリオ", 9, "日本語…オ", id="wide letters"),
            pytest.param("abc", 1, "…", id="one cell"),
        ],
    )
    def test_fit_shortens_in_the_middle(self, text: str, width: int, wanted: str) -> None:
        assert fit(text, width) == wanted
        assert cell_len(fit(text, width)) <= width

    def test_pad_counts_cells(self) -> None:
        assert cell_len(pad("日本", 7)) == 7
        assert pad("longer", 3) == "longer"

    def test_wrap_breaks_words_that_are_too_long(self) -> None:
        assert all(cell_len(part) <= 20 for part in wrap("a " + "日" * 30 + " b", 20))
        assert wrap("x" * 500, None) == ["x" * 500]

    def test_long_texts_say_how_much_more_there_is(self) -> None:
        assert paragraphs("ab\r\ncd" + "x" * 100, 6) == ["ab", "cd", "(… 100 more characters)"]

    @pytest.mark.parametrize(
        ("milliseconds", "wanted"),
        [
            (0, "0ms"),
            (999, "999ms"),
            (999.6, "1.0s"),
            (59_940, "59.9s"),
            (59_960, "1m00s"),
            (125_000, "2m05s"),
            (3_720_000, "1h02m"),
        ],
    )
    def test_durations(self, milliseconds: float, wanted: str) -> None:
        assert duration(milliseconds) == wanted


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TextIO, int]]:
    """A real terminal of 80 columns: the stream to write to and the descriptor to read from."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        yield stream, ours
    os.close(ours)


class TestStreams:
    def test_a_terminal_gets_colour_and_its_own_width(self, terminal: tuple[TextIO, int]) -> None:
        stream, other_end = terminal
        assert width_of(stream) == 80
        write_lines([Text("FAIL", "bold red")], stream)
        assert b"\x1b[1;31mFAIL\x1b[0m" in os.read(other_end, 1000)

    @pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
    def test_no_colour_where_it_is_not_wanted(
        self, terminal: tuple[TextIO, int], monkeypatch: pytest.MonkeyPatch, name: str, value: str
    ) -> None:
        monkeypatch.setenv(name, value)
        stream, other_end = terminal
        write_lines([Text("FAIL", "red")], stream)
        assert os.read(other_end, 1000) == b"FAIL\r\n"

    def test_a_file_gets_neither(self) -> None:
        stream = io.StringIO()
        assert width_of(stream) is None
        print_summary(sample(), stream)
        assert "\x1b" not in stream.getvalue()
        assert stream.getvalue().endswith(f"{PLACE}\n")

    def test_columns_is_respected(self, terminal: tuple[TextIO, int], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "132")
        assert width_of(terminal[0]) == 132

    def test_an_ascii_stream_takes_everything(self) -> None:
        """B11: LANG=C"""
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding="ascii")
        write_lines([Text("日本 – ok… \ud83d")], stream)
        stream.flush()
        assert raw.getvalue() == b"\\u65e5\\u672c - ok... \\ud83d\n"

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
    def test_a_full_disk_behind_stdout_is_told_once(self) -> None:
        script = """
        import sys
        from rich.text import Text
        from evalfleet.errors import StorageError
        from scheduler.layout import write_lines
        try:
            write_lines([Text("x")], sys.stdout)
        except StorageError as problem:
            print(problem, file=sys.stderr)
            sys.exit(problem.exit_code)
        """
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-c", textwrap.dedent(script)],
                stdout=full,
                stderr=subprocess.PIPE,
                cwd=Path(__file__).parents[2],
                timeout=60,
            )
        assert done.returncode == 3
        assert done.stderr == b"the result could not be printed: No space left on device; `evalfleet show` has it\n"

    def test_a_reader_that_went_away_changes_nothing(self) -> None:
        """S36: exit code and stderr stay as they would be."""
        script = """
        import os, sys
        from rich.text import Text
        from scheduler.layout import write_lines
        sys.stdin.read()
        for _ in range(3):
            write_lines([Text("x" * 100_000)], sys.stdout)
        sys.exit(7)
        """
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, errors = process.communicate(b"", timeout=60)
        assert (process.returncode, errors) == (7, b"")
