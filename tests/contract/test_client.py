"""What the client promises about single requests, over real sockets (wire.md; E10, B11, S34)."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from evalfleet.contract.client import Client
from evalfleet.contract.ids import new_id, uuid_of
from evalfleet.contract.models import missing_attempts, recorded_attempts
from evalfleet.errors import CredentialError, ProblemAnswer, SettingError, TargetUnreachable, UnreadableAnswer
from evalfleet.testing import Cut, FaultServer, Reset, Scripted, Send, Stall, document, page, problem, text

RUN = {"id": "run_1", "status": "queued"}
KEY = "k-1"


def client_for(server: FaultServer, **settings: Any) -> Client:
    return Client(server.url, "secret-token", jitter=lambda: 0.0, **settings)


@pytest.fixture
async def server() -> AsyncIterator[FaultServer]:
    async with FaultServer() as fault_server:
        yield fault_server


@pytest.fixture
async def client(server: FaultServer) -> AsyncIterator[Client]:
    async with client_for(server) as made:
        yield made


CALLS: list[tuple[str, str, str, Callable[[Client], Awaitable[Any]]]] = [
    ("create_run", "POST", "/v2/runs", lambda c: c.create_run({"harness_id": "h_1"}, key=KEY)),
    ("get_run", "GET", "/v2/runs/run_1", lambda c: c.get_run("run_1")),
    ("cancel_run", "POST", "/v2/runs/run_1/cancel", lambda c: c.cancel_run("run_1")),
    ("usage", "GET", "/v2/runs/run_1/usage", lambda c: c.usage("run_1")),
    ("harness", "GET", "/v2/harnesses/h_1", lambda c: c.harness("h_1")),
    ("harness_version", "GET", "/v2/harnesses/h_1/versions/abc", lambda c: c.harness_version("h_1", "abc")),
    ("create_evaluation", "POST", "/v2/evaluations", lambda c: c.create_evaluation({"k": 1}, key=KEY)),
    ("get_evaluation", "GET", "/v2/evaluations/eval_1", lambda c: c.get_evaluation("eval_1")),
    ("record_attempts", "POST", "/v2/evaluations/eval_1/attempts:batch", lambda c: c.record_attempts("eval_1", [{}])),
    ("complete", "POST", "/v2/evaluations/eval_1/complete", lambda c: c.complete_evaluation("eval_1")),
    ("cancel_evaluation", "POST", "/v2/evaluations/eval_1/cancel", lambda c: c.cancel_evaluation("eval_1")),
]
EVERY_CALL = [pytest.param(method, path, call, id=name) for name, method, path, call in CALLS]


@pytest.mark.parametrize(("method", "path", "call"), EVERY_CALL)
async def test_every_call_bears_the_token_and_asks_for_json(
    server: FaultServer, client: Client, method: str, path: str, call: Callable[[Client], Awaitable[Any]]
) -> None:
    server.on(method, path, document({"id": "x"}))
    await call(client)
    (request,) = server.requests
    assert request.headers["authorization"] == "Bearer secret-token"
    assert request.headers["accept"] == "application/json"
    assert request.headers["user-agent"].startswith("evalfleet/")


AGAIN = [
    pytest.param(problem(502, "upstream_unavailable"), id="502"),
    pytest.param(text(b"<html>down</html>", 503, "text/html"), id="503 with an HTML body"),
    pytest.param(problem(429, "rate_limited", headers={"Retry-After": "0"}), id="429"),
    pytest.param(Scripted(200, (Cut(),), {"Content-Length": "100"}), id="cut before the body"),
    pytest.param(Scripted(200, (Send(b'{"id'), Cut()), {"Content-Length": "100"}), id="cut in the body"),
    pytest.param(Scripted(200, (Send(b'{"id'), Cut()), framing="chunked"), id="cut in a chunked body"),
    pytest.param(Scripted(200, (Send(b'{"id'),), framing="close"), id="cut where only the end tells the length"),
    pytest.param(Scripted(200, (Reset(),), {"Content-Length": "100"}), id="reset"),
    pytest.param(Scripted(0, (Cut(),)), id="closed without an answer"),
    pytest.param(Scripted(0, (Send(b"nonsense\r\n\r\n"), Cut())), id="no HTTP"),
]


@pytest.mark.parametrize("fault", AGAIN)
async def test_e10_a_create_is_sent_again_after_any_trouble_with_the_same_key_and_body(
    server: FaultServer, client: Client, fault: Scripted
) -> None:
    server.on("POST", "/v2/runs", fault, document(RUN, 201))
    assert (await client.create_run({"harness_id": "h_1"}, key=KEY)).document == RUN
    first, second = server.requests
    assert second.body == first.body
    assert second.headers["idempotency-key"] == first.headers["idempotency-key"] == KEY


@pytest.mark.parametrize(("method", "path", "call"), EVERY_CALL)
async def test_every_call_is_sent_again_after_a_cut_answer(
    server: FaultServer, client: Client, method: str, path: str, call: Callable[[Client], Awaitable[Any]]
) -> None:
    server.on(method, path, Scripted(200, (Cut(),), {"Content-Length": "100"}), document({"id": "x"}))
    await call(client)
    first, *others = server.requests
    assert len(others) == 1
    assert others[0].body == first.body
    assert others[0].headers.get("idempotency-key") == first.headers.get("idempotency-key")


FINAL = [
    (400, "invalid_body"),
    (401, "unauthorized"),
    (402, "machine_limit_reached"),
    (403, "forbidden"),
    (404, "not_found"),
    (406, "not_acceptable"),
    (409, "idempotency_key_conflict"),
    (409, "attempt_conflict"),
    (410, "event_cursor_expired"),
    (422, "validation_failed"),
]


@pytest.mark.parametrize(("status", "code"), FINAL, ids=str)
async def test_another_4xx_is_never_sent_again(server: FaultServer, client: Client, status: int, code: str) -> None:
    server.on("POST", "/v2/runs", problem(status, code, "because"))
    with pytest.raises(ProblemAnswer) as caught:
        await client.create_run({}, key=KEY)
    assert (caught.value.status, caught.value.code, caught.value.detail) == (status, code, "because")
    assert "POST /v2/runs" in str(caught.value)
    assert len(server.requests) == 1


async def test_a_key_in_flight_is_asked_again_and_the_replay_is_marked(server: FaultServer, client: Client) -> None:
    replay = document(RUN, 201, {"Idempotency-Replayed": "true"})
    server.on("POST", "/v2/runs", problem(409, "idempotency_key_in_flight"), replay)
    created = await client.create_run({}, key=KEY)
    assert created.replayed
    assert created.document == RUN
    assert [request.headers["idempotency-key"] for request in server.requests] == [KEY, KEY]


async def test_a_first_answer_is_no_replay(server: FaultServer, client: Client) -> None:
    server.on("POST", "/v2/runs", document(RUN, 201))
    assert not (await client.create_run({}, key=KEY)).replayed


async def test_e10_retry_after_in_seconds_is_waited_for(server: FaultServer, client: Client) -> None:
    times: list[float] = []

    def limited(_request: Any) -> Scripted:
        times.append(time.monotonic())
        return document(RUN) if len(times) > 1 else problem(429, "rate_limited", headers={"Retry-After": "1"})

    server.on("GET", "/v2/runs/run_1", limited)
    await client.get_run("run_1")
    assert times[1] - times[0] >= 1.0


async def test_e10_retry_after_as_a_date_goes_by_the_server_s_own_clock(server: FaultServer, client: Client) -> None:
    times: list[float] = []
    # A server whose clock is years off: 1 s after its own Date, not after ours.
    headers = {"Date": "Wed, 02 Sep 2020 07:21:48 GMT", "Retry-After": "Wed, 02 Sep 2020 07:21:49 GMT"}

    def limited(_request: Any) -> Scripted:
        times.append(time.monotonic())
        return document(RUN) if len(times) > 1 else problem(429, "rate_limited", headers=headers)

    server.on("GET", "/v2/runs/run_1", limited)
    await client.get_run("run_1")
    assert times[1] - times[0] >= 1.0


@pytest.mark.parametrize("told", ["soon", "Wed, 02 Sep 2020 07:21:48 GMT", None], ids=str)
async def test_e10_a_retry_after_that_says_nothing_is_backed_off_from(
    server: FaultServer, client: Client, told: str | None
) -> None:
    limited = problem(429, "rate_limited", headers={} if told is None else {"Retry-After": told})
    server.on("GET", "/v2/runs/run_1", limited, document(RUN))
    assert await client.get_run("run_1") == RUN


async def test_e10_a_wait_longer_than_the_budget_is_an_error_at_once(server: FaultServer, client: Client) -> None:
    server.on("GET", "/v2/runs/run_1", problem(429, "rate_limited", headers={"Retry-After": "3600"}))
    with pytest.raises(ProblemAnswer) as caught:
        await client.get_run("run_1")
    assert caught.value.retry_after == 3600.0
    assert len(server.requests) == 1


async def test_e10_a_used_up_quota_is_a_clear_error_at_once(server: FaultServer, client: Client) -> None:
    body = {"error": "usage_window_exceeded", "retry_after_seconds": 17604}
    server.on("POST", "/v2/runs", document(body, 429, {"Retry-After": "1"}))
    with pytest.raises(ProblemAnswer) as caught:
        await client.create_run({}, key=KEY)
    assert caught.value.quota
    assert caught.value.code == "usage_window_exceeded"
    assert len(server.requests) == 1


async def test_e10_the_reset_time_of_a_quota_is_told(server: FaultServer, client: Client) -> None:
    server.on("GET", "/v2/runs/run_1", document({"error": "usage_window_exceeded", "retry_after_seconds": 17604}, 429))
    with pytest.raises(ProblemAnswer) as caught:
        await client.get_run("run_1")
    assert caught.value.retry_after == 17604.0


async def test_e10_null_lists_read_as_empty(server: FaultServer, client: Client) -> None:
    case = {"id": "ecase_1", "key": "a", "recorded_attempts": None, "missing_attempts": None}
    server.on("GET", "/v2/evaluations/eval_1", document({"id": "eval_1", "cases": [case]}))
    (read,) = (await client.get_evaluation("eval_1"))["cases"]
    assert recorded_attempts(read) == missing_attempts(read) == []
    server.on("GET", "/v2/runs/run_1/messages", document({"data": None, "page": {"has_more": False}}))
    assert await client.messages("run_1") == []


async def test_nobody_there_is_target_unreachable_within_the_deadline() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        async with Client(url, "secret-token", jitter=lambda: 0.0) as client:
            with pytest.raises(TargetUnreachable) as caught:
                await client.get_run("run_1", deadline=time.monotonic() + 0.3)
    assert url in str(caught.value)
    assert "secret-token" not in str(caught.value)


async def test_a_server_that_says_nothing_is_unreachable_when_the_time_is_up(server: FaultServer) -> None:
    server.on("GET", "/v2/runs/run_1", Scripted(0, (Stall(),)))
    async with client_for(server, timeout=0.1, retry_for=0.3) as client:
        with pytest.raises(TargetUnreachable, match="no answer within"):
            await client.get_run("run_1")
        assert len(server.requests) > 1
        await server.until(lambda s: s.open_connections == 0)


async def test_a_body_that_stalls_is_given_up_and_its_connection_closed(server: FaultServer) -> None:
    server.on("GET", "/v2/runs/run_1", Scripted(200, (Send(b"{"), Stall()), {"Content-Length": "2"}), document(RUN))
    async with client_for(server, timeout=0.1) as client:
        assert await client.get_run("run_1") == RUN
        await server.until(lambda s: s.open_connections == 1)


async def test_a_deadline_that_is_past_asks_nothing(server: FaultServer, client: Client) -> None:
    with pytest.raises(TargetUnreachable, match="no time was left"):
        await client.get_run("run_1", deadline=time.monotonic() - 1)
    assert server.requests == []


async def test_a_cancelled_call_ends_at_once_and_leaks_no_connection(server: FaultServer, client: Client) -> None:
    server.on("GET", "/v2/runs/run_1", Scripted(0, (Stall(),)))
    calls = [asyncio.create_task(client.get_run("run_1")) for _ in range(20)]
    await server.until(lambda s: len(s.requests) == 20)
    for call in calls:
        call.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    await server.until(lambda s: s.open_connections == 0)


async def test_connections_are_used_again(server: FaultServer, client: Client) -> None:
    server.on("GET", "/v2/runs/run_1", document(RUN))
    for _ in range(5):
        await client.get_run("run_1")
    assert server.connections == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_and_says_where_it_leads(
    server: FaultServer, client: Client, status: int
) -> None:
    server.on("GET", "/v2/runs/run_1", text(b"", status, headers={"Location": "https://u:p@elsewhere.example/v2?x=1"}))
    with pytest.raises(ProblemAnswer) as caught:
        await client.get_run("run_1")
    assert "https://elsewhere.example" in str(caught.value)
    assert "u:p" not in str(caught.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "body", [b"<html>login</html>", b"", b"[1]", b'"x"', b"[" * 100_000], ids=lambda b: repr(b[:9])
)
async def test_a_2xx_that_is_no_json_object_is_unreadable_and_not_asked_again(
    server: FaultServer, client: Client, body: bytes
) -> None:
    server.on("GET", "/v2/runs/run_1", text(body, 200, "text/html"))
    with pytest.raises(UnreadableAnswer, match="GET /v2/runs/run_1"):
        await client.get_run("run_1")
    assert len(server.requests) == 1


async def test_b11_half_an_emoji_and_nan_are_read_and_half_an_emoji_is_sent_as_valid_json(
    server: FaultServer, client: Client
) -> None:
    server.on("GET", "/v2/runs/run_1", text(b'{"answer": "ok \\ud83d", "score": NaN}', 200, "application/json"))
    assert await client.get_run("run_1") == {"answer": "ok \ud83d", "score": None}
    server.on("POST", "/v2/runs", document(RUN))
    await client.create_run({"input": "ok \ud83d é"}, key=KEY)
    sent = server.requests[-1].body
    assert json.loads(sent.decode("utf-8")) == {"input": "ok \ud83d é"}


async def test_a_compressed_answer_is_read_and_an_unknown_encoding_refused(server: FaultServer, client: Client) -> None:
    packed = gzip.compress(json.dumps(RUN).encode())
    server.on("GET", "/v2/runs/run_1", text(packed, 200, "application/json", {"Content-Encoding": "gzip"}))
    assert await client.get_run("run_1") == RUN
    server.on("GET", "/v2/runs/run_2", text(packed, 200, "application/json", {"Content-Encoding": "br"}))
    with pytest.raises(UnreadableAnswer, match="br-encoded"):
        await client.get_run("run_2")


async def test_all_pages_are_read_with_the_filters_that_made_the_cursor(server: FaultServer, client: Client) -> None:
    server.on("GET", "/v2/runs", page([{"id": "a"}], "c+/=1", has_more=True), page([{"id": "b"}], "c2"))
    rows = [row async for row in client.list_runs(status=["running", "queued"], harness_id="h_1", created_after=None)]
    assert rows == [{"id": "a"}, {"id": "b"}]
    first, second = server.requests
    assert first.query == {"limit": "100", "status": "queued,running", "harness_id": "h_1"}
    assert second.query == {**first.query, "cursor": "c+/=1"}


async def test_messages_and_outputs_are_all_pages_in_order(server: FaultServer, client: Client) -> None:
    for name in ("messages", "outputs"):
        pages = [page([{"id": str(i)}], f"c{i}", has_more=i < 2) for i in range(3)]
        server.on("GET", f"/v2/runs/run_1/{name}", *pages)
    assert [row["id"] for row in await client.messages("run_1")] == ["0", "1", "2"]
    assert [row["id"] for row in await client.outputs("run_1")] == ["0", "1", "2"]


@pytest.mark.parametrize("cursor", [None, "c"], ids=["no cursor", "the same cursor"])
async def test_a_page_that_leads_nowhere_is_unreadable(server: FaultServer, client: Client, cursor: str | None) -> None:
    server.on("GET", "/v2/runs/run_1/messages", page([{"id": "a"}], cursor, has_more=True))
    with pytest.raises(UnreadableAnswer, match="not where"):
        await client.messages("run_1")


@pytest.mark.parametrize("body", [{}, {"data": {}}, {"data": [1], "page": {}}, {"data": []}], ids=repr)
async def test_an_answer_that_is_no_page_is_unreadable(server: FaultServer, client: Client, body: Any) -> None:
    server.on("GET", "/v2/runs/run_1/messages", document(body))
    with pytest.raises(UnreadableAnswer, match="no page"):
        await client.messages("run_1")


async def test_a_base_url_with_a_path_keeps_it() -> None:
    async with FaultServer(prefix="/api") as server, Client(server.url + "/", "t") as client:
        server.on("GET", "/v2/runs/run_1", document(RUN))
        server.on("GET", "/healthz", document({"status": "ok"}))
        assert await client.get_run("run_1") == RUN
        assert await client.health() == {"status": "ok"}
        assert server.unscripted == []


async def test_an_id_cannot_lead_to_another_path(server: FaultServer, client: Client) -> None:
    server.on("GET", "/v2/runs/../../secret?x=1#y", document(RUN))
    await client.get_run("../../secret?x=1#y")
    assert server.requests[0].query == {}
    for nothing in ("", ".", ".."):
        with pytest.raises(ValueError, match="is no id"):
            await client.get_run(nothing)


async def test_health_is_asked_once(server: FaultServer, client: Client) -> None:
    server.on("GET", "/healthz", problem(503, "service_unavailable"))
    with pytest.raises(ProblemAnswer):
        await client.health()
    assert len(server.requests) == 1


async def test_a_large_batch_of_attempts_arrives_whole(server: FaultServer, client: Client) -> None:
    attempts = [{"case_key": "c", "attempt_index": i, "judge_feedback": "é" * 5000} for i in range(1000)]
    server.on("POST", "/v2/evaluations/eval_1/attempts:batch", document({"results": []}))
    await client.record_attempts("eval_1", attempts, key=KEY)
    (request,) = server.requests
    assert request.json() == {"attempts": attempts}
    assert request.headers["idempotency-key"] == KEY


async def test_the_judge_is_asked_by_the_run_s_uuid(server: FaultServer, client: Client) -> None:
    run_id = new_id("run")
    path = f"/v1/runs/{uuid_of(run_id, 'run')}/hook/llm"
    server.on("POST", path, problem(502, "upstream_unavailable"), document({"text": "0.8", "tokens": 7}))
    with pytest.raises(ProblemAnswer, match="upstream_unavailable"):  # sent once: who grades decides on another try
        await client.judge(run_id, "How good?", deadline=time.monotonic() + 10)
    answer = await client.judge(run_id, "How good?", deadline=time.monotonic() + 10)
    assert answer == {"text": "0.8", "tokens": 7}
    assert server.requests[0].json() == {"prompt": "How good?"}
    server.on("POST", path, document({"text": "", "tokens": 0}))
    await client.judge(run_id, "x", "some-model", deadline=time.monotonic() + 10)
    assert server.requests[-1].json() == {"prompt": "x", "model": "some-model"}


async def test_a_judge_without_text_is_unreadable(server: FaultServer, client: Client) -> None:
    run_id = new_id("run")
    server.on("POST", f"/v1/runs/{uuid_of(run_id, 'run')}/hook/llm", document({"tokens": 7}))
    with pytest.raises(UnreadableAnswer, match="no text"):
        await client.judge(run_id, "x", deadline=time.monotonic() + 10)


@pytest.mark.parametrize("skew", [0.0, 7200.0, -90.0])
async def test_the_server_s_clock_is_learned_from_its_dates(server: FaultServer, client: Client, skew: float) -> None:
    def dated(_request: Any) -> Scripted:
        stamp = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + skew))
        return document(RUN, headers={"Date": stamp})

    assert client.clock_offset == 0.0
    server.on("GET", "/v2/runs/run_1", dated)
    await client.get_run("run_1")
    assert client.clock_offset == 0.0 if skew == 0.0 else abs(client.clock_offset - skew) <= 1.0


@pytest.mark.parametrize("key", ["", "x" * 256, "é", "a b", "a\nb"], ids=repr)
async def test_a_key_that_no_header_can_carry_is_refused_before_anything_is_sent(
    server: FaultServer, client: Client, key: str
) -> None:
    with pytest.raises(ValueError, match="Idempotency-Key"):
        await client.create_run({}, key=key)
    assert server.requests == []


@pytest.mark.parametrize("token", ["", "two words", "line\nend", "é"], ids=repr)
def test_a_token_that_no_header_can_carry_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(CredentialError) as caught:
        Client("http://127.0.0.1:1", token)
    assert not token or token not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:80", "ftp://host", "http://", "http://host:port", "http://u:pw@host", "http://h/?q", "http://h h"],
)
def test_a_base_url_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SettingError) as caught:
        Client(url, "t")
    assert "pw" not in str(caught.value)


async def test_the_environment_s_proxies_are_not_used(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    server.on("GET", "/v2/runs/run_1", document(RUN))
    async with client_for(server) as client:
        assert await client.get_run("run_1") == RUN


async def test_cookies_are_not_kept(server: FaultServer, client: Client) -> None:
    server.on("GET", "/v2/runs/run_1", document(RUN, headers={"Set-Cookie": "session=1; Path=/"}))
    await client.get_run("run_1")
    await client.get_run("run_1")
    assert "cookie" not in server.requests[1].headers


def test_a_client_is_made_anywhere_and_used_on_the_loop_that_calls_it_first() -> None:
    client = Client("http://127.0.0.1:1", "t")

    async def use() -> None:
        with pytest.raises(TargetUnreachable):
            await client.health()
        await client.aclose()

    asyncio.run(use())
