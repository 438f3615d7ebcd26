"""Performs the coordinator's actions on sockets, disk and Spark's log.

Invariant: `offsets/N` is on disk before any output is sent, `rounds/N` before `foreachBatch` returns, and `commits/N`
before phase 2. The fence is read again between `commits/N` and phase 2. A failed sync ends the driver and is never
retried here. Runs in its own event loop in the driver. `spark/query` passes an epoch's manifests; `commit/sink_link`
connects to the sinks.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from procession import faults
from procession.commit.checkpoint import Checkpoint
from procession.commit.coordinator import Coordinator
from procession.commit.dead_letter_share import DeadLetterLimit, judged
from procession.commit.emitter import SinkRuns, length_of, payloads
from procession.commit.epoch_link import LinkMaker, direct_links
from procession.commit.epoch_totals import check_joined, counted, joined, versions_after
from procession.commit.round_events import (
    Acknowledge,
    AcknowledgeEarly,
    Action,
    CommitFound,
    DropRuns,
    EmitEpoch,
    EpochReady,
    Event,
    FinishEpoch,
    QueryEnded,
    ReconnectSink,
    RecordWritten,
    ReserveAttempts,
    SendPhase2,
    SinkConnected,
    StopPipeline,
    VoteReceived,
    Warn,
    WriteRecord,
)
from procession.commit.round_record import RoundRecord, acknowledged_epoch, next_positions
from procession.commit.round_state import RoundPhase
from procession.commit.sink_link import SinkOptions
from procession.commit.stop_reasons import unsendable
from procession.errors import LocalProtocolError, ProcessionError, RoundError, StorageError
from procession.storage.durable import storage_error
from procession.storage.run_store import Manifest, Run, Runs
from procession.storage.state_store import StateStore
from procession.storage.state_version import StateVersion

log = structlog.get_logger("commit")

RETRY_S = 0.2


@dataclass(frozen=True)
class CommittedEpoch:
    """The figures of a committed epoch."""

    record: RoundRecord
    manifests: Sequence[Manifest]
    seconds: float
    committed_ns: int


@dataclass(frozen=True)
class DriverCallbacks:
    """The functions of the driver that the performer calls."""

    acknowledge: Callable[[RoundRecord], Awaitable[None]]
    """Notifies the gateways of a commit. Raises RoundError if a gateway cannot be reached."""
    observe: Callable[[CommittedEpoch], None]
    say: Callable[[str], None]
    fail: Callable[[ProcessionError], None]


@dataclass
class OpenEpoch:
    epoch: int
    manifests: Sequence[Manifest]
    runs: SinkRuns
    started: float
    finished: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class TableVersions(Protocol):
    """Knows the version of a changing table that an epoch reads."""

    def current(self, before: Mapping[str, str]) -> Mapping[str, str]:
        """Return the versions for the next epoch, given those of the previous epoch. May block."""

    def drop(self, before: Mapping[str, str], needed: Mapping[str, str]) -> None:
        """Delete the versions that only the last epoch needed."""


class CommitPerformer:
    """Performs the rounds of one driver. All methods run in its event loop. `keyed` maps chains that begin with a keyed
    stage to its name and kind. `tables` are the tables that may change. `letters` is the limit of dead letters, if dead
    letters are written."""

    def __init__(
        self,
        coordinator: Coordinator,
        checkpoint: Checkpoint,
        runs: Runs,
        sinks: Sequence[SinkOptions],
        callbacks: DriverCallbacks,
        states: StateStore | None = None,
        keyed: Mapping[int, tuple[str, StateVersion]] | None = None,
        tables: TableVersions | None = None,
        letters: DeadLetterLimit | None = None,
        uniform: Callable[[float, float], float] = random.uniform,
        make_link: LinkMaker | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._checkpoint = checkpoint
        self._runs = runs
        self._callbacks = callbacks
        self._states = states
        self._keyed = keyed or {}
        self._tables = tables
        self._letters = letters
        make = make_link or direct_links(runs, uniform)
        self._links = {each.name: make(each, self._handle, callbacks.say) for each in sinks}
        self._epoch: OpenEpoch | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order of their start
        self._idle = asyncio.Event()
        self._idle.set()
        self._error: ProcessionError | None = None
        self._unacknowledged: asyncio.Queue[RoundRecord] = asyncio.Queue(maxsize=1)
        self._acknowledged: RoundRecord | None = None  # the last epoch that every gateway has on disk

    def start(self) -> None:
        """Connect to the sinks, and repeat the last commit to the gateways, which may have missed it."""
        log.info("driver.started", fence=self._checkpoint.fence, committed=self._coordinator.committed)
        for link in self._links.values():
            self._spawn(link.run())
        self._spawn(self._acknowledge_all())
        last = self._coordinator.rounds.get(self._coordinator.committed)
        if last is not None:
            self._unacknowledged.put_nowait(last)

    async def run_epoch(self, epoch: int, manifests: Sequence[Manifest]) -> None:
        """Send an epoch to all sinks. Returns when its round record is on disk."""
        self._raise_error()
        await self._idle.wait()  # no output of an epoch is sent before phase 2 of the previous one
        self._raise_error()
        for manifest in manifests:
            if manifest.failure is not None:
                raise ProcessionError.from_dict(manifest.failure)
        self._checkpoint.check_fence()
        if self._coordinator.policy.is_synced:
            self._checkpoint.log.sync_offsets(epoch)
        found = SinkRuns(manifests)
        ready = replace(self._ready(epoch, manifests, found), sides=await self._next_sides(epoch))
        self._idle.clear()
        self._epoch = OpenEpoch(epoch, manifests, found, asyncio.get_running_loop().time())
        self._handle(ready)
        await self._epoch.finished

    def _ready(self, epoch: int, manifests: Sequence[Manifest], found: SinkRuns) -> EpochReady:
        last = self._coordinator.rounds.get(epoch - 1)
        ranges = [manifest for manifest in manifests if manifest.stage == 0]
        check_joined(epoch, ranges, last.last if last is not None else 0)
        positions = next_positions(last, self._acknowledged, [manifest.positions for manifest in ranges])
        runs = {name: found.of(link.options).runs for name, link in self._links.items()}
        starts = last.offsets if last is not None else {}
        return EpochReady(
            epoch=epoch,
            lengths={name: length_of(sink_runs, self._links[name].options) for name, sink_runs in runs.items()},
            first=min((manifest.first for manifest in ranges), default=last.last if last else 0),
            last=max((manifest.last for manifest in ranges), default=last.last if last else 0),
            starts=starts,
            ends=joined(epoch, ranges, starts),
            positions=positions,
            counters=self._counted(epoch, manifests, runs),
            states=versions_after(self._keyed, manifests),
            acknowledged=acknowledged_epoch(last, self._acknowledged),
        )

    def _counted(self, epoch: int, manifests: Sequence[Manifest], runs: Mapping[str, Sequence[Run]]) -> dict[str, int]:
        last, limit = self._coordinator.rounds.get(epoch - 1), self._letters
        before = last.counters if last is not None else {}
        counters = counted(before, manifests, runs, self._keyed)
        if limit is None:
            return counters
        letters = [run for sink_runs in runs.values() for run in sink_runs if run.to == limit.sink]
        count = sum(run.count for run in letters)
        return judged(before, counters, limit, count, lambda: next(payloads(self._runs, epoch, letters))[0].as_py())

    async def _next_sides(self, epoch: int) -> Mapping[str, str]:
        """Return the versions of tables that the next epoch reads."""
        if self._tables is None:
            return {}
        last = self._coordinator.rounds.get(epoch - 1)
        before = last.sides if last is not None else {}
        return await asyncio.get_running_loop().run_in_executor(None, self._tables.current, before)

    async def query_ended(self) -> None:
        """Look up the decision of the open round and send it to the sinks. Called when Spark writes no more commits."""
        opened = self._coordinator.open
        if opened is None or self._error is not None:
            return  # after a failed sync, this driver makes no decision: a successor looks it up
        epoch = opened.ready.epoch
        if opened.phase is RoundPhase.IN_DOUBT and self._checkpoint.log.is_committed(epoch):
            self._commit_found(epoch)
        else:
            self._handle(QueryEnded())
            self._idle.set()

    def workers_left(self, names: tuple[str, ...]) -> None:
        for link in self._links.values():
            link.workers_left(names)

    async def settle(self) -> None:
        """Wait until no round is open."""
        await self._idle.wait()

    async def close(self, timeout_s: float = 5.0) -> None:
        """Send the last acknowledgement, then close all connections."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._unacknowledged.join()
        for link in self._links.values():
            link.reconnect(0.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Performing actions

    def _handle(self, event: Event) -> None:
        if isinstance(event, SinkConnected):
            self._check_in_charge()
        if self._error is None:
            if isinstance(event, VoteReceived) and event.commit:
                faults.point("driver:between-votes")
            self._do(self._coordinator.handle(event))

    def _check_in_charge(self) -> None:
        """Raise FencedError if this driver was replaced, because it must not take the sinks' sessions from its
        successor."""
        try:
            self._checkpoint.check_fence(asks=True)
        except ProcessionError as error:
            self._stop(error)

    def _do(self, actions: Sequence[Action]) -> None:
        try:
            for action in actions:
                self._perform(action)
        except ProcessionError as error:
            self._stop(error)
        except OSError as error:  # a disk error, which the sink link would treat as an error of its connection
            self._stop(storage_error(self._checkpoint.directory, "write to", error))

    def _perform(self, action: Action) -> None:
        match action:
            case EmitEpoch():
                self._spawn(self._emit(action))
            case ReserveAttempts(number):
                self._checkpoint.reserve(number)
            case SendPhase2(sink, txn, commit):
                if not commit:
                    log.warning("round.aborted", sink=sink, transaction=txn)
                self._links[sink].phase2(txn, commit)
                faults.point("driver:between-phase2")
            case ReconnectSink(sink, delay_s):
                self._links[sink].reconnect(delay_s)
            case WriteRecord(record):
                faults.point("driver:before-record")
                self._checkpoint.check_fence()
                self._checkpoint.rounds.write(record)
                faults.point("driver:after-record")
                self._do(self._coordinator.handle(RecordWritten(record.epoch)))
            case FinishEpoch(epoch):
                self._spawn(self._await_commit(epoch))
                if self._epoch is not None and not self._epoch.finished.done():
                    self._epoch.finished.set_result(None)
            case Acknowledge(record):
                self._committed(record)
            case AcknowledgeEarly(record):
                self._acknowledge(record)
            case DropRuns(epoch):
                self._runs.drop(epoch)
                self._checkpoint.rounds.drop_before(epoch)
            case Warn(sentence):
                self._callbacks.say(sentence)
            case StopPipeline(error):
                raise error

    async def _emit(self, action: EmitEpoch) -> None:
        if self._epoch is None or self._epoch.epoch != action.epoch:
            return  # the round has ended meanwhile
        try:
            link = self._links[action.sink]
            await link.emit(action, self._epoch.runs.of(link.options))
        except LocalProtocolError as error:
            self._stop(unsendable(action.sink, error.sentence))
        except StorageError as error:
            self._stop(error)

    async def _await_commit(self, epoch: int) -> None:
        try:
            await self._checkpoint.log.until_committed(epoch)
            if self._coordinator.open is not None and self._coordinator.open.ready.epoch == epoch:
                self._commit_found(epoch)
        except ProcessionError as error:
            self._stop(error)

    def _commit_found(self, epoch: int) -> None:
        self._checkpoint.log.sync_commit(epoch)
        self._checkpoint.check_fence()
        faults.point("driver:before-phase2")
        self._handle(CommitFound(epoch))

    def _committed(self, record: RoundRecord) -> None:
        log.debug("round.committed", epoch=record.epoch, records_in=record.counters.get("records_in"))
        faults.point("driver:before-ack")
        self._drop_states(record)
        self._acknowledge(record)
        if self._epoch is not None:
            seconds = asyncio.get_running_loop().time() - self._epoch.started
            self._callbacks.observe(CommittedEpoch(record, self._epoch.manifests, seconds, time.time_ns()))
        self._epoch = None
        self._idle.set()
        faults.point("driver:idle")

    def _drop_states(self, record: RoundRecord) -> None:
        """Delete the state files that only this epoch needed."""
        before = self._coordinator.rounds.get(record.epoch - 1)
        if before is not None and self._states is not None:
            names = [name for version in before.states.values() for name in version.names]
            needed = {name for version in record.states.values() for name in version.names}
            self._states.drop(name for name in names if name not in needed)
        if before is not None and self._tables is not None:
            self._tables.drop(before.sides, record.sides)

    def _acknowledge(self, record: RoundRecord) -> None:
        if self._unacknowledged.full():
            # The gateway is unreachable. The notification of a later epoch includes this one.
            self._unacknowledged.get_nowait()
            self._unacknowledged.task_done()
        self._unacknowledged.put_nowait(record)

    async def _acknowledge_all(self) -> None:
        while True:
            record = await self._unacknowledged.get()
            try:
                while self._unacknowledged.empty():
                    try:
                        self._checkpoint.check_fence()
                        await self._callbacks.acknowledge(record)
                        self._acknowledged = record
                        break
                    except RoundError:
                        await asyncio.sleep(RETRY_S)
            except ProcessionError as error:
                self._stop(error)
            finally:
                self._unacknowledged.task_done()

    def _stop(self, error: ProcessionError) -> None:
        if self._error is not None:
            return
        try:
            self._checkpoint.check_fence()
        except ProcessionError as fenced:
            error = fenced  # the cause of each such error: another driver has taken over
        self._error = error
        self._idle.set()
        if self._epoch is not None and not self._epoch.finished.done():
            self._epoch.finished.set_exception(error)
        self._callbacks.fail(error)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, ProcessionError):
            # A bug in Procession: report it and stop instead of hanging.
            error = ProcessionError(f"the performer failed: {error!r}", recent_events=self._coordinator.recent_events)
        self._stop(error)
