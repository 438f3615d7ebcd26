"""TLS: a program's certificate, the authorities that it trusts, and a listening socket that speaks TLS.

Invariant: files are read for each connection, so a renewed certificate is used from the next connection on, without a
restart. An incomplete renewal changes nothing. Used by the gateway, the sinks and their clients.
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
"""Maximum number of concurrent handshakes. Beyond it, the oldest handshake is cancelled."""
PAUSE_S = 0.1
"""Pause after a failed accept, so that a lack of file descriptors does not cause a busy loop."""

LINE_BYTES_MAX = 64 * 1024

log = structlog.get_logger("tls")


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server's certificate. With `client_ca`, clients must present a certificate of that authority."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _present(context, self.cert, self.key)
        if self.client_ca is not None:
            _trust(context, self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(filter(None, (self.cert, self.key, self.client_ca)))


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The authority and host name that a client trusts. With `cert`, the client presents a certificate."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None
    name: str | None = None
    """The name that the server's certificate must have. None: the name of the host."""

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _trust(context, self.ca)
        if self.cert is not None and self.key is not None:
            _present(context, self.cert, self.key)
        return context


def server_tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> ServerTls | None:
    """Return the TLS of a server, or None without TLS options. Raises ConfigError for invalid options."""
    if cert is None or key is None:
        if cert or key or client_ca:
            raise UsageError("TLS needs a certificate and its key", next_step="give both --tls-cert and --tls-key")
        return None
    tls = ServerTls(cert, key, client_ca)
    tls.context()
    return tls


def client_tls(ca: Path | None, cert: Path | None, key: Path | None, name: str | None = None) -> ClientTls | None:
    """Return the TLS of a client, or None without TLS options. Raises ConfigError for invalid options."""
    if bool(cert) != bool(key):
        raise UsageError("a certificate needs its key", next_step="give both --tls-cert and --tls-key")
    if ca is None:
        if cert or name:
            raise UsageError(
                "TLS needs a trusted authority", next_step="pass --tls-ca, the authority of the server's certificate"
            )
        return None
    tls = ClientTls(ca, cert, key, name)
    tls.context()
    return tls


def complaint(error: BaseException) -> str | None:
    """Return the reason if the two sides do not trust each other; None if a connection was merely lost."""
    lost = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    if not isinstance(error, ssl.SSLError) or isinstance(error, lost):
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    return f"no TLS with it: {(error.reason or str(error)).lower().replace('_', ' ')}"


async def connect(
    address: tuple[str, int], tls: ClientTls | None, limit: int = LINE_BYTES_MAX
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect like `asyncio.open_connection`, with TLS if given. `limit` is the maximum line length.

    Unusable files, perhaps in the middle of a renewal, raise ConnectionError, so that the caller retries.
    """
    if tls is None:
        return await asyncio.open_connection(*address, limit=limit)
    try:
        context = tls.context()
    except ConfigError as error:
        raise ConnectionError(error.sentence) from error
    return await asyncio.open_connection(*address, limit=limit, ssl=context, server_hostname=tls.name or address[0])


class TlsListener:
    """A listening socket with TLS. Each connection that completes its handshake in time gets a new protocol."""

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
        self._handshakes: dict[asyncio.Task[None], None] = {}  # oldest first
        listening.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Stop accepting connections. Open connections stay open."""
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
            task = loop.create_task(self._handshake(accepted))
            self._handshakes[task] = None
            task.add_done_callback(self._handshakes.pop)
            if len(self._handshakes) > self._handshakes_max:
                next(iter(self._handshakes)).cancel()

    async def _handshake(self, accepted: socket.socket) -> None:
        peer = _peer(accepted)
        try:
            # The event loop owns the socket now, and closes it if this fails or is cancelled.
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
    except OSError:  # already disconnected
        return ""


class _Certificates:
    """A server's TLS context. It is created again when one of its files changes."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._seen = self._fingerprints()
        self._context = tls.context()

    def context(self) -> ssl.SSLContext:
        seen = self._fingerprints()
        if seen != self._seen:
            try:
                self._context = self._tls.context()
                log.info("tls.certificate_reloaded", cert=str(self._tls.cert))
            except ConfigError as error:
                log.warning("tls.certificate_kept", reason=error.sentence)
            self._seen = seen
        return self._context

    def _fingerprints(self) -> list[tuple[int, int, int] | None]:
        return [_fingerprint(path) for path in self._tls.files]


def _fingerprint(path: Path) -> tuple[int, int, int] | None:
    with suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns, found.st_size
    return None


def _present(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    try:
        # Without the empty password, OpenSSL would ask on the terminal for the password of an encrypted key.
        context.load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the certificate {cert} with the key {key} cannot be used: {_why(error)}",
            next_step="use readable PEM files of one pair, the key without a password",
        ) from error


def _trust(context: ssl.SSLContext, ca: Path) -> None:
    try:
        context.load_verify_locations(ca)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the authority's certificate {ca} cannot be used: {_why(error)}",
            next_step="use a readable PEM file",
        ) from error


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is not a PEM file").lower().replace("_", " ")
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
