"""The page for a CI job: what did not pass first, bounded, and nothing an agent said is markup (B12)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.reports.markdown import MOST_ROWS, code, escaped, fenced, markdown
from scheduler.reports.report import Report
from scheduler.tallies import AgentNotes
from tests.scheduler.reports.making import asked, every_kind, failed, made
from tests.scheduler.samples import line

LIMIT = 1024 * 1024
"""Bytes that GitHub takes of one step's summary."""


def page(report: Report) -> str:
    return "".join(markdown(report))


def rows(text: str) -> list[list[str]]:
    """The cells of each table row."""
    found = [row for row in text.splitlines() if row.startswith("| ") and not row.startswith(("| | ", "| ---"))]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in found]


class TestThePage:
    @pytest.fixture
    def text(self, tmp_path: Path) -> str:
        return page(every_kind(tmp_path, ended="interrupted"))

    def test_the_verdict_comes_first(self, text: str) -> None:
        lines = text.splitlines()
        assert lines[0] == "## 💥 evalfleet: fail"
        assert lines[2] == "**6 scenarios: 1 pass, 2 flaky, 1 fail, 2 incomplete**; exit code 1"
        assert lines[4] == "Ended early: interrupted"

    def test_what_did_not_pass_stands_above_what_did(self, text: str) -> None:
        assert [row[:3] for row in rows(text)] == [
            ["❌ FLAKY", "<code>tone/wavers</code>", "2/3"],
            ["❌ FAIL", "<code>tone/fails</code>", "0/3"],
            ["💥 FLAKY", "<code>tone/breaks</code>", "1/3"],
            ["⏳ INCOMPLETE", "<code>tone/waits</code>", "1 of 3"],
            ["⏳ INCOMPLETE", "<code>tone/elsewhere</code>", ""],
            ["✅ PASS", "<code>tone/passes</code>", "3/3"],
        ]
        assert rows(text)[0][4] == 'trial 2: the final answer does not contain "Paris"; it is "Lyon."'
        assert rows(text)[3][4] == "trial 2: missing: server_lost, 3 tries"

    def test_s18_what_may_be_missing_has_a_sign_of_its_own_and_no_way_on(self, tmp_path: Path) -> None:
        text = page(every_kind(tmp_path / "allowed", missing_allowed=True))
        assert ["➖ INCOMPLETE", "<code>tone/waits</code>", "1 of 3"] in [row[:3] for row in rows(text)]
        assert "evalfleet resume" not in text

    def test_a_failure_shows_its_assertions_with_their_places_its_answer_and_its_run(self, text: str) -> None:
        told = text.partition("<summary><code>tone/wavers</code> trial 2 of 3</summary>")[2].partition("</details>")[0]
        assert "- <code>evals/cases/tone.yaml:17:9</code> final_answer_contains: the final answer does not" in told
        assert "\n```text\nLyon.\n```\n" in told
        assert "Run <code>run_tone_wavers_1</code> · <code>evalfleet show tone/wavers --trial 2</code>" in told

    def test_what_it_cost_and_how_to_go_on_stand_at_the_end(self, text: str) -> None:
        assert "- no spend reported" in text
        assert text.rstrip().endswith("ends it and keeps what is recorded.")
        assert "<code>evalfleet resume sub_0123456789abcdefghjkmnpqrs</code> plays what is missing" in text

    def test_item_22_how_agents_were_read_is_said_once(self, tmp_path: Path) -> None:
        report = every_kind(tmp_path)
        noted = replace(report.summary, agent_notes=AgentNotes(3, "tone", "fails", 0, "line 1 is `*no*` JSON"))
        said = [row for row in page(replace(report, summary=noted)).splitlines() if "JSON" in row]
        assert said == ["- note (3 trials, first in tone/fails): line 1 is \\`\\*no\\*\\` JSON"]
        assert "note (" not in page(report)

    def test_runs_are_links_where_a_platform_has_them(self, tmp_path: Path) -> None:
        report = every_kind(tmp_path / "platform")
        there = replace(report.plan.target, base_url="https://platform.example/api/")
        text = page(replace(report, plan=replace(report.plan, target=there)))
        link = "[<code>run_tone_wavers_1</code>](https://platform.example/api/v2/runs/run_tone_wavers_1)"
        assert f"Run {link} · " in text


def test_what_all_passed_is_short(tmp_path: Path) -> None:
    text = page(made(tmp_path, {"tone": [asked("a", trials=1)]}, [line("a")]))
    assert text.startswith("## ✅ evalfleet: pass\n\n**1 scenario: 1 pass**; exit code 0\n\n<details>")
    assert "first failure" not in text


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("a | b", r"a \| b"),
        ("<img src=x onerror=y> &amp;", r"\<img src=x onerror=y\> \&amp;"),
        ("*bold* _so_ `code` ~~gone~~ $x$", r"\*bold\* \_so\_ \`code\` \~\~gone\~\~ \$x\$"),
        ("[text](https://x.example) ![i](j)", r"\[text\](https:/<!-- -->/x.example) !\[i\](j)"),
        ("ask @someone, not a@b", "ask @<!-- -->someone, not a@b"),
        ("run_01 stays, pass@1 too", "run_01 stays, pass@1 too"),
        ("two\nlines\x1b[0m", r"two\\nlines\\u001b\[0m"),
        ("half \ud83d", r"half \\ud83d"),
        ("www.x.example", "w<!-- -->ww.x.example"),
    ],
)  # fmt: skip
def test_a_sentence_is_shown_as_it_is(said: str, shown: str) -> None:
    assert escaped(said) == shown


@pytest.mark.parametrize("said", ["a|b", "<b>", "`", "*x*", "_x_", "@me", "https://x.example", "[a](b)", "~~", "$x$"])
def test_code_holds_no_markup(said: str) -> None:
    inside = code(said).removeprefix("<code>").removesuffix("</code>")
    assert not re.search(r"[|<>`*@~$\[]|\b_|_\b|https://", inside)


def test_a_fence_is_longer_than_any_in_the_answer() -> None:
    assert fenced("a\n````\n<script>", 100) == "`````text\na\n````\n<script>\n`````"


def test_a_page_stays_below_what_github_takes(tmp_path: Path) -> None:
    """2,000 scenarios, half of them failing with long answers in wide letters, and long names."""
    ids = [f"{n:04d} " + "名" * 190 for n in range(2000)]
    lines = [failed(id_, 0, answer="答" * 20_000) if n % 2 else line(id_) for n, id_ in enumerate(ids)]
    text = page(made(tmp_path, {"tone": [asked(id_, trials=1) for id_ in ids]}, lines))
    assert len(text.encode()) < LIMIT
    assert len(rows(text)) == 2 * MOST_ROWS
    assert "… and 800 more; <code>evalfleet show</code> lists all." in text
    assert "<code>evalfleet show CASE/SCENARIO</code> shows the others." in text
    assert "(… 18,500 more characters)" in text
