"""A driver's Python half: the real `Coordinator`, with the rim of `commit/performer` and `driver/driver` around it.

The one rule, as in the conductor, is the order of syncs: `offsets/N` before anything is sent, `rounds/N` before the
epoch is finished, `commits/N` before phase 2, and the fence is read again between that and phase 2. Each of these is a
`yield`: another driver, or Spark, may come between. Before it: `simulated_spark`, which brings epochs. After it:
`simulated_sink_link`, `simulated_checkpoint`, and the gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from procession.commit import round_events as ev
from procession.commit.coordinator import Coordinator, Phase
from procession.commit.round_record import Round, next_positions
from procession.errors import (
    FencedError,
    LocalProtocolError,
    ProcessionError,
    RemoteProtocolError,
    RoundError,
    StorageError,
)
from procession.gateway.gateway_events import Committed, FenceRaised
from procession.gateway.global_registry import LEADER
from procession.sim.control_requests import Confirm
from procession.sim.disk_calls import Files
from procession.sim.environment import Machine, Site
from procession.sim.fault_plan import DRIVER, GATEWAY, SinkPlan
from procession.sim.network import End
from procession.sim.simulated_checkpoint import Checkpoint
from procession.sim.simulated_clients import Answers, Desks
from procession.sim.simulated_process import Process, Steps
from procession.sim.simulated_sink_link import Link
from procession.sim.simulated_states import drop_states, make_and_sweep
from procession.sim.violation import Breach
from procession.storage.log_ranges import Offset
from procession.storage.state_store import Version

if TYPE_CHECKING:
    from procession.sim.simulated_spark import Spark

PIPELINE, CHECKPOINT_ID, FINGERPRINT = "p", "abc123", "f"
RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Epoch:
    """What Spark's tasks made of a range: the payloads for each sink, and the last id of each stream."""

    number: int
    first: int
    last: int
    payloads: Mapping[str, Sequence[bytes]]
    positions: Mapping[int, int]
    ends: Mapping[str, int]
    """Where it ends in the log of each gateway."""
    states: Mapping[str, Version]
    """The files that its tasks have left."""


def _is_passing(error: ProcessionError) -> bool:
    """Whether the supervisor may simply start a driver again, as `supervisor/supervisor` would."""
    return not error.next_step and not isinstance(error, LocalProtocolError)


