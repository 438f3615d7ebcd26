"""The sink link: the driver's connection to one sink. It reconnects as long as the driver runs.

Invariant: each connection sends HELLO, NOTIFY and LIST_UNCOMMITTED together. It sends no data before all three are
answered and the coordinator has decided the listed transactions. The coordinator decides what is sent and when. The
link waits for a sink that cannot be reached. If a sink ends the session during the handshake or before its vote, this
is a refusal. After `refusals_max` refusals in a row, an operator must act.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import AsyncIterable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import structlog

from procession import faults
from procession.address import notice_silence
from procession.commit.coordinator import REFUSALS_MAX
from procession.commit.round_events import EmitEpoch, Event, Phase2Confirmed, SinkConnected, SinkLost, VoteReceived
from procession.commit.stop_reasons import hello_refused, not_voted
from procession.errors import RemoteProtocolError, StorageError
from procession.tls import ClientTls, complaint, connect
from procession.wire import two_phase_commit
from procession.wire.connection import Connection, Violation
from procession.wire.lane_blocks import LaneIdentity
from procession.wire.lifecycle import ConnectionSide, Role
from procession.wire.messages import (
    DATA_STREAM,
    NOTHING_COMMITTED,
    Error,
    Hello,
    ListUncommitted,
    Notify,
    NotifyAck,
    Ok,
    Phase1,
    Phase2,
    Reply,
    ReplyUncommitted,
    Restart,
    WorkersLeft,
)
from procession.wire.v3 import SINK_VERSION

log = structlog.get_logger("commit")

CREDITS_MIN = 2
LIST_TAG = 1
READ_BYTES = 65_536
SILENT_BACKOFF_MAX_S = 10.0
"""Maximum wait before the next HELLO after a close without a reason, as from a proxy whose sink does not run yet."""
WRITE_BYTES_MAX = 4 * 1024 * 1024
LINGER_S = 5.0
"""Time in which a closing connection may send its buffered data."""


@dataclass(frozen=True)
class SinkOptions:
    """How to reach a sink over one connection. `name` identifies the connection in the round. `instance` never changes,
    because sinks name their files by it. `sink` and `bucket` select the runs of this connection; `lane` is its lane.

    `is_authoritative`: the position in its NOTIFY_ACK is reliable, as from this project's sinks, not just advisory."""

    name: str
    host: str
    port: int
    program: str
    instance: str
    cookie: bytes = field(default=b"", repr=False)
    tls: ClientTls | None = None
    version: str = SINK_VERSION
    is_authoritative: bool = True
    pack_bytes_max: int = 0
    """Maximum bytes of a message with many records. 0: one message per record."""
    is_in_blocks: bool = False
    """Whether messages hold record blocks, of `pack_bytes_max` bytes of records."""
    answer_timeout_s: float = 30.0
    backoff_min_s: float = 0.05
    backoff_max_s: float = 0.5
    refusals_max: int = REFUSALS_MAX
    """Number of refusals in a row, at HELLO or before the vote, after which an operator must act."""
    sink: str = ""
    """The sink's name in the pipeline, if it has several connections. Empty: `name`."""
    bucket: int | None = None
    lane: LaneIdentity | None = None
    knows_workers_left: bool = False
    """Whether the sink understands WORKERS_LEFT. Some existing sinks fail on it."""


