"""Addresses: HOST:PORT as people write it, and the socket that listens there.

The one rule: an address that cannot be used is a ConfigError, one sentence. A server that may choose its port takes
its last one again where it is free, because its peers remember it. Before it on the walk: the programs' options.
After it: the gateway, the sinks and whoever connects to them. Imports nothing of ours but errors.
"""

from __future__ import annotations

import errno
import os
import random
import socket
from contextlib import suppress
from typing import NamedTuple

from procession.errors import ConfigError, UsageError

SILENCE_S = 30
PORTS_TO_CHOOSE_FROM = range(20_000, 32_000)
"""Below those that the system gives to outgoing connections: nobody takes our port while we are started again."""
PORT_TRIES = 32


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """HOST:PORT, or [HOST]:PORT where the host has colons."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{text!r} is not an address.", next_step="Write it as HOST:PORT, such as 127.0.0.1:7100.")
    return Address(host, int(port))


def parse_addresses(text: str) -> list[Address]:
    """One or several of them, parted by commas."""
    return [parse_address(one.strip()) for one in text.split(",")]


def listening_socket(address: Address, previous: Address | None = None) -> socket.socket:
    """A socket bound to the address. Port 0 takes that of last time if it is free, so that peers find us again."""
    if address.port == 0 and previous is not None and previous.host == address.host:
        with suppress(OSError):
            return _bound(previous)
    if address.port == 0:
        for port in random.sample(PORTS_TO_CHOOSE_FROM, PORT_TRIES):
            with suppress(OSError):
                return _bound(Address(address.host, port))
    try:
        return _bound(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"Port {address.port} on {address.host} is in use.",
                next_step="Stop the program that listens there, or choose another port.",
            ) from error
        raise ConfigError(
            f"Cannot listen on {address}: {os.strerror(error.errno) if error.errno else error}.",
            next_step="Choose an address of this machine.",
        ) from error


def address_of(listener: socket.socket) -> Address:
    host, port = listener.getsockname()[:2]
    return Address(host, port)


def notice_silence(connected: socket.socket, silence_s: float = SILENCE_S) -> None:
    """Let the kernel end a connection whose other machine is gone: else one side waits for it for ever."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", max(1, int(silence_s / 3))),
        ("TCP_KEEPINTVL", max(1, int(silence_s / 3))),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", int(silence_s * 1000)),
    ):
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _bound(address: Address) -> socket.socket:
    return socket.create_server(address, family=socket.AF_INET6 if ":" in address.host else socket.AF_INET, backlog=128)
