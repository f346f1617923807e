"""S28: what a grader sees travels as one reproducible, verified, read-only copy."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evalfleet.errors import GraderRefused, StorageError
from evalfleet.graders.bundle import build_bundle, remove_unpacked, unpack
from evalfleet.graders.rest import MAX_REST_BYTES
from tests.graders.trees import make_tree


def _tree(root: Path) -> Path:
    make_tree(root, quality="def answers(t, case, run): return True\n")
    (root / "evals/graders/data").mkdir()
    (root / "evals/graders/data/words.txt").write_text("a b")
    (root / "evals/graders/__pycache__").mkdir()
    (root / "evals/graders/__pycache__/quality.cpython-311.pyc").write_bytes(b"x")
    (root / "evals/results").mkdir()
    (root / "evals/results/old.json").write_text("{}")
    (root / "lib").mkdir()
    (root / "lib/text.py").write_text("X = 1")
    (root / "agent.py").write_text("secret = 1")
    (root / "run.sh").write_text("#!/bin/sh")
    (root / "run.sh").chmod(0o755)
    return root


def _files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_it_holds_the_graders_folder_and_the_globs_and_nothing_else(tmp_path: Path) -> None:
    bundle = build_bundle(_tree(tmp_path / "tree"), ["quality.answers"], ["lib/**", "*.sh", "evals/**"])
    copy = unpack(bundle.data, bundle.digest, tmp_path / "copy")
    assert _files(copy) == {"evals/graders/quality.py", "evals/graders/data/words.txt", "lib/text.py", "run.sh"}
    assert bundle.digest == "sha256:" + hashlib.sha256(bundle.data).hexdigest()
    assert bundle.left_out == ""
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [copy, *copy.rglob("*")]}
    assert modes == {0o444, 0o555}
    remove_unpacked(copy)
    assert not copy.exists()


def test_only_folders_that_a_glob_reaches_into_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree may hold a million files that no grader sees."""
    root = _tree(tmp_path / "tree")
    (root / "dist/deep").mkdir(parents=True)
    scandir = os.scandir
    read: list[str] = []

    def reading(folder: Path) -> Iterator[os.DirEntry[str]]:
        read.append(str(Path(folder).relative_to(root)))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", reading)
    build_bundle(root, ["quality.answers"], ["lib/*.py"])
    evals = ["evals", "evals/graders", "evals/graders/data"]
    assert sorted(read) == sorted([".", *evals, *evals, "lib"]), "twice what a grader sees by default"


def test_the_same_files_are_the_same_bytes_wherever_and_whenever(tmp_path: Path) -> None:
    first, second = _tree(tmp_path / "one"), _tree(tmp_path / "two")
    os.utime(second / "lib/text.py", (1, 1))
    assert build_bundle(first, [], ["lib"]) == build_bundle(second, [], ["lib"])
    (second / "evals/graders/data/words.txt").write_text("a c")
    assert build_bundle(first, [], ["lib"]).digest != build_bundle(second, [], ["lib"]).digest


def test_a_link_inside_the_tree_is_followed_and_one_that_leads_out_is_refused(tmp_path: Path) -> None:
    root = _tree(tmp_path / "tree")
    (root / "evals/graders/text.py").symlink_to(root / "lib/text.py")
    (root / "evals/graders/shared").symlink_to(root / "lib")
    (root / "lib/loop").symlink_to(root / "lib")
    bundle = build_bundle(root, [], [])
    copy = unpack(bundle.data, bundle.digest, tmp_path / "copy")
    assert (copy / "evals/graders/text.py").read_text() == "X = 1"
    assert (copy / "evals/graders/shared/text.py").read_text() == "X = 1"
    assert not (copy / "evals/graders/text.py").is_symlink()
    (tmp_path / "outside.txt").write_text("secret")
    (root / "evals/graders/out.txt").symlink_to(tmp_path / "outside.txt")
    with pytest.raises(GraderRefused, match=r"evals/graders/out\.txt is a link that leads out of the tree"):
        build_bundle(root, [], [])


def test_a_folder_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    root = _tree(tmp_path / "tree")
    (root / "evals/graders/etc").symlink_to("/etc")
    with pytest.raises(GraderRefused, match="leads out"):
        build_bundle(root, [], [])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda folder: os.mkfifo(folder / "pipe"), "no regular file"),
    ],
    ids=["a pipe"],
)
def test_what_cannot_be_copied_is_refused_by_name(tmp_path: Path, make: Callable[[Path], None], reason: str) -> None:
    root = _tree(tmp_path / "tree")
    make(root / "evals/graders")
    with pytest.raises(GraderRefused, match=reason):
        build_bundle(root, [], [])


@pytest.mark.parametrize("to", ["somebody@host.1234:1700000000", "../../nowhere.py", "/nowhere", "tone.py"])
def test_n10_a_link_that_leads_nowhere_stops_nothing_unless_a_case_calls_it(tmp_path: Path, to: str) -> None:
    """An editor's lock, a link that is left over, one that leads to itself."""
    root = _tree(tmp_path / "tree")
    plain = build_bundle(root, ["quality.answers"], ["lib"])
    for place in (".#quality.py", "data/tone.py", "tone.py"):
        (root / "evals/graders" / place).symlink_to(to)
    (root / "lib/tone.py").symlink_to(to)
    assert build_bundle(root, ["quality.answers"], ["lib"]) == plain
    with pytest.raises(GraderRefused, match=r"tone\.polite: evals/graders/tone\.py is a link that leads nowhere, to"):
        build_bundle(root, ["tone.polite"], [])


def test_a_grader_without_its_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraderRefused, match=r"tone\.polite: there is no evals/graders/tone\.py"):
        build_bundle(_tree(tmp_path / "tree"), ["tone.polite"], [])


