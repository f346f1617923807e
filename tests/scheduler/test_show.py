"""An artifact as a person reads it: verdicts, then one trial in file order."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evalfleet.artifact import FolderResults, append_segment, open_result, write_plan
from evalfleet.checks import Scenario
from evalfleet.errors import UsageError
from scheduler.show import choose, show
from scheduler.transcript import transcript
from tests.scheduler.samples import ARTIFACT, SUBMISSION, line, plan, scenario, trial_record

RUN = "run_01M1GFRNR5F4N8S2JZV85T30A4"


def rich_line(**more: Any) -> dict[str, Any]:
    """A failed trial with two turns and everything in it."""
    record = trial_record(
        user=["List the files.", "Now count\nthem."],
        answer="Two [bold]files[/bold].\n\nReally " + "very " * 30 + "many.",
        duration_ms=8300,
        tools=[
            tool("shell__run", {"cmd": "ls"}, "a.txt\nb.txt\x1b[2J", turn=0),
            tool("shell__run", {"cmd": "wc"}, {"n": 2}, turn=1),
            tool("notes__add", None, None, turn=1, has_result=False),
        ],
        hooks=[
            {**HOOK, "run_id": "run_0", "hook": "tools.before", "decision": "deny"},
            {**HOOK, "run_id": "run_1", "hook": "tools.after", "decision": "failed", "fallback": True},
        ],
    )
    record["turns"][1] |= {"status": "failed", "failure": {"code": "agent_exit", "message": "exit 3"}}
    return line(
        "counts",
        1,
        "failed",
        reason="final_answer_contains: no 3",
        trial_record=record,
        findings=[
            {"index": 0, "kind": "tool_called", "passed": True, "sentence": "shell__run was called"},
            {"index": 1, "kind": "final_answer_contains", "passed": False, "sentence": "no 3"},
            {"index": 2, "kind": "grader", "passed": None, "sentence": "quality.answers raised"},
        ],
        graders=[
            {"name": "quality.answers", "kind": "error", "error": "ValueError: x", "log": "first\nsecond\n"},
            {"name": "style.polite", "kind": "answered", "passed": True, "score": 0.9, "why": "kind"},
        ],
        judge_score="0.9",
        tries=[
            {"try": 0, "chat_id": "chat_old", "run_ids": [RUN], "reason": "server_lost"},
            {"try": 1, "chat_id": "chat_new", "run_ids": ["run_0", "run_1"], "reason": None},
        ],
        usage={"chat_id": "chat_new", "input_tokens": 1200, "output_tokens": 30, "amount": "0.01", "currency": "USD"},
        **more,
    )


HOOK = {"source": "harness", "duration_ms": 12.0, "fallback": False}


def tool(name: str, args: Any, result: Any, *, turn: int, has_result: bool = True) -> dict[str, Any]:
    return {
        "run_id": f"run_{turn}",
        "id": f"call_{name}_{turn}",
        "name": name,
        "args": args,
        "result": result,
        "has_result": has_result,
        "turn": turn,
        "message": 1,
    }


@pytest.fixture
def results(tmp_path: Path) -> Path:
    store = FolderResults(tmp_path / "evals" / "results")
    asked = plan(
        {"tone": [scenario("short", evaluation=None), scenario("counts", trials=3), scenario("fine", trials=3)]}, ks=[3]
    )
    write_plan(store, asked)
    lines = [line("short", 0, context=True), line("counts", 0), rich_line(), *(line("fine", n) for n in range(3))]
    append_segment(store, ARTIFACT, lines)
    return store.root


def shown(results: Path, **more: Any) -> str:
    stream = io.StringIO()
    show(open_result(results / ARTIFACT), stream, **more)
    return stream.getvalue()


def page(document: Mapping[str, Any], width: int | None) -> list[str]:
    return [text.plain for text in transcript(document, 3, width)]


class TestTranscript:
    def test_everything_is_there_in_the_order_it_happened(self) -> None:
        text = "\n".join(page(rich_line(), None))
        parts = [
            "tone/counts  trial 2 of 3  FAILED  8.3s",
            "reason   final_answer_contains: no 3",
            "score    0.9",
            "turn 1  succeeded  run_0",
            "user     List the files.",
            'call     shell__run {"cmd":"ls"}',
            "result   a.txt\n           b.txt\\u001b[2J",
            "hook     tools.before: deny (harness, 12ms)",
            "answer   Two [bold]files[/bold].\n\n           Really very",
            "turn 2  failed  run_1",
            "user     Now count\n           them.",
            'result   {"n":2}',
            "call     notes__add null",
            "result   (none came)",
            "hook     tools.after: failed (harness, 12ms, fallback: it did not answer, an earlier answer was used)",
            "failure  agent_exit: exit 3",
            "expectations",
            "passed   tool_called: shell__run was called",
            "FAILED   final_answer_contains: no 3",
            "open     grader: quality.answers raised",
            "graders",
            "grader   quality.answers: error",
            "error    ValueError: x",
            "log      first\n           second",
            "grader   style.polite: passed, score 0.9",
            "why      kind",
            "tries",
            "try 1    chat_old: server_lost\n           " + RUN,
            "try 2    chat_new\n           run_0\n           run_1",
            "conversation",
            "spent    1,200 input tokens, 30 output tokens, 0.01 USD (an estimate)",
        ]
        at = 0
        for part in parts:
            assert part in text[at:], part
            at = text.index(part, at) + len(part)

    @pytest.mark.parametrize("width", [40, 80, 200])
    def test_it_fits_the_terminal(self, width: int) -> None:
        assert max(map(len, page(rich_line(), width))) <= width

    def test_a_text_of_30_megabytes_does_not_flood_the_screen(self) -> None:
        """B19"""
        big = line("a", 0, trial_record=trial_record(answer="x" * 30_000_000))
        text = "\n".join(page(big, 80))
        assert len(text) < 20_000
        assert "(… 29,996,000 more characters)" in text

    def test_an_attempt_that_never_was_shows_its_tries_and_why(self) -> None:
        missing = line("a", 2, "missing", reason="server_lost, 3 tries")
        text = "\n".join(page(missing, 80))
        assert "trial 3 of 3  MISSING" in text
        assert "reason   server_lost, 3 tries" in text
        assert "try 1    chat_tone_2" in text

    def test_a_conversation_that_went_well_is_two_lines(self) -> None:
        used = {"input_tokens": 9, "output_tokens": 3, "amount": "0.1", "currency": "EUR", "final": True}
        text = page(line("a", 0, usage=used), None)
        assert text[-3:] == [
            "conversation",
            "  chat     chat_tone_0",
            "  spent    9 input tokens, 3 output tokens, 0.1 EUR",
        ]
        assert "tries" not in text

    def test_a_hook_that_failed_says_why(self) -> None:
        hook = {**HOOK, "run_id": "run_0", "hook": "tools.before", "decision": "failed", "error": "KeyError: 'price'"}
        text = page(line("a", trial_record=trial_record(hooks=[hook])), None)
        assert "  hook     tools.before: failed (harness, 12ms): KeyError: 'price'" in text

    def test_item_22_how_the_agent_was_read_stands_above_its_turns(self) -> None:
        record = trial_record(notes=["line 1 of the agent's output is no JSON object"])
        text = page(line("a", trial_record=record), None)
        assert text[1] == "  note     line 1 of the agent's output is no JSON object"

    def test_an_assertion_that_did_not_pass_says_where_it_stands(self) -> None:
        document = scenario("a", expect=[{"no_error": True}, {"final_answer_contains": "x"}])
        asked = Scenario.from_json(document | {"expect_places": [[7, 9], [8, 9]]})
        findings = [
            {"index": 0, "kind": "no_error", "passed": True, "sentence": "fine"},
            {"index": 1, "kind": "final_answer_contains", "passed": False, "sentence": "no x"},
        ]
        text = [row.plain for row in transcript(line("a", findings=findings), 1, None, asked)]
        assert "  passed   no_error: fine" in text
        assert "  FAILED   final_answer_contains: no x (evals/cases/tone.yaml:8:9)" in text

    def test_signs_that_are_joined_stay_joined_and_what_hides_is_shown(self) -> None:
        """A family of emoji and Persian are written with joiners; between Latin letters one only hides."""
        said = "👨\u200d👩\u200d👧 می\u200cخواهم a\u200db \u200d\u202e"
        text = page(line("a", trial_record=trial_record(answer=said)), None)
        assert "  answer   👨\u200d👩\u200d👧 می\u200cخواهم a\\u200db \\u200d\\u202e" in text

    def test_no_answer_and_an_empty_answer_are_two_things(self) -> None:
        """B19"""
        none, empty = (page(line("a", 0, trial_record=trial_record(answer=answer)), 80) for answer in (None, ""))
        assert "  answer   (none)" in none
        assert '  answer   ""' in empty

    def test_a_record_that_cannot_be_read_does_not_hide_the_rest(self) -> None:
        text = "\n".join(page(rich_line() | {"trial_record": {"turns": 3}, "graders": [{"kind": "answered"}]}, None))
        assert "damaged  what happened cannot be read" in text
        assert "FAILED   final_answer_contains: no 3" in text
        assert text.count("damaged") == 2

    def test_a_scenario_that_was_not_played_says_so(self) -> None:
        """S8"""
        sentence = "not played: counts ended the conversation: agent_exit"
        document = line("a", 0, "failed", reason="other", trial_record=trial_record(user=[], not_played=sentence))
        assert f"  note     {sentence}" in page(document, None)

    def test_what_the_evaluation_holds_from_elsewhere_is_noted(self) -> None:
        assert any("holds another run" in row for row in page(line("a", 0, recorded="elsewhere"), None))


class TestShow:
    def test_verdicts_first_then_the_first_trial_that_failed(self, results: Path) -> None:
        text = shown(results)
        assert text.index("INCOMPLETE") < text.index("tone/counts  trial 2 of 3  FAILED")
        assert text.count("turn 1") == 1

    def test_the_other_trials_are_listed_by_how_they_ended(self, results: Path) -> None:
        assert shown(results).rstrip().endswith("\n\nothers: trial 1 passed (--trial N shows one)")
        assert (
            shown(results, scenario="tone/fine")
            .rstrip()
            .endswith("\n\nothers: trials 2–3 passed (--trial N shows one)")
        )
        assert "others:" not in shown(results, scenario="tone/short"), "there is no other"

    def test_a_scenario_and_a_trial_can_be_named(self, results: Path) -> None:
        assert "tone/fine  trial 3 of 3  PASSED" in shown(results, scenario="tone/fine", trial=2)
        assert "tone/fine  trial 1 of 3  PASSED" in shown(results, scenario="tone/fine")
        assert "tone/counts  trial 2 of 3  FAILED" in shown(results, scenario="tone/counts")

    def test_context_can_be_read_too(self, results: Path) -> None:
        assert "tone/short  trial 1  context: played, never scored" in shown(results, scenario="tone/short")

    def test_all_passed_shows_the_verdicts_alone(self, tmp_path: Path) -> None:
        store = FolderResults(tmp_path)
        write_plan(store, plan({"tone": [scenario("a")]}))
        append_segment(store, ARTIFACT, [line("a")])
        said = shown(tmp_path)
        assert "turn 1" not in said
        assert "`evalfleet show CASE/SCENARIO` shows one that passed" in said

    def test_damage_is_told(self, results: Path) -> None:
        with (results / ARTIFACT / "trials/000001.jsonl").open("ab") as file:
            file.write(b'{"half')
        assert "damaged: " in shown(results)
        assert "its writer was killed" in shown(results)

    @pytest.mark.parametrize(
        ("wanted", "message"),
        [
            pytest.param({"scenario": "tone/count"}, "did you mean tone/counts", id="near name"),
            pytest.param({"scenario": "x/y"}, "it holds tone/short, tone/counts, tone/fine", id="what there is"),
            pytest.param({"scenario": "tone/counts", "trial": 2}, "no trial 3 .*only trials 1–2", id="no such trial"),
            pytest.param({"trial": 1}, "name it too, as CASE/SCENARIO", id="a trial of what"),
        ],
    )
    def test_what_is_not_there_is_refused_before_anything_is_printed(
        self, results: Path, wanted: dict[str, Any], message: str
    ) -> None:
        stream = io.StringIO()
        with pytest.raises(UsageError, match=message):
            show(open_result(results / ARTIFACT), stream, **wanted)
        assert stream.getvalue() == ""


class TestChoose:
    def test_without_a_word_it_is_the_newest(self, results: Path) -> None:
        result, key = choose(None, None, results)
        assert (result.plan.artifact, key) == (ARTIFACT, None)

    @pytest.mark.parametrize("word", [ARTIFACT, SUBMISSION, "PATH", "PATH/suite.json"])
    def test_a_folder_a_name_and_an_id(self, results: Path, word: str) -> None:
        word = word.replace("PATH", str(results / ARTIFACT))
        result, key = choose(word, "tone/fine", results)
        assert (result.plan.artifact, key) == (ARTIFACT, "tone/fine")

    def test_a_single_word_with_a_slash_is_a_scenario_of_the_newest(self, results: Path) -> None:
        assert choose("tone/fine", None, results)[1] == "tone/fine"

    @pytest.mark.parametrize("words", [("nothing", None), ("tone/fine", "tone/fine"), ("./a/b", None), ("/a/b", None)])
    def test_what_fits_nothing_is_told(self, results: Path, words: tuple[str, str | None]) -> None:
        with pytest.raises(UsageError, match="is no result"):
            choose(*words, results)

    def test_no_result_yet(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="`evalfleet eval` makes one"):
            choose(None, None, tmp_path)

    def test_a_relative_folder_is_found_from_where_one_stands(
        self, results: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(results.parent)
        assert choose(os.path.join("results", ARTIFACT), None, results)[0].plan.artifact == ARTIFACT
