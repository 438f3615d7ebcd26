"""Stores the position of a PostgreSQL source: which part of the database's data is in the spool.

Invariant: the file is replaced as a whole, and is durable before the database may delete the data up to the position.
It belongs to one database, and to one slot or table. Upstream: `connectors/postgres_source` and
`connectors/postgres_polling`;
downstream: the disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from procession.errors import StorageError
from procession.format_number import check_format
from procession.storage.durable import storage_error, write_durably

FORMAT = 1


class PositionFile:
    """The position of a source in its directory: a JSON object that is replaced as a whole."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "position.json"

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def read(self, identity: Mapping[str, str]) -> dict[str, Any] | None:
        """Return the position; None if there is none. Raises StorageError if the file belongs to another database,
        slot or table."""
        try:
            found = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(self._path, "read", error) from error
        check_format(self._path, found.get("format"), FORMAT)
        for name, wanted in identity.items():
            if found.get(name) != wanted:
                raise StorageError(
                    f"{self._path} is of {name} {found.get(name)}, not {wanted}.",
                    next_step="Give each source a directory of its own, and a new one after the database was replaced.",
                    path=str(self._path),
                )
        assert isinstance(found, dict)
        return found

    def write(self, identity: Mapping[str, str], **position: object) -> None:
        write_durably(self._path, json.dumps({"format": FORMAT, **identity, **position}).encode())
