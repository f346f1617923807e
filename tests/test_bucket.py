"""Results in an S3 bucket, against a real server of it: the same promises as a folder's (I4), and clear errors."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import evalfleet.bucket
from evalfleet.artifact import (
    append_segment,
    attempts_index,
    find,
    finish,
    list_results,
    open_artifact,
    open_result,
    write_plan,
)
from evalfleet.bucket import BucketResults
from evalfleet.errors import CredentialError, ResultsAway, SettingError, StorageError, UsageError
from evalfleet.results import FolderResults, shared_results
from tests.s3 import make_bucket, s3
from tests.scheduler.samples import ARTIFACT, line
from tests.test_artifact import PLAN

__all__ = ["s3"]

pytestmark = pytest.mark.timeout(120)
NUMBERS = itertools.count()


@pytest.fixture
def bucket(s3: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    name = f"results-{next(NUMBERS)}"
    make_bucket(name, s3)
    return name


@pytest.fixture
def store(bucket: str) -> BucketResults:
    made = shared_results(f"s3://{bucket}/team/nightly")
    assert isinstance(made, BucketResults)
    made.check()
    write_plan(made, PLAN)
    return made


def test_an_artifact_in_a_bucket_is_the_one_in_a_folder(store: BucketResults, tmp_path: Path) -> None:
    folder = FolderResults(tmp_path / "results")
    for place in (store, folder):
        write_plan(place, PLAN)
        assert append_segment(place, ARTIFACT, [line("a", trial=0), line("a", trial=1, outcome="failed")]) == 1
        assert append_segment(place, ARTIFACT, [line("a", trial=2)]) == 2
        finish(place, ARTIFACT, {"verdict": "pass"})
        finish(place, ARTIFACT, {"verdict": "flaky"})
        place.sweep(ARTIFACT)
    for path in ("", ARTIFACT, f"{ARTIFACT}/trials", "nothing"):
        assert store.list(path) == folder.list(path), path
    for name in ("suite.json", "trials/000001.jsonl", "trials/000002.jsonl", "trials.jsonl", "summary.json"):
        path = f"{ARTIFACT}/{name}"
        assert store.read_bytes(path) == folder.read_bytes(path)
        with store.open(path) as there, folder.open(path) as here:
            assert list(there) == list(here)
        assert store.exists(path)
    assert list(open_artifact(store, ARTIFACT).lines()) == list(open_artifact(folder, ARTIFACT).lines())
    assert list_results(store) == [ARTIFACT]
    assert find(store, PLAN.id) == ARTIFACT
    assert not store.exists(f"{ARTIFACT}/nothing")
    assert store.shown(ARTIFACT) == f"s3://{store.root}/{ARTIFACT}"


def test_i4_a_name_that_is_taken_stays_as_it_is(store: BucketResults) -> None:
    path = f"{ARTIFACT}/trials/000001.jsonl"
    assert store.write_bytes_exclusive(path, [b"the ", b"first\n"])
    assert not store.write_bytes_exclusive(path, b"the second, longer\n")
    assert not store.write_bytes_exclusive(path, b"the last!\n")
    assert store.read_bytes(path) == b"the first\n"
    store.write_bytes(path, b"put over it\n")
    assert store.read_bytes(path) == b"put over it\n"


def test_i4_rival_aggregators_lose_nothing_and_leave_no_gap(store: BucketResults) -> None:
    rivals = [shared_results(store.shown()) for _ in range(4)]

    def write(rival: int) -> list[int]:
        return [append_segment(rivals[rival], ARTIFACT, [line("a", trial=rival * 5 + n)]) for n in range(5)]

    with ThreadPoolExecutor(4) as pool:
        numbers = [n for written in pool.map(write, range(4)) for n in written]
    assert sorted(numbers) == list(range(1, 21))
    assert {trial for _, _, trial in attempts_index(store, ARTIFACT)} == set(range(20))


def test_i4_the_answer_to_a_put_that_did_happen_gets_lost(store: BucketResults) -> None:
    """Its repetition finds the name taken, by itself; what a rival put there is another's."""
    assert store.write_bytes_exclusive(f"{ARTIFACT}/lost-1", b"ours\n")
    assert store.read_bytes(f"{ARTIFACT}/lost-1") == b"ours\n"
    assert not store.write_bytes_exclusive(f"{ARTIFACT}/lost-1", b"a rival's\n")


def test_two_puts_at_once_are_sent_again(store: BucketResults) -> None:
    assert store.write_bytes_exclusive(f"{ARTIFACT}/busy-1", b"ours\n")
    assert store.read_bytes(f"{ARTIFACT}/busy-1") == b"ours\n"


def test_i4_a_server_that_does_not_know_conditional_puts_is_refused_before_anything_is_written(
    bucket: str, s3: Mapping[str, str]
) -> None:
    make_bucket("lax-server", s3)
    lax = BucketResults("s3://lax-server/x")
    with pytest.raises(StorageError, match="the server ignores `If-None-Match: \\*`"):
        write_plan(lax, PLAN)
    assert lax.list(ARTIFACT) == {}


