"""Which proxy and which certificates a connection is made with, and what is said of those that cannot be used (N02)."""

from __future__ import annotations

from pathlib import Path

import certifi
import pytest

from evalfleet.contract.client import Client
from evalfleet.contract.outbound import ProxySetting, proxy_for, ssl_context, way_to
from evalfleet.errors import ConfigError, SettingError
from evalfleet.server.drivers.http import HttpDriver
from evalfleet.server.drivers.openai import OpenAIDriver
from evalfleet.server.driving import Failure
from evalfleet.server.judge import Judge
from evalfleet.testing import FaultServer, document
from evalfleet.treeconfig import HttpHarness, JudgeConfig, OpenAIHarness
from tests.server.drivers.recording import Recording, a_turn

ODD = [
    "socks5://127.0.0.1:9",
    "socks5h://u:s3cret@proxy:1",
    "proxy.corp:3128",
    "http://[::1",
    "http://h:port",
    "ftp://h",
]
CA_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.mark.parametrize(
    ("environ", "url", "proxy"),
    [
        ({"HTTP_PROXY": "http://p:1"}, "http://far.example", "http://p:1"),
        ({"HTTP_PROXY": "http://p:1"}, "https://far.example", None),
        ({"HTTPS_PROXY": "http://p:1/"}, "https://far.example/v1", "http://p:1"),
        ({"HTTPS_PROXY": "https://p"}, "https://far.example", "https://p:443"),
        ({"ALL_PROXY": "http://p:1"}, "https://far.example", "http://p:1"),
        ({"all_proxy": "http://a:1", "HTTP_PROXY": "http://p:1"}, "http://far.example", "http://p:1"),
        ({"http_proxy": "http://small:1", "HTTP_PROXY": "http://p:1"}, "http://far.example", "http://small:1"),
        ({"http_proxy": "", "HTTP_PROXY": "http://p:1"}, "http://far.example", None),
        ({"HTTP_PROXY": "http://p:1", "REQUEST_METHOD": "GET"}, "http://far.example", None),  # a CGI script's header
        ({"HTTP_PROXY": "http://[fd00::1]:8080"}, "http://far.example", "http://[fd00::1]:8080"),
    ],
)
def test_n02_a_proxy_is_chosen_by_the_scheme_of_the_address(
    environ: dict[str, str], url: str, proxy: str | None
) -> None:
    found = proxy_for(url, environ)
    assert (None if found is None else found.url) == proxy


@pytest.mark.parametrize(
    ("no_proxy", "url", "direct"),
    [
        ("far.example", "http://far.example", True),
        ("example", "http://far.example", True),
        (".example", "http://far.example", True),
        ("*.example", "http://far.example", True),
        ("FAR.example", "http://far.EXAMPLE", True),
        ("r.example", "http://far.example", False),
        ("a, far.example ,b", "http://far.example", True),
        ("far.example:8080", "http://far.example:8080", True),
        ("far.example:8080", "http://far.example:80", False),
        ("far.example:443", "https://far.example", True),
        ("10.0.0.0/8", "http://10.1.2.3:8080", True),
        ("10.0.0.0/8", "http://11.1.2.3", False),
        ("10.1.2.3", "http://10.1.2.3", True),
        ("fd00::/8", "http://[fd00::7]:80", True),
        ("*", "https://far.example", True),
        ("", "http://far.example", False),
        (",", "http://far.example", False),
    ],
)
def test_n02_no_proxy_names_what_is_reached_directly(no_proxy: str, url: str, *, direct: bool) -> None:
    environ = {"ALL_PROXY": "http://p:1", "NO_PROXY": no_proxy}
    assert (proxy_for(url, environ) is None) is direct
    assert proxy_for("http://far.example", {"ALL_PROXY": "socks5://p", "NO_PROXY": "far.example"}) is None


def test_the_user_of_a_proxy_stands_apart_from_its_address() -> None:
    found = proxy_for("http://far.example", {"HTTP_PROXY": "http://me:p%40ss@p:1"})
    assert found == ProxySetting("HTTP_PROXY", "http://p:1", ("me", "p@ss"))


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("variable", PROXY_VARIABLES)
def test_n02_a_proxy_that_cannot_be_used_is_named_by_its_variable_without_its_value(value: str, variable: str) -> None:
    scheme = "http" if variable == "HTTP_PROXY" else "https"
    with pytest.raises(SettingError) as caught:
        proxy_for(f"{scheme}://far.example", {variable: value})
    assert caught.value.message.startswith(f"{variable}: ")
    assert "unset it" in caught.value.message
    assert "s3cret" not in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "http://127.9.9.9"])
@pytest.mark.parametrize("value", ["http://127.0.0.1:9", *ODD])
def test_n02_nothing_that_is_set_stops_a_connection_to_this_machine(
    url: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in PROXY_VARIABLES:
        monkeypatch.setenv(variable, value)
    for variable in CA_VARIABLES:
        monkeypatch.setenv(variable, "/not/there.pem")
    assert way_to(url)[0] is None
    Client(url, "t")
    HttpDriver(HttpHarness(url)).check()


async def test_n02_a_target_is_reached_through_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FaultServer() as proxy:
        proxy.on("GET", "/v2/runs/run_1", document({"id": "run_1"}))
        monkeypatch.setenv("http_proxy", proxy.url.replace("http://", "http://me:secret@"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        async with Client("http://platform.invalid", "t", retry_for=5) as client:
            assert await client.get_run("run_1") == {"id": "run_1"}
    asked = proxy.requests[0]
    assert asked.headers["host"] == "platform.invalid"
    assert asked.headers["proxy-authorization"].startswith("Basic ")
    assert asked.headers["authorization"] == "Bearer t"


async def test_n02_what_cannot_be_used_is_said_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "socks5://u:s3cret@p:1")
    monkeypatch.setenv("NO_PROXY", "")
    far = "https://far.example/v1"
    checks = [
        lambda: Client(far, "t"),
        HttpDriver(HttpHarness(far)).check,
        OpenAIDriver(OpenAIHarness(far, "m")).check,
        Judge(JudgeConfig(far, "m")).check,
    ]
    for check in checks:
        with pytest.raises((SettingError, ConfigError), match="https_proxy: names a SOCKS proxy") as caught:
            check()
        assert "s3cret" not in str(caught.value)
    ended = await HttpDriver(HttpHarness(far)).run(a_turn(), Recording())
    assert isinstance(ended.failure, Failure)
    assert ended.failure.code == "agent_not_started"


@pytest.mark.parametrize("variable", CA_VARIABLES)
def test_n02_certificates_that_are_not_there_are_named(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in CA_VARIABLES:
        monkeypatch.delenv(other, raising=False)
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing here\n")
    for path in (tmp_path / "none", *([empty] if variable != "SSL_CERT_DIR" else [])):
        monkeypatch.setenv(variable, str(path))
        with pytest.raises(SettingError) as caught:
            Client("https://far.example", "t")
        assert caught.value.message.startswith(f"{variable}: {path} ")
    good = tmp_path if variable == "SSL_CERT_DIR" else certifi.where()
    monkeypatch.setenv(variable, str(good))
    assert len(ssl_context().get_ca_certs()) > 0 or variable == "SSL_CERT_DIR"
    Client("https://far.example", "t")
