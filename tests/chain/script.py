"""What an agent does in one conversation, drawn by a seed; and the outcome of each scenario, computed from that alone.

The outcomes here are the ones that the chain has to find over the wire. Nothing of evalfleet's reading or judging is
used for them: what was drawn is looked at directly (S8, S11, S12, S17, S19–S22).
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TOOLS = ("ls", "rm", "cat")
HOOKS = ("tools.before", "stop.done")
DECISIONS = ("answered", "deny", "use_default", "failed", "malformed")
SOURCES = ("hooks/a.py", "hooks/b.py", "splox.toolkit.stop")
WORDS = ("alpha", "beta", "gamma")
NEGATIVE = {"tool_not_called", "max_tool_calls", "final_answer_not_contains", "final_answer_max_chars"}


@dataclass(frozen=True)
class Step:
    """`kind` and `said`: `text` words · `calls` [(id, tool)], made at once · `result` (id, words) · `hook` (name,
    decision, source) · `fallback` (name, source) · `answer` words · `usage`, `future`: events that decide nothing.
    `gap`: seconds before it."""

    kind: str
    said: Any
    gap: float


@dataclass(frozen=True)
class Turn:
    """`ending`: succeeded, `agent_exit` (failed by itself), `server_lost` (failed, infrastructure), `never` (until it
    is cancelled), `asks` (waits for a person). `gap`: seconds between the last step and the end."""

    user: str
    queued: float
    steps: tuple[Step, ...]
    ending: str
    gap: float


@dataclass(frozen=True)
class Scripted:
    id: str
    turns: tuple[Turn, ...]
    expect: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Script:
    """`timeout`: of each scenario, in seconds."""

    scenarios: tuple[Scripted, ...]
    timeout: int = 60

    def case(self) -> str:
        """The case file; JSON is YAML."""
        return json.dumps(
            {
                "scenarios": [
                    {
                        "id": s.id,
                        "timeout": f"{self.timeout}s",
                        "user": [t.user for t in s.turns],
                        "expect": list(s.expect),
                    }
                    for s in self.scenarios
                ]
            }
        )

    def turns(self) -> dict[str, Turn]:
        return {turn.user: turn for scenario in self.scenarios for turn in scenario.turns}

    def outcomes(self) -> list[str]:
        """One for each scenario: passed, failed, error, or missing where the platform gives no result however often
        it is asked."""
        found: list[str] = []
        for scenario in self.scenarios:
            if "missing" in found:
                found.append("missing")  # the conversation does not come this far
            else:
                found.append(_outcome(scenario))
        return found


def _outcome(scenario: Scripted) -> str:
    for turn in scenario.turns:
        if turn.ending == "server_lost":
            return "missing"
        if turn.ending in {"never", "asks"}:
            return "error"
    failed_turn = any(turn.ending != "succeeded" for turn in scenario.turns)
    kinds = [(kind, wanted) for assertion in scenario.expect for kind, wanted in assertion.items()]
    if not all(_holds(kind, wanted, scenario.turns) for kind, wanted in kinds):
        return "failed"
    return "failed" if failed_turn and all(kind in NEGATIVE for kind, _ in kinds) else "passed"


def _holds(kind: str, wanted: Any, turns: Sequence[Turn]) -> bool:
    # (turn, step) of each call: calls of one step are at once
    calls = [
        (number, place, tool)
        for number, turn in enumerate(turns)
        for place, step in enumerate(turn.steps)
        if step.kind == "calls"
        for _, tool in step.said
    ]
    if kind == "no_error":
        return all(turn.ending == "succeeded" for turn in turns)
    if kind == "tool_order":
        first, then = ([call[:2] for call in calls if call[2] == wanted[end]] for end in ("first", "then"))
        return bool(first and then) and first[0] < then[0]
    if kind == "result_contains":
        return any(wanted["substring"] in words for words in _results(wanted["name"], turns))
    if kind == "hook_called":
        return _hook(wanted, turns)
    if kind.startswith("final_answer"):
        answer = _answer(turns[-1])
        if answer is None:
            return False
        if kind == "final_answer_max_chars":
            return len(answer) <= int(wanted)
        return (str(wanted) in answer) == (kind == "final_answer_contains")
    number = sum(tool == wanted["name"] for _, _, tool in calls)
    decided: dict[str, bool] = {
        "tool_called": number > 0,
        "tool_not_called": number == 0,
        "min_tool_calls": number >= wanted.get("count", 0),
        "max_tool_calls": number <= wanted.get("count", 0),
    }
    return decided[kind]


def _results(tool: str, turns: Sequence[Turn]) -> list[str]:
    found = []
    for turn in turns:
        names = {id_: name for step in turn.steps if step.kind == "calls" for id_, name in step.said}
        found += [step.said[1] for step in turn.steps if step.kind == "result" and names[step.said[0]] == tool]
    return found


def _hook(wanted: dict[str, Any], turns: Sequence[Turn]) -> bool:
    seen = []
    for turn in turns:
        for step in turn.steps:
            if step.kind in {"hook", "fallback"}:
                name, decision, source = step.said if step.kind == "hook" else (step.said[0], "failed", step.said[1])
                if name == wanted["name"] and not source.startswith("splox.toolkit"):
                    seen.append(decision)
    if "decision" in wanted:
        return wanted["decision"] in seen
    return any(decision not in {"failed", "malformed"} for decision in seen)


def _answer(turn: Turn) -> str | None:
    answers = [step.said for step in turn.steps if step.kind == "answer"]
    texts = [step.said for step in turn.steps if step.kind == "text"]
    return answers[0] if answers else texts[-1] if texts else None


def drawn(draw: random.Random) -> Script:
    """A script of one or two scenarios with one or two turns each."""
    return Script(
        tuple(
            Scripted(
                f"s{number}",
                turns := tuple(_turn(draw, f"s{number}t{turn}") for turn in range(draw.choice((1, 1, 2)))),
                _assertions(draw, turns),
            )
            for number in range(draw.choice((1, 1, 2)))
        )
    )


def _turn(draw: random.Random, user: str) -> Turn:
    steps: list[Step] = []
    left = 24.0

    def gap() -> float:
        nonlocal left
        seconds = min(left, draw.choice((0.0, 0.0, 0.01, 1.0, 3.0, 20.0)))
        left -= seconds
        return seconds

    open_calls: list[str] = []
    for _ in range(draw.randint(0, 8)):
        kind = draw.choice(("text", "calls", "result", "hook", "hook", "fallback", "answer", "usage", "future"))
        if kind == "calls":
            said: Any = [(f"c{len(steps)}.{i}", draw.choice(TOOLS)) for i in range(draw.choice((1, 1, 2)))]
            open_calls += [id_ for id_, _ in said]
        elif kind == "result":
            if not open_calls:
                continue
            said = (open_calls.pop(draw.randrange(len(open_calls))), draw.choice(WORDS))
        elif kind == "hook":
            said = (draw.choice(HOOKS), draw.choice(DECISIONS), draw.choice(SOURCES))
        elif kind == "fallback":
            said = (draw.choice(HOOKS), draw.choice(SOURCES))
        else:
            said = draw.choice(WORDS)
        steps.append(Step(kind, said, gap()))
    ending = draw.choices(("succeeded", "agent_exit", "server_lost", "never", "asks"), (85, 8, 2, 3, 2))[0]
    return Turn(user, draw.choice((0.0, 0.1, 5.0)), tuple(steps), ending, gap())


def _assertions(draw: random.Random, turns: Sequence[Turn]) -> tuple[dict[str, Any], ...]:
    """One, or two of which one is about hooks and the other is not: those cannot contradict each other, which a case
    file is refused for."""
    drawn = [_assertion(draw, turns) for _ in range(draw.choice((1, 1, 2)))]
    return tuple({"hook_called" in assertion: assertion for assertion in drawn}.values())


def _assertion(draw: random.Random, turns: Sequence[Turn]) -> dict[str, Any]:
    """Half of them are about something that is there once: a reader that loses it finds another outcome."""
    hooks = [step.said for turn in turns for step in turn.steps if step.kind == "hook"]
    if hooks and draw.random() < 0.5:
        name, decision, _ = draw.choice(hooks)
        return {"hook_called": {"name": name, "decision": decision}}
    kind = draw.choice(("tool", "order", "result", "hook", "hook", "hook", "answer", "chars", "no_error"))
    tool = draw.choice(TOOLS)
    if kind == "tool":
        count = draw.randint(1, 2)
        return draw.choice(
            (
                {"tool_called": {"name": tool}},
                {"tool_not_called": {"name": tool}},
                {"min_tool_calls": {"name": tool, "count": count}},
                {"max_tool_calls": {"name": tool, "count": count}},
            )
        )
    if kind == "order":
        first, then = draw.sample(TOOLS, 2)
        return {"tool_order": {"first": first, "then": then}}
    if kind == "result":
        return {"result_contains": {"name": tool, "substring": draw.choice(WORDS)}}
    if kind == "hook":
        decision = {"decision": draw.choice(DECISIONS)} if draw.random() < 0.5 else {}
        return {"hook_called": {"name": draw.choice(HOOKS), **decision}}
    if kind == "answer":
        return {draw.choice(("final_answer_contains", "final_answer_not_contains")): draw.choice(WORDS)}
    return {"final_answer_max_chars": draw.randint(3, 6)} if kind == "chars" else {"no_error": True}
