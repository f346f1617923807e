"""Every error of ours: who has to act, with which exit code and HTTP status."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import evalfleet
import scheduler
import worker
from evalfleet import errors
from evalfleet.errors import (
    AuthorError,
    EvalfleetError,
    OperatorError,
    OurFault,
    PlatformError,
    ProblemAnswer,
    SettingError,
    StackFailed,
    StorageError,
)


def everything() -> Iterator[type[EvalfleetError]]:
    for package in (evalfleet, scheduler, worker):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if (
                not module.name.endswith("__main__")
                and ".migrations." not in module.name
                and ".inside" not in module.name
            ):
                importlib.import_module(module.name)
    left = [EvalfleetError]
    while left:
        kind = left.pop()
        yield kind
        left += kind.__subclasses__()


def test_each_error_stands_in_the_errors_module_and_in_the_tree_it_draws() -> None:
    assert errors.__doc__ is not None
    for kind in everything():
        assert kind.__module__ == "evalfleet.errors", f"{kind.__name__} is defined in {kind.__module__}"
        assert kind.__name__ in errors.__doc__, f"{kind.__name__} is not in the tree of the module's docstring"


@pytest.mark.parametrize(
    ("kind", "exit_code", "http_status"),
    [
        pytest.param(AuthorError, 2, 422, id="the author of a case"),
        pytest.param(OperatorError, 2, 400, id="who runs it"),
        pytest.param(PlatformError, 3, 502, id="the system we talk to"),
        pytest.param(StorageError, 3, 503, id="a refused write"),
        pytest.param(StackFailed, 3, 503, id="a part that keeps dying"),
        pytest.param(OurFault, 70, 500, id="a bug of ours"),
    ],
)
def test_a_family_shares_its_exit_code_and_status(kind: type[EvalfleetError], exit_code: int, http_status: int) -> None:
    for member in everything():
        if issubclass(member, kind):
            assert (member.exit_code, member.http_status) == (exit_code, http_status), member.__name__


def test_messages_say_where() -> None:
    assert str(SettingError("EVALFLEET_BROKER_URL", "is not set")) == "EVALFLEET_BROKER_URL: is not set"
    answer = ProblemAnswer(422, "validation_failed", "no such run", request="POST /v2/runs")
    assert str(answer) == "POST /v2/runs: 422 validation_failed: no such run"
