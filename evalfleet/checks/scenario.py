"""What is a case once it is read: its scenarios, with everything resolved?"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evalfleet.checks.expectation import Expectation, Grader, expectation_from_document
from evalfleet.checks.place import CaseProblem, Place


@dataclass(frozen=True, slots=True)
class Scenario:
    """Turns to play and what must hold afterwards. `timeout` in seconds; `trials` and `timeout` are resolved from the
    file's `defaults`. `given`: what the row of a suite says besides (`name`, `expected`, `metadata`, as JSON); None for
    a scenario of a case file."""

    id: str
    user: tuple[str, ...]
    expect: tuple[Expectation, ...]
    trials: int
    timeout: float
    place: Place
    given: Mapping[str, Any] | None = field(default=None, hash=False)

    @property
    def graders(self) -> tuple[Grader, ...]:
        """The judges it calls, in file order; grader answers come in this order too."""
        return tuple(expectation for expectation in self.expect if isinstance(expectation, Grader))

    def case_document(self) -> dict[str, Any]:
        """What a grader gets as `case` (S27): `{"id", "user": [...], "expect": [{kind: args}, ...]}`, a fresh copy.
        Of a suite's row also its `expected` and `metadata`, where it has them."""
        return {
            "id": self.id,
            "user": list(self.user),
            "expect": [expectation.document() for expectation in self.expect],
            **{key: copy.deepcopy(value) for key, value in (self.given or {}).items() if key != "name"},
        }

    def content(self) -> dict[str, Any]:
        """What the suite version is a digest of (S10): all but the place, so that comments and layout don't count."""
        return {**self.case_document(), "trials": self.trials, "timeout": self.timeout}

    def to_json(self) -> dict[str, Any]:
        """`content`, `place: [file, line, column]`, and `expect_places`: `[line, column]` of each assertion in that
        file, `[file, line, column]` in another one, or null. Of a suite's row also `given`."""
        return {
            **self.content(),
            "place": [self.place.file, self.place.line, self.place.column],
            "expect_places": [_place_document(item.place, self.place.file) for item in self.expect],
            **({} if self.given is None else {"given": dict(self.given)}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Scenario:
        """The scenario of our own document. ValueError, with the reason, if it is none."""
        try:
            identity, user, expect = document["id"], document["user"], document["expect"]
            trials, timeout, place = document["trials"], document["timeout"], document["place"]
            file, line, column = place
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"a scenario document lacks something: {error}") from error
        if not isinstance(identity, str) or not identity:
            raise ValueError(f"a scenario's id cannot be {identity!r}")
        if not _texts(user) or not user:
            raise ValueError(f"scenario {identity!r}: user is a list of texts, not {user!r}")
        if not isinstance(expect, Sequence) or not expect or not all(isinstance(item, Mapping) for item in expect):
            raise ValueError(f"scenario {identity!r}: expect is a list of assertions, not {expect!r}")
        if isinstance(trials, bool) or not isinstance(trials, int) or not 1 <= trials <= 100:
            raise ValueError(f"scenario {identity!r}: trials cannot be {trials!r}")
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout <= sys.float_info.max:
            raise ValueError(f"scenario {identity!r}: timeout cannot be {timeout!r}")
        if not isinstance(file, str) or not isinstance(line, int) or not isinstance(column, int):
            raise ValueError(f"scenario {identity!r}: place cannot be {place!r}")  # noqa: TRY004 - one error
        places = document.get("expect_places") or [None] * len(expect)  # older plans have none
        if not isinstance(places, Sequence) or len(places) != len(expect):
            raise ValueError(f"scenario {identity!r}: expect_places cannot be {places!r}")
        given = document.get("given")
        if given is not None and not isinstance(given, Mapping):
            raise ValueError(f"scenario {identity!r}: given cannot be {given!r}")
        return cls(
            identity,
            tuple(user),
            tuple(
                replace(expectation_from_document(item), place=_place(file, at))
                for item, at in zip(expect, places, strict=True)
            ),
            trials,
            float(timeout),
            Place(file, line, column),
            given,
        )


@dataclass(frozen=True, slots=True)
class Case:
    """One file: scenarios that share a conversation, in order. `name` = file name without `.yaml`; `file` = its path
    from the tree's root, with `/`. Of a suite each row is a case, and all have its name and file."""

    name: str
    file: str
    scenarios: tuple[Scenario, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "file": self.file,
            "scenarios": [scenario.to_json() for scenario in self.scenarios],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Case:
        """The case of our own document. ValueError, with the reason, if it is none."""
        name, file, scenarios = document.get("name"), document.get("file"), document.get("scenarios")
        if not isinstance(name, str) or not isinstance(file, str) or not isinstance(scenarios, Sequence):
            raise ValueError("a case document is {name, file, scenarios}")  # noqa: TRY004 - one error for nonsense
        return cls(name, file, tuple(Scenario.from_json(scenario) for scenario in scenarios))


@dataclass(frozen=True, slots=True)
class LoadedCases:
    """What was read: the cases of files without a problem, and every problem and warning of all files in file order."""

    cases: tuple[Case, ...] = ()
    problems: tuple[CaseProblem, ...] = ()
    warnings: tuple[CaseProblem, ...] = ()

    def grader_places(self) -> tuple[tuple[str, Place], ...]:
        """Every grader call with its place, so that whoever finds a judge missing can point at the line (S6)."""
        return tuple(
            dict.fromkeys(
                (grader.name, grader.place or scenario.place)
                for case in self.cases
                for scenario in case.scenarios
                for grader in scenario.graders
            )
        )

    def pointers(self) -> dict[Place, str]:
        """The JSON pointer of every assertion of a case file by its place."""
        return {
            expectation.place: f"/scenarios/{number}/expect/{index}/{expectation.kind}"
            for case in self.cases
            for number, scenario in enumerate(case.scenarios)
            if scenario.given is None
            for index, expectation in enumerate(scenario.expect)
            if expectation.place is not None
        }


def case_key(case: str, scenario: str) -> str:
    """The key of an evaluation's case: `<case>/<scenario id>` (S7)."""
    return f"{case}/{scenario}"


def _place_document(place: Place | None, file: str) -> list[Any] | None:
    if place is None:
        return None
    return [*([] if place.file == file else [place.file]), place.line, place.column]


def _place(file: str, at: Any) -> Place | None:
    """`[line, column]` in a file, or `[file, line, column]`; None where it is not known."""
    if at is None:
        return None
    try:
        *other, line, column = at
    except (TypeError, ValueError) as error:
        raise ValueError(f"a place is [line, column], not {at!r}") from error
    if not isinstance(line, int) or not isinstance(column, int) or not all(isinstance(name, str) for name in other[:1]):
        raise ValueError(f"a place is [line, column], not {at!r}")
    return Place(other[0] if other else file, line, column)


def _texts(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(item, str) for item in value)
