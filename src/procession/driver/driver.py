"""The driver process: connects Spark, the gateways and the commit, and runs until it is stopped or fails.

Invariant: the driver claims the checkpoint before anything else, so that no earlier driver can decide any more. It
resolves open transactions with the sinks while Spark starts. A *spare* driver has only started Spark; it claims the
checkpoint when it is promoted. The supervisor restarts a driver that was killed.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import queue
import signal
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TextIO

from procession import faults
from procession.cache import find_place
from procession.commit.checkpoint import Checkpoint
from procession.commit.dead_letter_share import DeadLetterLimit
from procession.commit.performer import CommitPerformer, DriverCallbacks
from procession.commit.recovery import recover
from procession.commit.round_files import RoundRecords
from procession.commit.round_record import RoundRecord
from procession.commit.spark_log import DECISION_TIMEOUT_S
from procession.driver import executor_files
from procession.driver.abandonment import watch_gateways
from procession.driver.app_file import App, load_app
from procession.driver.driver_config import DriverConfig
from procession.driver.driver_reports import DriverReports, announce_spare
from procession.driver.emission import epoch_runs, link_maker
from procession.driver.gateway_clients import watch_departures
from procession.driver.offsets import GatewayFeed, GatewayNotifier
from procession.driver.round_times import coordinator_of
from procession.driver.sink_connections import epoch_limits, sink_options
from procession.driver.spark_process import Query, SparkProcess, ends, query_error
from procession.driver.stage_states import check_last, keyed_versions
from procession.driver.stream_order import order_of
from procession.driver.table_versions import TableRefresh
from procession.errors import ProcessionError, RoundError
from procession.planner.graph import Exchange
from procession.runtime.host import HOST, Host
from procession.spark.epoch_size import EpochPace
from procession.spark.java import check_java
from procession.spark.master import check_master
from procession.spark.spark_conf import check_properties
from procession.storage.driver_claim import checkpoint_of
from procession.storage.durable import write_durably
from procession.storage.file_service import FileService
from procession.storage.host_runs import HostRuns
from procession.storage.run_store import Manifest, RunStore
from procession.storage.state_store import StateStore

READY = "driver.json"
"""File in the pipeline's directory with the driver's process id."""
SPARE_READY = "spare.json"
"""File with the process id of the spare driver."""

CACHE = "cache"
"""The cache directory in the pipeline's directory, used if no other cache directory is writable."""

DRAIN_S = 10.0
"""Time that a stopping driver waits for the open epoch before it aborts the epoch."""


THIS_MACHINE = nullcontext(HOST)
"""The host of a driver without replicas."""


class DriverStopping(Exception):
    """Raised in Spark when an epoch begins after the driver was asked to stop."""


class Turn(NamedTuple):
    """The input on which a driver waits for its turn after it has started Spark."""

    lines: TextIO
    """Receives a line when it is this driver's turn: `go`, and the address of each sink as NAME=HOST:PORT."""
    is_spare: bool
    """Whether another driver already runs, so that this one has time for epochs that warm Spark up."""

    def wait(self) -> dict[str, str] | None:
        """Wait for the line and return the sinks' addresses in it; None at the end of the file."""
        words = self.lines.readline().split()
        return dict(word.split("=", 1) for word in words[1:]) if words else None


