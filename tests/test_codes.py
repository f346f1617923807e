"""Is every code that says why something has no result, or why a turn failed, on its page?"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from evalfleet.checks.outcome import INFRA_CODES

ROOT = Path(__file__).parent.parent
WITHOUT_A_RESULT = {"_NoResult": 1, "GaveUp": 2, "entry": 1, ".give_up": 3, "._note_left": 4}
"""What makes a try or an attempt one without a result (a method with its dot) → the place of the code among
the arguments."""
FAILED = {"Failure": 0, "Broken": 0}


def said(source: Path, makers: Mapping[str, int]) -> Iterator[str]:
    """The codes that a file gives to these makers, by word or by the name of a constant, in a call or as a default; and
    those that it puts under "code" into a line of the artifact. A variable's code was said where it was made."""
    text = source.read_text(encoding="utf-8")
    names = [rf"{re.escape(name)}\b" for name in (*makers, "RunMeaning")]
    if not re.search("|".join([*names, '"code": ']), text):
        return
    for node in ast.walk(ast.parse(text)):
        code: ast.expr | None = None
        match node:
            case ast.Call(func=func, args=args, keywords=keywords):
                name = f".{func.attr}" if isinstance(func, ast.Attribute) else ast.unparse(func)
                at = 2 if name == "RunMeaning" and "NO_RESULT" in ast.dump(args[0]) else makers.get(name, len(args))
                given = [keyword.value for keyword in keywords if keyword.arg == "code" and name in makers]
                code = args[at] if at < len(args) else next(iter(given), None)
            case ast.FunctionDef(args=ast.arguments(args=arguments, defaults=defaults)) if f".{node.name}" in makers:
                with_default = arguments[len(arguments) - len(defaults) :]
                found = [value for one, value in zip(with_default, defaults, strict=True) if one.arg == "code"]
                code = next(iter(found), None)
            case ast.Dict(keys=[None, ast.Constant(value="code")], values=[_, value]):
                code = value
        if isinstance(code, ast.Constant) and code.value:
            yield str(code.value)
        elif isinstance(code, ast.Name):
            module = importlib.import_module(".".join(source.relative_to(ROOT).with_suffix("").parts))
            if isinstance(constant := getattr(module, code.id, None), str):
                yield constant


def rows(page: str, heading: str) -> set[str]:
    """The codes in the first column of the table below a heading."""
    below = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return {code for row in re.findall(r"^\| (`[^|]+) \|", below, re.MULTILINE) for code in re.findall(r"`(\S+)`", row)}


def test_every_code_of_what_has_no_result_is_in_operations_and_no_other() -> None:
    sources = [path for room in ("evalfleet", "scheduler", "worker") for path in sorted((ROOT / room).rglob("*.py"))]
    codes = {code for source in sources for code in said(source, WITHOUT_A_RESULT)}
    assert {"journal_hole", "left", "worker_lost", "left_out", "not_terminal", "record_refused", "fault"} <= codes
    assert rows("operations.md", "What has no result, by its code") == codes | INFRA_CODES


def test_every_code_of_a_failed_turn_that_our_server_gives_is_in_agents() -> None:
    codes = {code for source in sorted((ROOT / "evalfleet/server").rglob("*.py")) for code in said(source, FAILED)}
    assert {"agent_exit", "agent_protocol", "server_lost", "harness_changed"} <= codes
    assert codes - rows("agents.md", "What a failed turn is called") == set()
