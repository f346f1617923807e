"""Writes the CI job of a tree: where CI gets this evalfleet from, which keys it needs, and what it runs.

How evalfleet was installed here says what installs it there (PEP 610, `direct_url.json`). Where CI could not reach that
place, or its address holds a credential, the job asks for a variable that somebody has to set, and says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from importlib import metadata
from typing import Any, Final
from urllib.parse import urlsplit

from evalfleet.credentials import key_variable, url_variable
from evalfleet.treeconfig import HttpHarness, OpenAIHarness, TreeConfig

REQUIREMENT: Final = "EVALFLEET_REQUIREMENT"
_NAME: Final = "evalfleet"
_ADDRESS = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._~/:@+%-]*"
)  # nothing that a shell, YAML or a requirement reads otherwise

_TEXT: Final = """\
# Plays the checks of this tree on every pull request.
# Exit codes: 0 all passed, 1 not all, 2 configuration, 3 incomplete.
name: evals
on: [pull_request]
permissions:
  contents: read
jobs:
  evals:
    runs-on: ubuntu-latest
    timeout-minutes: 30
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - name: Install evalfleet, in an environment of its own
{unknown}        run: |
          python3 -m venv "$RUNNER_TEMP/evalfleet"
          "$RUNNER_TEMP/evalfleet/bin/python" -m pip install "{requirement}"
      - name: Install what the agent and its graders import
        run: |
          python3 -m venv .venv
          if [ -f requirements.txt ]; then .venv/bin/python -m pip install -r requirements.txt; fi
      - name: Play the checks
{keys}        run: PATH="$PWD/.venv/bin:$PATH" "$RUNNER_TEMP/evalfleet/bin/evalfleet" {command}
      - uses: actions/upload-artifact@v4
        if: always()
        with:
          name: eval-results
          path: evals/results
"""

_UNKNOWN: Final = f"""\
        # The evalfleet that wrote this file was installed from a place that CI cannot reach. Set the repository's
        # variable {REQUIREMENT} (Settings, Secrets and variables, Actions) to what pip can install, pinned:
        #   evalfleet @ git+https://HOST/OWNER/evalfleet@COMMIT
        # or the path of a wheel that is kept in this repository.
        env:
          {REQUIREMENT}: ${{{{ vars.{REQUIREMENT} }}}}
"""

_KEYS: Final = """\
        env:
          # From the repository's secrets; evalfleet.toml and the agent name them. A pull request from a fork gets none.
"""


def requirement() -> str | None:
    """What pip installs to get this evalfleet; None where only this machine has it."""
    try:
        installed = metadata.distribution(_NAME)
    except metadata.PackageNotFoundError:  # a checkout that was never installed
        return None
    record = installed.read_text("direct_url.json")
    return f"{_NAME}=={installed.version}" if record is None else requirement_of(json.loads(record))


def requirement_of(record: dict[str, Any]) -> str | None:
    """By PEP 610's record: a commit of a repository, or an archive with its hash. None for a folder or a file here, and
    for an address with a credential in it."""
    url, vcs = str(record.get("url", "")), record.get("vcs_info")
    parts = urlsplit(url)
    if parts.scheme not in ("https", "ssh") or not parts.hostname or _ADDRESS.fullmatch(url) is None:
        return None
    if parts.password is not None or (parts.username is not None and (parts.scheme, parts.username) != ("ssh", "git")):
        return None
    folder = record.get("subdirectory")
    if folder is not None and _ADDRESS.fullmatch(folder) is None:
        return None
    fragments = [] if folder is None else [f"subdirectory={folder}"]
    if vcs is not None:
        address = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    elif "archive_info" in record and parts.scheme == "https":
        address = url
        digest = (record["archive_info"].get("hashes") or {}).get("sha256")
        fragments += [f"sha256={digest}"] if digest else []
    else:
        return None
    return f"{_NAME} @ {address}" + (f"#{'&'.join(fragments)}" if fragments else "")


def keys_of(config: TreeConfig) -> list[str]:
    """The variables whose values are secret, by what the settings name."""
    driver = None if config.harness is None else config.harness.driver
    names: list[str | None] = [config.judge.api_key_env] if config.judge else []
    if isinstance(driver, OpenAIHarness):
        names.append(driver.api_key_env)
    if isinstance(driver, HttpHarness):
        names += driver.headers_env.values()
    if _on_target(config) and config.target is not None:
        names.append(key_variable(config.target.profile))
        names += [] if config.target.base_url else [url_variable(config.target.profile)]
    return list(dict.fromkeys([*filter(None, names), *config.graders.env]))


def ci_job(config: TreeConfig, keys: Iterable[str], found: str | None) -> str:
    """The workflow. `found`: what pip installs there; None: the job asks for it."""
    lines = "".join(f"          {name}: ${{{{ secrets.{name} }}}}\n" for name in keys)
    return (
        _TEXT.replace("{unknown}", "" if found else _UNKNOWN)
        .replace("{requirement}", found or f"${{{REQUIREMENT}:?is not set: see the comment at this step}}")
        .replace("{keys}", _KEYS + lines if lines else "")
        .replace("{command}", "eval --target" if _on_target(config) else "eval")
    )


def _on_target(config: TreeConfig) -> bool:
    return config.target is not None and (config.harness is None or config.harness.driver is None)
