"""How do tests of case files read one, and where are the recorded inputs?"""

from __future__ import annotations

from pathlib import Path

from evalfleet.checks import LoadedCases, parse_case

CASES = Path(__file__).parents[1] / "cases"


def parsed(text: str | bytes) -> LoadedCases:
    data = text.encode() if isinstance(text, str) else text
    return parse_case(data, name="tone", file="evals/cases/tone.yaml")


def recorded(name: str) -> LoadedCases:
    """One of the recorded inputs, by its file name."""
    return parse_case((CASES / name).read_bytes(), name=name.split(".")[0], file=name)


def scenario(expect: str, *, user: str = "hi") -> str:
    """A file with one scenario, whose `expect` stands in line 4 as a flow list."""
    return f"scenarios:\n  - id: a\n    user: {user}\n    expect: [{expect}]\n"


def places(loaded: LoadedCases) -> list[str]:
    """`line:column` of every problem."""
    return [f"{problem.place.line}:{problem.place.column}" for problem in loaded.problems]


def messages(loaded: LoadedCases) -> str:
    return "\n".join(problem.render() for problem in loaded.problems)
