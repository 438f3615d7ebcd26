"""An S3-compatible server for tests: moto, in memory, on a free loopback port of this process.

If it is not installed, the tests fail, unless `PROCESSION_WITHOUT` names `s3`. It supports conditional puts and copies,
as S3 does. Its objects survive `stop` and `start`, which simulate a network failure or a store that is away.
"""

from __future__ import annotations

import itertools
import logging
import os
import urllib.request
from types import TracebackType
from typing import Self

import pytest

is_left_out = "s3" in os.environ.get("PROCESSION_WITHOUT", "").replace(" ", "").split(",")
needs_s3 = pytest.mark.skipif(is_left_out, reason="PROCESSION_WITHOUT names s3")

_numbers = itertools.count()


def bucket_name() -> str:
    """Return a name that no other bucket of this process has."""
    return f"bucket-{next(_numbers)}"


class S3Server:
    """A server with any number of buckets. `environment` has the variables that its clients need."""

    def __init__(self) -> None:
        from moto.moto_server.threaded_moto_server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._make = ThreadedMotoServer
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._server.start()
        _, self._port = self._server.get_host_and_port()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }

    def bucket(self) -> str:
        """Create a bucket."""
        name = bucket_name()
        self._request("PUT", f"/{name}")
        return name

    def demand_credentials(self, is_demanded: bool) -> None:
        """Refuse the credentials of every client, or accept all."""
        self._request("POST", "/moto-api/reset-auth", b"0" if is_demanded else b"inf")

    def stop(self) -> None:
        """Stop listening, and keep the objects."""
        self._server.stop()

    def start(self) -> None:
        """Listen again, at the same address."""
        self._server = self._make("127.0.0.1", self._port, verbose=False)
        self._server.start()

    def _request(self, method: str, path: str, data: bytes | None = None) -> None:
        headers = {"Content-Type": "application/octet-stream"}
        request = urllib.request.Request(self.endpoint + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10):
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
