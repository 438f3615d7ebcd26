"""Defines the TLS options of all commands that listen or connect.

`procession.tls` validates them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from procession.tls import ClientTls, ServerTls

ShownCert = Annotated[
    Path | None, typer.Option("--tls-cert", help="Use TLS with this server certificate (PEM). Needs --tls-key.")
]
ShownKey = Annotated[
    Path | None, typer.Option("--tls-key", help="Private key of the certificate (PEM, without a password).")
]
ClientCa = Annotated[
    Path | None,
    typer.Option("--tls-client-ca", help="Require client certificates of this authority (PEM)."),
]
TrustedCa = Annotated[
    Path | None, typer.Option("--tls-ca", help="Use TLS, and trust only certificates of this authority (PEM).")
]
OwnCert = Annotated[
    Path | None,
    typer.Option("--tls-cert", help="Client certificate (PEM), if the server asks for one. Needs --tls-key."),
]
TrustedName = Annotated[
    str | None,
    typer.Option("--tls-name", show_default="the host", help="Name that the server's certificate must have."),
]


@dataclass(frozen=True, kw_only=True)
class ClientTlsOptions:
    """Options of a command that connects."""

    tls_ca: TrustedCa = None
    tls_cert: OwnCert = None
    tls_key: ShownKey = None
    tls_name: TrustedName = None

    def load(self) -> ClientTls | None:
        from procession.tls import client_tls

        return client_tls(self.tls_ca, self.tls_cert, self.tls_key, self.tls_name)


@dataclass(frozen=True, kw_only=True)
class ServerTlsOptions:
    """Options of a command that listens."""

    tls_cert: ShownCert = None
    tls_key: ShownKey = None
    tls_client_ca: ClientCa = None

    def load(self) -> ServerTls | None:
        from procession.tls import server_tls

        return server_tls(self.tls_cert, self.tls_key, self.tls_client_ca)
