"""What the broker's troubles are called, against a real Valkey (each setting is put back)."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from evalfleet.errors import BrokerFull, CredentialError
from evalfleet.ledger import Ledger
from evalfleet.ledger.rights import PROBES, missing_rights
from evalfleet.plan import Conversation
from scheduler.valkey import program

ROOT = Path(__file__).parent.parent
SUBMISSION = "sub_00000000000000000000000000"


@pytest.fixture
def client(valkey: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey) as client:
        yield client


def test_a_broker_that_takes_no_writes_is_full_also_inside_a_pipeline(valkey: str, client: redis.Redis) -> None:
    """It says why at the start of its sentence, or after the command of the pipeline; we say it in one way."""
    ledger = Ledger(valkey, prefix="t-full:")
    client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(BrokerFull, match="refuses writes: NOREPLICAS"):
            ledger.publish(SUBMISSION, [Conversation(0, 0)])
        with pytest.raises(BrokerFull, match=r"refuses writes: NOREPLICAS"):
            ledger.take_returned(SUBMISSION)
    finally:
        client.config_set("min-replicas-to-write", 0)
    assert ledger.take_returned(SUBMISSION) == []
    ledger.close()


def test_wake_ups_go_on_while_the_brokers_disk_takes_nothing(tmp_path: Path) -> None:
    """Such a broker refuses even PING, which keeps the connection of a listener."""
    with tempfile.TemporaryDirectory(prefix="ef-") as folder:
        data = tmp_path / "data"
        data.mkdir()
        command = [
            str(program()),
            "--port",
            "0",
            "--unixsocket",
            f"{folder}/v.sock",
            "--save",
            "3600 1",
            "--dir",
            str(data),
        ]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                next(line for line in process.stdout if "Ready to accept connections" in line)
                ledger = Ledger(f"unix://{folder}/v.sock")
                ledger.redis.connection_pool.connection_kwargs["health_check_interval"] = 0.1
                wake_ups = ledger.wake_ups(0.2)
                assert next(wake_ups) is None
                data.rmdir()
                ledger.redis.bgsave()
                next(line for line in process.stdout if "Background saving error" in line)
                with pytest.raises(BrokerFull, match="refuses writes: MISCONF"):
                    ledger.publish(SUBMISSION, [Conversation(0, 0)])
                assert [next(wake_ups) for _ in range(5)] == [None] * 5
                ledger.close()
            finally:
                process.kill()


@pytest.mark.parametrize(
    ("login", "words"),
    [("", "wants a password, and its URL has none"), ("?password=wrong-word", "refuses the login in its URL")],
    ids=["none", "a wrong one"],
)
def test_a_login_that_is_refused_is_said_at_once_and_not_tried_again(
    valkey: str, client: redis.Redis, login: str, words: str
) -> None:
    ledger = Ledger(valkey + login)
    client.config_set("requirepass", "the-right-word")
    try:
        before = client.info("stats")["total_connections_received"]
        with pytest.raises(CredentialError, match=words) as refused:
            ledger.check_broker()
        assert client.info("stats")["total_connections_received"] == before + 1
        assert "wrong-word" not in str(refused.value)
    finally:
        client.config_set("requirepass", "")
    ledger.close()


def test_what_the_login_may_not_do_is_the_operators_and_no_fault_of_ours(valkey: str, client: redis.Redis) -> None:
    """Else a worker that may not release what it has claimed would keep it, and hear of a bug."""
    client.acl_setuser("reader", enabled=True, passwords=["+word"], keys=["*"], categories=["+@read", "+@connection"])
    ledger = Ledger(f"{valkey}?username=reader&password=word")
    try:
        with pytest.raises(CredentialError, match=r"does not let this login do that: .*hset"):
            ledger.put_note(SUBMISSION, "name", b"line")
    finally:
        client.acl_deluser("reader")
    ledger.close()


LOGIN = "?username=evalfleet&password=word"
COMMANDS = sorted({"+script|load" if words[0] == "SCRIPT" else f"+{words[0].lower()}" for words in PROBES})


def allow(client: redis.Redis, *rules: str) -> None:
    client.execute_command("ACL", "SETUSER", "evalfleet", "reset", "on", ">word", *rules)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("rules", "lacking"),
    [
        (["~ef:*", "&ef:*", *COMMANDS], []),
        (["~ef:*", "&ef:*", "+@all", "-@dangerous", "-@admin"], []),
        (["~ef:*", "resetchannels", *COMMANDS], ["&ef:*"]),
        (["resetkeys", "&ef:*", *COMMANDS], ["~ef:*"]),
        (["~ef:*", "&ef:*", "+@all", "-@scripting"], ["+eval", "+evalsha", "+script|load"]),
        *((["~ef:*", "&ef:*", *COMMANDS, right.replace("+", "-")], [right]) for right in COMMANDS),
    ],
    ids=lambda value: " ".join(value)[-40:],
)
def test_n07_each_right_that_a_login_lacks_is_named(
    valkey: str, client: redis.Redis, rules: list[str], lacking: list[str]
) -> None:
    allow(client, *rules)
    ledger = Ledger(f"{valkey}{LOGIN}")
    try:
        assert missing_rights(ledger.redis, "ef:") == lacking
        if lacking:
            with pytest.raises(
                CredentialError, match=r"the login 'evalfleet' of the broker .* lacks rights: "
            ) as refused:
                ledger.check_broker()
            assert " ".join(lacking) in str(refused.value)
        else:
            ledger.check_broker()
            assert ledger.memory() == (0, 0)  # neither login may ask INFO, and nothing else needs it
        assert client.keys("ef:rights") in ([], [b"ef:rights"])
        if client.exists("ef:rights"):
            assert 0 < client.ttl("ef:rights") <= 60
    finally:
        ledger.close()
        client.acl_deluser("evalfleet")


def test_n07_a_listener_whose_right_is_taken_away_says_so_once_and_hears_again_later(
    valkey: str, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    allow(client, "~ef:*", "resetchannels", *COMMANDS)
    ledger = Ledger(f"{valkey}{LOGIN}")
    endings = ledger.endings(0.05)
    try:
        assert [next(endings) for _ in range(4)] == [None] * 4
        said = [record.message for record in caplog.records if "does not let this login do that" in record.message]
        assert len(said) == 1
        assert "listening goes on when it may" in said[0]
        allow(client, "~ef:*", "&ef:*", *COMMANDS)
        assert next(endings) is None  # listens from here on
        client.publish("ef:ending", SUBMISSION)
        assert SUBMISSION in (next(endings), next(endings))
    finally:
        ledger.close()
        client.acl_deluser("evalfleet")


def test_n07_the_page_grants_what_is_needed() -> None:
    """Copied from the page, the line gives a login all of it and nothing more."""
    line = re.search(r"^ACL SETUSER evalfleet (.*)$", (ROOT / "docs/fleet.md").read_text(), re.MULTILINE)
    assert line is not None
    words = line[1].split()
    assert words[:4] == ["on", ">PASSWORD", "~ef:*", "&ef:*"]
    assert sorted(words[4:]) == sorted([*COMMANDS, "+info", "+config|get"])
