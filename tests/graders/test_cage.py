"""S28: what a grader sees, what it does not see, and that nothing of it stays. F08, F09, F10."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evalfleet.errors import UnfitHost
from evalfleet.graders.cage import Allowed, Cage, CageLost, Cages, Ending, GraderSettings, capabilities
from tests.graders.trees import CASE, RUN, at_rest, case_tree, eventually, make_tree, needs_linux, processes_of

PYENV = Path.home() / ".pyenv" / "versions"
BOTH: list[Allowed] = ["best", "plain"]


class Caged:
    """A cage, called by a grader's name."""

    def __init__(self, cage: Cage) -> None:
        self.cage = cage

    async def __call__(self, name: str, limit: float = 20.0) -> Ending:
        file, _, function = name.partition(".")
        request = {"op": "grade", "file": file, "function": function, "case": CASE, "run": RUN}
        return await self.cage.call(request, limit=limit)


@asynccontextmanager
async def caged(root: Path, settings: GraderSettings | None = None, allowed: Allowed = "best") -> AsyncIterator[Caged]:
    cage = await Cage.start(root, settings or GraderSettings(), allowed=allowed)
    try:
        yield Caged(cage)
    finally:
        await cage.aclose()


async def _why(root: Path, body: str, settings: GraderSettings | None = None, allowed: Allowed = "best") -> str:
    """What a grader with this body says as its `why`, or its error."""
    make_tree(root, it="import os, sys\ndef says(t, case, run):\n" + textwrap.indent(textwrap.dedent(body), "    "))
    async with caged(root, settings, allowed) as call:
        ending = await call("it.says")
        assert ending.end == "said", ending
        if "error" in ending.said:
            return str(ending.said["error"])
        return str(ending.said["answer"]["why"])


@pytest.mark.parametrize("allowed", BOTH)
async def test_it_runs_in_the_copy_with_the_tree_root_last_on_the_path(tmp_path: Path, allowed: Allowed) -> None:
    root = os.path.realpath(tmp_path)  # noqa: ASYNC240
    body = "return {'pass': True, 'why': repr((os.getcwd(), sys.path[-1], sys.path.count(sys.path[-1]), sys.argv))}"
    assert await _why(tmp_path, body, allowed=allowed) == repr((root, root, 1, ["it.py"]))
    body = "return {'pass': True, 'why': [p for p in sys.path if 'evals/graders' in p]}"
    assert await _why(tmp_path, body, allowed=allowed) == "[]"


async def test_modules_of_the_tree_are_imported_from_its_root(tmp_path: Path) -> None:
    make_tree(tmp_path, shared="WORD = 'found'\n")
    body = "import evals.graders.shared as s\nreturn {'pass': True, 'why': s.WORD}"
    assert await _why(tmp_path, body) == "found"


async def test_it_sees_no_variable_but_those_it_is_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ("EVALFLEET_TOKEN", "EVALFLEET_PLAN_KEY", "SPLOX_API_KEY", "SPLOX_API_KEY_STAGING", "SPLOX_API_KEY_ACME_EU")
    for name in ours:
        monkeypatch.setenv(name, "hush-hush")
    monkeypatch.setenv("RUBRIC", "strict")
    body = "return {'pass': True, 'why': (os.environ.get('RUBRIC'), 'hush-hush' in str(os.environ))}"
    assert await _why(tmp_path, body) == "(None, False)"
    assert await _why(tmp_path, body, GraderSettings(env=("RUBRIC", "NOT_SET"))) == "('strict', False)"
    assert await _why(tmp_path, body, GraderSettings(env=("RUBRIC", *ours))) == "('strict', False)", (
        "whatever a plan says"
    )
    error = await _why(tmp_path, "return os.environ['RUBRIC']")
    assert error == (
        "KeyError: 'RUBRIC' (evals/graders/it.py, line 3); graders see no variable but those named in `env` under "
        "[graders], e.g. env = ['RUBRIC']"
    )


@needs_linux
async def test_it_cannot_read_the_environment_of_the_process_that_holds_the_token(tmp_path: Path) -> None:
    if not (await asyncio.to_thread(capabilities)).user_namespace:
        pytest.skip("this host gives no user namespaces")
    body = f"return open('/proc/{os.getpid()}/environ').read()"
    assert "PermissionError" in await _why(tmp_path, body)
    body = f"return os.readlink('/proc/{os.getpid()}/fd/0')"
    assert "PermissionError" in await _why(tmp_path, body)