def run_driver(
    config: DriverConfig,
    say: Any = print,
    turn: Turn | None = None,
    opened: AbstractContextManager[Host] = THIS_MACHINE,
) -> None:
    """Run the app until SIGTERM or SIGINT. With `turn`, start Spark, then wait for the turn; return if it does not
    come. `opened` provides the host with the checkpoint's files, and claims the replicas if there are any. Raises
    errors that an operator must act on."""
    check_master(config.master)
    check_properties(config.spark_properties)
    check_java()
    find_place(config.directory / CACHE)
    app = load_app(config.app, input_streams=config.input_streams)
    if config.host_services:
        executor_files.check_host_services(app.graph, config.master or "local")
    spark = None
    if turn is not None:
        spark = config.start_spark(app, say)
        spark.ship()
        if turn.is_spare:
            from procession.spark.class_archive import warm_up

            spark.start_resident_worker()
            warm_up(spark.session)
            announce_spare(config.directory / SPARE_READY)
        else:
            spark.start_workers()
        sinks = turn.wait()
        if sinks is None:
            return
        config = replace(config, sinks={**config.sinks, **sinks})
    with opened as host:
        checkpoint = Checkpoint.claim(
            checkpoint_of(config.directory),
            name=app.graph.name,
            fingerprint=app.graph.fingerprint(),
            endpoints=app.graph.endpoints(),
            codecs=app.graph.sink_codecs(),
            check=partial(check_last, app.plan, changed=config.changed_stages),
            files=host.files,
        )
        faults.point("driver:claimed")
        Driver(config, app, checkpoint, say, spark, has_replicas=host.has_replicas).run()


