"""How does an answer of ten megabytes reach graders and artifact without filling the broker?

The platform has it already, and what a trial is depends on nothing but its terminal runs (S12). So what is over 256 KiB
waits in the ledger without its trial, as the ids of its runs, and whoever needs the trial reads them again. Nothing is
kept for it that somebody would have to delete, and workers that grade need no access to the results.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from evalfleet.checks.trial import TurnRecord, read_trial
from evalfleet.contract import jsontext
from evalfleet.contract.client import Client
from evalfleet.contract.leftovers import read_leftovers
from evalfleet.plan import Attempt, Plan

MOST_BYTES = 256 * 1024
"""Compressed, as it would stand in the ledger."""
LEFT_OUT = "trial_left_out"


def packed(document: Mapping[str, Any], attempt: Attempt) -> bytes:
    """A play or a line of the artifact as it waits in the ledger; a large one without its trial."""
    whole = jsontext.dumps(document)
    trial = document.get("trial_record")
    if not trial or len(whole) <= MOST_BYTES or len(zlib.compress(whole)) <= MOST_BYTES:
        return whole
    left_out = {
        "attempt": str(attempt),
        "runs": [turn["run_id"] for turn in trial["turns"]],
        "not_played": trial["not_played"],
    }
    return jsontext.dumps({**document, "trial_record": None, LEFT_OUT: left_out})


def is_large(document: Mapping[str, Any]) -> bool:
    return LEFT_OUT in document


async def made_whole(document: Mapping[str, Any], plan: Plan, client: Client) -> dict[str, Any]:
    """The document with its trial, read again where it was left out. Raises PlatformError."""
    whole = dict(document)
    left_out = whole.pop(LEFT_OUT, None)
    if left_out is None:
        return whole
    said = plan.scenario(Attempt.parse(left_out["attempt"])).user
    turns = [await _turn(client, user, run) for user, run in zip(said, left_out["runs"], strict=False)]
    whole["trial_record"] = read_trial(turns, not_played=left_out["not_played"]).to_json()
    return whole


async def _turn(client: Client, user: str, run: str) -> TurnRecord:
    events = [event async for event in client.journal(run, ended=True)]
    left = await read_leftovers(client, run, events)
    return TurnRecord(user, left.run, left.messages, left.outputs, events)
