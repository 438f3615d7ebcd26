"""The resident worker: a process of the driver that runs all tasks of an epoch, one after the other.

Invariant: the worker decides nothing. If the worker does not finish an epoch, because of an error that may not occur
again or because it was killed, Spark runs the epoch. So the end of a worker only delays one epoch, and another worker
is started. Its task attempts have numbers that Spark does not use. The two processes exchange pickles over a socket
pair, which no other process can open. Used by `spark/small_epochs`.
"""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe

import structlog

from procession.spark.epoch_tasks import run_tasks, split
from procession.spark.manifest_routing import RoutedManifest
from procession.spark.tasks import Attempt, Task
from procession.storage.log_ranges import LogRange
from procession.storage.run_store import RESIDENT_ATTEMPTS

log = structlog.get_logger("driver")

ATTEMPTS_PER_EPOCH = 1 << 20

PROGRAM = f"from procession.process_start import prepare_imports as p; p(); from {__name__} import main; main()"
"""The program of the process. Imports are prepared before this module's imports load Arrow."""

Reply = list[RoutedManifest] | str
"""The worker's result of an epoch, or the reason why there is none."""


class ResidentWorker:
    """The driver's side: one worker process, replaced when it ends. Its first epoch starts it, unless `start` is called
    before: at the driver's start, other processes need the cores."""

    def __init__(self) -> None:
        self._program: bytes | None = None
        self._epochs = itertools.count()
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_ready = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start a process, which imports its modules while the driver continues."""
        with self._lock:
            if self._is_closed:
                return
            self._connection, theirs = Pipe()
            command = [sys.executable, "-c", PROGRAM, str(theirs.fileno())]
            # What functions print goes to the driver's log, as from Spark's workers. Ctrl-C in a terminal reaches the
            # driver's process group; the driver ends this process.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[theirs.fileno()], process_group=0
            )
            theirs.close()
        self._is_ready = False
        if self._program is not None:
            self._send(self._program)

    def load(self, task: Task) -> None:
        """Send the worker the tasks' program. The app's functions must already be registered for pickling by
        value."""
        from procession.spark.pickled_program import pickled

        self._program = pickled(task)
        if self._process is not None:
            self._send(self._program)

    def _send(self, data: bytes) -> bool:
        try:
            self._connection.send_bytes(data)
        except OSError:  # the worker has ended; `run` starts another one
            return False
        return True

    def run(self, epoch: int, first: int, pieces: tuple[LogRange, ...]) -> list[RoutedManifest] | None:
        """Run the tasks of an epoch. Return None if the worker is not ready, or has not finished them."""
        if self._process is None:
            self.start()
            return None
        try:
            if not self._is_ready:
                if not self._connection.poll():
                    return None
                self._connection.recv_bytes()
                self._is_ready = True
            attempts = RESIDENT_ATTEMPTS + ATTEMPTS_PER_EPOCH * next(self._epochs)
            self._connection.send_bytes(pickle.dumps((epoch, first, pieces, attempts)))
            reply: Reply = pickle.loads(self._connection.recv_bytes())
        except (OSError, EOFError):
            self._replace(epoch)
            return None
        if isinstance(reply, str):
            log.warning("small_epoch.failed", epoch=epoch, error=reply)
            return None
        return reply

    def _replace(self, epoch: int) -> None:
        status = self._end()
        if not self._is_closed:
            log.warning("small_epoch.worker_ended", epoch=epoch, status=status)
            self.start()

    def _end(self) -> int:
        """Wait until the process has ended, because it must not write while Spark's tasks run. Return its status."""
        assert self._process is not None
        self._process.kill()
        status = self._process.wait()
        self._connection.close()
        return status

    def close(self) -> None:
        """End the process. A `run` in another thread returns None."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()
                self._process.wait()


def serve(connection: Connection) -> None:
    """Run epochs until the driver closes the connection, or ends."""
    task: Task = pickle.loads(connection.recv_bytes())
    connection.send_bytes(b"ready")
    while True:
        epoch, first, pieces, attempts = pickle.loads(connection.recv_bytes())
        connection.send_bytes(pickle.dumps(_reply(task, epoch, first, pieces, itertools.count(attempts))))
        gc.freeze()  # the program's objects are never garbage


def _reply(task: Task, epoch: int, first: int, pieces: tuple[LogRange, ...], numbers: Iterator[int]) -> Reply:
    try:
        ranges = split(task, first, pieces, task.plan.chains[0].tasks)
        # No attempt counts as the last one: Spark's attempts handle an error that may not occur again.
        return run_tasks(task, ranges, lambda partition: Attempt(epoch, partition, next(numbers), is_last=False))
    except Exception as error:  # Spark runs the epoch, and reports the error if it happens again
        return f"{type(error).__name__}: {error}"


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as Spark does for its workers
    try:
        serve(Connection(int(sys.argv[1])))
    except (EOFError, ConnectionError):
        return
