"""S33: a run that was played while the harness's files were not its commit's is no result, and none is taken then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from evalfleet.errors import UnfitHost
from evalfleet.server.driving import Ended, Sink, Turn
from evalfleet.server.looks import Looks
from evalfleet.server.trees import read_tree
from tests.server.conftest import (
    COMMIT,
    OTHER_COMMIT,
    Api,
    ScriptedDriver,
    assert_problem,
    echo,
    run_body,
    served_tree,
    serving,
)
from tests.test_tree import git

SENTENCE = "the harness changed while it was played: agent.py; restore it"
TEXT = "print('hi')\n"


def is_no_result(run: dict[str, Any], status: str = "failed") -> None:
    assert run["status"] == status
    assert run["failure"]["code"] == "harness_changed"
    assert run["failure"]["message"].startswith(SENTENCE)
    assert run["failure"]["retryable"] is False
    assert run["harness_commit"] == COMMIT


async def refused(api: Api) -> None:
    answer = await api.http.post("/v2/runs", json=run_body(api.harness_id), headers=api.key())
    problem = assert_problem(answer, 422, "harness_not_runnable", "/harness_id")
    assert problem["detail"].startswith(SENTENCE)
    assert problem["errors"][0]["code"] == "harness_changed"


class Held:
    """An agent that goes on when the test says so."""

    def __init__(self) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, turn: Turn, sink: Sink) -> Ended:
        if turn.message == "hold":
            self.begun.set()
            await self.go.wait()
        return await echo(turn, sink)


async def test_s33_an_agent_that_edits_its_own_code_has_no_result_and_nothing_more_is_launched(tmp_path: Path) -> None:
    async def edit(turn: Turn, sink: Sink) -> Ended:
        if turn.message == "edit":
            (tmp_path / "agent.py").write_text("print('better')\n")
        return await echo(turn, sink)

    async with serving(tmp_path, ScriptedDriver(edit), watched=True) as api:
        before = await api.create("well")
        await api.stream(before["id"])
        assert (await api.get(f"/v2/runs/{before['id']}"))["status"] == "succeeded"
        run = await api.play("edit")
        is_no_result(run)
        messages = await api.get(f"/v2/runs/{run['id']}/messages")
        assert len(messages["data"]) == 4, "what it said stays in the transcript"
        await refused(api)
        assert len(api.driver.turns) == 2
        (tmp_path / "agent.py").write_text(TEXT)
        assert (await api.play("well"))["status"] == "succeeded", "restored: nothing is lost"


async def test_s33_a_change_while_the_server_is_idle_and_between_two_turns_is_seen_before_the_next_run(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, ScriptedDriver(), watched=True) as api:
        (tmp_path / "agent.py").write_text("print('idle')\n")
        await refused(api)
        (tmp_path / "agent.py").write_text(TEXT)
        first = await api.play("one")
        (tmp_path / "agent.py").unlink()
        body = run_body(api.harness_id, "two", chat_id=first["chat_id"])
        key = api.key()
        answer = await api.http.post("/v2/runs", json=body, headers=key)
        assert "agent.py (gone)" in assert_problem(answer, 422, "harness_not_runnable")["detail"]
        (tmp_path / "agent.py").write_text(TEXT)
        assert (await api.http.post("/v2/runs", json=body, headers=key)).status_code == 201, "a refusal is not kept"


async def test_s33_a_run_that_waited_is_not_started_and_one_that_was_asked_before_is_still_read(tmp_path: Path) -> None:
    held = Held()
    async with serving(tmp_path, ScriptedDriver(held), agents=1, watched=True) as api:
        key, body = api.key(), run_body(api.harness_id, "hold")
        first = (await api.http.post("/v2/runs", json=body, headers=key)).json()
        await held.begun.wait()
        waiting = await api.create("waits for a free agent")
        (tmp_path / "agent.py").write_text("print('other')\n")
        held.go.set()
        for run in (first, waiting):
            await api.stream(run["id"])
            is_no_result(await api.get(f"/v2/runs/{run['id']}"))
        assert [turn.message for turn in api.driver.turns] == ["hold"]
        again = await api.http.post("/v2/runs", json=body, headers=key)
        assert (again.status_code, again.json()["id"]) == (201, first["id"]), "a replay answers as before"


async def test_s33_a_run_that_was_cancelled_at_its_limit_says_so_too(tmp_path: Path) -> None:
    """Its time is spent, and it would be judged as a timeout of the commit's agent."""
    held = Held()
    async with serving(tmp_path, ScriptedDriver(held), watched=True) as api:
        run = await api.create("hold")
        await held.begun.wait()
        (tmp_path / "agent.py").write_text("import time; time.sleep(600)\n")
        assert (await api.http.post(f"/v2/runs/{run['id']}/cancel")).status_code == 200
        await api.stream(run["id"])
        is_no_result(await api.get(f"/v2/runs/{run['id']}"), "cancelled")


