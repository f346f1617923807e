"""Graders in the pool, on the customer's fault inputs: F01–F03, F05–F07, F12, F13; S24, S26–S28."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from evalfleet.checks.outcome import GraderAnswer
from evalfleet.errors import EvalfleetError, ProblemAnswer, UnfitHost
from evalfleet.graders.cage import Allowed, Cage
from evalfleet.graders.judge_call import refusal
from evalfleet.graders.pool import (
    GraderPool,
    GraderSettings,
    JudgeNotConfigured,
    JudgeUnavailable,
    LlmAnswer,
    LlmCall,
    PromptRefused,
)
from tests.graders.trees import CASE, RUN, at_rest, case_tree, eventually, make_tree, needs_linux, processes_of

BOTH: list[Allowed] = ["best", "plain"]
Grade = Callable[[str], Coroutine[Any, Any, GraderAnswer]]
JUDGE = "the judge at http://judge.test/v1"
ABOUT = {
    "run_id": "run_7",
    "history": [
        {"tag": "0.user", "role": "user", "text": "What is the capital?"},
        {"tag": "0.assistant", "role": "assistant", "text": "Of which country?"},
        {"tag": "1.user", "role": "user", "text": "Italy"},
        {"tag": "1.assistant", "role": "assistant", "text": None},
    ],
}

JUDGED = """
def asks(t, case, run):
    answer = t.llm("Is it right? " + run["final_answer"], model="wise")
    return {"pass": True, "score": float(answer), "why": f"{answer} for {answer.tokens}"}

def twice(t, case, run):
    return {"pass": True, "why": t.llm("one") + t.llm("two")}

def stubborn(t, case, run):
    try:
        t.llm("one")
    except BaseException:
        pass
    return False

def then_hangs(t, case, run):
    import time
    t.llm("one")
    while True:
        time.sleep(1)

def threads(t, case, run):
    import concurrent.futures
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return {"pass": True, "why": sorted(map(str, pool.map(t.llm, "abcd")))}

def forks(t, case, run):
    import os
    if os.fork() == 0:
        try:
            t.llm("x")
        except RuntimeError as error:
            print(error, flush=True)
        os._exit(0)
    os.wait()
    return True
"""


@asynccontextmanager
async def pooled(
    root: Path, *, limit: float = 20.0, workers: int = 4, allowed: Allowed = "best", llm: LlmCall | None = None
) -> AsyncIterator[tuple[GraderPool, Grade]]:
    pool = GraderPool(workers=workers, limit_s=limit, llm_delay_s=0.001, allowed=allowed)

    async def grade(name: str) -> GraderAnswer:
        return await pool.grade(root, GraderSettings(), name, CASE, RUN, llm, about=ABOUT, judge=JUDGE)

    try:
        yield pool, grade
    finally:
        await pool.aclose()


@pytest.mark.parametrize("allowed", BOTH)
async def test_f01_a_hanging_grader_ends_at_its_limit_with_the_child_that_holds_its_output(
    tmp_path: Path, allowed: Allowed
) -> None:
    async with pooled(case_tree(tmp_path, "F01"), limit=0.5, allowed=allowed, workers=1) as (_, grade):
        answer = await grade("F01.hang")
        assert (answer.kind, answer.error) == ("error", "ran over its 0.5 s and was stopped")
        assert answer.duration_ms >= 500
        assert (await grade("F01.leaves_child")).passed is True  # the one slot is free again


@needs_linux
@pytest.mark.parametrize("allowed", BOTH)
async def test_neither_a_long_queue_nor_a_loop_that_is_busy_delays_the_kill(tmp_path: Path, allowed: Allowed) -> None:
    """The limit is held by a process beside the grader, and by nothing of ours that could have something else to do."""
    root = make_tree(case_tree(tmp_path, "F01"), quick="def yes(t, case, run): return True\n")
    async with pooled(root, limit=0.5, allowed=allowed, workers=1) as (pool, grade):
        assert (await grade("quick.yes")).passed is True
        cage = _cage(pool)
        assert await eventually(lambda: at_rest(cage))
        hanging = asyncio.create_task(grade("F01.hang"))
        queue = [asyncio.create_task(grade("quick.yes")) for _ in range(200)]
        assert await eventually(lambda: bool(_programs(cage)))
        until = time.monotonic() + 30
        while not at_rest(cage) and time.monotonic() < until:
            time.sleep(0.02)  # noqa: ASYNC251 - nothing else of ours runs, and it ends all the same
        assert at_rest(cage)
        assert not hanging.done()
        assert (await hanging).error == "ran over its 0.5 s and was stopped"
        assert all(answer.passed for answer in await asyncio.gather(*queue))


@needs_linux
@pytest.mark.parametrize("allowed", BOTH)
async def test_f01_f02_nothing_that_a_grader_started_outlives_its_call(tmp_path: Path, allowed: Allowed) -> None:
    root = case_tree(tmp_path, "F01", "F02")
    async with pooled(root, limit=0.5, allowed=allowed, workers=1) as (pool, grade):
        await grade("F02.nothing_here")
        cage = _cage(pool)
        for _ in range(10):
            assert (await grade("F02.daemon")).passed is True
            assert await eventually(lambda: at_rest(cage, str(root)))
            assert (await grade("F01.leaves_child")).passed is True
            assert not _programs(cage)
            assert await eventually(lambda: at_rest(cage, str(root)))
        await grade("F01.hang")
        assert not _programs(cage)
        assert await eventually(lambda: at_rest(cage, str(root)))
    assert await eventually(lambda: not processes_of(str(root), str(cage._scratch)))


def _cage(pool: GraderPool) -> Cage:
    """This pool's one cage."""
    (slot,) = pool._slots.values()
    assert slot.cage is not None
    return slot.cage


