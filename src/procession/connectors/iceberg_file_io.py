"""Syncs the files of an Iceberg table on a local disk before the catalog names them.

Invariant: when a local file is closed, its content and its name are on disk. pyiceberg itself does not sync files, so
after a power cut the catalog could name files that are lost. Files that are not local are passed to pyiceberg
unchanged. Upstream: `connectors/iceberg_table`, which sets this class as `py-io-impl`; downstream: `storage/durable`.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from procession.runtime.host_files import sync
from procession.storage.durable import fsync_dir, make_directory, storage_error


class DurableFileIO(PyArrowFileIO):
    """pyiceberg's FileIO for Arrow, with a sync of each local file."""

    def new_output(self, location: str) -> PyArrowFile:
        file = super().new_output(location)
        scheme, _, path = self.parse_location(location, self.properties)
        return file if scheme != "file" else DurableFile(file, Path(path))


class DurableFile(PyArrowFile):
    """A local file that is synced when an output stream is closed."""

    def __init__(self, file: PyArrowFile, path: Path) -> None:
        super().__init__(file.location, str(path), file._filesystem, file._buffer_size)
        self._local = path

    def create(self, overwrite: bool = False) -> OutputStream:
        if not self._local.parent.is_dir():
            make_directory(self._local.parent)
        return DurableStream(super().create(overwrite), self._local)


class DurableStream(OutputStream):
    """An output stream that syncs its file when it is closed."""

    def __init__(self, stream: OutputStream, path: Path) -> None:
        self._stream = stream
        self._path = path
        self._is_open = True

    @property
    def closed(self) -> bool:
        return not self._is_open

    def write(self, data: bytes) -> int:
        return self._stream.write(data)

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._stream.close()
        try:
            with self._path.open("rb") as file:
                sync(file.fileno())
        except OSError as error:
            raise storage_error(self._path, "sync", error) from error
        fsync_dir(self._path.parent)

    def __enter__(self) -> DurableStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
