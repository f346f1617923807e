"""How does the server start, and how does it leave?

Start: bind the port, lock the state folder (and a SQLite file), bring the database to this version, end what a dead
server left behind (its agents are killed, its open runs become `failed`, `server_lost`), make the harnesses known,
serve. Stop (SIGTERM, SIGINT, or the
command that started us is gone): no new connections, agents end, open runs become `server_lost`, all within 5 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from sqlalchemy import Connection, select
from sqlalchemy.exc import DBAPIError
from starlette.types import ASGIApp

from evalfleet.errors import CredentialError, EvalfleetError, UnfitHost, UsageError
from evalfleet.harnesswatch import agent_works_in_the_tree
from evalfleet.server import harnesses
from evalfleet.server.accounts import any_live
from evalfleet.server.app import create_app
from evalfleet.server.driving import Driver
from evalfleet.server.gate import Gate
from evalfleet.server.holding import locked_database, locked_state
from evalfleet.server.keeper import Keeper
from evalfleet.server.looks import Looks
from evalfleet.server.migrate import alone, prepare
from evalfleet.server.retention import Retention
from evalfleet.server.runner import Runner
from evalfleet.server.schema import installation
from evalfleet.server.servers import Server as ThisServer
from evalfleet.server.servers import enter, this_server
from evalfleet.server.services import Services
from evalfleet.server.store import Store, read_url
from evalfleet.server.streams import Streams
from evalfleet.server.trees import ServedTree, read_tree

if TYPE_CHECKING:
    from evalfleet.server.judge import Judge
    from evalfleet.server.neighbours import Neighbours

_log = logging.getLogger(__name__)

ACCOUNT = "main"
"""The account of EVALFLEET_TOKEN."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to serve. `token` None: only those in the database. `database` None: a SQLite file in `state`.

    `commit` pins the one tree's version; `verify`: nothing is played unless the tree is that commit. `keep_runs`: how
    long ended runs are kept; None for ever.
    """

    trees: Sequence[Path]
    token: str | None
    state: Path
    host: str = "127.0.0.1"
    port: int = 8080
    database: str | None = None
    commit: str | None = None
    verify: bool = False
    agents: int = 256
    keep_runs: timedelta | None = None
    ready_file: Path | None = None
    metrics_port: int | None = None


def serve(options: Options, *, announce: Callable[[str], None] = print) -> None:
    """Serve until told to stop. `announce` gets the line that names the URL."""
    if options.commit is not None and len(options.trees) > 1:
        raise UsageError("--commit names the version of one tree: it cannot stand with several --tree")
    listener = listen(options.host, options.port)
    make_state(options.state)
    with contextlib.closing(listener), locked_database(database_url(options)), locked_state(options.state):
        _run(_serve(options, listener, announce))


def _run(main: Any) -> None:
    try:
        import uvloop
    except ImportError:  # not on every platform; asyncio's own loop does the same, slower
        asyncio.run(main)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)


def database_url(options: Options) -> str:
    return options.database or f"sqlite:///{(options.state / 'server.sqlite3').absolute()}"


async def _serve(options: Options, listener: socket.socket, announce: Callable[[str], None]) -> None:
    end_leftover_agents(options.state)
    trees = [
        read_tree(root, state=options.state, commit=options.commit, verify=options.verify) for root in options.trees
    ]
    stack = await open_stack(
        database_url(options),
        trees,
        accounts={} if options.token is None else {options.token: ACCOUNT},
        agents=options.agents,
        state=options.state,
        keep_runs=options.keep_runs,
    )
    server = Server(uvicorn_config(stack.app))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _watch_lifeline(lambda: loop.call_soon_threadsafe(stop.set))
    if options.metrics_port is not None:
        _serve_metrics(options.metrics_port, stack)
    url = url_of(listener)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    try:
        await server.accepting.wait()
        if options.ready_file is not None:
            write_ready_file(options.ready_file, url)
        announce(f"listening on {url}")
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        await stack.stop(server)
        await asyncio.wait({serving}, timeout=2)
        await stack.aclose()


class Server(uvicorn.Server):
    """uvicorn without its signal handling and without its ten wake-ups a second.

    `accepting` is set once the sockets are served; `leave()` ends `serve()`.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()
        self._leaving = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # sets the Date header, which has whole seconds
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), 1.0)

    def leave(self) -> None:
        self.should_exit = True
        self._leaving.set()


