"""The reader of the agent's protocol (docs/agents.md; issue: "three drivers behind a run")."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from evalfleet.server.drivers.lines import AgentOutput, Mode
from evalfleet.server.drivers.protocol import (
    AgentLine,
    AnswerLine,
    Broken,
    ErrorLine,
    HookLine,
    NoteLine,
    ToolCallsLine,
    ToolResultLine,
    UsageLine,
    read_line,
)
from evalfleet.server.driving import Call


def read(data: bytes, *, mode: Mode = "auto", size: int = 1 << 20) -> list[AgentLine]:
    output = AgentOutput(mode)
    lines = [line for at in range(0, len(data), size) for line in output.feed(data[at : at + size])]
    return lines + output.finish()


GOOD = [
    pytest.param(b"", [], id="nothing at all is no answer"),
    pytest.param(b"\n", [], id="an empty line is no answer"),
    pytest.param(b"Paris", [AnswerLine("Paris")], id="plain text"),
    pytest.param(b"Paris\n", [AnswerLine("Paris")], id="one final line end goes"),
    pytest.param(b"Paris\r\n", [AnswerLine("Paris")], id="a final CRLF goes"),
    pytest.param(b"Paris\n\n", [AnswerLine("Paris\n")], id="only one final line end goes"),
    pytest.param(b"\n\n  Paris\nFrance\n", [AnswerLine("\n\n  Paris\nFrance")], id="leading blank lines stay"),
    pytest.param(b'{"city": "Paris"}\n', [AnswerLine('{"city": "Paris"}')], id="JSON without a type is plain text"),
    pytest.param(b'{"type": "city"}\n', [AnswerLine('{"type": "city"}')], id="an unknown type is plain text"),
    pytest.param(b'{"type": 7}\n', [AnswerLine('{"type": 7}')], id="a type that is no text is plain text"),
    pytest.param(b'{\n "type": "city"\n}', [AnswerLine('{\n "type": "city"\n}')], id="pretty JSON is plain text"),
    pytest.param(b"[1]\n", [AnswerLine("[1]")], id="a JSON list is plain text"),
    pytest.param(b"{braces} first\nthen more", [AnswerLine("{braces} first\nthen more")], id="a text may open a brace"),
    pytest.param(b"caf\xc3\xa9 \xff", [AnswerLine("café \ufffd")], id="invalid UTF-8 becomes U+FFFD (C04)"),
    pytest.param(b"\xef\xbb\xbfhi\n", [AnswerLine("hi")], id="a byte order mark is no text"),
    pytest.param(b'{"type": "answer", "text": "x"}', [AnswerLine("x")], id="a last line without a line feed"),
    pytest.param(b'\xef\xbb\xbf{"type":"answer","text":"x"}\r\n', [AnswerLine("x")], id="BOM and CRLF in JSON Lines"),
    pytest.param(
        b'\n {"type":"answer","text":"x"} \n\n\n', [AnswerLine("x")], id="blank lines and blanks around lines"
    ),
    pytest.param(b'{"type":"answer","text":""}\n', [AnswerLine("")], id="an answer may be empty"),
    pytest.param(
        b'{"type":"answer","text":"a"}\n{"type":"answer","text":"b"}\n', [AnswerLine("a"), AnswerLine("b")], id="two"
    ),
    pytest.param(
        '{"type":"answer","text":"a\u2028b\u2029c\u0085d"}\n'.encode(),
        [AnswerLine("a\u2028b\u2029c\u0085d")],
        id="only a line feed ends a line (C01)",
    ),
    pytest.param(
        rb'{"type":"answer","text":"ok \ud83d"}', [AnswerLine("ok \ud83d")], id="half a character is kept (B11)"
    ),
    pytest.param(
        rb'{"type":"tool_call","id":"c","name":"t","args":{"q":"\udc80"}}',
        [ToolCallsLine((Call("c", "t", {"q": "\udc80"}),))],
        id="half a character in args is kept (B11)",
    ),
    pytest.param(
        rb'{"type":"answer","text":"nul \u0000 and \\u0000"}',
        [AnswerLine("nul \0 and \\u0000")],
        id="NUL and its spelling are two things (E07)",
    ),
    pytest.param(
        b'{"type":"tool_call","id":7,"name":"t"}', [ToolCallsLine((Call("7", "t", {}),))], id="an id may be a number"
    ),
    pytest.param(
        b'{"type":"tool_call","id":"c","name":"t","args":"{\\"a\\":1}"}',
        [ToolCallsLine((Call("c", "t", '{"a":1}'),))],
        id="args as JSON text go on as they came (S11)",
    ),
    pytest.param(
        b'{"type":"tool_calls","calls":[{"id":"1","name":"a","args":{}},{"id":1,"name":"b"}]}',
        [ToolCallsLine((Call("1", "a", {}), Call("1", "b", {})))],
        id="S20: calls that were made at once, also under one id",
    ),
    pytest.param(b'{"type":"tool_result","id":"c"}', [ToolResultLine("c", None)], id="a result may hold nothing"),
    pytest.param(
        b'{"type":"tool_result","id":"c","output":[1,{"a":null}]}', [ToolResultLine("c", [1, {"a": None}])], id="output"
    ),
    pytest.param(
        b'{"type":"hook","hook":"tools.before","decision":"deny"}',
        [HookLine("tools.before", "deny", None, None)],
        id="a hook",
    ),
    pytest.param(
        b'{"type":"hook","hook":"h","decision":"answered","source":"f.py","duration_ms":1.5,"extra":1}',
        [HookLine("h", "answered", "f.py", 1.5)],
        id="a hook with everything and an unknown key",
    ),
    pytest.param(
        b'{"type":"hook","hook":"h","decision":"failed","error":"KeyError"}',
        [HookLine("h", "failed", None, None, "KeyError")],
        id="a hook that says why it failed",
    ),
    pytest.param(
        b'{"type":"usage","input_tokens":3,"output_tokens":4,"cache_read_tokens":1,"amount":"0.10","currency":"EUR"}',
        [UsageLine(3, 4, 1, 0, Decimal("0.10"), "EUR")],
        id="usage",
    ),
    pytest.param(b'{"type":"usage","amount":0.1}', [UsageLine(amount=Decimal("0.1"))], id="an amount as a number"),
    pytest.param(b'{"type":"usage","input_tokens":3.0}', [UsageLine(3)], id="3.0 tokens are 3"),
    pytest.param(b'{"type":"error","message":"m"}', [ErrorLine("m", "agent_error", False)], id="an error"),
    pytest.param(
        b'{"type":"error","message":"m","code":"rate_limited","retryable":true}',
        [ErrorLine("m", "rate_limited", True)],
        id="an error with a code",
    ),
]


@pytest.mark.parametrize(("data", "wanted"), GOOD)
def test_what_an_output_says(data: bytes, wanted: list[AgentLine]) -> None:
    assert read(data) == wanted


@pytest.mark.parametrize(("data", "wanted"), GOOD)
def test_where_the_pieces_are_cut_makes_no_difference(data: bytes, wanted: list[AgentLine]) -> None:
    assert read(data, size=1) == wanted
    for at in range(1, len(data)):
        output = AgentOutput()
        assert output.feed(data[:at]) + output.feed(data[at:]) + output.finish() == wanted


BAD = [
    pytest.param(b'{"type": "answer", "text": "hal', "line 1", "ends in the middle", id="half a first line"),
    pytest.param(b'{"typ', "line 1", "ends in the middle", id="half a first line that was cut early"),
    pytest.param(b'{"type": "answer", "text": oops}\n', "line 1", "is not JSON", id="a first line that says a type"),
    pytest.param(b'{"type":"usage"}\n{"type":"answer","te', "line 2", "ends in the middle", id="half a later line"),
    pytest.param(b'{"type":"usage"}\n\ndebug: hi\n', "line 3", "is not JSON", id="other output in between"),
    pytest.param(b'{"type":"usage"}\n[1]\n', "line 2", "is not a JSON object", id="a list"),
    pytest.param(b'{"type":"usage"}\n{"type":"anwser"}\n', "line 2", "no known `type`", id="a later unknown type"),
    pytest.param(b'{"type":"usage"}\n{}\n', "line 2", "no known `type`", id="a later object without a type"),
    pytest.param(b'{"type":"tool_call","name":"t"}\n', "line 1", "needs `id`", id="a call without an id"),
    pytest.param(b'{"type":"tool_call","id":"c","name":" "}\n', "line 1", "needs `name`", id="a blank name"),
    pytest.param(b'{"type":"tool_call","id":true,"name":"t"}\n', "line 1", "needs `id`", id="true is no id"),
    pytest.param(b'{"type":"tool_calls","calls":[]}\n', "line 1", "needs `calls`", id="no call of several"),
    pytest.param(b'{"type":"tool_calls","calls":["t"]}\n', "line 1", "needs `calls`", id="a call that is no object"),
    pytest.param(
        b'{"type":"tool_calls","calls":[{"id":1,"name":"t"},{"id":2}]}\n',
        "line 1",
        "needs `name`",
        id="one call of several without a name",
    ),
    pytest.param(b'{"type":"answer","text":null}\n', "line 1", "needs `text`", id="an answer without text"),
    pytest.param(b'{"type":"answer","text":7}\n', "line 1", "not 7", id="an answer that is a number"),
    pytest.param(b'{"type":"usage","input_tokens":-1}\n', "line 1", "whole number", id="negative tokens"),
    pytest.param(b'{"type":"usage","input_tokens":true}\n', "line 1", "whole number", id="true tokens"),
    pytest.param(b'{"type":"usage","amount":"free"}\n', "line 1", "money", id="an amount that is none"),
    pytest.param(b'{"type":"usage","amount":"1e-999999999"}\n', "line 1", "money", id="an amount of a billion digits"),
    pytest.param(b'{"type":"usage","amount":"NaN"}\n', "line 1", "money", id="NaN money"),
    pytest.param(b'{"type":"usage","amount":NaN}\n', "line 1", "NaN is no JSON", id="NaN"),
    pytest.param(b'{"type":"tool_result","id":"c","output":1e999}\n', "line 1", "too large", id="an infinite number"),
    pytest.param(b'{"type":"hook","hook":"h"}\n', "line 1", "needs `decision`", id="a hook without a decision"),
    pytest.param(b'{"type":"error"}\n', "line 1", "needs `message`", id="an error without words"),
    pytest.param(b'{"type":"error","message":"m","retryable":"no"}\n', "line 1", "true or false", id="retryable text"),
    pytest.param(
        b'{"type":"tool_result","id":"c","output":' + b"[" * 300 + b"]" * 300 + b"}\n",
        "line 1",
        "200 levels",
        id="deep",
    ),
    pytest.param(
        b'{"type":"tool_result","id":"c","output":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        "line 1",
        "200 levels",
        id="100,000 brackets (E08)",
    ),
    pytest.param(
        b'{"type":"usage","input_tokens":' + b"9" * 5000 + b"}\n", "line 1", "digits", id="5,000 digits (E08)"
    ),
]


@pytest.mark.parametrize("size", [1 << 20, 7], ids=["in one piece", "in small pieces"])
@pytest.mark.parametrize(("data", "where", "what"), BAD)
def test_an_output_that_breaks_the_protocol_says_where_and_shows_the_line(
    data: bytes, where: str, what: str, size: int
) -> None:
    broken = read(data, size=size)[-1]
    assert isinstance(broken, Broken)
    assert broken.code == "agent_protocol"
    assert broken.message.startswith(f"{where} of the agent's output")
    assert what in broken.message
    assert len(broken.message) < 500


def test_after_a_breach_nothing_more_is_read() -> None:
    output = AgentOutput()
    first = output.feed(b'{"type":"usage"}\nwhat\n{"type":"answer","text":"late"}\n')
    assert [type(line) for line in first] == [UsageLine, Broken]
    assert output.feed(b'{"type":"answer","text":"later"}\n') == []
    assert output.finish() == []


def test_what_came_before_half_a_line_is_still_said() -> None:
    lines = read(b'{"type":"tool_call","id":"c","name":"t"}\n{"type":')
    assert lines[0] == ToolCallsLine((Call("c", "t", {}),))
    assert isinstance(lines[1], Broken)


def test_with_a_content_type_of_json_lines_plain_text_is_a_breach() -> None:
    assert isinstance(read(b"hello\n", mode="lines")[0], Broken)


def test_as_plain_text_even_a_protocol_line_is_the_answer() -> None:
    assert read(b'{"type":"answer","text":"x"}', mode="text") == [AnswerLine('{"type":"answer","text":"x"}')]


STRAY = [
    pytest.param(b'Loading\n{"type":"answer","text":"x"}\n', 1, "`answer` in line 2", "Loading", id="a line before"),
    pytest.param(
        b'\n\nLoading\n\nready\n{"id":"1","args":{},"type":"tool_call","name":"rm"}',
        *(3, "`tool_call` in line 6", "Loading"),
        id="blank lines and a type that comes last",
    ),
    pytest.param(
        b'\r 10%\r100%{"type":"usage"}\r\n', 1, "`usage` in it", '10%\r100%{"type":"usage"}', id="no line end"
    ),
    pytest.param(
        b"""d {'a': 1}{"type":"usage"}\n""", 1, "`usage` in it", """d {'a': 1}{"type":"usage"}""", id="a dict, too"
    ),
    pytest.param(
        b'{"level":"info","msg":"up"}\n{"type":"error","message":"no"}',
        *(1, "`error` in line 2", '{"level":"info","msg":"up"}'),
        id="a log line that is JSON",
    ),
    pytest.param(
        b'{\n  "type": "answer",\n  "text": "x"\n}\n', 1, "`answer` in it", "{", id="an object over several lines"
    ),
    pytest.param(
        b'say "type":"answer"\n{"type":"answer","text":"' + b"y" * 300_000 + b'"}',
        *(1, "`answer` in line 2", 'say "type":"answer"'),
        id="a long line, after words that only look like one",
    ),
]


@pytest.mark.parametrize("size", [1, 1 << 20])
@pytest.mark.parametrize(("data", "line", "unread", "start"), STRAY)
def test_item_22_what_stands_before_the_protocol_makes_plain_text_and_a_note(
    data: bytes, line: int, unread: str, start: str, size: int
) -> None:
    if size == 1 and len(data) > 1000:
        size = 4096
    note, answer = read(data, size=size)
    assert isinstance(answer, AnswerLine)
    assert answer.value == data.decode().removesuffix("\n").removesuffix("\r" * data.endswith(b"\r\n"))
    assert isinstance(note, NoteLine)
    assert note.message.startswith(f"line {line} of the agent's output is no JSON object of the protocol, so ")
    assert f"and the {unread} was not read" in note.message
    assert note.message.endswith(f'line {line} starts with "{start}"')


@pytest.mark.parametrize(
    "data",
    [
        b"Paris\n",
        b'Say {"type": "answer"\n',
        b'Use {"type": "object", "properties": {"answer": {"type": "string"}}}\n',
        b'a log has "type": "error" in it',
    ],
)
def test_a_plain_answer_without_an_object_of_the_protocol_has_no_note(data: bytes) -> None:
    assert [type(line) for line in read(data)] == [AnswerLine]


def test_text_that_may_only_be_text_has_no_note() -> None:
    assert len(read(b'Paris\n{"type":"answer","text":"x"}', mode="text")) == 1


def test_looking_for_the_protocol_in_a_large_plain_answer_is_bounded() -> None:
    """16 MiB of what only looks like it; the test's own time limit holds the rest."""
    data = b"say " + b'{"type":"answer" ' * (1024 * 1024)
    assert [type(line) for line in read(data)] == [AnswerLine]


