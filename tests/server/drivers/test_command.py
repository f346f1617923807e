"""The command driver with real processes (S17; issue: "three drivers behind a run")."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from decimal import Decimal
from pathlib import Path

import pytest

from evalfleet.errors import ConfigError
from evalfleet.server.drivers import command, make_driver
from evalfleet.server.drivers.command import CommandDriver
from evalfleet.server.drivers.leftovers import started
from evalfleet.server.driving import Call, Ended, Failure
from evalfleet.treeconfig import CommandHarness, HarnessConfig
from tests.server.drivers.recording import Recording, a_turn

AGENTS = Path(__file__).resolve().parents[2] / "e2e" / "agents"
MakeDriver = Callable[..., CommandDriver]


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[MakeDriver]:
    made: list[CommandDriver] = []

    def make(*argv: str, env: dict[str, str] | None = None, scratch: bool = False, **environ: str) -> CommandDriver:
        program = argv if "/" in argv[0] else (sys.executable, "-S", str(AGENTS / argv[0]), *argv[1:])
        harness = CommandHarness(program, env or {}, "scratch" if scratch else "tree")
        root = tmp_path / "tree"
        root.mkdir(exist_ok=True)
        made.append(CommandDriver(harness, root=root, state=tmp_path / "state", environ=dict(os.environ) | environ))
        return made[-1]

    yield make
    for each in made:
        await each.aclose()
    assert list((tmp_path / "state").glob("agents/*")) == []


async def play(agent: CommandDriver, message: str = "hello") -> tuple[Ended, Recording]:
    sink = Recording()
    return await agent.run(a_turn(message), sink), sink


async def test_an_agent_reads_its_turn_and_plain_text_is_its_answer(driver: MakeDriver, tmp_path: Path) -> None:
    sink = Recording()
    turn = a_turn("Grüße \ud83d", turn=1, history=(("user", "hi"), ("assistant", "ho")), metadata={"a": 1})
    ended = await driver("echo.py", env={"MODE": "test"}).run(turn, sink)
    assert ended == Ended()
    [answer] = sink.answers
    seen = json.loads(answer)
    assert seen["turn"] == {
        "chat_id": "chat_1",
        "run_id": "run_1",
        "turn": 1,
        "message": "Grüße \ud83d",
        "history": [{"role": "user", "text": "hi"}, {"role": "assistant", "text": "ho"}],
        "metadata": {"a": 1},
    }
    assert seen["cwd"] == str(tmp_path / "tree")
    assert seen["mode"] == "test"


async def test_an_agent_inherits_the_environment_but_no_credential_of_ours(driver: MakeDriver) -> None:
    ours = {
        "EVALFLEET_TOKEN": "t",
        "EVALFLEET_BROKER_URL": "redis://:p@h",
        "EVALFLEET_DATABASE_URL": "d",
        "EVALFLEET_LIFELINE_FD": "7",
        "SPLOX_API_KEY": "k",
        "SPLOX_API_KEY_STAGING": "k",
    }
    agent = driver("echo.py", env={"EVALFLEET_MINE": "stated"}, THEIR_KEY="kept", **ours)
    _, sink = await play(agent)
    names = set(json.loads(sink.answers[0])["environment"])
    assert {"PATH", "THEIR_KEY", "EVALFLEET_MINE"} <= names
    assert not names & set(ours)


async def test_json_lines_are_reported_in_order(driver: MakeDriver) -> None:
    ended, sink = await play(driver("protocol.py"), "q")
    assert ended == Ended()
    assert sink.said == [
        ("hook", "tools.before", "answered", "hooks/tools.py", 1.5),
        ("tool_calls", ("c1", "lookup", {"q": "q"})),
        ("tool_result", "c1", {"found": 1}),
        ("usage", 10, 2, 0, 0, Decimal("0.0010"), None),
        ("usage", 5, 1, 0, 0, Decimal("0.0005"), None),
        ("answer", "done: q"),
    ]


async def test_lines_are_reported_while_the_agent_is_still_at_work(driver: MakeDriver) -> None:
    sink = Recording()
    playing = asyncio.create_task(driver("slow.py", "0.2").run(a_turn("m"), sink))
    await asyncio.wait_for(sink.started.wait(), 30)
    assert sink.said[0][0] == "tool_calls"
    assert not playing.done()
    assert await playing == Ended()
    assert sink.answers == ["slowly: m"]


async def test_turns_of_different_chats_are_played_side_by_side(driver: MakeDriver) -> None:
    agent = driver("deaf.py")
    sinks = [Recording() for _ in range(8)]
    ended = await asyncio.gather(*(agent.run(a_turn(chat=f"chat_{n}"), sink) for n, sink in enumerate(sinks)))
    assert ended == [Ended()] * 8
    assert [sink.answers for sink in sinks] == [["I did not listen"]] * 8


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        pytest.param(["crashing.py"], "agent_exit", "exit status 3: the tool room is locked", id="exit status"),
        pytest.param(["crashing.py", "segv"], "agent_exit", "killed by SIGSEGV, nothing on its error", id="signal"),
        pytest.param(["crashing.py", "abort"], "agent_exit", "killed by SIGABRT", id="abort"),
        pytest.param(["crashing.py", "traceback"], "agent_exit", "KeyError: 'no such room'", id="an exception"),
        pytest.param(["crashing.py", "midline"], "agent_exit", "exit status 4", id="a crash explains half a line"),
        pytest.param(["crashing.py", "quiet"], "agent_exit", "its output ends: half an answer", id="no error output"),
        pytest.param(["half_line.py"], "agent_protocol", "line 2 of the agent's output ends in", id="half a line"),
        pytest.param(["babbling.py"], "agent_protocol", "it starts: debug: thinking", id="other output"),
        pytest.param(["flooding.py", "300"], "agent_output_too_large", "more than 256 MiB", id="too much output"),
    ],
)
async def test_an_agent_that_fails_says_how(driver: MakeDriver, argv: list[str], code: str, message: str) -> None:
    ended, sink = await play(driver(*argv))
    assert ended.failure is not None
    assert (ended.failure.code, ended.failure.retryable) == (code, False)
    assert message in ended.failure.message
    assert not sink.answers


async def test_what_was_reported_before_a_crash_stays(driver: MakeDriver) -> None:
    _, sink = await play(driver("crashing.py", "midline"))
    assert [what[0] for what in sink.said] == ["tool_calls"]


@pytest.mark.parametrize("status", [0, 3])
async def test_item_22_a_stray_print_before_the_protocol_is_noted(
    driver: MakeDriver, tmp_path: Path, status: int
) -> None:
    """Also of an agent that failed then: its calls are not in the journal either."""
    agent = tmp_path / "agent.sh"
    agent.write_text(
        f"""#!/bin/sh
