"""What is one line of a part's log?"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Iterator, Mapping

import pytest

from evalfleet import logs
from evalfleet.errors import TargetUnreachable
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


class Told:
    """A broker that may be away."""

    def __init__(self) -> None:
        self.away = False
        self.lines: list[tuple[str, Mapping[str, str | int]]] = []
        self.asked = threading.Event()

    def put(self, lines: logs.Lines) -> None:
        self.asked.set()
        if self.away:
            raise TargetUnreachable("the broker does not answer")
        self.lines += [(submission, line) for submission, those in lines.items() for line in those]


@pytest.fixture
def told() -> Iterator[tuple[Told, logs.Telling, logging.Logger]]:
    """Ours and the handler, on a logger of one of our rooms."""
    broker = Told()
    handler = logs.Telling(broker.put, part="worker x", secrets=("s3cret", ""))
    logger = logging.getLogger("worker.of_a_test")
    logger.setLevel("DEBUG")
    logger.addHandler(handler)
    yield broker, handler, logger
    logger.removeHandler(handler)
    handler.close()


def test_what_is_told_is_about_a_submission_ours_short_and_without_secrets(
    told: tuple[Told, logs.Telling, logging.Logger],
) -> None:
    broker, handler, logger = told
    logger.warning("about nothing")
    with logs.about(submission="sub_1", case="c", trial=3):
        logger.debug("too small")
        handler.handle(logging.LogRecord("httpx", logging.ERROR, "", 0, "not ours", None, None))
        logger.warning("the key %s is refused", "s3cret")
        logger.info("x" * 600)
    handler.flush()
    assert [submission for submission, _ in broker.lines] == ["sub_1", "sub_1"]
    first, second = (line for _, line in broker.lines)
    assert {name: value for name, value in first.items() if name != "at"} == {
        "level": "warning", "part": "worker x", "message": "the key *** is refused", "case": "c", "trial": 3,
    }  # fmt: skip
    assert second["message"] == "x" * 499 + "…"


def test_what_a_broker_that_is_away_does_not_take_waits_and_the_oldest_leave(
    told: tuple[Told, logs.Telling, logging.Logger],
) -> None:
    broker, handler, logger = told
    broker.away = True
    with logs.about(submission="sub_1"):
        for number in range(logs.WAITING + 20):
            logger.warning("%d", number)
    handler.flush()
    assert broker.asked.is_set()
    broker.away = False
    handler.flush()
    numbers = [int(str(line["message"])) for _, line in broker.lines]
    assert numbers == list(range(20, logs.WAITING + 20))
