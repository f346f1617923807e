"""A grader's file is the module that an import of it gives (item 21), and `t` is what a grader may ask (S27)."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

import evalfleet
from evalfleet.checks.outcome import GraderAnswer
from evalfleet.checks.trial import Trial, TurnSummary
from evalfleet.graders.check import check_graders
from evalfleet.graders.judging import about
from evalfleet.graders.pool import GraderPool, GraderSettings, LlmAnswer
from evalfleet.treeconfig import GradersConfig
from tests.graders.trees import CASE, RUN, make_tree

TURNS = [("What is the capital?", "Of which country?"), ("Italy", "Rome"), ("Sure?", None)]


def trial(turns: int = 2) -> Trial:
    played = tuple(
        TurnSummary(f"run_{number}", "chat_1", user, "succeeded", None, None, None, answer)
        for number, (user, answer) in enumerate(TURNS[:turns])
    )
    return Trial(played, (), (), "Rome", None, 3)


def graded(root: Path, name: str, settings: GraderSettings | None = None, turns: int = 2) -> GraderAnswer:
    async def llm(prompt: str, model: str | None, seconds: float) -> LlmAnswer:
        return LlmAnswer(f"0.7 for {prompt}", tokens=12)

    async def main() -> GraderAnswer:
        pool = GraderPool(workers=1, limit_s=60)
        try:
            run: dict[str, Any] = {**RUN, "turns": turns}
            return await pool.grade(root, settings or GraderSettings(), name, CASE, run, llm, about=about(trial(turns)))
        finally:
            await pool.aclose()

    return asyncio.run(main())


def why(root: Path, name: str, **more: Any) -> str:
    answer = graded(root, name, **more)
    assert answer.error is None, answer.error + answer.log
    return answer.why or ""


MODULE = """
from __future__ import annotations
import copy, dataclasses, inspect, multiprocessing, pickle, sys, typing
from concurrent.futures import ProcessPoolExecutor
from .rubric import Rubric, COUNT

@dataclasses.dataclass
class Seen:
    text: str
    rubric: Rubric | None = None

def double(seen):
    return Seen(seen.text * 2, seen.rubric)

def pickled(t, case, run):
    seen = Seen("x", Rubric(3))
    return {"pass": pickle.loads(pickle.dumps(seen)) == seen and copy.deepcopy(seen) == seen, "why": Seen.__module__}

def processes(t, case, run):
    context = multiprocessing.get_context(case["id"])
    with context.Pool(2) as pool:
        one = pool.map(double, [Seen("a"), Seen("b", Rubric(1))])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return {"pass": one == list(pool.map(double, [Seen("a"), Seen("b", Rubric(1))])), "why": one[1].text}

def source(t, case, run):
    return {"pass": "class Seen" in inspect.getsource(Seen), "why": inspect.getsource(double)}

def hints(t, case, run):
    return {"pass": typing.get_type_hints(Seen)["text"] is str, "why": __name__ + " " + __package__}

def one_copy(t, case, run):
    import evals.graders.it, evals.graders.rubric, evals.graders.beside
    same = evals.graders.it is sys.modules[__name__] and evals.graders.beside.Seen is Seen
    return {"pass": same and evals.graders.rubric.Rubric is Rubric, "why": len(COUNT)}

def answer_travels(t, case, run):
    verdict = t.llm("it")
    again = pickle.loads(pickle.dumps(verdict))
    with multiprocessing.get_context("fork").Pool(1) as pool:
        (length,) = pool.map(len, [verdict])
    return {"pass": again == verdict == copy.deepcopy(verdict) and length == len(verdict), "why": verdict}
"""
RUBRIC = """
import dataclasses, pathlib
COUNT = []
COUNT.append("imported")

@dataclasses.dataclass
class Rubric:
    points: int
