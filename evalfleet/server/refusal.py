"""How does the server say no? Any code raises `Refusal`; the app answers its problem document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evalfleet.contract.problems import Problem, ProblemField


class Refusal(Exception):
    """A request that gets a problem document. Internal to the server: nothing of it leaves but the document."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def refuse(
    code: str,
    detail: str,
    *,
    status: int | None = None,
    errors: Sequence[ProblemField] = (),
    headers: Mapping[str, str] | None = None,
) -> Refusal:
    """A Refusal to raise, with the usual status of `code` unless another one is given."""
    if status is None:
        return Refusal(Problem.of(code, detail, errors=errors, headers=headers))
    return Refusal(Problem(status, code, detail, errors, headers or {}))


def not_found(kind: str) -> Refusal:
    """Somebody else's, absent and malformed are the same answer (wire.md)."""
    return refuse("not_found", f"There is no such {kind}.")


def invalid(fields: Sequence[ProblemField]) -> Refusal:
    """422 `validation_failed` with a pointer for each field."""
    first = fields[0]
    more = f" ({len(fields) - 1} more)" if len(fields) > 1 else ""
    return refuse("validation_failed", f"{first.name}: {first.reason}{more}", errors=tuple(fields[:100]))


def field(name: str, reason: str, code: str = "invalid", location: str = "body") -> ProblemField:
    return ProblemField(name, location, reason, code)
