"""A real S3 server for tests: moto's, as a process of its own (`python -m tests.s3`), one request at a time, so that a
conditional put is as atomic as S3's. Faults are asked for by the names of buckets and keys:

    bucket `lax…`           conditional puts are not honoured, as by older servers
    bucket `forbidden…`     403 AccessDenied
    key `…lost…`            the first answer to a put that did happen is a 503
    key `…busy…`            the first put is answered 409 ConditionalRequestConflict, and nothing happens
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIA0TESTSOFEVALFLEET",
    "AWS_SECRET_ACCESS_KEY": "the-secret-access-key-of-these-tests",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_ERROR = "<?xml version='1.0'?><Error><Code>{0}</Code><Message>{0} as a test asked for</Message></Error>"


@contextmanager
def s3_server() -> Iterator[Mapping[str, str]]:
    """The environment that reaches it."""
    process = subprocess.Popen([sys.executable, "-m", "tests.s3"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    finally:
        process.kill()
        process.communicate()


def make_bucket(name: str, environment: Mapping[str, str]) -> None:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        region_name=environment["AWS_DEFAULT_REGION"],
    )
    client.create_bucket(Bucket=name)
    client.close()


@pytest.fixture(scope="session")
def s3() -> Iterator[Mapping[str, str]]:
    with s3_server() as environment:
        yield environment


def _faulty(app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    seen: set[str] = set()

    def error(status: str, code: str, start: Any) -> Iterable[bytes]:
        start(status, [("Content-Type", "application/xml")])
        return [_ERROR.format(code).encode()]

    def handle(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path.startswith("/forbidden"):
            return error("403 Forbidden", "AccessDenied", start)
        if path.startswith("/lax"):
            environ.pop("HTTP_IF_NONE_MATCH", None)
        first = method == "PUT" and path not in seen
        if method == "PUT":
            seen.add(path)
        if first and re.search("busy", path):
            return error("409 Conflict", "ConditionalRequestConflict", start)
        if first and re.search("lost", path):
            for _ in app(environ, lambda *_: None):
                pass
            return error("503 Slow Down", "SlowDown", start)
        return app(environ, start)

    return handle


def main() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002  - werkzeug's signature
            pass

    app = _faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=False, request_handler=Quiet)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
