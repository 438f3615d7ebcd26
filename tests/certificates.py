"""Certificates for tests: an authority and the files that it issues, in the form that programs read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import trustme

from procession.tls import ClientTls, ServerTls

EXPIRED = datetime(2020, 1, 1, tzinfo=UTC)
"""The expiry date of a certificate that is no longer valid."""


class Pair(NamedTuple):
    cert: Path
    key: Path


class Authority:
    """Issues certificates into a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._authority = trustme.CA()
        self.ca = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.ca))

    def issue(self, *hosts: str, name: str = "server", not_after: datetime | None = None) -> Pair:
        """Issue a certificate and its key. They replace earlier ones of the same name."""
        issued = self._authority.issue_cert(*(hosts or ("127.0.0.1",)), not_after=not_after)
        pair = Pair(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        for path, blobs in (pair.cert, issued.cert_chain_pems), (pair.key, [issued.private_key_pem]):
            draft = path.with_suffix(".draft")
            draft.write_bytes(b"".join(blob.bytes() for blob in blobs))
            draft.replace(path)
        return pair

    def server(self, client_ca: Path | None = None) -> ServerTls:
        return ServerTls(*self.issue(), client_ca)

    def client(self) -> ClientTls:
        return ClientTls(self.ca, *self.issue("client.example", name="client"))
