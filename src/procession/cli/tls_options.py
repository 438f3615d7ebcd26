"""The options of TLS, which are the same wherever something listens or connects.

The one rule: as in `cli/main`. Before it the command line; after it `procession.tls`, which checks that they can work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ShownCert = Annotated[
    Path | None, typer.Option("--tls-cert", help="Speak TLS, and show this certificate (PEM). Needs --tls-key.")
]
ShownKey = Annotated[Path | None, typer.Option("--tls-key", help="The certificate's key (PEM, without a password).")]
ClientCa = Annotated[
    Path | None,
    typer.Option("--tls-client-ca", help="Let in only who shows a certificate of this authority (PEM)."),
]
TrustedCa = Annotated[
    Path | None, typer.Option("--tls-ca", help="Speak TLS, and trust certificates of this authority (PEM) only.")
]
OwnCert = Annotated[
    Path | None, typer.Option("--tls-cert", help="Show this certificate (PEM), if one is asked for. Needs --tls-key.")
]
TrustedName = Annotated[
    str | None,
    typer.Option("--tls-name", show_default="the host", help="The name that the other side's certificate must bear."),
]
