"""Simulates Spark's part in an epoch: the JVM half of a driver, with the helper that polls the gateway.

Invariant, as in Spark: `offsets/N` → tasks → `foreachBatch` → `commits/N`, nothing synced. After a start, Spark runs
exactly the same range again if there is an `offsets/N` without `commits/N`. It may outlive its Python half, and then
still finishes its pending writes. The application (`tasks`) counts records by key. It is deterministic except for one
thing: each run of an epoch marks its records with its number, so the oracle can detect that two sinks show different
runs. Upstream: `simulated_gateway` and its log. Downstream: `simulated_driver`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from procession.commit.abandoned_gateways import abandoned_before
from procession.commit.checkpoint import Checkpoint
from procession.driver.abandonment import remaining
from procession.driver.last_commit import LastCommit
from procession.errors import ProcessionError, StorageError
from procession.gateway.global_registry import LEADER
from procession.gateway.request_parsing import offset
from procession.sim.disk import SimulatedPath
from procession.sim.durable_gateway import LOG
from procession.sim.environment import Environment, Machine
from procession.sim.fault_plan import SPARK
from procession.sim.gateway_addresses import name_of, part_of
from procession.sim.set_back import blamed
from procession.sim.simulated_clients import (
    Answers,
    SimulatedGatewayClients,
    commit_request,
    keep_places,
    last_commit,
    members_of,
    offer_request,
    report_abandoned,
)
from procession.sim.simulated_files import SimulatedFileSystem
from procession.sim.simulated_process import SimulatedProcess, Steps
from procession.sim.simulated_states import SimulatedStateStore
from procession.sim.simulated_tasks import Route, Row, distributed, manifest_of, run_task
from procession.sim.spark_files import SparkFiles
from procession.storage.driver_claim import read_claim
from procession.storage.log_ranges import LogLocation, LogOffset, epoch_ranges, numbered_from
from procession.storage.log_reader import LogReader
from procession.storage.run_store import Manifest
from procession.storage.segment import KIND_RECORD

if TYPE_CHECKING:
    from procession.sim.simulated_driver import SimulatedDriver

TRIGGER_S = 0.02
TRIGGER_MAX_S = 0.3
"""Maximum interval of polls. Spark polls at a steady rate; polling less often without input only saves steps of the
simulation."""


LogRow = tuple[int, int, int, bytes]
"""A row of the log: kind, stream id, message id, payload."""


class Spark(SimulatedProcess):
    def __init__(
        self,
        site: Environment,
        machine: Machine,
        driver: SimulatedDriver,
        gateways: Mapping[str, Machine],
        routes: Mapping[str, Route],
        epoch_records_max: int,
        tasks: int,
    ) -> None:
        super().__init__(site, SPARK, machine)
        self.driver = driver
        self._machines = {name_of(part): home for part, home in gateways.items()}
        self._logs = {
            name: LogReader(SimulatedPath(part_of(name)) / LOG, files=SimulatedFileSystem(self, home.disk))
            for name, home in self._machines.items()
        }
        claimed, files = driver.checkpoint, SimulatedFileSystem(self, machine.disk)
        self._checkpoint = Checkpoint(claimed.root, claimed.id, claimed.fence, files)
        self._clients = SimulatedGatewayClients(self, self._checkpoint.check_fence)
        self._places = self._checkpoint.places
        self._abandoned = abandoned_before(self._places.abandoned, claimed.fence)
        self._spark_files = SparkFiles(claimed.directory, files)
        self._keeping = SimulatedStateStore(self, machine.disk, self._checkpoint, site.oracle)
        self._tasks = tasks
        self._routes = routes
        self._epoch_records_max = epoch_records_max
        self._number = 0
        self._starts: dict[str, LogOffset] = {}
        self._ends = {LEADER: LogOffset()}
        self._last = LastCommit(claimed.fence)
        self._is_waiting = False
        self._wait_s = TRIGGER_S
        self._has_ended = False
        self.is_stopping = False

    def start(self) -> None:
        self.post(self._begin)

    def failed(self, error: ProcessionError) -> None:
        """End the query with this error, which is passed to the driver."""
        self.site.log_event(self.part, "! %s", error.sentence)
        self._has_ended = True
        self.kill()
        self.driver.later(0.01 * self.site.chance.random(), self.driver.query_failed, error)

    def end(self) -> None:
        """Stop the query in order: Spark reports its end, and no commit follows."""
        self._has_ended = True
        self.kill()
        self.driver.later(0.01 * self.site.chance.random(), self.driver.query_ended)

    def died(self) -> None:
        if not self._has_ended:
            # Its last writes are unknown: the round stays in doubt, and the next driver settles it.
            self.driver.later(0.02 * self.site.chance.random(), self.driver.kill)

    def _begin(self) -> Steps:
        log, spark_files = self._checkpoint.log, self._spark_files
        offered, committed = log.offered, log.committed
        if offered >= 0:
            self._ends = spark_files.offset(offered)
        self._number = offered
        yield
        if offered > committed:
            self._starts = spark_files.offset(offered - 1) if offered > 0 else {LEADER: LogOffset()}
            yield from self._run_tasks()
        else:
            yield from self._trigger()

    # The helper: `latestOffset`

    def _trigger(self) -> Steps:
        if self.is_stopping:
            return
        self._checkpoint.check_fence()
        if self._checkpoint.log.decided < self._checkpoint.log.committed:
            self.later(TRIGGER_S, self._trigger)  # the driver has not written it to disk yet
            return
        yield
        self.site.oracle.check()
        self._last = last = last_commit(self._checkpoint, self._checkpoint.log.committed)
        names = self._clients.names
        records_max = max(1, self._epoch_records_max // len(names))
        requests = {name: offer_request(last, name, self._ends.get(name, LogOffset()), records_max) for name in names}
        self._clients.ask(requests, self._offered)

    def _offered(self, answers: Answers) -> Steps | None:
        ends = dict(self._ends)
        for name, (_, reply) in sorted(answers.items()):
            if reply["is_behind"]:
                self._send_last_commit(name)
            elif reply["end"] > ends.get(name, LogOffset()).sequence:
                ends[name] = offset(reply, "offset") or LogOffset(reply["end"])
        if LEADER in answers:
            listed, abandoned = members_of(answers[LEADER][1]), self._abandoned
            report_abandoned(self._clients, self._last, listed, abandoned, lambda: None)
            gateways = remaining(listed, abandoned)
            self._clients.meet(gateways)
            keep_places(self.site, self._places, gateways)
        if not answers or (ends == self._ends and self._number >= 0) or self.is_stopping:
            self.later(self._wait_s, self._trigger)
            self._wait_s = min(2 * self._wait_s, TRIGGER_MAX_S)
            return None
        self._wait_s = TRIGGER_S
        return self._construct(ends)

    def _send_last_commit(self, name: str) -> None:
        """Send the last commit to a restarted gateway, which must have it, as `driver/last_commit` does."""
        if (record := self._last.record) is not None:
            self._clients.send(name, commit_request(self._checkpoint.fence, record, name), lambda _: None)

    def _construct(self, ends: dict[str, LogOffset]) -> Steps:
        self._number += 1
        self._starts, self._ends = self._ends, ends
        yield from self._spark_files.write_offset(self._number, ends)
        self.site.offered([name for name, end in ends.items() if end != self._starts.get(name)])
        yield from self._run_tasks()

    # Tasks, `foreachBatch`, `commits/N`

    def _run_tasks(self) -> Steps:
        starts = {name: start.sequence for name, start in self._starts.items()}
        ends = {name: end.sequence for name, end in self._ends.items()}
        ranges = [(name, starts.get(name, 0), end) for name, end in sorted(ends.items())]
        if not all(self._machines[name].is_up for name, start, end in ranges if start < end or name == LEADER):
            self.later(TRIGGER_S, self._run_tasks)  # Spark tries a failed task again
            return
        self.site.runs += 1
        attempt = self.site.runs
        first, last = numbered_from(starts), numbered_from(ends)
        logs = [self._read(name, start, self._ends[name]) if start < end else [] for name, start, end in ranges]
        rows: list[Row] = []
        positions: dict[int, int] = {}
        number = first
        for (name, start, end), log in zip(ranges, logs, strict=True):
            self._observe(name, start, end, log)
            for sequence, (kind, stream, message_id, payload) in enumerate(log, start):
                if kind == KIND_RECORD:
                    self.site.oracle.read(name, sequence, (stream, message_id))
                    positions[stream] = message_id
                    rows.append((number, message_id, payload))
                number += 1
        yield
        epoch, places = self._number, {name: LogLocation(part_of(name)) for name in ends}
        pieces = tuple(epoch_ranges(starts, ends, places))
        manifests = [Manifest(epoch, 0, 0, first, last, len(rows), positions=positions, pieces=pieces)]
        for task, task_rows in enumerate(distributed(rows, self._tasks)):
            lines, states = run_task(self._keeping, task, self._tasks, epoch, attempt, task_rows)
            manifests.append(manifest_of(task, epoch, attempt, lines, states, self._routes, self.driver.runs))
            yield
        self._is_waiting = True
        if self.driver.is_alive:
            self.driver.soon(self.driver.run_epoch, epoch, manifests)
        else:
            self.kill()

    def _read(self, name: str, start: int, end: LogOffset) -> list[LogRow]:
        part = part_of(name)
        try:
            return [row for batch in self._logs[name].read(start, end.sequence, end) for row in _rows(batch)]
        except StorageError as error:
            raise blamed(error, is_injected_damage=part in self.site.set_back | self.site.gone_for_good) from error

    def _observe(self, name: str, start: int, end: int, log: list[LogRow]) -> None:
        part = part_of(name)
        folder = self._machines[name].disk.directory(f"{part}/{LOG}")
        # A file that is mapped outlives the directory from which it was taken.
        if start < end and folder is not None and part not in self.site.was_set_back:
            self.site.oracle.rows_read(name, folder, start, end, log)

    def orphaned(self) -> None:
        """Handle the death of the driver's Python process: every call that waits for it fails."""
        if self._is_waiting:
            self.kill()

    def finished(self, epoch: int) -> None:
        """Handle the return of `foreachBatch`, after which the driver can no longer stop the commit."""
        self._is_waiting = False
        self.later(0.01 * self.site.chance.random(), self._commit, epoch)

    def _commit(self, epoch: int) -> Steps:
        yield from self._spark_files.write_commit(epoch)
        record = self._checkpoint.rounds.read(epoch)
        if record is not None and read_claim(self._checkpoint.root, self._checkpoint.files) == self._checkpoint.fence:
            file = self.machine.disk.file(str(self._checkpoint.rounds.directory / f"{epoch:020d}"))
            assert file is not None
            self.site.oracle.commit_written(epoch, file.data)
        self.later(TRIGGER_S * self.site.chance.random(), self._trigger)


def _rows(batch: pa.RecordBatch) -> Iterable[LogRow]:
    columns = (batch.column(name).to_pylist() for name in ("kind", "stream_id", "message_id", "payload"))
    return zip(*columns, strict=True)
