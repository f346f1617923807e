"""What does schemathesis ask about? It invents ids, and nearly all of them would be 404: here some become real ones.

Loaded by schemathesis, under the interpreter that has it; imports nothing of ours. `FUZZ_KNOWN` names a file of
`{field: [values that lead somewhere]}`. Seven of eight well-formed values of such a field are replaced, so that the
request gets past the door; what is wrong in it otherwise stays wrong, and what is no id stays none.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from zlib import crc32

import schemathesis

KNOWN: dict[str, list[str]] = json.loads(Path(os.environ["FUZZ_KNOWN"]).read_text(encoding="utf-8"))
FIRST = {field: len(values) for field, values in KNOWN.items()}
NAMES = {"harness_commit": "commit", "baseline_harness_commit": "commit"}
MADE = {"run_": "run_id", "eval_": "evaluation_id"}
NEWEST = 20

_ID = r"{}_[0-9A-Za-z]{{26}}|[0-9A-Fa-f-]{{32,36}}"
WELL_FORMED = {
    "run_id": _ID.format("run"),
    "chat_id": _ID.format("chat"),
    "harness_id": _ID.format("h"),
    "evaluation_id": _ID.format("eval"),
    "commit": r"[0-9a-f]{40}",
    "case_key": r"(?s).*\S.*",
}


def real(name: str, value: str, *, spared: int = 0) -> str:
    """A value that leads somewhere, or `value`. It depends on `value` alone, so that a case can be shrunk."""
    field = NAMES.get(name, name)
    known = KNOWN.get(field, [])[spared:]
    if not known or value in known or not re.fullmatch(WELL_FORMED[field], value):
        return value
    number = crc32(value.encode("utf-8", "surrogatepass"))
    return value if number % 8 == 0 else known[number // 8 % len(known)]


def led(value: Any, spared: int = 0) -> Any:
    """The same with real ids, at any depth."""
    if isinstance(value, list):
        return [led(item, spared) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: real(name, item, spared=spared) if isinstance(item, str) else led(item, spared)
        for name, item in value.items()
    }


@schemathesis.hook  # type: ignore[untyped-decorator]
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    # The first evaluation stays open, for the batches.
    spared = 1 if case.operation.path.endswith(("/cancel", "/complete")) else 0
    for part in ("path_parameters", "query", "body"):
        before = getattr(case, part)
        after = led(before, spared)
        if after != before:
            setattr(case, part, after)


@schemathesis.hook  # type: ignore[untyped-decorator]
def after_call(context: Any, case: Any, response: Any) -> None:
    """What was made is asked about, too; the newest of it."""
    if response.status_code != 201:
        return
    made = response.json()["id"]
    for prefix, field in MADE.items():
        if made.startswith(prefix):
            KNOWN[field].append(made)
            if len(KNOWN[field]) > FIRST[field] + NEWEST:
                del KNOWN[field][FIRST[field]]
