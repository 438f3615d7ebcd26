"""Spark, as far as an epoch goes: the JVM half of a driver, with the helper that asks the gateway.

The one rule, as in Spark: `offsets/N` → tasks → `foreachBatch` → `commits/N`, nothing synced; after a start
the range of an `offsets/N` without `commits/N` is run again exactly. It outlives its Python half, and then still writes
what it was about to write. The application (`tasks`) counts records by key, and is not deterministic in one thing: each
run of an epoch marks its records with a number of its own, so that a sink which shows one run and another which shows a
second one are told apart. Before it: `simulated_gateway` and its log. After it: `simulated_driver`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from procession.errors import ProcessionError, StorageError
from procession.gateway.global_registry import LEADER
from procession.sim.control_requests import Offer
from procession.sim.disk_calls import Files
from procession.sim.environment import Machine, Site
from procession.sim.fault_plan import SPARK
from procession.sim.set_back import blamed
from procession.sim.simulated_checkpoint import Checkpoint
from procession.sim.simulated_clients import Answers, Desks
from procession.sim.simulated_driver import Epoch
from procession.sim.simulated_leader_link import name_of, part_of
from procession.sim.simulated_log import Row as LogRow
from procession.sim.simulated_log import log_folder, read_rows
from procession.sim.simulated_process import Process, Steps
from procession.sim.simulated_states import KIND, STAGE, SimKeeping
from procession.sim.simulated_tasks import Route, Row, dealt, payloads, run_task
from procession.storage.log_ranges import Offset, numbered_from
from procession.storage.segment import KIND_RECORD
from procession.storage.state_store import Version

if TYPE_CHECKING:
    from procession.sim.simulated_driver import Driver

TRIGGER_S = 0.02
TRIGGER_MAX_S = 0.3
"""Spark asks at a steady rate; asking less often while nothing comes only saves the simulation steps."""


class Spark(Process):
    def __init__(
        self,
        site: Site,
        machine: Machine,
        driver: Driver,
        gateways: Mapping[str, Machine],
        routes: Mapping[str, Route],
        epoch_records_max: int,
        tasks: int,
    ) -> None:
        super().__init__(site, SPARK, machine)
        self.driver = driver
        self._machines = {name_of(part): home for part, home in gateways.items()}
        self._logs = {name: Files(self, home.disk) for name, home in self._machines.items()}
        self._desks = Desks(self)
        files = Files(self, machine.disk)
        self._checkpoint = Checkpoint(files, driver.checkpoint.fence)
        self._keeping = SimKeeping(files, self._checkpoint, site.oracle)
        self._tasks = tasks
        self._routes = routes
        self._epoch_records_max = epoch_records_max
        self._number = 0
        self._starts: dict[str, Offset] = {}
        self._ends = {LEADER: Offset()}
        self._is_waiting = False
        self._wait_s = TRIGGER_S
        self._has_ended = False
        self.is_stopping = False

    def start(self) -> None:
        self.post(self._begin)

    def failed(self, error: ProcessionError) -> None:
        """The query ends with this error; the driver hears of it."""
        self.site.tell(self.part, "! %s", error.sentence)
        self._has_ended = True
        self.kill()
        self.driver.later(0.01 * self.site.chance.random(), self.driver.query_failed, error)

    def end(self) -> None:
        """The query is stopped in order: Spark says that it has ended, and no commit can come any more."""
        self._has_ended = True
        self.kill()
        self.driver.later(0.01 * self.site.chance.random(), self.driver.query_ended)

    def died(self) -> None:
        if not self._has_ended:
            # Nothing is known of its last words: the round stays in doubt, and the next driver looks it up.
            self.driver.later(0.02 * self.site.chance.random(), self.driver.kill)

    def _begin(self) -> Steps:
        checkpoint = self._checkpoint
        offered, committed = checkpoint.offered, checkpoint.committed
        if committed >= 0:
            checkpoint.check_commit(committed)
        if offered >= 0:
            self._ends = checkpoint.offset(offered)
        self._number = offered
        yield
        if offered > committed:
            self._starts = checkpoint.offset(offered - 1) if offered > 0 else {LEADER: Offset()}
            yield from self._run_tasks()
        else:
            yield from self._trigger()

    # The helper: `latestOffset`

    def _trigger(self) -> Steps:
        if self.is_stopping:
            return
        self._checkpoint.check_fence()
        if self._checkpoint.decided < self._checkpoint.committed:
            self.later(TRIGGER_S, self._trigger)  # the driver has yet to put it on disk
            return
        yield
        self.site.oracle.look()
        fence, names = self._checkpoint.fence, self._desks.names
        records_max = max(1, self._epoch_records_max // len(names))
        self._desks.ask(
            {name: Offer(fence, self._ends.get(name, Offset()), records_max) for name in names},
            self._offered,
        )

    def _offered(self, answers: Answers) -> Steps | None:
        ends = dict(self._ends)
        for name, (_, told) in sorted(answers.items()):
            if told.end.sequence > ends.get(name, Offset()).sequence:
                ends[name] = told.end
        if LEADER in answers:
            self._desks.meet(answers[LEADER][1].gateways)
        if not answers or (ends == self._ends and self._number >= 0) or self.is_stopping:
            self.later(self._wait_s, self._trigger)
            self._wait_s = min(2 * self._wait_s, TRIGGER_MAX_S)
            return None
        self._wait_s = TRIGGER_S
        return self._construct(ends)

    def _construct(self, ends: dict[str, Offset]) -> Steps:
        self._number += 1
        self._starts, self._ends = self._ends, ends
        yield from self._checkpoint.write_offset(self._number, ends)
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
        logs = [self._read(name, start, end) for name, start, end in ranges]
        rows: list[Row] = []
        positions: dict[int, int] = {}
        number = first
        for (name, start, _), log in zip(ranges, logs, strict=True):
            for sequence, (kind, stream, message_id, payload) in enumerate(log, start):
                if kind == KIND_RECORD:
                    self.site.oracle.read(name, sequence, (stream, message_id))
                    positions[stream] = message_id
                    rows.append((number, message_id, payload))
                number += 1
        yield
        made = []
        for task, own in enumerate(dealt(rows, self._tasks)):
            made.append(run_task(self._keeping, task, self._tasks, self._number, attempt, own))
            yield
        lines = payloads([path for path, _ in made], self._routes)
        states = {STAGE: Version(tuple(files for _, files in made), KIND)}
        epoch = Epoch(self._number, first, last, lines, positions, ends, states)
        self._is_waiting = True
        if self.driver.is_alive:
            self.driver.soon(self.driver.run_epoch, epoch)
        else:
            self.kill()

    def _read(self, name: str, start: int, end: int) -> list[LogRow]:
        part = part_of(name)
        try:
            return read_rows(self._logs[name], log_folder(part), start, end)
        except StorageError as error:
            raise blamed(error, is_done_to_us=part in self.site.set_back) from error

    def orphaned(self) -> None:
        """Our Python half is dead: whatever waits for it fails."""
        if self._is_waiting:
            self.kill()

    def finished(self, epoch: int) -> None:
        """`foreachBatch` has returned: nobody can hold us now."""
        self._is_waiting = False
        self.later(0.01 * self.site.chance.random(), self._commit, epoch)

    def _commit(self, epoch: int) -> Steps:
        yield from self._checkpoint.write_commit(epoch)
        if self._checkpoint.is_current:
            self.site.oracle.commit_written(epoch, self._checkpoint.round(epoch))
        driver = self.driver
        if driver.is_alive:
            driver.later(0.005 * self.site.chance.random(), driver.commit_seen, epoch)
        self.later(TRIGGER_S * self.site.chance.random(), self._trigger)
