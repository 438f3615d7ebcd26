"""Stores a lake table's files in a directory of a local disk, or under a prefix of an object store.

Invariant: with `create` and `publish` a complete file appears under a name at most once. They return whether the name
was free. When a method returns, its effect is durable. Names are relative to the directory or prefix. Upstream: the
lake sinks; downstream: `storage/durable` for a directory, `connectors/object_store_remote` for anything else.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from procession.errors import UsageError
from procession.runtime.host_files import sync
from procession.storage.durable import fsync_dir, make_directory, renew_durably, storage_error, write_durably

HIDDEN = "_procession"
"""Folder for files that readers must not see. Spark, pandas, pyarrow and DuckDB's `*.parquet` ignore it."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://")


class ObjectStore(Protocol):
    """The files of one table."""

    url: str

    def spool_path(self, spare: Path) -> Path:
        """Return the path for writing a file before `upload`; `spare` is a path in the sink's directory."""

    def check(self) -> None:
        """Raise StorageError if the store cannot be used: no permission, no bucket, no credentials."""

    def upload(self, spool: Path, name: str, *, is_synced: bool = False) -> None:
        """Move a local file into the store, under a new name. `is_synced`: its content is already on disk."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file. Return False if the name is already taken."""

    def publish(self, name: str, visible: str) -> bool:
        """Give a file a second name in one atomic step. Return False if that name is already taken. The old name
        remains."""

    def renew(self, name: str) -> None:
        """Make a file durable, because an earlier process may have failed to do so."""

    def read(self, name: str, bytes_max: int) -> bytes | None:
        """Return the first bytes of a file; None if there is none."""

    def open_input(self, name: str) -> pa.NativeFile:
        """Open a whole file for reading. Raises StorageError if it does not exist."""

    def has(self, name: str) -> bool: ...

    def names(self, folder: str, after: str = "") -> Iterator[str]:
        """Return the names of the files of a folder that are greater than `after`, in order."""

    def delete(self, name: str) -> None:
        """Remove a file, if it exists."""


def open_store(url: str) -> ObjectStore:
    """Return the store of a URL or path. Raises UsageError."""
    local = local_path(url)
    if local is not None:
        return LocalStore(local)
    from procession.connectors.object_store_remote import RemoteStore

    return RemoteStore(url)


def local_path(url: str) -> Path | None:
    """Return the local directory that a URL names; None for a remote store. Raises UsageError."""
    if not _SCHEME.match(url):
        return Path(url).absolute()
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            "The URL of a table has a secret or options in it.",
            next_step="Give credentials, region and endpoint in the environment, such as AWS_SECRET_ACCESS_KEY.",
        )
    if parts.scheme != "file":
        return None
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise UsageError(f"{url} is not on this machine.", next_step="Write file:///PATH, or the path alone.")
    return Path(unquote(parts.path))


class LocalStore(ObjectStore):
    """A local directory. It is created when the first file is written."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)

    def spool_path(self, spare: Path) -> Path:
        # On the same disk as the table, so that the file is not copied, and with a name that no other sink uses.
        owner = hashlib.sha256(os.fsencode(spare.absolute())).hexdigest()[:12]
        folder = self.root / HIDDEN
        make_directory(folder)
        return folder / f"{owner}-{spare.name}"

    def check(self) -> None:
        make_directory(self.root)
        hidden = self.root / HIDDEN
        probe = (hidden if hidden.is_dir() else self.root) / f".probe-{os.getpid()}"
        try:
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise storage_error(probe, "write", error) from error

    def upload(self, spool: Path, name: str, *, is_synced: bool = False) -> None:
        target = self._made(name)
        try:
            if spool.stat().st_dev != target.parent.stat().st_dev:
                spool = Path(shutil.copyfile(spool, target.with_name(f"{target.name}.{os.getpid()}.draft")))
                is_synced = False
            if not is_synced:
                with spool.open("rb") as file:
                    sync(file.fileno())
            os.rename(spool, target)
        except OSError as error:
            raise storage_error(target, "write", error) from error
        fsync_dir(target.parent)

    def create(self, name: str, data: bytes) -> bool:
        target = self._made(name)
        draft = target.with_name(f"{target.name}.{os.getpid()}.draft")
        write_durably(draft, data)
        try:
            return self._linked(draft, target)
        finally:
            draft.unlink(missing_ok=True)

    def publish(self, name: str, visible: str) -> bool:
        return self._linked(self.root / name, self._made(visible))

    def renew(self, name: str) -> None:
        path = self.root / name
        try:
            length = path.stat().st_size
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(path, "read", error) from error
        # Readers of a directory read every file whose name does not begin with a dot or an underscore.
        renew_durably(path, length, draft=path.with_name(f".{path.name}.{os.getpid()}.draft"))

    def read(self, name: str, bytes_max: int) -> bytes | None:
        try:
            with (self.root / name).open("rb") as file:
                return file.read(bytes_max)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(self.root / name, "read", error) from error

    def open_input(self, name: str) -> pa.NativeFile:
        try:
            return pa.OSFile(str(self.root / name))
        except OSError as error:
            raise storage_error(self.root / name, "read", error) from error

    def has(self, name: str) -> bool:
        return (self.root / name).exists()

    def names(self, folder: str, after: str = "") -> Iterator[str]:
        try:
            with os.scandir(self.root / folder) as entries:
                found = sorted(entry.name for entry in entries if entry.name > after and not entry.is_dir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(self.root / folder, "read", error) from error
        yield from (name for name in found if not name.endswith(".draft"))

    def delete(self, name: str) -> None:
        try:
            (self.root / name).unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(self.root / name, "remove", error) from error

    def _made(self, name: str) -> Path:
        target = self.root / name
        if not target.parent.is_dir():
            make_directory(target.parent)
        return target

    def _linked(self, source: Path, target: Path) -> bool:
        try:
            os.link(source, target)
        except FileExistsError:
            return False
        except OSError as error:
            raise storage_error(target, "write", error) from error
        fsync_dir(target.parent)
        return True