def _programs(cage: Cage) -> set[int]:
    """The programs that graders started: they alone were started with a call's variables."""
    return processes_of(f"TMPDIR={cage._scratch}")


@needs_linux
@pytest.mark.parametrize("allowed", BOTH)
async def test_f02_a_daemon_is_ended_at_the_limit_too(tmp_path: Path, allowed: Allowed) -> None:
    text = (case_tree(tmp_path, "F02") / "evals/graders/F02.py").read_text()
    make_tree(tmp_path, late=text.replace("    return True\n", "    while True:\n        time.sleep(1)\n"))
    async with pooled(tmp_path, limit=0.5, allowed=allowed, workers=1) as (pool, grade):
        assert (await grade("late.daemon")).kind == "error"
        assert await eventually(lambda: at_rest(_cage(pool), str(tmp_path)))


@pytest.mark.parametrize("allowed", BOTH)
async def test_d07_a_grader_may_start_processes_of_its_own(tmp_path: Path, allowed: Allowed) -> None:
    """Under Celery's own pool of processes it may not: "daemonic processes are not allowed to have children"."""
    grader = """
import multiprocessing, subprocess, sys
from concurrent.futures import ProcessPoolExecutor

def double(n):
    return 2 * n

def pools(t, case, run):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        one = pool.map(double, [1, 2])
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        return {"pass": one == list(pool.map(double, [1, 2])), "why": one}

def programs(t, case, run):
    said = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True, check=True)
    return {"pass": True, "why": said.stdout}

def fails(t, case, run):
    subprocess.run([sys.executable, "-c", "raise SystemExit(3)"], check=True)
"""
    async with pooled(make_tree(tmp_path, own=grader), allowed=allowed) as (_, grade):
        assert (await grade("own.pools")).why == "[2, 4]"
        assert (await grade("own.programs")).why == "42\n"
        failed = await grade("own.fails")
        assert failed.kind == "error"
        assert "returned non-zero exit status 3" in (failed.error or "")


@pytest.mark.parametrize("allowed", BOTH)
async def test_f03_what_is_printed_is_a_log_and_never_a_verdict(tmp_path: Path, allowed: Allowed) -> None:
    async with pooled(case_tree(tmp_path, "F03"), allowed=allowed) as (_, grade):
        noisy = await grade("F03.noisy")
        assert (noisy.kind, noisy.passed, noisy.error) == ("answered", False, None)
        assert noisy.log == '{"pass": true, "score": 1.0}\nno newline at end\x1b]0;x\x07\\xff\\xfeboo'
        closes = await grade("F03.closes")
        assert (closes.kind, closes.passed, closes.score, closes.why) == ("answered", False, 0.1, "closed everything")


@pytest.mark.parametrize("allowed", BOTH)
async def test_f05_a_grader_cannot_refuse_to_end(tmp_path: Path, allowed: Allowed) -> None:
    async with pooled(case_tree(tmp_path, "F05"), limit=0.5, allowed=allowed) as (_, grade):
        for name in ("F05.stubborn", "F05.regex"):
            answer = await grade(name)
            assert (answer.kind, answer.passed) == ("error", None)
            assert "ran over its 0.5 s" in (answer.error or "")


