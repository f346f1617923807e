"""Who sees to it that every run comes to its end, also when a server or the database does not go on as it should?

Every BEAT seconds the keeper ends what nobody plays: the runs of servers that are dead (Postgres), and those of this
server that slipped out of its hands because their last write was refused. And it keeps this server and its neighbours
in touch: who has cancelled or ended a run of ours, which run of theirs has ended that ours wait for. Where old runs are
pruned, that goes on under its eyes, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from evalfleet.errors import StorageError
from evalfleet.server import lifecycle, servers
from evalfleet.server import runs as stored
from evalfleet.server.journal import TERMINAL, Appended
from evalfleet.server.retention import Retention
from evalfleet.server.runner import Runner
from evalfleet.server.servers import BEAT, Note, Server
from evalfleet.server.store import Store
from evalfleet.server.streams import Streams

if TYPE_CHECKING:
    from evalfleet.server.neighbours import Neighbours

_log = logging.getLogger(__name__)


class Keeper:
    """`start()` before anything is served, `aclose()` after the runner has stopped and before the store closes."""

    def __init__(
        self,
        store: Store,
        server: Server,
        streams: Streams,
        runner: Runner,
        neighbours: Neighbours | None,
        retention: Retention | None = None,
    ) -> None:
        """`neighbours`: where other servers can be on the database. `retention`: where old runs are pruned."""
        self._store = store
        self._server = server
        self._streams = streams
        self._runner = runner
        self._neighbours = neighbours
        self._retention = retention
        self._slipped: set[str] = set()
        self._behind = False  # what other servers have done could not be read
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """End what no server plays; StorageError if the database refuses. Then go on by itself."""
        await self._end_lost_runs()
        self._begin(self._keep(), "keeper")
        if self._retention is not None:
            self._begin(self._retention.keep_up(), "retention")
        if self._neighbours is not None:
            loop = asyncio.get_running_loop()
            self._neighbours.herald.start(lambda: _call(loop, self._taken_for_dead))
            self._begin(self._neighbours.ear.listen(self._hear, self._catch_up), "ear")

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._neighbours is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._neighbours.herald.stop)

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            _log.error("%s has ended", task.get_name(), exc_info=problem)

    # -- every few seconds

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            try:
                if self._store.shared:
                    await self._end_lost_runs()
                await self._see_to_own_runs()
                await self._look_at(self._runner.waited_for())
                if self._behind:
                    await self._catch_up()
            except StorageError as problem:
                _log.warning("lost runs are not looked for: %s", problem.message)

    async def _end_lost_runs(self) -> None:
        ended = 0
        while lost := await self._store.write(servers.end_lost_runs):
            self._publish(lost)
            ended += len(lost)
        if ended:
            _log.warning("%d runs of servers that are gone are failed as server_lost", ended)

    async def _see_to_own_runs(self) -> None:
        """End the agents of those that are cancelling: the server that took the request may have died before it told.

        And end the open runs of ours that the runner does not hold, when that was so a BEAT ago already.
        """
        mine = await self._store.read(lambda connection: lifecycle.open_runs_of(connection, self._server.id))
        for run_id, status in mine.items():
            if status == "cancelling":
                self._runner.cancel(run_id)
        slipped = set(mine) - set(self._runner.held())
        again = sorted(slipped & self._slipped)
        self._slipped = slipped
        if again:
            self._publish(await self._store.write(lambda connection: lifecycle.lose(connection, again)))
            _log.warning("%d runs that had slipped out of this server's hands are ended", len(again))

    def _publish(self, ended: Sequence[Appended]) -> None:
        for appended in ended:
            self._streams.publish(appended)
            self._runner.has_ended(appended.run_id)

    # -- what the neighbours say

    def _hear(self, note: Note) -> None:
        over = note.status in TERMINAL
        self._streams.heard(note.run_id, note.last, over=over)
        if over or note.status == "cancelling":
            self._runner.cancel(note.run_id)
        if over:
            self._runner.has_ended(note.run_id)

    async def _catch_up(self) -> None:
        """Learn what may have been said while this server did not listen; tried again until it is known."""
        self._behind = True
        try:
            await self._look_at([*self._streams.watched(), *self._runner.held(), *self._runner.waited_for()])
        except StorageError as problem:
            _log.warning("what other servers have done is not known yet: %s", problem.message)
        else:
            self._behind = False

    async def _look_at(self, run_ids: Sequence[str]) -> None:
        if run_ids:
            for state in await self._store.read(lambda connection: stored.states_of(connection, run_ids)):
                self._hear(Note(state.id, state.last_sequence, state.status))

    def _taken_for_dead(self) -> None:
        _log.warning("the other servers took this one for dead: they had not heard of it for %g s", servers.SILENCE)
        self._begin(self._catch_up(), "catch up")


def _call(loop: asyncio.AbstractEventLoop, fn: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(fn)
    except RuntimeError:  # the loop has ended meanwhile: there is nobody to tell
        _log.info("a call came after the end of its event loop")
