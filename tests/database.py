"""What does the database of a server of ours hold, asked by hand and not through the server?"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

Recorded = dict[str, list[tuple[str, int, str, str]]]


def recorded_attempts(state: Path) -> Recorded:
    """Evaluation → (case key, trial, run, verdict) of all attempts; `state` is the server's folder."""
    with sqlite3.connect(state / "server.sqlite3") as database:
        rows = database.execute(
            "SELECT a.evaluation_id, c.key, a.attempt_index, a.run_id, a.verdict FROM attempts a"
            " JOIN evaluation_cases c ON c.evaluation_id = a.evaluation_id AND c.position = a.position ORDER BY 2, 3"
        ).fetchall()
    found: Recorded = {}
    for evaluation, key, *rest in rows:
        found.setdefault(evaluation, []).append((json.loads(key), *rest))
    return found