async def test_f05_a_graders_own_alarm_works(tmp_path: Path) -> None:
    async with pooled(case_tree(tmp_path, "F05")) as (_, grade):
        assert (await grade("F05.own_alarm")).why == "own alarm worked"


async def test_f05_twenty_stubborn_ones_do_not_hold_up_others(tmp_path: Path) -> None:
    root = make_tree(case_tree(tmp_path, "F05"), quick="def yes(t, case, run): return True\n")
    async with pooled(root, limit=60, workers=21) as (_, grade):
        stubborn = [asyncio.create_task(grade("F05.stubborn")) for _ in range(20)]
        for _ in range(5):
            assert (await grade("quick.yes")).passed is True
        assert not any(task.done() for task in stubborn)
        for task in stubborn:
            task.cancel()
        await asyncio.wait(stubborn)


@pytest.mark.parametrize(
    ("name", "kind", "passed", "error"),
    [
        ("json.answers", "answered", True, None),
        ("env.answers", "answered", True, None),
        ("slow.answers", "error", None, "ran over its 0.5 s"),
        ("quit.answers", "error", None, "called sys.exit(0) (evals/graders/quit.py, line 3)"),
        ("syntax.answers", "error", None, "SyntaxError: "),
        ("none.answers", "error", None, "there is no evals/graders/none.py"),
        ("json.missing", "error", None, "has no public function 'missing'"),
    ],
)
async def test_f06_what_a_file_does_at_import_is_its_own_graders_error_only(
    tmp_path: Path, name: str, kind: str, passed: bool | None, error: str | None
) -> None:
    root = case_tree(tmp_path, "F06/json", "F06/env", "F06/slow", "F06/quit", "F06/syntax")
    async with pooled(root, limit=0.5) as (_, grade):
        answer = await grade(name)
        assert (answer.kind, answer.passed) == (kind, passed)
        assert (answer.error is None) if error is None else (error in (answer.error or ""))
        assert (await grade("json.answers")).passed is True


@pytest.mark.parametrize("name", ["F07.flood", "F07.stderr_flood"])
async def test_f07_a_flood_is_drained_and_cut(tmp_path: Path, name: str) -> None:
    root = case_tree(tmp_path, "F07")
    file = root / "evals/graders/F07.py"
    file.write_text(file.read_text().replace("200_000", "5_000"))  # 50 MB say the same as 2 GB
    async with pooled(root) as (_, grade):
        answer = await grade(name)
    assert answer.passed is True
    assert len(answer.log) < 64 * 1024 + 100
    assert "… [cut: " in answer.log


async def test_f07_a_flood_without_end_is_the_limits_and_a_huge_why_is_cut(tmp_path: Path) -> None:
    async with pooled(case_tree(tmp_path, "F07"), limit=0.5) as (_, grade):
        assert (await grade("F07.forever")).kind == "error"
    async with pooled(tmp_path) as (_, grade):
        answer = await grade("F07.big_why")
        assert (answer.passed, answer.score) == (True, 1.0)
        assert (answer.why or "").endswith("y … (cut: 300000000 characters)")
        assert len(answer.why or "") < 17_000


async def test_f12_each_call_sees_fresh_documents_and_fresh_globals(tmp_path: Path) -> None:
    async with pooled(case_tree(tmp_path, "F12"), workers=1) as (_, grade):
        for _ in range(3):
            vandal, honest = await grade("F12.vandal"), await grade("F12.honest")
            assert (vandal.passed, vandal.why) == (True, "call 1")
            assert (honest.passed, honest.why) == (False, "Rome")
    assert RUN["final_answer"] == "Rome"
    assert CASE["expect"]


@pytest.mark.parametrize(
    ("name", "passed", "error"),
    [
        ("F13.thread", True, None),
        ("F13.at_exit", True, None),
        ("F13.asks", None, "EOFError"),
        ("F13.reads", False, None),
    ],
)
async def test_f13_a_verdict_is_taken_at_once_and_stdin_is_empty(
    tmp_path: Path, name: str, passed: bool | None, error: str | None
) -> None:
    async with pooled(case_tree(tmp_path, "F13"), limit=60) as (_, grade):
        answer = await grade(name)
    assert answer.passed is passed
    assert (error or "") in (answer.error or "")


