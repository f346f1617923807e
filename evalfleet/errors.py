"""Which errors exist, and who has to act on each?

    EvalfleetError
    ├── AuthorError            the author of a case or grader: exit 2, HTTP 422
    │   ├── CaseFilesInvalid       one or more case files; carries every problem with its place (S2)
    │   ├── GraderRefused          a grader that a case names cannot be called (S6)
    │   └── PromptRefused          the judge takes no such prompt or model of a grader's: that grader's error (S24)
    ├── OperatorError          who runs the command or the fleet: exit 2, HTTP 400
    │   ├── UsageError             arguments; nothing matched
    │   ├── ConfigError            evalfleet.toml, with file and line
    │   ├── SettingError           an EVALFLEET_* variable or flag, by name
    │   ├── CredentialError        a key that is absent or refused
    │   ├── TreeBusy               another evalfleet holds this tree's state
    │   ├── PlanRefused            a plan or its graders are not what was signed: nothing is played of it
    │   ├── UnfitHost              this machine or broker cannot do what was asked (port, eviction policy, pool)
    │   └── JudgeNotConfigured     `t.llm` has nobody to ask, or the key was refused: grading stops (S26)
    ├── PlatformError          the system we talk to: exit 3, HTTP 502
    │   ├── TargetUnreachable      no connection within the deadline
    │   ├── ProblemAnswer          the API answered with a problem document
    │   ├── StreamLost             an event stream that could not be read to its end
    │   ├── JournalHole            an ended run's journal lacks an event, on its pages as well: no result
    │   ├── HarnessMoved           a run was made at another commit than the plan's (S33)
    │   ├── UnreadableAnswer       an answer that is not what the wire promises
    │   └── JudgeUnavailable       the judge model could not be asked; the attempt is graded again (S26)
    ├── StorageError           the results folder or the broker refused a write: exit 3, HTTP 503
    │   ├── BrokerFull             the broker takes no write now: waited for, as one that is away
    │   └── ResultsAway            the results store is not there, or takes no write: a fleet waits for it
    ├── StackFailed            a part of the embedded stack keeps dying; resumable: exit 3, HTTP 503
    └── OurFault               a bug of ours: exit 70, HTTP 500

Errors are translated at the boundary with `raise … from`: no httpx, SQL or redis exception crosses a room. A message
says what happened, the value seen and what to do; it holds no secret and no markup. What became of a trial is not an
error but a value (`evalfleet.checks.outcome`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol


class Problem(Protocol):
    """What a case-file problem looks like from here: it renders itself with file:line:column (S2)."""

    def render(self) -> str: ...


class EvalfleetError(Exception):
    """Base of everything raised on purpose. `exit_code` is the command's, `http_status` the server's (S36)."""

    exit_code: ClassVar[int] = 70
    http_status: ClassVar[int] = 500

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class AuthorError(EvalfleetError):
    exit_code = 2
    http_status = 422


class CaseFilesInvalid(AuthorError):
    """Every problem of every case file, in file order. Nothing has run."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n\n".join(problem.render() for problem in self.problems))


class GraderRefused(AuthorError):
    """A case calls a judge that cannot be called; says which and why (S6)."""


class PromptRefused(AuthorError):
    """The judge works, and does not take what this grader asked it (too long, filtered, no such model). Asking again
    changes nothing, and other graders may go on: an error of this one (S24)."""


class OperatorError(EvalfleetError):
    exit_code = 2
    http_status = 400


class UsageError(OperatorError):
    """The command's own words are off, or select nothing."""


class ConfigError(OperatorError):
    """`evalfleet.toml` is wrong. `place` is `file:line:column` (or `file`); `more` are further (place, message) of the
    same file, and `parts` all of them."""

    def __init__(self, place: str, message: str, more: Sequence[tuple[str, str]] = ()) -> None:
        self.place = place
        self.parts = ((place, message), *more)
        super().__init__("\n".join(f"{where}: {what}" for where, what in self.parts))


class SettingError(OperatorError):
    """A setting is absent or wrong. `setting` is its name as the operator writes it."""

    def __init__(self, setting: str, message: str) -> None:
        self.setting = setting
        super().__init__(f"{setting}: {message}")


class CredentialError(OperatorError):
    """A key is absent, or was refused. Never shows the key."""


class TreeBusy(OperatorError):
    """Another evalfleet is at work in this tree."""


class UnfitHost(OperatorError):
    """This host, port or broker cannot serve the request as it stands."""


class PlanRefused(OperatorError):
    """What stands on the books is not the plan that somebody with the fleet's key has signed, or cannot be read."""


class JudgeNotConfigured(OperatorError):
    """No judge is configured, or it refused the key: the operator's; grading stops (S26)."""


class PlatformError(EvalfleetError):
    exit_code = 3
    http_status = 502


class TargetUnreachable(PlatformError):
    """No connection, or no answer within the deadline."""


class ProblemAnswer(PlatformError):
    """The API answered with an error status.

    `status` HTTP status; `code` the problem's code, or "" if the body was no problem document; `detail` its text;
    `errors` its `errors[]`; `retry_after` seconds if told; `quota` True for the 429 that carries
    `usage_window_exceeded` (wire.md).
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[dict[str, object]] = (),
        retry_after: float | None = None,
        quota: bool = False,
        request: str = "",
    ) -> None:
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = tuple(errors)
        self.retry_after = retry_after
        self.quota = quota
        self.request = request
        where = f"{request}: " if request else ""
        super().__init__(f"{where}{status} {code or 'without a problem document'}: {detail}")


class StreamLost(PlatformError):
    """An event stream that could not be resumed within its deadline."""


class JournalHole(PlatformError):
    """An ended run's journal lacks an event or its end, or contradicts itself, by stream and by pages: what it does not
    say may have happened, so nothing is judged by it."""


class HarnessMoved(PlatformError):
    """A run was created at another commit than the evaluation's (S33)."""


class UnreadableAnswer(PlatformError):
    """A 2xx answer whose body is not what the wire promises."""


class JudgeUnavailable(PlatformError):
    """The judge model could not be asked, for reasons that are not the agent's (network, 429, 5xx): tried again, and
    then the attempt is missing (S26). `retry_after`: seconds, if told."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class StorageError(EvalfleetError):
    """Evidence or state could not be written (disk full, folder not writable, broker refusing writes)."""

    exit_code = 3
    http_status = 503


class BrokerFull(StorageError):
    """The broker takes no write now, for want of memory or as a replica. What it holds is whole."""


class ResultsAway(StorageError):
    """The results store is not there, or takes no write now: a network, a full disk, a key that ran out. What was to be
    written is nowhere else than before."""


class StackFailed(EvalfleetError):
    """A part of the embedded stack keeps dying. What is recorded stays recorded; the submission can be resumed."""

    exit_code = 3
    http_status = 503


class OurFault(EvalfleetError):
    """A bug of ours: the message asks for a report."""
