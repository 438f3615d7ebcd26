"""The Python half of a driver: the shipped coordinator, checkpoint and round files, with a model of `commit/performer`
and `driver/driver`.

Invariant, as in the commit performer, is the order of syncs: `offsets/N` before anything is sent, `rounds/N` before the
epoch is finished, `commits/N` before phase 2, and the fence is read again between that and phase 2. Each of these is a
`yield`, because another driver, or Spark, may run in between. `simulated_spark` delivers the epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from procession.commit import round_events as ev
from procession.commit.checkpoint import Checkpoint
from procession.commit.coordinator import Coordinator
from procession.commit.recovery import recover
from procession.commit.round_record import RoundRecord, acknowledged_epoch, next_positions
from procession.commit.round_state import RoundPhase
from procession.driver.known_gateways import epochs_kept
from procession.errors import (
    FencedError,
    LocalProtocolError,
    ProcessionError,
    RemoteProtocolError,
    RoundError,
    StorageError,
)
from procession.gateway.gateway_events import EpochCommitted, FenceRaised
from procession.gateway.global_registry import LEADER
from procession.sim.control_requests import ConfirmRequest
from procession.sim.environment import Environment, Machine
from procession.sim.fault_plan import DRIVER, GATEWAY, SinkPlan
from procession.sim.network import Endpoint
from procession.sim.oracle import CHECKPOINT, STATES, InvariantViolation
from procession.sim.simulated_clients import Answers, SimulatedGatewayClients, keep_places, known, last_record
from procession.sim.simulated_files import SimulatedFileSystem, is_injected_damage
from procession.sim.simulated_process import SimulatedProcess, Steps
from procession.sim.simulated_sink_link import SimulatedSinkLink
from procession.sim.simulated_states import names_in
from procession.sim.simulated_tasks import SimulatedEpoch
from procession.storage.driver_claim import read_claim
from procession.storage.log_ranges import LogOffset
from procession.storage.state_store import StateStore

if TYPE_CHECKING:
    from procession.sim.simulated_spark import Spark

PIPELINE, CHECKPOINT_ID, FINGERPRINT = "p", "abc123", "f"
RETRY_S = 0.1


def _is_passing(error: ProcessionError) -> bool:
    """Whether the supervisor may simply start a driver again, as `supervisor/supervisor` would."""
    return not error.next_step and not isinstance(error, LocalProtocolError)


class SimulatedDriver(SimulatedProcess):
    def __init__(
        self,
        site: Environment,
        machine: Machine,
        sinks: Mapping[str, SinkPlan],
        start_spark: Callable[[SimulatedDriver], Spark],
    ) -> None:
        super().__init__(site, DRIVER, machine)
        self._files = SimulatedFileSystem(self, machine.disk)
        self.checkpoint: Checkpoint
        self._states = StateStore(Path(STATES), self._files)
        self.spark: Spark | None = None
        self.error: ProcessionError | None = None
        self._has_claimed = False
        self.leaves_zombie = False
        """Whether the JVM survives when this half dies."""
        self._start_spark = start_spark
        self._links = {
            name: SimulatedSinkLink(self, name, is_authoritative=plan.is_ours) for name, plan in sinks.items()
        }
        self._coordinator: Coordinator
        self._epoch: SimulatedEpoch | None = None
        self._is_idle = True
        self._next_epoch: SimulatedEpoch | None = None
        self._unacknowledged: RoundRecord | None = None
        self._acknowledged: RoundRecord | None = None
        self._is_acknowledging = False
        self._fences, self._commits = SimulatedGatewayClients(self), SimulatedGatewayClients(self)
        self._fenced: set[str] = set()
        self._notified: dict[str, int] = {}
        """The last epoch that each gateway has acknowledged."""
        self._met: Mapping[str, int] = {}
        """How far each gateway was read when the leader last sent its list of gateways."""

    def start(self) -> None:
        self.post(self._begin)

    def died(self) -> None:
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
        """Stops the driver; the supervisor decides whether it is restarted. A driver that still holds the fence may
        stop only for a known reason."""
        try:
            if self._has_claimed:
                self.checkpoint.check_fence()
        except FencedError as replaced:
            error = replaced  # the cause is that another driver has taken over
        self.error = error
        self.site.tell(self.part, "! %s", error.sentence)
        is_ours_to_bear = isinstance(error, RoundError | FencedError) or _is_passing(error)
        if not is_injected_damage(error) and not is_ours_to_bear:
            raise InvariantViolation("I7", f"the pipeline stops with {error.sentence!r}, and nothing was done to it")
        self.later(0.0, self.kill)

    # Beginning

    def _begin(self) -> Steps:
        checkpoint = self.checkpoint = yield from self.blocking(self._claim)
        self._has_claimed = True
        self._places = checkpoint.places
        self.site.oracle.look()
        self.site.tell(
            self.part,
            "= driver %s, offered %s, committed %s",
            checkpoint.fence,
            checkpoint.log.offered,
            checkpoint.log.committed,
        )
        found = recover(checkpoint.directory, self._files)
        yield from self.blocking(self._states.make)
        last = found.last
        yield from self.blocking(self._states.sweep, () if last is None else last.states.values(), checkpoint.fence)
        self._coordinator = Coordinator(
            pipeline=PIPELINE,
            checkpoint=CHECKPOINT_ID,
            fence=checkpoint.fence,
            fingerprint=FINGERPRINT,
            sinks=list(self._links),
            rounds=found.rounds,
            committed=found.committed,
            reserved=found.reserved,
        )
        for link in self._links.values():
            link.connect()
        last = self._coordinator.rounds.get(self._coordinator.committed)
        if last is not None:
            self._acknowledge(last)
        self._raise_fence()

    def _claim(self) -> Checkpoint:
        root, files = Path(CHECKPOINT), self._files
        return Checkpoint.claim(root, name=PIPELINE, fingerprint=FINGERPRINT, files=files, new_id=lambda: CHECKPOINT_ID)

    def _raise_fence(self) -> None:
        """No earlier driver's acknowledgements count from here on; then Spark may start."""
        ends, fence, last = self._offered_ends(), self.checkpoint.fence, last_record(self.site, self.checkpoint)
        requests = {
            name: ConfirmRequest(fence, ends.get(name, LogOffset()), known(self.site, self.checkpoint, last, name))
            for name in self._fences.names
        }
        self._fences.ask(requests, self._raised)

    def _offered_ends(self) -> dict[str, LogOffset]:
        return self.checkpoint.log.offsets

    def _raised(self, answers: Answers) -> None:
        ends = self._offered_ends()
        for name, (_, reply) in answers.items():
            if reply.end.sequence < (end := ends.get(name, LogOffset()).sequence):
                raise StorageError(
                    f"the log of {name} ends at {reply.end.sequence}, but {end} were offered", next_step="restore it"
                )
        known = len(self._fences.names)
        if LEADER in answers:
            self._meet(answers[LEADER][1].gateways)
            keep_places(self.site, self._places, answers[LEADER][1].gateways)
        self._fenced |= answers.keys()
        if all(name in self._fenced for name in self._fences.names):
            self.spark = self._start_spark(self)
        else:
            self.later(0.0 if len(self._fences.names) > known else RETRY_S, self._raise_fence)

    def _meet(self, gateways: Sequence[str]) -> None:
        self._fences.meet(gateways)
        self._commits.meet(gateways)

    # Links

    def received(self, end: Endpoint, data: bytes) -> Steps:
        link: SimulatedSinkLink = end.tag
        try:
            for event in link.received(data):
                yield from self.handle(event)
        except RemoteProtocolError as error:
            if self._is_in_charge() and "the sink failed" not in error.sentence:
                raise InvariantViolation(
                    "I7", f"driver and {link.sink} do not understand each other: {error.sentence}"
                ) from None
            link.close()

    def lost(self, end: Endpoint, is_clean: bool) -> Steps | None:
        return self.link_lost(end.tag, end) if end.tag is not None else None

    def link_lost(self, link: SimulatedSinkLink, end: Endpoint) -> Steps:
        for event in link.lost(end):
            yield from self.handle(event)

    # The round

    def run_epoch(self, epoch: SimulatedEpoch) -> Steps:
        """`foreachBatch`: Spark waits until `finished` comes back."""
        if self.error is not None:
            return
        if not self._is_idle:
            self._next_epoch = epoch  # nothing of an epoch goes out before phase 2 of the one before
            return
        self.checkpoint.check_fence()
        yield
        yield from self.blocking(self.checkpoint.log.sync_offsets, epoch.number)
        self._is_idle = False
        self._epoch = epoch
        last = self._coordinator.rounds.get(epoch.number - 1)
        positions = next_positions(last, self._acknowledged, [epoch.positions])
        lengths = {name: sum(map(len, epoch.payloads[name])) for name in self._links}
        yield from self.handle(
            ev.EpochReady(
                epoch.number,
                lengths,
                epoch.first,
                epoch.last,
                positions,
                ends=epoch.ends,
                states=epoch.states,
                acknowledged=acknowledged_epoch(last, self._acknowledged),
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
            case ev.EmitEpoch():
                is_here = self._epoch is not None and self._epoch.number == action.epoch
                payloads = self._epoch.payloads[action.sink] if self._epoch is not None and is_here else ()
                self.soon(self._links[action.sink].emit, action, payloads)
            case ev.ReserveAttempts(number):
                return self.blocking(self.checkpoint.reserve, number)
            case ev.SendPhase2():
                return self._phase2(action.sink, action.txn, action.commit)
            case ev.ReconnectSink(sink, delay_s):
                self._links[sink].close(delay_s)
            case ev.WriteRecord(record):
                return self._write_record(record)
            case ev.FinishEpoch(epoch):
                if self.spark is not None:
                    self.spark.soon(self.spark.finished, epoch)
            case ev.Acknowledge(record):
                self._states.drop(sorted(names_in(self._coordinator.rounds.get(record.epoch - 1)) - names_in(record)))
                self._acknowledge(record)
                self._epoch = None
                self._is_idle = True
                if self._next_epoch is not None:
                    following, self._next_epoch = self._next_epoch, None
                    self.soon(self.run_epoch, following)
            case ev.DropRuns() | ev.Warn():
                pass
            case ev.StopPipeline(error):
                raise error
        return None

    def _phase2(self, sink: str, txn: str, commit: bool) -> Steps:
        if commit:
            self.site.oracle.about_to_commit(sink, txn, f"driver {self.checkpoint.fence}")
        self._links[sink].phase2(txn, commit)
        yield

    def _write_record(self, record: RoundRecord) -> Steps:
        self.checkpoint.check_fence()
        yield
        yield from self.blocking(self.checkpoint.rounds.write, record)
        yield from self.handle(ev.RecordWritten(record.epoch))

    def asks_for_vote(self, action: ev.EmitEpoch) -> None:
        """A replaced driver may have lost its copy of the checkpoint. Its later messages decide nothing."""
        self.site.oracle.attempted(action.sink, action.txn)
        if self._is_in_charge():
            path = self.checkpoint.directory / "offsets" / str(action.epoch)
            self.site.oracle.asked_to_vote(action.epoch, self.machine.disk.durable_file(str(path)))

    def _is_in_charge(self) -> bool:
        return read_claim(self.checkpoint.root, self._files) == self.checkpoint.fence

    # The decision

    def commit_seen(self, epoch: int) -> Steps:
        """We look into the directory all the time; now `commits/N` is there."""
        opened = self._coordinator.open
        if (
            self.error is None
            and opened is not None
            and opened.ready.epoch == epoch
            and opened.phase is RoundPhase.IN_DOUBT
        ):
            yield from self._found(epoch)

    def _found(self, epoch: int) -> Steps:
        yield from self.blocking(self.checkpoint.log.sync_commit, epoch)
        self.site.oracle.look()
        self.checkpoint.check_fence()
        yield
        yield from self.handle(ev.CommitFound(epoch))

    def query_ended(self) -> Steps:
        """Spark is gone for good: look the open round up, tell the sinks, and end."""
        opened = self._coordinator.open
        if opened is not None and self.error is None:
            epoch = opened.ready.epoch
            if opened.phase is RoundPhase.IN_DOUBT and self.checkpoint.log.is_committed(epoch):
                yield from self._found(epoch)
            else:
                yield from self.handle(ev.QueryEnded())
        self.later(0.02 * self.site.chance.random(), self.kill)

    def query_failed(self, error: ProcessionError) -> Steps:
        """Spark itself failed: as `query_ended`, and the driver ends with this error."""
        yield from self.query_ended()
        if self.error is None:
            self.failed(error)

    # The gateway

    def _acknowledge(self, record: RoundRecord) -> None:
        self._unacknowledged = record
        if not self._is_acknowledging:
            self._is_acknowledging = True
            self.soon(self._acknowledge_gateways)

    def _acknowledge_gateways(self) -> None:
        record = self._unacknowledged
        if record is None or self.error is not None:
            self._is_acknowledging = False
            return
        self.checkpoint.check_fence()
        strangers = [name for name in record.offsets if name not in self._commits.names]
        if any(record.offsets[name] != self._met.get(name) for name in strangers):
            self._look_who_is_there(record.offsets)  # one is new, or one that had left is back
            return
        fence, ends = self.checkpoint.fence, record.offsets
        requests = {
            name: EpochCommitted(fence, record.epoch, ends.get(name, 0), record.positions, epochs_kept(record, name))
            for name in self._commits.names
            if self._notified.get(name) != record.epoch
        }
        self._commits.ask(requests, self._received_commit)

    def _received_commit(self, answers: Answers) -> None:
        self._notified |= {name: word.epoch for name, (word, _) in answers.items()}
        record = self._unacknowledged
        missing = [name for name in self._commits.names if record and self._notified.get(name) != record.epoch]
        if not missing:
            self._acknowledged, self._unacknowledged = record, None
            self._is_acknowledging = False
        elif LEADER in missing or not answers.keys().isdisjoint(missing):
            self.later(0.0 if answers else RETRY_S, self._acknowledge_gateways)
        else:
            self.later(RETRY_S, self._look_who_is_there)  # a missing gateway may have left

    def _look_who_is_there(self, met: Mapping[str, int] | None = None) -> None:
        def answered(answer: Any) -> None:
            if isinstance(answer, ProcessionError):
                raise answer
            if answer is not None:
                self._meet(answer.gateways)
                self._met = met if met is not None else self._met
            self.later(0.0 if answer is not None else RETRY_S, self._acknowledge_gateways)

        self.site.network.call(self, GATEWAY, FenceRaised(self.checkpoint.fence), answered)
