"""What the broker's troubles are called, against a real Valkey (each setting is put back)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from evalfleet.errors import BrokerFull, CredentialError
from evalfleet.ledger import Ledger
from evalfleet.plan import Conversation

SUBMISSION = "sub_00000000000000000000000000"


@pytest.fixture
def client(valkey: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey) as client:
        yield client


def test_a_broker_that_takes_no_writes_is_full_also_inside_a_pipeline(valkey: str, client: redis.Redis) -> None:
    """It says why at the start of its sentence, or after the command of the pipeline that it refused."""
    ledger = Ledger(valkey, prefix="t-full:")
    client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(BrokerFull, match="refuses writes: NOREPLICAS"):
            ledger.publish(SUBMISSION, [Conversation(0, 0)])
        with pytest.raises(BrokerFull, match=r"refuses writes: Command # 2 .* NOREPLICAS"):
            ledger.take_returned(SUBMISSION)
    finally:
        client.config_set("min-replicas-to-write", 0)
    assert ledger.take_returned(SUBMISSION) == []
    ledger.close()


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
