"""What does schemathesis ask about? It invents ids, and nearly all of them would be 404: here some become real ones.

Loaded by schemathesis, under the interpreter that has it; imports nothing of ours. `FUZZ_KNOWN` names a file of
`{field: [values that lead somewhere]}`. Seven of eight well-formed values of such a field are replaced, so that the
request gets past the door; what is wrong in it otherwise stays wrong, and what is no id stays none. Keys of idempotency
become fresh ones, for the simple ones that are made up come again and again. Half of the journals are asked for as a
stream, but for the runs that are `going_on`: theirs has no end.
"""

from __future__ import annotations

import itertools
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
CALLS = itertools.count(1)

_ID = r"{}_[0-9A-Za-z]{{26}}|[0-9A-Fa-f-]{{32,36}}"
WELL_FORMED = {
    "run_id": _ID.format("run"),
    "chat_id": _ID.format("chat"),
    "harness_id": _ID.format("h"),
    "evaluation_id": _ID.format("eval"),
    "commit": r"[0-9a-f]{40}",
    "case_key": r"(?s).*\S.*",
    "case_id": r"(?s).*\S.*",
}


def choices(path: str, field: str) -> list[str]:
    """What a field may become. The first evaluation takes the batches, and nothing ends it."""
    known = KNOWN.get(field, [])
    if path.endswith("/attempts:batch"):
        return known[:1] if field == "evaluation_id" else known[: FIRST.get(field, 0)]
    return known[1:] if field == "evaluation_id" and path.endswith(("/cancel", "/complete")) else known


def real(path: str, name: str, value: str) -> str:
    """A value that leads somewhere, or `value`. It depends on `value` alone, so that a case can be shrunk."""
    field = NAMES.get(name, name)
    known = choices(path, field)
    if not known or value in known or not re.fullmatch(WELL_FORMED[field], value):
        return value
    number = crc32(value.encode("utf-8", "surrogatepass"))
    return value if number % 8 == 0 else known[number // 8 % len(known)]


def led(path: str, value: Any) -> Any:
    """The same with real ids, at any depth."""
    if isinstance(value, list):
        return [led(path, item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: real(path, name, item) if isinstance(item, str) else led(path, item) for name, item in value.items()}


@schemathesis.hook  # type: ignore[untyped-decorator]
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    path = case.operation.path
    for part in ("path_parameters", "query", "body"):
        before = getattr(case, part)
        after = led(path, before)
        if after != before:
            setattr(case, part, after)
    if _headers_are_wrong(case):
        return
    number = next(CALLS)
    key = (case.headers or {}).get("Idempotency-Key")
    if isinstance(key, str) and re.fullmatch(r"[!-~]{1,255}", key) and number % 10:  # the tenth is used again
        case.headers["Idempotency-Key"] = f"{key[:200]}-{number}"
    if path.endswith("/events") and number % 2 and case.path_parameters["run_id"] not in KNOWN["going_on"]:
        case.headers["Accept"] = "text/event-stream"


def _headers_are_wrong(case: Any) -> bool:
    """Is something wrong with the headers on purpose? They are left alone then: one that is missing would come back."""
    components = case.meta.components if case.meta is not None else {}
    return any(location.value == "header" and part.mode.is_negative for location, part in components.items())


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
