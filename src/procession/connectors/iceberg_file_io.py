"""Files of an Iceberg table on a local disk, synced before the catalog names them.

Invariant: a local file that was written is on disk, with its name, when it is closed; the library alone leaves that to
the operating system, and a catalog that survives a power cut would name files that do not. Anything that is not a local
file goes to pyiceberg as it is. Upstream: `connectors/iceberg_table`, which names it as `py-io-impl`; downstream:
`storage/durable`.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from procession.runtime.host_files import sync
from procession.storage.durable import fsync_dir, make_directory, storage_error


class DurableFileIO(PyArrowFileIO):
    """pyiceberg's own, with syncs."""

    def new_output(self, location: str) -> PyArrowFile:
        file = super().new_output(location)
        scheme, _, path = self.parse_location(location, self.properties)
        return file if scheme != "file" else DurableFile(file, Path(path))


class DurableFile(PyArrowFile):
    """A local file whose streams sync it."""

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