@pytest.mark.parametrize("allowed", BOTH)
async def test_it_holds_no_open_file_of_ours(tmp_path: Path, allowed: Allowed) -> None:
    with (tmp_path / "ours.txt").open("w") as ours:
        os.set_inheritable(ours.fileno(), True)
        body = """
            kinds = []
            for number in range(2000):
                try:
                    kinds.append((number, os.readlink(f'/proc/self/fd/{number}').split(':')[0]))
                except OSError:
                    pass
            return {'pass': True, 'why': kinds}
        """
        seen = await _why(tmp_path, body, allowed=allowed)
    assert seen == "[(0, '/dev/null'), (1, 'pipe'), (2, 'pipe'), (1000, 'socket')]"


@needs_linux
async def test_its_copy_of_the_tree_cannot_be_changed_even_by_its_owner(tmp_path: Path) -> None:
    if not (await asyncio.to_thread(capabilities)).read_only_tree:
        pytest.skip("this host gives no mount namespaces")
    for body in ("open('evals/graders/it.py', 'a')", "os.chmod('evals/graders/it.py', 0o777)", "os.mkdir('new')"):
        error = await _why(tmp_path, body)
        assert "Read-only file system" in error
        assert "the tree is a read-only copy" in error


@pytest.mark.parametrize("allowed", BOTH)
async def test_it_has_a_temporary_folder_of_its_own_that_goes_with_it(tmp_path: Path, allowed: Allowed) -> None:
    body = """
        import tempfile
        folder = tempfile.mkdtemp()
        open(os.path.join(folder, 'x'), 'w').write('y')
        return {'pass': True, 'why': folder}
    """
    folder = await _why(tmp_path, body, allowed=allowed)
    assert "evalfleet-grading-" in folder
    assert not await asyncio.to_thread(Path(folder).parent.parent.exists)


@needs_linux
async def test_the_network_is_closed_unless_it_is_opened(tmp_path: Path) -> None:
    if not (await asyncio.to_thread(capabilities)).network_closed:
        pytest.skip("this host gives no network namespaces")
    with socket.create_server(("127.0.0.1", 0)) as server:
        body = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 5)\nreturn True"
        error = await _why(tmp_path, body)
        assert error.endswith("graders have no network, `network = true` under [graders] opens it")
        assert await _why(tmp_path, body, GraderSettings(network=True)) == "None"


@needs_linux
@pytest.mark.parametrize("allowed", BOTH)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("F08.blocks", "MemoryError .*it reached its memory limit, `memory` under .graders. raises it"),
        ("F08.one_list", "MemoryError"),
        ("F08.files", "Too many open files.*1024 open files"),
    ],
)
async def test_f08_limits_end_the_grader_and_name_themselves(
    tmp_path: Path, name: str, reason: str, allowed: Allowed
) -> None:
    async with caged(case_tree(tmp_path, "F08"), GraderSettings(memory_mb=512), allowed) as call:
        error = (await call(name)).said["error"]
    assert re.search(reason, error), error


@pytest.mark.parametrize("allowed", BOTH)
async def test_f08_a_file_grows_to_256_mib_and_no_further(tmp_path: Path, allowed: Allowed) -> None:
    body = """
        import tempfile
        with tempfile.TemporaryFile() as file:
            file.truncate(256 * 2**20)
            file.truncate(256 * 2**20 + 1)
    """
    error = await _why(tmp_path, body, allowed=allowed)
    assert (
        error == "OSError: [Errno 27] File too large (evals/graders/it.py, line 7); a grader may write files of 256 MiB"
    )


@needs_linux
async def test_f08_processes_are_limited_where_it_is_said_that_they_are(tmp_path: Path) -> None:
    """What is said at a worker's start is what the grader finds."""
    cages = await asyncio.to_thread(capabilities)
    body = "import resource\nreturn {'pass': True, 'why': resource.getrlimit(resource.RLIMIT_NPROC)[0]}"
    limit = await _why(tmp_path, body)
    if cages.process_limit:
        assert limit == "1024"
    else:
        assert limit == str(resource.getrlimit(resource.RLIMIT_NPROC)[0])


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("F09.plain", "RecursionError: maximum recursion depth exceeded (evals/graders/F09.py, line 5)"),
        ("F09.bad_str", "Bad: (its text cannot be read: ValueError) (evals/graders/F09.py, line 22)"),
    ],
)
async def test_f09_an_exception_is_a_short_reason(tmp_path: Path, name: str, error: str) -> None:
    async with caged(case_tree(tmp_path, "F09")) as call:
        assert (await call(name)).said == {"error": error}
        assert len((await call("F09.long_msg")).said["error"]) < 700


