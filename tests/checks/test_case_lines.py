"""A line ends where an editor ends it, and nowhere else; what only looks like an indent is named (S1, S2, S3)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from evalfleet.checks import LoadedCases, nodes
from evalfleet.checks.expectation import ToolCalled
from evalfleet.checks.suite import parse_suite
from tests.checks.reading import messages, parsed, places, scenario

BREAKS = pytest.mark.parametrize("mark", ["\x85", "\u2028", "\u2029"], ids=["U+0085", "U+2028", "U+2029"])


@pytest.fixture(autouse=True, params=["CSafeLoader", "SafeLoader"])
def _both_parsers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML without libyaml is common (no wheel for the platform)."""
    monkeypatch.setattr(nodes, "_LOADER", getattr(yaml, request.param))


def turns(loaded: LoadedCases) -> tuple[str, ...]:
    assert not loaded.problems, messages(loaded)
    return loaded.cases[0].scenarios[0].user


@BREAKS
@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("a%sb", "a%sb"),
        ("'a%sb'", "a%sb"),
        ('"a%sb"', "a%sb"),
        ("a%s b %s%s c", "a%s b %s%s c"),
        ("'%s'x", None),
        ('"a %s b"', "a %s b"),
        ("|\n      a%sb\n      %sc", "a%sb\n%sc\n"),
        (">-\n      a%sb\n      c%s", "a%sb c%s"),
        ("a%s\n      b", "a%s b"),
        ("a # %s    trials: 7", "a"),
        ("a%s    trials: 7", None),
        ('"a\\%sb"', None),
        ("*a%s", None),
        ("!a%s b", None),
    ],
)
def test_no_line_break_of_yaml_1_1_ends_text_or_a_line(mark: str, written: str, said: str | None) -> None:
    """Issue 9, 3: a pasted U+2028 ended a prompt in the middle and set `trials`. It is text, or it is refused."""
    loaded = parsed(scenario("{no_error: yes}", user=written.replace("%s", mark)))
    line = 4 + written.count("\n")
    if said is None:
        assert {place.partition(":")[0] for place in places(loaded)} <= {"3", str(line)}
        assert not loaded.cases
        return
    assert places(loaded) == [f"{line}:25"]
    loaded = parsed(scenario("{no_error: true}", user=written.replace("%s", mark)))
    assert turns(loaded) == (said.replace("%s", mark),)
    assert loaded.cases[0].scenarios[0].trials == 1


@BREAKS
def test_a_line_break_of_yaml_1_1_is_part_of_a_key_and_no_part_of_a_name(mark: str) -> None:
    loaded = parsed(scenario(f'{{tool_called: {{name: t, args: {{"a{mark}b": c{mark}d, e{mark}f: 1}}}}}}'))
    (called,) = loaded.cases[0].scenarios[0].expect
    assert isinstance(called, ToolCalled)
    assert called.called_with == {f"a{mark}b": f"c{mark}d", f"e{mark}f": 1}
    refused = parsed(scenario(f"{{tool_not_called: {{name: a{mark}b}}}}"))
    assert places(refused) == ["4:39"]
    assert "a name is one line without control characters" in messages(refused)


@BREAKS
def test_the_line_with_such_a_character_is_shown_on_one_line(mark: str) -> None:
    said = messages(parsed(scenario("{no_error: true}", user=f"a{mark}b: c")))
    assert mark not in said
    assert said.split("\n")[1:3] == ["  |     user: a\ufffdb: c", "  |              ^"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (r'"\ud83d\ude00"', "\U0001f600"),
        (r'"a\uD83D\uDE00\u00e9b"', "a\U0001f600\xe9b"),
        (r'"\\ud83d\\ude00"', r"\ud83d\ude00"),
        (r'"\\\ud83d\ude00"', "\\\U0001f600"),
        (r'"\\\\ud83d"', r"\\ud83d"),
        (r"'\ud83d\ude00'", r"\ud83d\ude00"),
        (r"\ud83d\ude00", r"\ud83d\ude00"),
        ("|-\n      \\ud83d", r"\ud83d"),
        ('"\\ud83d\\\n      \\ude00"', "\U0001f600"),
        ('"\\ue000\\ue001\\ue002\\ue003\\ue004 \u2028"', "\ue000\ue001\ue002\ue003\ue004 \u2028"),
        ('"\ue000 \\ud83d\\ude00 \x85"', "\ue000 \U0001f600 \x85"),
    ],
)
def test_two_halves_in_json_style_are_the_character_that_they_mean(written: str, said: str) -> None:
    """Issue 9, 3. What stands in for a character while YAML is parsed is never seen, whatever the file holds."""
    assert turns(parsed(scenario("{no_error: true}", user=written))) == (said,)


