"""Everything that would refuse a run is told at once, with its place, and nothing has run (S2, S6, A*, B13, B18)."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalfleet.checks.case import parse_case
from evalfleet.errors import CaseFilesInvalid, ConfigError, EvalfleetError, OperatorError, UnfitHost
from evalfleet.graders.rest import MAX_REST_BYTES
from evalfleet.server.trees import check_judges, read_tree
from scheduler.init import init
from scheduler.prepare import prepare
from scheduler.validate import check_writable, validate

CASES = Path(__file__).parent.parent / "cases"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    init(root)
    return root


def case(root: Path, name: str, text: str) -> None:
    (root / "evals" / "cases" / f"{name}.yaml").write_text(text)


def settings(root: Path, text: str) -> None:
    (root / "evalfleet.toml").write_text(text)


RUNNABLE = f'[harness.command]\nargv = ["{sys.executable}", "agent.py"]\n'


def linked(root: Path, path: str, to: str) -> None:
    """A link in the place of what is there."""
    (root / path).unlink(missing_ok=True)
    (root / path).symlink_to(to)


GOOD_CASE = "scenarios:\n  - {id: a, user: hi, expect: [final_answer_contains: x]}\n"

FAULTS: list[tuple[str, Callable[[Path], object], str]] = [
    ("no harness", lambda r: settings(r, "[eval]\n"), "evalfleet.toml says no harness"),
    ("no settings file", lambda r: (r / "evalfleet.toml").unlink(), "evalfleet.toml says no harness"),
    (
        "a harness without a way to run",
        lambda r: settings(r, "[harness]\nname = 'x'\n"),
        "says no way to run the harness",
    ),
    (
        "a command that is not there",
        lambda r: settings(r, '[harness.command]\nargv=["no-such-program-here"]\n'),
        "no-such-program-here is not on PATH",
    ),
    ("a script that is not there", lambda r: (r / "agent.py").unlink(), "agent.py is not there"),
    (
        "an unknown key",
        lambda r: settings(r, RUNNABLE + "[eval]\nconcurency = 3\n"),
        "evalfleet.toml:4:1: unknown key 'concurency'",
    ),
    ("concurrency 0 (B18)", lambda r: settings(r, RUNNABLE + "[eval]\nconcurrency = 0\n"), "from 1 to 100000, not 0"),
    ("a target and no harness", lambda r: settings(r, "[target]\nharness_id = 'h_1'\n"), "--target sends the runs"),
    ("no evals/", lambda r: shutil.rmtree(r / "evals"), "has no evals/"),
    ("no cases (B13)", lambda r: (r / "evals/cases/first.yaml").unlink(), "holds no case"),
    ("a case that is no YAML", lambda r: case(r, "bad", "scenarios: [\n"), "evals/cases/bad.yaml:"),
    ("an unknown grader", lambda r: (r / "evals/graders/first.py").unlink(), "evals/cases/first.yaml:20:"),
    (
        "a grader that does not import",
        lambda r: (r / "evals/graders/first.py").write_text("import no_such_module_here\n"),
        "no_such_module_here",
    ),
    ("a grader without the function", lambda r: (r / "evals/graders/first.py").write_text("x = 1\n"), "tells_the_time"),
    (
        "a case that is a link to nothing",
        lambda r: linked(r, "evals/cases/a.yaml", "gone"),
        "a link that leads nowhere",
    ),
    (
        "a glob for the harness that finds nothing",
        lambda r: settings(r, f'[harness]\nfiles = ["agnet.py"]\n{RUNNABLE}'),
        "[harness] files: 'agnet.py' finds no file",
    ),
    ("results that are a file", lambda r: (r / "evals/results").write_text(""), "results cannot be written to"),
]


@pytest.mark.parametrize(("fault", "wanted"), [(f, w) for _, f, w in FAULTS], ids=[name for name, _, _ in FAULTS])
def test_what_would_refuse_a_run_is_told(tree: Path, fault: Callable[[Path], object], wanted: str) -> None:
    fault(tree)
    found = validate(tree)
    assert not found.ok
    assert wanted in found.render()
    assert found.render().endswith("1 problem; nothing can run")
    with pytest.raises(EvalfleetError) as caught:
        found.raise_if_refused()
    assert caught.value.exit_code == 2
    assert wanted in str(caught.value)


GRADER = "evals/graders/first.py"
LINKS: list[tuple[str, list[tuple[str, str]], str]] = [
    ("links to a folder, to nothing, to itself, out of the tree", [
        ("shared", "evals"), ("gone.py", "u@host.1:2"), ("loop.py", "loop.py"), ("out.py", "/usr/bin/env"),
        (".#agent.py", "u@host.1:2"), ("evals/cases/.#first.yaml", "u@host.1:2"), ("evals/graders/.#first.py", "u@h.1"),
        ("evals/graders/loop", "loop"), ("evals/cases/loop", "loop"), ("evals/cases/folder.yaml", "../graders"),
    ], ""),
    ("a grader that a case calls, to nothing", [(GRADER, "old.py")], "first.py is a link that leads nowhere, to old"),
    ("a grader that a case calls, to itself", [(GRADER, "first.py")], "first.py is a link that leads nowhere"),
    ("a grader that a case calls, out of the tree", [(GRADER, "/usr/bin/env")], "first.py is a link that leads out of"),
    ("settings, to nothing", [("evalfleet.toml", "old.toml")], "evalfleet.toml: is a link that leads nowhere, to old"),
    ("settings, to themselves", [("evalfleet.toml", "evalfleet.toml")], "Too many levels of symbolic links"),
]  # fmt: skip


@pytest.mark.parametrize(("links", "wanted"), [row[1:] for row in LINKS], ids=[row[0] for row in LINKS])
def test_n10_validate_plan_and_server_refuse_the_same_links(
    tree: Path, tmp_path: Path, links: list[tuple[str, str]], wanted: str
) -> None:
    for path, to in links:
        linked(tree, path, to)

    def plan() -> None:
        prepare(
            tree, (), trials=None, concurrency=None, drafts=None, on_target=False, results=None,
            environment={"PATH": os.environ["PATH"]},
        )  # fmt: skip

    def serve() -> None:
        check_judges(tree)
        read_tree(tree, state=tmp_path / "state").files()

    looks: tuple[Callable[[], None], ...] = (lambda: validate(tree).raise_if_refused(), plan, serve)
    for look in looks:
        if wanted:
            with pytest.raises(EvalfleetError, match=re.escape(wanted)) as caught:
                look()
            assert caught.value.exit_code == 2
        else:
            look()


def test_n10_a_file_of_graders_that_leads_nowhere_is_warned_of(tree: Path) -> None:
    linked(tree, "evals/graders/words.txt", "../gone/words.txt")
    found = validate(tree)
    assert found.ok
    assert "evals/graders/words.txt:1:1: this link leads nowhere, to ../gone/words.txt" in found.render()


def test_everything_is_told_at_once(tree: Path) -> None:
    case(tree, "bad1", "scenarios: [\n")
    case(tree, "bad2", GOOD_CASE.replace("expect", "expects"))
    (tree / "agent.py").unlink()
    (tree / "evals/graders/first.py").unlink()
    (tree / "evals/results").write_text("")
    said = validate(tree).render()
    for wanted in (
        "bad1.yaml",
        "bad2.yaml",
        "agent.py is not there",
        "first.tells_the_time",
        "results cannot be written",
    ):
        assert wanted in said
    with pytest.raises(CaseFilesInvalid, match=r"agent\.py is not there"):
        validate(tree).raise_if_refused()


def test_errors_beside_the_case_files_come_as_one(tree: Path) -> None:
    (tree / "agent.py").unlink()
    (tree / "evals/results").write_text("")
    with pytest.raises(OperatorError) as caught:
        validate(tree).raise_if_refused()
    assert "agent.py is not there" in str(caught.value)
    assert "results cannot be written" in str(caught.value)


def test_settings_that_cannot_be_read_do_not_hide_the_cases(tree: Path) -> None:
    settings(tree, "[eval\n")
    case(tree, "bad", "scenarios: [\n")
    found = validate(tree)
    assert found.config is None
    assert "evalfleet.toml:1:6: not TOML" in found.render()
    assert "bad.yaml" in found.render()
    assert [type(error) for error in found.errors] == [ConfigError]


def test_a_grader_problem_stands_at_the_cases_line(tree: Path) -> None:
    (tree / "evals/graders/first.py").unlink()
    problem = validate(tree).problems[0]
    assert problem.place.line == 20
    assert "grader: {name: first.tells_the_time" in problem.render()
    assert "evals/graders/first.py" in problem.message


def test_a_machine_without_the_graders_environment_only_reads_them_s6(tree: Path) -> None:
    grader = tree / "evals/graders/first.py"
    grader.write_text("import no_such_module_here\n" + grader.read_text())
    assert not validate(tree).ok
    assert validate(tree, import_graders=False).ok


def test_importing_a_grader_happens_in_no_process_of_ours(tree: Path) -> None:
    grader = tree / "evals/graders/first.py"
    grader.write_text("import sys\nsys.modules['evalfleet_was_here'] = sys\n" + grader.read_text())
    assert validate(tree).ok
    assert "evalfleet_was_here" not in sys.modules


def test_warnings_do_not_refuse(tree: Path) -> None:
    case(tree, "calm", "scenarios:\n  - {id: a, user: hi, expect: [final_answer_not_contains: x]}\n")
    found = validate(tree)
    assert found.ok
    found.raise_if_refused()
    assert found.render().splitlines()[0].startswith("warning: evals/cases/calm.yaml:")
    assert found.render().endswith("2 cases, 3 scenarios: ready to run, 1 warning")


def test_what_is_not_chosen_is_no_reason_to_refuse_the_rest_a11(tree: Path) -> None:
    long = "x" * 4_000_000
    case(tree, "large", f"scenarios:\n  - {{id: a, user: &x '{long}', expect: [final_answer_contains: x]}}\n")
    case(tree, "huge", f"scenarios:\n  - {{id: a, user: [&x '{long}', *x, *x, *x, *x], expect: [no_error: true]}}\n")
    assert "huge/a alone makes an evaluation of 19.1 MiB" in validate(tree).render()
    assert validate(tree, words=["first", "large"]).ok
    assert "did you mean 'first'" in validate(tree, words=["fisrt"]).render()


def test_the_name_of_a_refused_case_is_not_called_unknown(tree: Path) -> None:
    case(tree, "bad", "scenarios: [\n")
    said = validate(tree, words=["bad"]).render()
    assert "no case matches" not in said
    assert said.endswith("1 problem; nothing can run")


def test_a_target_needs_its_settings_and_its_key_s40(tree: Path) -> None:
    assert "--target needs a [target]" in validate(tree, target=True, environment={}).render()
    settings(tree, "[target]\nharness_id = 'h_1'\n")
    assert "SPLOX_BASE_URL is not set" in validate(tree, target=True, environment={}).render()
    environment = {"SPLOX_BASE_URL": "https://p.example/api"}
    assert "SPLOX_API_KEY is not set" in validate(tree, target=True, environment=environment).render()
    assert validate(tree, target=True, environment={**environment, "SPLOX_API_KEY": "k"}).ok


def test_a_target_of_a_profile_needs_that_profiles_key_and_an_address_that_is_its_own(tree: Path) -> None:
    settings(tree, "[target]\nharness_id = 'h_1'\nprofile = 'acme-eu'\n")
    keys = {"SPLOX_API_KEY": "k", "SPLOX_API_KEY_OTHER": "k"}
    said = validate(tree, target=True, environment=keys).render()
    assert "SPLOX_BASE_URL_ACME_EU is not set" in said
    address = {"SPLOX_BASE_URL_ACME_EU": "https://p.example/api"}
    said = validate(tree, target=True, environment={**keys, **address}).render()
    assert "SPLOX_API_KEY_ACME_EU is not set: runs that go to a platform need its key of the profile 'acme-eu'" in said
    whole = {**keys, **address, "SPLOX_API_KEY_ACME_EU": "k"}
    assert validate(tree, target=True, environment=whole).ok
    settings(tree, "[target]\nharness_id = 'h_1'\nprofile = 'acme-eu'\nbase_url = 'https://q.example/api'\n")
    said = validate(tree, target=True, environment=whole).render()
    assert "SPLOX_BASE_URL_ACME_EU: is https://p.example/api, and runs would go to https://q.example/api" in said


def test_drafts_are_looked_at_like_cases_and_need_none_beside_them_s7(tree: Path) -> None:
    (tree / "evals/cases/first.yaml").unlink()
    good = parse_case(GOOD_CASE.encode(), name="draft", file="<stdin>")
    assert validate(tree, drafts=good).ok
    assert [c.name for c in validate(tree, drafts=good).cases] == ["draft"]
    graded = GOOD_CASE.replace("final_answer_contains: x", "grader: {name: first.nothing}")
    found = validate(tree, drafts=parse_case(graded.encode(), name="draft", file="<stdin>"))
    assert "<stdin>:2:" in found.render()
    assert "'nothing'" in found.render()
    assert "<stdin>:1:" in validate(tree, drafts=parse_case(b"[", name="draft", file="<stdin>")).render()


def test_nothing_is_left_behind(tree: Path) -> None:
    before = sorted(path for path in tree.rglob("*"))
    validate(tree)
    assert sorted(path for path in tree.rglob("*")) == before


def test_a_folder_that_is_not_there_yet_is_looked_at_through_its_parent(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").write_text("")
    with pytest.raises(UnfitHost, match=r"\(at .*/a\): a file stands in the way"):
        check_writable(tmp_path / "a" / "b")


def test_the_document_for_json_says_the_same(tree: Path) -> None:
    case(tree, "bad", "scenarios: [\n")
    (tree / "agent.py").unlink()
    document = json.loads(json.dumps(validate(tree).document()))
    assert (document["ok"], document["cases"], document["scenarios"]) == (False, 1, 2)
    assert document["problems"][0]["file"] == "evals/cases/bad.yaml"
    assert document["errors"][0]["error"] == "ConfigError"
    assert set(document["errors"][0]) == {"error", *document["problems"][0]}, "one shape for editors"


def test_every_problem_of_the_settings_file_has_an_entry_with_its_place(tree: Path) -> None:
    settings(tree, RUNNABLE + "[eval]\nconcurency = 3\nsuite = 4\n")
    one, two = validate(tree).document()["errors"]
    assert (one["file"], one["line"], one["column"]) == ("evalfleet.toml", 4, 1)
    assert "unknown key 'concurency'" in one["message"]
    assert one["source_line"] == "concurency = 3"
    assert (two["line"], two["source_line"]) == (5, "suite = 4")


def test_a_grader_that_is_not_there_has_a_pointer_and_an_end(tree: Path) -> None:
    (tree / "evals/graders/first.py").unlink()
    (problem,) = validate(tree).document()["problems"]
    assert problem["pointer"] == "/scenarios/1/expect/2/grader"
    assert (problem["column"], problem["end_column"]) == (9, 15)


@pytest.mark.parametrize("case_id", ["A12.empty", "A12.comment"])
def test_a_file_without_scenarios_is_an_error_and_not_zero_passed_a12(tree: Path, case_id: str) -> None:
    source = CASES / f"{case_id}.yaml"
    shutil.copy(source, tree / "evals/cases/empty.yaml")
    assert "evals/cases/empty.yaml:" in validate(tree).render()
    assert not validate(tree).ok


def test_bombs_are_refused_beside_good_files_in_512_megabytes_a10(tree: Path) -> None:
    """The whole command: the good files are counted, each bomb has its problem, no traceback, exit 2."""
    bombs = {"bomb": "aliases written out", "deep": "nested deeper", "cycle": "a cycle has no end"}
    case(tree, "first", GOOD_CASE)  # its grader's cage would want memory of its own
    for name in bombs:
        shutil.copy(CASES / f"A10.{name}.yaml", tree / f"evals/cases/{name}.yaml")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "scheduler.cli", "validate", "--json"],
        cwd=tree,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (512 * 2**20, 512 * 2**20)),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, b"")
    document = json.loads(done.stdout)
    assert (document["cases"], document["scenarios"]) == (1, 1)
    said = {problem["file"].removeprefix("evals/cases/"): problem["message"] for problem in document["problems"]}
    assert sorted(said) == ["bomb.yaml", "cycle.yaml", "deep.yaml"]
    assert all(words in said[f"{name}.yaml"] for name, words in bombs.items())


def test_graders_that_are_not_there_are_refused_like_bad_names_a14(tree: Path) -> None:
    (tree / "evals/graders/quality.py").write_text("def answers(t, case, run):\n    return True\n")
    text = (CASES / "A14.yaml").read_text().split("scenarios:")[1].splitlines()
    well_formed = [line for line in text if "missing.answers" in line or "quality.nope" in line]
    case(tree, "a14", "\n".join(["scenarios:", *well_formed, GOOD_CASE.splitlines()[1].replace("id: a", "id: ok")]))
    said = [problem.message for problem in validate(tree).problems]
    assert len(said) == 2
    assert "grader missing.answers: there is no evals/graders/missing.py" in said[0]
    assert "grader quality.nope: evals/graders/quality.py has no public function 'nope'" in said[1]


JUDGED = "scenarios:\n  - {id: a, user: hi, expect: [grader: {name: judged.asks}]}\n"
COUNTED = "scenarios:\n  - {id: a, user: hi, expect: [grader: {name: judged.counts}]}\n"
ASKS = """
def asks(t, case, run): return t.llm("?") == "yes"
def counts(t, case, run): return len(run["tool_calls"]) < 3
"""
KEYED = '[judge]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\napi_key_env = "JUDGE_KEY"\n'
KEY_NOT_SET = "[judge] api_key_env names JUDGE_KEY, which is not set in the environment (or is empty)"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        pytest.param({}, [KEY_NOT_SET], id="not set"),
        pytest.param({"environment": {"JUDGE_KEY": "sk"}}, [], id="set"),
        pytest.param({"words": ["counted"]}, [], id="nothing chosen asks the judge"),
        pytest.param({"words": ["judged"]}, [KEY_NOT_SET], id="what is chosen asks it"),
        pytest.param({"import_graders": False}, [], id="the judge is asked elsewhere, or not at all"),
    ],
)
def test_s26_a_judges_key_that_is_not_set_is_told_once_before_anything_runs(
    tree: Path, more: dict[str, Any], told: list[str]
) -> None:
    """Item 23: it was told on the line of each scenario, after all of them were played."""
    settings(tree, RUNNABLE + KEYED)
    (tree / "evals/graders/judged.py").write_text(ASKS)
    case(tree, "judged", JUDGED + JUDGED.partition("\n")[2].replace("id: a", "id: b"))
    case(tree, "counted", COUNTED)
    found = validate(tree, **{"environment": {}, **more})
    assert [error.message.partition(": ")[2] for error in found.errors] == told
    assert found.problems == ()


def test_s28_a_tree_that_is_too_large_for_its_graders_is_warned_of(tree: Path) -> None:
    assert not any("graders do not see" in warning.message for warning in validate(tree).warnings)
    with (tree / "agent.py").open("r+b") as large:
        large.truncate(MAX_REST_BYTES)
    found = validate(tree)
    assert found.ok
    (warning,) = [warning for warning in found.warnings if "graders do not see" in warning.message]
    assert "(the largest is agent.py); name what graders read in `files` under [graders]" in warning.message


def test_s28_what_a_grader_reads_of_the_tree_at_its_import_is_there_when_it_is_checked(tree: Path) -> None:
    (tree / "evals/graders/reads.py").write_text(
        "import pathlib\nAGENT = pathlib.Path('agent.py').read_text()\ndef sees(t, case, run): return bool(AGENT)\n"
    )
    case(tree, "reads", GOOD_CASE.replace("final_answer_contains: x", "grader: {name: reads.sees}"))
    assert validate(tree).problems == ()
