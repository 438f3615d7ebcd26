"""TLS of executors without an installation of Procession: the pipeline's certificate, which the driver has shipped.

Invariant: a process that unpickles a task finds the files of its machine: in the directory of the host service if they
were shipped there, otherwise at their paths when the task was pickled. `storage/executor_host` writes the files; the
host service presents the certificate.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from procession.errors import ConfigError
from procession.storage.host_runs import DIRECTORY_VARIABLE
from procession.storage.secret import write_private
from procession.tls import ClientTls

FOLDER = "tls"
CA, CERT, KEY = "ca.pem", "cert.pem", "key.pem"


@dataclass(frozen=True)
class TlsFiles:
    """The contents of the files of a pipeline's TLS."""

    ca: str
    cert: str
    key: str = field(repr=False)

    @classmethod
    def read(cls, tls: ClientTls) -> TlsFiles:
        """Read the files of the driver. Raises ConfigError if one is missing."""
        if tls.cert is None or tls.key is None:
            raise ConfigError(
                "With TLS, executors need the pipeline's certificate: the driver fetches their runs.",
                next_step="Set tls_cert and tls_key, too.",
            )
        try:
            return cls(*(path.read_text() for path in (tls.ca, tls.cert, tls.key)))
        except OSError as error:
            raise ConfigError(
                f"The file {error.filename} cannot be read: {error.strerror}.", next_step="Correct the TLS settings."
            ) from error

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> TlsFiles:
        return cls(str(document["ca"]), str(document["cert"]), str(document["key"]))

    def keep(self, directory: Path) -> None:
        """Write the files into the directory of a host service, readable for its owner only."""
        for name, text in ((CA, self.ca), (CERT, self.cert), (KEY, self.key)):
            write_private(directory / FOLDER / name, text.encode())


class TaskTls(ClientTls):
    """TLS that is part of a task."""

    def __reduce__(self) -> tuple[Callable[..., ClientTls], tuple[Any, ...]]:
        return _found_here, (self.ca, self.cert, self.key, self.name)


def task_tls(tls: ClientTls | None) -> ClientTls | None:
    """Return what tasks use for the TLS of their driver."""
    return None if tls is None else TaskTls(tls.ca, tls.cert, tls.key, tls.name)


def shipped_arguments(directory: Path) -> list[str]:
    """Return the options with which the host service of this directory presents the shipped certificate, if any."""
    folder = directory / FOLDER
    if not (folder / CERT).exists():
        return []
    return ["--tls-cert", str(folder / CERT), "--tls-key", str(folder / KEY)]


def _found_here(ca: Path, cert: Path | None, key: Path | None, name: str | None) -> ClientTls:
    if directory := os.environ.get(DIRECTORY_VARIABLE):
        folder = Path(directory) / FOLDER
        if (folder / CA).exists():
            return TaskTls(folder / CA, folder / CERT, folder / KEY, name)
    return TaskTls(ca, cert, key, name)
