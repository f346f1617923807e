"""S6: a grader that cannot be called is refused before anything runs, and its file never runs in our process."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from evalfleet.errors import UnfitHost
from evalfleet.graders.cage import GraderSettings
from evalfleet.graders.check import GraderProblem, asking, check_graders, check_graders_by_ast, resolve_python
from evalfleet.treeconfig import GradersConfig
from tests.graders.trees import case_tree, make_tree

PLACE = "evals/cases/tone.yaml:7:17"
GOOD = """
import functools
from collections import OrderedDict
def answers(t, case, run): return True
def polite(t, case, run): return True
def _private(t, case, run): return True
async def waits(t, case, run): return True
number = 3
later = functools.partial(answers)
if number:
    def chosen(t, case, run): return True
"""


def _messages(problems: list[GraderProblem]) -> dict[str, str]:
    assert all(problem.place == PLACE for problem in problems)
    return {problem.name: problem.message for problem in problems}


def test_names_that_hold_no_callable_are_refused_with_a_near_one(tmp_path: Path) -> None:
    root = make_tree(tmp_path, quality=GOOD)
    names = [
        "quality.answers",
        "quality.later",
        "quality.chosen",
        "quality.answrs",
        "qualty.answers",
        "quality._private",
        "quality.waits",
        "quality.number",
        "quality.answers.more",
    ]
    messages = _messages(check_graders(root, [(name, PLACE) for name in names], GradersConfig()))
    assert list(messages) == names[3:]
    assert messages["quality.answrs"].endswith("has no public function 'answrs'; did you mean \"answers\"?")
    assert messages["qualty.answers"] == 'there is no evals/graders/qualty.py; did you mean "quality"?'
    assert "no public function '_private'" in messages["quality._private"]
    assert "waits is an `async def`" in messages["quality.waits"]
    assert "no public function 'number'" in messages["quality.number"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("syntax", r"^evals/graders/syntax\.py does not import: SyntaxError: .*line 1\)$"),
        ("quit", r"does not import: called sys\.exit\(0\)"),
        ("slow", r"does not import: ran over its 0\.5 s"),
    ],
)
def test_f06_a_file_that_does_not_import_is_refused_in_pythons_words(tmp_path: Path, name: str, message: str) -> None:
    root = case_tree(tmp_path, f"F06/{name}")
    (problem,) = check_graders(root, [(f"{name}.answers", PLACE)], GradersConfig(), limit=0.5)
    assert problem.name == f"{name}.answers"
    assert re.search(message, problem.message)
    assert problem.render().startswith(PLACE)


def test_f06_names_of_the_standard_library_and_vandalism_at_import_are_fine(tmp_path: Path) -> None:
    root = case_tree(tmp_path, "F06/json", "F06/env")
    assert check_graders(root, [("json.answers", PLACE), ("env.answers", PLACE)], GradersConfig()) == []
    assert "_grader_json" not in sys.modules


def test_importing_happens_elsewhere(tmp_path: Path) -> None:
    root = make_tree(tmp_path, spy="import sys; sys.modules['evalfleet_was_here'] = sys\ndef a(t, c, r): return True\n")
    assert check_graders(root, [("spy.a", PLACE)], GradersConfig()) == []
    assert "evalfleet_was_here" not in sys.modules


def test_a_module_of_the_graders_own_folder_is_off_the_path_and_the_sentence_says_what_to_do(tmp_path: Path) -> None:
    root = make_tree(tmp_path, quality="import shared\n", shared="def a(t, c, r): return True\n")
    (problem,) = check_graders(root, [("quality.answers", PLACE)], GradersConfig())
    assert "No module named 'shared'" in problem.message
    assert "import evals.graders.shared instead" in problem.message


def test_an_interpreter_that_is_not_there_is_the_operators(tmp_path: Path) -> None:
    root = make_tree(tmp_path, quality=GOOD)
    with pytest.raises(UnfitHost, match=r"no/python.*`python` under \[graders\]"):
        check_graders(root, [("quality.answers", PLACE)], GradersConfig(python="no/python"))


def test_an_interpreter_is_a_path_from_the_root_or_a_bare_name(tmp_path: Path) -> None:
    assert resolve_python(None, tmp_path) is None
    assert resolve_python("python3.12", tmp_path) == "python3.12"
    assert resolve_python(".venv/bin/python", tmp_path) == str(tmp_path.resolve() / ".venv/bin/python")
    assert resolve_python("/usr/bin/python3", tmp_path) == "/usr/bin/python3"
    assert GraderSettings().python is None


def test_by_ast_the_same_is_seen_as_far_as_text_shows_it(tmp_path: Path) -> None:
    root = make_tree(tmp_path, quality=GOOD, star="from quality import *\n", bad="def x(:\n", nul="a = 1\0\n")
    names = [
        "quality.answers",
        "quality.later",
        "quality.chosen",
        "quality.answrs",
        "qualty.answers",
        "quality._private",
        "quality.waits",
        "bad.x",
        "nul.x",
        "star.anything",
        "star._hidden",
    ]
    messages = _messages(check_graders_by_ast(root, [(name, PLACE) for name in names]))
    assert list(messages) == names[3:]
    assert "did you mean" in messages["quality.answrs"]
    assert "async def" in messages["quality.waits"]
    assert "bad.py does not import: SyntaxError" in messages["bad.x"]


def test_by_ast_nothing_is_run(tmp_path: Path) -> None:
    root = case_tree(tmp_path, "F06/quit", "F06/slow")
    assert check_graders_by_ast(root, [("quit.answers", PLACE), ("slow.answers", PLACE)]) == []


MANY = """
import functools
import json
from evals.graders.base import polite, polite as kind
from evals.graders.base import *
from functools import reduce
from .base import polite as near
from typing import NamedTuple

