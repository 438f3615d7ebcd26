"""The numbers of attempts: how far they are reserved, over all drivers of a checkpoint.

The one rule: a number is reserved on disk before a transaction with it is sent, and a successor begins above all that
its predecessor had reserved. Each driver writes the file of its own copy of the checkpoint; a successor reads it after
it has replaced `CURRENT`, and a driver reads `CURRENT` again after it has reserved. So two drivers never use the same
number, and neither waits for the other. Before it `commit/coordinator`, which counts; after it the transaction's name.
"""

from __future__ import annotations

import json
from pathlib import Path

from procession.errors import StorageError
from procession.format_number import check_format
from procession.storage.durable import write_durably

FILE = "attempts.json"
FORMAT = 1


def read_reserved(directory: Path, committed: int) -> int:
    """The last number that a driver of this copy of the checkpoint may have used. A copy that was made before attempts
    were numbered has no file: its transactions carry epochs instead, none above the one after `committed`."""
    path = directory / FILE
    try:
        found = json.loads(path.read_text())
        check_format(path, found["format"], FORMAT)
        return int(found["reserved"])
    except FileNotFoundError:
        return committed + 1
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{path} is damaged: {error}", next_step="restore the checkpoint directory from a copy"
        ) from error


def write_reserved(directory: Path, number: int) -> None:
    """Durable when this returns."""
    write_durably(directory / FILE, json.dumps({"format": FORMAT, "reserved": number}).encode())
