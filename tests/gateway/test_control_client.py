"""The client of the control port, with a bad connection to the gateway."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from procession.errors import RemoteProtocolError, RoundError
from procession.gateway.control_client import ControlClient


@contextmanager
def gateway(*answers: bytes) -> Iterator[str]:
    """Send these answers, one for each request, closing the connection after each; then accept connections without
    answering."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                with listener.accept()[0] as connection:
                    connection.makefile("rb").readline()
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        host, port = listener.getsockname()
        yield f"{host}:{port}"
        thread.join()


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


GARBLED = line(ok=False, kind="garbled", error="a request that is not JSON", next_step="")


def test_i7_a_request_that_was_damaged_in_transit_is_sent_again() -> None:
    with gateway(GARBLED, b"\xff\xff not JSON either\n", line(ok=True, epoch=7)) as at:
        assert ControlClient(at, timeout_s=10.0).status() == {"epoch": 7}


def test_a_gateway_that_understands_no_request_counts_as_away() -> None:
    with gateway(GARBLED) as at, pytest.raises(RoundError, match="not JSON"):
        ControlClient(at, timeout_s=1.0).status()


def test_a_refused_request_is_not_sent_again() -> None:
    wrong = line(ok=False, kind="invalid", error="unknown op", next_step="")
    with gateway(wrong) as at, pytest.raises(RemoteProtocolError, match="unknown op"):
        ControlClient(at, timeout_s=10.0).status()
