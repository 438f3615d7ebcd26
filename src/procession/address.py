"""Addresses: HOST:PORT as people write it, or a socket file, and the socket that listens there.

Invariant: an unusable address is a ConfigError with one sentence. A server that may choose its port prefers its last
port, because its peers remember that port. Used by the gateway, the sinks and their clients. Imports only `errors`.
"""

from __future__ import annotations

import errno
import os
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from procession.errors import ConfigError, UsageError

SILENCE_S = 30
PORTS_TO_CHOOSE_FROM = range(20_000, 32_000)
"""Ports that a server may choose. They are below the system's range for outgoing connections, so no other program takes
the port during a restart."""
PORT_TRIES = 32
BACKLOG = 128
SOCKET_FILE = "unix:"
"""Prefix of the address of a Unix socket."""
SOCKET_PATH_BYTES_MAX = 100
"""Maximum length of a socket path. The kernel allows 107 bytes; a longer path is reached through its directory."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class SocketFile(NamedTuple):
    """A Unix socket. Only users with access to its directory can reach it, and no other machine can."""

    path: Path

    def __str__(self) -> str:
        return f"{SOCKET_FILE}{self.path}"


Endpoint = Address | SocketFile


def parse_endpoint(text: str) -> Endpoint:
    """Parse HOST:PORT or unix:PATH."""
    if text.startswith(SOCKET_FILE):
        return SocketFile(Path(text.removeprefix(SOCKET_FILE)))
    return parse_address(text)


def other_port(text: str) -> Address:
    """Return the host of this HOST:PORT with port 0, which stands for any free port."""
    return Address(parse_address(text).host, 0)


def parse_address(text: str) -> Address:
    """Parse HOST:PORT, or [HOST]:PORT for a host with colons."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{text!r} is not an address.", next_step="Write it as HOST:PORT, such as 127.0.0.1:7100.")
    return Address(host, int(port))


def parse_addresses(text: str) -> list[Address]:
    """Parse one or more addresses, separated by commas."""
    return [parse_address(part.strip()) for part in text.split(",")]


def peer_of(connected: socket.socket | None) -> str:
    """Return the other end for a log line: its address, or the process and user at the end of a Unix socket."""
    try:
        if connected is None:
            return "unknown"
        if connected.family != socket.AF_UNIX:
            return str(Address(*connected.getpeername()[:2]))
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except (OSError, ValueError):  # already disconnected; uvloop's sockets then raise ValueError
        return "unknown"
    pid, uid, _ = struct.unpack("3i", credentials)
    return f"process {pid} of user {uid}"


def listening_socket(address: Address, previous: Address | None = None) -> socket.socket:
    """Return a socket that listens at the address. Port 0 takes the previous port if it is free."""
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
    """Yield a name for this path that is short enough for a socket."""
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def listening_file(path: Path) -> socket.socket:
    """Return a Unix socket that listens at this path. The caller owns the directory, so an old socket is removed."""
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
    """Connect to the Unix socket at this path. Raises the plain OSError."""
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
    """Raise ConfigError if the address cannot be listened on now. Port 0 is always free."""
    if address.port:
        listening_socket(address).close()


def address_of(listener: socket.socket) -> Address:
    host, port = listener.getsockname()[:2]
    return Address(host, port)


def notice_silence(connected: socket.socket | None, silence_s: float = SILENCE_S) -> None:
    """Enable TCP keep-alive, so that the kernel ends a connection whose peer machine is gone. A simulated connection
    has no socket (None)."""
    if connected is None or connected.family == socket.AF_UNIX:
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


def send_at_once(connected: socket.socket | None) -> None:
    """Send small replies at once, without waiting for the peer's acknowledgement of earlier replies, which takes 40 ms.
    asyncio does this for sockets that it made, but not for sockets from a listener that it was given."""
    if connected is not None and connected.family != socket.AF_UNIX:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def reserved_socket(address: Address) -> socket.socket:
    """Return a socket that reserves the port for a server that is restarted there. It accepts no connections, and
    `listening_socket` does not choose the port for another server."""
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
    """Bind like `_bound`, but not to a port that is reserved or was just released."""
    listener = socket.socket(_family(address), socket.SOCK_STREAM)
    try:
        if listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # lets the next process bind this port
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _family(address: Address) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address.host else socket.AF_INET
