"""What is no agent's doing is never an agent's result, through a real server and worker: a server that was stopped
(N27), an endpoint that is away for seconds or says "later" (N15)."""

from __future__ import annotations

import email.utils
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.e2e.command import await_true, needs_proc, part_pid
from tests.e2e.conftest import Tree

pytestmark = pytest.mark.e2e

ALLOWED, WINDOW = 5, 2.0


class Service:
    """An agent that allows so many requests in each window of time and says so as a provider does."""

    def __init__(self, port: int) -> None:
        self.taken = self.refused = 0
        self._window = [0.0, 0]
        self._guard = threading.Lock()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                turn = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, headers, said = service.answer(turn)
                body = json.dumps(said).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Type": "application/json"}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)

    def answer(self, turn: dict[str, Any]) -> tuple[int, dict[str, str], dict[str, Any]]:
        with self._guard:
            now = time.monotonic()
            if now - self._window[0] > WINDOW:
                self._window[:] = [now, 0]
            self._window[1] += 1
            if self._window[1] <= ALLOWED:
                self.taken += 1
                return 200, {}, {"answer": f"{turn['message']} after {len(turn['history'])}"}
            self.refused += 1
            left = WINDOW - (now - self._window[0]) + 1
            told = email.utils.formatdate(time.time() + left, usegmt=True)
            return 429, {"Retry-After": told}, {"error": {"message": "slow down"}}


@contextmanager
def serving(port: int) -> Iterator[Service]:
    service = Service(port)
    thread = threading.Thread(target=service.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield service
    finally:
        service.server.shutdown()
        service.server.server_close()
        thread.join()


def test_n15_an_endpoint_that_is_away_and_then_limits_is_waited_for_and_every_attempt_is_recorded(
    tree: Tree, free_port: int
) -> None:
    """Two turns in each of four conversations. The timeout is shorter than the waiting."""
    tree.case(
        "a",
        "defaults: {trials: 4, timeout: 1s}\n"
        "scenarios:\n  - {id: one, user: [hello, there], expect: [{final_answer_contains: there after 2}]}\n",
    )
    (tree.root / "evalfleet.toml").write_text(
        f'[harness]\nname = "talker"\nfiles = ["agent.py"]\n[harness.http]\nurl = "http://127.0.0.1:{free_port}/turn"\n'
    )
    with tree.start("eval", "-j", "4") as evaluation:
        evaluation.await_line(f"the agent's endpoint http://127.0.0.1:{free_port}/turn cannot be reached")
        with serving(free_port) as service:
            done = evaluation.wait(90).check(0, "4/4")
    assert "asks to wait" in done.err
    assert "server asked everybody to wait" in done.err
    assert all(len(line["tries"]) == 1 for line in tree.lines()), "waiting costs no try"
    assert service.taken == 8, "no turn was played twice"
    assert 1 <= service.refused <= 8, "without pauses there are hundreds"


@needs_proc
def test_n27_agents_that_play_while_the_server_is_stopped_are_not_timed_out(tree: Tree) -> None:
    """They take a fifth of a second each; the server stands still for longer than their timeout."""
    tree.case(
        "a", "defaults: {trials: 3, timeout: 3s}\nscenarios:\n"
        "  - {id: one, user: until go hello, expect: [{final_answer_contains: hello}]}\n",
    )  # fmt: skip
    with tree.start("eval", "-j", "3") as evaluation:
        await_true(lambda: tree.started() == 3, "three agents are at work")
        server = part_pid(tree.root, "server")
        assert server is not None
        os.kill(server, signal.SIGSTOP)
        (tree.root / "go").touch()
        await_true(lambda: len(tree.calls()) == 6, "the agents have ended")
        time.sleep(3.5)  # the time-out passes
        os.kill(server, signal.SIGCONT)
        evaluation.wait(90).check(0, "3/3")
    codes = [entry["reason"] or "" for line in tree.lines() for entry in line["tries"][:-1]]
    assert len(codes) == 3
    assert all("server_lost" in reason and "stopped" in reason for reason in codes)
