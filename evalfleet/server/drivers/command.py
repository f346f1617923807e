"""The `command` driver: how does a program on this machine play a turn?

One process for each turn (docs/agents.md): a JSON object on its stdin, its output on stdout, read while it comes. The
exit status says whether the turn went well; the end of its error output says why not.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import signal
from collections.abc import Collection, Mapping
from pathlib import Path

from evalfleet.credentials import is_ours
from evalfleet.errors import ConfigError
from evalfleet.server.drivers.lines import AgentOutput
from evalfleet.server.drivers.process import LINGER, AgentProcess, NotStarted, Pipe
from evalfleet.server.drivers.relay import Relay
from evalfleet.server.drivers.scratch import Scratch
from evalfleet.server.driving import Ended, Failure, Sink, Turn
from evalfleet.surroundings import user_environment
from evalfleet.treeconfig import CONFIG_FILE, CommandHarness

log = logging.getLogger(__name__)

GRACE = 5.0  # seconds between SIGTERM and SIGKILL when a run is cancelled
STDERR_KEPT = 8 * 1024

# Interpreters that run the file they are given first, and their flags that take no value of their own.
_INTERPRETERS = (
    (re.compile(r"(?:python|pypy)[0-9.]*"), re.compile(r"-[bBdEIOPqsSuvx]+")),
    (re.compile(r"(?:ba|da|z|k)?sh"), re.compile(r"-[aefhuvx]+")),
    (re.compile(r"(?:node|ruby|perl|php)[0-9.]*"), re.compile(r"(?!)")),
)


def turn_document(turn: Turn) -> bytes:
    """The JSON object that an agent gets for a turn, in ASCII (half characters escaped: B11)."""
    document = {
        "chat_id": turn.chat_id,
        "run_id": turn.run_id,
        "turn": turn.turn,
        "message": turn.message,
        "history": [{"role": role, "text": text} for role, text in turn.history],
        "metadata": dict(turn.metadata),
    }
    return json.dumps(document).encode("ascii")


def agent_environment(environ: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment less evalfleet's own credentials and settings, plus `[harness.command] env`."""
    return {name: value for name, value in environ.items() if not is_ours(name)} | dict(added)


