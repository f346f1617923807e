"""When are two JSON documents the same document?

Suite versions (S10) and pins (S34) are digests. They must not move with the order of keys, white space or the machine.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical(document: Any) -> bytes:
    """The one spelling of a JSON document: keys sorted, no white space, UTF-8, floats as `repr` gives them.

    1 and 1.0 are two documents. TypeError for what is not JSON (also for keys that are not text), ValueError for NaN,
    infinity and lone surrogates: a digest over something that no file can hold would be a trap.
    """
    _refuse_other_keys(document)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def digest(document: Any) -> str:
    """64 lower-case hex digits: SHA-256 over `canonical`."""
    return hashlib.sha256(canonical(document)).hexdigest()


def _refuse_other_keys(document: Any) -> None:
    """`json` quietly writes the keys True and 1 as text, which could make two documents one."""
    rest = [document]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise TypeError(f"a JSON key is text, not {key!r}")
            rest.extend(value.values())
        elif isinstance(value, (list, tuple)):
            rest.extend(value)
