"""The checkpoint on a virtual disk: Spark's directory, a copy for each driver, `CURRENT`, and the round records.

Invariant, as in `commit/checkpoint`: `CURRENT` is replaced durably, then offsets, commits and rounds are copied in this
order, then the copy gets its name, then its driver decides. Every call is a `yield`, because two drivers work on one
directory and either can be stopped between any two calls. Spark's files are not synced, so a power cut can leave such a
file's name without its bytes; a driver writes the file again before it relies on it. Upstream: `simulated_driver` and
`simulated_spark`. Downstream: `disk_calls`.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping
from typing import Any

from procession.commit.round_record import RoundRecord
from procession.commit.stop_reasons import fenced
from procession.errors import StorageError
from procession.sim.disk_calls import Files, gone
from procession.sim.oracle import CHECKPOINT, read_round
from procession.sim.simulated_process import Steps
from procession.storage.log_ranges import LogOffset, read_offsets

CURRENT = "CURRENT"
CURRENT_PATH = f"{CHECKPOINT}/{CURRENT}"
ATTEMPTS = "attempts"
PLACES = f"{CHECKPOINT}/gateways"
DECIDED = "DECIDED"
EPOCHS_COPIED = 10
LINES = {"offsets": 2, "commits": 1}
"""How many ends of lines a whole file of Spark's has: none after the last line."""