class CommandDriver:
    """Runs `[harness.command]`. `state` is the folder for pid records and scratch copies."""

    def __init__(
        self, harness: CommandHarness, *, root: Path, state: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        self._harness = harness
        self._root = root.resolve()
        self._environment = agent_environment(user_environment() if environ is None else environ, harness.env)
        self._records = state.resolve() / "agents"
        self._scratch = Scratch(self._root, state.resolve() / "scratch") if harness.cwd == "scratch" else None
        self._playing: set[AgentProcess] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()

    def check(self) -> None:
        """ConfigError if the program cannot be started: an operator's mistake, told before anything runs (S17)."""
        try:
            program = self._program()
        except NotStarted as error:
            raise ConfigError(CONFIG_FILE, f"[harness.command] argv: {error}") from error
        script = self._script(program)
        if script is not None and not (self._root / script).exists():
            raise ConfigError(
                CONFIG_FILE, f"[harness.command] argv: {script} is not there (looked for it in {self._root})"
            )

    async def run(self, turn: Turn, sink: Sink) -> Ended:
        try:
            program = self._program()
        except NotStarted as error:
            return Ended(Failure("agent_not_started", f"the agent could not be started: {error}"))
        if self._scratch is None:
            return await self._run_in(self._root, program, turn, sink)
        try:
            folder = await self._scratch.enter(turn.chat_id)
        except OSError as error:
            message = f"no scratch copy of the tree could be made: {str(error)[:500]}"
            return Ended(Failure("internal_error", message, retryable=True))
        try:
            return await self._run_in(folder, program, turn, sink)
        finally:
            self._scratch.leave(turn.chat_id)

    async def aclose(self) -> None:
        """Kill what still runs, at once, and remove the scratch copies."""
        self._stop.set()
        await asyncio.gather(*(agent.kill() for agent in tuple(self._playing)), *self._leaving)
        if self._scratch is not None:
            await asyncio.to_thread(self._scratch.clear)

    # --- one turn ------------------------------------------------------------------------------------------------

    async def _run_in(self, folder: Path, program: str, turn: Turn, sink: Sink) -> Ended:
        if self._stop.is_set():
            return _server_stopped()
        try:
            agent = await AgentProcess.start(
                [program, *self._harness.argv[1:]],
                cwd=folder,
                env=self._environment,
                stdin=turn_document(turn) + b"\n",  # a shell's `read` wants a whole line
                records=self._records,
            )
        except NotStarted as error:
            message = f"the agent could not be started: {error}"
            if error.ours:
                return Ended(Failure("internal_error", message, retryable=True))
            return Ended(Failure("agent_not_started", message))
        output, relay, errors = AgentOutput(), Relay(sink), Tail(STDERR_KEPT)
        heard = asyncio.create_task(_hear(agent.stdout, output, relay))
        noted = asyncio.create_task(errors.follow(agent.stderr))
        self._playing.add(agent)
        try:
            await asyncio.shield(heard)
            if relay.broken:
                await agent.end(GRACE)
            status = await agent.wait()
            await asyncio.shield(noted)
        except asyncio.CancelledError:
            # What it says on its way out (usage above all) is still heard.
            await self._leave(agent, GRACE, heard, noted)
            raise
        except BaseException:
            await self._leave(agent, 0, heard, noted)
            raise
        await self._leave(agent, 0, heard, noted)
        if self._stop.is_set():
            return _server_stopped()
        if status == 0 and not relay.broken:
            await relay.report(output.finish())
        elif not relay.broken:
            await relay.report(output.notes())
        return Ended(relay.failure or _exit_failure(status, errors, output), relay.busy)

    async def _leave(self, agent: AgentProcess, grace: float, *listeners: asyncio.Task[None]) -> None:
        """See an agent out. It goes on in its own task if this one is cancelled (again): no process is left behind."""
        task = asyncio.create_task(self._see_out(agent, grace, listeners))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        await asyncio.shield(task)

    async def _see_out(self, agent: AgentProcess, grace: float, listeners: Collection[asyncio.Task[None]]) -> None:
        try:
            await agent.end(grace)
            await asyncio.wait(listeners, timeout=2 * LINGER)
        finally:
            for listener in listeners:
                if not listener.cancel() and not listener.cancelled() and (error := listener.exception()):
                    log.debug("what agent process %d said could not be reported: %r", agent.pid, error)
            await agent.close()
            self._playing.discard(agent)

    # --- what to start -------------------------------------------------------------------------------------------

    def _program(self) -> str:
        """The path of argv[0]: with a slash from the tree's root, without one from PATH. Raises NotStarted."""
        name = self._harness.argv[0] if self._harness.argv else ""
        if not name:
            raise NotStarted("argv is empty")
        if "/" not in name:
            found = shutil.which(name, path=self._environment.get("PATH", os.defpath))
            if found is None:
                raise NotStarted(f"{name} is not on PATH")
            return str(self._root / found)
        path = self._root / name
        if not path.exists():
            raise NotStarted(f"{path} is not there")
        if path.is_dir():
            raise NotStarted(f"{path} is a folder")
        if not os.access(path, os.X_OK):
            raise NotStarted(f"{path} may not be executed (chmod +x?)")
        return str(path)

    def _script(self, program: str) -> str | None:
        """The file that an interpreter is asked to run, where that is plain to see."""
        flags = next((flags for name, flags in _INTERPRETERS if name.fullmatch(Path(program).name)), None)
        if flags is None:
            return None
        first = next((word for word in self._harness.argv[1:] if not flags.fullmatch(word)), "-")
        return None if first.startswith("-") else first


class Tail:
    """The last bytes of an agent's error output."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._cut = False

    async def follow(self, pipe: Pipe) -> None:
        while piece := await pipe.read():
            self._kept += piece
            if len(self._kept) > self._limit:
                self._cut = True
                del self._kept[: -self._limit]

    def text(self) -> str:
        text = self._kept.decode("utf-8", errors="replace")
        return ("…" + text.lstrip("\ufffd") if self._cut else text).strip()


async def _hear(pipe: Pipe, output: AgentOutput, relay: Relay) -> None:
    while not relay.broken and (piece := await pipe.read()):
        await relay.report(output.feed(piece))


def _exit_failure(status: int, errors: Tail, output: AgentOutput) -> Failure | None:
    if status == 0:
        return None
    what = f"exit status {status}" if status > 0 else f"killed by {_signal_name(-status)}"
    if said := errors.text():
        return Failure("agent_exit", f"{what}: {said}")
    if said := output.tail(1024):
        return Failure("agent_exit", f"{what}, nothing on its error output; its output ends: {said}")
    return Failure("agent_exit", f"{what}, nothing on its error output")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _server_stopped() -> Ended:
    return Ended(Failure("server_lost", "the server was stopped while the agent played this turn", retryable=True))