async def test_s33_a_run_that_spans_a_change_is_no_result_though_all_is_restored_at_its_end(tmp_path: Path) -> None:
    held = Held()
    async with serving(tmp_path, ScriptedDriver(held), watched=True) as api:
        run = await api.create("hold")
        await held.begun.wait()
        (tmp_path / "agent.py").write_text("print('for a while')\n")
        await refused(api)
        (tmp_path / "agent.py").write_text(TEXT)
        held.go.set()
        await api.stream(run["id"])
        is_no_result(await api.get(f"/v2/runs/{run['id']}"))
        assert (await api.play("later"))["status"] == "succeeded"


async def test_s33_each_tree_of_a_server_is_looked_at_by_itself(tmp_path: Path) -> None:
    other = tmp_path.parent / f"{tmp_path.name}-other"
    other.mkdir()
    (other / "agent.py").write_text(TEXT)
    second = served_tree(other, ScriptedDriver(), commit=OTHER_COMMIT, name="second", watched=True)
    async with serving(tmp_path, ScriptedDriver(), watched=True, others=[second]) as api:
        (tmp_path / "agent.py").write_text("print('other')\n")
        await refused(api)
        api.harness_id = api.stack.harness_ids["second"]
        run = await api.play()
        assert (run["status"], run["harness_commit"]) == ("succeeded", OTHER_COMMIT)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "evalfleet.toml").write_text('[harness]\nname = "real"\n[harness.command]\nargv = ["./agent.sh"]\n')
    (folder / "agent.sh").write_text("#!/bin/sh\necho one\n")
    (folder / "agent.sh").chmod(0o755)
    git(folder, "init", "-q", ".")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    return folder


def at(root: Path, tmp_path: Path, **more: Any) -> Any:
    return serving(tmp_path, ScriptedDriver(), tree=read_tree(root, state=tmp_path / "state", **more))


async def test_s33_a_server_that_is_started_again_serves_the_tree_as_it_is_now_as_a_version_of_its_own(
    root: Path, tmp_path: Path
) -> None:
    """A real agent, edited while the server is idle: the answer of its code is never a run of the old commit."""
    commits = []
    for number, word in ((1, "one"), (2, "two")):
        async with at(root, tmp_path) as api:
            run = await api.play()
            outputs = await api.get(f"/v2/runs/{run['id']}/outputs")
            assert (run["status"], outputs["data"][0]["value"]) == ("succeeded", word)
            versions = (await api.get(f"/v2/harnesses/{api.harness_id}"))["versions"]
            assert versions[0] == {"number": number, "commit": run["harness_commit"]}
            files = (await api.get(f"/v2/harnesses/{api.harness_id}/versions/{run['harness_commit']}"))["files"]
            assert f"echo {word}" in files["agent.sh"]
            commits.append(run["harness_commit"])
            (root / "agent.sh").write_text("#!/bin/sh\necho two\n")
            answer = await api.http.post("/v2/runs", json=run_body(api.harness_id), headers=api.key())
            assert answer.status_code == (422 if word == "one" else 201)
    assert commits[0] == git(root, "rev-parse", "HEAD") != commits[1]