@needs_linux
async def test_f09_a_recursion_without_end_is_stopped_by_memory_a_crash_or_the_limit(tmp_path: Path) -> None:
    async with caged(case_tree(tmp_path, "F09"), GraderSettings(memory_mb=128)) as call:
        ending = await call("F09.crash", 5)
    assert (ending.end, "error" in ending.said) in {("said", True), ("died", False), ("limit", False)}


async def test_an_exception_group_and_a_many_line_message_are_one_line(tmp_path: Path) -> None:
    make_tree(
        tmp_path,
        it="def group(t, c, r):\n    raise ExceptionGroup('two', [ValueError(1), KeyError(2)])\n"
        "def lines(t, c, r):\n    raise ValueError('first\\nsecond')\n",
    )
    async with caged(tmp_path) as call:
        assert (await call("it.lines")).said["error"] == "ValueError: first … (evals/graders/it.py, line 4)"
        assert (await call("it.group")).said["error"].startswith("ExceptionGroup: two (2 sub-exceptions)")


@pytest.mark.parametrize(
    ("body", "end", "signal_number"),
    [
        ("os._exit(3)", "died", None),
        ("os.kill(os.getpid(), 11)", "died", signal.SIGSEGV),
        ("os.abort()", "died", signal.SIGABRT),
        ("os.kill(os.getpid(), 15)", "died", signal.SIGTERM),
    ],
    ids=["leaves", "segfault", "abort", "terminates itself"],
)
@pytest.mark.parametrize("allowed", BOTH)
async def test_a_crash_is_seen_at_once_for_what_it_is(
    tmp_path: Path, body: str, end: str, signal_number: int | None, allowed: Allowed
) -> None:
    head = "import os, subprocess\ndef says(t, c, r):\n    subprocess.Popen(['sleep', '300'])\n    "
    make_tree(tmp_path, it=head + body + "\n")
    async with caged(tmp_path, allowed=allowed) as call:
        ending = await call("it.says")
    assert ending.end == end
    assert ending.status is not None
    if signal_number is None:
        assert os.waitstatus_to_exitcode(ending.status) == 3
    else:
        assert os.WTERMSIG(ending.status) == signal_number


async def test_t_has_llm_and_says_so(tmp_path: Path) -> None:
    error = await _why(tmp_path, "return t.judge('x')")
    assert error.startswith("AttributeError: t.judge is not there; t has llm(prompt, model=None), run_id and history")
    assert "prompt is text, not list of 1" in await _why(tmp_path, "return t.llm(['x'])")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("async def says(t, case, run): return True", "says is an `async def`"),
        ("def says(t, case, run):\n    async def it(): pass\n    return it()", "an object of type coroutine"),
        ("says = 3", "has no public function 'says'"),
        ("def says(case): return True", "takes 1 argument; it is called with three arguments: t, case, run"),
    ],
    ids=["async def", "a coroutine", "no function", "wrong signature"],
)
async def test_what_is_no_grader_is_an_error(tmp_path: Path, body: str, error: str) -> None:
    make_tree(tmp_path, it=body + "\n")
    async with caged(tmp_path) as call:
        assert error in (await call("it.says")).said["error"]


async def test_a_fork_of_the_grader_that_returns_does_not_answer_for_it(tmp_path: Path) -> None:
    body = """
        if os.fork() == 0:
            return True
        os.wait()
        return False
    """
    make_tree(tmp_path, it="import os\ndef says(t, case, run):" + textwrap.indent(body, "  "))
    async with caged(tmp_path) as call:
        assert (await call("it.says")).said["answer"]["pass"] is False


