"""The options of TLS, which are the same wherever something listens or connects.

The one rule: as in `cli/main`. Before it the command line; after it `procession.tls`, which checks that they can work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