class Rubric: pass
class Shown(NamedTuple):
    text: str
def two(t, case): return True
def four(t, case, run, more): return True
def keyword(t, case, run, *, limit): return True
def defaults(t, case, run, limit=3, *, strict=False): return True
def anything(*args): return True
def named_only(*, t, case, run): return True
def none(): return True
def waits(t, case, run):
    yield True
short = lambda t: True
fine = lambda t, case, run, *more: True
limit = 3
names = [print]

def with_room(function):
    @functools.wraps(function)
    def call(t, case, run):
        return function(t, case, run, "room 1")
    return call

def bare(function):
    return functools.partial(function, limit=3)

@with_room
def roomy(t, case, run, room): return bool(room)
@bare
def partly(t, case, run, limit): return True
@functools.lru_cache
def cached(t, case, run): return True
made = with_room(four)
answers = polite
class Called:
    def __call__(self, t, case, run): return True
class CalledWith:
    def __call__(self, t, case): return True
called, called_with = Called(), CalledWith()
try:
    from fast_judge import compared
except ImportError:
    def compared(t, case, run): return True
globals()["dynamic"] = lambda t, case, run: True
"""
THREE = "it is called with three arguments: t, case, run"
CALL_BASE = (
    "is only imported there, from evals.graders.base; a grader is called by the file that defines it: call base."
)
REFUSED = {
    "polite": CALL_BASE + "polite",
    "kind": CALL_BASE + "polite",
    "near": "is only imported there, from .base; a grader is called by the file that defines it: call base.polite",
    "json": "is only imported there, from json;",
    "reduce": "is only imported there, from functools;",
    "Rubric": "is a class; a grader is a function",
    "Shown": "is a class",
    "two": f"takes 2 arguments; {THREE}",
    "four": f"needs 4 arguments; {THREE}",
    "keyword": f"needs the keyword argument 'limit'; {THREE}",
    "named_only": f"needs the keyword argument 't'; {THREE}",
    "none": f"takes no argument; {THREE}",
    "short": f"takes 1 argument; {THREE}",
    "limit": "has no public function 'limit'",
    "names": "has no public function 'names'",
    "nowhere": "has no public function 'nowhere'",
}
ONLY_RUN = {"waits": "is a generator", "called_with": f"takes 2 arguments; {THREE}"}
"""What the text alone does not show."""
TAKEN = ["defaults", "anything", "fine", "roomy", "partly", "cached", "made", "answers", "called", "compared"]


@pytest.mark.parametrize("by_ast", [False, True], ids=["imported", "read"])
def test_s6_what_is_only_imported_a_class_or_cannot_be_called_with_three_arguments_is_no_grader(
    tmp_path: Path, by_ast: bool
) -> None:
    """Item 13: before anything runs, and on a machine that only reads the file as well."""
    base = "def polite(t, case, run): return True\ndef starred(t, case, run): return True\n"
    root = make_tree(tmp_path, many=MANY, base=base)
    names = [(f"many.{name}", PLACE) for name in [*REFUSED, *ONLY_RUN, "starred", *TAKEN, "dynamic"]]
    found = check_graders_by_ast(root, names) if by_ast else check_graders(root, names, GradersConfig())
    messages = {name.partition(".")[2]: message for name, message in _messages(found).items()}
    more = {"dynamic": "has no public", "starred": "has no public"} if by_ast else {"starred": "is only imported there"}
    wanted = REFUSED | more | ({} if by_ast else ONLY_RUN)
    if not by_ast:
        wanted |= {"json": "has no public function 'json'"}  # a module is nothing that could be called
    assert messages.keys() == wanted.keys()
    for name, message in wanted.items():
        assert message in messages[name]
        assert messages[name].startswith("evals/graders/many.py")


def test_s26_a_text_shows_which_graders_cannot_ask_the_judge(tmp_path: Path) -> None:
    """Item 23: only what may call t.llm waits for a judge that is away, or needs its key."""
    text = """
import functools
def plain(t, case, run): return run["final_answer"] == "x"
def about(t, case, run): return t.run_id != "" and len(t.history) == 2
def asks(t, case, run): return t.llm("?") == "yes"
def hands_on(t, case, run): return helper(t)
def hides(t, case, run): return eval("t.llm('?')")
def unnamed(*args): return True
@functools.lru_cache
def decorated(t, case, run): return True
later = functools.partial(plain)
"""
    root = make_tree(tmp_path, it=text, newer="def f(:\n")
    names = ["plain", "about", "asks", "hands_on", "hides", "unnamed", "decorated", "later", "unheard_of"]
    asked = asking(root, [*(f"it.{name}" for name in names), "newer.f", "gone.f"])
    assert set(asked) == {f"it.{name}" for name in names[2:]} | {"newer.f", "gone.f"}