def test_an_endless_json_line_is_refused_at_its_limit() -> None:
    output = AgentOutput(line_limit=100, total_limit=1000)
    lines = output.feed(b'{"type":"usage"}\n{"type":"answer","text":"')
    assert lines == [UsageLine()]
    [broken] = output.feed(b"x" * 100)
    assert broken == Broken("agent_output_too_large", "line 2 of the agent's output is longer than 100 bytes")


def test_a_plain_answer_has_the_limit_of_a_whole_output() -> None:
    output = AgentOutput(line_limit=10, total_limit=1000)
    assert output.feed(b"x" * 1000) == []
    [broken] = output.feed(b"x")
    assert broken == Broken("agent_output_too_large", "the agent printed more than 1000 bytes in one turn")


def test_a_line_of_eight_megabytes_in_small_pieces_is_read_once() -> None:
    """C11: linear, not quadratic; the test holds the answer, and its own time limit holds the rest."""
    text = "y" * (8 * 1024 * 1024)
    data = json.dumps({"type": "answer", "text": text}).encode() + b"\n"
    assert read(data, size=1024) == [AnswerLine(text)]


def test_a_reader_of_one_object_names_the_place_it_is_given() -> None:
    broken = read_line("nonsense", "event 4")
    assert isinstance(broken, Broken)
    assert broken.message.startswith("event 4 of the agent's output is not JSON")
