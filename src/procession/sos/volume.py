"""A copy of a volume on disk: performs the requests that the rules allow.

Invariant: when a method returns, its effect is on disk: a claim, a created object with all earlier data, a mark. An
append is on disk after `sync`. A refused request changes nothing. One thread uses a volume at a time. `sos/sos_store`
has the volumes of a service; `sos/recovery` opens them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from procession.errors import StorageError
from procession.runtime.files import FileSystem
from procession.sos.object_file import ObjectFile
from procession.sos.recovery import VolumeRecord
from procession.sos.volume_rules import (
    ObjectHead,
    ObjectState,
    RefusalCode,
    VolumeState,
    check_append,
    check_claim,
    check_create,
    check_holder,
    check_mark,
    refused,
    sealed_lengths,
)
from procession.storage.durable import fsync_dir, make_directory, remove, storage_error


class Volume:
    def __init__(
        self, directory: Path, files: FileSystem, record: VolumeRecord, objects: dict[int, ObjectFile]
    ) -> None:
        self._directory = directory
        self._files = files
        self._record = record
        self._objects = objects
        self._heads_changed()

    @classmethod
    def make(cls, directory: Path, files: FileSystem, identity: bytes) -> Volume:
        """Make a new copy. It is durable when this returns."""
        make_directory(directory, files)
        record = VolumeRecord(identity)
        record.write(directory, files)
        return cls(directory, files, record, {})

    def _heads_changed(self) -> None:
        states = {number: _unread(known.head) for number, known in self._objects.items()}
        self._sealed = sealed_lengths(states)
        self._sealed_checksums = {
            known.head.previous: known.head.checksum
            for known in self._objects.values()
            if self._sealed.get(known.head.previous) == known.head.length
        }

    @property
    def state(self) -> VolumeState:
        record = self._record
        objects = {number: self._state_of(known) for number, known in self._objects.items()}
        return VolumeState(record.identity, record.promised, record.token, record.mark, objects)

    def _state_of(self, known: ObjectFile) -> ObjectState:
        sealed = self._sealed.get(known.number)
        if sealed is None:
            return known.state
        # The head of the next object has all needed values, so the file is not read.
        return ObjectState(known.head, sealed, sealed, self._sealed_checksums[known.number])

    def claim(self, fence: int, token: bytes) -> None:
        """Promise a fence. The data of earlier holders is synced, so that the next claimant finds it."""
        check_claim(self.state, fence, token)
        self.sync()
        if fence > self._record.promised:
            self._record = replace(self._record, promised=fence, token=token)
            self._record.write(self._directory, self._files)

    def check_holder(self, fence: int, token: bytes) -> None:
        record = self._record
        check_holder(VolumeState(record.identity, record.promised, record.token), fence, token)

    def create(self, fence: int, token: bytes, number: int, head: ObjectHead, mark: int) -> ObjectState:
        """Create an object. Its predecessor, which it seals, is synced first."""
        self.check_holder(fence, token)
        if check_create(self.state, fence, number, head, mark, self._checksum_at):
            if 0 < head.previous < mark:
                # This copy was away while objects were deleted elsewhere, so its parts of them are useless.
                self._raise_mark(mark)
            if (previous := self._objects.get(head.previous)) is not None:
                previous.sync()
                previous.close()
            self._objects[number] = ObjectFile.create(self._directory, number, head, self._files)
            self._heads_changed()
        return self._state_of(self._objects[number])

    def _checksum_at(self, number: int, length: int) -> int | None:
        known = self._objects.get(number)
        if known is None:
            return None
        return 0 if length == 0 else known.index.checksum_at(length)

    def append(self, fence: int, token: bytes, number: int, offset: int, checksum: int, data: bytes) -> None:
        """Append data. It is on disk after `sync`."""
        self.check_holder(fence, token)
        known = self._known(number)
        index = known.index
        if data and offset < index.written and index.checksum_at(offset + len(data)) == checksum:
            return  # already written: an object has one writer, so it is the same data
        # A holder without an object here is writing back. The history that it continues may be longer than the newest
        # history of this copy. Then no writer has established the history of this copy.
        sealed = self._sealed.get(number) if fence in self._objects else None
        check_append(number, index.written, sealed, offset, len(data), len(index.ends))
        known.append(data, checksum)

    def progress(self, number: int) -> ObjectState:
        """Return the written and the synced length of an object, whether or not it is sealed."""
        return self._known(number).state

    def read(self, number: int, offset: int, bytes_max: int) -> tuple[int, list[tuple[int, int]], bytes]:
        return self._known(number).read(offset, bytes_max)

    def retain(self, fence: int, token: bytes, mark: int) -> None:
        """Delete the objects below the mark. The mark is on disk before. After a crash, recovery finishes the
        deletion."""
        self.check_holder(fence, token)
        check_mark(self.state, mark)
        self._raise_mark(mark)

    def _raise_mark(self, mark: int) -> None:
        if mark <= self._record.mark:
            return
        self._record = replace(self._record, mark=mark)
        self._record.write(self._directory, self._files)
        for number in sorted(number for number in self._objects if number < mark):
            known = self._objects.pop(number)
            known.close()
            try:
                remove(known.path, self._files)
            except OSError as error:
                raise storage_error(known.path, "delete", error) from error
        self._heads_changed()
        fsync_dir(self._directory, self._files)

    def sync(self) -> None:
        """Put all appended data on disk."""
        for known in self._objects.values():
            if known.is_loaded:
                known.sync()

    def close(self) -> None:
        for known in self._objects.values():
            with suppress(StorageError):
                known.close()

    def _known(self, number: int) -> ObjectFile:
        known = self._objects.get(number)
        if known is None:
            raise refused(RefusalCode.MISSING, f"There is no object {number}.")
        return known


def _unread(head: ObjectHead) -> ObjectState:
    return ObjectState(head, 0, 0, 0)