"""
BESIDE = "from evals.graders.it import Seen\ndef looks(t, case, run): return Seen('x').text == 'x'\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "tree", it=MODULE, rubric=RUBRIC, beside=BESIDE)


def test_a_graders_file_is_an_imported_module_there_once(tree: Path) -> None:
    assert why(tree, "it.pickled") == "evals.graders.it"
    assert why(tree, "it.source") == "def double(seen):\n    return Seen(seen.text * 2, seen.rubric)\n"
    assert why(tree, "it.hints") == "evals.graders.it evals.graders"
    assert why(tree, "it.one_copy") == "1"
    assert graded(tree, "beside.looks").passed is True
    assert why(tree, "it.answer_travels") == "0.7 for it"


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_d07_processes_that_start_anew_find_what_the_graders_file_defines(
    tree: Path, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CASE, "id", start)
    answer = graded(tree, "it.processes")
    assert (answer.passed, answer.why) == (True, "bb"), (answer.error, answer.log)


def test_a_package_init_runs_first_and_a_file_is_not_taken_for_a_package_of_its_name(tree: Path) -> None:
    graders = tree / "evals/graders"
    (graders / "__init__.py").write_text("from evals.graders import named\nSEEN = [named.__name__]\n")
    (graders / "named.py").write_text("import evals.graders\ndef says(t, c, r): return {'pass': True, 'why': 'file'}\n")
    (graders / "named").mkdir()
    assert why(tree, "named.says") == "file"


def test_an_installed_package_called_evals_keeps_its_name_and_graders_run_all_the_same(tmp_path: Path) -> None:
    """The tree's root is the last entry of the path (S28): it hides nothing that is installed."""
    site = tmp_path / "site"
    (site / "evals").mkdir(parents=True)
    (site / "evals/__init__.py").write_text("VERSION = 'theirs'\n")
    text = "import evals\ndef says(t, case, run): return {'pass': True, 'why': evals.VERSION}\n"
    root = make_tree(tmp_path / "tree", it=text)
    assert why(root, "it.says", settings=python_with(site, tmp_path)) == "theirs"


OF_OUR_NAMES = """
import multiprocessing
import scheduler, worker.rules
from worker.rules import Rule

def says(t, case, run):
    return {"pass": True, "why": f"{scheduler.OF} {Rule('yes').text} {worker.rules.__file__}"}

def spawned(t, case, run):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (rule,) = pool.map(Rule, ["anew"])
    return {"pass": type(rule) is Rule, "why": rule.text}
"""


@pytest.fixture
def named_as_ours(tmp_path: Path) -> Path:
    """A tree with a package `scheduler`, and a folder `worker` without an `__init__.py`."""
    root = make_tree(tmp_path / "tree", it=OF_OUR_NAMES)
    (root / "scheduler").mkdir()
    (root / "scheduler/__init__.py").write_text("OF = 'the tree'\n")
    (root / "worker").mkdir()
    (root / "worker/rules.py").write_text("class Rule:\n    def __init__(self, text): self.text = text\n")
    return root


@pytest.mark.parametrize("where", ["beside evalfleet", "an interpreter with evalfleet"])
def test_item_16_packages_of_the_tree_with_our_names_are_the_trees(
    named_as_ours: Path, tmp_path: Path, where: str
) -> None:
    """On our own interpreter, where evalfleet is installed, and on one of the user's that has it among its packages."""
    settings = GraderSettings()
    if where == "an interpreter with evalfleet":
        settings = python_with(site_of(tmp_path, "evalfleet", "scheduler", "worker"), tmp_path)
    assert why(named_as_ours, "it.says", settings=settings) == f"the tree yes {named_as_ours}/worker/rules.py"
    assert why(named_as_ours, "it.spawned", settings=settings) == "anew"
    config = GradersConfig(python=settings.python, files=("scheduler/**", "worker/**"))
    assert check_graders(named_as_ours, [("it.says", "a.yaml:1:1")], config) == []


