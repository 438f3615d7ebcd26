"""A volume on several object services: connects to the replicas, and performs the actions of the quorum's writer.

Invariant: `append` returns at once, and `until` returns when the write quorum has synced the appends. A replica that
cannot be reached, or does not fit, is tried again until the volume is closed. After a later writer has claimed the
volume, every call raises FencedError. The bytes that wait for the quorum are bounded by `PENDING_BYTES_MAX`. Use all
methods in one event loop. `sos/quorum` decides; `sos/sos_client` has the connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from procession.address import Address
from procession.errors import ConfigError, FencedError, ProcessionError, RemoteProtocolError
from procession.runtime.host import HOST, Host
from procession.sos import quorum_events as ev
from procession.sos.quorum import QuorumWriter
from procession.sos.quorum_copies import COPY_BYTES, ROLL_BYTES, QuorumPhase, check_quorum
from procession.sos.sos_client import SosClient
from procession.sos.sos_frames import (
    AppendChunk,
    ChunksReply,
    ClaimVolume,
    CreateObject,
    ProgressReply,
    ReadChunks,
    RetainFrom,
    SosReply,
    SosRequest,
    VolumeReply,
    checked_chunks,
)
from procession.sos.volume_rules import TOKEN_BYTES, RequestRefused, VolumeState
from procession.tls import ClientTls

PENDING_BYTES_MAX = 32 * 1024 * 1024
"""Maximum bytes that wait for the quorum. Above it, `room` waits."""
RECONNECT_S = 0.2
RECONNECT_MAX_S = 5.0
WARN_AFTER_S = 5.0
"""Time after which a call that waits for the quorum names the replicas that are missing."""

log = structlog.get_logger("replicas")


@dataclass(frozen=True)
class ReplicaOptions:
    """The replicas of a volume."""

    addresses: tuple[Address, ...]
    write_quorum: int
    cookie: bytes = field(repr=False, default=b"")
    tls: ClientTls | None = None
    reconnect_s: float = RECONNECT_S
    reconnect_max_s: float = RECONNECT_MAX_S
    roll_bytes: int = ROLL_BYTES

    def check(self) -> None:
        """Raise ConfigError if these replicas are not safe."""
        if len(set(self.addresses)) != len(self.addresses):
            raise ConfigError("A replica is named twice.", next_step="Name each replica once.")
        check_quorum(len(self.addresses), self.write_quorum)


class NoVolume(ConfigError):
    """All replicas have answered, and none has an object of this volume."""


class ReplicatedVolume:
    """The writer of one volume. Call `open` first and `close` at the end."""

    def __init__(
        self,
        name: str,
        options: ReplicaOptions,
        *,
        may_begin: bool = True,
        own_fences: Collection[int] | None = None,
        on_create: Callable[[int], None] = lambda fence: None,
        host: Host = HOST,
    ) -> None:
        """`own_fences`: continue only a history that ends with one of these objects. None: any history. `on_create` is
        called with the number of each object of this writer before it is created."""
        options.check()
        self._on_create = on_create
        self._created = 0
        self.name = name
        self._options = options
        self._host = host
        self._token = host.random_bits(8 * TOKEN_BYTES).to_bytes(TOKEN_BYTES, "big")
        self._writer = QuorumWriter(
            len(options.addresses),
            options.write_quorum,
            may_begin=may_begin,
            own_fences=own_fences,
            roll_bytes=options.roll_bytes,
        )
        self._clients: list[SosClient | None] = [None] * len(options.addresses)
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: ProcessionError | None = None
        self._changed = asyncio.Event()
        self._appended = 0
        self._pending: list[int] = []
        """Sizes of the appends that are not acknowledged."""
        self.reasons: dict[int, str] = {}
        """The reason why each missing replica is missing."""

    # The writer

    async def open(self, say: Callable[[str], None] | None = None) -> None:
        """Claim the volume. Returns when its history is on the quorum, and no other writer can change it."""
        for replica in range(len(self._clients)):
            self._spawn(self._keep_connected(replica))
        await self._until(lambda: self._writer.phase is QuorumPhase.LEADING, say)

    @property
    def fence(self) -> int:
        return self._writer.fence

    @property
    def acknowledged(self) -> int:
        return self._writer.acknowledged

    @property
    def missing(self) -> list[str]:
        """The replicas that are unreachable or incomplete, each with the reason if it is known."""
        return [
            str(self._options.addresses[replica]) + (f" ({reason})" if (reason := self.reasons.get(replica)) else "")
            for replica in self._writer.missing
        ]

    def append(self, data: bytes, *, is_barrier: bool = False) -> int:
        """Append data at the end. Returns the number of appends so far, including this one."""
        self._check()
        self._appended += 1
        self._pending.append(len(data))
        self._take(ev.AppendAsked(data, is_barrier))
        return self._appended

    async def room(self) -> None:
        """Wait until less than `PENDING_BYTES_MAX` bytes wait for the quorum."""
        await self._until(lambda: sum(self._pending) <= PENDING_BYTES_MAX)

    async def until(self, count: int, say: Callable[[str], None] | None = None) -> None:
        """Wait until the quorum has synced the first `count` appends, the last of which was a barrier."""
        await self._until(lambda: self._writer.acknowledged >= count, say)

    async def write(self, data: bytes, say: Callable[[str], None] | None = None) -> None:
        """Append data, and wait until the quorum has synced it."""
        await self.until(self.append(data, is_barrier=True), say)

    def retain(self, mark: int) -> None:
        """Delete the objects below this one on all replicas. The rest of the history must be complete without them."""
        self._check()
        self._take(ev.RetainAsked(mark))

    async def retain_from(self, mark: int) -> None:
        """Delete the objects below this one as soon as this writer leads, because it may be about to roll."""
        await self._until(lambda: self._writer.phase is QuorumPhase.LEADING)
        self.retain(mark)

    async def roll(self) -> int:
        """Continue in a new object, and return its number."""
        before = self._writer.fence
        self._take(ev.RollAsked())
        await self._until(lambda: self._writer.phase is QuorumPhase.LEADING and self._writer.fence > before)
        return self._writer.fence

    async def history(self) -> AsyncIterator[tuple[int, bytes]]:
        """Iterate the appends of earlier writers, oldest first, each with the number of its object."""
        self._check()
        for link in list(self._writer.chain[:-1]):
            offset = 0
            while offset < link.length:
                chunks = await self._read(link.number, offset, link.length)
                for data, _ in chunks:
                    if offset + len(data) > link.length:
                        break
                    yield link.number, data
                    offset += len(data)

    async def _read(self, number: int, offset: int, length: int) -> Sequence[tuple[bytes, int]]:
        while True:
            self._check()
            for replica, copy in enumerate(self._writer.copies):
                client, known = self._clients[replica], copy.objects.get(number)
                if client is None or copy.holds != self._writer.fence or known is None or known.written < length:
                    continue
                try:
                    if chunks := await client.read(self.name, number, offset, COPY_BYTES):
                        return chunks
                except ProcessionError as error:
                    log.warning("replicas.read_failed", replica=client.name, reason=error.sentence)
            await asyncio.sleep(self._options.reconnect_s)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients:
            if client is not None:
                client.close()

    # Performing actions

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    async def _until(self, is_reached: Callable[[], bool], say: Callable[[str], None] | None = None) -> None:
        is_told = False
        while True:
            self._check()
            if is_reached():
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(None if is_told or say is None else WARN_AFTER_S):
                    await self._changed.wait()
            except TimeoutError:
                is_told = True
                if say is not None:
                    say(self.waiting)

    @property
    def waiting(self) -> str:
        """The message to the operator while a call waits for the quorum."""
        return f"Waiting for {self._options.write_quorum} replicas; missing: {', '.join(self.missing) or 'none'}."

    def _take(self, event: ev.QuorumEvent) -> None:
        before = self._writer.acknowledged
        for action in self._writer.handle(event):
            self._perform(action)
        del self._pending[: self._writer.acknowledged - before]
        self._changed.set()

    def _perform(self, action: ev.QuorumAction) -> None:
        match action:
            case ev.SendRead(source):
                self._send(source, action)
            case ev.SendCreate(_, fence, number) if number == fence > self._created:
                self._created = fence
                self._on_create(fence)
                self._send(action.replica, action)
            case ev.SendClaim() | ev.SendCreate() | ev.SendAppend() | ev.SendRetain():
                self._send(action.replica, action)
            case ev.DropReplica(replica, reason):
                self.reasons[replica] = reason
                log.warning("replicas.dropped", replica=str(self._options.addresses[replica]), reason=reason)
                if (dropped := self._clients[replica]) is not None:
                    self._clients[replica] = None
                    dropped.close()
            case ev.RetryClaim():
                self._spawn(self._claim_again())
            case ev.Established(fence):
                log.info("replicas.established", volume=self.name, fence=fence)
            case ev.ForeignHistory(number):
                self._error = FencedError(
                    f"The replicas of the volume {self.name} hold records of another directory (fence {number}).",
                    next_step="Start it in that directory. If that machine is lost, restore into an empty directory"
                    " with `procession restore`.",
                )
            case ev.NoHistory():
                self._error = NoVolume(
                    f"The replicas have no volume {self.name}.",
                    next_step="Check the name, and that these are the replicas of this pipeline.",
                )
            case ev.WriterFenced(promised):
                self._error = FencedError(
                    f"Fence {promised} has claimed the volume {self.name}; this process must stop."
                )

    async def _claim_again(self) -> None:
        """Claim again after a random wait, so that two writers that collided do not collide again."""
        await asyncio.sleep(self._options.reconnect_s * (1 + self._host.random_bits(10) / 1024))
        self._take(ev.ClaimAsked())

    def _send(self, replica: int, action: ev.QuorumAction) -> None:
        """Send a request to a replica. Its requests keep the order of the actions."""
        client = self._clients[replica]
        assert client is not None, "the writer knows which replicas are connected"
        number, name = client.next_number(), self.name
        request: SosRequest
        match action:
            case ev.SendClaim(_, fence):
                request = ClaimVolume(number, name, fence, self._token)
            case ev.SendCreate(_, fence, created, head, mark):
                request = CreateObject(number, name, fence, created, head, mark)
            case ev.SendAppend(_, fence, appended, offset, checksum, data, is_barrier):
                request = AppendChunk(number, name, fence, appended, offset, checksum, is_barrier, data)
            case ev.SendRead(_, _, read, offset):
                request = ReadChunks(number, name, read, offset, COPY_BYTES)
            case ev.SendRetain(_, fence, mark):
                request = RetainFrom(number, name, fence, mark)
            case _:
                raise AssertionError(action)
        client.send(request).add_done_callback(partial(self._replied, replica, client, action))

    def _replied(
        self, replica: int, client: SosClient, action: ev.QuorumAction, reply: asyncio.Future[SosReply]
    ) -> None:
        if reply.cancelled() or self._clients[replica] is not client:
            return
        error = reply.exception()
        if isinstance(error, RequestRefused) and isinstance(action, ev.SendRead):
            self._take(ev.ReadFailed(action.source, action.target, action.number))
        elif isinstance(error, RequestRefused):
            self._take(ev.ReplicaRefused(replica, error.code, error.promised, error.sentence))
        elif error is None:  # otherwise `_keep_connected` notices that the connection is lost
            try:
                event = _event(replica, action, reply.result())
            except RemoteProtocolError as invalid:
                self._perform(ev.DropReplica(replica, invalid.sentence))
            else:
                if event is not None:
                    self._take(event)

    async def _keep_connected(self, replica: int) -> None:
        address, options = self._options.addresses[replica], self._options
        delay_s = options.reconnect_s
        while self._error is None:
            client: SosClient | None = None
            try:
                client = await SosClient.open(address, options.cookie, options.tls)
                state = await client.format(self.name)
            except ProcessionError as error:
                if client is not None:
                    client.close()
                if self.reasons.get(replica) != error.sentence:
                    log.warning("replicas.unreachable", replica=str(address), reason=error.sentence)
                self.reasons[replica] = error.sentence
                await asyncio.sleep(delay_s * (0.5 + self._host.random_bits(10) / 1024))
                delay_s = min(2 * delay_s, options.reconnect_max_s)
                continue
            except asyncio.CancelledError:
                if client is not None:
                    client.close()
                raise
            self.reasons.pop(replica, None)
            self._clients[replica] = client
            self._take(ev.ReplicaUp(replica, state))
            await client.closed()
            if self._clients[replica] is client:
                self._clients[replica] = None
            self._take(ev.ReplicaDown(replica))
            # A dropped replica, such as one with a full disk, is not tried again at once.
            await asyncio.sleep(delay_s if replica in self.reasons else options.reconnect_s)
            delay_s = min(2 * delay_s, options.reconnect_max_s) if replica in self.reasons else options.reconnect_s

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and self._error is None:
            # A bug. Waiting calls get the error instead of waiting forever.
            failed = ProcessionError(f"the volume {self.name} failed: {error!r}")
            self._error = error if isinstance(error, ProcessionError) else failed
            self._changed.set()


def _event(replica: int, action: ev.QuorumAction, reply: SosReply) -> ev.QuorumEvent | None:
    """Convert a reply to its event. Raises RemoteProtocolError if its data does not match its checksums."""
    match reply:
        case VolumeReply(_, VolumeState() as state) if isinstance(action, ev.SendClaim):
            return ev.ClaimPromised(replica, state)
        case ProgressReply(_, number, written, synced, checksum):
            return ev.ObjectProgress(replica, number, written, synced, checksum)
        case ChunksReply() if isinstance(action, ev.SendRead):
            chunks = tuple(checked_chunks(reply))
            return ev.ChunksFound(action.source, action.target, action.number, action.offset, chunks)
    return None
