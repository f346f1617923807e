"""How does a test drive the official client? By a process of its own, which holds nothing but that client."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DEADLINE = 90.0
ROBOT = Path(__file__).with_name("sdk_robot.py")


class SdkError(Exception):
    """The client raised. `type` is its class, `bases` that and all above it; the rest is what the client says."""

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__(f"{facts['type']}: {facts['text']}")
        self.type: str = facts["type"]
        self.bases: list[str] = facts["bases"]
        self.status: int | None = facts["status_code"]
        self.code: str | None = facts["code"]
        self.message: str | None = facts["message"]
        self.trace_id: str | None = facts["trace_id"]
        self.errors: list[dict[str, str]] = facts["errors"] or []
        self.retry_after: float | None = facts["retry_after"]
        self.problem: dict[str, Any] | None = facts["problem"]


class Sdk:
    """One client, told by name what to do. `sdk.call("runs.get", run_id)` is `client.runs.get(run_id)`, as JSON."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def call(self, name: str, /, *args: Any, **keywords: Any) -> Any:
        """What the client gave: data classes as objects, an iterator as a list. SdkError where it raised."""
        self.start(name, *args, **keywords)
        return self.answer()

    def start(self, name: str, /, *args: Any, **keywords: Any) -> None:
        """Begin a call; `answer` awaits its end."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"call": name, "args": args, "keywords": keywords}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        line = self._answers.get(timeout=DEADLINE)
        assert line, "the client's process has ended; its stderr is in the test's output"
        answer = json.loads(line)
        if "error" in answer:
            raise SdkError(answer["error"])
        return answer["value"]

    def kill(self) -> None:
        """SIGKILL, and its end is awaited."""
        self._process.kill()
        self._process.wait(DEADLINE)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")


@contextlib.contextmanager
def official(python: str, url: str, token: str, flavour: str = "sync") -> Iterator[Sdk]:
    """The official client, at `url`. `flavour`: `sync` or `async`."""
    process = subprocess.Popen(
        [python, "-P", str(ROBOT), url, token, flavour],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "NO_PROXY": "*"},
    )
    try:
        yield Sdk(process)
    finally:
        process.kill()
        process.wait(DEADLINE)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