async def test_t_llm_is_answered_by_the_worker_and_counted(tmp_path: Path) -> None:
    asked: list[tuple[str, str | None]] = []

    async def llm(prompt: str, model: str | None, seconds: float) -> LlmAnswer:
        assert 20 < seconds <= 25  # the limit ends it, and no timeout of its own
        asked.append((prompt, model))
        return LlmAnswer("0.7", tokens=12, amount="0.00015")

    async with pooled(make_tree(tmp_path, it=JUDGED), llm=llm) as (_, grade):
        answer = await grade("it.asks")
        assert (answer.kind, answer.score, answer.why) == ("answered", 0.7, "0.7 for 12")
        assert (answer.llm_calls, answer.llm_tokens, answer.llm_amount, answer.llm_currency) == (
            1,
            12,
            "0.00015",
            "USD",
        )
        assert asked == [("Is it right? Rome", "wise")]
        answer = await grade("it.twice")
        assert (answer.llm_calls, answer.llm_tokens, answer.llm_amount, answer.llm_currency) == (
            2,
            24,
            "0.00030",
            "USD",
        )
        assert (await grade("it.threads")).why == "['0.7', '0.7', '0.7', '0.7']"
        assert "works in the process that the grader was called in" in (await grade("it.forks")).log


@pytest.mark.parametrize("name", ["it.asks", "it.stubborn"])
async def test_s26_without_a_judge_grading_stops_whatever_the_grader_catches(tmp_path: Path, name: str) -> None:
    async with pooled(make_tree(tmp_path, it=JUDGED)) as (_, grade):
        answer = await grade(name)
    assert (answer.kind, answer.passed) == ("stopped", None)
    assert answer.error == "a grader called t.llm and no judge is configured; [judge] names one"


async def test_s26_a_refused_key_stops_grading(tmp_path: Path) -> None:
    async def llm(prompt: str, model: str | None, seconds: float) -> LlmAnswer:
        raise JudgeNotConfigured("the judge refused its key (401)")

    async with pooled(make_tree(tmp_path, it=JUDGED), llm=llm) as (_, grade):
        answer = await grade("it.stubborn")
    assert (answer.kind, answer.error) == ("stopped", "the judge refused its key (401)")


@pytest.mark.parametrize("name", ["it.asks", "it.stubborn"])
async def test_s24_s26_a_prompt_that_the_judge_does_not_take_is_this_graders_error_whatever_it_catches(
    tmp_path: Path, name: str
) -> None:
    asked = 0

    async def llm(prompt: str, model: str | None, seconds: float) -> LlmAnswer:
        nonlocal asked
        asked += 1
        raise PromptRefused("the judge refused what it was asked: prompt too long")

    async with pooled(make_tree(tmp_path, it=JUDGED), llm=llm) as (_, grade):
        answer = await grade(name)
    assert (answer.kind, answer.passed, asked) == ("error", None, 1)
    assert answer.error == "the judge refused what it was asked: prompt too long"


@pytest.mark.parametrize(
    ("status", "code", "whose"),
    [
        pytest.param(401, "unauthorized", JudgeNotConfigured, id="its key"),
        pytest.param(402, "machine_limit_reached", JudgeNotConfigured, id="its plan"),
        pytest.param(403, "insufficient_balance", JudgeNotConfigured, id="its money"),
        pytest.param(422, "judge_not_configured", JudgeNotConfigured, id="no judge"),
        pytest.param(422, "judge_refused", JudgeNotConfigured, id="the judge's own key"),
        pytest.param(400, "invalid_body", PromptRefused, id="a prompt that is too long"),
        pytest.param(413, "", PromptRefused, id="a body that is too large"),
        pytest.param(422, "validation_failed", PromptRefused, id="a field that it does not take"),
        pytest.param(404, "not_found", JudgeUnavailable, id="a run that is gone"),
        pytest.param(429, "rate_limited", JudgeUnavailable, id="too many at once"),
        pytest.param(502, "upstream_unavailable", JudgeUnavailable, id="the model is down"),
    ],
)
def test_s26_a_refusal_of_the_judge_has_one_owner(status: int, code: str, whose: type[EvalfleetError]) -> None:
    said = refusal(ProblemAnswer(status, code, "the reason"))
    assert type(said) is whose
    assert "the reason" in said.message


async def test_s26_a_judge_that_stumbles_is_asked_again_within_the_limit(tmp_path: Path) -> None:
    tries = 0

    async def llm(prompt: str, model: str | None, seconds: float) -> LlmAnswer:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise JudgeUnavailable("502")
        return LlmAnswer("0.4")

    async with pooled(make_tree(tmp_path, it=JUDGED), llm=llm) as (_, grade):
        answer = await grade("it.asks")
    assert (answer.kind, answer.score, tries, answer.llm_calls) == ("answered", 0.4, 3, 1)


