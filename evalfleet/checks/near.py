"""Which known name did somebody probably mean, and are two names the same to a person?"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable


def folded(name: str) -> str:
    """The form in which ids and case names must differ: NFC and case folding (S3, S7)."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def near_name(seen: str, known: Iterable[str]) -> str | None:
    """The one known name that `seen` is nearest to, or None. `toolCalled`, `tool-called` and `tool_caled` all find
    `tool_called`."""
    if len(seen) > 100:
        return None
    plain = {_bare(name): name for name in known}
    found = difflib.get_close_matches(_bare(seen), plain, n=1, cutoff=0.72)
    return plain[found[0]] if found else None


def did_you_mean(seen: str, known: Iterable[str]) -> str:
    """` (did you mean X?)`, or nothing."""
    near = near_name(seen, known)
    return f'did you mean "{near}"?' if near else ""


def _bare(name: str) -> str:
    return "".join(char for char in name.casefold() if char.isalnum() or char == ".")
