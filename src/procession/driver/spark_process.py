"""Spark's process: starts the JVM, and notices when the JVM hangs or gets no executors.

Invariant: a JVM that does not answer for `jvm_timeout_s` is killed, and the driver exits as after a crash. The next
driver looks up what was decided. A JVM cannot answer while it starts; during that time its processes must use CPU
time. Used by `driver/driver`; uses `spark/session`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from procession.driver.early_jvm import LOG, EarlyJvm, add_to_path
from procession.driver.scratch_directory import SCRATCH, ScratchDirectory
from procession.errors import ProcessionError, RoundError, error_in_text
from procession.planner.graph import Exchange, Kind
from procession.planner.plan import Plan
from procession.spark.executor_check import python_failure
from procession.spark.master import (
    LOCAL_CLUSTER,
    REPEAT_S,
    ExecutorNotice,
    first_notice,
    has_executors,
    is_on_this_machine,
    unreachable,
)
from procession.spark.shipped_environment import ShippedEnvironment, write_secret

if TYPE_CHECKING:
    from procession.spark.session import Session

BEAT_S = 1.0
"""Interval of the heartbeat requests to the JVM."""

STARTED = time.monotonic()
"""Approximate start time of this process."""
COMMAND_STARTED = "PROCESSION_COMMAND_STARTED"
"""Environment variable with the start time of the command that started the driver, on the monotonic clock."""

SOURCE_RUNNER = "PythonStreamingSourceRunner"
"""Spark's class that talks to the Python process in which epochs are planned."""
CONNECTION_ENDED = ("java.io.EOFException", "Connection reset", "Broken pipe", "failed to connect back")
"""Java's error messages for a connection whose other end is gone."""

Say = Callable[[str], None]


class Query(Protocol):
    """The part of Spark's streaming query that we use."""

    def awaitTermination(self) -> bool | None: ...  # noqa: N802  (Spark's name)

    def stop(self) -> None: ...

    @property
    def isActive(self) -> bool: ...  # noqa: N802  (Spark's name)


def ends(query: Query) -> bool:
    """Stop the query. Return whether Spark confirms that it has ended; only then can it write no more commits."""
    try:
        query.stop()
        return not query.isActive
    except Exception:  # a timeout in Spark, or a JVM that does not answer: the state of the query is unknown
        return False


def query_error(error: Exception) -> Exception:
    """Return the error that ended a query. Spark's trace is removed if the error has a sentence of Procession, if an
    executor that came later lacks Python, or if the Python process that plans epochs has ended. Spark does not restart
    that process, so the driver must restart."""
    trace = f"{error}\n{getattr(error, '_stackTrace', '')}"
    if (wrong := python_failure(trace)) is not None:
        return wrong
    if (ours := error_in_text(trace)) is not None:
        return ours
    if SOURCE_RUNNER in trace and any(sign in trace for sign in CONNECTION_ENDED):
        return RoundError("The Python process in which Spark plans epochs has ended.")
    return error


def _has_transforms(plan: Plan) -> bool:
    return any(node.kind is Kind.TRANSFORM for node in plan.graph.nodes)


