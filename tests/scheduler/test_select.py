"""SELECT: names, paths, globs, CASE/SCENARIO, drafts and --trials (S7, S9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalfleet.checks.case import Case, parse_case
from evalfleet.errors import UsageError
from scheduler.select import select


def case(name: str, *ids: str, trials: int = 1) -> Case:
    scenarios = "".join(
        f"  - {{id: {i!r}, user: hi, trials: {trials}, expect: [final_answer_contains: x]}}\n" for i in ids
    )
    loaded = parse_case(f"scenarios:\n{scenarios}".encode(), name=name, file=f"evals/cases/{name}.yaml")
    assert loaded.problems == ()
    return loaded.cases[0]


CASES = (
    case("tone", "answers", "remembers", "[x] odd*"),
    case("tools", "shell", "answers"),
    case("Größe", "maß"),
    case("a*b", "one"),
)
ALL = {"tone/answers", "tone/remembers", "tone/[x] odd*", "tools/shell", "tools/answers", "Größe/maß", "a*b/one"}
TONE = {"tone/answers", "tone/remembers", "tone/[x] odd*"}

WORDS = [
    pytest.param([], ALL, id="nothing means all"),
    pytest.param(["tone"], TONE, id="a name"),
    pytest.param(["TONE"], TONE, id="letter case does not matter"),
    pytest.param(["größe"], {"Größe/maß"}, id="a folded name"),
    pytest.param(["gro\u0308ße"], {"Größe/maß"}, id="another Unicode form"),
    pytest.param(["evals/cases/tone.yaml"], TONE, id="a path from the root"),
    pytest.param(["./evals/cases/tone.yaml"], TONE, id="with a dot"),
    pytest.param(["evals/cases"], ALL, id="the folder"),
    pytest.param(["evals/cases/"], ALL, id="the folder with a slash"),
    pytest.param(["tone.yaml"], TONE, id="a name with its file's ending"),
    pytest.param(["tone.yaml/answers"], {"tone/answers"}, id="a scenario of a name with its ending"),
    pytest.param(["to*"], TONE | {"tools/shell", "tools/answers"}, id="a glob"),
    pytest.param(["to?e"], TONE, id="a glob for one letter"),
    pytest.param(["tone/answers"], {"tone/answers"}, id="a scenario"),
    pytest.param(["tone/[x] odd*"], {"tone/[x] odd*"}, id="a scenario that looks like a glob"),
    pytest.param(["tone/a*"], {"tone/answers"}, id="a glob of scenarios"),
    pytest.param(["*/answers"], {"tone/answers", "tools/answers"}, id="a scenario of any case"),
    pytest.param(["a*b"], {"a*b/one"}, id="a name that looks like a glob"),
    pytest.param(["tone/answers", "tools"], {"tone/answers", "tools/shell", "tools/answers"}, id="several"),
    pytest.param(["tone", "tone/answers"], TONE, id="twice the same"),
]


@pytest.mark.parametrize(("words", "chosen"), WORDS)
def test_words_choose(words: list[str], chosen: set[str]) -> None:
    selection = select(CASES, words)
    assert selection.chosen == chosen
    assert selection.partial is (chosen != ALL)
    assert [c.name for c in selection.cases] == [
        c.name for c in CASES if any(key.startswith(f"{c.name}/") for key in chosen)
    ]


def test_earlier_scenarios_stay_as_context() -> None:
    selection = select(CASES, ["tone/remembers"])
    assert [s.id for s in selection.cases[0].scenarios][:2] == ["answers", "remembers"]
    assert selection.chosen == {"tone/remembers"}


def test_a_path_from_another_folder_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evals" / "cases").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "evals" / "cases")
    assert select(CASES, ["tone.yaml"], root=tmp_path).chosen == TONE
    assert select(CASES, [str(tmp_path / "evals/cases/tone.yaml")], root=tmp_path).chosen == TONE


REFUSED = [
    pytest.param(["tome"], r"no case matches 'tome' \(did you mean 'tone'\?\)", id="a near name"),
    pytest.param(["zzzzzz"], "no case matches 'zzzzzz'; there are: tone, tools", id="no near name"),
    pytest.param(["evals/cases/tols.yaml"], r"did you mean 'tools'", id="a path that is not there"),
    pytest.param(
        ["tone/anwsers"], r"case 'tone' has no scenario 'anwsers' \(did you mean 'answers'\?\)", id="scenario"
    ),
    pytest.param(["tone/qqqq"], "case 'tone' has no scenario 'qqqq'; it has: answers", id="no near scenario"),
    pytest.param(["x*"], r"no case matches 'x\*'", id="a glob that finds nothing"),
    pytest.param(["*/zzz"], r"no case matches '\*/zzz'", id="a scenario glob that finds nothing"),
    pytest.param([""], "no case matches ''", id="an empty word"),
]


@pytest.mark.parametrize(("words", "wanted"), REFUSED)
def test_what_matches_nothing_is_refused_b13(words: list[str], wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        select(CASES, words)


LEFT_OUT = [
    pytest.param([], ["tone"], ALL - TONE, id="a case"),
    pytest.param(["tone"], ["tone/answers"], TONE - {"tone/answers"}, id="of what the words choose"),
    pytest.param([], ["*/answers", "a*b"], ALL - {"tone/answers", "tools/answers", "a*b/one"}, id="several, globs"),
    pytest.param(["tools"], ["tone"], {"tools/shell", "tools/answers"}, id="what was not chosen anyway"),
    pytest.param([], ["evals/cases/tone.yaml"], ALL - TONE, id="a path"),
]


@pytest.mark.parametrize(("words", "deselect", "chosen"), LEFT_OUT)
def test_deselect_leaves_out_what_the_same_words_would_choose(
    words: list[str], deselect: list[str], chosen: set[str]
) -> None:
    selection = select(CASES, words, deselect=deselect)
    assert selection.chosen == chosen
    assert selection.partial is True
    assert [c.name for c in selection.cases] == [
        c.name for c in CASES if any(key.startswith(f"{c.name}/") for key in chosen)
    ]


def test_what_is_left_out_stays_as_context_s9() -> None:
    selection = select(CASES, ["tone"], deselect=["tone/answers"])
    assert selection.cases[0].scenarios[0].id == "answers"


def test_a_draft_can_be_left_out() -> None:
    draft = case("draft", "try", "again")
    assert select(CASES, [], drafts=draft, deselect=["draft/try"]).chosen == {"draft/again"}
    beside = select(CASES, ["tools/shell"], drafts=draft, deselect=["draft"])
    assert [c.name for c in beside.cases] == ["tools"]


@pytest.mark.parametrize(
    ("words", "deselect", "wanted"),
    [
        ([], ["tome"], r"^--deselect: no case matches 'tome' \(did you mean 'tone'\?\)$"),
        (["nope"], ["tone/anwsers"], r"(?s)no case matches 'nope'.*--deselect: case 'tone' .*did you mean 'answers'"),
        (["tone"], ["t*"], "nothing is left to play"),
    ],
    ids=["a near name", "beside a word that matches nothing", "all of it"],
)
def test_a_pattern_that_leaves_out_nothing_or_everything_is_refused(
    words: list[str], deselect: list[str], wanted: str
) -> None:
    with pytest.raises(UsageError, match=wanted):
        select(CASES, words, deselect=deselect)


def test_only_narrows_what_is_chosen() -> None:
    selection = select(CASES, ["tone"], only={"tone/remembers", "tools/shell"})
    assert selection.chosen == {"tone/remembers"}
    assert selection.partial is True


def test_a_timeout_replaces_every_scenarios_own() -> None:
    selection = select(CASES, ["tone"], timeout=7.0)
    assert {s.timeout for c in selection.cases for s in c.scenarios} == {7.0}
    assert CASES[0].scenarios[0].timeout == 300.0


def test_every_word_that_matches_nothing_is_named_even_beside_one_that_does() -> None:
    with pytest.raises(UsageError) as caught:
        select(CASES, ["tone", "nope1", "nope2"])
    assert "nope1" in str(caught.value)
    assert "nope2" in str(caught.value)


def test_no_case_at_all_says_what_to_do_b13() -> None:
    with pytest.raises(UsageError, match="evalfleet init"):
        select([])


def test_drafts_run_alone_unless_names_are_given_too_s7() -> None:
    draft = case("draft", "try")
    alone = select(CASES, [], drafts=draft)
    assert alone.chosen == {"draft/try"}
    assert (alone.draft, alone.partial) == (True, False)
    both = select(CASES, ["tools/shell"], drafts=draft)
    assert both.chosen == {"tools/shell", "draft/try"}
    assert [c.name for c in both.cases] == ["tools", "draft"]
    assert select([], [], drafts=draft).chosen == {"draft/try"}


def test_trials_replace_every_scenarios_own() -> None:
    selection = select(CASES, ["tone"], trials=7)
    assert {s.trials for c in selection.cases for s in c.scenarios} == {7}
    assert CASES[0].scenarios[0].trials == 1


@pytest.mark.parametrize("trials", [0, -1, 101])
def test_trials_out_of_range_are_refused(trials: int) -> None:
    with pytest.raises(UsageError, match=f"from 1 to 100, not {trials}"):
        select(CASES, [], trials=trials)