async def test_s33_a_tree_that_is_not_the_commit_it_was_planned_at_is_not_played(root: Path, tmp_path: Path) -> None:
    """`--verify-commit`: the command has looked at the tree, then somebody saves, then its server starts."""
    head = git(root, "rev-parse", "HEAD")
    assert read_tree(root, state=tmp_path / "state", commit=head, verify=True).moved == ""
    (root / "agent.sh").write_text("#!/bin/sh\necho two\n")
    async with at(root, tmp_path, commit=head, verify=True) as api:
        answer = await api.http.post("/v2/runs", json=run_body(api.harness_id), headers=api.key())
        assert ": agent.sh; restore it" in assert_problem(answer, 422, "harness_not_runnable")["detail"]
        version = await api.get(f"/v2/harnesses/{api.harness_id}/versions/{head}")
        assert version["files"] == {}, "what is there now is not kept under that commit"
    git(root, "commit", "-q", "-a", "-m", "two")
    assert read_tree(root, state=tmp_path / "state", commit=head, verify=True).moved == "agent.sh"
    unknown = read_tree(root, state=tmp_path / "state", commit=COMMIT, verify=True)
    assert unknown.moved == f"the tree is commit {git(root, 'rev-parse', 'HEAD')[:12]}, not {COMMIT[:12]}"
    assert read_tree(root, state=tmp_path / "state", commit=COMMIT).moved == "", "its operator answers for that"


async def test_n10_a_version_has_links_as_text_and_reads_nothing_behind_them(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("behind\n")
    links = {"out.py": "../secret.py", "folder": "/", "gone.py": "user@host.1", "loop.py": "loop.py"}
    for name, to in links.items():
        (root / name).symlink_to(to)
    git(root, "add", "folder")
    async with at(root, tmp_path) as api:
        version = (await api.get(f"/v2/harnesses/{api.harness_id}"))["versions"][0]
        files = (await api.get(f"/v2/harnesses/{api.harness_id}/versions/{version['commit']}"))["files"]
        assert {name: files[name] for name in links} == links
        assert (await api.play())["status"] == "succeeded"


class Watch:
    """A watch that says when it is looked through, and finds what the test wants."""

    def __init__(self, *found: str | Exception, size: int = 1) -> None:
        self.found = list(found)
        self.size = size
        self.looks = 0

    def look(self) -> str:
        self.looks += 1
        now = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        if isinstance(now, Exception):
            raise now
        return now


async def test_s33_runs_that_end_together_share_a_look_that_began_after_them() -> None:
    watch = Watch("")
    looks = Looks(watch, advice="")  # type: ignore[arg-type]
    assert await looks.before() is None
    assert await asyncio.gather(*(looks.after(looks.mark) for _ in range(50))) == [None] * 50
    assert watch.looks == 2


async def test_s33_in_a_large_tree_starts_are_content_with_a_look_of_just_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evalfleet.server.looks.REST", 1e6)  # "just before" is then for as long as the test takes
    monkeypatch.setattr("evalfleet.server.looks.SHARE", 1e12)
    watch = Watch("", size=5000)
    looks = Looks(watch, advice="")  # type: ignore[arg-type]
    for _ in range(10):
        assert await looks.before() is None
    assert watch.looks == 1


async def test_s33_what_could_not_be_seen_is_our_trouble_and_no_change() -> None:
    looks = Looks(Watch(UnfitHost("git gave no answer"), ""), advice="")  # type: ignore[arg-type]
    failure = await looks.after(0)
    assert failure is not None
    assert (failure.code, failure.retryable) == ("internal_error", True)
    assert await looks.after(0) is None


async def test_s33_a_tree_that_was_another_at_the_start_plays_nothing() -> None:
    looks = Looks(Watch(""), advice="start again", moved="agent.py")  # type: ignore[arg-type]
    failure = await looks.before()
    assert failure is not None
    assert failure.message == "the harness changed while it was played: agent.py; start again"