async def test_bytes_written_on_the_private_descriptor_are_no_verdict(tmp_path: Path) -> None:
    body = """
        for number in range(3, 1024):
            try:
                os.write(number, b'{"answer": {"pass": true}}' * 10)
            except OSError:
                pass
        return True
    """
    make_tree(tmp_path, it="import os\ndef says(t, case, run):" + textwrap.indent(body, "  "))
    async with caged(tmp_path) as call:
        ending = await call("it.says")
    assert ending.end == "garbled"
    assert "private descriptor" in ending.detail


def _other_pythons() -> list[str]:
    versions = [f"3.{minor}" for minor in range(8, 15)]
    found = [shutil.which(f"python{version}") for version in versions]
    found += [str(path) for version in versions for path in PYENV.glob(f"{version}.*/bin/python")]
    return [path for path in found if path and "/shims/" not in path]


@pytest.mark.parametrize("allowed", BOTH)
async def test_it_runs_on_any_python_from_3_8_that_has_nothing_of_ours(tmp_path: Path, allowed: Allowed) -> None:
    body = "return {'pass': True, 'why': [m for m in sys.modules if 'evalfleet' in m]}"
    pythons = _other_pythons()
    for python in pythons:
        assert await _why(tmp_path, body, GraderSettings(python=python), allowed) == "[]", python
    if not pythons:
        pytest.skip("no other Python here")


async def test_a_python_too_old_is_named(tmp_path: Path) -> None:
    old = [str(path) for path in PYENV.glob("[23].[67].*/bin/python")]
    if not old:
        pytest.skip("no old Python here")
    for python in old:
        with pytest.raises(UnfitHost, match=r"Python 3\.8 or newer"):
            await Cage.start(make_tree(tmp_path), GraderSettings(python=python))


@pytest.mark.parametrize("program", ["/bin/ls", "/does/not/exist", "/etc/passwd"])
async def test_an_interpreter_that_is_none_is_named(tmp_path: Path, program: str) -> None:
    with pytest.raises(UnfitHost, match=program):
        await Cage.start(make_tree(tmp_path), GraderSettings(python=program))


@needs_linux
@pytest.mark.parametrize("allowed", BOTH)
async def test_a_cancelled_call_is_killed_with_all_it_started(tmp_path: Path, allowed: Allowed) -> None:
    root = case_tree(tmp_path, "F01")
    (root / "evals/graders/quick.py").write_text("def yes(t, case, run): return True\n")
    async with caged(root, allowed=allowed) as call:
        await call("quick.yes")
        assert await eventually(lambda: at_rest(call.cage, str(root)))
        scratch = str(call.cage._scratch)
        resting = len(processes_of(str(root), scratch))
        hanging = asyncio.create_task(call("F01.hang"))
        assert await eventually(lambda: len(processes_of(str(root), scratch)) == resting + 1)
        hanging.cancel()
        await asyncio.wait([hanging])
        assert hanging.cancelled()
        assert await eventually(lambda: len(processes_of(str(root), scratch)) == resting - 2)  # its keeper went too
        assert not list(call.cage._scratch.iterdir())


@needs_linux
@pytest.mark.parametrize("allowed", BOTH)
async def test_closing_ends_calls_under_way_and_every_process(tmp_path: Path, allowed: Allowed) -> None:
    root = case_tree(tmp_path, "F01", "F02")
    cage = await Cage.start(root, GraderSettings(), allowed=allowed)
    request = {"op": "grade", "file": "F01", "function": "hang", "case": CASE, "run": RUN}
    calls = [asyncio.create_task(cage.call(request, limit=60)) for _ in range(3)]
    assert await eventually(lambda: len(processes_of(str(cage._scratch))) >= 1 + 3 * 3)  # a program of each grader's
    await cage.aclose()
    assert all(isinstance(ended, CageLost) for ended in await asyncio.gather(*calls, return_exceptions=True))
    assert await eventually(lambda: not processes_of(str(root), str(cage._scratch)))
    assert not cage._scratch.exists()


