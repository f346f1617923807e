"""What has an ended run left: its document, its messages and its outputs, all of those that its journal names?

They are read by requests of their own, each of which may meet a gateway's page or a copy that lags behind. The journal
names every message and output by id, so what is missing among them shows. It is read again for a while; after that
nothing is judged by what there is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evalfleet.contract import follow
from evalfleet.contract.client import Client
from evalfleet.contract.models import is_ended
from evalfleet.errors import JournalHole, PlatformError, UnreadableAnswer

PAUSE: Final = 0.25
_NAMED: Final = {"message.created": "message_id", "output.created": "output_id"}


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The run's own document, terminal; its messages and outputs, oldest first."""

    run: dict[str, Any]
    messages: Sequence[Mapping[str, Any]]
    outputs: Sequence[Mapping[str, Any]]


async def read_leftovers(client: Client, run_id: str, events: Iterable[Mapping[str, Any]]) -> Leftovers:
    """What the run left, by its journal `events`, which are whole.

    JournalHole where a message or an output that the journal names stays away, or the run stays open though its journal
    has ended; UnreadableAnswer where something else than the API goes on answering.
    """
    named = set(_named(events))
    until = time.monotonic() + follow.HOLE_SECONDS
    pause = PAUSE
    while True:
        wrong: PlatformError
        try:
            read = await asyncio.gather(client.get_run(run_id), client.messages(run_id), client.outputs(run_id))
        except UnreadableAnswer as unreadable:
            wrong = unreadable
        else:
            left = Leftovers(*read)
            lacks = named - {row.get("id") for row in (*left.messages, *left.outputs)}
            if not lacks and is_ended(left.run):
                return left
            if lacks:
                said = f"its journal names {min(lacks)}, which is not among its messages and outputs"
            else:
                said = f"its journal has ended, and its own document still says {left.run.get('status')}"
            wrong = JournalHole(f"{run_id} cannot be read whole: {said}")
        if time.monotonic() + pause > until:
            raise wrong
        await asyncio.sleep(pause)
        pause *= 2


def _named(events: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for event in events:
        data = event.get("data")
        identity = data.get(_NAMED.get(str(event.get("type")), "")) if isinstance(data, Mapping) else None
        if isinstance(identity, str):
            yield identity