@pytest.mark.parametrize("name", ["it.asks", "it.stubborn"])
async def test_s26_a_judge_that_stays_away_is_not_the_agents_failure(tmp_path: Path, name: str) -> None:
    async def llm(prompt: str, model: str | None, seconds: float) -> LlmAnswer:
        raise JudgeUnavailable("no connection to the judge")

    async with pooled(make_tree(tmp_path, it=JUDGED), limit=0.5, llm=llm) as (_, grade):
        answer = await grade(name)
    assert (answer.kind, answer.passed, answer.error) == ("judge_unavailable", None, "no connection to the judge")


async def test_s26_a_judge_that_says_when_to_come_back_is_not_asked_before(tmp_path: Path) -> None:
    asked: list[float] = []

    async def llm(prompt: str, model: str | None, seconds: float) -> LlmAnswer:
        asked.append(time.monotonic())
        raise JudgeUnavailable("429", retry_after=0.2 if len(asked) == 1 else 60.0)

    async with pooled(make_tree(tmp_path, it=JUDGED), llm=llm) as (_, grade):
        answer = await grade("it.asks")
    assert (answer.kind, answer.error, len(asked)) == ("judge_unavailable", "429", 2)
    assert asked[1] - asked[0] >= 0.2


async def test_f13_s26_a_judge_that_is_there_and_answers_nothing_is_an_error_that_names_it(tmp_path: Path) -> None:
    """S26 amended: else a judge that is always slow could never be recorded."""
    gone = asyncio.Event()

    async def llm(prompt: str, model: str | None, seconds: float) -> LlmAnswer:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.Event().wait()
        except TimeoutError as late:
            raise JudgeUnavailable("no answer in time") from late
        finally:
            gone.set()
        raise AssertionError

    async with pooled(make_tree(tmp_path, it=JUDGED), limit=0.5, llm=llm) as (_, grade):
        answer = await grade("it.stubborn")
    assert answer.kind == "error"
    assert answer.error is not None
    said = re.fullmatch(
        r"ran over its 0\.5 s and was stopped; (0\.[0-9]) s of them it waited for the judge at http://judge\.test/v1, "
        "which did not answer",
        answer.error,
    )
    assert said is not None, answer.error
    assert gone.is_set()


@pytest.mark.parametrize(
    ("refuses_for", "kind"),
    [pytest.param(3.2, "judge_unavailable", id="refused for most of it"), pytest.param(0.2, "error", id="then silent")],
)
async def test_s26_at_the_limit_what_the_judge_did_for_most_of_it_decides(
    tmp_path: Path, refuses_for: float, kind: str
) -> None:
    """A judge that answers 503 until shortly before the limit, and one that was away for a moment and then hung."""
    began: list[float] = []

    async def llm(prompt: str, model: str | None, seconds: float) -> LlmAnswer:
        began.append(time.monotonic())
        if began[-1] - began[0] < refuses_for:
            raise JudgeUnavailable("the judge: http://judge.test/v1 answered 503")
        await asyncio.Event().wait()
        raise AssertionError

    async with pooled(make_tree(tmp_path, it=JUDGED), limit=4, llm=llm) as (_, grade):
        answer = await grade("it.asks")
    assert answer.kind == kind
    assert "the judge: http://judge.test/v1 answered 503" in (answer.error or "")
    assert ("which did not answer; before that it failed: " in (answer.error or "")) is (kind == "error")


async def test_s24_s26_the_limit_is_the_graders_whoever_took_the_time_once_the_judge_has_answered(
    tmp_path: Path,
) -> None:
    async def llm(prompt: str, model: str | None, seconds: float) -> LlmAnswer:
        return LlmAnswer("quick")

    async def slow(prompt: str, model: str | None, seconds: float) -> LlmAnswer:
        await asyncio.sleep(1.5)
        return LlmAnswer("slow")

    root = make_tree(tmp_path, it=JUDGED)
    async with pooled(root, limit=2, llm=llm) as (_, grade):
        assert (await grade("it.then_hangs")).kind == "error"
    async with pooled(root, limit=2, llm=slow) as (_, grade):
        answer = await grade("it.then_hangs")
    assert answer.kind == "error"
    assert re.search(r"; 1\.[5-9] s of them it waited for the judge at http://judge\.test/v1$", answer.error or "")


