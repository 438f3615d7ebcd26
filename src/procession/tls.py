"""TLS: the certificate that a program presents, what it trusts, and a listening socket that speaks TLS.

The one rule: files are read when a connection is made, so that a renewed certificate counts from the next connection
on, without a restart; a renewal that is only half there changes nothing. Before it on the walk: the programs' options.
After it: the gateway, the sinks and whoever connects to them. Imports nothing of ours but errors.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from procession.errors import ConfigError, UsageError

HANDSHAKE_TIMEOUT_S = 10.0
HANDSHAKES_MAX = 64
"""So many connections may be about to shake hands at once; then the one that takes longest makes room."""
PAUSE_S = 0.1
"""How long a door waits that could not accept: without descriptors, trying again at once would only burn time."""

LINE_BYTES_MAX = 64 * 1024

log = structlog.get_logger("tls")


@dataclass(frozen=True, slots=True)
class ServerTls:
    """What a door shows. With `client_ca`, whoever comes must show a certificate of that authority."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _show(context, self.cert, self.key)
        if self.client_ca is not None:
            _trust(context, self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(filter(None, (self.cert, self.key, self.client_ca)))


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Whom we trust, by its authority and the host that we meant to reach; and what we show, if anything."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None
    name: str | None = None
    """The name that the other side's certificate must bear, if not that of the host."""

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _trust(context, self.ca)
        if self.cert is not None and self.key is not None:
            _show(context, self.cert, self.key)
        return context


def server_tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> ServerTls | None:
    """TLS of a server, if its options ask for it; ConfigError if they cannot work."""
    if cert is None or key is None:
        if cert or key or client_ca:
            raise UsageError("TLS needs a certificate and its key", next_step="give both --tls-cert and --tls-key")
        return None
    tls = ServerTls(cert, key, client_ca)
    tls.context()
    return tls


def client_tls(ca: Path | None, cert: Path | None, key: Path | None, name: str | None = None) -> ClientTls | None:
    """TLS of a client, if its options ask for it; ConfigError if they cannot work."""
    if bool(cert) != bool(key):
        raise UsageError("a certificate needs its key", next_step="give both --tls-cert and --tls-key")
    if ca is None:
        if cert or name:
            raise UsageError(
                "TLS needs to know whom to trust", next_step="give --tls-ca, the authority of the other side"
            )
        return None
    tls = ClientTls(ca, cert, key, name)
    tls.context()
    return tls


def complaint(error: BaseException) -> str | None:
    """What a person must look at, if the two sides do not trust each other; None if a connection was merely lost."""
    lost = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    if not isinstance(error, ssl.SSLError) or isinstance(error, lost):
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not to be trusted: {error.verify_message}"
    return f"no TLS with it: {(error.reason or str(error)).lower().replace('_', ' ')}"


async def connect(
    address: tuple[str, int], tls: ClientTls | None, limit: int = LINE_BYTES_MAX
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """As `asyncio.open_connection`; `limit` is for who reads lines. Files that cannot be used now, maybe in the middle
    of a renewal, are a connection that could not be made: whoever connects tries again."""
    if tls is None:
        return await asyncio.open_connection(*address, limit=limit)
    try:
        context = tls.context()
    except ConfigError as error:
        raise ConnectionError(error.sentence) from error
    return await asyncio.open_connection(*address, limit=limit, ssl=context, server_hostname=tls.name or address[0])


class Door:
    """A listening socket that speaks TLS. Who shakes hands in time gets a protocol of its own."""

    def __init__(
        self,
        listening: socket.socket,
        tls: ServerTls,
        protocol: Callable[[], asyncio.BaseProtocol],
        *,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        handshakes_max: int = HANDSHAKES_MAX,
    ) -> None:
        self._listening = listening
        self._protocol = protocol
        self._handshake_timeout_s = handshake_timeout_s
        self._handshakes_max = handshakes_max
        self._certificates = _Certificates(tls)
        self._handshakes: dict[asyncio.Task[None], None] = {}  # the oldest first
        listening.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Let nobody in any more. Who is inside stays."""
        for task in (self._accepting, *self._handshakes):
            task.cancel()
        self._listening.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                log.warning("tls.accept_failed", reason=error.strerror)
                await asyncio.sleep(PAUSE_S)
                continue
            task = loop.create_task(self._shake_hands(accepted))
            self._handshakes[task] = None
            task.add_done_callback(self._handshakes.pop)
            if len(self._handshakes) > self._handshakes_max:
                next(iter(self._handshakes)).cancel()

    async def _shake_hands(self, accepted: socket.socket) -> None:
        peer = _peer(accepted)
        try:
            # The loop owns the socket from here on, and closes it when this fails or is cancelled.
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol,
                accepted,
                ssl=self._certificates.context(),
                ssl_handshake_timeout=self._handshake_timeout_s,
            )
        except OSError as error:
            reason = complaint(error) or f"no handshake: {error or type(error).__name__}"
            log.warning("tls.handshake_failed", peer=peer, reason=reason)


def _peer(accepted: socket.socket) -> str:
    try:
        return str(accepted.getpeername())
    except OSError:  # it is gone already
        return ""


class _Certificates:
    """A server's context, made again when one of its files has changed."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._seen = self._look()
        self._context = tls.context()

    def context(self) -> ssl.SSLContext:
        seen = self._look()
        if seen != self._seen:
            try:
                self._context = self._tls.context()
                log.info("tls.certificate_reloaded", cert=str(self._tls.cert))
            except ConfigError as error:
                log.warning("tls.certificate_kept", reason=error.sentence)
            self._seen = seen
        return self._context

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_fingerprint(path) for path in self._tls.files]


def _fingerprint(path: Path) -> tuple[int, int, int] | None:
    with suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns, found.st_size
    return None


def _show(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    try:
        # A key with a password would otherwise be asked for on the terminal.
        context.load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the certificate {cert} with the key {key} cannot be used: {_why(error)}",
            next_step="give PEM files that this user may read, of one pair, the key without a password",
        ) from error


def _trust(context: ssl.SSLContext, ca: Path) -> None:
    try:
        context.load_verify_locations(ca)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the authority's certificate {ca} cannot be used: {_why(error)}",
            next_step="give a PEM file that this user may read",
        ) from error


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is no PEM file").lower().replace("_", " ")
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
