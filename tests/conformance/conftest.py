"""Against what, and with which hands? Every answer is held against `/openapi.json` on the way."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import uuid4

import httpx
import pytest

from tests.conformance.deployments import DEADLINE, InTurn, Target, deployed, foreign
from tests.conformance.openapi import Described

TERMINAL = ("succeeded", "failed", "cancelled")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" in metafunc.fixturenames:
        named = os.environ.get("EVALFLEET_CONFORMANCE_ON", "sqlite").split(",")
        kinds = ["url"] if foreign() is not None else [kind.strip() for kind in named]
        on = {kind: [pytest.mark.integration] if kind.startswith("postgres") else [] for kind in kinds}
        deployments = [pytest.param(kind, marks=on[kind]) for kind in kinds]
        metafunc.parametrize("target", deployments, indirect=True, scope="session")


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """What is tested."""
    kind = request.param
    if kind == "url":
        yield cast(Target, foreign())
        return
    postgres = request.getfixturevalue("postgres_url") if kind.startswith("postgres") else None
    with deployed(kind, tmp_path_factory.mktemp(kind), postgres) as target:
        yield target


@dataclass
class Caller:
    """One account's hands on the API."""

    http: httpx.Client
    target: Target
    described: Described | None
    harness_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.harness_id = self.target.harness_id

    def send(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Any request; its answer has been held against the schema."""
        answer = self.http.request(method, path, **more)
        if self.described is not None:
            is_json = "json" in answer.headers.get("content-type", "") and answer.content
            self.described.check(answer, answer.json() if is_json else None)
        return answer

    def get(self, path: str, **params: Any) -> Any:
        """The document at `path`."""
        answer = self.send("GET", path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any = None, *, key: str | None = None, **more: Any) -> httpx.Response:
        headers = dict(more.pop("headers", {}))
        if key is not None:
            headers["Idempotency-Key"] = key
        if body is None:
            return self.send("POST", path, headers=headers, **more)
        return self.send("POST", path, json=body, headers=headers, **more)

    def run_body(self, text: str = "hello", **more: Any) -> dict[str, Any]:
        content = [{"type": "text", "text": text}]
        return {"harness_id": self.harness_id, "input": {"role": "user", "content": content}, **more}

    def create(self, text: str = "hello", **more: Any) -> dict[str, Any]:
        answer = self.post("/v2/runs", self.run_body(text, **more), key=fresh())
        assert answer.status_code == 201, answer.text
        return cast(dict[str, Any], answer.json())

    def ended(self, run_id: str) -> dict[str, Any]:
        """The run once it is terminal: told by its stream, then read."""
        self.stream(run_id)
        run = cast(dict[str, Any], self.get(f"/v2/runs/{run_id}"))
        assert run["status"] in TERMINAL
        return run

    def play(self, text: str = "hello", **more: Any) -> dict[str, Any]:
        return self.ended(self.create(text, **more)["id"])

    def status_of(self, run_id: str, *wanted: str) -> dict[str, Any]:
        """The run once it is in one of these states."""
        deadline = time.monotonic() + DEADLINE
        while True:
            run = cast(dict[str, Any], self.get(f"/v2/runs/{run_id}"))
            if run["status"] in wanted:
                return run
            assert time.monotonic() < deadline, run
            time.sleep(0.02)

    @contextlib.contextmanager
    def streaming(self, run_id: str, headers: dict[str, str] | None = None, **params: str) -> Iterator[httpx.Response]:
        """The open stream of a run."""
        wanted = {"Accept": "text/event-stream", **(headers or {})}
        with self.http.stream("GET", f"/v2/runs/{run_id}/events", headers=wanted, params=params) as answer:
            yield answer

    def stream(self, run_id: str, headers: dict[str, str] | None = None, **params: str) -> list[dict[str, Any]]:
        """All events to the end of the stream."""
        with self.streaming(run_id, headers, **params) as answer:
            assert answer.status_code == 200, answer.read()
            return [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]

    def evaluation_body(self, keys: str = "a", k: int = 1, **more: Any) -> dict[str, Any]:
        """One case for each letter of `keys`."""
        return {
            "harness_id": self.harness_id,
            "suite": {"key": f"suite-{uuid4()}"},
            "k": k,
            "cases": [{"key": key} for key in keys],
            **more,
        }

    def evaluation(self, keys: str = "a", k: int = 1, **more: Any) -> dict[str, Any]:
        answer = self.post("/v2/evaluations", self.evaluation_body(keys, k, **more), key=fresh())
        assert answer.status_code == 201, answer.text
        return cast(dict[str, Any], answer.json())

    def record(self, evaluation: dict[str, Any], *attempts: dict[str, Any], **more: Any) -> httpx.Response:
        return self.post(f"/v2/evaluations/{evaluation['id']}/attempts:batch", {"attempts": list(attempts)}, **more)

    def end(self, evaluation: dict[str, Any], act: str = "complete", **more: Any) -> httpx.Response:
        return self.post(f"/v2/evaluations/{evaluation['id']}/{act}", **more)


def fresh() -> str:
    """A key that nobody has used."""
    return str(uuid4())


def attempt(key: str, index: int, run: dict[str, Any], verdict: str = "passed", **more: Any) -> dict[str, Any]:
    named = {} if "case_id" in more else {"case_key": key}
    scorer = {"scorer_id": "checks", "scorer_version": "1"}
    return {**named, "attempt_index": index, "run_id": run["id"], "verdict": verdict, **scorer, **more}


@contextlib.contextmanager
def calling(target: Target, token: str | None, described: Described | None = None) -> Iterator[Caller]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with httpx.Client(
        base_url=target.urls[0], headers=headers, timeout=DEADLINE, transport=InTurn(target.urls), trust_env=False
    ) as http:
        yield Caller(http, target, described)


@pytest.fixture(scope="session")
def described(target: Target) -> Described | None:
    """What the server says of itself; None where it says nothing."""
    with calling(target, target.token) as caller:
        answer = caller.http.get("/openapi.json")
    if answer.status_code != 200 and not target.ours:
        return None
    assert answer.status_code == 200
    return Described(answer.json())


@pytest.fixture(scope="session")
def api(target: Target, described: Described | None) -> Iterator[Caller]:
    """The first account."""
    with calling(target, target.token, described) as caller:
        yield caller


@pytest.fixture(scope="session")
def other(target: Target, described: Described | None) -> Iterator[Caller]:
    """A second account."""
    if target.other_token is None:
        pytest.skip("EVALFLEET_CONFORMANCE_OTHER_TOKEN names no second account")
    with calling(target, target.other_token, described) as caller:
        yield caller


@pytest.fixture(scope="session")
def anybody(target: Target, described: Described | None) -> Iterator[Caller]:
    """Without a token."""
    with calling(target, None, described) as caller:
        yield caller


@pytest.fixture(scope="session")
def ours(target: Target) -> Target:
    """Asked for by a test that must know what the agent does."""
    if not target.ours:
        pytest.skip("needs the agent of tests/conformance/agent.py")
    return target


@pytest.fixture(scope="session")
def finished(api: Caller) -> dict[str, Any]:
    """A run that has ended well."""
    run = api.play("finished")
    assert run["status"] == "succeeded"
    return run


@dataclass
class Silence:
    """A stream on which nothing happens, read in the background: silence takes its time."""

    run_id: str
    lines: list[tuple[float, str]]
    thread: threading.Thread
    began: float


@pytest.fixture(scope="session", autouse=True)
def silence(target: Target, api: Caller) -> Iterator[Silence | None]:
    if not target.ours:
        yield None
        return
    run = api.create("wait")
    seen: list[tuple[float, str]] = []

    def read() -> None:
        with calling(target, target.token) as caller, caller.streaming(run["id"]) as answer:
            seen.extend((time.monotonic(), line) for line in answer.iter_lines())

    thread = threading.Thread(target=read)
    began = time.monotonic()
    thread.start()
    yield Silence(run["id"], seen, thread, began)
    api.post(f"/v2/runs/{run['id']}/cancel")
    thread.join(DEADLINE)


def assert_problem(answer: httpx.Response, status: int, code: str, *names: str) -> dict[str, Any]:
    """The one shape of every error (wire.md, "Problem documents"), with these names in `errors[]`."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = cast(dict[str, Any], answer.json())
    assert document["code"] == code, document
    assert document["type"] == f"https://api.splox.com/problems/{code}"
    assert document["status"] == status
    assert document["title"]
    assert document["detail"]
    assert "Traceback" not in answer.text
    entries = document.get("errors", [])
    for entry in entries:
        assert set(entry) == {"name", "location", "reason", "code"}
        assert entry["location"] in ("body", "path", "query", "header", "server")
    for name in names:
        assert name in [entry["name"] for entry in entries], document
    return document
