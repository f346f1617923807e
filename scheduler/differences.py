"""How does a person read what is different: verdicts that were judged anew, and two results side by side?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from evalfleet.checks.comparison import IMPROVED, REGRESSED, SAME, UNDECIDED, WEAKER, Comparison, Judged, Pair
from evalfleet.checks.text import trial_number
from scheduler.changes import Changes, ScenarioChange
from scheduler.compare import Compared
from scheduler.layout import clean, wrap
from scheduler.render import STYLES, WORDS

MOST_LISTED = 20
"""Names of one kind that are listed; the others are counted."""

_MOVES = {REGRESSED: "bold red", WEAKER: "red", IMPROVED: "green", UNDECIDED: "magenta"}


def change_lines(changes: Changes, width: int | None) -> Iterator[Text]:
    """A diff of verdicts: was → is, for how many trials, and why (S32)."""
    if not changes.scenarios:
        yield Text("no verdict differs from what was recorded")
    for change in changes.scenarios:
        line = Text(f"{clean(change.case)}/{clean(change.scenario)}  ")
        yield _was_is(line, change.was, change.now).append(f"  {_attempts(change)}")
        why = f"trial {trial_number(change.trial)}: {change.sentence}" if change.sentence else ""
        for words in (change.cause, why):
            yield from _indented(clean(words), width) if words else ()
    if changes.stale:
        number = len(changes.stale)
        yield Text(f"{number} {'scenario is' if number == 1 else 'scenarios are'} stale, and kept as recorded:")
        listed = (f"{case}/{scenario}: {why}" for case, scenario, why in changes.stale[:MOST_LISTED])
        for words in listed:
            yield from _indented(clean(words), width)
        yield from _rest(number)


def comparison_lines(compared: Compared, width: int | None) -> Iterator[Text]:
    """What moved, one line for each scenario, then the counts with their p, then what found no pair (S31)."""
    comparison = compared.comparison
    yield Text(f"compared with {clean(compared.place)}, commit {compared.commit[:12]}")
    if compared.note:
        yield from _indented(clean(compared.note), width)
    for move in _MOVES:
        for pair in comparison.pairs:
            if pair.move == move:
                yield from _pair_lines(pair, width)
    yield Text(_counts(comparison))
    yield from _listed("changed since", [f"{key}: {', '.join(what)}" for key, what in comparison.changed], width)
    others = [f"{key}: {before} trials, now {now}" for key, before, now in comparison.other_k]
    yield from _listed("with another number of trials", others, width)
    yield from _listed("new", list(comparison.new), width)
    yield from _listed("removed", list(comparison.removed), width)
    yield from _listed("not selected on one side", list(comparison.not_selected), width)


def recorded_lines(evaluations: Sequence[Mapping[str, Any]], width: int | None) -> Iterator[Text]:  # noqa: ARG001 - a Section
    """Which evaluations new verdicts were put on (S32)."""
    for document in evaluations:
        yield Text(f"recorded on {document['id']} (k={document['k']}, {document['status']})")


def _pair_lines(pair: Pair, width: int | None) -> Iterator[Text]:
    line = Text(pair.move.ljust(len(REGRESSED)), _MOVES[pair.move])
    line.append(f"  {clean(pair.key)}  ", "default")
    yield _was_is(line, pair.before.verdict, pair.now.verdict, _of(pair.before), _of(pair.now))
    if pair.now.first_failure and pair.move != IMPROVED:
        yield from _indented(clean(pair.now.first_failure), width)


def _was_is(line: Text, was: str, now: str, of_was: str = "", of_now: str = "") -> Text:
    line.append(WORDS[was], STYLES[was]).append(of_was, "default").append(" → ", "default")
    return line.append(WORDS[now], STYLES[now]).append(of_now, "default")


def _of(side: Judged) -> str:
    return "" if side.passed is None or side.trials == 1 else f" {side.passed}/{side.trials}"


def _attempts(change: ScenarioChange) -> str:
    return ", ".join(
        f"{number} {'trial' if number == 1 else 'trials'} {was} → {now}"
        for (was, now), number in change.attempts.items()
    )


def _counts(comparison: Comparison) -> str:
    said = [f"{comparison.count(move)} {move}" for move in (REGRESSED, WEAKER, IMPROVED)]
    said += [f"{comparison.count(SAME)} the same"]
    if comparison.count(UNDECIDED):
        said.append(f"{comparison.count(UNDECIDED)} undecided, attempts are missing")
    pairs = len(comparison.pairs)
    compared = f"{pairs} {'scenario' if pairs == 1 else 'scenarios'} compared"
    return f"{compared}: {', '.join(said)}; exact McNemar p = {_p(comparison.p)}"


def _p(p: float) -> str:
    return f"{p:.2g}" if p < 0.001 else f"{p:.3f}"


def _listed(what: str, names: list[str], width: int | None) -> Iterator[Text]:
    if names:
        yield Text(f"{len(names)} {what}, not compared:")
        for name in names[:MOST_LISTED]:
            yield from _indented(clean(name), width)
        yield from _rest(len(names))


def _rest(number: int) -> Iterator[Text]:
    if number > MOST_LISTED:
        yield Text(f"    and {number - MOST_LISTED} more")


def _indented(words: str, width: int | None) -> Iterator[Text]:
    yield from (Text(f"    {part}") for part in wrap(words, None if width is None else width - 4))
