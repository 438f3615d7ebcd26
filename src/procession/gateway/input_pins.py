"""Pins on the log of a gateway: keep committed records, so that a rollback to a savepoint can read them again.

Invariant: a pin holds the log from its sequence on, until it is dropped or holds back more than `bytes_max` bytes. In
the second case the gateway deletes the pin durably before it trims the log. A pin is on disk before its savepoint
chooses an epoch. So a trim that began before the pin removes only records that were committed before that epoch.
`savepoints/savepoint_create` makes pins, `gateway/performer` respects them, and `savepoints/rollback` uses them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import structlog

from procession.errors import StorageError
from procession.format_number import check_format
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.storage.durable import fsync_dir, make_directory, read_if_there, remove, storage_error, write_durably
from procession.storage.log import IngressLog

FOLDER = "pins"
FORMAT = 1
SUFFIX = ".pin"
BYTES_MAX = 1024 * 1024 * 1024
"""Default of the maximum bytes of committed input that a pin keeps."""

log = structlog.get_logger("gateway")


@dataclass(frozen=True)
class InputPin:
    """Keeps the input after a savepoint. `is_released`: the input became too large, and is no longer kept."""

    name: str
    sequence: int
    bytes_max: int
    is_released: bool = False


class InputPins:
    """The pins in a gateway's directory."""

    def __init__(self, directory: Path, files: FileSystem = HOST_FILES) -> None:
        self._folder = directory / FOLDER
        self._files = files

    def write(self, pin: InputPin) -> None:
        """Create or replace a pin. It is durable when this returns."""
        make_directory(self._folder, self._files)
        write_durably(
            self._folder / f"{pin.name}{SUFFIX}", json.dumps({"format": FORMAT, **asdict(pin)}).encode(), self._files
        )

    def drop(self, name: str) -> None:
        path = self._folder / f"{name}{SUFFIX}"
        if not self._files.exists(path):
            return
        try:
            remove(path, self._files)
        except OSError as error:
            raise storage_error(path, "remove", error) from error
        fsync_dir(self._folder, self._files)

    def all(self) -> dict[str, InputPin]:
        """Return the pins by the names of their savepoints. Raises StorageError if one is damaged."""
        if not self._files.exists(self._folder):
            return {}
        found = {}
        for name in self._files.names(self._folder):
            path = self._folder / name
            if name.endswith(SUFFIX) and (data := read_if_there(path, self._files)) is not None:
                try:
                    document = json.loads(data)
                    check_format(path, document.pop("format"), FORMAT)
                    pin = InputPin(**document)
                except (ValueError, TypeError, KeyError, AttributeError) as error:
                    raise StorageError(
                        f"{path} cannot be read: {error}.", next_step="Delete the file, and make another savepoint."
                    ) from error
                found[pin.name] = pin
        return found


def pin_new_gateway(first: Path, joining: Path) -> None:
    """Copy the pins of the first gateway to a new gateway's directory. Called before the gateway starts. A used
    directory does not change."""
    if not (joining / "log").exists():
        for pin in InputPins(first).all().values():
            InputPins(joining).write(replace(pin, sequence=0, is_released=False))


def trim(offered: IngressLog, before_sequence: int, directory: Path, files: FileSystem = HOST_FILES) -> None:
    """Trim the log of the gateway in this directory below `before_sequence`, except for records that pins hold."""
    if not offered.is_trimmed_by(before_sequence):
        return
    pins, kept_from = InputPins(directory, files), before_sequence
    for pin in pins.all().values():
        if pin.is_released or pin.sequence >= before_sequence:
            continue
        held_bytes = offered.lag_bytes(pin.sequence) - offered.lag_bytes(before_sequence)
        if held_bytes > pin.bytes_max:
            pins.write(replace(pin, is_released=True))
            log.warning("gateway.input_released", savepoint=pin.name, bytes=held_bytes, bytes_max=pin.bytes_max)
        else:
            kept_from = min(kept_from, pin.sequence)
    offered.trim(kept_from)
