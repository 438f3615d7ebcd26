"""Simulates the Python half of a driver: the shipped commit performer with its sink links, coordinator and
checkpoint, and a model of `driver/driver` with its clients of the gateways.

Invariant, as in the driver: a performer gets the epochs of one Spark, and an error of either ends both. The oracle sees
every event and every action of the coordinator. `simulated_spark` delivers the epochs; the sinks are reached over the
network.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from procession.address import Address
from procession.commit import round_events as ev
from procession.commit.abandoned_gateways import abandoned_before
from procession.commit.checkpoint import Checkpoint
from procession.commit.coordinator import Coordinator
from procession.commit.emitter_channel import ListeningEmitter
from procession.commit.emitter_client import EmitterClient, emitter_links
from procession.commit.emitter_frames import DriverGreeting, RunPlace
from procession.commit.epoch_link import LinkMaker
from procession.commit.performer import CommitPerformer, DriverCallbacks
from procession.commit.recovery import recover
from procession.commit.round_record import RoundRecord
from procession.commit.sink_link import SinkOptions
from procession.driver.abandonment import remaining, unreported
from procession.driver.last_commit import LastCommit
from procession.errors import FencedError, LocalProtocolError, ProcessionError, RoundError
from procession.gateway.global_registry import LEADER
from procession.gateway.members import Member
from procession.sim.disk import SimulatedPath
from procession.sim.environment import Environment, Machine
from procession.sim.fault_plan import DRIVER, SinkPlan
from procession.sim.oracle import CHECKPOINT, STATES, InvariantViolation
from procession.sim.simulated_clients import (
    Answers,
    SimulatedGatewayClients,
    commit_request,
    fence_request,
    keep_places,
    last_commit,
    list_request,
    members_of,
    report_abandoned,
)
from procession.sim.simulated_emitter import COOKIE, EMITTER
from procession.sim.simulated_files import SimulatedFileSystem, is_injected_damage
from procession.sim.simulated_loop import AsyncioProcess
from procession.sim.simulated_process import Steps
from procession.sim.simulated_tasks import KEYED, RunsInMemory
from procession.storage.driver_claim import CURRENT, read_claim
from procession.storage.log_ranges import LogOffset
from procession.storage.run_store import Manifest
from procession.storage.state_store import StateStore

if TYPE_CHECKING:
    from procession.sim.simulated_spark import Spark

PIPELINE, CHECKPOINT_ID, FINGERPRINT = "p", "abc123", "f"
RETRY_S = 0.1
ANSWER_S = 0.4
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.002, 0.1
"""As short as a simulated epoch, so that a sink may return while its round is in doubt."""


def _is_passing(error: ProcessionError) -> bool:
    """Return whether a restart of the driver may help, as `supervisor/supervisor` decides it."""
    return not error.next_step and not isinstance(error, LocalProtocolError)


class ObservedCoordinator(Coordinator):
    """The shipped coordinator. The oracle checks each decision when it is made."""

    driver: SimulatedDriver

    def handle(self, event: ev.Event) -> list[ev.Action]:
        driver = self.driver
        driver.site.log_event(driver.part, "< %s", event)
        actions = super().handle(event)
        for action in actions:
            driver.site.log_event(driver.part, "> %s", action)
            if isinstance(action, ev.EmitEpoch):
                driver.asks_for_vote(action)
            elif isinstance(action, ev.SendPhase2) and action.commit:
                driver.site.oracle.about_to_commit(action.sink, action.txn, f"driver {self.fence}")
        return actions


class ObservedClaims(SimulatedFileSystem):
    """The simulated disk. When a successor replaces a driver, the oracle records the driver's decisions, because no
    copy on disk has them until the successor has finished its copy."""

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        if new.name == CURRENT:
            self.process.site.oracle.check()


class SimulatedDriver(AsyncioProcess):
    def __init__(
        self,
        site: Environment,
        machine: Machine,
        sinks: Mapping[str, SinkPlan],
        start_spark: Callable[[SimulatedDriver], Spark],
        emitted: dict[str, RunsInMemory] | None = None,
    ) -> None:
        """`emitted` gets the runs of this driver, if an emitter sends them."""
        super().__init__(site, DRIVER, machine)
        self._files = ObservedClaims(self, machine.disk)
        self.checkpoint: Checkpoint
        self._states = StateStore(SimulatedPath(STATES), self._files)
        self.runs = RunsInMemory()
        self._emitted = emitted
        self.spark: Spark | None = None
        self.error: ProcessionError | None = None
        self.has_claimed = False
        self.leaves_zombie = False
        """Whether the JVM survives when this half dies."""
        self._start_spark = start_spark
        self._sinks = [
            SinkOptions(
                name=name,
                host=name,
                port=0,
                program="simulated",
                instance=name,
                is_authoritative=plan.is_ours,
                bucket=None if emitted is None else 0,  # an emitter sends to connections with a bucket
                answer_timeout_s=ANSWER_S,
                backoff_min_s=BACKOFF_MIN_S,
                backoff_max_s=BACKOFF_MAX_S,
            )
            for name, plan in sinks.items()
        ]
        self._performer: CommitPerformer
        self._fences, self._commits = (SimulatedGatewayClients(self, self._check_fence) for _ in range(2))
        self._fenced: set[str] = set()
        self._notified: dict[str, int] = {}
        """The last epoch that each gateway has acknowledged."""
        self._met: Mapping[str, int] = {}
        """The offset of each gateway when the leader last sent its list of gateways."""

    def start(self) -> None:
        self.post(self._begin)

    def died(self) -> None:
        if self.spark is not None:
            if self.leaves_zombie:
                self.spark.soon(self.spark.orphaned)
            else:
                self.spark.kill()  # the supervisor reaps the whole group

    def stop(self) -> None:
        """Handle SIGTERM: stop Spark immediately, then read its commit log."""
        if self.spark is None:
            self.kill()
        else:
            self.spark.is_stopping = True
            self.spark.later(0.05 * self.site.chance.random(), self.spark.end)

    def failed(self, error: ProcessionError) -> None:
        """Stop the driver; the supervisor decides whether it is restarted. A driver that still holds the fence may
        stop only for a known reason."""
        if self.error is not None:
            return
        try:
            if self.has_claimed:
                self.checkpoint.check_fence()
        except FencedError as replaced:
            error = replaced  # the cause is that another driver has taken over
        self.error = error
        self.site.log_event(self.part, "! %s", error.sentence)
        is_ours_to_bear = isinstance(error, RoundError | FencedError) or _is_passing(error)
        if not is_injected_damage(error) and not is_ours_to_bear:
            raise InvariantViolation("I7", f"the pipeline stops with {error.sentence!r}, and nothing was done to it")
        self.later(0.0, self.kill)

    def refused(self, reason: str) -> None:
        if self.is_alive and self._is_in_charge():
            raise InvariantViolation("I7", f"a sink does not understand its driver: {reason}")

    # Start

    def _begin(self) -> Steps:
        checkpoint = self.checkpoint = yield from self.blocking(self._claim)
        self.has_claimed = True
        self._places = checkpoint.places
        self._abandoned = abandoned_before(self._places.abandoned, checkpoint.fence)
        self.site.oracle.check()
        self.site.log_event(
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
        coordinator = ObservedCoordinator(
            pipeline=PIPELINE,
            checkpoint=CHECKPOINT_ID,
            fence=checkpoint.fence,
            fingerprint=FINGERPRINT,
            sinks=[options.name for options in self._sinks],
            rounds=found.rounds,
            committed=found.committed,
            reserved=found.reserved,
        )
        coordinator.driver = self
        callbacks = DriverCallbacks(
            acknowledge=self._acknowledge, observe=lambda committed: None, say=self._say, fail=self.failed
        )
        self._performer = CommitPerformer(
            coordinator,
            checkpoint,
            self.runs,
            self._sinks,
            callbacks,
            self._states,
            KEYED,
            uniform=lambda low, high: low + (high - low) * self.site.chance.random(),
            make_link=self._emitter_links(),
        )
        self.loop.call_soon(self._performer.start)
        self._raise_fence()

    def _emitter_links(self) -> LinkMaker | None:
        if self._emitted is None:
            return None
        fence = self.checkpoint.fence
        self._emitted[str(fence)] = self.runs
        channel = ListeningEmitter(Address(EMITTER, 0), DriverGreeting(CHECKPOINT_ID, fence, COOKIE))
        return emitter_links([EmitterClient(channel, RunPlace(str(fence)))], self.runs)

    def _claim(self) -> Checkpoint:
        root, files = SimulatedPath(CHECKPOINT), self._files
        return Checkpoint.claim(root, name=PIPELINE, fingerprint=FINGERPRINT, files=files, new_id=lambda: CHECKPOINT_ID)

    def _say(self, sentence: str) -> None:
        self.site.log_event(self.part, "! %s", sentence)

    def _check_fence(self) -> None:
        self.checkpoint.check_fence()

    def _raise_fence(self) -> None:
        """Raise the fence at the gateways, so that acknowledgements of earlier drivers are ignored; then start Spark.
        The leader is first, because it has the list of the others."""
        self._fences.send(LEADER, list_request(self.checkpoint.fence, self._places.all()), self._listed)

    def _listed(self, answer: Any) -> None:
        if isinstance(answer, ProcessionError) and not isinstance(answer, RoundError):
            raise answer
        if answer is None or isinstance(answer, RoundError):
            self.later(RETRY_S, self._raise_fence)
            return
        listed = members_of(answer)
        self._meet(listed)
        keep_places(self.site, self._places, remaining(listed, self._abandoned))
        checkpoint, offsets = self.checkpoint, self.checkpoint.log.offsets
        last = last_commit(checkpoint, checkpoint.log.committed)
        self._fences.ask(
            {name: fence_request(last, name, offsets.get(name, LogOffset())) for name in self._fences.names},
            partial(self._raised, last, listed),
        )

    def _raised(self, last: LastCommit, listed: Sequence[Member], answers: Answers) -> None:
        self._fenced |= answers.keys()
        if LEADER in answers and unreported(listed, self._abandoned):
            self.later(RETRY_S, self._raise_fence)  # until the leader no longer lists them
            report_abandoned(self._fences, last, listed, self._abandoned, lambda: None)
        elif all(name in self._fenced for name in self._fences.names):
            self.spark = self._start_spark(self)
        else:
            self.later(RETRY_S, self._raise_fence)

    def _meet(self, listed: Sequence[Member]) -> None:
        gateways = remaining(listed, self._abandoned)
        self._fences.meet(gateways)
        self._commits.meet(gateways)

    # Calls from Spark

    def run_epoch(self, epoch: int, manifests: Sequence[Manifest]) -> Steps | None:
        """Run `foreachBatch`. Spark waits until `finished` is called."""
        return self._do(self._run_epoch(epoch, manifests))

    async def _run_epoch(self, epoch: int, manifests: Sequence[Manifest]) -> None:
        await self._performer.run_epoch(epoch, manifests)
        if self.spark is not None:
            self.spark.soon(self.spark.finished, epoch)

    def query_ended(self) -> Steps | None:
        """Handle Spark's end: the performer settles the open round and notifies the sinks, then the driver ends."""
        return self._do(self._end())

    def query_failed(self, error: ProcessionError) -> Steps | None:
        """Handle a failure of Spark: like `query_ended`, but the driver ends with this error."""
        return self._do(self._end(error))

    async def _end(self, error: ProcessionError | None = None) -> None:
        await self._performer.query_ended()
        if error is not None:
            self.failed(error)
        elif self.error is None:
            if self.site.chance.random() < 0.5:
                self.later(0.02 * self.site.chance.random(), self.kill)  # no process waits until it is done
            await self._performer.close()
            self.later(0.0, self.kill)

    def _do(self, work: Coroutine[Any, Any, None]) -> Steps | None:
        self.spawn(self._reported(work))
        return self.loop.turn()

    async def _reported(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except ProcessionError as error:
            self.failed(error)

    # Reports to the oracle

    def asks_for_vote(self, action: ev.EmitEpoch) -> None:
        """Report a request for a vote. A replaced driver, which may have lost its copy of the checkpoint, decides
        nothing any more."""
        if self._is_in_charge():
            path = self.checkpoint.directory / "offsets" / str(action.epoch)
            self.site.oracle.asked_to_vote(action.epoch, self.machine.disk.durable_file(str(path)))

    def _is_in_charge(self) -> bool:
        return read_claim(self.checkpoint.root, self._files) == self.checkpoint.fence

    # The gateways

    async def _acknowledge(self, record: RoundRecord) -> None:
        """Acknowledge a round, as `driver/offsets.GatewayNotifier` does."""
        strangers = [name for name in record.offsets if name not in self._commits.names]
        if any(record.offsets[name] != self._met.get(name) for name in strangers):
            await self._list_gateways(record)  # a gateway is new, or has returned
            self._met = record.offsets
        requests = {
            name: commit_request(self.checkpoint.fence, record, name)
            for name in self._commits.names
            if self._notified.get(name) != record.epoch
        }
        answers = await self._asked(lambda done: self._commits.ask(requests, done))
        self._notified |= {name: request["epoch"] for name, (request, _) in answers.items()}
        missing = [name for name in self._commits.names if self._notified.get(name) != record.epoch]
        if missing:
            if LEADER not in missing:
                await self._list_gateways(record)  # a missing gateway may have left
            raise RoundError(f"{', '.join(missing)} do not answer")

    async def _list_gateways(self, record: RoundRecord) -> None:
        request = list_request(self.checkpoint.fence, record.offsets)
        answer = await self._asked(lambda done: self._commits.send(LEADER, request, done))
        if isinstance(answer, ProcessionError):
            raise answer
        if answer is None:
            raise RoundError("the leader does not answer")
        self._meet(members_of(answer))

    def _asked(self, ask: Callable[[Callable[[Any], Steps | None]], None]) -> Awaitable[Any]:
        """Send a request and return the reply."""
        found = self.loop.create_future()

        def done(answer: Any) -> Steps | None:
            if not found.done():
                found.set_result(answer)
            return self.loop.turn()

        ask(done)
        return found
