"""Asks a broker, before any work, whether a login may do all that evalfleet does there (N07).

A login that lacks one right fails late and in the middle of something. Redis looks at a command's right before it looks
at the value behind its key, so each command is sent once, all in one round trip, on a key that is gone within a minute:
an answer other than NOPERM means that the command may be used.
"""

from __future__ import annotations

import re
from typing import Any, Final

import redis
from redis.exceptions import NoPermissionError

KEY: Final = "rights"
CHANNEL: Final = "wake"
_NONE: Final = "0" * 40

PROBES: Final[tuple[tuple[str, ...], ...]] = (
    # {key} and {channel} stand for names below our prefix; `SET` comes first, so that the key is a text that expires
    ("SET", "{key}", "1", "EX", "60"),
    ("BRPOP", "{key}", "1"),
    ("DEL", "{key}"),
    ("EVAL", "return 1", "0"),
    ("EVALSHA", _NONE, "0"),
    ("EXISTS", "{key}"),
    ("EXPIRE", "{key}", "60"),
    ("GET", "{key}"),
    ("HDEL", "{key}", "f"),
    ("HEXISTS", "{key}", "f"),
    ("HGET", "{key}", "f"),
    ("HGETALL", "{key}"),
    ("PERSIST", "{key}"),
    ("SET", "{key}", "1", "EX", "60"),  # a text again: what would write a hash or a list is answered WRONGTYPE
    ("HINCRBY", "{key}", "f", "1"),
    ("HKEYS", "{key}"),
    ("HLEN", "{key}"),
    ("HMGET", "{key}", "f"),
    ("HSCAN", "{key}", "0"),
    ("HSET", "{key}", "f", "1"),
    ("HSETNX", "{key}", "f", "1"),
    ("LINDEX", "{key}", "0"),
    ("LLEN", "{key}"),
    ("LPUSH", "{key}", "1"),
    ("LRANGE", "{key}", "0", "0"),
    ("LTRIM", "{key}", "0", "0"),
    ("PEXPIRE", "{key}", "60000"),
    ("PING",),
    ("PTTL", "{key}"),
    ("PUBLISH", "{channel}", "*"),
    ("RPOP", "{key}"),
    ("RPUSH", "{key}", "1"),
    ("SADD", "{key}", "1"),
    ("SCAN", "0", "COUNT", "1"),
    ("SCRIPT", "LOAD", "return 1"),
    ("SISMEMBER", "{key}", "1"),
    ("SMEMBERS", "{key}"),
    ("SREM", "{key}", "1"),
    ("TIME",),
    ("TTL", "{key}"),
    ("ZADD", "{key}", "1", "1"),
    ("ZRANGE", "{key}", "0", "0"),
    ("ZREM", "{key}", "1"),
    ("WATCH", "{key}"),
    ("UNWATCH",),
    ("MULTI",),
    ("EXEC",),
    ("SUBSCRIBE", "{channel}"),
)
"""What the ledger, its scripts and kombu's transport send."""

_COMMAND = re.compile(r"'([\w|]+)'")


def missing_rights(client: redis.Redis, prefix: str) -> list[str]:
    """What the client's login may not do, as `ACL SETUSER` would grant it: `+brpop`, `~ef:*`, `&ef:*`; [] if nothing.

    Raises what redis-py raises for a broker that does not answer, or refuses the login.
    """
    names = {"{key}": f"{prefix}{KEY}", "{channel}": f"{prefix}{CHANNEL}"}
    probes = [tuple(names.get(word, word) for word in words) for words in PROBES]
    lacking: dict[str, None] = {}
    pool = client.connection_pool
    connection: Any = pool.get_connection()
    try:
        connection.send_packed_command(connection.pack_commands(probes))
        for words in probes:
            try:
                connection.read_response(push_request=words[0] == "SUBSCRIBE")
            except NoPermissionError as refused:
                lacking[_right(str(refused), words[0].lower(), prefix)] = None
            except redis.ResponseError as answer:
                # Else it is about the value behind the key: the command itself may be used.
                if "NOPERM" in str(answer):  # EXEC that is refused aborts its transaction with that reason
                    lacking[_right(str(answer), words[0].lower(), prefix)] = None
    finally:
        connection.disconnect()  # it may listen, or be in a transaction that was not let end
        pool.release(connection)
    return list(lacking)


def _right(refusal: str, command: str, prefix: str) -> str:
    if named := _COMMAND.search(refusal):
        return f"+{named[1].lower()}"
    if "channel" in refusal:
        return f"&{prefix}*"
    return f"~{prefix}*" if "key" in refusal else f"+{command}"