def test_damaged_bytes_are_not_unpacked(tmp_path: Path) -> None:
    bundle = build_bundle(_tree(tmp_path / "tree"), [], [])
    with pytest.raises(StorageError, match="damaged"):
        unpack(bundle.data[:-1] + b"x", bundle.digest, tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tree"]


@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [
        ("../out.py", tarfile.REGTYPE, ""),
        ("/abs.py", tarfile.REGTYPE, ""),
        ("evals/./a.py", tarfile.REGTYPE, ""),
        ("evals/link", tarfile.SYMTYPE, "/etc/passwd"),
        ("evals/link", tarfile.SYMTYPE, "../../outside"),
        ("../link", tarfile.SYMTYPE, "inside"),
        ("evals/hard", tarfile.LNKTYPE, "evals/graders"),
        ("evals/dev", tarfile.CHRTYPE, ""),
    ],
)
def test_a_bundle_that_is_not_ours_writes_nothing(tmp_path: Path, name: str, kind: bytes, target: str) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.type = kind
        member.linkname = target
        tar.addfile(member)
    data = out.getvalue()
    with pytest.raises(StorageError, match="no bundle of ours"):
        unpack(data, "sha256:" + hashlib.sha256(data).hexdigest(), tmp_path / "deep" / "copy")
    assert list((tmp_path / "deep").iterdir()) == []


def test_unpacking_again_keeps_the_copy_that_is_there(tmp_path: Path) -> None:
    bundle = build_bundle(_tree(tmp_path / "tree"), [], [])
    copy = unpack(bundle.data, bundle.digest, tmp_path / "copy")
    before = copy.stat().st_ino
    assert unpack(bundle.data, bundle.digest, tmp_path / "copy").stat().st_ino == before
    remove_unpacked(copy)


# -- the tree that it judges (S28 amended)


def _harness(root: Path) -> list[str]:
    (root / "prompts").mkdir()
    (root / "prompts/system.md").write_text("Be brief.")
    (root / "prompts/latest.md").symlink_to("system.md")
    (root / "prompts/out.md").symlink_to("/etc/passwd")
    (root / "prompts/gone.md").symlink_to("nothing.md")
    (root / "latest").symlink_to("prompts")
    (root / "evals/cases").mkdir()
    (root / "evals/cases/tone.yaml").write_text("scenarios: []")
    (root / "evals/notes.md").write_text("notes")
    (root / "out").mkdir()
    (root / "out/last.json").write_text("{}")
    (root / "notes.txt").write_text("no harness file")
    links = ["latest", "prompts/latest.md", "prompts/out.md", "prompts/gone.md"]
    return ["agent.py", "lib/text.py", "prompts/system.md", "run.sh", "gone.py", *links]


def test_s28_a_grader_sees_the_harness_and_evals_and_never_results(tmp_path: Path) -> None:
    """Links are links, inside of the copy; what leads out of it is not there."""
    root = _tree(tmp_path / "tree")
    bundle = build_bundle(root, ["quality.answers"], ["out/**"], harness=_harness(root), results=root / "out")
    copy = unpack(bundle.data, bundle.digest, tmp_path / "copy")
    evals = {"evals/graders/quality.py", "evals/graders/data/words.txt", "evals/cases/tone.yaml", "evals/notes.md"}
    harness = {"agent.py", "lib/text.py", "prompts/system.md", "prompts/latest.md", "run.sh"}
    assert _files(copy) == evals | harness
    assert (copy / "latest/latest.md").read_text() == "Be brief."
    assert {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_symlink()} == {
        "latest", "prompts/latest.md", "prompts/gone.md",
    }  # fmt: skip
    assert all(path.is_symlink() or stat.S_IMODE(path.stat().st_mode) in (0o444, 0o555) for path in copy.rglob("*"))
    remove_unpacked(copy)


def test_s10_only_graders_and_what_files_names_are_the_version(tmp_path: Path) -> None:
    """The commit pins the harness; a change of it must not make another suite of the same checks."""
    root = _tree(tmp_path / "tree")
    harness = _harness(root)
    first = build_bundle(root, [], ["lib"], harness=harness)
    for path in ("agent.py", "evals/cases/tone.yaml"):
        (root / path).write_text("changed")
    other = build_bundle(root, [], ["lib"], harness=harness)
    assert other.version == first.version
    assert other.digest != first.digest
    (root / "lib/text.py").write_text("X = 2")
    assert build_bundle(root, [], ["lib"], harness=harness).version != first.version


def test_s28_a_tree_that_is_too_large_is_left_out_with_a_sentence_and_what_files_names_is_there(
    tmp_path: Path,
) -> None:
    root = _tree(tmp_path / "tree")
    harness = _harness(root)
    with (root / "agent.py").open("r+b") as large:
        large.truncate(MAX_REST_BYTES)
    bundle = build_bundle(root, ["quality.answers"], ["prompts/system.md"], harness=harness)
    assert bundle.left_out == (
        "graders do not see the harness's files and the rest of evals/: these are 32.0 MiB, 32 fit (the largest is "
        "agent.py); name what graders read in `files` under [graders]"
    )
    copy = unpack(bundle.data, bundle.digest, tmp_path / "copy")
    assert "prompts/system.md" in _files(copy)
    assert not (copy / "agent.py").exists()
    remove_unpacked(copy)


def test_a_bundle_that_grows_beyond_what_one_may_hold_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = build_bundle(_tree(tmp_path / "tree"), [], ["lib"])
    monkeypatch.setattr("evalfleet.graders.bundle.MAX_UNPACKED", 10)
    with pytest.raises(StorageError, match="no bundle of ours"):
        unpack(bundle.data, bundle.digest, tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tree"]
