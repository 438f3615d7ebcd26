"""The volumes of an object service: performs batches of requests, with one sync for all appends of a batch.

Invariant: a reply reports only completed work, and never reports unsynced data as synced. A request that is refused, or
for which the disk is full, gets a reply and changes nothing. A failed sync, and any other disk error, is raised and
ends the service without any reply of the batch. `sos/sos_server` has the connections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from procession.errors import DiskError, StorageError
from procession.runtime.files import FileSystem
from procession.sos.recovery import open_volumes
from procession.sos.sos_frames import (
    CHUNK_BYTES_MAX,
    NAMES_MAX,
    AppendChunk,
    ChunksReply,
    ClaimVolume,
    CreateObject,
    DescribeVolume,
    FormatVolume,
    ListVolumes,
    NamesReply,
    ProgressReply,
    ReadChunks,
    RefusedReply,
    RetainFrom,
    SosReply,
    SosRequest,
    VolumeReply,
)
from procession.sos.volume import Volume
from procession.sos.volume_rules import IDENTITY_BYTES, RefusalCode, RequestRefused, check_name, refused
from procession.storage.durable import fsync_dir, lock_directory, make_directory

FOLDER = "volumes"
VOLUMES_MAX = 4096

log = structlog.get_logger("sos")

Claims = dict[str, bytes]
"""The tokens with which one connection has claimed volumes."""


class SosStore:
    """The directory of one service."""

    def __init__(self, directory: Path, files: FileSystem, random_bits: Callable[[int], int]) -> None:
        """Lock the directory, and recover all volumes in it. Raises StorageError."""
        self._files = files
        self._random_bits = random_bits
        self._lock = lock_directory(directory, files)
        self._folder = directory / FOLDER
        try:
            make_directory(self._folder, files)
            found, self._damaged = open_volumes(self._folder, files)
            fsync_dir(self._folder, files)
        except BaseException:
            self._lock.close()
            raise
        self.damaged = tuple(self._damaged)
        """Names of the volumes that are refused because they are damaged."""
        self._volumes = {name: Volume(self._folder / name, files, *parts) for name, parts in found.items()}
        for name, error in self._damaged.items():
            log.error("sos.volume_damaged", volume=name, reason=error.sentence)

    def close(self) -> None:
        for volume in self._volumes.values():
            volume.close()
        self._lock.close()

    def perform(self, requests: Sequence[tuple[Claims, SosRequest]]) -> list[SosReply]:
        """Perform requests, and return the reply to each. Raises DiskError if this directory cannot be used any
        more."""
        replies: list[SosReply | tuple[int, Volume, int]] = []
        to_sync: dict[int, Volume] = {}
        for claims, request in requests:
            try:
                reply = self._perform(claims, request)
            except RequestRefused as error:
                reply = RefusedReply(request.request, error.code, error.promised, error.sentence)
            except DiskError:
                raise
            except StorageError as error:
                log.warning("sos.request_failed", reason=error.sentence)
                reply = RefusedReply(request.request, RefusalCode.STORAGE, 0, error.sentence)
            if isinstance(reply, tuple) and isinstance(request, AppendChunk) and request.is_barrier:
                to_sync[id(reply[1])] = reply[1]
            replies.append(reply)
        for volume in to_sync.values():
            volume.sync()
        return [_progress(*reply) if isinstance(reply, tuple) else reply for reply in replies]

    def _perform(self, claims: Claims, request: SosRequest) -> SosReply | tuple[int, Volume, int]:
        """Perform a request. Returns the reply. For an append, returns its request, volume and object, because its
        reply is known only after the sync."""
        if isinstance(request, ListVolumes):
            names = sorted(name for name in self._volumes if name > request.after)
            return NamesReply(request.request, tuple(names[:NAMES_MAX]))
        check_name(name := request.volume)
        if name in self._damaged:
            raise refused(RefusalCode.STORAGE, self._damaged[name].sentence)
        if isinstance(request, FormatVolume) and name not in self._volumes:
            if len(self._volumes) >= VOLUMES_MAX:
                raise refused(RefusalCode.LIMIT, f"The service has {VOLUMES_MAX} volumes, which is its limit.")
            identity = self._random_bits(8 * IDENTITY_BYTES).to_bytes(IDENTITY_BYTES, "big")
            self._volumes[name] = Volume.make(self._folder / name, self._files, identity)
        volume = self._volumes.get(name)
        if isinstance(request, FormatVolume | DescribeVolume):
            return VolumeReply(request.request, None if volume is None else volume.state)
        if volume is None:
            raise refused(RefusalCode.MISSING, f"There is no volume {name}.")
        return self._change(volume, claims, request)

    def _change(self, volume: Volume, claims: Claims, request: SosRequest) -> SosReply | tuple[int, Volume, int]:
        match request:
            case ClaimVolume(number, name, fence, token):
                volume.claim(fence, token)
                claims[name] = token
                return VolumeReply(number, volume.state)
            case CreateObject(number, name, fence, created, head, mark):
                known = volume.create(fence, claims.get(name, b""), created, head, mark)
                return ProgressReply(number, created, known.written, known.synced, known.checksum)
            case AppendChunk(number, name, fence, appended, offset, checksum, _, data):
                if len(data) > CHUNK_BYTES_MAX:
                    raise refused(RefusalCode.LIMIT, f"An append has at most {CHUNK_BYTES_MAX} bytes.")
                volume.append(fence, claims.get(name, b""), appended, offset, checksum, data)
                return number, volume, appended
            case ReadChunks(number, _, read, offset, bytes_max):
                checksum, chunks, data = volume.read(read, offset, min(bytes_max, CHUNK_BYTES_MAX))
                return ChunksReply(number, read, offset, checksum, tuple(chunks), data)
            case RetainFrom(number, name, fence, mark):
                volume.retain(fence, claims.get(name, b""), mark)
                return VolumeReply(number, volume.state)
        raise AssertionError(request)


def _progress(number: int, volume: Volume, appended: int) -> ProgressReply:
    known = volume.progress(appended)
    return ProgressReply(number, appended, known.written, known.synced, known.checksum)