class SparkProcess:
    """Spark, started for the pipeline in this directory. The owner must `close` it."""

    def __init__(
        self,
        directory: Path,
        app: Path,
        plan: Plan,
        master: str | None,
        say: Say,
        *,
        timeout_s: float,
        properties: Mapping[str, str] | None = None,
        shipped: ShippedEnvironment | None = None,
        spark_secret: str = "",
        secret: bytes = b"",
        has_worker: bool = False,
        early: EarlyJvm | None = None,
    ) -> None:
        # Imported late, so that the sinks recover while Python loads Spark's modules.
        from procession.spark.resident_worker import ResidentWorker
        from procession.spark.session import open_session

        add_to_path(app)
        self._say = say
        self._shipped = shipped
        self._secret = secret
        self._fail: Callable[[ProcessionError], None] | None = None
        """Called if the JVM hangs; None: nothing is watched yet."""
        self._master = master or "local"
        self._tasks = plan.tasks_max
        self._has_executors = has_executors(self._master)
        self._notice_due = first_notice(float(os.environ.get(COMMAND_STARTED, STARTED)), STARTED)
        self.scratch = early.scratch if early is not None else ScratchDirectory(directory / SCRATCH)
        self.worker = ResidentWorker() if has_worker else None
        executors = self.scratch.directory / "executors" if self._master.startswith(LOCAL_CLUSTER) else None
        waiting = self._report_while_waiting()
        self._timeout_s = timeout_s
        starting = StartWatch(timeout_s)
        starting.start()
        try:
            self.session: Session = open_session(
                plan.graph.name,
                plan.tasks_max,
                master=master,
                log_file=directory / LOG,
                home=executors,
                scratch=self.scratch.directory,
                sockets=self.scratch.sockets,
                properties=properties,
                shipped=shipped,
                spark_secret=spark_secret,
                jvm=None if early is None else early.take(),
                is_for_manifests=plan.graph.exchange is not Exchange.SPARK and not _has_transforms(plan),
            )
        except ProcessionError:
            raise
        except Exception as error:
            if starting.is_hung:
                raise hung(timeout_s) from None
            if not self._has_executors:
                raise
            raise ProcessionError(
                f"Spark could not be started at its master {self._master}: {_first(error)}"
            ) from error
        finally:
            starting.stop()
            waiting.set()

    def _report_while_waiting(self) -> threading.Event:
        """Report that the cluster does not answer, until the returned event is set."""
        is_over = threading.Event()
        if not self._has_executors:
            return is_over

        def report() -> None:
            wait_s = self._notice_due - time.monotonic()
            while not is_over.wait(max(0.0, wait_s)):
                self._say(f"Spark's master {self._master} has not answered yet; waiting for it (see logs/spark.log)")
                wait_s = REPEAT_S

        threading.Thread(target=report, name="waiting for the master", daemon=True).start()
        if reason := unreachable(self._master):
            self._say(f"Spark's master {self._master} cannot be reached: {reason}; is it running? Retrying")
        return is_over

    def watch(self, fail: Callable[[ProcessionError], None]) -> None:
        """Start to check that the JVM answers and, on a cluster, that there are executors. A later call only replaces
        `fail`."""
        is_watched, self._fail = self._fail is not None, fail
        if is_watched:
            return
        timeout_s = self._timeout_s
        context = self.session.sparkContext
        java = context._jsc.sc()
        clock = self.session._jvm.java.lang.System  # type: ignore[union-attr]
        pid = context._gateway.proc.pid  # type: ignore[union-attr]

        def kill() -> None:
            _kill(pid)
            if self._fail is not None:
                self._fail(hung(timeout_s))

        beat = Heartbeat(timeout_s, kill)
        notice = ExecutorNotice(self._master, self._notice_due, time.monotonic())

        def ask() -> None:
            while True:
                clock.nanoTime()
                beat.received()
                if self._has_executors:
                    count = java.getExecutorMemoryStatus().size() - 1  # the driver counts itself
                    if sentence := notice.report(count, time.monotonic()):
                        self._say(sentence)
                time.sleep(min(BEAT_S, timeout_s / 4))

        def run() -> None:
            with suppress(Exception):  # the session was stopped, or the JVM is gone: the query reports that
                ask()
            beat.stop()

        threading.Thread(target=run, name="heartbeat", daemon=True).start()
        beat.start()

    def jvm_figures(self) -> dict[str, float]:
        """Return the heap, the garbage collection and the threads of the driver's JVM."""
        management = self.session._jvm.java.lang.management.ManagementFactory  # type: ignore[union-attr]
        heap = management.getMemoryMXBean().getHeapMemoryUsage()
        collectors = list(management.getGarbageCollectorMXBeans())
        return {
            "heap_used_bytes": int(heap.getUsed()),
            "heap_max_bytes": int(heap.getMax()),
            "gc_runs": sum(int(collector.getCollectionCount()) for collector in collectors),
            "gc_seconds": sum(int(collector.getCollectionTime()) for collector in collectors) / 1000,
            "threads": int(management.getThreadMXBean().getThreadCount()),
        }

    def ship(self) -> None:
        """Give executors their environment, if they need one, or only the secret. Raises ConfigError if a machine
        cannot run the environment; waits until there are executors for it."""
        from procession.spark.executor_probe import check_machines

        if self._shipped is not None:
            # The check waits for executors, also in a driver that has not had its turn. If the JVM is killed, it fails.
            self.watch(lambda error: None)
            check_machines(self.session, self._shipped)
            self.session.sparkContext.addArchive(self._shipped.location)
        elif self._secret:
            self.session.sparkContext.addFile(str(write_secret(self.scratch.directory, self._secret)))

    def start_workers(self) -> None:
        """Start the Python workers of this machine in the background."""
        from procession.spark.python_workers import start_python_workers

        if is_on_this_machine(self._master):
            start_python_workers(self.session, self._tasks)

    def start_resident_worker(self) -> None:
        """Start the resident worker before an epoch needs it."""
        if self.worker is not None:
            self.worker.start()

    def check_executors(self, *, has_services: bool) -> None:
        """Raise ConfigError if an executor on another machine cannot run our tasks. Waits until there are executors."""
        from procession.spark.executor_check import check_executors

        if not is_on_this_machine(self._master):
            check_executors(self.session, self._say, has_services=has_services)

    def end_worker(self) -> None:
        """End the resident worker, even while it runs an epoch."""
        if self.worker is not None:
            self.worker.close()

    def close(self) -> None:
        self.end_worker()
        with suppress(Exception):  # the JVM exits with this process in any case
            self.session.stop()
        self.scratch.close()


