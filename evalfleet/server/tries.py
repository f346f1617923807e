"""Which chats did an evaluation's conversations take beside those of its attempts?

A try without a result is followed by another one in a fresh chat (S14). It is recorded nowhere, and was paid for all
the same. Runs say in their `metadata` whose they are (S39), and by that the other chats are found. An evaluation whose
runs say nothing, or were all of a first try, has none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select

from evalfleet.server.documents import text_of
from evalfleet.server.evaluation_documents import MISSING
from evalfleet.server.schema import attempts, runs

_SUBMISSION, _TRY = "evalfleet.submission", "evalfleet.try"
_FIRST = f'"{_TRY}":0'

Conversation = tuple[str, str, int]
"""(submission, name of the case file, trial)."""


def chats_of_other_tries(connection: Connection, row: Any, cases: Sequence[Any]) -> set[str]:
    """The chats of tries before the recorded one, and all chats of conversations whose attempt is missing.

    `row`: of the evaluation; `cases`: its rows with their `verdicts`. Looks for nothing, and costs nothing, where all
    attempts are recorded from a first try.
    """
    recorded = _recorded(connection, row.id)
    upto: dict[Conversation, float] = {}
    for found in recorded:
        conversation = _conversation(found)
        if conversation is not None and found[_TRY] > 0:
            upto[conversation] = max(upto.get(conversation, 0), found[_TRY])
    for submission in {conversation[0] for found in recorded if (conversation := _conversation(found)) is not None}:
        for case in cases:
            name = json.loads(case.key).rpartition("/")[0]
            for trial in (index for index, letter in enumerate(case.verdicts) if letter == MISSING):
                upto[submission, name, trial] = math.inf
    return _chats(connection, row, upto) if upto else set()


def _recorded(connection: Connection, evaluation_id: str) -> list[Mapping[str, Any]]:
    """The metadata of the attempts' runs that are not of a first try, and of one more, for its submission."""
    query = select(runs.c.metadata).join(attempts, attempts.c.run_id == runs.c.id)
    query = query.where(attempts.c.evaluation_id == evaluation_id, runs.c.metadata.contains(f'"{_TRY}":'))
    later = connection.execute(query.where(~runs.c.metadata.contains(_FIRST))).scalars().all()
    any_ = connection.execute(query.limit(1)).scalars().all()
    return [json.loads(text) for text in (*later, *any_)]


def _chats(connection: Connection, row: Any, upto: Mapping[Conversation, float]) -> set[str]:
    """Those of the conversations whose try is below the given one."""
    found: set[str] = set()
    for submission in sorted({submission for submission, _, _ in upto}):
        query = select(runs.c.chat_id, runs.c.metadata).where(
            runs.c.account == row.account,
            runs.c.harness_id == row.harness_id,
            runs.c.turn == 0,
            runs.c.metadata.contains(f'"{_SUBMISSION}":{text_of(submission)}', autoescape=True),
        )
        for run in connection.execute(query):
            metadata = json.loads(run.metadata)
            conversation = _conversation(metadata)
            if conversation is not None and metadata[_TRY] < upto.get(conversation, -1):
                found.add(run.chat_id)
    return found


def _conversation(metadata: Mapping[str, Any]) -> Conversation | None:
    """Whose run it is, as the player wrote it; None for a run of somebody else's."""
    submission, case = metadata.get(_SUBMISSION), metadata.get("evalfleet.case")
    trial, number = metadata.get("evalfleet.trial"), metadata.get(_TRY)
    if isinstance(submission, str) and isinstance(case, str) and _whole(trial) and _whole(number):
        return submission, case, int(str(trial))
    return None


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
