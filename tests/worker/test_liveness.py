"""A worker that lives and takes nothing says so (case D03)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evalfleet.errors import TargetUnreachable, UnfitHost
from worker.liveness import DEAF_S, Liveness


class Scene:
    """A worker's consumer, looked at by hand."""

    def __init__(self, file: Path | None) -> None:
        self.now = 0.0
        self.waiting = 0
        self.away = False
        self.told = 0
        self.file = file
        self.unreachable = ""
        self.liveness = Liveness(
            file,
            waiting=self._waiting,
            deaf=self._deaf,
            unreachable=lambda: self.unreachable,
            clock=lambda: self.now,
        )

    def _waiting(self) -> int:
        if self.away:
            raise TargetUnreachable("the broker does not answer")
        return self.waiting

    def _deaf(self) -> None:
        self.told += 1

    def looks_well(self, seconds: float) -> bool:
        """Whether a look `seconds` later touches the file."""
        assert self.file is not None
        self.file.unlink(missing_ok=True)
        self.now += seconds
        self.liveness.look()
        return self.file.exists()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "alive")


def test_an_idle_worker_is_well(scene: Scene) -> None:
    assert all(scene.looks_well(seconds=2) for _ in range(100))


def test_a_worker_that_takes_messages_is_well_while_more_wait(scene: Scene) -> None:
    scene.waiting = 1000
    for _ in range(100):
        scene.liveness.received()
        assert scene.looks_well(seconds=2)


def test_a_worker_that_hears_nothing_of_what_waits_is_deaf_and_ends_itself_once(scene: Scene) -> None:
    scene.waiting = 1
    assert scene.looks_well(seconds=DEAF_S - 1)
    assert not scene.looks_well(seconds=2)
    assert not scene.looks_well(seconds=2)
    assert scene.liveness.is_deaf
    assert scene.told == 1


def test_what_was_not_heard_before_a_new_connection_does_not_count(scene: Scene) -> None:
    scene.waiting = 1
    scene.now += 10 * DEAF_S
    scene.liveness.connected()
    assert scene.looks_well(seconds=1)


def test_a_worker_whose_broker_does_not_answer_is_not_well_and_stays(scene: Scene) -> None:
    scene.away = True
    assert not scene.looks_well(seconds=2)
    assert scene.told == 0, "the broker's absence is no reason to end"
    scene.away = False
    assert scene.looks_well(seconds=2)


def test_an_old_file_becomes_new(scene: Scene) -> None:
    assert scene.file is not None
    scene.file.touch()
    os.utime(scene.file, (1, 1))
    scene.liveness.look()
    assert scene.file.stat().st_mtime > 1


def test_what_is_not_reached_stands_in_the_file_and_is_no_matter_of_its_age(scene: Scene) -> None:
    assert scene.file is not None
    scene.liveness.look()
    assert scene.file.read_text() == ""
    scene.unreachable = "platform: it does not answer"
    os.utime(scene.file, (1, 1))
    scene.liveness.look()
    assert scene.file.read_text() == "platform: it does not answer"
    assert scene.file.stat().st_mtime > 1, "a restart would help nobody"
    assert scene.looks_well(seconds=2)
    assert scene.file.read_text() == "platform: it does not answer", "also where somebody removed the file"
    scene.unreachable = ""
    scene.liveness.look()
    assert scene.file.read_text() == ""
    assert list(scene.file.parent.iterdir()) == [scene.file]


def test_without_a_file_a_deaf_worker_ends_all_the_same() -> None:
    scene = Scene(None)
    scene.waiting = 1
    scene.now += DEAF_S
    scene.liveness.look()
    assert scene.told == 1


def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnfitHost, match=r"--liveness-file .*alive: File exists"):
        Scene(tmp_path / "file" / "alive").liveness.check_file()
    Scene(tmp_path / "new" / "alive").liveness.check_file()
    assert not (tmp_path / "new" / "alive").exists(), "no sign of life before there is life"