def test_a_package_with_our_name_that_is_not_ours_keeps_its_place_on_the_path(
    named_as_ours: Path, tmp_path: Path
) -> None:
    """What is installed comes before the tree (S28), and what the grader puts in front before both."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "scheduler.py").write_text("OF = 'an installed one'\n")
    (site / "first").mkdir()
    (site / "first/worker.py").write_text("OF = 'the first'\n")
    text = f"""
import sys
sys.path.insert(0, {str(site / "first")!r})
import scheduler, worker
def says(t, case, run): return {{"pass": True, "why": f"{{scheduler.OF}}, {{worker.OF}}"}}
"""
    make_tree(named_as_ours, it=text)
    assert why(named_as_ours, "it.says", settings=python_with(site, tmp_path)) == "an installed one, the first"


def site_of(tmp_path: Path, *packages: str) -> Path:
    """A folder of installed packages with these of ours."""
    site = tmp_path / "site-packages"
    site.mkdir()
    for name in packages:
        (site / name).symlink_to(Path(evalfleet.__file__).parents[1] / name)
    return site


def python_with(site: Path, tmp_path: Path) -> GraderSettings:
    """Our interpreter with the packages of `site` in front of its own."""
    python = tmp_path / "python"
    code = f"import runpy, sys; sys.path.insert(0, {str(site)!r}); sys.argv = sys.argv[1:]; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    python.write_text(f'#!/bin/sh\nwhile [ "${{1#-}}" != "$1" ] || [ "$1" = utf8 ]; do shift; done\n'
                      f'exec {sys.executable} -I -X utf8 -c "{code}" "$@"\n')  # fmt: skip
    python.chmod(0o755)
    return GraderSettings(python=str(python))


T = """
def run_id(t, case, run):
    return {"pass": True, "why": t.run_id}

def history(t, case, run):
    said = [f"{turn['tag']} {turn['role']}: {turn['text']}" for turn in t.history]
    same = t.history == t.history.tail() == t.history.tail(99) and t.history.tail(0) == []
    tags = [turn["tag"] for turn in t.history] == t.history.tags
    one = t.history.get("1.user") == t.history.tail(2)[0] and t.history.get("7.user") is None
    return {"pass": same and tags and one, "why": " | ".join(said)}

def unanswered(t, case, run):
    return {"pass": t.history.tags == ["0.user", "0.assistant", "1.user", "1.assistant", "2.user"]}

def store(t, case, run):
    return t.store.get("x")

def tool(t, case, run):
    return t.tool("ls")

def unheard(t, case, run):
    return t.llms("x")

def rewind(t, case, run):
    return t.history.rewind("0.user")
"""


def test_s27_t_has_the_run_id_and_the_history_of_the_scenario_as_the_platform_gives_them(tmp_path: Path) -> None:
    root = make_tree(tmp_path, it=T)
    assert why(root, "it.run_id") == "run_1"
    assert why(root, "it.history") == (
        "0.user user: What is the capital? | 0.assistant assistant: Of which country? | "
        "1.user user: Italy | 1.assistant assistant: Rome"
    )
    assert graded(root, "it.unanswered", turns=3).passed is True
    last = about(trial())["history"][-1]
    assert last["text"] is None, "the final answer, which may be of megabytes, travels once"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "store",
            "t.store is the platform's, and a self-hosted harness has none; t has llm(prompt, model=None), run_id",
        ),
        ("tool", "t.tool is the platform's, and a self-hosted harness has none; t has llm("),
        ("unheard", "t.llms is not there; t has llm(prompt, model=None), run_id and history"),
        (
            "rewind",
            "t.history has no 'rewind': a self-hosted harness has a list to read, with tail(n), tags, get(tag)",
        ),
    ],
)
def test_s27_what_a_self_hosted_harness_has_not_is_said_in_one_sentence(
    tmp_path: Path, name: str, sentence: str
) -> None:
    answer = graded(make_tree(tmp_path, it=T), f"it.{name}")
    assert answer.kind == "error"
    assert f"AttributeError: {sentence}" in (answer.error or "")
