"""How many seconds is `5m`?"""

from __future__ import annotations

import re

LONGEST = 24 * 3600
_SPELLING = re.compile(r"(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?", re.ASCII)
_SECONDS = re.compile(r"[1-9][0-9]{0,5}|0", re.ASCII)
PATTERN = f"^(?=.)(?:{_SPELLING.pattern})$|^(?:{_SECONDS.pattern})$"
"""What every spelling fits, for editors; that it is 1 s to 24 h is not in it."""


def seconds_of(text: str) -> float:
    """Seconds of `300s`, `5m`, `1h30m` or `90`: whole numbers of hours, minutes and seconds in this order, 1 s to 24 h
    (S5). ValueError, with the reason, for every other spelling: a time that is not understood is never a default."""
    if _SECONDS.fullmatch(text):
        seconds = int(text)
    else:
        found = _SPELLING.fullmatch(text)
        if not text or found is None:
            raise ValueError("write it like 300s, 5m, 1h30m, or 90 for seconds")
        hours, minutes, rest = (int(part or 0) for part in found.groups())
        seconds = hours * 3600 + minutes * 60 + rest
    if not 1 <= seconds <= LONGEST:
        raise ValueError("it has to be 1s to 24h")
    return float(seconds)
