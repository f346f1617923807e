"""The access log: one JSON line for each request, with its id, without a token; and a log that nobody reads."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from evalfleet.server.accounts import PREFIX, changing, create
from evalfleet.server.logs import LogWriter
from tests.server.conftest import TIMEOUT, Api
from tests.server.conftest import TOKEN as BEARER
from tests.server.test_process import TOKEN, command, environment, started
from tests.server.test_process import tree as tree  # a fixture


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[dict[str, Any]]]:
    """The access lines of this test, parsed when asked for."""

    class Lines(list[dict[str, Any]]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            return iter([json.loads(r.getMessage()) for r in caplog.records if r.name == "evalfleet.server.access"])

    with caplog.at_level(logging.INFO, "evalfleet.server.access"):
        yield Lines()


async def test_each_request_is_one_line(api: Api, lines: list[dict[str, Any]]) -> None:
    await api.get("/v2/runs", limit=3)
    answer = await api.http.get("/v2/runs/run_1", headers={"X-Request-Id": "mine"})
    first, second = lines
    assert set(first) == {"at", "request_id", "method", "path", "status", "ms", "bytes", "account", "client"}
    assert (first["method"], first["path"], first["status"], first["account"]) == ("GET", "/v2/runs", 200, "main")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", first["at"])
    assert first["client"] == "127.0.0.1"
    assert first["ms"] >= 0
    assert (second["request_id"], second["status"], second["bytes"]) == ("mine", 404, len(answer.content))


async def test_an_id_is_made_for_a_request_without_one_and_is_in_its_answer(
    api: Api, lines: list[dict[str, Any]]
) -> None:
    answers = [await api.http.get(path) for path in ("/healthz", "/v2/nothing", "/v2/runs")]
    made = [answer.headers["x-request-id"] for answer in answers]
    assert [line["request_id"] for line in lines] == made
    assert len(set(made)) == 3
    odd = await api.http.get("/healthz", headers=[("X-Request-Id", "two words")])
    assert odd.headers["x-request-id"] != "two words"  # it would not be one word in a log


async def test_no_token_is_ever_in_a_line(
    api: Api, tmp_path: Path, lines: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    with changing(f"sqlite:///{tmp_path / 'server.sqlite3'}") as connection:
        _made, secret = create(connection, "ci", account="team")
    for token in (secret, "wrong-token"):
        headers = {"Authorization": f"Bearer {token}"}
        await api.http.get("/v2/runs", params={"access_token": token}, headers=headers)
        await api.http.get(f"/v2/runs/{token}", headers=headers)
    seen = [(line["status"], line["account"]) for line in lines]
    assert seen == [(200, "team"), (404, "team"), (401, None), (401, None)]
    assert secret not in caplog.text
    assert secret.removeprefix(PREFIX) not in caplog.text
    assert f"/v2/runs/{PREFIX}***" in [line["path"] for line in lines]


async def test_a_path_cannot_forge_a_line(api: Api, lines: list[dict[str, Any]]) -> None:
    await api.http.get('/v2/%0A{"status":200}%E2%80%A8')
    (line,) = lines
    assert line["path"] == '/v2/\n{"status":200}\u2028'


async def test_a_stream_is_one_line_at_its_end(api: Api, lines: list[dict[str, Any]]) -> None:
    run = await api.create()
    events = await api.stream(run["id"])
    ends = [line for line in lines if line["path"].endswith("/events")]
    assert len(ends) == 1
    assert ends[0]["bytes"] > 100 * len(events)


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_failure_of_the_server(
    api: Api, lines: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    url = httpx.URL(api.url)
    _reader, writer = await asyncio.open_connection(url.host, url.port)
    head = ["POST /v2/runs HTTP/1.1", "Host: here", f"Authorization: Bearer {BEARER}", "Idempotency-Key: k"]
    writer.write("\r\n".join([*head, "Content-Length: 100", "", "{"]).encode())
    writer.close()
    async with asyncio.timeout(TIMEOUT):
        while not list(lines):  # noqa: ASYNC110 - a line wakes nobody
            await asyncio.sleep(0.01)
    (line,) = lines
    assert line["status"] is None
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert api.stack.app.answers == {}


async def test_below_info_nothing_is_written(
    api: Api, lines: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "evalfleet.server.access"):
        await api.get("/v2/runs")
    assert list(lines) == []


# -- the server as a process


def test_the_lines_are_on_stderr_and_can_be_turned_off(tree: Path) -> None:
    for more, wanted in (((), 1), (("--log-level", "warning"), 0)):
        with started(tree, *more) as (process, http):
            http.get("/v2/runs", headers={"X-Request-Id": "asked"})
            process.terminate()
            _out, errors = process.communicate(timeout=30)
        assert process.returncode == 0
        assert errors.count('"request_id":"asked"') == wanted
        assert TOKEN not in errors


def test_a_stderr_that_nobody_reads_does_not_stop_the_server_nor_its_end(tree: Path) -> None:
    with started(tree) as (process, http):
        path = "/v2/" + "x" * 400
        for _ in range(300):  # more than the pipe takes
            assert http.get(path).status_code == 404
        assert http.get("/readyz").status_code == 200
        process.terminate()
        assert process.wait(timeout=30) == 0


def test_a_stderr_that_is_closed_changes_nothing(tree: Path) -> None:
    process = subprocess.Popen(
        ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *command(tree)], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().removeprefix("listening on ").strip()
        assert httpx.get(f"{url}/healthz", trust_env=False).status_code == 200
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0


def test_what_does_not_fit_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    def write(_descriptor: int, data: bytes) -> int:
        written.append(data[:7])  # a pipe may take less than it is given
        return 7

    monkeypatch.setattr(os, "write", write)
    writer = LogWriter(limit=2)
    for number in range(5):
        writer.handle(logging.LogRecord("evalfleet.server.access", logging.INFO, "", 0, f"line {number}", None, None))
    writer.write_waiting()
    told = "3 lines were dropped: stderr is not read fast enough"
    assert b"".join(written).decode() == f"line 0\nline 1\n{told}\n"


def test_the_writer_ends_although_its_pipe_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    held, writing = threading.Event(), threading.Event()

    def write(_descriptor: int, data: bytes) -> int:
        writing.set()
        held.wait(30)
        return len(data)

    monkeypatch.setattr(os, "write", write)
    writer = LogWriter()
    writer.start()
    try:
        writer.handle(logging.LogRecord("x", logging.INFO, "", 0, "x", None, None))
        assert writing.wait(30)
        writer.stop()
    finally:
        held.set()


# -- trees that are refused at the start


def test_a_tree_whose_cases_call_graders_that_it_does_not_hold_is_refused_each_named(tree: Path) -> None:
    (tree / "evals" / "cases").mkdir(parents=True)
    (tree / "evals" / "graders").mkdir()
    (tree / "evals" / "graders" / "quality.py").write_text("def good(t, case, run):\n    return True\n")
    case = "scenarios:\n  - id: a\n    user: hi\n    expect:\n" + "".join(
        f"      - grader: {{name: {name}}}\n" for name in ("quality.good", "quality.bad", "absent.one")
    )
    (tree / "evals" / "cases" / "tone.yaml").write_text(case)
    refused = subprocess.run(command(tree), env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert refused.stdout == ""
    for words in ("evals/cases/tone.yaml:6", "quality.bad", "evals/cases/tone.yaml:7", "absent.one"):
        assert words in refused.stderr
    assert "quality.good" not in refused.stderr


def test_a_tree_with_a_broken_case_file_is_served_with_a_warning(tree: Path) -> None:
    (tree / "evals" / "cases").mkdir(parents=True)
    (tree / "evals" / "cases" / "tone.yaml").write_text("scenarios: 5\n")
    with started(tree) as (process, http):
        assert http.get("/readyz").status_code == 200
        process.terminate()
        _out, errors = process.communicate(timeout=30)
    assert "1 problems in its case files" in errors