class Heartbeat:
    """Calls `silent` once when `received` has not been called for `timeout_s`."""

    def __init__(self, timeout_s: float, silent: Callable[[], None]) -> None:
        self._timeout_s = timeout_s
        self._silent = silent
        self._last = time.monotonic()
        self._is_over = threading.Event()

    def received(self) -> None:
        self._last = time.monotonic()

    def stop(self) -> None:
        self._is_over.set()

    def start(self) -> None:
        threading.Thread(target=self._run, name="heartbeat timeout", daemon=True).start()

    def _run(self) -> None:
        checked_at = time.monotonic()
        while not self._is_over.wait(self._timeout_s / 10):
            now = time.monotonic()
            if now - checked_at > self._timeout_s / 2:
                self._last = now  # this process did not run either: it or the machine was suspended
            checked_at = now
            if now - self._last > self._timeout_s:
                self._silent()
                return


class StartWatch:
    """Kills Spark's processes if none of them uses any CPU time for `timeout_s`.

    A JVM that starts uses CPU time, and one that waits for a cluster still uses some for its timers."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._beat = Heartbeat(timeout_s, self._kill)
        self._is_over = threading.Event()
        self.is_hung = False

    def start(self) -> None:
        threading.Thread(target=self._poll, name="start of Spark", daemon=True).start()
        self._beat.start()

    def stop(self) -> None:
        self._is_over.set()
        self._beat.stop()

    def _poll(self) -> None:
        used: dict[int, int] = {}
        while not self._is_over.wait(min(BEAT_S, self._timeout_s / 4)):
            before, used = used, {pid: processor_ns(pid) for pid in descendants(os.getpid())}
            if used != before or not any(used.values()):  # also if the system does not report CPU time
                self._beat.received()

    def _kill(self) -> None:
        if not self._is_over.is_set():
            self.is_hung = True
            for pid in descendants(os.getpid()):
                _kill(pid)


def descendants(pid: int) -> list[int]:
    """Return the child processes of this process, and their children."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            for child in map(int, path.read_text().split()):
                found += [child, *descendants(child)]
    return found


def processor_ns(pid: int) -> int:
    """Return the CPU time that the threads of a process have used, in nanoseconds."""
    used = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):
            used += int(path.read_text().split()[0])
    return used


def hung(timeout_s: float) -> ProcessionError:
    return ProcessionError(f"Spark's JVM did not answer for {timeout_s:g} s and was killed")


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _first(error: Exception) -> str:
    """Return the first line of an error; for an exception in the JVM, the first line of its message."""
    if thrown := getattr(error, "java_exception", None):
        return str(thrown.getMessage() or thrown.getClass().getName()).splitlines()[0]
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
