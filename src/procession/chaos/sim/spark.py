"""Spark, as far as an epoch goes: the JVM half of a driver, with the helper that asks the gateway.

The one rule, as DESIGN §3 has it: `offsets/N` → tasks → `foreachBatch` → `commits/N`, nothing synced; after a start
the range of an `offsets/N` without `commits/N` is run again exactly. It outlives its Python half, and then still writes
what it was about to write. The application is not deterministic: each run of a task marks its records with a number of
its own, so that a sink which shows one run and another which shows a second one are told apart. Before it: `gateway`
and its log. After it: `driver`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from procession.chaos.sim.checkpoint import Checkpoint
from procession.chaos.sim.driver import Epoch
from procession.chaos.sim.files import Files
from procession.chaos.sim.gateway import Offer
from procession.chaos.sim.inlog import read_rows
from procession.chaos.sim.plan import GATEWAY, SPARK
from procession.chaos.sim.process import Process, Steps
from procession.chaos.sim.site import Machine, Site
from procession.errors import ProcessionError
from procession.storage.segment import KIND_RECORD

if TYPE_CHECKING:
    from procession.chaos.sim.driver import Driver

TRIGGER_S = 0.02
TRIGGER_MAX_S = 0.3
"""Spark asks at a steady rate; asking less often while nothing comes only saves the simulation steps."""

Route = Callable[[int], bool]
"""Whether a sink gets the record with this message id."""


class Spark(Process):
    def __init__(
        self,
        site: Site,
        machine: Machine,
        driver: Driver,
        gateway_machine: Machine,
        routes: Mapping[str, Route],
        epoch_records_max: int,
    ) -> None:
        super().__init__(site, SPARK, machine)
        self.driver = driver
        self._gateway_machine = gateway_machine
        self._log_files = Files(self, gateway_machine.disk)
        self._checkpoint = Checkpoint(Files(self, machine.disk), driver.checkpoint.fence)
        self._routes = routes
        self._epoch_records_max = epoch_records_max
        self._number = 0
        self._first = 0
        self._last = 0
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
        self._last = checkpoint.offset(offered) if offered >= 0 else 0
        self._number = offered
        yield
        if offered > committed:
            self._first = checkpoint.offset(offered - 1) if offered > 0 else 0
            yield from self._run_tasks()
        else:
            yield from self._trigger()

    # The helper: `latestOffset`

    def _trigger(self) -> Steps:
        if self.is_stopping:
            return
        self._checkpoint.check_fence()
        if (newest := self._checkpoint.committed) >= 0:
            yield from self._checkpoint.sync_commit(newest)
        self.site.oracle.look()
        offer = Offer(self._checkpoint.fence, self._last, self._epoch_records_max)
        self.site.network.call(self, GATEWAY, offer, self._offered)

    def _offered(self, answer: Any) -> Steps | None:
        if isinstance(answer, ProcessionError):
            raise answer
        if answer is None or (answer == self._last and self._number >= 0) or self.is_stopping:
            self.later(self._wait_s, self._trigger)
            self._wait_s = min(2 * self._wait_s, TRIGGER_MAX_S)
            return None
        self._wait_s = TRIGGER_S
        return self._construct(answer)

    def _construct(self, end: int) -> Steps:
        self._number += 1
        self._first, self._last = self._last, end
        yield from self._checkpoint.write_offset(self._number, end)
        yield from self._run_tasks()

    # Tasks, `foreachBatch`, `commits/N`

    def _run_tasks(self) -> Steps:
        if not self._gateway_machine.is_up:
            self.later(TRIGGER_S, self._run_tasks)  # Spark tries a failed task again
            return
        self.site.runs += 1
        made_by = str(self.site.runs)
        rows = read_rows(self._log_files, self._first, self._last)
        payloads: dict[str, list[bytes]] = {sink: [] for sink in self._routes}
        positions: dict[int, int] = {}
        for number, (kind, stream, message_id, payload) in enumerate(rows, self._first):
            if kind != KIND_RECORD:
                continue
            self.site.oracle.read(number, (stream, message_id))
            positions[stream] = message_id
            line = b"%s#%s\n" % (payload, made_by.encode())
            for sink, route in self._routes.items():
                if route(message_id):
                    payloads[sink].append(line)
        yield
        epoch = Epoch(self._number, self._first, self._last, payloads, positions)
        self._is_waiting = True
        if self.driver.is_alive:
            self.driver.soon(self.driver.run_epoch, epoch)
        else:
            self.kill()

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
        driver = self.driver
        if driver.is_alive:
            driver.later(0.005 * self.site.chance.random(), driver.commit_seen, epoch)
        self.later(TRIGGER_S * self.site.chance.random(), self._trigger)
