"""Simulates object services and one replicated directory: the shipped files, journal and restore on simulated hosts.

Invariant: after any loss of machines within the limits of `docs/decisions/0017`, a file that was written durably
exists with that content or a later one. A replaced process completes no further sync. `sim/replica_world` has the
services and the faults; here a writer changes files, and its successor checks them, on the same disk or after a
restore on an empty one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from procession.errors import FencedError, ProcessionError
from procession.runtime.files import FileSystem, OpenMode
from procession.runtime.host import Host
from procession.sim.disk import SimulatedPath
from procession.sim.environment import Environment, Machine
from procession.sim.oracle import InvariantViolation
from procession.sim.randomness import Randomness
from procession.sim.replica_world import VOLUME, ReplicaPlan, ReplicaWorld, SimulatedWriter, random_bits
from procession.sim.simulated_files import SimulatedFileSystem
from procession.sim.simulated_process import SimulatedProcess, Steps
from procession.sos.directory_restore import STAGING, restore_directory
from procession.sos.file_journal import FileJournal
from procession.sos.replica_marker import ReplicaMarker
from procession.sos.replicated_files import MARKER, ReplicatedFiles
from procession.sos.replicated_volume import NoVolume, ReplicatedVolume
from procession.storage.durable import make_directory, storage_error, write_durably

DIRECTORY = SimulatedPath("d")
NAMES = ("a", "b", "log")
WAIT_S = 0.002
ON_THE_SAME_DISK = 0.5
"""Probability that a killed writer is restarted on its machine. Otherwise the machine is lost, too."""
SNAPSHOT_BYTES_MIN = 400


class SimulatedCondition:
    """A condition variable for the threads of a simulated process. Only one of them runs at any time."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def wait_for(self, predicate: Callable[[], bool]) -> bool:
        while not predicate():
            if not self._process.wait(WAIT_S):
                raise AssertionError("a call that cannot be suspended waits for the quorum")
        return True

    def notify_all(self) -> None: ...


class DirectoryOracle:
    """Compares durable writes with the files that successors find. A successor is a process with a higher fence."""

    def __init__(self) -> None:
        self.acknowledged: dict[bytes, int] = {}
        """Each durable value, with the fence of its writer."""
        self._durable: list[tuple[int, str, int]] = []
        self._found: list[tuple[int, dict[str, int]]] = []
        self._values = 0

    def next_value(self) -> int:
        self._values += 1
        return self._values

    def started(self, fence: int, restored: dict[str, int]) -> None:
        self._found.append((fence, restored))
        for earlier, name, value in self._durable:
            _check(earlier, name, value, fence, restored)

    def durable(self, fence: int, name: str, value: int) -> None:
        self._durable.append((fence, name, value))
        self.acknowledged[b"%d" % value] = fence
        for successor, found in self._found:
            _check(fence, name, value, successor, found)


def _check(fence: int, name: str, value: int, successor: int, found: dict[str, int]) -> None:
    if fence < successor and found.get(name, 0) < value:
        raise InvariantViolation(
            "R1", f"fence {successor} starts with {name}={found.get(name)}, but {value} was durable under {fence}"
        )