@pytest.mark.parametrize(
    ("written", "place"),
    [
        (r'"\ud83d"', "3:12"),
        (r'"ab\ud83d c"', "3:14"),
        (r'"\ude00\ud83d"', "3:12"),
        (r'"\ud83d\ude00\ude00"', "3:24"),
        (r'"\\\ud83d\ud83d\ude00"', "3:14"),
        ('"a\n      \\ud83d"', "4:7"),
    ],
)
def test_half_a_character_is_refused_where_it_is_written(written: str, place: str) -> None:
    loaded = parsed(scenario("{no_error: true}", user=written))
    assert places(loaded) == [place]
    assert "half a character" in messages(loaded)
    row = b'{"input": "hi", "expect": [{"no_error": true}], "key": ' + written.replace("\n      ", "").encode() + b"}"
    rows = parse_suite(row, name="s", file="s.jsonl", beside=lambda name: (name, b""))
    assert [str(problem.place).split(":")[1] for problem in rows.problems] == ["1"]


@pytest.mark.parametrize("number", ["00110000", "FFFFFFFF"])
def test_an_escape_that_no_character_has_is_refused(number: str) -> None:
    assert places(parsed(scenario("{no_error: true}", user=f'"a\\U{number}"'))) == ["3:15"]


def test_a_file_that_leaves_no_stand_in_is_refused_and_not_read_wrongly() -> None:
    private = "".join(map(chr, range(0xE000, 0xF900)))
    assert turns(parsed(scenario("{no_error: true}", user=f'"{private}"'))) == (private,)
    assert places(parsed(scenario("{no_error: true}", user=f'"{private}\u2028"'))) == [f"3:{12 + len(private)}"]


def test_a_carriage_return_alone_is_refused_among_rows_and_ends_a_line_of_a_case() -> None:
    """S2: the format of rows has it inside a line, and editors end a line there."""
    row = b'{"input": "a", "expect": [{"no_error": true}]}'
    found = parse_suite(row + b"\r\n" + row + b"\r" + row, name="s", file="s.jsonl", beside=lambda name: (name, b""))
    assert [str(problem.place) for problem in found.problems] == ["s.jsonl:2:47"]
    assert places(parsed(scenario("{no_error: yes}").replace("\n", "\r"))) == ["4:25"]


INDENTS = [
    # lines, the place that is named, whether the file can be read
    ("scenarios:\n%s%s- id: a\n", "2:1", False),
    ("scenarios:\n  -%sid: a\n", "2:4", False),
    ("scenarios:\n  - id:%sa\n    user: b\n", "2:8", False),
    ("scenarios:\n  - id: a\n    user: b\n%s   expect: [{no_error: true}]\n", "4:1", False),
    ("scenarios:\n  - id: a\n  %s user: b\n    expect: [{no_error: true}]\n", "3:3", False),
    ("scenarios:\n  - id: a\n    user:%sb\n    expect: [{no_error: true}]\n", "3:10", False),
    ("scenarios:\n  - id: a\n    user: b\n%s\n    expect: [{no_error: true}]\n", "4:1", False),
    ("%sscenarios: []\n", "1:1", False),
    ("scenarios:\n  - id: a\n    user: b\n      %strials:%s3\n    expect: [{no_error: true}]\n", "4:7", True),
    ("scenarios:\n  - id: a\n    user: b\n      trials:%s3\n    expect: [{no_error: true}]\n", "4:14", True),
]