class Driver(Process):
    def __init__(
        self, site: Site, machine: Machine, sinks: Mapping[str, SinkPlan], start_spark: Callable[[Driver], Spark]
    ) -> None:
        super().__init__(site, DRIVER, machine)
        self._files = Files(self, machine.disk)
        self.checkpoint = Checkpoint(self._files)
        self.spark: Spark | None = None
        self.error: ProcessionError | None = None
        self.leaves_zombie = False
        """Nobody kills the JVM when this half dies."""
        self._start_spark = start_spark
        self._links = {name: Link(self, name, is_authoritative=plan.is_ours) for name, plan in sinks.items()}
        self._coordinator: Coordinator
        self._epoch: Epoch | None = None
        self._is_idle = True
        self._next_epoch: Epoch | None = None
        self._unacknowledged: Round | None = None
        self._acknowledged: Round | None = None
        self._is_telling = False
        self._fences, self._commits = Desks(self), Desks(self)
        self._fenced: set[str] = set()
        self._told: dict[str, int] = {}
        """The last epoch that each gateway has heard of."""
        self._met: Mapping[str, int] = {}
        """How far the gateways were read when the leader last said who there is."""

    def start(self) -> None:
        self.post(self._begin)

    def died(self) -> None:
        if self.machine.lock is self:
            self.machine.lock = None
        if self.spark is not None:
            if self.leaves_zombie:
                self.spark.soon(self.spark.orphaned)
            else:
                self.spark.kill()  # the supervisor reaps the whole group

    def stop(self) -> None:
        """SIGTERM: Spark is stopped wherever it is, then the log is looked up."""
        if self.spark is None:
            self.kill()
        else:
            self.spark.is_stopping = True
            self.spark.later(0.05 * self.site.chance.random(), self.spark.end)

    def failed(self, error: ProcessionError) -> None:
        """Stop, and let the supervisor decide. A driver that is still the one in charge must have a good reason."""
        try:
            self.checkpoint.check_fence()
        except FencedError as replaced:
            error = replaced  # whatever went wrong, it went wrong because another driver has taken over
        self.error = error
        self.site.tell(self.part, "! %s: %s", self.checkpoint.fence, error.sentence)
        is_done_to_us = bool(error.fields.get("is_done_to_us"))
        is_ours_to_bear = isinstance(error, RoundError | FencedError) or _is_passing(error)
        if not is_done_to_us and not is_ours_to_bear:
            raise Breach("I7", f"the pipeline stops with {error.sentence!r}, and nothing was done to it")
        self.later(0.0, self.kill)

    # Beginning

    def _begin(self) -> Steps:
        if self.machine.lock is not None:
            self.later(0.02, self._begin)
            return
        self.machine.lock = self
        yield from self.checkpoint.claim()
        self.machine.lock = None
        try:
            yield from self.checkpoint.copy_last()
            self.checkpoint.check()
        except StorageError:
            self.checkpoint.check_fence()
            raise
        self.checkpoint.check_fence()
        self.site.oracle.look()
        checkpoint = self.checkpoint
        self.site.tell(
            self.part,
            "= driver %s, offered %s, committed %s",
            checkpoint.fence,
            checkpoint.offered,
            checkpoint.committed,
        )
        rounds = checkpoint.rounds()
        yield from make_and_sweep(self._files, rounds.get(checkpoint.committed), checkpoint.fence)
        self._coordinator = Coordinator(
            pipeline=PIPELINE,
            checkpoint=CHECKPOINT_ID,
            fence=checkpoint.fence,
            fingerprint=FINGERPRINT,
            sinks=list(self._links),
            rounds=rounds,
            committed=checkpoint.committed,
            reserved=checkpoint.reserved,
        )
        for link in self._links.values():
            link.connect()
        last = self._coordinator.rounds.get(self._coordinator.committed)
        if last is not None:
            self._acknowledge(last)
        self._raise_fence()

    def _raise_fence(self) -> None:
        """No earlier driver's acknowledgements count from here on; then Spark may start."""
        ends, fence = self._offered_ends(), self.checkpoint.fence
        self._fences.ask({name: Confirm(fence, ends.get(name, Offset())) for name in self._fences.names}, self._raised)

    def _offered_ends(self) -> dict[str, Offset]:
        offered = self.checkpoint.offered
        return self.checkpoint.offset(offered) if offered >= 0 else {}

    def _raised(self, answers: Answers) -> None:
        ends = self._offered_ends()
        for name, (_, told) in answers.items():
            if told.end.sequence < (end := ends.get(name, Offset()).sequence):
                raise StorageError(
                    f"the log of {name} ends at {told.end.sequence}, but {end} were offered", next_step="restore it"
                )
        known = len(self._fences.names)
        if LEADER in answers:
            self._meet(answers[LEADER][1].gateways)
        self._fenced |= answers.keys()
        if all(name in self._fenced for name in self._fences.names):
            self.spark = self._start_spark(self)
        else:
            self.later(0.0 if len(self._fences.names) > known else RETRY_S, self._raise_fence)

    def _meet(self, gateways: Sequence[str]) -> None:
        self._fences.meet(gateways)
        self._commits.meet(gateways)

    # Links

    def heard(self, end: End, data: bytes) -> Steps:
        link: Link = end.tag
        try:
            for event in link.heard(data):
                yield from self.handle(event)
        except RemoteProtocolError as error:
            if self.checkpoint.current() == self.checkpoint.fence and "the sink failed" not in error.sentence:
                raise Breach("I7", f"driver and {link.sink} do not understand each other: {error.sentence}") from None
            link.close()

    def lost(self, end: End, is_clean: bool) -> Steps | None:
        return self.link_lost(end.tag, end) if end.tag is not None else None

    def link_lost(self, link: Link, end: End) -> Steps:
        for event in link.lost(end):
            yield from self.handle(event)

    # The round

    def run_epoch(self, epoch: Epoch) -> Steps:
        """`foreachBatch`: Spark waits until `finished` comes back."""
        if self.error is not None:
            return
        if not self._is_idle:
            self._next_epoch = epoch  # nothing of an epoch goes out before phase 2 of the one before
            return
        self.checkpoint.check_fence()
        yield
        yield from self.checkpoint.sync_offsets(epoch.number)
        self._is_idle = False
        self._epoch = epoch
        last = self._coordinator.rounds.get(epoch.number - 1)
        positions = next_positions(last, self._acknowledged, [epoch.positions])
        lengths = {name: sum(map(len, epoch.payloads[name])) for name in self._links}
        yield from self.handle(
            ev.EpochReady(
                epoch.number, lengths, epoch.first, epoch.last, positions, ends=epoch.ends, states=epoch.states
            )
        )

    def handle(self, event: Any) -> Steps:
        if self.error is None:
            if isinstance(event, ev.SinkConnected):
                self.checkpoint.check_fence()
            self.site.tell(self.part, "< %s", event)
            for action in self._coordinator.handle(event):
                self.site.tell(self.part, "> %s", action)
                if (steps := self._perform(action)) is not None:
                    yield from steps

    def _perform(self, action: ev.Action) -> Steps | None:
        """Do it, or say in which steps it is done."""
        match action:
            case ev.Emit():
                is_here = self._epoch is not None and self._epoch.number == action.epoch
                payloads = self._epoch.payloads[action.sink] if self._epoch is not None and is_here else ()
                self.soon(self._links[action.sink].emit, action, payloads)
            case ev.Reserve(number):
                return self.checkpoint.reserve(number)
            case ev.Phase2():
                return self._phase2(action.sink, action.txn, action.commit)
            case ev.Reconnect(sink, delay_s):
                self._links[sink].close(delay_s)
            case ev.WriteRecord(record):
                return self._write_record(record)
            case ev.FinishEpoch(epoch):
                if self.spark is not None:
                    self.spark.soon(self.spark.finished, epoch)
            case ev.Acknowledge(record):
                drop_states(self._files, self._coordinator.rounds, record)
                self._acknowledge(record)
                self._epoch = None
                self._is_idle = True
                if self._next_epoch is not None:
                    following, self._next_epoch = self._next_epoch, None
                    self.soon(self.run_epoch, following)
            case ev.DropRuns() | ev.Warn():
                pass
            case ev.Stop(error):
                raise error
        return None

    def _phase2(self, sink: str, txn: str, commit: bool) -> Steps:
        if commit:
            self.site.oracle.about_to_commit(sink, txn, f"driver {self.checkpoint.fence}")
        self._links[sink].phase2(txn, commit)
        yield

    def _write_record(self, record: Round) -> Steps:
        self.checkpoint.check_fence()
        yield
        yield from self.checkpoint.write_round(record)
        yield from self.handle(ev.RecordWritten(record.epoch))

    def asks_for_vote(self, action: ev.Emit) -> None:
        """Whoever was replaced may have lost its copy of the checkpoint; what it still says decides nothing."""
        self.site.oracle.attempted(action.sink, action.txn)
        if self.checkpoint.current() == self.checkpoint.fence:
            self.site.oracle.asked_to_vote(action.epoch, self.checkpoint.durable_offset(action.epoch))

    # The decision

    def commit_seen(self, epoch: int) -> Steps:
        """We look into the directory all the time; now `commits/N` is there."""
        opened = self._coordinator.open
        if self.error is None and opened is not None and opened.ready.epoch == epoch and opened.phase is Phase.IN_DOUBT:
            yield from self._found(epoch)

    def _found(self, epoch: int) -> Steps:
        yield from self.checkpoint.sync_commit(epoch)
        self.site.oracle.look()
        self.checkpoint.check_fence()
        yield
        yield from self.handle(ev.CommitFound(epoch))

    def query_ended(self) -> Steps:
        """Spark is gone for good: look the open round up, tell the sinks, and end."""
        opened = self._coordinator.open
        if opened is not None and self.error is None:
            epoch = opened.ready.epoch
            if opened.phase is Phase.IN_DOUBT and self.checkpoint.is_committed(epoch):
                yield from self._found(epoch)
            else:
                yield from self.handle(ev.QueryEnded())
        self.later(0.02 * self.site.chance.random(), self.kill)

    def query_failed(self, error: ProcessionError) -> Steps:
        """Spark itself failed: the same, and the error goes to whoever started us."""
        yield from self.query_ended()
        if self.error is None:
            self.failed(error)

    # The gateway

    def _acknowledge(self, record: Round) -> None:
        self._unacknowledged = record
        if not self._is_telling:
            self._is_telling = True
            self.soon(self._tell_gateway)

    def _tell_gateway(self) -> None:
        record = self._unacknowledged
        if record is None or self.error is not None:
            self._is_telling = False
            return
        self.checkpoint.check_fence()
        strangers = [name for name in record.offsets if name not in self._commits.names]
        if any(record.offsets[name] != self._met.get(name) for name in strangers):
            self._look_who_is_there(record.offsets)  # one is new, or one that had left is back
            return
        fence, ends = self.checkpoint.fence, record.offsets
        words = {
            name: Committed(fence, record.epoch, ends.get(name, 0), record.positions)
            for name in self._commits.names
            if self._told.get(name) != record.epoch
        }
        self._commits.ask(words, self._heard_commit)

    def _heard_commit(self, answers: Answers) -> None:
        self._told |= {name: word.epoch for name, (word, _) in answers.items()}
        record = self._unacknowledged
        missing = [name for name in self._commits.names if record and self._told.get(name) != record.epoch]
        if not missing:
            self._acknowledged, self._unacknowledged = record, None
            self._is_telling = False
        elif LEADER in missing or not answers.keys().isdisjoint(missing):
            self.later(0.0 if answers else RETRY_S, self._tell_gateway)
        else:
            self.later(RETRY_S, self._look_who_is_there)  # who is away may have left

    def _look_who_is_there(self, met: Mapping[str, int] | None = None) -> None:
        def answered(answer: Any) -> None:
            if isinstance(answer, ProcessionError):
                raise answer
            if answer is not None:
                self._meet(answer.gateways)
                self._met = met if met is not None else self._met
            self.later(0.0 if answer is not None else RETRY_S, self._tell_gateway)

        self.site.network.call(self, GATEWAY, FenceRaised(self.checkpoint.fence), answered)
