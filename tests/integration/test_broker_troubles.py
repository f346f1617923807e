"""Everything that a broker can do to a fleet (issue 5): behind TLS with a password, full, silent, and back empty.

An evicting policy, a flush without a scheduler and a fall of 5 s stand in `test_fleet`; faults by chance in the chaos
suite.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest
import redis

from tests.chaos.links import Links
from tests.conftest import missing
from tests.integration.fleet import CALLS, Broker, Fleet, Part, calls, free_port, make_tree, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FLEET_PAGE = (Path(__file__).parents[2] / "docs/fleet.md").read_text(encoding="utf-8")
PASSWORD = "a pass/word%of the broker"
IN_A_URL = "a%20pass%2Fword%25of%20the%20broker"


def certificates(folder: Path) -> None:
    """`ca.pem`, which signed `broker.pem` (of 127.0.0.1, with `broker.key`), and `other.pem`, which signed nothing."""
    if which("openssl") is None:
        missing("openssl makes the certificates of this test")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)

    for name in ("ca", "other"):
        openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", f"{name}.key", "-out", f"{name}.pem", "-addext", "keyUsage=critical,keyCertSign"),
        )
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=b", "-keyout", "broker.key", "-out", "broker.csr")
    openssl(
        *("x509", "-req", "-days", "2", "-in", "broker.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
        *("-extfile", "names", "-out", "broker.pem"),
    )


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A broker that speaks TLS only and wants a password; its port, and the folder of the certificates."""
    server = which("redis-server") or ""
    if not server:
        missing("redis-server with TLS: the embedded one has none")
    folder, port = tmp_path / "guarded", free_port()
    folder.mkdir()
    certificates(folder)
    words = [server, "--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    words += ["--tls-cert-file", "broker.pem", "--tls-key-file", "broker.key", "--tls-ca-cert-file", "ca.pem"]
    words += ["--tls-auth-clients", "no", "--requirepass", PASSWORD]
    part = Part("redis", words, {}, folder)
    part.await_line("Ready to accept connections")
    address = f"rediss://:{IN_A_URL}@127.0.0.1:{port}/0?ssl_ca_certs={folder}/ca.pem"
    with redis.Redis.from_url(address) as client:
        rights = re.search(r"^ACL SETUSER evalfleet on >PASSWORD (.*)$", FLEET_PAGE, re.MULTILINE)
        assert rights is not None
        client.execute_command("ACL", "SETUSER", "evalfleet", "on", f">{PASSWORD}", *rights[1].split())
    yield port, folder
    part.kill()


def test_a_broker_behind_tls_with_a_password_and_its_own_authority(tmp_path: Path, guarded: tuple[int, Path]) -> None:
    """Every part and command reaches it, as a login with the rights that the page grants and no more (N07); another
    password or authority is an error that does not show the password."""
    port, folder = guarded
    fleet = Fleet(tmp_path, f"rediss://evalfleet:{IN_A_URL}@127.0.0.1:{port}/0?ssl_ca_certs={folder}/ca.pem")
    try:
        tree = make_tree(tmp_path / "tree", nap=0)
        fleet.server(tree)
        fleet.scheduler()
        fleet.worker("worker")
        submission = fleet.submit(tree)
        assert fleet.watch(submission)[0] == 1, fleet.logs()
        assert len(calls(tree)) == CALLS
        assert f"{submission}  completed" in fleet.run("list").stdout
        said = fleet.logs()
        for url, code, words in (
            (f"rediss://:wrong-word@127.0.0.1:{port}/0?ssl_ca_certs={folder}/ca.pem", 2, "refuses the login"),
            (f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={folder}/ca.pem", 2, "wants a password"),
            (
                f"rediss://:{IN_A_URL}@127.0.0.1:{port}/0?ssl_ca_certs={folder}/other.pem",
                3,
                "certificate verify failed",
            ),
        ):
            fleet.environment["EVALFLEET_BROKER_URL"] = url
            for command in (("status", submission), ("scheduler",), ("worker",)):
                done = fleet.run(*command)
                assert (done.returncode, words in done.stderr) == (code, True), (command, done.stderr)
                said += done.stderr + done.stdout
        for secret in (PASSWORD, IN_A_URL, "wrong-word"):
            assert secret not in said
    finally:
        fleet.close()


def test_d08_a_full_broker_is_waited_for_by_all_and_everybody_says_so(
    tmp_path: Path, private_fleet: Fleet, broker: Broker
) -> None:
    """`noeviction` refuses writes for longer than a heartbeat lasts; then there is room, and nothing is paid twice."""
    fleet = private_fleet
    tree = make_tree(tmp_path / "tree", nap=0)
    (tree / "hold").touch()
    fleet.server(tree)
    scheduler = fleet.scheduler()
    worker = fleet.worker("worker", "--concurrency", "2")
    submission = fleet.submit(tree, "-j", "4")
    watcher = fleet.start("watcher", "watch", submission)
    until(lambda: fleet.metrics("worker")["evalfleet_conversations_held"] == 2, fleet.logs)
    with redis.Redis.from_url(broker.url) as client:
        client.config_set("maxmemory", 1)
        scheduler.await_line("refuses writes")
        worker.await_line("refuses writes")
        watcher.await_line("is full and refuses writes")
        until(lambda: fleet.metrics("worker")["evalfleet_conversations_held"] == 0, fleet.logs)
        (tree / "hold").unlink()
        assert "is full and refuses writes" in fleet.run("status", submission).stdout
        client.config_set("maxmemory", 0)
    assert watcher.end(120) == 1, fleet.logs()
    assert len(calls(tree)) == CALLS
    assert fleet.tracebacks() == []


@pytest.mark.parametrize("seconds", [5, 60])
def test_a_broker_that_is_silent_to_everybody_costs_time_only(tmp_path: Path, broker: Broker, seconds: int) -> None:
    """Packets are dropped, in both directions: nobody is refused anything, and nothing comes back."""
    with Links() as links:
        road = links.link("broker", broker.port)
        fleet = Fleet(tmp_path, broker.url)
        fleet.environment["EVALFLEET_BROKER_URL"] = f"redis://127.0.0.1:{road.port}/0"
        try:
            alive = tmp_path / "alive"
            tree = make_tree(tmp_path / "tree", nap=0)
            (tree / "hold").touch()
            fleet.server(tree)
            fleet.scheduler()
            worker = fleet.worker("worker", "--concurrency", "2", "--liveness-file", str(alive))
            until(alive.exists, fleet.logs)
            submission = fleet.submit(tree, "-j", "4")
            until(lambda: fleet.metrics("worker")["evalfleet_conversations_held"] == 2, fleet.logs)
            road.silence()
            fell = time.time()
            (tree / "hold").unlink()
            while time.time() < fell + seconds:
                time.sleep(0.2)
            if seconds > 30:
                worker.await_line("does not answer")
                assert alive.stat().st_mtime < fell + 15, "unhealthy for whoever looks at the file's age"
                assert fleet.metrics("worker")["evalfleet_conversations_held"] == 0, "others play it by now"
            road.mend()
            code, _ = fleet.watch(submission, within=150)
            assert code == 1, fleet.logs()
            assert len(calls(tree)) == CALLS
            back = time.time()
            until(lambda: alive.stat().st_mtime > back - 4, fleet.logs)
        finally:
            fleet.close()


def test_a_broker_without_a_file_that_is_restarted_gets_everything_back(tmp_path: Path) -> None:
    """I1: it comes back empty while scheduler and workers live."""
    folder = tmp_path / "forgetful"
    folder.mkdir()
    broker = Broker(folder, "--appendonly", "no")
    fleet = Fleet(tmp_path, broker.url)
    try:
        tree = make_tree(tmp_path / "tree", nap=0)
        (tree / "hold").touch()
        fleet.server(tree)
        scheduler = fleet.scheduler()
        fleet.worker("worker", "--concurrency", "2")
        submission = fleet.submit(tree, "-j", "4")
        assert fleet.run("pause", submission).returncode == 0
        until(lambda: "paused" in fleet.run("status", submission).stdout, fleet.logs)
        assert fleet.run("resume", submission).returncode == 0
        until(lambda: fleet.metrics("worker")["evalfleet_conversations_held"] == 2, fleet.logs)
        broker.part.kill()
        broker.start()
        scheduler.await_line("goes back on the books")  # its dispatcher or the scan of the store does it
        (tree / "hold").unlink()
        assert fleet.watch(submission, within=150)[0] == 1, fleet.logs()
        assert len(calls(tree)) == CALLS
    finally:
        fleet.close()
        broker.part.kill()