class SinkLink:
    """The connection to a sink. `report` gets events, `say` gets sentences for people; `uniform` draws times to
    wait."""

    def __init__(
        self,
        options: SinkOptions,
        report: Callable[[Event], None],
        say: Callable[[str], None],
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.options = options
        self._uniform = uniform
        self._report = report
        self._say = say
        self._writer: asyncio.StreamWriter | None = None
        self._connection: Connection | None = None
        self._delay_s = 0.0
        self._failures = 0
        self._hellos_refused = 0
        self._votes_refused = 0
        self._voting: str | None = None
        """The transaction that is being sent, until the sink has voted on it."""
        self._sent_bytes = 0
        """Size of the last transaction that was sent."""
        self._phase2_sent: set[str] = set()
        self._deadline: asyncio.TimerHandle | None = None
        self._was_accepted = False
        self._is_hung = False
        self._is_leaving = False
        self._departed: tuple[str, ...] = ()
        self._tags = itertools.count(1)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            try:
                reader, writer = await self._reach()
            except (OSError, TimeoutError) as error:
                if complaint(error):
                    self._hello_refused(error)
                else:
                    self._failed(
                        "sink.unreachable", f"sink {self._sink} cannot be reached: {_why(error)}; waiting for it"
                    )
                continue
            try:
                await self._session(reader, writer)
            except (OSError, RemoteProtocolError, TimeoutError, asyncio.IncompleteReadError) as error:
                self._refused(error)
            finally:
                self._voting = None

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(self.options.answer_timeout_s):
            return await connect((self.options.host, self.options.port), self.options.tls)

    def _refused(self, error: Exception) -> None:
        """Whether the end of the session counts as a refusal."""
        if not self._was_accepted:
            self._hello_refused(error)
        elif isinstance(error, RemoteProtocolError) or (self._voting is not None and not self._is_hung):
            self._votes_refused += 1
            if self._votes_refused >= self.options.refusals_max:
                raise not_voted(self._sink, self._voting, self._votes_refused, _why(error)) from error
            tries = f"{self._votes_refused} of {self.options.refusals_max}"
            self._failed(
                "sink.refused",
                f"sink {self._sink} ended the session before its vote ({tries}): {_why(error)}; trying again",
            )
        else:
            self._failed("sink.lost", f"sink {self._sink}: {_why(error)}; trying again")

    def _hello_refused(self, error: Exception) -> None:
        self._hellos_refused += 1
        has_reason = isinstance(error, RemoteProtocolError) or bool(complaint(error))
        if self._hellos_refused >= self.options.refusals_max:
            raise hello_refused(self._sink, self._hellos_refused, _why(error), has_reason=has_reason) from error
        tries = f"{self._hellos_refused} of {self.options.refusals_max}"
        self._failed("sink.refused", f"sink {self._sink} refused its greeting ({tries}): {_why(error)}; trying again")
        if not has_reason:
            waited = self.options.backoff_max_s * 2 ** max(0, self._hellos_refused - 4)
            self._delay_s = max(self._delay_s, min(SILENT_BACKOFF_MAX_S, waited))

    @property
    def _sink(self) -> str:
        return f"{self.options.name!r} at {self.options.host}:{self.options.port}"

    def _failed(self, event: str, sentence: str) -> None:
        options = self.options
        if self._failures == 0 or self._failures % 10 == 0:
            self._say(sentence)
            log.warning(event, sink=options.name, address=f"{options.host}:{options.port}", failures=self._failures + 1)
        self._failures += 1
        ceiling = min(options.backoff_max_s, options.backoff_min_s * 2 ** min(self._failures, 16))
        self._delay_s = max(self._delay_s, self._uniform(ceiling / 2, ceiling))

    async def _session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        options = self.options
        connection = Connection(ConnectionSide.INITIATOR, Role.SINK)
        self._was_accepted = False
        writer.transport.set_write_buffer_limits(high=WRITE_BYTES_MAX)
        notice_silence(writer.get_extra_info("socket"))
        try:
            hello = Hello(options.version, options.cookie, options.program, options.instance)
            notify = Notify(DATA_STREAM, options.instance, 0)
            listing = two_phase_commit.wrap(ListUncommitted(LIST_TAG))
            writer.write(b"".join(connection.send(frame) for frame in (hello, notify, listing)))
            async with asyncio.timeout(options.answer_timeout_s):
                listed, position, rest = await self._handshake(connection, reader)
            self._connection, self._writer = connection, writer
            self._was_accepted = True
            self._hellos_refused, self._delay_s = 0, 0.0
            self._is_leaving = self._is_hung = False
            self._send_departed()
            log.info("sink.connected", sink=options.name, listed=len(listed), position=position)
            self._report(SinkConnected(options.name, listed, position))
            self._take(rest)
            while data := await reader.read(READ_BYTES):
                self._take(connection.receive(data))
            if not self._is_leaving:
                raise ConnectionResetError("the sink closed the connection")
        finally:
            if self._writer is writer:
                self._writer = self._connection = None
                self._disarm()
                self._phase2_sent.clear()
                self._report(SinkLost(options.name, self._is_hung))
            # Buffered data is sent, unless the sink does not read it.
            writer.close()
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await writer.wait_closed()
            writer.transport.abort()

    async def _handshake(
        self, connection: Connection, reader: asyncio.StreamReader
    ) -> tuple[tuple[str, ...], int | None, list[object]]:
        """Return the transactions that the sink lists, the end of its output, and the events after the answers."""
        granted, position, listed = None, None, None
        pending: list[object] = []
        while granted is None or position is None or listed is None:
            if not pending:
                if not (data := await reader.read(READ_BYTES)):
                    raise ConnectionResetError("the sink closed the connection during the handshake")
                pending = list(two_phase_commit.unpacked(connection.receive(data)))
                continue
            match pending.pop(0):
                case Ok(count) if count >= CREDITS_MIN:
                    granted = count
                case Ok(count):
                    raise RemoteProtocolError(f"the sink grants {count} credits, {CREDITS_MIN} are needed")
                case NotifyAck(success=True) as answer:
                    position = answer.point_of_reference
                case NotifyAck():
                    raise RemoteProtocolError("the sink refuses the stream; another worker uses it")
                case ReplyUncommitted() as answer:
                    listed = answer.txn_ids
                case Error(reason):
                    raise RemoteProtocolError(f"the sink says: {reason}")
                case Violation(reason):
                    raise RemoteProtocolError(reason)
        start = 0 if position == NOTHING_COMMITTED else position
        return listed, start if self.options.is_authoritative else None, pending

    def _take(self, events: Iterable[object]) -> None:
        name = self.options.name
        for event in two_phase_commit.unpacked(events):
            match event:
                case Reply(txn_id, commit) if txn_id in self._phase2_sent:
                    self._phase2_sent.discard(txn_id)
                    if commit:
                        self._report(Phase2Confirmed(name, txn_id))
                case Reply(txn_id, commit):
                    self._failures = self._votes_refused = 0  # only a vote proves that the sink works
                    self._voting = None
                    self._disarm()
                    self._phase2_sent.clear()  # a sink that votes has received phase 2 of the previous round
                    length = self._sent_bytes if self.options.is_in_blocks else None
                    self._report(VoteReceived(name, txn_id, commit, length))
                case Error(reason):
                    raise RemoteProtocolError(f"the sink says: {reason}")
                case Restart():
                    raise ConnectionResetError("the sink requests a new connection")
                case Violation(reason):
                    raise RemoteProtocolError(reason)

    # Requests of the performer

    async def emit(self, action: EmitEpoch, messages: AsyncIterable[pa.Array]) -> None:
        """Send the bytes of [start, end), then ask for the vote. Returns silently if the connection is lost."""
        connection, writer = self._connection, self._writer
        if connection is None or writer is None:
            return
        position = action.start
        self._voting = action.txn
        try:
            async for payload in messages:
                if connection.is_over:
                    return  # the sink has sent ERROR or RESTART; the session is about to end
                edges = _edges(payload)
                starts = (position + edges[:-1]).astype(np.uint64)
                times = np.zeros(len(payload), np.int64)
                writer.write(memoryview(connection.send_messages(DATA_STREAM, starts, times, None, payload)))
                position += int(edges[-1])
                await self._drained(writer)
            if connection.is_over:
                return
            if action.end is not None and position != action.end:
                raise StorageError(
                    f"the runs of epoch {action.epoch} hold {position - action.start} bytes for sink"
                    f" {action.sink!r}, their manifests say {action.end - action.start}"
                )
            faults.point("driver:before-phase1")
            self._sent_bytes = position - action.start
            request = Phase1(action.txn, ((DATA_STREAM, action.start, position),))
            writer.write(connection.send(two_phase_commit.wrap(request)))
            self._arm(writer)
            await self._drained(writer)
        except OSError:
            return
        except StorageError:
            # After a lost connection the epoch may be over, and its runs deleted.
            if self._connection is connection:
                raise

    async def _drained(self, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self.options.answer_timeout_s):
                await writer.drain()
        except TimeoutError:
            self._give_up(writer)

    def phase2(self, txn: str, commit: bool) -> None:
        if self._writer is None or self._connection is None or self._connection.is_over:
            return
        self._phase2_sent.add(txn)
        self._writer.write(self._connection.send(two_phase_commit.wrap(Phase2(txn, commit))))

    def workers_left(self, names: tuple[str, ...]) -> None:
        """Set the list of gateways that have left. Sinks send no reply to it, so the list is sent again with every new
        session. Earlier lists stay valid, unless a gateway comes back."""
        departed = tuple(name for name in names if name not in self._departed)
        self._departed = names
        if departed:
            self._send_departed()

    def _send_departed(self) -> None:
        if not self._departed or not self.options.knows_workers_left:
            return
        if self._writer is not None and self._connection is not None and not self._connection.is_over:
            self._writer.write(
                self._connection.send(two_phase_commit.wrap(WorkersLeft(next(self._tags), self._departed)))
            )

    def reconnect(self, delay_s: float) -> None:
        """Close when the buffered data is sent, or after a time. Then `run` connects again."""
        self._delay_s = delay_s
        self._is_leaving = True
        self._voting = None
        if self._writer is not None:
            self._writer.close()
            asyncio.get_running_loop().call_later(LINGER_S, self._writer.transport.abort)

    def _arm(self, writer: asyncio.StreamWriter) -> None:
        self._disarm()
        self._deadline = asyncio.get_running_loop().call_later(self.options.answer_timeout_s, self._give_up, writer)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self, writer: asyncio.StreamWriter) -> None:
        self._say(f"sink {self.options.name!r} did not answer within {self.options.answer_timeout_s:g} s; trying again")
        log.warning("sink.hung", sink=self.options.name, timeout_s=self.options.answer_timeout_s)
        self._is_hung = True
        writer.transport.abort()


def _why(error: Exception) -> str:
    if isinstance(error, RemoteProtocolError):
        return error.sentence
    if trouble := complaint(error):
        return trouble
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)  # asyncio puts the whole address into its own text
    return str(error) or "no answer"


def _edges(messages: pa.Array) -> npt.NDArray[np.int64]:
    """Return the start of each message and the end of the last, counted from the first byte."""
    offsets = np.frombuffer(messages.buffers()[1], np.int32)[messages.offset : messages.offset + len(messages) + 1]
    edges: npt.NDArray[np.int64] = offsets.astype(np.int64) - int(offsets[0])
    return edges