class SimulatedCheckpoint:
    """One process's view of one driver's copy."""

    def __init__(self, files: Files, fence: int = 0) -> None:
        self._files = files
        self.fence = fence
        self._synced: set[str] = set()
        self._kept_places: set[str] = set()

    @property
    def fence(self) -> int:
        return self._fence

    @fence.setter
    def fence(self, fence: int) -> None:
        self._fence = fence
        self.directory = f"{CHECKPOINT}/{fence:010d}"

    # The fence

    def current(self) -> int:
        return int(self._files.read(CURRENT_PATH) or b"0")

    def check_fence(self) -> None:
        current = self.current()
        if current != self.fence:
            raise fenced(self.fence, current)

    @property
    def is_current(self) -> bool:
        """Whether no other driver has taken over."""
        return self.current() == self.fence

    def claim(self) -> Steps:
        """Take over. The caller holds the lock of the directory until `CURRENT` is replaced."""
        files = self._files
        files.make_directory(CHECKPOINT)
        files.sync_directory("")
        self.fence = self.current() + 1
        yield
        if any(fence >= self.fence for fence in self._copies()):
            raise StorageError(f"{CURRENT} does not name the last driver of this checkpoint.", next_step="Restore it.")
        yield from write_durably(files, CHECKPOINT, CURRENT, b"%d" % self.fence)

    def copy_last(self) -> Steps:
        files, complete = self._files, self._copies()
        draft = f"{CHECKPOINT}/{self.fence:010d}.draft"
        files.make_directory(draft)
        if complete:
            last = f"{CHECKPOINT}/{complete[-1]:010d}"
            for part in ("offsets", "commits"):
                yield from self._copy_files(f"{last}/{part}", f"{draft}/{part}")
            committed = _newest(files.names(f"{draft}/commits"))
            yield from self._copy_files(f"{last}/rounds", f"{draft}/rounds", up_to=committed)
            reserved = self._files.read(f"{last}/{ATTEMPTS}") or b"%d" % (committed + 1)
            yield from write_durably(files, draft, ATTEMPTS, reserved)
            files.write(f"{draft}/{DECIDED}", b"%d" % committed)
            if not files.exists(last):
                raise StorageError(f"{last} was cleared away while it was copied: drivers start at the same time")
        files.sync_directory(draft)
        yield
        files.rename(CHECKPOINT, f"{self.fence:010d}.draft", f"{self.fence:010d}")
        yield
        files.sync_directory(CHECKPOINT)
        yield
        for fence in complete[:-1]:
            files.remove(CHECKPOINT, f"{fence:010d}")
        for name in files.names(CHECKPOINT):
            if name.endswith(".draft") and name[:10].isdigit() and int(name[:10]) < self.fence:
                files.remove(CHECKPOINT, name)

    def _copy_files(self, source: str, target: str, up_to: int | None = None) -> Steps:
        files = self._files
        if not files.exists(target.rpartition("/")[0]):
            raise gone(target)  # a successor has cleared our draft away
        files.make_directory(target)
        names = {int(name): name for name in files.names(source) if name.isdigit()}
        yield
        # A power cut may leave Spark's newest file torn. Nothing was built on a file that was not synced.
        while names and not is_whole(files.read(f"{source}/{names[max(names)]}"), source.rpartition("/")[2]):
            del names[max(names)]
        for epoch in sorted(epoch for epoch in names if up_to is None or epoch <= up_to)[-EPOCHS_COPIED:]:
            data = files.read(f"{source}/{names[epoch]}")
            if data is not None:
                files.write(f"{target}/{names[epoch]}", data)
                files.sync(f"{target}/{names[epoch]}")
            yield
        files.sync_directory(target)
        yield

    def _copies(self) -> list[int]:
        return sorted(int(name) for name in self._files.names(CHECKPOINT) if name.isdigit())

    # Spark's log

    @property
    def offered(self) -> int:
        return _newest(self._files.names(f"{self.directory}/offsets"))

    @property
    def committed(self) -> int:
        """The last epoch whose `commits/N` is there and whole: the one test of what is decided."""
        folder = f"{self.directory}/commits"
        epochs = sorted(map(int, filter(str.isdigit, self._files.names(folder))), reverse=True)
        return next((epoch for epoch in epochs if is_whole(self._files.read(f"{folder}/{epoch}"), "commits")), -1)

    @property
    def decided(self) -> int:
        """The last epoch whose commit is durable, as the driver of this copy reports it to its helper."""
        return int(self._files.read(f"{self.directory}/{DECIDED}") or b"-1")

    def check(self) -> None:
        offered, committed = self.offered, self.committed
        if offered - committed not in (0, 1):
            raise StorageError(
                f"the checkpoint has offsets up to epoch {offered} but commits up to {committed}",
                next_step="restore the checkpoint directory from a copy",
            )

    def offset(self, epoch: int) -> dict[str, LogOffset]:
        """Where the epoch ends at each gateway. A file that is there but cannot be read stops Spark, and us."""
        text = self._files.read(f"{self.directory}/offsets/{epoch}") or b""
        try:
            return read_offsets(json.loads(text.splitlines()[-1]))
        except (ValueError, IndexError, AttributeError, TypeError) as error:
            raise StorageError(f"offsets/{epoch} is damaged: {error!r}", next_step="restore the checkpoint") from error

    def check_commit(self, epoch: int) -> None:
        """Spark reads the last commit when it starts."""
        text = self._files.read(f"{self.directory}/commits/{epoch}") or b""
        if not is_whole(text, "commits"):
            raise StorageError(f"commits/{epoch} is damaged: {text!r}", next_step="restore the checkpoint")

    def is_committed(self, epoch: int) -> bool:
        return self.committed >= epoch

    def write_offset(self, epoch: int, ends: Mapping[str, LogOffset]) -> Steps:
        """Spark's way: a draft that is renamed, and nothing is synced."""
        offsets = {name: end.as_json() for name, end in ends.items()}
        yield from self._write_spark("offsets", epoch, b"v1\n{}\n" + json.dumps(offsets).encode())

    def write_commit(self, epoch: int) -> Steps:
        yield from self._write_spark("commits", epoch, b'v1\n{"nextBatchWatermarkMs":0}')

    def _write_spark(self, part: str, epoch: int, data: bytes) -> Steps:
        folder = f"{self.directory}/{part}"
        if self._files.disk.directory(self.directory) is None:
            raise StorageError(f"{self.directory} is gone")  # a successor cleared it away
        self._files.make_directory(folder)
        self._files.write(f"{folder}/.{epoch}.tmp", data)
        yield
        self._files.rename(folder, f".{epoch}.tmp", str(epoch))
        yield

    def sync_offsets(self, epoch: int) -> Steps:
        yield from self._sync("offsets", epoch)

    def sync_commit(self, epoch: int) -> Steps:
        yield from self._sync("commits", epoch)
        self._files.write(f"{self.directory}/{DECIDED}", b"%d" % epoch)

    def _sync(self, part: str, epoch: int) -> Steps:
        """As `SparkLog._renew`: what Spark wrote, in a new file of ours."""
        folder = f"{self.directory}/{part}"
        data = self._files.read(f"{folder}/{epoch}")
        if data is None or not is_whole(data, part):
            raise StorageError(f"{part}/{epoch} is not whole")
        yield from write_durably(self._files, folder, str(epoch), data)
        if part not in self._synced:
            self._synced.add(part)  # the folder itself is made only once
            self._files.sync_directory(self.directory)
            yield

    def durable_offset(self, epoch: int) -> bytes | None:
        return self._files.disk.durable_file(f"{self.directory}/offsets/{epoch}")

    # Log locations, which all drivers share: here only the names of the gateways

    @property
    def places(self) -> list[str]:
        return [name for name in self._files.names(PLACES) if not name.endswith(".draft")]

    def keep_places(self, gateways: Iterable[str]) -> None:
        """Each process writes them once: what is found there may not be durable."""
        for name in gateways:
            if name not in self._kept_places:
                self._files.make_directory(PLACES)
                self._files.sync_directory(CHECKPOINT)
                self._files.write_durably(PLACES, name, b"{}")
                self._kept_places.add(name)

    # Numbers of attempts

    @property
    def reserved(self) -> int:
        return int(self._files.read(f"{self.directory}/{ATTEMPTS}") or self.committed + 1)

    def reserve(self, number: int) -> Steps:
        yield from write_durably(self._files, self.directory, ATTEMPTS, b"%d" % number)
        self.check_fence()

    # Round records

    def write_round(self, record: RoundRecord) -> Steps:
        if not self._files.exists(f"{self.directory}/rounds"):
            self._files.make_directory(f"{self.directory}/rounds")
            self._files.sync_directory(self.directory)
        yield from write_durably(self._files, f"{self.directory}/rounds", f"{record.epoch:020d}", record.to_json())

    def round(self, epoch: int) -> RoundRecord:
        """As `Rounds._must`: what names that with which the next epoch begins."""
        data = self._files.read(f"{self.directory}/rounds/{epoch:020d}")
        if not data:
            raise StorageError(f"there is no round record of epoch {epoch}", next_step="restore the checkpoint")
        return read_round(data)

    def rounds(self) -> dict[int, RoundRecord]:
        folder = f"{self.directory}/rounds"
        names = [name for name in self._files.names(folder) if name.isdigit()]
        return {int(name): read_round(self._files.read(f"{folder}/{name}") or b"") for name in names}


def write_durably(files: Files, folder: str, name: str, data: bytes) -> Generator[None, None, Any]:
    draft = f"{name}.draft"
    files.write(f"{folder}/{draft}", data)
    yield
    files.sync(f"{folder}/{draft}")
    files.rename(folder, draft, name)
    yield
    files.sync_directory(folder)
    yield


def is_whole(text: bytes | None, part: str) -> bool:
    """Whether a file of Spark's is all there: it has its lines, and the last one is a JSON object."""
    return text is not None and text.count(b"\n") >= LINES.get(part, 0) and text.endswith(b"}")


def _newest(names: list[str]) -> int:
    return max(map(int, filter(str.isdigit, names)), default=-1)