@pytest.mark.parametrize("blank", ["\xa0", "\u3000", "\u2028", "\u200b"], ids=["no-break", "wide", "line", "nothing"])
@pytest.mark.parametrize(("text", "place", "readable"), INDENTS)
def test_a_blank_that_indents_for_people_only_is_named_on_its_line(
    text: str, place: str, readable: bool, blank: str
) -> None:
    """Issue 9, 3: as a problem where the file is refused, as a warning where YAML reads it as text."""
    loaded = parsed(text.replace("%s", blank))
    assert bool(loaded.cases) is readable
    named = [found for found in loaded.warnings if not readable] or list(
        loaded.warnings if readable else loaded.problems
    )
    assert f"(U+{ord(blank):04X}) at {place}: use spaces" in "\n".join(found.message for found in named)


@pytest.mark.parametrize(
    "user", ["a\xa0b", "'\xa0a'", "|\n      \xa0a\n      -\xa0b", "a # \xa0", "[\xa0a,\u3000b]", "a\xa0: b", "-a\xa0"]
)
def test_a_blank_inside_text_is_not_named(user: str) -> None:
    assert "use spaces" not in messages(loaded := parsed(scenario("{no_error: true}", user=user)))
    assert not loaded.warnings


def test_a_tab_behind_a_no_break_space_and_a_hash_is_outside_comments() -> None:
    assert places(parsed(scenario("{no_error: true}", user="a\xa0#\tb"))) == ["3:14"]


# Found by reading every text of up to five of these characters (`tests.fuzz.short`), and by a property test.
BEYOND_THE_END = ["---\n ", "--- ", "---", "---\r\n ", "---\n\n", "- ", "-\n ", "? ", "?\n ", ": ", ":\n ", "a: ",
                  "a:\n  ", "{a: }\n ", "--- #", "--- !\n ", "--- &a ", "- - ", "%YAML 1.2\n---\n "]  # fmt: skip


@pytest.mark.parametrize("text", BEYOND_THE_END)
def test_nothing_stands_beyond_the_last_line(text: str) -> None:
    """Issue 9, 24: the case file `---\\n ` ended in an IndexError (exit 70)."""
    loaded = parsed(text)
    assert loaded.problems
    lines = text.replace("\r\n", "\n").split("\n")
    for problem in loaded.problems:
        ends = [(problem.place.line, problem.place.column), *([problem.end] if problem.end else [])]
        assert all(1 <= line <= len(lines) and 1 <= column <= len(lines[line - 1]) + 1 for line, column in ends), ends


@given(st.lists(st.sampled_from([*"a-: \n\r'\"|>#&*", "\x85", "\u2028", "\xa0", "\\ud83d", "\\ude00"]), max_size=12))
@example(["-", "-", "-", "\n", " "])
def test_both_parsers_and_every_file_agree_on_where_lines_end(parts: list[str]) -> None:
    """Text without the three characters and halves is read as it always was; with them no line moves."""
    text = "".join(parts)
    lines = len(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    loaded = parsed(text)
    assert loaded.problems
    assert all(1 <= problem.place.line <= lines for problem in loaded.problems)
    assert all(problem.source_line.count("\n") == 0 for problem in loaded.problems)


@given(st.text(st.sampled_from("ab \x85\u2028\u2029\U0001f600\ue000\\'\"\n\t:#"), min_size=1).filter(str.strip))
def test_text_is_the_same_however_a_json_writer_writes_it(text: str) -> None:
    for ascii_only in (True, False):
        document: dict[str, Any] = {"scenarios": [{"id": "a", "user": text, "expect": [{"no_error": True}]}]}
        assert turns(parsed(json.dumps(document, ensure_ascii=ascii_only))) == (text,)
