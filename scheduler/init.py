"""What does `evalfleet init` write, so that somebody sees a first result within a minute?

A settings file, an agent of thirty lines, a case, a grader, a CI job and what git leaves out. The result validates and
runs as it stands.
A file that is there already is never touched.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evalfleet.errors import ConfigError, UnfitHost
from evalfleet.tree import CONFIG_FILE
from evalfleet.treeconfig import TreeConfig, read_tree_config
from scheduler.ci_job import REQUIREMENT, ci_job, keys_of, requirement

CASE = "evals/cases/first.yaml"
GRADER = "evals/graders/first.py"
AGENT = "agent.py"
CI_JOB = ".github/workflows/evals.yml"
IGNORED = ".gitignore"

_JUDGE_KEY: Final = "OPENAI_API_KEY"

_CONFIG_TEXT: Final = """\
# What is evaluated, and how it is run. Every key: docs/configuration.md of evalfleet.
# No secret belongs here: agents inherit the environment, and keys are named (api_key_env), never written.

[eval]
suite = "checks"
concurrency = 8

[harness]
name = "{name}"

# The agent: a program that plays one turn. [harness.http] and [harness.openai] are the other two ways.
[harness.command]
argv = ["python3", "agent.py"]

# What graders may use beside the standard library: an interpreter with your packages (the CI job installs
# requirements.txt into .venv, for the agent too), and a judge model for t.llm.
# [graders]
# python = ".venv/bin/python"
# [judge]
# base_url = "https://api.openai.com/v1"
# model = "gpt-4.1-mini"
# api_key_env = "OPENAI_API_KEY"
"""

_CASE_TEXT: Final = """\
# One case: its scenarios are played in order, in one conversation, `trials` times.
defaults: {trials: 2, timeout: 60s}

scenarios:
  - id: greets-by-name
    user: Hello, my name is Ada.
    expect:
      - final_answer_contains: Ada
      - final_answer_max_chars: 80
      - no_error: true

  - id: remembers-and-looks-up
    user:
      - What is my name?
      - What time is it?
    trials: 3
    expect:
      - tool_called: {name: clock, args: {zone: UTC}}
      - result_contains: {name: clock, substring: "12:00"}
      - grader: {name: first.tells_the_time, pass_below: 0.5}
"""

_GRADER_TEXT: Final = '''\
"""Judges that cases call by name: `first.tells_the_time` is the function below."""

import re


def tells_the_time(t, case, run):
    """Does the answer hold a time of day? (`t.llm(prompt)` would ask the judge model of evalfleet.toml.)"""
    found = re.search(r"\\b\\d{1,2}:\\d{2}\\b", run["final_answer"] or "")
    return {"pass": bool(found), "score": 1.0 if found else 0.0, "why": f"asked {case['user'][-1]!r}"}
'''

_AGENT_TEXT: Final = '''\
"""A first agent, to be replaced by yours. It is started once for each turn.

stdin: one JSON object {chat_id, run_id, turn, message, history: [{role, text}], metadata}.
stdout: plain text is the answer; or JSON Lines, as here.
"""

import json
import re
import sys


def say(**line):
    print(json.dumps(line), flush=True)


turn = json.load(sys.stdin)
message = turn["message"]
told = " ".join(entry["text"] for entry in turn["history"] if entry["role"] == "user") + " " + message
name = re.search(r"my name is (\\w+)", told)

if "time" in message:
    say(type="tool_call", id="1", name="clock", args={"zone": "UTC"})
    say(type="tool_result", id="1", output="12:00")
    say(type="answer", text="It is 12:00 UTC.")
elif "my name?" in message:
    say(type="answer", text=f"You are {name[1]}." if name else "You have not told me.")
else:
    say(type="answer", text=f"Hello, {name[1]}!" if name else "Hello!")
'''

_GITIGNORE_TEXT: Final = """\
# What evalfleet writes here: its state, and the results of evaluations.
.evalfleet/
evals/results/
# Environments, what Python compiles, and files of variables (--env-file), which hold keys.
.venv/
__pycache__/
.env
"""


@dataclass(frozen=True, slots=True)
class Initialised:
    """Paths from the folder: what was written, and what was there already and is as it was."""

    folder: Path
    written: tuple[str, ...]
    left_alone: tuple[str, ...]
    to_do: tuple[str, ...] = ()
    """What only a person can add, in sentences."""

    def render(self) -> str:
        lines = [f"wrote {path}" for path in self.written]
        lines += [f"left {path} alone: it was there already" for path in self.left_alone]
        lines += self.to_do
        first = "" if self.folder.resolve() == Path.cwd().resolve() else f"cd {self.folder} && "
        lines.append(f"next: {first}evalfleet eval" if self.written else "nothing to write: everything is there")
        return "\n".join(lines)


def init(folder: Path) -> Initialised:
    """Write a first tree into `folder` (made if need be). UnfitHost when it takes no file."""
    folder = folder.expanduser()
    found = requirement()
    written, left_alone = [], []
    for path, text in _files(folder, found).items():
        if _write_new(folder / path, text):
            written.append(path)
        else:
            left_alone.append(path)
    to_do = [f"add to {IGNORED}: {' '.join(missing)}"] if (missing := _not_ignored(folder)) else []
    if CI_JOB in written and found is None:
        to_do.append(f"in CI: set {REQUIREMENT} to where CI gets this evalfleet from ({CI_JOB} says how)")
    return Initialised(folder, tuple(written), tuple(left_alone), tuple(to_do))


def _files(folder: Path, found: str | None) -> Mapping[str, str]:
    """Where settings or cases are there already, what belongs to the example is not written beside them: its agent
    would be nobody's, its case would be played against another agent."""
    name = "".join(
        character for character in folder.resolve().name if character.isprintable() and character not in '"\\'
    )
    files = {CONFIG_FILE: _CONFIG_TEXT.replace("{name}", name.strip() or "agent")}
    if not os.path.lexists(folder / CONFIG_FILE):
        files[AGENT] = _AGENT_TEXT
    if os.path.lexists(folder / CASE) or not any((folder / "evals" / "cases").glob("*.y*ml")):
        files |= {CASE: _CASE_TEXT, GRADER: _GRADER_TEXT}
    return {**files, IGNORED: _GITIGNORE_TEXT, CI_JOB: _ci_job(folder, found)}


def _ci_job(folder: Path, found: str | None) -> str:
    """With the keys that settings of one's own name; with the judge's of the example where there are none."""
    if not os.path.lexists(folder / CONFIG_FILE):
        return ci_job(TreeConfig(root=folder), [_JUDGE_KEY], found)
    try:
        config = read_tree_config(folder)
    except ConfigError:  # `validate` says what is wrong with it; the job is right without its keys
        return ci_job(TreeConfig(root=folder), [], found)
    return ci_job(config, keys_of(config), found)


def _not_ignored(folder: Path) -> list[str]:
    """What evalfleet writes and a .gitignore of one's own does not name."""
    try:
        text = (folder / IGNORED).read_text(encoding="utf-8", errors="replace")
    except OSError:  # a link to nowhere, or a folder
        return []
    named = {line.strip().strip("/") for line in text.split("\n")}
    return [path for path in (".evalfleet/", "evals/results/") if path.strip("/") not in named]


def _write_new(path: Path, text: str) -> bool:
    """Whether the file is new; one that exists, or a link of that name, stays as it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        if path.parent.is_dir():
            return False
        raise UnfitHost(f"{path.parent} is a file, and a folder is needed there") from None
    except OSError as error:
        raise UnfitHost(f"{path} cannot be written: {error.strerror or error}") from error
    return True