echo 'Loading the model'
echo '{{"type": "tool_call", "id": "1", "name": "rm", "args": {{}}}}'
exit {status}
"""
    )
    agent.chmod(0o755)
    ended, sink = await play(driver(str(agent)))
    assert (ended.failure is None) == (status == 0)
    [note] = [what[1] for what in sink.said if what[0] == "note"]
    assert "and the `tool_call` in line 2 was not read" in note
    assert note.endswith('line 1 starts with "Loading the model"')
    assert len(sink.answers) == (status == 0)
    assert "tool_calls" not in [what[0] for what in sink.said]


async def test_an_error_line_outweighs_the_exit_status(driver: MakeDriver, tmp_path: Path) -> None:
    agent = tmp_path / "agent.sh"
    agent.write_text(
        """#!/bin/sh
echo '{"type": "error", "message": "no model today", "code": "rate_limited", "retryable": true}'
echo '{"type": "error", "message": "and again"}'
exit 1
"""
    )
    agent.chmod(0o755)
    ended, _ = await play(driver(str(agent)))
    assert ended.failure == Failure("rate_limited", "no model today", True)


async def test_only_the_end_of_a_long_error_output_is_kept(driver: MakeDriver, tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text("import sys\nsys.stderr.write('é' * 500_000 + 'the end')\nsys.exit(1)\n")
    ended, _ = await play(driver(sys.executable, str(agent)))
    assert ended.failure is not None
    assert ended.failure.message.startswith("exit status 1: …é")
    assert ended.failure.message.endswith("ééthe end")
    assert len(ended.failure.message.encode()) < command.STDERR_KEPT + 100


async def test_an_agent_that_floods_does_not_keep_the_loop_to_itself(driver: MakeDriver) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticking = asyncio.create_task(tick())
    ended, _ = await play(driver("flooding.py", "50"))
    ticking.cancel()
    assert ended == Ended()
    assert ticks > 100


async def test_an_agent_that_says_nothing_ends_well_without_an_answer(driver: MakeDriver) -> None:
    ended, sink = await play(driver("silent.py"))
    assert (ended, sink.said) == (Ended(), [])


async def test_an_agent_that_never_reads_a_large_turn_is_not_held_up(driver: MakeDriver) -> None:
    ended, sink = await play(driver("deaf.py"), "x" * 5_000_000)
    assert (ended, sink.answers) == (Ended(), ["I did not listen"])


async def test_a_large_turn_arrives_whole(driver: MakeDriver) -> None:
    _, sink = await play(driver("echo.py"), "x" * 3_000_000)
    assert len(json.loads(sink.answers[0])["turn"]["message"]) == 3_000_000


async def test_a_turn_lasts_until_the_exit_and_not_until_stdout_is_closed(driver: MakeDriver) -> None:
    ended, sink = await play(driver("shy.py"))
    assert (ended, sink.answers) == (Ended(), ["that is all"])


async def test_a_child_in_the_agents_group_does_not_outlive_the_turn(driver: MakeDriver, tmp_path: Path) -> None:
    ended, sink = await play(driver("breeding.py", str(tmp_path / "pid")))
    assert (ended, sink.answers) == (Ended(), ["I have a child"])
    await gone(int((tmp_path / "pid").read_text()))


async def test_a_daemon_that_holds_stdout_open_does_not_hang_the_turn(driver: MakeDriver, tmp_path: Path) -> None:
    ended, sink = await asyncio.wait_for(play(driver("daemonising.py", str(tmp_path / "pid"))), 20)
    assert (ended, sink.answers) == (Ended(), ["I have a daemon"])
    os.kill(int((tmp_path / "pid").read_text()), 9)  # it left our care; the test ends it


async def test_a_slow_reader_of_what_an_ended_agent_printed_loses_nothing(driver: MakeDriver, tmp_path: Path) -> None:
    """The pipe is given up a second after the exit, but what it holds by then is read, however long that takes."""

    class Slow(Recording):
        async def tool_calls(self, calls: Sequence[Call]) -> None:
            await super().tool_calls(calls)
            if len(self.said) == 1:
                await asyncio.sleep(1.5)

    agent = tmp_path / "agent.py"
    agent.write_text(
        "import json\nfor n in range(600):\n"
        "    print(json.dumps({'type': 'tool_call', 'id': str(n), 'name': 't'}), flush=n == 0)\n"
    )
    sink = Slow()
    assert await driver(sys.executable, str(agent)).run(a_turn(), sink) == Ended()
    assert len(sink.said) == 600


async def test_cancelling_ends_an_agent_with_sigterm_and_hears_its_last_words(driver: MakeDriver) -> None:
    sink = Recording()
    playing = asyncio.create_task(driver("polite.py").run(a_turn(), sink))
    await asyncio.wait_for(sink.started.wait(), 30)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert sink.said[-1] == ("usage", 7, 0, 0, 0, None, None)


async def test_an_agent_that_ignores_sigterm_is_killed(
    driver: MakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.GRACE == 5.0
    monkeypatch.setattr(command, "GRACE", 0.2)
    sink = Recording()
    playing = asyncio.create_task(driver("stubborn.py").run(a_turn(), sink))
    await asyncio.wait_for(sink.started.wait(), 30)
    pid = sink.said[0][1].args["pid"]
    assert started(pid) is not None
    assert (tmp_path / "state" / "agents" / str(pid)).is_file()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    await gone(pid)


async def test_a_second_cancel_does_not_leave_the_agent_behind(
    driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "GRACE", 60)
    agent = driver("stubborn.py")
    sink = Recording()
    playing = asyncio.create_task(agent.run(a_turn(), sink))
    await asyncio.wait_for(sink.started.wait(), 30)
    playing.cancel()
    await asyncio.sleep(0)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    await asyncio.wait_for(agent.aclose(), 3)
    await gone(sink.said[0][1].args["pid"])


async def test_cancelling_while_a_turn_starts_leaves_nothing_behind(driver: MakeDriver, tmp_path: Path) -> None:
    agent = driver("stubborn.py", str(tmp_path / "pid"))
    for steps in range(6):
        playing = asyncio.create_task(agent.run(a_turn(), Recording()))
        for _ in range(steps):
            await asyncio.sleep(0)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
    if (tmp_path / "pid").exists():
        await gone(int((tmp_path / "pid").read_text()))


async def test_closing_the_driver_kills_at_once_and_is_no_fault_of_the_agent(driver: MakeDriver) -> None:
    agent = driver("stubborn.py")
    sink = Recording()
    playing = asyncio.create_task(agent.run(a_turn(), sink))
    await asyncio.wait_for(sink.started.wait(), 30)
    await agent.aclose()
    ended = await playing
    assert ended.failure is not None
    assert (ended.failure.code, ended.failure.retryable) == ("server_lost", True)
    await gone(sink.said[0][1].args["pid"])
    assert (await agent.run(a_turn(), sink)).failure == ended.failure


async def test_a_report_that_cannot_be_taken_ends_the_agent_and_is_raised(driver: MakeDriver, tmp_path: Path) -> None:
    agent = driver("stubborn.py", str(tmp_path / "pid"))
    with pytest.raises(OSError, match="disk full"):
        await agent.run(a_turn(), Recording(refuse=OSError("disk full")))
    await gone(int((tmp_path / "pid").read_text()))


async def test_a_state_folder_that_cannot_be_written_is_no_fault_of_the_agent(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    harness = CommandHarness((sys.executable, "-S", str(AGENTS / "stubborn.py"), str(tmp_path / "pid")))
    agent = CommandDriver(harness, root=tmp_path, state=tmp_path / "state")
    ended = await agent.run(a_turn(), Recording())
    assert ended.failure is not None
    assert (ended.failure.code, ended.failure.retryable) == ("internal_error", True)
    await agent.aclose()


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        pytest.param(["no-such-program"], "no-such-program is not on PATH", id="not on PATH"),
        pytest.param(["./missing.sh"], "missing.sh is not there", id="not in the tree"),
        pytest.param(["./plain.txt"], "may not be executed (chmod +x?)", id="not executable"),
        pytest.param(["./folder"], "is a folder", id="a folder"),
        pytest.param([], "argv is empty", id="nothing"),
    ],
)
async def test_an_agent_that_cannot_be_started_is_the_operators_mistake(
    tmp_path: Path, argv: list[str], says: str
) -> None:
    (tmp_path / "plain.txt").write_text("echo hi")
    (tmp_path / "folder").mkdir()
    agent = make_driver(HarnessConfig("h", CommandHarness(tuple(argv))), tmp_path, tmp_path / "state")
    with pytest.raises(ConfigError) as caught:
        agent.check()
    assert caught.value.place == "evalfleet.toml"
    assert says in caught.value.message
    ended = await agent.run(a_turn(), Recording())
    assert ended.failure is not None
    assert (ended.failure.code, ended.failure.retryable) == ("agent_not_started", False)
    assert says in ended.failure.message
    await agent.aclose()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param("#!/no/such/interpreter\n", "#! line names is not", id="interpreter missing"),
        pytest.param("\x7fELF nonsense", "no program this machine can execute", id="no program"),
    ],
)
async def test_a_program_that_only_looks_startable_is_told_when_it_starts(
    tmp_path: Path, content: str, says: str
) -> None:
    (tmp_path / "agent").write_text(content)
    (tmp_path / "agent").chmod(0o755)
    agent = make_driver(HarnessConfig("h", CommandHarness(("./agent",))), tmp_path, tmp_path / "state")
    agent.check()
    ended = await agent.run(a_turn(), Recording())
    assert ended.failure is not None
    assert ended.failure.code == "agent_not_started"
    assert says in ended.failure.message
    await agent.aclose()


@pytest.mark.parametrize(
    "argv",
    [("python3", "agent.py"), ("python3", "-S", "-uB", "agent.py", "x"), ("sh", "-eu", "agent.py"), ("sh", "agent.py")],
    ids=" ".join,
)
def test_a_script_that_an_interpreter_would_not_find_is_refused_beforehand(
    tmp_path: Path, argv: tuple[str, ...]
) -> None:
    agent = make_driver(HarnessConfig("h", CommandHarness(argv)), tmp_path, tmp_path)
    with pytest.raises(ConfigError, match=r"agent\.py is not there"):
        agent.check()
    (tmp_path / "agent.py").touch()
    agent.check()


@pytest.mark.parametrize(
    "argv",
    [("python3", "-m", "agent"), ("python3", "-c", "pass"), ("sh", "-c", "true"), ("sh",), ("env", "agent.py")],
    ids=" ".join,
)
def test_where_no_script_is_plain_to_see_nothing_is_refused(tmp_path: Path, argv: tuple[str, ...]) -> None:
    make_driver(HarnessConfig("h", CommandHarness(argv)), tmp_path, tmp_path).check()


async def gone(pid: int) -> None:
    """Wait until a process is gone (or is a zombie that only its new parent can bury)."""
    async with asyncio.timeout(10):
        while started(pid) is not None:  # noqa: ASYNC110 - the kernel tells nobody but the parent
            await asyncio.sleep(0.01)
