"""A tree for each test: an agent, case files, and the command to run on them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import Command, Finished, await_true, left_running

AGENTS = Path(__file__).resolve().parent / "agents"

TALKER = '''
"""Does what it is told: `say WORDS`, `sleep SECONDS WORDS`, `until FILE WORDS`, `only TRIALS WORDS`, `for ever`."""
import json, os, sys, time
turn = json.load(sys.stdin)
if os.environ.get("COUNT_FILE"):
    descriptor = os.open(os.environ["COUNT_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, (json.dumps([time.time(), "start", turn["chat_id"], turn["message"]]) + "\\n").encode())
word, _, rest = turn["message"].partition(" ")
if word == "sleep":
    seconds, _, rest = rest.partition(" ")
    time.sleep(float(seconds))
if word == "until":
    file, _, rest = rest.partition(" ")
    while not os.path.exists(file):
        time.sleep(0.05)
if word == "for":
    while True:
        time.sleep(60)
if word == "only":
    trials, _, rest = rest.partition(" ")
    if turn["metadata"]["evalfleet.trial"] not in map(int, trials.split(",")):
        rest = "nothing"
if os.environ.get("COUNT_FILE"):
    os.write(descriptor, (json.dumps([time.time(), "end", turn["chat_id"], turn["message"]]) + "\\n").encode())
print(rest)
'''


class Tree:
    """A harness' tree, and what a user does in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.count_file = root / "calls.jsonl"
        (root / "evals/cases").mkdir(parents=True)
        (root / "agent.py").write_text(TALKER)
        self.configure()

    def configure(self, more: str = "", argv: list[str] | None = None) -> None:
        argv = [sys.executable, "-S", "agent.py"] if argv is None else argv
        (self.root / "evalfleet.toml").write_text(
            f'{more}\n[harness]\nname = "talker"\nfiles = ["agent.py"]\n[harness.command]\nargv = {json.dumps(argv)}\n'
        )

    def case(self, name: str, text: str) -> None:
        (self.root / f"evals/cases/{name}.yaml").write_text(text)

    def grader(self, name: str, text: str) -> None:
        (self.root / "evals/graders").mkdir(exist_ok=True)
        (self.root / f"evals/graders/{name}.py").write_text(text)

    def start(self, *arguments: str, environment: Mapping[str, str] | None = None, **more: Any) -> Command:
        counted = {"COUNT_FILE": str(self.count_file), **(environment or {})}
        return Command(*arguments, home=self.root, environment=counted, **more)

    def run(self, *arguments: str, within: float = 90.0, **more: Any) -> Finished:
        with self.start(*arguments, **more) as command:
            return command.wait(within)

    def calls(self) -> list[tuple[float, str, str, str]]:
        """What the agent wrote down: (time, "start" or "end", chat, message), in this order."""
        if not self.count_file.exists():
            return []
        return [tuple(json.loads(line)) for line in self.count_file.read_text().splitlines()]

    def started(self) -> int:
        """How many turns the agent has begun, in all commands."""
        return sum(1 for call in self.calls() if call[1] == "start")

    def artifact(self) -> Path:
        """The only result there is."""
        (found,) = (path for path in (self.root / "evals/results").iterdir() if path.is_dir())
        return found

    def lines(self) -> list[dict[str, Any]]:
        """The merged attempt lines of the only result, context left out."""
        text = (self.artifact() / "trials.jsonl").read_text()
        return [line for line in map(json.loads, text.splitlines()) if not line.get("context")]

    def summary(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.artifact() / "summary.json").read_bytes())
        return document

    def is_quiet(self) -> bool:
        """Whether nothing that was started here is left running."""
        return sys.platform != "linux" or not left_running(self.root)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    made = Tree(tmp_path)
    yield made
    await_true(made.is_quiet, "every process of this tree ends", within=15)
