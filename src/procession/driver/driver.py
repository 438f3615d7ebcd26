"""The driver process: connects Spark, the gateways and the commit, and runs until it is stopped or fails.

The one rule: the driver claims the checkpoint before anything else, so that no earlier driver can decide any more. It
settles open transactions with the sinks while Spark starts. A *spare* driver has only started Spark; it claims the
checkpoint when it is promoted. The supervisor starts the driver again when it is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from procession import faults
from procession.cache import find_place
from procession.commit.checkpoint import Checkpoint
from procession.commit.coordinator import REFUSALS_MAX
from procession.commit.dead_letter_share import DeadLetterLimit
from procession.commit.one_phase import coordinator_for
from procession.commit.performer import Conductor, Rim
from procession.commit.round_record import Round
from procession.commit.sink_link import SinkOptions
from procession.driver import departed_gateways
from procession.driver.app_file import App, load_app
from procession.driver.epoch_log import EpochLog
from procession.driver.offsets import GatewayFeed, GatewayWord
from procession.driver.spark_process import Query, SparkProcess, ends
from procession.driver.stage_states import check_last, keyed_versions
from procession.driver.stream_order import order_of
from procession.driver.table_versions import Refresh
from procession.errors import ConfigError, ProcessionError, RoundError, told_in
from procession.planner.graph import Exchange, Graph
from procession.spark.java import check_java
from procession.spark.master import check_master
from procession.storage.durable import write_durably
from procession.storage.flight_reader import Access
from procession.storage.run_store import Manifest, RunStore
from procession.storage.state_store import KEYS_MAX, StateStore
from procession.tls import ClientTls

READY = "driver.json"
"""File in the pipeline's directory that names the process of the driver."""
SPARE_READY = "spare.json"
"""File that names the process of the spare driver."""

CACHE = "cache"
"""The cache in the pipeline's directory, if there is no other place for it."""

DRAIN_S = 10.0
"""Time that a stop waits for the open epoch before it is aborted."""


@dataclass(frozen=True)
class DriverConfig:
    """Addresses, directories and limits of a driver."""

    app: Path
    directory: Path
    gateway: str | Path
    """The gateway's control address, or its directory: then it is found again if it moves."""
    sinks: Mapping[str, str] = field(default_factory=dict)
    """The address of each sink of the app, or of one of its connections as `NAME.1`; those that the app itself names by
    address need none."""
    epoch_interval_s: float = 0.1
    epoch_records_max: int = 250_000
    epoch_bytes_max: int = 64 * 1024 * 1024
    answer_timeout_s: float = 30.0
    sink_refusals_max: int = REFUSALS_MAX
    state_keys_max: int = KEYS_MAX
    dead_letter_share_max: float = 0.5
    dead_letter_records_min: int = 1000
    jvm_timeout_s: float = 30.0
    changed_stages: tuple[str, ...] = ()
    """Stages that keep their state although their key or input differs from the checkpoint."""
    input_streams: frozenset[int] = frozenset()
    """The streams of `--input`: the pipeline's sources end with them."""
    runs: Path | None = None
    master: str | None = None
    control_cookie: bytes = field(default=b"", repr=False)
    """The secret for gateways."""
    sink_cookie: bytes = field(default=b"", repr=False)
    """The secret for sinks that the app names by address."""
    file_sink_cookie: bytes = field(default=b"", repr=False)
    """The secret for our file sinks."""
    tls: ClientTls | None = None
    """TLS to the sinks and the gateways."""

    def log_directory(self, graph: Graph) -> Path:
        """The log that tasks read: in the order of arrival, or of event time."""
        return self.directory / "gateway" / ("log" if graph.event_time is None else "ordered")

    def start_spark(self, app: App, say: Any) -> SparkProcess:
        return SparkProcess(self.directory, self.app, app.plan, self.master, say, timeout_s=self.jvm_timeout_s)


class Stopping(Exception):
    """Raised in Spark when an epoch begins after the driver was asked to stop."""


def run_driver(config: DriverConfig, say: Any = print, turn: TextIO | None = None) -> None:
    """Run the app until SIGTERM or SIGINT. Raises what somebody must act on. With `turn`, make Spark ready and wait for
    a line there first; if there will be none, end."""
    check_master(config.master)
    check_java()
    find_place(config.directory / CACHE)
    app = load_app(config.app, input_streams=config.input_streams)
    spark = None
    if turn is not None:
        from procession.spark.class_archive import rehearse

        spark = config.start_spark(app, say)
        rehearse(spark.session)
        _announce_spare(config.directory / SPARE_READY)
        if not turn.readline():
            return
    checkpoint = Checkpoint.claim(
        config.directory / "checkpoint",
        name=app.graph.name,
        fingerprint=app.graph.fingerprint(),
        doors=app.graph.doors(),
        codecs=app.graph.sink_codecs(),
        check=partial(check_last, app.plan, changed=config.changed_stages),
    )
    faults.point("driver:claimed")
    Driver(config, app, checkpoint, say, spark).run()


