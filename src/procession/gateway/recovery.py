"""Recovery of a gateway: reads the directory of an earlier process, and returns the state that the gateway starts with.

Invariant: reading changes nothing. The read data may not be on disk, so `renew` writes it into new files before any
step relies on it. The files together mean:

- no snapshot: nothing was ever committed, and the log counts from record 0;
- a snapshot: its records are committed, and only the log from `log_start` on is read again. If the log ends before
  `log_start`, it is restarted there (`storage/recovery`);
- a snapshot that names retired streams needs their file, at the recorded length. Other files of that kind are ignored;
- no identity, and no driver that has claimed the pipeline: nothing was ever offered from this directory, so producers
  are admitted at once. Otherwise a driver confirms the log first (`confirmation`).

Used only at the start. `performer` starts with the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from procession.errors import ConfigError
from procession.gateway import retired_file
from procession.gateway.gateway_directory import find_identity, keep_identity, load_snapshot, save_snapshot
from procession.gateway.gateway_options import GatewayConfig
from procession.gateway.snapshot import Snapshot
from procession.runtime.files import FileSystem
from procession.runtime.host import HOST, Host
from procession.runtime.host_files import HOST_FILES
from procession.storage.driver_claim import read_claim
from procession.storage.durable import lock_directory, write_durably
from procession.storage.log import IngressLog


@dataclass(frozen=True)
class RecoveredGateway:
    """The state that a gateway starts with."""

    snapshot: Snapshot
    """The snapshot. It names the file of retired streams that `renew` writes."""
    retired: bytes
    """The retired streams that the snapshot names."""
    is_new: bool
    """Whether there was no snapshot."""
    identity: str | None
    """The identity of the directory. None: the directory has no identity yet."""
    is_confirmed: bool
    """Whether producers may open streams before a driver has confirmed the log."""
    log_start: int
    """First needed sequence of the log of arrivals."""


@dataclass(frozen=True)
class OpenedGateway:
    """A gateway's directory, locked and recovered."""

    recovered: RecoveredGateway
    log: IngressLog
    """The log of arrivals, which holds the lock."""
    identity: str


def open_directory(config: GatewayConfig, host: Host = HOST) -> OpenedGateway:
    """Lock the directory, and sync all files in it. Raises StorageError if another process holds the directory or a
    file is damaged, ConfigError if its records are in another order."""
    files = host.files
    lock = lock_directory(config.log_directory, files)  # no file is written before the lock is held
    try:
        recovered = recover(config, files)
        renew(config.directory, recovered, files)
    except BaseException:
        lock.close()
        raise
    log = IngressLog(
        config.log_directory,
        segment_bytes_max=config.segment_bytes_max,
        committed_end=recovered.log_start,
        lock=lock,
        files=files,
        new_incarnation=lambda: host.random_bits(64) or 1,
    )
    identity = recovered.identity if recovered.identity is not None else f"{host.random_bits(128):032x}"
    keep_identity(config.directory, identity, files)
    return OpenedGateway(recovered, log, identity)


def recover(config: GatewayConfig, files: FileSystem = HOST_FILES) -> RecoveredGateway:
    """Read the directory. Raises StorageError if a file is damaged, ConfigError if its records are in another order."""
    found = load_snapshot(config.directory, files)
    snapshot = found or Snapshot()
    _check_order(config, snapshot, files)
    retired = b""
    if snapshot.retired is not None:
        retired = retired_file.read(config.directory, snapshot.retired, files)
        snapshot = replace(snapshot, retired=snapshot.retired._replace(number=snapshot.retired.number + 1))
    identity = find_identity(config.directory, files)
    # A checkpoint on another machine cannot be read. Then a new directory counts as unclaimed.
    is_confirmed = identity is None and (config.checkpoint is None or not read_claim(config.checkpoint, files))
    if config.declared is None:
        log_start = snapshot.end_sequence
    else:
        log_start = snapshot.point.floor if snapshot.point is not None else 0
    return RecoveredGateway(snapshot, retired, found is None, identity, is_confirmed, log_start)


def renew(directory: Path, recovered: RecoveredGateway, files: FileSystem = HOST_FILES) -> None:
    """Write the snapshot and its retired streams into new files, and remove files that the snapshot does not name."""
    if recovered.is_new:
        return
    if recovered.snapshot.retired is not None:
        write_durably(retired_file.path_of(directory, recovered.snapshot.retired.number), recovered.retired, files)
    save_snapshot(directory, recovered.snapshot, files)
    retired_file.remove_others(directory, recovered.snapshot.retired, files)


def _check_order(config: GatewayConfig, snapshot: Snapshot, files: FileSystem) -> None:
    if config.declared is None and files.exists(config.ordered_directory):
        was, now = "event time", "arrival"
    elif config.declared is not None and snapshot.end_sequence and snapshot.point is None:
        was, now = "arrival", "event time"
    else:
        return
    raise ConfigError(
        f"The gateway's directory {config.directory} was begun in the order of {was}, not of {now}.",
        next_step="Start the gateway as before, or give the pipeline a new directory.",
    )