def test_a_writer_that_is_killed_leaves_nothing_half_written(store: BucketResults) -> None:
    """Killed while its lines are produced: no object has the name, and the next writer takes it."""
    program = f"""
        import os, signal
        from evalfleet.results import shared_results
        def lines():
            yield b"half"
            os.kill(os.getpid(), signal.SIGKILL)
        shared_results({store.shown()!r}).write_bytes_exclusive("{ARTIFACT}/trials/000001.jsonl", lines())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=os.environ, timeout=60)
    assert done.returncode == -9
    assert store.list(f"{ARTIFACT}/trials") == {}
    assert append_segment(store, ARTIFACT, [line("a")]) == 1


def test_large_files_are_read_by_the_line_and_the_range(store: BucketResults) -> None:
    """Larger than one ranged read, and put in parts."""
    piece = b"x" * 1_048_575 + b"\n"
    store.write_bytes(f"{ARTIFACT}/big", itertools.repeat(piece, 120))
    with store.open(f"{ARTIFACT}/big") as file:
        assert sum(1 for got in file if got == piece) == 120
    assert store.read_range(f"{ARTIFACT}/big", 1_048_574, 3) == b"x\nx"
    with pytest.raises(StorageError, match="ended 7 bytes early; something changed it"):
        store.read_range(f"{ARTIFACT}/big", 120 * 1_048_576 - 3, 10)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://", "names no bucket; write s3://the-bucket/a/prefix"),
        ("s3://No_Bucket/x", "names no bucket"),
        ("s3://bucket/x?versionId=1", "names no bucket"),
        ("s3://AKIA:hunter2hunter2@bucket/x", "holds credentials; they belong into AWS_ACCESS_KEY_ID"),
        ("gs://bucket/x", "gs:// is not a results store"),
    ],
)
def test_an_address_that_will_not_do_is_refused_and_no_secret_repeated(url: str, reason: str) -> None:
    with pytest.raises(SettingError, match=f"^EVALFLEET_RESULTS_URL: .*{reason}") as caught:
        shared_results(url)
    assert "hunter2" not in str(caught.value)


def test_without_the_extra_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(SettingError, match=r"s3:// needs the package s3fs: pip install 'evalfleet\[s3\]'"):
        shared_results("s3://bucket/x")


def test_a_bucket_that_is_not_there_is_said_at_the_start(bucket: str) -> None:
    absent = shared_results("s3://no-such-bucket/x")
    with pytest.raises(SettingError, match="s3://no-such-bucket/x: there is no bucket no-such-bucket; make it, or"):
        absent.check()
    with pytest.raises(StorageError, match="there is no bucket"):
        absent.list()
    with pytest.raises(StorageError, match="there is no bucket"):
        absent.create(ARTIFACT)


def test_a_refused_or_absent_key_is_said_and_not_shown(
    bucket: str, s3: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(CredentialError, match="refused \\(AccessDenied\\); look at the AWS credentials") as caught:
        shared_results("s3://forbidden/x").check()
    assert s3["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(CredentialError, match="no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        shared_results(f"s3://{bucket}/x").check()


def test_a_server_that_is_away_is_said_with_the_place(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(StorageError, match=f"s3://{bucket}/x: .*127.0.0.1:9"):
        shared_results(f"s3://{bucket}/x").check()


@pytest.mark.timeout(60)
def test_i8_a_server_that_takes_connections_and_is_silent_is_not_waited_for_without_end(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put asks first whether it may go on, and the client waits for that answer for ever."""
    monkeypatch.setattr(evalfleet.bucket, "PUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        for act in (BucketResults.write_bytes, BucketResults.write_bytes_exclusive):
            with pytest.raises(ResultsAway, match=r"/x/.*: the server takes connections and does not answer"):
                act(BucketResults(f"s3://{bucket}/x"), "one", b"1")


def test_an_artifact_is_opened_by_its_url_and_read_a_line_here_and_there(store: BucketResults) -> None:
    long = "x" * 300_000
    append_segment(store, ARTIFACT, [line("a", trial=number, reason=f"{number} {long}") for number in range(5)])
    for url in (store.shown(ARTIFACT), f"{store.shown(ARTIFACT)}/"):
        opened = open_result(url)
        assert (opened.plan, opened.place) == (PLAN, store.shown(ARTIFACT))
    for number in (3, 0, 4):
        found = opened.line("tone", "a", number)
        assert found is not None
        assert found["reason"] == f"{number} {long}"
    with store.open(f"{ARTIFACT}/trials/000001.jsonl") as file:
        assert file.seek(-2, 2) == file.seek(0, 2) - 2
        assert file.read() == b""
        file.seek(file.seek(0, 2) + 5)
        assert file.read() == b"", "past its end there is nothing"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://{bucket}/team/nightly", "is no artifact: its address ends as"),
        (
            "s3://{bucket}/team/nightly/20990101T000000Z-nothing0",
            "holds no suite.json, so it is no result; newest there: ",
        ),
        ("s3://absent/x/20990101T000000Z-nothing0", "s3://absent/x: there is no bucket absent"),
        ("gs://bucket/20990101T000000Z-nothing0", "gs:// is not a results store"),
    ],
)
def test_a_url_that_is_no_artifact_is_said_without_the_name_of_a_setting(
    store: BucketResults, url: str, reason: str
) -> None:
    with pytest.raises(UsageError) as refused:
        open_result(url.format(bucket=store.bucket))
    assert reason in str(refused.value)
    assert "EVALFLEET_RESULTS_URL" not in str(refused.value)
