"""How is the YAML parser's complaint said to a person: where, what, and what to write instead? (S1, S2)"""

from __future__ import annotations

import yaml

from evalfleet.checks.place import CaseProblem
from evalfleet.checks.source import Source


def in_words(error: yaml.MarkedYAMLError, source: Source, what: str, *, deepest: int) -> CaseProblem:
    """The problem of a syntax error; `what` the parser says. Most of them are text that should have been quoted."""
    context = error.context or ""
    index = complained_at(error, source)
    start = error.context_mark
    opened = index if start is None else min(start.index, len(source.text))
    opened_at = source.at(opened)
    seen = source.text[index : index + 1]
    if "nesting depth" in what:
        return source.problem_at(index, f"nested deeper than {deepest} levels")
    if "mapping values are not allowed" in what:
        return source.problem_at(index, "a `: ` inside plain text", 'quote it: key: "text with: a colon"')
    if seen and seen in "`@%" and "cannot start any token" in what:
        return source.problem_at(index, f"plain text cannot start with `{seen}`", f'quote it: "{seen}…"')
    for word, sign in (("alias", "*"), ("anchor", "&")):
        if word in context and "alphabetic" in what:
            return source.problem_at(
                opened, f"plain text cannot start with `{sign}` (an {word})", f'quote it: "{sign}…"'
            )
    if "unexpected end of stream" in what and "quoted scalar" in context:
        return source.problem_at(opened, "the quote that opens here is never closed", "close it")
    if "escape character" in what or "escape code" in what:
        return source.problem_at(
            index, f"{what} in double quotes", "write `\\\\` for a backslash, or use single quotes"
        )
    if "flow" in context:
        return source.problem_at(
            index,
            f"not YAML: {what} ({context} that opens at {opened_at.line}:{opened_at.column})",
            "text with `,` `[` `]` `{` `}` or `: ` in it must be quoted here",
        )
    if "block" in context:
        return source.problem_at(
            index,
            f"not YAML: {what} ({context} that starts at {opened_at.line}:{opened_at.column})",
            "look at the indent of this line and the one before; quote text that has a quote or `: ` in it",
        )
    return source.problem_at(index, " ".join(filter(None, ["not YAML:", what, context])))


def complained_at(error: yaml.MarkedYAMLError, source: Source) -> int:
    """The index of the character that the parser stopped at."""
    mark = error.problem_mark or error.context_mark
    return min(mark.index, len(source.text)) if mark else 0
