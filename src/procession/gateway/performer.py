"""Performs the decisions of `state` on the log, the snapshot file and the sessions. `server` and `control` pass events.

Invariant: actions are performed in the order of the decisions. Rows are in the log before any step relies on them. A
snapshot is on disk before its ACKs are sent, and the ACKs are sent before the log is trimmed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import structlog

from procession import faults
from procession.errors import ConfigError, StorageError
from procession.gateway import gateway_events as ev
from procession.gateway import input_pins, retired_file
from procession.gateway.confirmation import check_uncommitted
from procession.gateway.event_time_log import Offered, Ordering
from procession.gateway.event_time_state import EventTimeOrder
from procession.gateway.gateway_directory import check_free_space, check_replicas, is_paused, keep_paused, save_snapshot
from procession.gateway.gateway_options import GatewayConfig
from procession.gateway.gateway_status import status_of
from procession.gateway.global_registry import LEADER
from procession.gateway.log_rows import whole_groups
from procession.gateway.plausibility import check_end, check_start
from procession.gateway.recovery import open_directory
from procession.gateway.sessions import SessionPeer
from procession.gateway.state import GatewayState
from procession.gateway.stream_counters import StreamCounters
from procession.gateway.stream_leases import Leader
from procession.merge.stream_clocks import StreamClock
from procession.merge.waiting_rows import Key
from procession.runtime.host import HOST, Host
from procession.runtime.uncancelled import finished
from procession.storage.driver_claim import check_claimed

log = structlog.get_logger("gateway")


class GatewayPerformer:
    """A gateway, recovered from its directory. It runs in one event loop; only fsyncs run in threads."""

    def __init__(self, config: GatewayConfig, host: Host = HOST, observer: ev.GatewayObserver | None = None) -> None:
        self.config = config
        self.host = host
        self._observer = observer or ev.GatewayObserver()
        self.on_confirmed: Callable[[], None] = lambda: None
        opened = open_directory(config, host)
        recovered, self.log, self.identity = opened.recovered, opened.log, opened.identity
        self.is_confirmed = recovered.is_confirmed
        """Whether producers may open streams. If a driver has claimed the pipeline, a driver must confirm this log
        after each start of the gateway, even if the directory is new."""
        self.start_id = f"{host.random_bits(128):032x}"
        """Identifies this start of the gateway. A driver repeats it when it confirms the log (`confirmation`)."""
        start, snapshot = recovered.log_start, recovered.snapshot
        self.name = LEADER if config.join is None else config.name
        """The name among the pipeline's gateways. A joining gateway may get it from the leader."""
        self.tally = StreamCounters(config.limits.streams_max, is_by_id=config.declared is not None)
        self.ordering: Ordering | None = None
        self.state: GatewayState
        is_leading = config.join is None
        if config.declared is None:
            tail = self.tally.recovered(start, self.log.read(start, self.log.next_sequence))
            lag_bytes = self.log.lag_bytes(start)
            end, now = self.log.next_sequence, host.monotonic_s()
            self.state = GatewayState(
                config.limits, snapshot, tail, end, lag_bytes, is_leading=is_leading, retired=recovered.retired, now=now
            )
        else:
            self.ordering = Ordering(config, config.declared, snapshot, self.log, host.files)
            for stream_ids, message_ids in self.ordering.recovered.uncommitted:
                self.tally.count_recovered(stream_ids, message_ids)
            end, ordered = self.log.next_sequence, self.ordering.recovered
            order = EventTimeOrder(config.declared, ordered)
            self.state = GatewayState(config.limits, snapshot, ordered.tail, end, is_leading=is_leading, order=order)
        self.state.flow.is_paused = is_paused(config.directory, host.files)
        self.offered = self.log if self.ordering is None else self.ordering.log
        """The log that the driver reads."""
        self.leader: Leader | None = None
        """The leader, which is set before any peer can connect. It gets no requests before `LeaderFound`."""
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Completes when the gateway cannot continue, such as with a full or broken disk."""
        # Keeps asyncio from logging the exception, because closing the gateway raises it.
        self.failure.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.fetched_rows: Callable[[], int] = lambda: 0
        """Returns the number of rows that executors on other machines have fetched."""
        self._offered_end = self.offered.next_sequence
        """Sequence after the last offered record. All records that an earlier process offered are in the log."""
        self._peers: dict[int, SessionPeer] = {}
        self._is_holding = False
        self._numbers = itertools.count(1)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._flush_timer: asyncio.TimerHandle | None = None
        self._commit_lock = asyncio.Lock()
        self._order_lock = asyncio.Lock()

    @property
    def order(self) -> str:
        """A description of the event-time order. Empty: order of arrival."""
        return "" if self.config.declared is None else str(self.config.declared)

    # Sessions

    def join(self, peer: SessionPeer) -> int:
        """Assign a session number to a new peer. Numbers are never reused."""
        session = next(self._numbers)
        self._peers[session] = peer
        return session

    def leave(self, session: int) -> None:
        self._peers.pop(session, None)

    def handle(self, event: ev.Event | ev.OfOrder) -> None:
        if isinstance(event, ev.LeaderFound) and not self.is_confirmed:
            return  # streams are refused until the log is confirmed
        for action in self._decided(event):
            self._perform(action)
        if self.state.flow.is_over or self._is_holding:
            self._hold([event.session] if isinstance(event, ev.FrameReceived) else None)

    def _hold(self, only: list[int] | None) -> None:
        """Pause or resume reading from sessions: from all, or from `only` these if the state did not change."""
        is_over, was_over = self.state.flow.is_over, self._is_holding
        self._is_holding = is_over
        if is_over is not was_over:
            if is_over:
                log.warning("gateway.producers_paused")
            else:
                log.info("gateway.producers_resumed")
        for session in only if only is not None and is_over is was_over else list(self._peers):
            if session in self._peers and session in self.state.sessions:
                self._peers[session].hold(self.state.holds(session))

    def _decided(self, event: ev.Event | ev.OfOrder) -> list[ev.Action]:
        self._observer.on_event(event)
        now = self.host.monotonic_s()
        actions = self.state.handle(event, now)
        self.tally.watch(event, actions, now, self.state.registry)
        return actions

    def _perform(self, action: ev.Action) -> None:
        match action:
            case ev.AppendRows(batch=batch, size_bytes=size_bytes):
                self._append(batch, size_bytes)
            case ev.SendFrame(session, frame):
                if session in self._peers:
                    self._observer.on_send(frame)
                    self._peers[session].send(frame)
            case ev.CloseSession(session, reason):
                if session in self._peers:
                    self._peers[session].close(reason)
            case ev.TrimLog(before_sequence):
                self._observer.on_trim(before_sequence)
                with self._ending():
                    input_pins.trim(self.offered, before_sequence, self.config.directory, self.host.files)
                    if self.state.snapshot.point is not None:
                        self.log.trim(self.state.snapshot.point.floor)
            case ev.AskForStream(stream_id):
                assert self.leader is not None
                self.leader.ask(stream_id)
            case ev.RelinquishStream(stream_id, committed, clock):
                assert self.leader is not None
                self.leader.relinquish(stream_id, committed, clock)
            case ev.WriteSnapshot():
                raise AssertionError("only a commit writes a snapshot, and it waits for it")

    # The log

    def _append(self, batch: pa.RecordBatch, size_bytes: int) -> None:
        """Buffer rows, so that many rows become one entry of the log. Time and bytes are bounded."""
        self._waiting.append(batch)
        self._waiting_bytes += size_bytes
        if self._waiting_bytes >= self.config.append_bytes_max:
            self.flush()
        elif self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(self.config.append_delay_s, self.flush)

    def flush(self) -> None:
        """Write buffered rows. A disk error ends the gateway: none of these rows was acknowledged."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if not self._waiting or self.failure.done():
            return
        batch = self._waiting[0] if len(self._waiting) == 1 else pa.concat_batches(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        faults.point("gateway:before-append")
        with suppress(StorageError), self._ending():
            self.log.append(batch)
        if self.failure.done():
            return
        faults.point("gateway:after-append")
        self.check_disk()
        self.handle(ev.RowsAppended(self.log.next_sequence))

    def check_disk(self) -> None:
        """Withhold credits while the disk is low on space, or the replicas lag."""
        check_replicas(self.state.flow, self.host.unreplicated_bytes())
        check_free_space(self.state.flow, self.log.directory, self.config.disk_free_bytes_min, self.host.files)

    async def pause(self, paused: bool, *, is_kept: bool) -> None:
        """Pause or resume reading from producers. `is_kept`: a restart of the gateway keeps this."""
        if is_kept:
            await self._durably(keep_paused, self.config.directory, paused, self.host.files)
        if paused is not self.state.flow.is_paused:
            log.info("gateway.pause_changed", is_paused=paused, is_kept=is_kept)
        self.state.flow.is_paused = paused
        self.handle(ev.AckIntervalPassed())

    async def _durably(self, *call: Any) -> None:
        """Run a blocking disk call in a thread. A disk error ends the gateway."""
        with self._ending():
            await asyncio.get_running_loop().run_in_executor(None, *call)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Run a block in which a disk error ends the gateway."""
        try:
            yield
        except StorageError as error:
            if not self.failure.done():
                self.failure.set_exception(error)
            raise

    # Requests of the driver

    def confirm(self) -> None:
        """Let producers open streams, because a driver with the current fence has confirmed the log."""
        if not self.is_confirmed:
            self.is_confirmed = True
            try:
                self.on_confirmed()
            except BaseException:
                self.is_confirmed = False
                raise
            log.info("gateway.log_confirmed", next_sequence=self.offered.next_sequence)
            self._observer.on_confirmed(self.log.next_sequence)

    async def offer(self, fence: int, start: int, records_max: int, bytes_max: int) -> int:
        """Return the end up to which the driver may read from `start` on: durable, and within the limits."""
        async with self._commit_lock:
            await self._raise_to(fence)
        self.flush()
        await self._durably(self.log.sync)
        if self.ordering is not None:
            async with self._order_lock:
                await self._take_arrivals(self.ordering)
                await self._order(self.ordering)
        check_start(start, self.offered.next_sequence)
        return self._offer(self._whole_groups(start, self.offered.end_for(start, records_max, bytes_max)))

    def _offer(self, end: int) -> int:
        self._offered_end = max(self._offered_end, end)
        return end

    async def clocks(self, fence: int) -> Mapping[int, StreamClock]:
        """Return each known stream's progress, up to the arrivals on disk. The driver sends it to the others."""
        ordering = self._has_order()
        async with self._commit_lock:
            await self._raise_to(fence)
        self.flush()
        await self._durably(self.log.sync)
        async with self._order_lock:
            await self._take_arrivals(ordering)
            return ordering.order.clocks.all_reached()

    async def offer_among(
        self, fence: int, start: int, limits: tuple[int, int], clocks: Mapping[int, StreamClock], upto: Key | None
    ) -> Offered:
        """Return the rows that the driver may read from `start` on, with several gateways. `clocks` is the progress of
        streams at the other gateways. `upto` is the last place in the order that all gateways can offer."""
        ordering = self._has_order()
        async with self._commit_lock:
            await self._raise_to(fence)
        async with self._order_lock:
            ordering.order.clocks.add_remote(clocks)
            await self._order(ordering, is_alone=False)
            check_start(start, self.offered.next_sequence)
            share = ordering.offered(start, self.offered.end_for(start, *limits), upto)
            self._offer(share.end)
            return share

    def _has_order(self) -> Ordering:
        if self.ordering is None:
            raise ConfigError(
                "The gateway orders by arrival, but was asked about event time.",
                next_step="Start it with --event-time-streams and --lateness-s as in the app.",
            )
        return self.ordering

    async def _take_arrivals(self, ordering: Ordering) -> None:
        """Process some of the received rows, at most one step."""
        now = self.host.monotonic_s()
        if ticks := ordering.ticks(now):
            log.warning("order.idle_streams_skipped", streams=sorted(ticks), reason="so two runs may differ")
            self.handle(ev.StreamsIdled(ticks))
            self.flush()
            await self._durably(self.log.sync)
        with self._ending():
            ordering.observe(now)

    async def _order(self, ordering: Ordering, *, is_alone: bool = True) -> None:
        """Move rows whose order is final to the ordered log. They are on disk when this returns."""
        now = self.host.monotonic_s()
        with self._ending():
            ends = ordering.take(now)
        point, end, observed_end = ordering.order.point, ordering.log.next_sequence, ordering.order.observed_end
        clocks = ordering.order.clocks.all_reached()
        await self._durably(ordering.log.sync)
        faults.point("gateway:after-order")
        closing = () if self.state.claims is None else self.state.claims.closing
        waiting = ordering.waiting_of(closing, is_alone=is_alone)
        skipped = ordering.skipped
        self.handle(ev.RowsOrdered(point, end, ends, ordering.waits_for, observed_end, skipped, waiting, clocks))
        if (stalled := ordering.stalled(now, self.config.stall_s)) is not None:
            log.warning("order.stalled", waiting=len(ordering.order.waiting), **self._named(stalled))

    def _named(self, stream_id: int) -> dict[str, Any]:
        """Return a stream's id, name and state for log events."""
        if stream_id not in self.state.registry:
            return {"stream": stream_id, "name": "", "state": "never opened"}
        stream = self.state.registry[stream_id]
        return {"stream": stream_id, "name": stream.name, "state": stream.state}

    def _whole_groups(self, start: int, end: int) -> int:
        """Move the end of an epoch so that it splits no group and every commit ends at a point of reference."""
        if not start < end < self.state.groups_end:
            return end
        return whole_groups(start, end, self.log.read(start, end), self.log.read(end, self.log.durable_end))

    async def fence(self, fence: int) -> None:
        """Reject all earlier drivers from now on, even after a restart."""
        async with self._commit_lock:
            await self._raise_to(fence)

    async def commit(self, commit: ev.EpochCommitted) -> None:
        """Make the commit durable, acknowledge it, and drop its rows, in this order."""
        check_end(commit.epoch, commit.end_sequence, self._offered_end)
        async with self._commit_lock:
            await self._raise_to(commit.fence)
            if not self.is_confirmed:
                left = self.offered.read(commit.end_sequence, self.offered.next_sequence)
                check_uncommitted(left, commit.positions, self.name)
            await self._write_snapshot(self._decided(commit))

    async def retire(self) -> None:
        """Move streams that have been idle for long out of the snapshot, which is written with every commit."""
        forgotten, before = self.state.retired.forgotten, self.state.snapshot.retired
        async with self._commit_lock:
            await self._write_snapshot(self._decided(ev.RetireStreams()))
        if gone := self.state.retired.forgotten - forgotten:
            log.warning("gateway.retired_streams_forgotten", streams=gone, retired=len(self.state.retired))
        if before is not None and (mark := self.state.snapshot.retired) and mark.number != before.number:
            retired_file.remove_others(self.config.directory, mark, self.host.files)

    async def _raise_to(self, fence: int) -> None:
        self.state.snapshot.check_fence(fence)
        if fence > self.state.snapshot.fence:
            check_claimed(fence, self.config.checkpoint, self.host.files)
            await self._write_snapshot(self._decided(ev.FenceRaised(fence)))

    async def _write_snapshot(self, actions: list[ev.Action]) -> None:
        await finished(self._write(actions))  # the next attempt would write the same draft

    async def _write(self, actions: list[ev.Action]) -> None:
        directory, files = self.config.directory, self.host.files
        for action in actions:
            assert isinstance(action, ev.WriteSnapshot)
            if action.retiring is not None and action.retiring.mark is not None:
                faults.point("gateway:before-retired")
                await self._durably(retired_file.write, directory, action.retiring, files)
                faults.point("gateway:after-retired")
            faults.point("gateway:before-snapshot")
            await self._durably(save_snapshot, directory, action.snapshot, files)
            faults.point("gateway:before-ack")
            for follower in self._decided(ev.SnapshotWritten(action.snapshot, action.retiring)):
                if isinstance(follower, ev.TrimLog):
                    faults.point("gateway:after-ack-before-trim")
                self._perform(follower)
        if self._is_holding:
            self._hold(None)

    def status(self) -> dict[str, Any]:
        return status_of(self)

    async def close(self) -> None:
        """Flush to disk and close the files."""
        try:
            self.flush()
            await self._durably(self.log.sync)
        finally:
            self.log.close()
            if self.ordering is not None:
                self.ordering.log.close()
