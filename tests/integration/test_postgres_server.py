"""The tests of the server that talk to it over HTTP, once more: on Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.integration.postgres import emptied, own_schema
from tests.server import (
    conftest,
    test_accounts,
    test_evaluations,
    test_events,
    test_hostile_requests,
    test_idempotency,
    test_judge_call,
    test_lists,
    test_races,
    test_retention,
    test_runner,
    test_runs,
    test_stamps,
)
from tests.server.conftest import api, driver
from tests.server.test_accounts import evalfleet
from tests.server.test_stamps import hurried, impatient

__all__ = ["api", "driver", "evalfleet", "hurried", "impatient"]

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def schema(postgres_url: str) -> Iterator[str]:
    with own_schema(postgres_url) as url:
        yield url


@pytest.fixture(autouse=True)
def on_postgres(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    emptied(schema)
    monkeypatch.setattr(conftest, "database_in", lambda folder: schema)


def again(module: ModuleType) -> type:
    """The module's tests as a class: its functions are static, for they know nothing of `self`."""
    tests = {name: staticmethod(test) for name, test in vars(module).items() if name.startswith("test_")}
    assert tests
    return type(f"Test_{module.__name__.rpartition('.')[2].removeprefix('test_')}", (), dict(tests))


for _module in (
    test_accounts,
    test_evaluations,
    test_events,
    test_hostile_requests,
    test_idempotency,
    test_judge_call,
    test_lists,
    test_races,
    test_retention,
    test_runner,
    test_runs,
    test_stamps,
):
    _class = again(_module)
    globals()[_class.__name__] = _class
