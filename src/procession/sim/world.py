"""Runs the world of one plan: machines, processes, a supervisor that restarts dead processes, and faults.

Invariant: faults end, and then the run must complete: every producer is done, and every record is durable and visible
once at every sink that gets it. Takes a `FaultPlan` and returns a `WorldOutcome`.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from procession.errors import FencedError
from procession.gateway.gateway_limits import Limits
from procession.sim.environment import Environment, Machine
from procession.sim.fault_plan import DRIVER, GATEWAY, LOSSES, SPARK, FaultPlan, PlannedFault, SinkPlan
from procession.sim.foreign_sink import ForeignSink
from procession.sim.gateway_addresses import listen_address
from procession.sim.lost_gateway import OPERATOR, LostGatewayOperator
from procession.sim.observed_sink import durable_output
from procession.sim.oracle import InvariantViolation, Oracle
from procession.sim.randomness import Randomness
from procession.sim.set_back import SetBackOperator
from procession.sim.simulated_driver import SimulatedDriver
from procession.sim.simulated_emitter import EMITTER, SimulatedEmitter
from procession.sim.simulated_gateway import SimulatedGateway
from procession.sim.simulated_process import SimulatedProcess
from procession.sim.simulated_producer import Producer
from procession.sim.simulated_sink import SimulatedSink
from procession.sim.simulated_spark import Spark
from procession.sim.simulated_tasks import Route, RunsInMemory

EVENTS_MAX = 60_000
ROW_BYTES = 600
"""Size of a row in a segment, if it is the only row of its entry."""
"""Maximum number of steps. A run that takes more has stalled."""
STALL_S = 120.0
END_DELAY_S = 0.2
"""Time to wait after the last record, in which no record may appear twice."""
RESTART_S = 0.02
AWAY_S = 0.3
"""Time after which a departed gateway joins again."""
RETIRE_AFTER_S = 0.05
"""A short time, so that streams are retired during short absences of their producers."""


@dataclass(frozen=True, slots=True)
class WorldOutcome:
    breach: InvariantViolation | None
    injected: tuple[PlannedFault, ...]
    records: int
    epochs: int
    events: int
    event_log: tuple[str, ...]


class World:
    """The world of a plan. With `has_emitter`, an emitter on its own machine sends to all sinks."""

    def __init__(
        self,
        plan: FaultPlan,
        chance: Randomness,
        *,
        is_recorded: bool = False,
        is_blind: bool = False,
        has_emitter: bool = False,
    ) -> None:
        self.plan = plan
        self.site = site = Environment(chance, plan.faults, is_recorded=is_recorded)
        site.inject, site.gone = self._inject, self._gone
        site.network.loss = plan.loss
        self._sinks = {f"sink-{number}": sink for number, sink in enumerate(plan.sinks)}
        self._ids = {number + 1: _ids(plan, number, chance) for number in range(len(plan.streams))}
        self._emitted: dict[str, RunsInMemory] | None = {} if has_emitter else None
        self._machines = self._make_machines()
        self._gateways = {part: self._machines[part] for part in plan.gateway_parts}
        site.disks.update({part: machine.disk for part, machine in self._gateways.items()})
        self._routes = {name: _route(number) for number, name in enumerate(self._sinks)}
        expected = {
            name: {stream: [message_id for message_id in ids if route(message_id)] for stream, ids in self._ids.items()}
            for name, route in self._routes.items()
        }
        site.oracle = Oracle(self._machines[DRIVER].disk, expected, is_blind=is_blind)
        self._drivers: list[SimulatedDriver] = []
        self._producers: dict[str, Producer] = {}
        self._operator = SetBackOperator(site, self._machines, self._kill)
        site.refused, site.confirmed = self._operator.refused, self._operator.confirmed
        self._losses = LostGatewayOperator(site, self._machines, self._kill)
        site.offered = self._losses.offered
        self._absence_s: dict[str, float] = {}
        """Downtime of a part after a fault."""

    @property
    def _emitters(self) -> tuple[str, ...]:
        return () if self._emitted is None else (EMITTER,)

    def _make_machines(self) -> dict[str, Machine]:
        parts = [*self.plan.gateway_parts, *self._emitters, DRIVER, *self._sinks, *self._producer_parts()]
        if self.plan.is_one_machine:
            return dict.fromkeys(parts, Machine("machine"))
        return {part: Machine(part) for part in parts}

    def _producer_parts(self) -> dict[str, int]:
        parts = {}
        for number, stream in enumerate(self.plan.streams):
            parts[f"producer-{number}"] = number
            if stream.has_twin:
                parts[f"producer-{number}-twin"] = number
        return parts

    # The run

    def run(self) -> WorldOutcome:
        with without_log():
            return self._run()

    def _run(self) -> WorldOutcome:
        events, breach = 0, None
        try:
            for part in (GATEWAY, *self._sinks, *self._emitters, DRIVER, *self._producer_parts()):
                self._start(part)
            for part in self.plan.gateway_parts[1:]:
                self.site.clock.after(0.2 * self.site.chance.random(), self._start, part)
            end_s = None
            while self.site.clock.advance():
                events += 1
                now = self.site.clock.now
                if end_s is None and events % 8 == 0 and self.is_complete:
                    end_s = now + END_DELAY_S
                if end_s is not None and now > end_s:
                    break
                if events > EVENTS_MAX or now > STALL_S:
                    raise InvariantViolation("I2", f"no part makes progress: {self._standing()}")
            self._audit()
        except InvariantViolation as found:
            breach = found
        except Exception as error:  # no other error may end a part
            where = traceback.extract_tb(error.__traceback__)[-1]
            breach = InvariantViolation(
                "I7", f"an exception: {error!r} in {where.name}, line {where.lineno} of {where.filename}"
            )
        return WorldOutcome(
            breach,
            tuple(self.site.injected),
            sum(map(len, self._ids.values())),
            len(self.site.oracle.decided),
            events,
            tuple(self.site.event_log or ()),
        )

    def dismantle(self) -> None:
        """Free the memory of a finished run."""
        with without_log():
            self.site.dismantle()

    @property
    def is_complete(self) -> bool:
        return self.site.oracle.is_complete and all(producer.is_done for producer in self._producers.values())

    def _audit(self) -> None:
        for sink in self._sinks:
            output = durable_output(self._machines[sink].disk, sink)
            if output != self.site.oracle.outputs[sink]:
                raise InvariantViolation(
                    "I2", f"{sink} showed {len(self.site.oracle.outputs[sink])} bytes; {len(output)} are durable"
                )

    def _standing(self) -> str:
        waiting = [part for part, producer in self._producers.items() if not producer.is_done]
        shown = {sink: len(output) for sink, output in self.site.oracle.outputs.items()}
        return f"waiting producers {waiting}, bytes shown {shown}, epochs decided {sorted(self.site.oracle.decided)}"

    # The supervisor

    def _start(self, part: str) -> None:
        machine = self._machines[part]
        if not machine.is_up or any(process.part == part for process in machine.processes):
            return  # the part starts with its machine, or has already started
        if machine.disk.is_full or machine.disk.is_read_only:
            self.site.clock.after(0.1, self._start, part)  # first an operator frees space or mounts the disk again
            return
        if part in self.site.gone_for_good:
            return
        if part in self._gateways:
            limits = Limits(credits_max=self.plan.credits_max, streams_retire_after_s=RETIRE_AFTER_S)
            segment_bytes_max = ROW_BYTES * self.plan.segment_rows_max
            checkpoint = self._machines[DRIVER].disk
            SimulatedGateway(self.site, part, machine, limits, segment_bytes_max, checkpoint).start()
        elif part == DRIVER:
            self._start_driver()
        elif part == EMITTER and self._emitted is not None:
            SimulatedEmitter(self.site, machine, self._emitted).start()
        elif part in self._sinks:
            self._start_sink(part, machine, self._sinks[part])
        else:
            number = self._producer_parts()[part]
            replays = self.plan.streams[number].replays
            gateways = [listen_address(part) for part in self._gateways]
            first = (self.plan.first_home + number + part.endswith("twin")) % len(
                gateways
            )  # twins connect to different gateways
            producer = Producer(
                self.site,
                part,
                machine,
                number + 1,
                self._ids[number + 1],
                replays,
                gateways[first:] + gateways[:first],
            )
            self._producers[part] = producer
            producer.start()

    def _start_sink(self, part: str, machine: Machine, plan: SinkPlan) -> None:
        if plan.is_ours:
            SimulatedSink(self.site, part, machine).start()
        else:
            ForeignSink(self.site, part, machine, plan).start()

    def _start_driver(self) -> None:
        driver = SimulatedDriver(self.site, self._machines[DRIVER], self._sinks, self._start_spark, self._emitted)
        self._drivers.append(driver)
        driver.start()

    def _start_spark(self, driver: SimulatedDriver) -> Spark:
        machine = self._machines[DRIVER]
        tasks = self.plan.tasks[(driver.checkpoint.fence - 1) % len(self.plan.tasks)]
        spark = Spark(self.site, machine, driver, self._gateways, self._routes, self.plan.epoch_records_max, tasks)
        spark.start()
        return spark

    def _gone(self, process: SimulatedProcess) -> None:
        if isinstance(process, Producer) and process.is_done:
            return
        if process.part in (SPARK, OPERATOR):
            return
        delay_s = self._absence_s.pop(process.part, RESTART_S)
        if isinstance(process, SimulatedGateway) and process.has_left:
            delay_s = AWAY_S  # and returns, with its old directory
        if isinstance(process, SimulatedDriver):
            self._drivers.remove(process)
            if isinstance(process.error, FencedError):
                delay_s += 0.2  # the driver was fenced; its successor may also be dying
            self.site.clock.after(delay_s, self._start, DRIVER)
        elif process.machine.is_up:
            self.site.clock.after(delay_s, self._start, process.part)

    def _kill(self, part: str) -> None:
        for process in [process for process in self._machines[part].processes if process.part == part]:
            process.kill()

    def _cut_power(self, machine: Machine, seconds: float, *, is_scattered: bool = False) -> None:
        if machine.cut_power(self.site.chance, is_scattered=is_scattered):
            self.site.clock.after(seconds, self._power_on, machine)

    def _power_on(self, machine: Machine) -> None:
        machine.is_up = True
        for part, host in self._machines.items():
            producer = self._producers.get(part)
            if host is machine and not (producer is not None and producer.is_done):
                self._start(part)

    # Faults

    def _inject(self, fault: PlannedFault, process: SimulatedProcess) -> None:
        chance = self.site.chance
        match fault.kind:
            case "kill":
                self._absence_s[process.part] = fault.seconds
                process.kill()
            case "zombie":
                driver = process.driver if isinstance(process, Spark) else process
                assert isinstance(driver, SimulatedDriver)
                driver.leaves_zombie = True
                self._absence_s[DRIVER] = fault.seconds
                driver.kill()
            case "takeover":
                if chance.random() < 0.6:
                    process.pause(fault.seconds)
                self.site.clock.after(0.01 * chance.random(), self._take_over)
            case "pause":
                process.pause(fault.seconds)
            case "power":
                self._cut_power(process.machine, fault.seconds)
            case "scatter":
                self._cut_power(process.machine, fault.seconds, is_scattered=True)
            case "read-only":
                process.machine.disk.is_read_only = True
                self.site.clock.after(fault.seconds, self._repair, process.machine)
            case "blackout":
                for machine in dict.fromkeys(self._machines.values()):
                    self._cut_power(machine, fault.seconds)
            case "full":
                process.machine.disk.is_full = True
                self.site.clock.after(fault.seconds, self._repair, process.machine)
            case "fsync":
                process.machine.disk.fsync_failures = 1
                self.site.clock.after(fault.seconds, self._repair, process.machine)
            case "stop":
                process.later(0.0, process.stop)
            case "set-back" | "lost":
                self._operator.begin(process.part, fault.kind, fault.seconds)
            case kind if kind in LOSSES:
                self._losses.begin(process.part, kind, fault.seconds)
            case _:
                self._inject_other(fault, process)

    def _inject_other(self, fault: PlannedFault, process: SimulatedProcess) -> None:
        chance = self.site.chance
        ends = sorted(process.ends, key=lambda end: end.number)
        if fault.kind == "cut":
            for end in ends if chance.random() < 0.3 else ends and [chance.choice(ends)]:
                end.cut()
        elif fault.kind == "half-close" and ends:
            end = chance.choice(ends)
            (end if chance.random() < 0.5 else end.other).half_close()
        elif fault.kind == "ghost":
            where = listen_address(GATEWAY) if isinstance(process, Producer) else chance.choice(list(self._sinks))
            self.site.network.connect(process, where, lambda end: None)
        elif fault.kind == "leave":
            if (leader := self.site.gateways.get(GATEWAY)) is not None:
                leader.post(leader.let_go, process.part)
        elif isinstance(process, SimulatedSink | ForeignSink):
            process.refusals += fault.kind == "abort"
            process.hangs += fault.kind == "hang"

    def _take_over(self) -> None:
        if self._machines[DRIVER].is_up:
            self._start_driver()

    def _repair(self, machine: Machine) -> None:
        machine.disk.is_full = machine.disk.is_read_only = False
        machine.disk.fsync_failures = 0


def _ids(plan: FaultPlan, number: int, chance: Randomness) -> list[int]:
    stream = plan.streams[number]
    if stream.is_dense:
        return list(range(stream.records))
    ids, position = [], 0
    for _ in range(stream.records):
        ids.append(position)
        position += chance.randrange(2, 20)
    return ids


def _route(number: int) -> Route:
    """Return the route of a sink: the first sink gets every record, the others get some."""
    return (lambda message_id: True) if number == 0 else (lambda message_id: message_id % 3 != 0)


@contextmanager
def without_log() -> Iterator[None]:
    """Suppress the log of simulated processes. A printed run has its own event log."""
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False
    )
    try:
        yield
    finally:
        structlog.configure(**before)
