"""Which value goes out as a key or header? The environment's, under the name that the settings give; never shown."""

from __future__ import annotations

from collections.abc import Mapping

from evalfleet.errors import ConfigError
from evalfleet.treeconfig import CONFIG_FILE


def secret(environ: Mapping[str, str], name: str, where: str) -> str:
    """The value of the variable that `where` ("[judge] api_key_env") names. ConfigError without the value."""
    value = environ.get(name, "").strip()
    if not value:
        raise ConfigError(CONFIG_FILE, f"{where} names {name}, which is not set in the environment (or is empty)")
    if not value.isascii() or not value.isprintable():
        raise ConfigError(CONFIG_FILE, f"{where} names {name}, whose value cannot be an HTTP header (odd characters)")
    return value