class DirectoryWriter(SimulatedWriter):
    """A process with a replicated directory, which it restores first if its disk is empty."""

    def __init__(self, site: Environment, machine: Machine, world: DirectoryWorld, name: int) -> None:
        super().__init__(site, machine, world, name)
        self._files = SimulatedFileSystem(self, machine.disk)
        self._directory_oracle = world.directory
        self._host = Host(files=self._files, random_bits=lambda bits: random_bits(site.chance, bits))

    async def write(self) -> None:
        try:
            await self._work()
        except FencedError as error:
            self.site.log_event(self.part, "! %s", error.sentence)
            self.later(0.0, self.kill)
        except (OSError, ProcessionError) as error:
            if "claimed the volume" not in str(error):
                raise
            self.site.log_event(self.part, "! %s", str(error))
            self.later(0.0, self.kill)

    async def _work(self) -> None:
        options, files, world = self.volume._options, self._files, self._world
        has_history = bool(self._directory_oracle.acknowledged) or self._name > 1
        if has_history and not files.exists(DIRECTORY / MARKER):
            if files.exists(DIRECTORY) and STAGING not in files.names(DIRECTORY):
                files.remove_tree(DIRECTORY)  # the operator does the next step of the error
            try:
                await restore_directory(VOLUME, options, DIRECTORY, host=self._host)
            except NoVolume:
                if self._directory_oracle.acknowledged:
                    # The first writer has started meanwhile: the operator tries again.
                    self.later(0.0, self.kill)
                    return
                # The first writer was lost before it started.
                files.remove_tree(DIRECTORY)
        make_directory(DIRECTORY, files)
        marker = ReplicaMarker(DIRECTORY, VOLUME, files)
        self.volume = volume = ReplicatedVolume(
            VOLUME,
            options,
            may_begin=not marker.has_begun,
            own_fences=marker.fences,
            on_create=marker.add,
            host=self._host,
        )
        await volume.open()
        fence = volume.fence
        journal = FileJournal(volume, SimulatedCondition(self), self.loop)
        self.spawn(journal.run(lambda sentence: None))
        replicated = ReplicatedFiles(files, DIRECTORY, journal, snapshot_bytes_min=SNAPSHOT_BYTES_MIN)
        await self._blocking(replicated.begin)
        marker.begun()
        await volume.retain_from(fence)
        self._directory_oracle.started(fence, self._values())
        self.site.log_event(self.part, "= writer %s has the directory with fence %s", self._name, fence)
        while len(self._directory_oracle.acknowledged) < world.plan.appends:
            if self.site.chance.random() < 0.1:
                mark = await journal.roll()
                await self._blocking(replicated.snapshot)
                await journal.retain(mark)
            await self._blocking(self._change, replicated)
        self.history = list(self._directory_oracle.acknowledged)
        self.is_done = True

    def _change(self, files: FileSystem) -> None:
        name, value = self.site.chance.choice(NAMES), self._directory_oracle.next_value()
        path = DIRECTORY / name
        if name != "log":
            write_durably(path, b"%d" % value, files)
        else:
            self._append(files, value)
        self._directory_oracle.durable(self.volume.fence, name, value)

    def _append(self, files: FileSystem, value: int) -> None:
        """Append to a log, in which the last line counts."""
        path = DIRECTORY / "log"
        is_new = not files.exists(path)
        try:
            with files.open(path, OpenMode.CREATE) as file:
                file.write(file.size, b"%d\n" % value)
                file.sync()
            if is_new or self.site.chance.random() < 0.3:
                files.sync_directory(DIRECTORY)
        except OSError as error:
            raise storage_error(path, "write", error) from error

    def _values(self) -> dict[str, int]:
        found = {}
        for name in NAMES:
            if self._files.exists(path := DIRECTORY / name):
                lines = self._files.read(path).split(b"\n")
                found[name] = max((int(line) for line in lines if line), default=0)
        return found

    async def _blocking(self, call: Callable[..., Any], *args: Any) -> None:
        """Make a call in a thread that can wait."""
        done = self.loop.create_future()

        def steps() -> Steps:
            try:
                yield from self.blocking(call, *args)
            except Exception as error:
                self.loop.call_soon(done.set_exception, error)
            else:
                self.loop.call_soon(done.set_result, None)

        self.start_thread(steps())
        await done


class DirectoryWorld(ReplicaWorld):
    def __init__(self, plan: ReplicaPlan, chance: Randomness, *, is_recorded: bool = False) -> None:
        super().__init__(replace(plan, roll_bytes=max(plan.roll_bytes, 60)), chance, is_recorded=is_recorded)
        self.directory = DirectoryOracle()
        self._machine = Machine("w")

    @property
    def acknowledged(self) -> int:
        return len(self.directory.acknowledged)

    def start_writer(self) -> SimulatedWriter:
        self.writers += 1
        if self._is_calm or self.site.chance.random() > ON_THE_SAME_DISK:
            self._machine = Machine("w")
        self._current = DirectoryWriter(self.site, self._machine, self, self.writers)
        self._current.start()
        return self._current

    def take_over(self) -> None:
        if not self._is_calm:
            self._machine = Machine("w")
            super().take_over()


@contextmanager
def directory_world(plan: ReplicaPlan, chance: Randomness, *, is_recorded: bool = False) -> Iterator[DirectoryWorld]:
    """Yield a world, whose memory is freed at the end."""
    world = DirectoryWorld(plan, chance, is_recorded=is_recorded)
    try:
        yield world
    finally:
        world.dismantle()
