"""Runs an S3-compatible server for chaos scenarios: moto, in memory, in a separate process.

Invariant: as in `chaos/system_server`, except that a kill loses its data. So a scenario pauses the server or cuts its
network, but does not kill it. It supports conditional puts, as S3 does.
"""

from __future__ import annotations

import importlib.util
import sys
import urllib.request
from collections.abc import Mapping

from procession.chaos.system_server import HOST, SystemServer, is_listening
from procession.errors import ConfigError

ANSWER_TIMEOUT_S = 10.0


def check_installed() -> None:
    """Raise ConfigError if the server is not installed."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        raise ConfigError(
            "There is no S3-compatible server here: the package moto is not installed.",
            next_step="Install it: pip install 'moto[s3,server]'.",
        )


class StoreServer(SystemServer):
    """A server with any number of buckets. `environment` has the variables for its clients."""

    title = "The S3-compatible server"
    start_timeout_s = 30.0

    def __init__(self) -> None:
        check_installed()
        super().__init__("store", {})

    def _make(self) -> None:
        """Do nothing, because the server stores no data on disk."""

    def _program(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(self.port)]

    def is_ready(self, pid: int = 0) -> bool:
        return is_listening(self.port)

    def environment(self, address: str = "") -> Mapping[str, str]:
        """Return the variables for a client, at this address or through a proxy."""
        return {
            "AWS_ENDPOINT_URL": f"http://{address or self.address}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "chaos",
            "AWS_SECRET_ACCESS_KEY": "chaos",
        }

    def make_bucket(self, name: str) -> None:
        request = urllib.request.Request(f"http://{self.address}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S):
            pass
