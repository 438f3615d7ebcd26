"""Addresses: their forms, and where a server listens."""

from __future__ import annotations

import socket
import stat
from contextlib import closing
from pathlib import Path

import pytest

from procession.address import (
    Address,
    SocketFile,
    address_of,
    connected_file,
    listening_file,
    listening_socket,
    parse_address,
    parse_endpoint,
    reserved_socket,
)
from procession.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7100", Address("127.0.0.1", 7100)),
        ("[::1]:0", Address("::1", 0)),
        ("host:65535", Address("host", 65535)),
    ],
)
def test_an_address_is_read_and_written_the_same(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:x", "host:-1", "host:65536", "host:²"])
def test_an_invalid_address_is_a_config_error_that_shows_the_form(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an address") as caught:
        parse_address(text)
    assert "HOST:PORT" in caught.value.next_step


def test_a_port_in_use_is_reported_in_one_sentence_by_the_server() -> None:
    with (
        listening_socket(Address("127.0.0.1", 0)) as first,
        pytest.raises(ConfigError, match=r"Port \d+ on 127.0.0.1 is in use"),
    ):
        listening_socket(address_of(first))
    with pytest.raises(ConfigError, match="Cannot listen on"):
        listening_socket(Address("192.0.2.1", 0))


def test_a_server_that_may_choose_takes_its_last_port_if_it_is_free() -> None:
    anywhere = Address("127.0.0.1", 0)
    with listening_socket(anywhere) as first:
        port = address_of(first).port
        with listening_socket(anywhere, previous=Address(anywhere.host, port)) as second:
            assert address_of(second).port != port
    with listening_socket(anywhere, previous=Address(anywhere.host, port)) as again:
        assert address_of(again).port == port


def test_a_port_used_before_can_be_named_and_is_not_chosen_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    anywhere = Address("127.0.0.1", 0)
    with listening_socket(anywhere) as first:
        address = address_of(first)
    monkeypatch.setattr("procession.address.PORTS_TO_CHOOSE_FROM", [address.port])
    monkeypatch.setattr("procession.address.PORT_TRIES", 1)
    with reserved_socket(address):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=10)
        with listening_socket(anywhere) as other:
            assert address_of(other) != address
        for _ in range(2):  # over several runs, with a connection that is left open
            with listening_socket(address) as again:
                peer = socket.create_connection(address, timeout=10)
                accepted, _ = again.accept()
                accepted.close()
                peer.close()
    with listening_socket(anywhere) as other:
        assert address_of(other) != address, "its last owner may want it again"
    with listening_socket(anywhere, previous=address) as again:
        assert address_of(again) == address


@pytest.mark.parametrize("name_chars", [1, 200], ids=["short", "longer than a socket's name may be"])
def test_a_socket_file_is_reached_however_long_its_path_is(tmp_path: Path, name_chars: int) -> None:
    folder = tmp_path / ("d" * name_chars)
    folder.mkdir(0o700)
    path = folder / "control.sock"
    for _ in range(2):  # the file of an earlier run is replaced
        with closing(listening_file(path)) as listener:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            with closing(connected_file(path, 10.0)) as peer:
                accepted, _ = listener.accept()
                with closing(accepted):
                    peer.sendall(b"here")
                    assert accepted.recv(10) == b"here"
    with pytest.raises(ConnectionRefusedError):
        connected_file(path, 10.0)
    assert parse_endpoint(f"unix:{path}") == SocketFile(path)
    assert str(parse_endpoint(f"unix:{path}")) == f"unix:{path}"
    assert parse_endpoint("127.0.0.1:1") == Address("127.0.0.1", 1)
    with pytest.raises(ConfigError, match="Cannot listen on"):
        listening_file(folder / "nowhere" / "control.sock")
