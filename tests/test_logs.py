"""What is one line of a part's log?"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from evalfleet import logs
from worker.loop import LoopThread


def line(form: logging.Formatter, *, error: BaseException | None = None) -> str:
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("worker.tasks", logging.WARNING, "f.py", 1, "goes back: %s", ("no\nway",), info)
    return form.format(record)


def test_a_json_line_says_what_it_is_about_and_stays_one_line() -> None:
    with logs.about(submission="sub_1"), logs.about(case="greeting", trial=3):
        text = line(logs.JsonLines())
    assert "\n" not in text
    found = json.loads(text)
    assert found.pop("at").endswith("+00:00")
    assert found == {
        "level": "warning",
        "logger": "worker.tasks",
        "message": "goes back: no\nway",
        "submission": "sub_1",
        "case": "greeting",
        "trial": 3,
    }
    assert "submission" not in json.loads(line(logs.JsonLines())), "it is over"


def test_an_exception_is_part_of_its_line() -> None:
    text = line(logs.JsonLines(), error=ValueError("broken \ud800"))  # a lone surrogate is escaped, not an error
    assert "\n" not in text
    assert "ValueError: broken" in json.loads(text)["exception"]


def test_the_coroutine_that_a_task_waits_for_is_about_the_same_and_its_run_is_its_own() -> None:
    loop = LoopThread()

    async def plays(run: str) -> tuple[str, str]:
        logs.now_about(run=run)
        await asyncio.sleep(0)
        return line(logs.JsonLines()), await asyncio.to_thread(line, logs.JsonLines())

    try:
        with logs.about(submission="sub_1"):
            first, second = loop.submit(plays("run_1")), loop.submit(plays("run_2"))
            for run, future in (("run_1", first), ("run_2", second)):
                for text in future.result(5):
                    assert json.loads(text)["submission"] == "sub_1"
                    assert json.loads(text)["run"] == run
            assert "run" not in json.loads(line(logs.JsonLines()))
    finally:
        loop.stop()


@pytest.fixture
def quiet_root() -> Iterator[None]:
    root = logging.getLogger()
    former = root.level, list(root.handlers)
    yield
    root.setLevel(former[0])
    root.handlers = former[1]


@pytest.mark.usefixtures("quiet_root")
def test_either_format_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    logs.log_to_stderr("info", "json")
    logging.getLogger("here").info("hello")
    logs.log_to_stderr("info")
    logging.getLogger("here").info("hello")
    as_json, plain = capsys.readouterr().err.splitlines()
    assert json.loads(as_json)["message"] == "hello"
    assert plain.endswith("INFO here: hello")
    assert sys.stderr is not None


@pytest.mark.parametrize(("level", "quiet"), [("info", True), ("warning", True), ("debug", False)])
def test_celerys_line_for_each_message_is_there_at_debug_only(level: str, quiet: bool) -> None:
    root = logging.getLogger()
    loggers = [root, *(logging.getLogger(name) for name in (*logs.CHATTY, "httpx", "httpcore"))]
    former = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.NOTSET)
        root.handlers = []
        logs.log_to_stderr(level)
        assert root.level == getattr(logging, level.upper())
        assert logging.getLogger("celery.app.trace").isEnabledFor(logging.INFO) is not quiet
        assert logging.getLogger("celery.app.trace").isEnabledFor(logging.ERROR), "a task that failed is never silent"
    finally:
        for logger, number, handlers in former:
            logger.setLevel(number)
            logger.handlers = handlers
