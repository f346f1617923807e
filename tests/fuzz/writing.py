"""What could stand in a case file? Random files, and known ones with something changed: the same for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

CASES = Path(__file__).parents[1] / "cases"
PAGE = Path(__file__).parents[2] / "docs" / "cases.md"

_SCRAPS = [
    *"abc:-[]{}#&*!|>'\"%@`,?~ \n\t\r\\=", "  ", "- ", ": ", "&a ", "*a", "<<: ", "---\n", "...\n", "%YAML 1.2\n",
    "!!str ", "!!int ", "!x ", "|-\n", ">\n", "|2\n", "? ", "\ufeff", "\u2028", "\x85", "\x00", "\x07", "é", "e\u0301",
    "日本", "🦊", "\xa0", "\u3000", "\u2029", "\\ud800", "\\ude00", "\\U0001F98A", "null", "~", "true", "yes", "on",
    "0", "007", "1.10", "1e999", ".inf", "0x1F", "1_000", "2025-01-01", "1:30", "99999999999999999999", "-1", "''",
    '""', "5m", "25h", "\r\n",
]  # fmt: skip
_TEXTS = [
    *"abc-:#&*!|>'\"%@`,?~ []{}", ": ", " #", "- ", "null", "yes", "1.10", "é", "e\u0301", "日本", "🦊", "\\", "\xa0",
    "\u3000", "\u2028", "\x85", "word ", "two words", "$", "${x}", "<<", "=",
]  # fmt: skip
_WORDS = [
    "scenarios:", "defaults:", "expect:", "id:", "user:", "trials:", "timeout:", "name:", "args:", "count:", "first:",
    "then:", "substring:", "decision:", "pass_below:", "no_error: true", "tool_called:", "tool_not_called:",
    "tool_order:", "min_tool_calls:", "max_tool_calls:", "result_contains:", "final_answer_contains:",
    "final_answer_not_contains:", "final_answer_max_chars:", "hook_called:", "grader:", "suite:", "agent:", "files:",
]  # fmt: skip


def known_files() -> list[bytes]:
    """Files to change: the recorded ones, the examples of the page, and a large one."""
    files = [path.read_bytes() for path in sorted(CASES.glob("A*.yaml"))]
    files += [part.partition("```")[0].encode() for part in PAGE.read_text(encoding="utf-8").split("```yaml\n")[1:]]
    many = "".join(f"  - {{id: s{n}, user: hi {n}, expect: [{{final_answer_contains: x{n}}}]}}\n" for n in range(300))
    return [*files, f"scenarios:\n{many}".encode()]


class Writer:
    """`file(seed)` is a file, always the same one for a seed."""

    def __init__(self) -> None:
        self.known = known_files()

    def suite(self, seed: int) -> str | None:
        """The name under which the file of this seed is a suite; None for a case file."""
        return {0: "a.jsonl", 1: "a.yaml"}.get(seed % 8)

    def file(self, seed: int) -> bytes:
        rng = random.Random(seed)
        if self.suite(seed) is not None and rng.random() < 0.9:
            return self._rows(rng, lines=self.suite(seed) == "a.jsonl")
        kinds: list[Callable[[random.Random], bytes]] = [
            self._changed, self._changed, self._changed, _scraps, _structure, _structure, _bytes, _large,
        ]  # fmt: skip
        return rng.choice(kinds)(rng)

    def _changed(self, rng: random.Random) -> bytes:
        """A known file after up to eight changes: of bytes, of scraps, of lines, or of a piece of another file."""
        data = bytearray(rng.choice(self.known))
        for _ in range(rng.choice([1, 1, 2, 8])):
            at = rng.randint(0, len(data))
            to = min(len(data), at + rng.choice([0, 1, 2, 8, 40]))
            what = rng.randrange(6)
            if what == 0:
                data[at:to] = b""
            elif what == 1:
                data[at:at] = rng.choice(_SCRAPS).encode("utf-8", "surrogatepass")
            elif what == 2:
                data[at:to] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 3)))
            elif what == 3:
                other = rng.choice(self.known)
                start = rng.randint(0, len(other))
                data[at:to] = other[start : start + rng.choice([5, 60, 400])]
            elif what == 4:
                lines = bytes(data).split(b"\n")
                rng.shuffle(lines) if rng.random() < 0.2 else lines.insert(
                    rng.randint(0, len(lines)), rng.choice(lines)
                )
                data = bytearray(b"\n".join(lines))
            else:
                lines = bytes(data).split(b"\n")
                number = rng.randrange(len(lines))
                lines[number] = b" " * rng.randint(0, 12) + lines[number].lstrip()
                data = bytearray(b"\n".join(lines))
        return bytes(data)

    def _rows(self, rng: random.Random, *, lines: bool) -> bytes:
        """Rows with and without what they share, of which a piece may have been changed."""

        def text() -> str:
            return "".join(rng.choice(_TEXTS) for _ in range(rng.randint(1, 5))) + "x"

        shared = {
            "expect": [{"final_answer_contains": rng.choice(["${expected}", "<${n}>", "$${x}", "${metadata.a}"])}]
        }
        rows: list[dict[str, object]] = [
            {
                "input": text(),
                "expected": rng.choice([text(), 3, 1.5, True]),
                "n": number,
                "metadata": {"a": text()},
                **({"key": text().strip().replace("/", "")} if rng.random() < 0.3 else {}),
                **({"expect": [{"no_error": True}]} if rng.random() < 0.3 else {}),
            }
            for number in range(rng.choice([1, 3, 20, 400]))
        ]
        ascii_only = rng.random() < 0.5
        if lines:
            parts = [json.dumps(row, ensure_ascii=ascii_only) for row in (shared, *rows)]
            data = "\n".join(parts).encode()
        else:
            data = json.dumps({**shared, "rows": rows}, ensure_ascii=False).encode()
        if rng.random() < 0.5:
            return data
        at = rng.randrange(len(data))
        scrap = rng.choice(_SCRAPS).encode("utf-8", "surrogatepass")
        instead = scrap if rng.random() < 0.5 else b""
        return data[:at] + instead + data[at + rng.choice([0, 1, 9]) :]


def _scraps(rng: random.Random) -> bytes:
    pieces = [rng.choice(rng.choice([_SCRAPS, _WORDS])) for _ in range(rng.randint(0, 120))]
    return "".join(pieces).encode("utf-8", "surrogatepass")


def _bytes(rng: random.Random) -> bytes:
    data = rng.randbytes(rng.randint(0, 400))
    return data if rng.random() < 0.5 else b"scenarios:\n  - id: a\n" + data


def _structure(rng: random.Random) -> bytes:
    """A case with the right keys, and more or less often the wrong values; as a JSON writer writes it."""
    good = rng.choice([0.7, 0.97, 1.0])

    def text() -> str:
        found = "".join(rng.choice(_TEXTS) for _ in range(rng.randint(1, 6)))
        return found if found.strip() else "x"

    def json_value(depth: int = 0) -> object:
        what = rng.randrange(10)
        if what < 6 or depth > 5:
            return rng.choice([text(), "", " ", None, True, False, 0, -1, 3, 2.5, 1e308, -0.0, 2**64 - 1, -(2**63)])
        if what < 8:
            return [json_value(depth + 1) for _ in range(rng.randint(0, 3))]
        return {text(): json_value(depth + 1) for _ in range(rng.randint(0, 3))}

    def likely(wanted: object) -> object:
        odd = [2**70, "x" * 201, "a/b", "a\nb", "\ud800", {"agent": 1}, json_value()]
        return wanted if rng.random() < good else rng.choice(odd)

    def assertion() -> dict[str, object]:
        name, count = likely(rng.choice(["t", "shell__run", text()])), likely(rng.randint(1, 3))
        kinds: list[dict[str, object]] = [
            {"tool_called": {"name": name}}, {"tool_called": {"name": name, "args": {text(): json_value()}}},
            {"tool_not_called": {"name": name}}, {"tool_order": {"first": name, "then": "another"}},
            {"min_tool_calls": {"name": name, "count": count}}, {"max_tool_calls": {"name": name, "count": 3}},
            {"result_contains": {"name": name, "substring": likely(text())}}, {"final_answer_contains": likely(text())},
            {"final_answer_not_contains": likely(text())}, {"final_answer_max_chars": likely(rng.randint(0, 99))},
            {"hook_called": {"name": likely("tools.before"), "decision": likely("deny")}}, {"no_error": likely(True)},
            {"grader": {"name": likely("quality.answers"), "pass_below": likely(rng.uniform(-1, 1))}},
        ]  # fmt: skip
        return rng.choice(kinds)

    document: dict[str, object] = {
        "scenarios": likely(
            [
                {
                    "id": likely(f"s{number} {text().strip().replace('/', '')}".strip()),
                    "user": likely(rng.choice([text(), [text(), text()]])),
                    "expect": likely([assertion() for _ in range(rng.randint(1, 4))]),
                    **({"trials": likely(rng.randint(1, 100))} if rng.random() < 0.3 else {}),
                    **({"timeout": likely(rng.choice(["5m", "1h30m", "300", 90]))} if rng.random() < 0.3 else {}),
                }
                for number in range(rng.randint(1, 4))
            ]
        )
    }
    if rng.random() < 0.3:
        document = {"defaults": likely({"trials": 2, "timeout": "90"}), **document}
    text_ = json.dumps(document, ensure_ascii=False, indent=rng.choice([None, 1]))
    return text_.encode("utf-8", "surrogatepass")


def _large(rng: random.Random) -> bytes:
    """Up to 5 MB of one thing again and again, opened and perhaps never closed."""
    opening = rng.choice(["scenarios:\n", "scenarios: [", "", "a: &a [x]\n", "scenarios:\n- id: a\n  user: |\n"])
    piece = rng.choice(
        [
            "- {id: a, user: b, expect: [{no_error: true}]}\n", "- id: x\n", "a,", "[", "{a: ", "- - - ", "'x',",
            "a: b\n", "  text and more text\n", "*a, ", "&a [*a, ", "# comment\n", "\t", " ", "\n", "? a\n", "x", "é",
            "{<<: *a}, ", "- id: 1\n  user: x\n  expect: 3\n", "key: {tool_caled: {nam: t}}\n", "%TAG ! x\n", "!!a ",
            '"\\x41"', "\\",
        ]
    )  # fmt: skip
    size = rng.choice([1_000, 20_000, 300_000, 2_000_000, 5_000_000])
    return (opening + piece * (size // len(piece.encode()))).encode()[: 5_000_001 + rng.randrange(-1, 1)]
