"""Reads what the environment says about connections that leave this machine: proxies and certificates.

`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` (small letters first, as curl has it), `SSL_CERT_FILE`,
`SSL_CERT_DIR` and `REQUESTS_CA_BUNDLE`. Services on this machine are reached directly, and over plain http no
certificate is read, so that none of these variables can stop a local run. What is set and cannot be used is a
SettingError that names the variable, and never shows its value: a proxy's URL can hold a password.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from evalfleet.errors import SettingError

_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ProxySetting:
    """An HTTP proxy. `url` holds no user name; `auth` is (user, password) where one is set."""

    variable: str
    url: str
    auth: tuple[str, str] | None = None


def proxy_for(url: str, environ: Mapping[str, str] | None = None) -> ProxySetting | None:
    """The proxy for requests to `url`, None to go there directly. SettingError for one that cannot be used."""
    environ = os.environ if environ is None else environ
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    if is_loopback(host) or _is_excepted(host, parts.port or _PORTS.get(parts.scheme), _value(environ, "no_proxy")[1]):
        return None
    for name in (f"{parts.scheme}_proxy", "all_proxy"):
        variable, value = _value(environ, name)
        if value:
            return _read_proxy(variable, value)
    return None


def way_to(url: str, environ: Mapping[str, str] | None = None) -> tuple[ProxySetting | None, ssl.SSLContext]:
    """What a client for `url` is made with. SettingError if none can be: to be called before anything runs, too."""
    proxy = proxy_for(url, environ)
    tls = url.startswith("https:") or (proxy is not None and proxy.url.startswith("https:"))
    return proxy, ssl_context(environ) if tls else _no_tls()


def is_loopback(host: str) -> bool:
    """Is it a service on this machine, by its name alone?"""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def ssl_context(environ: Mapping[str, str] | None = None) -> ssl.SSLContext:
    """The certificates to trust: those of the first variable that is set, else the bundled ones. One for each process
    and set of variables: it takes 24 ms to make. SettingError for a file or folder that cannot be used."""
    for variable in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"):
        if path := (os.environ if environ is None else environ).get(variable):
            return _context_of(variable, path)
    return _bundled()


def _value(environ: Mapping[str, str], name: str) -> tuple[str, str]:
    """(the variable's name as it is set, its value); what a CGI server makes of a `Proxy:` header is no setting."""
    if name in environ:
        return name, environ[name].strip()
    upper = name.upper()
    if upper == "HTTP_PROXY" and "REQUEST_METHOD" in environ:
        return upper, ""
    return upper, environ.get(upper, "").strip()


def _read_proxy(variable: str, value: str) -> ProxySetting:
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise SettingError(variable, "is no URL; write http://HOST:PORT, or unset it") from None
    if "://" not in value:
        raise SettingError(variable, "has no scheme; write http://HOST:PORT, or unset it")
    if parts.scheme.startswith("socks"):
        said = f"names a SOCKS proxy ({parts.scheme}://), which is not supported"
        raise SettingError(variable, f"{said}; name an HTTP proxy, or unset it")
    if parts.scheme not in _PORTS or not parts.hostname or any(character.isspace() for character in value):
        raise SettingError(variable, "is no URL of an HTTP proxy; write http://HOST:PORT, or unset it")
    return ProxySetting(variable, _without_user(parts, port), _auth(parts))


def _without_user(parts: SplitResult, port: int | None) -> str:
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{port or _PORTS[parts.scheme]}"


def _auth(parts: SplitResult) -> tuple[str, str] | None:
    if parts.username is None:
        return None
    return unquote(parts.username), unquote(parts.password or "")


def _is_excepted(host: str, port: int | None, no_proxy: str) -> bool:
    """Is the host in NO_PROXY: a name with all below it, `host:port`, an address, a network (10.0.0.0/8), or `*`?"""
    return any(entry == "*" or _matches(host, port, entry.lower()) for entry in no_proxy.replace(",", " ").split())


def _matches(host: str, port: int | None, entry: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:  # one of them is a name, or the entry has a port
        pass
    name, colon, number = entry.rpartition(":")
    if colon and number.isdigit():
        if int(number) != port:
            return False
        entry = name.strip("[]")
    entry = entry.removeprefix("*").lstrip(".")
    return bool(entry) and (host == entry or host.endswith(f".{entry}"))


@functools.cache
def _no_tls() -> ssl.SSLContext:
    """For plain http: the transport wants a context, and one without any authority trusts nobody."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@functools.cache
def _bundled() -> ssl.SSLContext:
    import httpx  # loaded by whoever is about to make a connection

    return httpx.create_ssl_context(trust_env=False)


@functools.cache
def _context_of(variable: str, path: str) -> ssl.SSLContext:
    is_folder = Path(path).is_dir()
    if variable != "REQUESTS_CA_BUNDLE" and is_folder != (variable == "SSL_CERT_DIR"):
        there = "a folder" if is_folder else "a file" if Path(path).exists() else "not there"
        wanted = "a folder" if variable == "SSL_CERT_DIR" else "a file"
        raise SettingError(variable, f"{path} is {there}; name {wanted} of certificates, or unset it")
    try:
        return ssl.create_default_context(cafile=None if is_folder else path, capath=path if is_folder else None)
    except ssl.SSLError as problem:
        raise SettingError(variable, f"{path} holds no certificates (PEM); name another file, or unset it") from problem
    except OSError as problem:
        said = f"{path} cannot be read ({problem.strerror or problem})"
        raise SettingError(variable, f"{said}; name a file of certificates, or unset it") from problem