class Driver:
    """One run of the driver. Signals, failures and the query's thread wake the main thread through `_events`."""

    def __init__(
        self,
        config: DriverConfig,
        app: App,
        checkpoint: Checkpoint,
        say: Any,
        spark: SparkProcess | None = None,
        *,
        has_replicas: bool = False,
    ) -> None:
        self._config = config
        self._has_replicas = has_replicas
        self._spark = spark
        self._app = app
        self._checkpoint = checkpoint
        self._say = say
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._is_gateway_away = False
        self._round: Future[Any] | None = None
        self._is_stopping = threading.Event()
        self._loop = asyncio.new_event_loop()
        # A subdirectory per checkpoint, so that no files of another pipeline are removed, wherever --runs points.
        runs_root = (config.runs or config.directory / "runs") / checkpoint.id
        checkpoint.check_fence()  # a replaced driver must not remove anything
        RunStore(runs_root).clear_before(checkpoint.fence)
        cookie, tls, place = config.control_cookie, config.tls, config.directory
        self._access = executor_files.task_access(cookie, tls, place, app.graph, config.master)
        self._hosts = HostRuns(checkpoint.id, checkpoint.fence, self._access) if config.host_services else None
        store = RunStore(runs_root / f"{checkpoint.fence:010d}")
        self._runs = epoch_runs(app.graph, config, store, self._hosts)
        self._states = StateStore(config.directory / "state" / checkpoint.id)
        sides = config.directory / "sides" / checkpoint.id
        self._tables = TableRefresh.of(app.graph, sides, say, checkpoint.fence, checkpoint.files)
        self._gateway = GatewayNotifier(config.gateway, cookie, checkpoint.fence, tls, checkpoint.abandoned)
        self._reports = DriverReports(config.directory, app.plan, checkpoint, config.history_bytes_max)
        self._reports.fetched_bytes = lambda: self._runs.fetched_bytes
        self._files: FileService | None = None

    def run(self) -> None:
        self._handle_signals()
        thread = threading.Thread(target=self._loop.run_forever, name="commit", daemon=True)
        thread.start()
        performer = self._start_performer()
        config = self._config
        departures = watch_departures(config.gateway, config.control_cookie, config.tls, performer.workers_left)
        watch = self._submit(watch_gateways(departures, self._checkpoint, self._failed))
        try:
            self._wait_for_gateway()
            if self._is_running:
                self._run_query(performer)
        finally:
            watch.cancel()
            if self._files is not None:
                self._files.shutdown()
            with suppress(FutureTimeout):
                self._submit(performer.close()).result(timeout=DRAIN_S)
            self._reports.close()
        if self._error is not None:
            self._checkpoint.check_fence()  # if this driver was replaced, report that instead: it must not be restarted
            raise self._error

    @property
    def _is_running(self) -> bool:
        return self._error is None and not self._is_stopping.is_set()

    def _start_performer(self) -> CommitPerformer:
        graph, config, checkpoint = self._app.graph, self._config, self._checkpoint
        found, keyed = recover(checkpoint.directory), keyed_versions(self._app.plan)
        last = found.last
        self._continue_states(last, has_states=bool(keyed))
        self._tables.begin({} if last is None else last.sides, checkpoint.check_fence)
        tables = self._tables if self._tables.sides else None
        dead_letters = None
        if graph.dead_letter is not None:
            share = config.dead_letter_share_max, config.dead_letter_records_min
            dead_letters = DeadLetterLimit(graph.dead_letter.id, *share)
        coordinator = coordinator_of(graph, checkpoint, found, config.sink_refusals_max, self._reports.times)
        self._reports.start(found)
        callbacks = DriverCallbacks(
            acknowledge=self._acknowledge, observe=self._reports.committed, say=self._say, fail=self._failed
        )

        async def make() -> CommitPerformer:
            sinks = sink_options(graph, config)
            make_link = link_maker(config, checkpoint, self._runs, self._hosts)
            given = coordinator, checkpoint, self._runs, sinks, callbacks, self._states, keyed, tables, dead_letters
            performer = CommitPerformer(*given, make_link=make_link)
            performer.start()
            return performer

        performer: CommitPerformer = self._submit(make()).result()
        return performer

    def _continue_states(self, last: RoundRecord | None, *, has_states: bool) -> None:
        """Keep the states that the last epoch committed, and remove all others."""
        kept = {} if last is None else last.states
        if has_states:
            self._states.make()
            self._checkpoint.check_fence()
            self._states.sweep(kept.values(), self._checkpoint.fence)

    def _wait_for_gateway(self) -> None:
        """Fence the gateway, so that it ignores earlier drivers. Wait until it is reachable."""
        is_reported = False
        while self._is_running:
            try:
                self._gateway.raise_fence(self._checkpoint, order_of(self._app.graph))
                return
            except RoundError as error:
                if not is_reported:
                    self._say(f"{error.sentence} Waiting for it.")
                is_reported = True

    def _run_query(self, performer: CommitPerformer) -> None:
        # Imported late, so that the sinks recover while Python loads Spark's modules.
        from procession.spark.pickled_program import ship_by_value
        from procession.spark.query import start_query
        from procession.spark.small_epochs import SmallEpochs
        from procession.spark.task_state import TaskStateStore
        from procession.spark.tasks import Task, TaskTables

        config = self._config
        self._handle_signals(lambda: os._exit(0))  # no epoch is open, and the JVM exits with this process
        spark = self._spark or config.start_spark(self._app, self._say)
        spark.scratch.clear_others(self._checkpoint.check_fence)
        spark.watch(self._failed)
        self._reports.watch_jvm(spark.jvm_figures)
        self._handle_signals(lambda: os._exit(0))  # Spark has installed its own handler for SIGINT
        if self._spark is None:
            spark.ship()  # a spare driver has already done this
            spark.start_workers()
        spark.check_executors(has_services=config.host_services)
        self._handle_signals()
        ship_by_value(self._app.module)

        def on_epoch(epoch: int, manifests: list[Manifest]) -> None:
            if self._is_stopping.is_set():
                raise DriverStopping
            self._round = self._submit(performer.run_epoch(epoch, manifests))
            try:
                self._round.result()
            except CancelledError:
                raise DriverStopping from None
            except ProcessionError as error:
                self._failed(self._gateway.with_stream_name(error))
                raise

        access, checkpoint, tables, shared = self._access, self._checkpoint, self._tables, None
        rounds: RoundRecords | executor_files.SharedRounds = checkpoint.rounds
        first = dict(tables.first)
        if config.host_services:
            directories = self._states.directory, tables.copies.directory
            listen, on_fetched = config.driver_files, self._reports.placement.fetched
            self._files, shared = executor_files.serve_files(checkpoint, *directories, access, listen, on_fetched)
            rounds = executor_files.SharedRounds(shared)
            first |= tables.fixed(self._app.graph, checkpoint.check_fence)
        if self._is_running:
            task = Task(
                self._app.plan,
                config.log_directory(self._app.graph),
                self._runs.store.directory,
                TaskStateStore(self._states.directory, rounds, checkpoint.fence, config.state_keys_max, shared=shared),
                access,
                TaskTables(tables.copies.directory, rounds, first, shared) if tables.sides or first else None,
                self._hosts,
                executor_files.OffsetsLayout(shared) if shared is not None else None,
            )
            layout, worker = executor_files.local_layout(checkpoint), spark.worker
            small = SmallEpochs(worker, task, layout, config.small_epoch_records_max) if worker is not None else None
            query = start_query(
                spark.session,
                task,
                GatewayFeed(
                    config.gateway,
                    access.cookie,
                    self._checkpoint,
                    *epoch_limits(self._app.graph, config),
                    is_alone=self._app.graph.exchange is Exchange.SPARK,
                    is_ordered=self._app.graph.event_time is not None,
                    tls=config.tls,
                    # Replicas may be unreachable for any length of time, and the commit waits for them.
                    decision_timeout_s=math.inf if self._has_replicas else DECISION_TIMEOUT_S,
                ),
                checkpoint=self._checkpoint.directory,
                pace=EpochPace(config.epoch_interval_s, config.epoch_target_s, config.small_epoch_records_max),
                on_epoch=self._reports.times.recording(self._checkpoint, on_epoch),
                small=small,
                runs=self._runs,
            )
            # Written atomically, because other processes wait for the file.
            state = {"pid": os.getpid(), "fence": self._checkpoint.fence}
            write_durably(config.directory / READY, json.dumps(state).encode())
            self._reports.is_ready = True
            self._say("ready")
            self._watch(query, performer, spark)
        spark.close()

    def _watch(self, query: Query, performer: CommitPerformer, spark: SparkProcess) -> None:
        threading.Thread(target=self._await_end, args=(query,), name="query", daemon=True).start()
        if self._events.get() == "stop":
            with suppress(FutureTimeout):
                self._submit(performer.settle()).result(timeout=DRAIN_S)
            if self._round is not None:
                self._round.cancel()
        spark.end_worker()
        if ends(query):
            self._look_up(performer)
        else:
            # Spark may still write the commit: the round stays in doubt, and the next driver looks it up.
            self._say("Spark did not end the query in time; the open round is left to the next driver")

    def _look_up(self, performer: CommitPerformer) -> None:
        """Read whether the open round is committed. This may wait for replicas that are unreachable."""
        try:
            self._submit(performer.query_ended()).result(timeout=DRAIN_S if self._has_replicas else None)
        except ProcessionError as error:  # an error of the disk or of the replicas
            self._failed(error)
        except FutureTimeout:
            self._say("The replicas do not answer; the open round is left to the next driver.")

    def _await_end(self, query: Query) -> None:
        try:
            query.awaitTermination()
        except Exception as error:  # a failure inside Spark is passed on as it is
            if not self._is_stopping.is_set():
                self._failed(query_error(error))
        if self._is_running:  # Spark matches the text of an error with a regular expression, and can fail at that
            self._failed(RoundError("Spark ended the query without an error; logs/spark.log may say why"))
        self._events.put("ended")

    def _handle_signals(self, end: Callable[[], object] | None = None) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: (end or self._stop_requested)())

    def _stop_requested(self) -> None:
        self._is_stopping.set()
        self._events.put("stop")

    def _failed(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        self._events.put("failed")

    async def _acknowledge(self, record: RoundRecord) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._gateway.acknowledge, record)
            self._is_gateway_away = False
        except RoundError as error:
            if not self._is_gateway_away:
                self._say(f"{error.sentence} Waiting for it.")
            self._is_gateway_away = True
            raise

    def _submit(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)
