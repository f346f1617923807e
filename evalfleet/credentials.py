"""What are the platform's keys called, and which variables are nobody's but ours?

A plan names a profile, never a key. Each part has the keys that it may use in its own environment, as the official SDK
names them: SPLOX_API_KEY with SPLOX_BASE_URL, and for the profile `acme-eu` SPLOX_API_KEY_ACME_EU with
SPLOX_BASE_URL_ACME_EU. `evalfleet.settings` reads them, and says where a key may be sent.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

DEFAULT: Final = "default"
"""The profile of who names none: its variables have no ending."""
KEY: Final = "SPLOX_API_KEY"
URL: Final = "SPLOX_BASE_URL"

_PROFILE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 40
_OURS = re.compile(rf"EVALFLEET_.*|{KEY}(_.*)?")
_PORTS = {"http": 80, "https": 443}


def is_profile(name: str) -> bool:
    """Lower-case letters, digits and single `-`: one spelling for a name, and one name for a variable."""
    return len(name) <= _LONGEST and _PROFILE.fullmatch(name) is not None


def key_variable(profile: str) -> str:
    return KEY + _ending(profile)


def url_variable(profile: str) -> str:
    return URL + _ending(profile)


def needs(profile: str | None) -> str:
    """What whoever makes calls has to have in its environment, in words; None: for the fleet's own server."""
    return "EVALFLEET_BASE_URL with EVALFLEET_TOKEN" if profile is None else key_variable(profile)


def token_variable(account: str | None) -> str:
    """The variable that holds what is sent as the bearer token."""
    return "EVALFLEET_TOKEN" if account is None else key_variable(account)


def _ending(profile: str) -> str:
    return "" if profile == DEFAULT else "_" + profile.upper().replace("-", "_")


def profile_of(variable: str, root: str) -> str | None:
    """The profile that a variable is of, `root` being KEY or URL; None for one that is of none. ValueError, with what
    to write instead, for one that is meant to be and is spelt otherwise."""
    if variable == root:
        return DEFAULT
    if not variable.startswith(f"{root}_"):
        return None
    profile = variable.removeprefix(f"{root}_").lower().replace("_", "-")
    if not is_profile(profile):
        raise ValueError("names no profile: one has letters, digits and `_` between them")
    wanted = root + _ending(profile)
    if variable != wanted:
        raise ValueError(f"is written {wanted}")
    return profile


def is_ours(variable: str) -> bool:
    """Is it one of evalfleet's own, credentials among them, that neither agent nor grader may see?"""
    return _OURS.fullmatch(variable) is not None


def same_address(one: str, other: str) -> bool:
    """Do two base URLs name the same place? Letter case of the host, a default port and a last slash don't count; a
    path does."""
    return _place(one) == _place(other)


def _place(url: str) -> tuple[str, str, int | None, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme), parts.path.rstrip("/")
