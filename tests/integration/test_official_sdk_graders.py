"""The same graders on the platform's own server of a tree (`splox.toolkit.toolserve`) and in our cage: what each makes
of an answer (S24) and of what a file holds (S6). Where they differ the table says so, and docs/graders.md."""

from __future__ import annotations

import asyncio
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalfleet.checks.outcome import GraderAnswer
from evalfleet.graders.check import check_graders
from evalfleet.graders.pool import GraderPool, GraderSettings
from evalfleet.treeconfig import GradersConfig
from tests.graders.trees import CASE, RUN, make_tree

pytestmark = pytest.mark.integration

GRADERS = """
import decimal, fractions, types
from json import dumps

class Reply(str):
    tokens = 3
class Shape(dict):
    pass

def reply(t, case, run): return {"pass": True, "score": 0.5, "why": Reply("fine")}
def number(t, case, run): return {"pass": False, "why": 3}
def whole(t, case, run): return {"pass": True, "score": 85}
def more(t, case, run): return {"pass": True, "score": None, "confidence": 0.1}
def plain(t, case, run): return case["id"] == "says" and run["turns"] == 1
def shaped(t, case, run): return Shape({"pass": True})
def nothing(t, case, run): return None
def one(t, case, run): return 1
def text(t, case, run): return {"pass": True, "score": "0.9"}
def truth(t, case, run): return {"pass": True, "score": True}
def raises(t, case, run): raise ValueError("no such room")
def exact(t, case, run): return {"pass": True, "score": decimal.Decimal("0.7")}
def half(t, case, run): return {"pass": True, "score": fractions.Fraction(1, 2)}
def proxy(t, case, run): return types.MappingProxyType({"pass": True})
def unknown(t, case, run): return {"pass": True, "score": float("nan")}
def two(t, case): return True
def run_id(t, case, run): return {"pass": True, "why": type(t.run_id).__name__ + type(t.history.tail(0)).__name__}
"""
SAME: dict[str, tuple[bool, float | None, str | None] | None] = {
    "reply": (True, 0.5, "fine"),
    "number": (False, None, "3"),
    "whole": (True, 85.0, None),
    "more": (True, None, None),
    "plain": (True, None, None),
    "shaped": (True, None, None),
    "nothing": None,
    "one": None,
    "text": None,
    "truth": None,
    "raises": None,
    "run_id": (True, None, "strlist"),
}
"""Grader → (pass, score, why) by both; None: an error by both."""
OURS_ONLY: dict[str, tuple[bool, float | None, str | None]] = {
    "exact": (True, 0.7, None),
    "half": (True, 0.5, None),
    "proxy": (True, None, None),
}
"""Taken here and refused there."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_tree(tmp_path_factory.mktemp("graders"), it=GRADERS)
    (root / "tools").mkdir()
    return root


@pytest.fixture(scope="module")
def platform(tree: Path, strangers: str) -> Iterator[str]:
    """The address of the platform's server of this tree."""
    argv = [strangers, "-P", "-m", "splox.toolkit.toolserve", "--dir", str(tree / "tools"), "--port", "0"]
    environment = {"PATH": "/usr/bin:/bin", "SPLOX_TOOLSERVER_TOKEN": "t"}
    with subprocess.Popen(argv, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}/rpc"
        finally:
            process.kill()


def theirs(address: str, name: str) -> dict[str, Any]:
    body = {"op": "grade", "name": name, "case": CASE, "run": RUN}
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Authorization": "Bearer t"}, method="POST")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def ours(tree: Path, names: list[str]) -> dict[str, GraderAnswer]:
    async def main() -> dict[str, GraderAnswer]:
        pool = GraderPool(workers=1, limit_s=60)
        try:
            return {name: await pool.grade(tree, GraderSettings(), f"it.{name}", CASE, RUN, None) for name in names}
        finally:
            await pool.aclose()

    return asyncio.run(main())


def test_s24_the_same_answers_mean_the_same_on_the_platform_and_here(tree: Path, platform: str) -> None:
    here = ours(tree, [*SAME, *OURS_ONLY, "unknown", "two"])
    for name, wanted in SAME.items():
        there = theirs(platform, f"it.{name}")
        answer = here[name]
        assert (wanted is None) == there["is_error"] == (answer.kind == "error"), (name, there, answer)
        if wanted is not None:
            result = there["result"]
            assert (result["pass"], result.get("score"), result.get("why")) == wanted, name
            assert (answer.passed, answer.score, answer.why) == wanted, name
    for name, taken in OURS_ONLY.items():
        assert theirs(platform, f"it.{name}")["is_error"], name
        assert (here[name].passed, here[name].score, here[name].why) == taken, name
    assert theirs(platform, "it.unknown")["is_error"] is False, "NaN passes there"
    assert here["unknown"].kind == "error"
    assert theirs(platform, "it.two")["is_error"]
    assert "it is called with three arguments" in (here["two"].error or "")


def test_s6_what_a_file_only_imports_and_classes_are_graders_on_neither(tree: Path, platform: str) -> None:
    names = ["it.dumps", "it.Reply", "it.gone"]
    for name in names:
        assert "unknown grader" in theirs(platform, name)["error"]
    problems = check_graders(tree, [(name, "c.yaml:1:1") for name in names], GradersConfig())
    assert [problem.name for problem in problems] == names
