"""Addresses: HOST:PORT as people write it, or a socket file, and the socket that listens there.

The one rule: an address that cannot be used is a ConfigError, one sentence. A server that may choose its port takes
its last one again where it is free, because its peers remember it. Before it on the walk: the programs' options.
After it: the gateway, the sinks and whoever connects to them. Imports nothing of ours but errors.
"""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from procession.errors import ConfigError, UsageError

SILENCE_S = 30
PORTS_TO_CHOOSE_FROM = range(20_000, 32_000)
"""Below those that the system gives to outgoing connections: nobody takes our port while we are started again."""
PORT_TRIES = 32
BACKLOG = 128
SOCKET_FILE = "unix:"
"""How the address of a socket file begins."""
SOCKET_PATH_BYTES_MAX = 100
"""The kernel takes 107; a longer path is reached through its directory."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class SocketFile(NamedTuple):
    """A Unix socket: only who may enter its directory can reach it, and no other machine can."""

    path: Path

    def __str__(self) -> str:
        return f"{SOCKET_FILE}{self.path}"


Endpoint = Address | SocketFile


def parse_endpoint(text: str) -> Endpoint:
    """HOST:PORT, or unix:PATH."""
    if text.startswith(SOCKET_FILE):
        return SocketFile(Path(text.removeprefix(SOCKET_FILE)))
    return parse_address(text)


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
                return _chosen(Address(address.host, port))
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


@contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """A name for this path that is short enough for a socket, while it is needed."""
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def listening_file(path: Path) -> socket.socket:
    """A Unix socket that listens at this path. Whoever calls holds the directory: a file of an earlier life goes."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        with _reachable(path) as name:
            listener.bind(name)
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"Cannot listen on {path}: {error.strerror or error}.",
            next_step="Choose a directory on a local file system, or give --control HOST:PORT.",
        ) from error
    return listener


def connected_file(path: Path, timeout_s: float | None) -> socket.socket:
    """A connection to the Unix socket at this path; raises the plain OSError."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(timeout_s)
        with _reachable(path) as name:
            connected.connect(name)
    except OSError:
        connected.close()
        raise
    return connected


def check_free(address: Address) -> None:
    """Raise ConfigError if nobody could listen there now. Any port (0) is free."""
    if address.port:
        listening_socket(address).close()


def address_of(listener: socket.socket) -> Address:
    host, port = listener.getsockname()[:2]
    return Address(host, port)


def notice_silence(connected: socket.socket, silence_s: float = SILENCE_S) -> None:
    """Let the kernel end a connection whose other machine is gone: else one side waits for it for ever."""
    if connected.family == socket.AF_UNIX:
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", max(1, int(silence_s / 3))),
        ("TCP_KEEPINTVL", max(1, int(silence_s / 3))),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", int(silence_s * 1000)),
    ):
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def kept(address: Address) -> socket.socket:
    """A socket that keeps the port for a server that is started there, again and again: nobody connects to it, and
    `listening_socket` does not choose it for anybody else."""
    keeper = socket.socket(_family(address), socket.SOCK_STREAM)
    try:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(address)
    except OSError:
        keeper.close()
        raise
    return keeper


def _bound(address: Address) -> socket.socket:
    return socket.create_server(address, family=_family(address), backlog=BACKLOG)


def _chosen(address: Address) -> socket.socket:
    """As `_bound`, but not a port that somebody keeps, or has just left and will want again."""
    listener = socket.socket(_family(address), socket.SOCK_STREAM)
    try:
        if listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for who takes it over
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _family(address: Address) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address.host else socket.AF_INET
