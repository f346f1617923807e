"""What happened in one trial, told so that a person sees why it failed?

Turns with their tool calls, hooks and answers, then every assertion's sentence in file order, the graders' answers and
logs, and the tries. All of it is somebody else's text: it is shown with control characters visible, never as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from evalfleet.checks.hooks import NO_ANSWER
from evalfleet.checks.outcome import GraderAnswer
from evalfleet.checks.scenario import Scenario
from evalfleet.checks.text import compact_json, plain_number, trial_number
from evalfleet.checks.trial import HookCall, ToolCall, Trial
from scheduler.layout import clean, duration, paragraphs, wrap

MOST_SHOWN = 4000
"""Characters of one text (an answer, a tool's result, a log) that are shown; the artifact has all of it."""

OUTCOMES = {"passed": "PASSED", "failed": "FAILED", "error": "ERROR", "missing": "MISSING"}
STYLES = {"passed": "green", "failed": "bold red", "error": "bold red", "missing": "magenta"}
_LABEL = 9


def transcript(
    line: Mapping[str, Any],
    trials: int | None,
    width: int | None,
    scenario: Scenario | None = None,
    *,
    most: int | None = MOST_SHOWN,
) -> Iterator[Text]:
    """One attempt line as text. `trials`: how many the scenario has, if it was scored. `scenario`: what it was judged
    by; then an assertion that did not pass says where it stands. `most`: characters of one text; None: all."""
    page = _Page(width, most)
    trial, unreadable = _trial(line)
    yield from _head(page, line, trials, trial)
    if scenario is not None and scenario.given is not None:
        yield from page.entry("row", f"{scenario.place.file}:{scenario.place.line}")
    if unreadable:
        yield from page.entry("damaged", f"what happened cannot be read: {unreadable}", "bold red")
    if trial is not None:
        for number in range(len(trial.turns)):
            yield Text()
            yield from _turn(page, trial, number)
    findings = line.get("findings") or ()
    if findings:
        yield from page.title("expectations")
        for finding in findings:
            yield from _finding(page, finding, scenario)
    graders = line.get("graders") or ()
    if graders:
        yield from page.title("graders")
        for answer in graders:
            try:
                yield from _grader(page, GraderAnswer.from_json(answer))
            except ValueError as problem:
                yield from page.entry("damaged", str(problem), "bold red")
    yield from _conversation(page, line.get("tries") or (), line.get("usage"), played=trial is not None)


def _trial(line: Mapping[str, Any]) -> tuple[Trial | None, str]:
    """What happened, or why it cannot be read."""
    try:
        return (Trial.from_json(line["trial_record"]) if line.get("trial_record") else None), ""
    except ValueError as problem:
        return None, str(problem)


class _Page:
    """Labelled texts, wrapped under each other."""

    def __init__(self, width: int | None, most: int | None) -> None:
        self.width = width
        self.most = most

    def title(self, text: str) -> Iterator[Text]:
        yield Text()
        yield Text(text, "bold")

    def entry(self, label: str, text: str, style: str = "", *, indent: int = 2) -> Iterator[Text]:
        """`label` in front of the first line; all lines of `text` start in the same column."""
        column = indent + _LABEL
        for index, part in enumerate(self._lines(text, column)):
            front = (" " * indent + label).ljust(column) if index == 0 else " " * column
            if len(front) > column or (index == 0 and len(label) >= _LABEL):
                front = " " * indent + label + "  "
            line = Text().append(front, style if index == 0 else "").append(part)
            line.rstrip()
            yield line

    def _lines(self, text: str, column: int) -> Iterator[str]:
        for part in paragraphs(text, len(text) if self.most is None else self.most):
            yield from wrap(part, None if self.width is None else self.width - column)


def _head(page: _Page, line: Mapping[str, Any], trials: int | None, trial: Trial | None) -> Iterator[Text]:
    of = f" of {trials}" if trials else ""
    number = trial_number(line["trial"])
    title = Text().append(f"{clean(line['case'])}/{clean(line['scenario'])}  trial {number}{of}  ", "bold")
    if line.get("context"):
        title.append("context: played, never scored", "dim")
    else:
        title.append(OUTCOMES.get(line["outcome"], clean(line["outcome"])), STYLES.get(line["outcome"], ""))
    if trial is not None:
        title.append(f"  {duration(trial.duration_ms)}", "dim")
    yield title
    if line.get("recorded") == "elsewhere":
        yield from page.entry("note", "the evaluation holds another run for this attempt; this is what was played here")
    if line.get("reason"):
        yield from page.entry("reason", str(line["reason"]))
    if line.get("judge_score") is not None:
        yield from page.entry("score", str(line["judge_score"]))
    if trial is not None and trial.not_played and trial.not_played != line.get("reason"):
        yield from page.entry("note", trial.not_played)
    for note in trial.notes if trial is not None else ():
        yield from page.entry("note", note, "yellow")


def _turn(page: _Page, trial: Trial, number: int) -> Iterator[Text]:
    turn = trial.turns[number]
    heading = Text().append(f"turn {number + 1}", "bold")
    heading.append(f"  {clean(turn.status)}  {clean(turn.run_id)}", "dim")
    yield heading
    yield from page.entry("user", turn.user)
    for call in trial.tool_calls:
        if call.turn == number:
            yield from _call(page, call)
    for hook in trial.hooks:
        if hook.run_id == turn.run_id:
            yield from _hook(page, hook)
    if turn.failure:
        said = [str(turn.failure[key]) for key in ("code", "message") if turn.failure.get(key)]
        yield from page.entry("failure", ": ".join(said) or compact_json(turn.failure), "red")
    yield from page.entry("answer", "(none)" if turn.answer is None else turn.answer or '""')


def _call(page: _Page, call: ToolCall) -> Iterator[Text]:
    yield from page.entry("call", f"{call.name} {compact_json(call.args)}", "cyan")
    if call.has_result:
        result = call.result if isinstance(call.result, str) else compact_json(call.result)
        yield from page.entry("result", result or '""', "cyan")
    else:
        yield from page.entry("result", "(none came)", "cyan")


def _hook(page: _Page, hook: HookCall) -> Iterator[Text]:
    details = [hook.source] if hook.source else []
    if hook.duration_ms is not None:
        details.append(duration(hook.duration_ms))
    if hook.fallback:
        details.append("fallback: it did not answer, an earlier answer was used")
    after = f" ({', '.join(details)})" if details else ""
    said = f": {hook.error}" if hook.error else ""
    style = "red" if hook.decision in NO_ANSWER else "yellow"
    yield from page.entry("hook", f"{hook.hook}: {hook.decision}{after}{said}", style)


def _finding(page: _Page, finding: Mapping[str, Any], scenario: Scenario | None) -> Iterator[Text]:
    label, style = {True: ("passed", "green"), False: ("FAILED", "bold red")}.get(
        finding.get("passed"),  # type: ignore[arg-type]  # null: could not be decided
        ("open", "magenta"),
    )
    index = finding.get("index")
    known = scenario is not None and isinstance(index, int) and 0 <= index < len(scenario.expect)
    place = scenario.expect[index].place if known and label != "passed" else None  # type: ignore[union-attr,index]
    at = f" ({place})" if place is not None else ""
    yield from page.entry(label, f"{finding.get('kind')}: {finding.get('sentence')}{at}", style)


def _grader(page: _Page, answer: GraderAnswer) -> Iterator[Text]:
    if answer.kind == "answered":
        said = "passed" if answer.passed else "failed"
        said += "" if answer.score is None else f", score {plain_number(answer.score)}"
    else:
        said = answer.kind.replace("_", " ")
    yield from page.entry("grader", f"{answer.name}: {said} ({duration(answer.duration_ms)})", "bold")
    for label, text in (("why", answer.why), ("error", answer.error)):
        if text:
            yield from page.entry(label, text)
    if answer.llm_calls:
        price = f", {answer.llm_amount} {answer.llm_currency or 'USD'}" if answer.llm_amount else ""
        yield from page.entry(
            "judge",
            f"{answer.llm_calls} call{'' if answer.llm_calls == 1 else 's'}, {answer.llm_tokens:,} tokens{price}",
        )
    if answer.log:
        yield from page.entry("log", answer.log.rstrip("\n"))


def _conversation(
    page: _Page, tries: Sequence[Mapping[str, Any]], usage: Mapping[str, Any] | None, *, played: bool
) -> Iterator[Text]:
    """Its chat and what that used; every try with its runs, where the turns above are not all there is to tell."""
    plain = played and len(tries) == 1 and not tries[0].get("reason")
    if tries and not plain:
        yield from page.title("tries")
        for number, one in enumerate(tries, start=1):
            reason = f": {one['reason']}" if one.get("reason") else ""
            yield from page.entry(f"try {number}", f"{one.get('chat_id') or 'no chat'}{reason}")
            for run in one.get("run_ids") or ():
                yield from page.entry("", str(run))
    if not plain and not usage:
        return
    yield from page.title("conversation")
    if plain:
        yield from page.entry("chat", str(tries[0].get("chat_id") or "no chat"))
    if usage:
        estimate = "" if usage.get("final") else " (an estimate)"
        tokens = [
            f"{usage[key]:,} {key.replace('_', ' ')}" for key in ("input_tokens", "output_tokens") if _whole(usage, key)
        ]
        money = f"{usage['amount']} {usage.get('currency') or ''}".strip() if usage.get("amount") is not None else ""
        spent = ", ".join(part for part in (*tokens, money) if part) or "nothing"
        yield from page.entry("spent", f"{spent}{estimate}")


def _whole(usage: Mapping[str, Any], key: str) -> bool:
    return isinstance(usage.get(key), int) and not isinstance(usage[key], bool)
