"""What is the suite run against? A base URL, or servers of ours that it starts as processes.

`EVALFLEET_CONFORMANCE_ON` names the deployments of ours, with commas: `sqlite` (the default), `postgres`, and
`postgres-2`: two server processes on one database, which take the requests in turn.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

import httpx

from evalfleet.server import accounts

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "371758ecf28e8240192e4731080a7436fb492a09"
LATER_COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "token-of-the-conformance-suite"
DEADLINE = 30.0

CONFIG = """\
[harness]
name = "{name}"
[harness.command]
argv = ["{python}", "-S", "agent.py"]
[judge]
base_url = "{judge}"
model = "stub"
"""


@dataclass(frozen=True)
class Target:
    """Where the promises are tested. `ours`: the agent is tests/conformance/agent.py, so what it does is known."""

    urls: tuple[str, ...]
    token: str
    other_token: str | None
    harness_id: str
    ours: bool
    commits: tuple[str, ...] = ()  # versions of the harness, newest last
    other_harness_id: str | None = None
    ended_tokens: tuple[str, ...] = ()  # one that is revoked, one that has expired


def foreign() -> Target | None:
    """The target that the environment names."""
    url = os.environ.get("EVALFLEET_CONFORMANCE_URL")
    if not url:
        return None
    return Target(
        urls=(url.rstrip("/"),),
        token=os.environ["EVALFLEET_CONFORMANCE_TOKEN"],
        other_token=os.environ.get("EVALFLEET_CONFORMANCE_OTHER_TOKEN"),
        harness_id=os.environ["EVALFLEET_CONFORMANCE_HARNESS"],
        ours=False,
    )


@contextlib.contextmanager
def deployed(kind: str, folder: Path, postgres: str | None = None) -> Iterator[Target]:
    """Our own servers. They have served an older version before, and serve a second tree."""
    processes = 2 if kind.endswith("-2") else 1
    with _judge() as judge, contextlib.ExitStack() as stack:
        database = stack.enter_context(_database(folder, postgres))
        trees = [_tree(folder, name, judge) for name in ("concierge", "porter")]
        with _server(folder, database, trees[:1], "--commit", COMMIT):
            pass
        second = _token(database, "second", "other")
        ended = _ended_tokens(database)
        urls = [
            stack.enter_context(_server(folder / f"server{number}", database, trees)) for number in range(processes)
        ]
        with httpx.Client(base_url=urls[0], headers={"Authorization": f"Bearer {TOKEN}"}) as http:
            ids = {entry["name"]: entry["id"] for entry in http.get("/v2/harnesses").json()["data"]}
            versions = http.get(f"/v2/harnesses/{ids['concierge']}").json()["versions"]
        yield Target(
            urls=tuple(urls),
            token=TOKEN,
            other_token=second,
            harness_id=ids["concierge"],
            ours=True,
            commits=tuple(version["commit"] for version in reversed(versions)),
            other_harness_id=ids["porter"],
            ended_tokens=ended,
        )


def _tree(folder: Path, name: str, judge: str) -> Path:
    tree = folder / name
    tree.mkdir()
    config = CONFIG.format(name=name, python=sys.executable, judge=judge)
    (tree / "evalfleet.toml").write_text(config, encoding="utf-8")
    (tree / "agent.py").write_bytes((Path(__file__).parent / "agent.py").read_bytes())
    return tree


def _environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EVALFLEET_")}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


@contextlib.contextmanager
def _server(state: Path, database: str, trees: list[Path], *more: str) -> Iterator[str]:
    words = [word for tree in trees for word in ("--tree", str(tree))]
    state.mkdir(exist_ok=True)
    with (state / "stderr").open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "evalfleet.server", "--port", "0", "--database", database,
             "--state", str(state), *words, *more],
            env=_environment(EVALFLEET_TOKEN=TOKEN),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on "), (state / "stderr").read_text(encoding="utf-8")
        yield line.removeprefix("listening on ").strip()
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE)


def _token(database: str, name: str, account: str) -> str:
    made = subprocess.run(
        [sys.executable, "-P", "-m", "scheduler.cli", "token", "create", name, "--account", account, "--expires",
         "1d", "--database", database],
        env=_environment(), capture_output=True, text=True, timeout=DEADLINE, check=True,
    )  # fmt: skip
    return made.stdout.strip()


def _ended_tokens(database: str) -> tuple[str, ...]:
    with accounts.changing(database) as connection:
        token, revoked = accounts.create(connection, "revoked")
        accounts.revoke(connection, token.id)
        _token, expired = accounts.create(connection, "expired", expires=timedelta(microseconds=1))
    return revoked, expired


@contextlib.contextmanager
def _database(folder: Path, postgres: str | None) -> Iterator[str]:
    if postgres is None:
        yield f"sqlite:///{folder / 'server.sqlite3'}"
        return
    import psycopg
    from psycopg.sql import SQL, Identifier

    name = f"conformance_{uuid4().hex}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        try:
            yield httpx.URL(postgres).copy_with(path=f"/{name}").__str__()
        finally:
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


class _Completions(BaseHTTPRequestHandler):
    """An OpenAI-compatible endpoint with one answer to everything; the model `answers 429` answers with that status."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        word, _, status = asked["model"].partition(" ")
        body = (
            b'{"choices":[{"message":{"role":"assistant","content":"0.8"},"finish_reason":"stop"}],'
            b'"usage":{"prompt_tokens":7,"completion_tokens":2}}'
        )
        self.send_response(int(status) if word == "answers" else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Retry-After", "7")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def _judge() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Completions) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
            thread.join()


class InTurn(httpx.BaseTransport):
    """Sends each request to the next of several servers, so that no two that belong together meet the same one."""

    def __init__(self, urls: tuple[str, ...]) -> None:
        self._urls = [httpx.URL(url) for url in urls]
        self._next = itertools.cycle(range(len(urls)))
        self._transport = httpx.HTTPTransport(verify=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = self._urls[next(self._next)]
        request.url = request.url.copy_with(host=url.host, port=url.port)
        request.headers["Host"] = url.netloc.decode("ascii")
        return self._transport.handle_request(request)

    def close(self) -> None:
        self._transport.close()