@needs_linux
@pytest.mark.parametrize("allowed", BOTH)
async def test_kill_9_of_the_worker_leaves_nothing(tmp_path: Path, allowed: Allowed) -> None:
    root = case_tree(tmp_path, "F01", "F05")
    program = f"""
        import asyncio, pathlib
        from evalfleet.graders.cage import Cage, GraderSettings
        async def main():
            cage = await Cage.start(pathlib.Path({str(root)!r}), GraderSettings(), allowed={allowed!r})
            names = [("F01", "hang"), ("F05", "stubborn"), ("F05", "regex")]
            print(cage._scratch, flush=True)
            await asyncio.gather(*(
                cage.call({{"op": "grade", "file": f, "function": n, "case": {{}}, "run": {{}}}}, limit=90)
                for f, n in names
            ))
        asyncio.run(main())
    """
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(program), stdout=subprocess.PIPE, env={**os.environ, "MARK": str(root)}
    )
    assert worker.stdout is not None
    scratch = (await worker.stdout.readline()).decode().strip()
    assert await eventually(lambda: len(processes_of(scratch)) >= 1 + 3 * 2 + 1)
    worker.kill()
    await worker.wait()
    worker._transport.close()  # type: ignore[attr-defined]
    assert await eventually(lambda: not processes_of(str(root), scratch))
    assert not await asyncio.to_thread(Path(scratch).exists)


@needs_linux
async def test_a_cage_that_was_killed_is_lost_and_takes_its_graders_along(tmp_path: Path) -> None:
    root = case_tree(tmp_path, "F01")
    cage = await Cage.start(root, GraderSettings())
    if not cage.cages.pid_namespace:
        await cage.aclose()
        pytest.skip("this host gives no PID namespaces")
    request = {"op": "grade", "file": "F01", "function": "hang", "case": CASE, "run": RUN}
    call = asyncio.create_task(cage.call(request, limit=60))
    assert await eventually(lambda: len(processes_of(str(cage._scratch))) >= 5)  # with the program that it starts
    os.kill(cage.pid, signal.SIGKILL)
    with pytest.raises(CageLost):
        await call
    assert not cage.alive
    assert await eventually(lambda: not processes_of(str(root), str(cage._scratch)))
    await cage.aclose()


async def test_f10_graders_start_from_a_busy_threaded_process_without_a_fork_of_it(tmp_path: Path) -> None:
    stop = threading.Event()
    lock = threading.Lock()

    def busy() -> None:
        while not stop.wait(0.0005):
            with lock:
                sys.stderr.flush()

    threads = [threading.Thread(target=busy) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        make_tree(tmp_path, it="def yes(t, case, run): return True\n")
        async with caged(tmp_path) as call:
            slots = asyncio.Semaphore(16)

            async def one() -> bool:
                async with slots:
                    return bool((await call("it.yes")).said["answer"]["pass"])

            assert all(await asyncio.gather(*(one() for _ in range(500))))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_it_works_on_the_workers_uvloop(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")
    make_tree(tmp_path, it="def yes(t, case, run): return True\n")

    async def some() -> list[Ending]:
        async with caged(tmp_path) as call:
            return await asyncio.gather(*(call("it.yes") for _ in range(20)))

    assert all(ending.said["answer"]["pass"] for ending in uvloop.run(some()))


@needs_linux
async def test_a_fork_bomb_is_ended_with_its_call(tmp_path: Path) -> None:
    body = """
        import os, time
        def bomb(t, case, run):
            until = time.monotonic() + 10
            for _ in range(4):  # 16 processes at once that go on forking: enough to outrun a sweep, too few to hurt
                try:
                    os.fork()
                except OSError:
                    pass
            while time.monotonic() < until:
                if os.fork() == 0:
                    os.setsid()
                else:
                    os._exit(0)
    """
    make_tree(tmp_path, it=textwrap.dedent(body))
    async with caged(tmp_path) as call:
        if not call.cage.cages.pid_namespace:
            pytest.skip("this host gives no PID namespaces")
        assert (await call("it.bomb", 0.5)).end in {"limit", "died"}
        assert await eventually(lambda: at_rest(call.cage, str(tmp_path)))


def test_which_walls_stand_is_said(tmp_path: Path) -> None:
    cages = capabilities()
    assert isinstance(cages, Cages)
    assert cages.python.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    nothing = Cages(False, False, False, False, False, False, False)
    assert (len(nothing.weak()), nothing.standing()) == (6, ())
    everything = Cages(True, True, True, True, True, True, True)
    assert everything.weak() == ()
    assert everything.standing() == (
        "user namespace", "PID namespace", "network closed", "read-only tree", "memory limit", "process limit",
    )  # fmt: skip
    assert cages.process_limit is (cages.user_namespace and os.geteuid() != 0)