def uvicorn_config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        # An idle connection of a client's pool is kept longer than a client waits between two requests.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=64 * 1024,
    )


@dataclass(slots=True)
class Stack:
    """The running parts of one server, without the socket: also what tests open."""

    app: Gate
    services: Services
    harness_ids: Mapping[str, str]  # name → id
    drivers: Sequence[Driver]
    keeper: Keeper

    async def stop(self, server: Server | None = None) -> None:
        """End all runs; then let `server` go. New connections are refused from now on."""
        if server is not None:
            for listening in server.servers:
                listening.close()
        try:
            await self.services.runner.stop()
        except EvalfleetError as problem:
            _log.error("open runs could not be ended: %s; the next start does it", problem.message)
        self.services.streams.leave()
        if server is not None:
            server.leave()

    async def aclose(self) -> None:
        for judge in self.services.judges.values():
            await judge.aclose()
        await self.keeper.aclose()
        await self.services.store.aclose()


async def open_store(url: str, *, fixed_token: bool) -> Store:
    """The database, brought to this version. CredentialError when nobody could come in: there is no `fixed_token`, and
    it holds none that works."""
    store = Store(url)
    try:
        prepare(store.engine)
    except DBAPIError as problem:
        raise UnfitHost(
            f"the database {read_url(url).render_as_string()} cannot be opened: {problem.orig}"
        ) from problem
    store.open()
    if not fixed_token and not await store.read(any_live):
        await store.aclose()
        raise CredentialError(
            "there is no token that a client could send: EVALFLEET_TOKEN is not set, and "
            f"{read_url(url).render_as_string()} has none that works. Set the variable, or make one with "
            "`evalfleet token create NAME`"
        )
    return store


async def open_stack(
    url: str,
    trees: Sequence[ServedTree],
    *,
    accounts: Mapping[str, str],
    agents: int = 256,
    state: Path | None = None,
    keep_runs: timedelta | None = None,
) -> Stack:
    """Open the database, end leftovers in it, register the trees, and wire the parts.

    `accounts`: fixed tokens; without any, CredentialError unless the database has one that works. `state`: the folder
    by which a restart of the same server is known, locked by the caller. `keep_runs` None: all are kept.
    """
    names = [tree.name for tree in trees]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two trees are called {name!r}: give each [harness] name its own")
    store = await open_store(url, fixed_token=bool(accounts))
    server = this_server(state)
    neighbours = _neighbours(store, server, await store.write(lambda connection: _enter(connection, server)))
    versions = {tree.name: await register(store, tree) for tree in trees}
    streams = Streams(None if neighbours is None else neighbours.herald.tell)
    drivers = {versions[tree.name].harness_id: tree.driver for tree in trees}
    looks = {
        versions[tree.name].harness_id: Looks(tree.watch, advice=_advice(tree), moved=tree.moved)
        for tree in trees
        if tree.watch is not None
    }
    services = Services(
        store=store,
        streams=streams,
        runner=Runner(store, streams, drivers, server=server.id, looks=looks, agents=agents),
        commits={version.harness_id: version.commit for version in versions.values()},
        judges={versions[tree.name].harness_id: judge for tree in trees if (judge := _judge(tree)) is not None},
    )
    retention = None if keep_runs is None else Retention(store, keep_runs)
    keeper = Keeper(store, server, streams, services.runner, neighbours, retention)
    await keeper.start()
    ids = {name: version.harness_id for name, version in versions.items()}
    return Stack(create_app(services, accounts), services, ids, list(drivers.values()), keeper)


