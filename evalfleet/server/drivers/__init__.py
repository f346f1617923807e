"""Which driver runs this harness? `make_driver` says; docs/agents.md tells agents' authors what each expects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from evalfleet.errors import ConfigError
from evalfleet.server.drivers.command import CommandDriver
from evalfleet.server.drivers.leftovers import end_leftovers
from evalfleet.server.driving import Driver
from evalfleet.treeconfig import CONFIG_FILE, CommandHarness, HarnessConfig, HttpHarness, OpenAIHarness

__all__ = ["CheckedDriver", "end_leftovers", "make_driver"]


class CheckedDriver(Driver, Protocol):
    """A driver that can say beforehand that it could not run."""

    def check(self) -> None:
        """ConfigError if no turn could be played as `evalfleet.toml` and the environment stand. Starts nothing."""
        ...


def make_driver(
    harness: HarnessConfig | None, root: Path, state: Path, *, environ: Mapping[str, str] | None = None
) -> CheckedDriver:
    """The driver of a tree's harness. ConfigError where `evalfleet.toml` names none.

    `root` is the tree's root; `state` the folder where a driver keeps what must outlive a crash (`agents/` with the
    pids of running agents: hand it to `end_leftovers` at the next start; `scratch/` with copies of the tree); `environ`
    the caller's environment, by default this process's.
    """
    match harness.driver if harness is not None else None:
        case CommandHarness() as command:
            return CommandDriver(command, root=root, state=state, environ=environ)
        # The HTTP client takes longer to import than all the rest: only who needs it waits for it.
        case HttpHarness() as http:
            from evalfleet.server.drivers.http import HttpDriver

            return HttpDriver(http, environ=environ)
        case OpenAIHarness() as openai:
            from evalfleet.server.drivers.openai import OpenAIDriver

            return OpenAIDriver(openai, environ=environ)
        case _:
            raise ConfigError(
                CONFIG_FILE,
                "says no way to run the harness: write [harness.command], [harness.http] or [harness.openai]",
            )