def _announce_spare(path: Path) -> None:
    """Say who waits. Not durably: after a crash nobody asks, and a disk that a test makes bad is the driver's."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"pid": os.getpid()}))
    draft.rename(path)


class Driver:
    """One incarnation. Three threads meet in `_news`: signals and failures wake the main one."""

    def __init__(
        self, config: DriverConfig, app: App, checkpoint: Checkpoint, say: Any, spark: SparkProcess | None = None
    ) -> None:
        self._config = config
        self._spark = spark
        self._app = app
        self._checkpoint = checkpoint
        self._say = say
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._is_gateway_away = False
        self._round: Future[Any] | None = None
        self._is_stopping = threading.Event()
        self._loop = asyncio.new_event_loop()
        # In a folder of the checkpoint's own: what is cleared must be nobody else's, wherever --runs points.
        runs_root = (config.runs or config.directory / "runs") / checkpoint.id
        checkpoint.check_fence()  # nothing is removed by a driver that was replaced
        RunStore(runs_root).clear_before(checkpoint.fence)
        self._runs = RunStore(runs_root / f"{checkpoint.fence:010d}")
        self._states = StateStore(config.directory / "state" / checkpoint.id)
        self._refresh = Refresh.of(app.graph, config.directory / "sides" / checkpoint.id, say, checkpoint.fence)
        self._gateway = GatewayWord(config.gateway, config.control_cookie, checkpoint.fence, config.tls)
        self._epochs = EpochLog(config.directory / "epochs.jsonl")

    def run(self) -> None:
        self._heed_signals()
        thread = threading.Thread(target=self._loop.run_forever, name="conductor", daemon=True)
        thread.start()
        conductor = self._conduct()
        config = self._config
        watch = self._ask(
            departed_gateways.watch(config.gateway, config.control_cookie, config.tls, conductor.workers_left)
        )
        try:
            self._wait_for_gateway()
            if self._goes_on:
                self._run_query(conductor)
        finally:
            watch.cancel()
            with suppress(FutureTimeout):
                self._ask(conductor.close()).result(timeout=DRAIN_S)
        if self._error is not None:
            self._checkpoint.check_fence()  # a driver that was replaced fails in any way, and must not come back
            raise self._error

    @property
    def _goes_on(self) -> bool:
        return self._error is None and not self._is_stopping.is_set()

    def _conduct(self) -> Conductor:
        graph, config, checkpoint = self._app.graph, self._config, self._checkpoint
        rounds, keyed = checkpoint.rounds.read_all(), keyed_versions(self._app.plan)
        last = rounds.get(checkpoint.log.committed)
        self._continue_states(last, has_states=bool(keyed))
        self._refresh.begin({} if last is None else last.sides, checkpoint.check_fence)
        tables = self._refresh if self._refresh.sides else None
        letters = None
        if graph.dead_letter is not None:
            share = config.dead_letter_share_max, config.dead_letter_records_min
            letters = DeadLetterLimit(graph.dead_letter.id, *share)
        coordinator = coordinator_for(
            graph.policy,
            tuple(one.name for one in graph.participants if one.sink.is_idempotent),
            pipeline=graph.name,
            checkpoint=checkpoint.id,
            fence=checkpoint.fence,
            fingerprint=graph.fingerprint(),
            sinks=[one.name for one in graph.participants],
            rounds=rounds,
            committed=checkpoint.log.committed,
            reserved=checkpoint.reserved,
            refusals_max=config.sink_refusals_max,
        )
        rim = Rim(acknowledge=self._acknowledge, observe=self._epochs.add, say=self._say, fail=self._failed)

        async def make() -> Conductor:
            sinks = sink_options(graph, config)
            conductor = Conductor(coordinator, checkpoint, self._runs, sinks, rim, self._states, keyed, tables, letters)
            conductor.start()
            return conductor

        conductor: Conductor = self._ask(make()).result()
        return conductor

    def _continue_states(self, last: Round | None, *, has_states: bool) -> None:
        """Continues with the states that the last epoch committed."""
        kept = {} if last is None else last.states
        if has_states:
            self._states.make()
            self._checkpoint.check_fence()
            self._states.sweep(kept.values(), self._checkpoint.fence)

    def _wait_for_gateway(self) -> None:
        """Fences the gateway, so that it ignores earlier drivers."""
        is_told = False
        while self._goes_on:
            try:
                self._gateway.raise_fence(self._checkpoint, order_of(self._app.graph))
                return
            except RoundError as error:
                if not is_told:
                    self._say(f"{error.sentence} Waiting for it.")
                is_told = True

    def _run_query(self, conductor: Conductor) -> None:
        # Imported late, so that the sinks are settled while Python still reads Spark's modules.
        from procession.spark.query import ship_by_value, start_query
        from procession.spark.task_state import Keeping
        from procession.spark.tasks import Tables, Task

        config = self._config
        self._heed_signals(lambda: os._exit(0))  # no epoch has begun, and the JVM ends with us: nobody need wait for it
        spark = self._spark or config.start_spark(self._app, self._say)
        spark.scratch.clear_others(self._checkpoint.check_fence)
        spark.watch(self._failed)
        self._heed_signals()  # Spark has just taken SIGINT for itself
        ship_by_value(self._app.module)

        def on_epoch(epoch: int, manifests: list[Manifest]) -> None:
            if self._is_stopping.is_set():
                raise Stopping
            self._round = self._ask(conductor.run_epoch(epoch, manifests))
            try:
                self._round.result()
            except CancelledError:
                raise Stopping from None
            except ProcessionError as error:
                self._failed(self._gateway.with_stream_name(error))
                raise

        if self._goes_on:
            query = start_query(
                spark.session,
                Task(
                    self._app.plan,
                    config.log_directory(self._app.graph),
                    self._runs.directory,
                    Keeping(
                        self._states.directory, self._checkpoint.rounds, self._checkpoint.fence, config.state_keys_max
                    ),
                    Access(config.control_cookie, config.tls),
                    Tables(self._refresh.copies.directory, self._checkpoint.rounds, self._refresh.first)
                    if self._refresh.sides
                    else None,
                ),
                GatewayFeed(
                    config.gateway,
                    config.control_cookie,
                    self._checkpoint,
                    config.epoch_records_max,
                    config.epoch_bytes_max,
                    is_alone=self._app.graph.exchange is Exchange.SPARK,
                    is_ordered=self._app.graph.event_time is not None,
                    tls=config.tls,
                ),
                checkpoint=self._checkpoint.directory,
                interval_s=config.epoch_interval_s,
                on_epoch=on_epoch,
            )
            # Whole, or not there: others wait for it.
            state = {"pid": os.getpid(), "fence": self._checkpoint.fence}
            write_durably(config.directory / READY, json.dumps(state).encode())
            self._say("ready")
            self._watch(query, conductor)
        spark.close()

    def _watch(self, query: Query, conductor: Conductor) -> None:
        threading.Thread(target=self._await_end, args=(query,), name="query", daemon=True).start()
        if self._news.get() == "stop":
            with suppress(FutureTimeout):
                self._ask(conductor.settle()).result(timeout=DRAIN_S)
            if self._round is not None:
                self._round.cancel()
        if ends(query):
            self._ask(conductor.query_ended()).result()
        else:
            # A commit may still be written: the round stays in doubt, and whoever drives next looks it up.
            self._say("Spark did not end the query in time; the open round is left to the next driver")

    def _await_end(self, query: Query) -> None:
        try:
            query.awaitTermination()
        except Exception as error:  # Spark's own failure: not ours to understand, but to pass on
            if not self._is_stopping.is_set():
                self._failed(told_in(str(error)) or error)
        self._news.put("ended")

    def _heed_signals(self, end: Callable[[], object] | None = None) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: (end or self._asked_to_stop)())

    def _asked_to_stop(self) -> None:
        self._is_stopping.set()
        self._news.put("stop")

    def _failed(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        self._news.put("failed")

    async def _acknowledge(self, record: Round) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._gateway.acknowledge, record)
            self._is_gateway_away = False
        except RoundError as error:
            if not self._is_gateway_away:
                self._say(f"{error.sentence} Waiting for it.")
            self._is_gateway_away = True
            raise

    def _ask(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)


def sink_options(graph: Graph, config: DriverConfig) -> list[SinkOptions]:
    """How to reach each sink: file sinks by the given address, others by the one in the app."""
    options = []
    for one in graph.participants:
        sink = one.sink
        scheme = sink.scheme
        named = config.sinks.get(one.name) or config.sinks.get(sink.name)
        address = named or ("" if scheme.is_started else scheme.place(sink.target))
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(
                f"sink {sink.name!r} has no address", next_step=f"start it and give --sink {sink.name}=HOST:PORT"
            )
        options.append(
            SinkOptions(
                name=one.name,
                sink=sink.id,
                bucket=one.bucket,
                host=host,
                port=int(port),
                program=graph.name,
                instance=one.instance,
                cookie=config.file_sink_cookie if scheme.is_started else config.sink_cookie,
                tls=config.tls,
                # Without two-phase commit only the sink knows where its output ends.
                is_authoritative=scheme.is_authoritative or not graph.policy.is_strict,
                pack_bytes_max=scheme.pack_bytes_max,
                answer_timeout_s=config.answer_timeout_s,
                refusals_max=config.sink_refusals_max,
                knows_workers_left=scheme.knows_workers_left or sink.knows_workers_left,
            )
        )
    return options