def _advice(tree: ServedTree) -> str:
    """What can be done about a harness that has changed under its server."""
    if "EVALFLEET_LIFELINE_FD" in os.environ:
        anew = "take the tree as it is now with --fresh"
    else:
        anew = "start the server again: it serves the tree as it is then"
    advice = f"restore it and the same command goes on, or {anew}"
    if agent_works_in_the_tree(tree.config):
        advice += '. An agent that writes to it gets a copy with cwd = "scratch" in [harness.command]'
    return advice


def _enter(connection: Connection, server: ThisServer) -> str:
    """Be one of the servers of the database; its installation's id."""
    enter(connection, server)
    return str(connection.execute(select(installation.c.id)).scalar_one())


def _neighbours(store: Store, server: ThisServer, installation_id: str) -> Neighbours | None:
    if not store.shared:
        return None
    from evalfleet.server.neighbours import Neighbours  # brings the Postgres driver

    return Neighbours(store.engine, server, installation_id)


def _judge(tree: ServedTree) -> Judge | None:
    if tree.config.judge is None:
        return None
    from evalfleet.server.judge import Judge  # brings an HTTP client, which most trees do without

    return Judge(tree.config.judge)


async def register(store: Store, tree: ServedTree) -> harnesses.Version:
    """Make a tree known. Its files are read only for a version that is new, and kept only if they are the version's."""
    known = await store.read(lambda connection: harnesses.is_known(connection, tree.name, tree.commit))
    files = None if known or tree.moved else tree.files()
    if files is not None and tree.watch is not None and (changed := tree.watch.look()):
        raise UsageError(f"{tree.config.root}: the harness changed while the server started: {changed}; start it again")

    def fn(connection: Connection) -> harnesses.Version:
        alone(connection)
        return harnesses.register(connection, tree.name, tree.commit, f"tree {tree.config.root.name}", files)

    return await store.write(fn)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; UnfitHost when the port is taken or the address is not ours."""
    try:
        family, kind, proto, _name, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
    except OSError as problem:
        raise UnfitHost(
            f"cannot listen on {host} port {port}: {problem.strerror or problem}. "
            "Another server may hold the port: stop it, or choose another --port (0 takes a free one)."
        ) from problem
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def write_ready_file(path: Path, url: str) -> None:
    """The URL, all at once: a reader never sees half of it."""
    half = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        half.write_text(url + "\n", encoding="ascii")
        half.replace(path)
    except OSError as problem:
        raise UnfitHost(f"--ready-file {path}: cannot be written: {problem.strerror or problem}") from problem


def make_state(state: Path) -> None:
    """The state's folder, ours alone, and never in anybody's commit."""
    if state.is_dir():
        return
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        (state / ".gitignore").write_text("*\n", encoding="ascii")
    except OSError as problem:
        raise UnfitHost(f"--state {state}: cannot be made: {problem.strerror or problem}") from problem


def end_leftover_agents(state: Path) -> None:
    folder = state / "agents"
    if folder.is_dir():
        from evalfleet.server.drivers import end_leftovers

        ended = end_leftovers(folder)
        if ended:
            _log.warning("%d agents of an earlier server were ended", ended)


def _watch_lifeline(callback: Callable[[], object]) -> None:
    if "EVALFLEET_LIFELINE_FD" in os.environ:
        from evalfleet.lifeline import watch

        watch(lambda: (callback(), None)[1])


def _serve_metrics(port: int, stack: Stack) -> None:
    from prometheus_client import start_http_server

    from evalfleet.server.metrics import registry_of

    try:
        start_http_server(port, registry=registry_of(stack.services, stack.app.answers))
    except OSError as problem:
        raise UnfitHost(f"--metrics-port {port}: {problem.strerror or problem}") from problem