async def test_a_fault_of_ours_in_the_judge_call_is_raised_and_the_grader_ended(tmp_path: Path) -> None:
    async def llm(prompt: str, model: str | None, seconds: float) -> LlmAnswer:
        raise ZeroDivisionError

    async with pooled(make_tree(tmp_path, it=JUDGED), llm=llm) as (_, grade):
        with pytest.raises(ZeroDivisionError):
            await grade("it.stubborn")


async def test_no_more_than_workers_at_once(tmp_path: Path) -> None:
    now = most = 0

    async def llm(prompt: str, model: str | None, seconds: float) -> LlmAnswer:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return LlmAnswer("1")

    async with pooled(make_tree(tmp_path, it=JUDGED), workers=3, llm=llm) as (_, grade):
        answers = await asyncio.gather(*(grade("it.asks") for _ in range(12)))
    assert all(answer.passed for answer in answers)
    assert most <= 3


@pytest.mark.parametrize("allowed", BOTH)
async def test_a_cage_that_died_is_replaced_and_the_call_made_again(tmp_path: Path, allowed: Allowed) -> None:
    root = make_tree(tmp_path, it="def yes(t, case, run): return True\n")
    async with pooled(root, allowed=allowed) as (pool, grade):
        assert (await grade("it.yes")).passed is True
        (slot,) = pool._slots.values()
        assert slot.cage is not None
        first = slot.cage
        os.kill(first.pid, signal.SIGKILL)
        assert (await grade("it.yes")).passed is True  # by what is left of it, or by the next one
        assert await eventually(lambda: not first.alive)
        assert (await grade("it.yes")).passed is True
        assert slot.cage is not first


@needs_linux
async def test_a_grader_that_takes_its_keeper_down_is_nobodys_failure(tmp_path: Path) -> None:
    body = "import os, signal\ndef kills(t, case, run):\n    os.kill(os.getppid(), signal.SIGKILL)\n    return True\n"
    async with pooled(make_tree(tmp_path, it=body), allowed="plain") as (_, grade):
        with pytest.raises(UnfitHost, match=r"it\.kills could not be run on this host"):
            await grade("it.kills")
        assert await eventually(lambda: len(processes_of(str(tmp_path))) <= 1)
    async with pooled(tmp_path) as (pool, grade):
        await grade("it.nothing_here")
        (slot,) = pool._slots.values()
        assert slot.cage is not None
        if slot.cage.cages.pid_namespace:  # there it cannot: its keeper is PID 1
            assert (await grade("it.kills")).passed is True


async def test_an_interpreter_that_is_not_there_stops_grading(tmp_path: Path) -> None:
    pool = GraderPool(workers=1)
    settings = GraderSettings(python="/does/not/exist/python")
    answer = await pool.grade(make_tree(tmp_path), settings, "it.yes", CASE, RUN, None)
    assert answer.kind == "stopped"
    assert "/does/not/exist/python" in (answer.error or "")
    await pool.aclose()


async def test_a_run_too_large_to_hand_over_is_an_error(tmp_path: Path) -> None:
    pool = GraderPool(workers=1)
    root = make_tree(tmp_path, it="def yes(t, case, run): return True\n")
    big = {**RUN, "final_answer": "x" * (65 * 1024 * 1024)}
    answer = await pool.grade(root, GraderSettings(), "it.yes", CASE, big, None)
    assert (answer.kind, "cannot be handed to it" in (answer.error or "")) == ("error", True)
    large = {**RUN, "final_answer": "x" * (20 * 1024 * 1024)}
    assert (await pool.grade(root, GraderSettings(), "it.yes", CASE, large, None)).passed is True
    await pool.aclose()


async def test_bundles_that_are_not_used_any_more_give_their_cage_back(tmp_path: Path) -> None:
    pool = GraderPool(workers=2)
    for number in range(12):
        root = make_tree(
            tmp_path / str(number), it=f"def says(t, case, run): return {{'pass': True, 'why': {number}}}\n"
        )
        assert (await pool.grade(root, GraderSettings(), "it.says", CASE, RUN, None)).why == str(number)
    assert len(pool._slots) == 8
    await pool.aclose()
    assert not pool._slots


async def test_after_closing_nothing_is_graded(tmp_path: Path) -> None:
    pool = GraderPool(workers=1)
    await pool.aclose()
    with pytest.raises(UnfitHost, match="closed"):
        await pool.grade(make_tree(tmp_path), GraderSettings(), "it.yes", CASE, RUN, None)
