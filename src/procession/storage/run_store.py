"""The run store: the output of a chain for one range, kept in files until its epoch is confirmed.

Invariant: a task's result is its *manifest*, published once by exclusive create under (epoch, stage, partition). A
second attempt of the same task returns the published manifest. So a retry can neither duplicate nor lose a record. Runs
are not fsynced, because they can be computed again from the log. `operators/chain` writes runs; `commit/sink_link`
sends them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import pyarrow as pa

from procession.errors import StorageError
from procession.format_number import check_format
from procession.record import ORDER
from procession.storage.batch_file import BatchFile, BatchWriter
from procession.storage.durable import storage_error
from procession.storage.log_ranges import LogRange

FORMAT = 2
"""Format number of manifests and of the layout of runs; in format 1 each run had its own file. Only the driver that
wrote a manifest, and its tasks, read it, so any other number is an error."""

RESIDENT_ATTEMPTS = 1 << 40
"""Number of the first task attempt that is not Spark's, but of the driver's resident worker. Spark counts from 0."""

EVERY_BUCKET = -1
"""The bucket of a `Run` that stands for the runs of all buckets of an exchange, which are in one file."""


FETCHED_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of small runs that a task fetches into memory. It reads further runs one by one."""


@dataclass(frozen=True)
class Run:
    """Rows of one path, in order, for a sink or for a bucket of an exchange. `to` is the id of the sink's or the
    exchange's node.

    The file has the rows of all buckets: its batches are marked with their bucket.
    """

    to: str
    bucket: int
    file: str
    count: int
    payload_bytes: int
    keys: int = 0
    """Number of columns of the order key. 0: the rows of several runs need no order."""
    host: str = ""
    """The host service that serves the file (`storage/host_runs`). Empty: all readers reach it by its path."""


@dataclass(frozen=True)
class Manifest:
    """The result of a task, which Spark moves instead of records: the places of its runs, and facts about its range.
    `stage` is the chain that the task ran; only the first chain has a range, records and positions.

    `times` are evenly spaced quantiles of the records' event times; `failure` is set instead of runs when the task must
    not be tried again (a user's function raised, a disk is full).
    """

    epoch: int
    stage: int
    partition: int
    first: int
    last: int
    records: int = 0
    runs: tuple[Run, ...] = ()
    positions: Mapping[int, int] = field(default_factory=dict)
    times: tuple[int, ...] = ()
    attempt: int = 0
    """Number of the attempt that made this manifest."""
    inputs_digest: int = 0
    """A digest of the attempts that made the task's own input."""
    failure: Mapping[str, Any] | None = None
    changes: tuple[tuple[int, int, bool, int], ...] = ()
    """The streams that started or ended in the range, for stages that fire at an end: see `operators/end_of_input`."""
    states: tuple[tuple[str, int], ...] | None = None
    """The files with the states of this task's keys after the epoch, if its chain begins with a stage with state."""
    pieces: tuple[LogRange, ...] = ()
    """The parts of the range in the gateways' logs."""
    late: int = 0
    """Number of late records. In the first chain: later than the watermark of their stream. In other chains: later than
    that of the chain's first stage."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """The amounts that the app's functions have added to its counters."""
    host: str = ""
    """The host service whose directory has the task's runs, if there is one."""
    spent_s: tuple[float, float] = field(default=(0.0, 0.0), compare=False)
    """Seconds that the task took to read (or merge) its input, and to run its stages. Only a report."""

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        fields = json.loads(text)
        check_format(Path("The manifest of a task"), fields.pop("format", None), FORMAT)
        fields["runs"] = tuple(Run(**run) for run in fields["runs"])
        fields["positions"] = {int(stream): last for stream, last in fields["positions"].items()}
        fields["times"] = tuple(fields["times"])
        fields["spent_s"] = tuple(fields.get("spent_s", (0.0, 0.0)))
        fields["changes"] = tuple(map(tuple, fields["changes"]))
        if fields.get("states") is not None:
            fields["states"] = tuple((name, count) for name, count in fields["states"])
        fields["pieces"] = tuple(map(LogRange.from_dict, fields.get("pieces", ())))
        return cls(**fields)


class Runs(Protocol):
    """The methods with which the driver and emitters use the runs of an epoch."""

    def read_all(self, epoch: int, runs: Sequence[Run]) -> list[Iterator[pa.RecordBatch]]:
        """Return the rows of these runs, each batch by batch."""

    def drop(self, epoch: int) -> None:
        """Remove an epoch, because it is confirmed or will be run again."""


class RemoteRuns(Protocol):
    """Runs in the directories of other machines."""

    def read(self, epoch: int, run: Run) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a run, batch by batch."""

    def read_small(self, epoch: int, runs: Sequence[Run]) -> Mapping[str, Sequence[pa.RecordBatch]]:
        """Fetch those of these runs that one request can return, by file. All runs are of one host and one bucket."""


class RunStore:
    """The runs of one driver's incarnation: a directory with one folder per epoch.

    With `host`, this is the directory of a host service, and runs of other hosts are read through `remote`.
    """

    def __init__(self, directory: Path, host: str = "", remote: RemoteRuns | None = None) -> None:
        self.directory = directory
        self._host = host
        self._remote = remote

    def writer(self, epoch: int, stage: int, partition: int, task_attempt: int) -> RunWriter:
        folder = self._folder(epoch)
        folder.mkdir(parents=True, exist_ok=True)
        return RunWriter(folder, f"{stage:04d}-{partition:06d}", task_attempt, self._host)

    def published(self, epoch: int, stage: int, partition: int) -> Manifest | None:
        """Return the manifest of this task, if an attempt has published one."""
        try:
            return _unsealed(self._folder(epoch) / f"{stage:04d}-{partition:06d}.manifest")
        except FileNotFoundError:
            return None

    def all_published(self, epoch: int, stage: int) -> Iterator[Manifest]:
        """Yield the manifests of all tasks of a stage that have published one."""
        for path in sorted(self._folder(epoch).glob(f"{stage:04d}-*.manifest")):
            yield _unsealed(path)

    def read(self, epoch: int, run: Run) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a run, batch by batch, from a memory map."""
        if self._remote is not None and run.host != self._host:
            yield from self._remote.read(epoch, run)
            return
        # Without a next step, because no person has to act. The driver restarts and computes the epoch again from the
        # log.
        file = BatchFile(self._folder(epoch) / run.file, what=f"of epoch {epoch} the run")
        yield from file.batches(mark=run.bucket)

    def read_all(self, epoch: int, runs: Sequence[Run]) -> list[Iterator[pa.RecordBatch]]:
        """Return the rows of these runs for one task, each like `read`. Small runs of another host are fetched
        together, because a request for each would cost more than its rows."""
        fetched: dict[tuple[str, str], Sequence[pa.RecordBatch]] = {}
        by_host: dict[str, list[Run]] = {}
        for run in runs if self._remote is not None else ():
            by_host.setdefault(run.host, []).append(run)
        by_host.pop(self._host, None)
        size = 0
        for host, of_host in by_host.items():
            is_worth = len({run.bucket for run in of_host}) == 1 < len(of_host)
            if is_worth and size < FETCHED_BYTES_MAX and self._remote is not None:
                for file, batches in self._remote.read_small(epoch, of_host).items():
                    fetched[host, file] = batches
                    size += sum(batch.get_total_buffer_size() for batch in batches)
        return [
            iter(fetched[run.host, run.file]) if (run.host, run.file) in fetched else self.read(epoch, run)
            for run in runs
        ]

    def land(self, epoch: int, run: Run, batches: Iterable[pa.RecordBatch]) -> None:
        """Store a run that was not written by a writer of this store."""
        folder = self._folder(epoch)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with pa.OSFile(str(folder / run.file), "wb") as file:
                writer = None
                for batch in batches:
                    writer = writer or BatchWriter(file, batch.schema, omits_zeros=True)
                    writer.write(batch, mark=run.bucket)
                if writer is not None:
                    writer.close()
        except OSError as error:
            raise storage_error(folder, "write runs in", error) from error

    def drop(self, epoch: int) -> None:
        """Remove an epoch, because it is confirmed or will be run again."""
        shutil.rmtree(self._folder(epoch), ignore_errors=True)

    def epochs(self) -> list[int]:
        """The epochs that have runs."""
        try:
            return sorted(int(path.name) for path in self.directory.iterdir() if path.name.isdigit())
        except FileNotFoundError:
            return []

    def clear_before(self, fence: int) -> None:
        """Remove the runs of every earlier driver, each of which has its own folder here. Runs of a later driver
        stay."""
        if self.directory.exists():
            for path in self.directory.iterdir():
                if path.name.isdigit() and int(path.name) < fence:
                    shutil.rmtree(path, ignore_errors=True)

    def _folder(self, epoch: int) -> Path:
        return self.directory / f"{epoch:020d}"


class RunWriter:
    """The runs of one task attempt. Files carry the attempt's number, so two attempts never write to one file. There is
    one file for each sink and exchange, so the number of files does not depend on the number of buckets."""

    def __init__(self, folder: Path, task: str, task_attempt: int, host: str = "") -> None:
        self._folder = folder
        self._host = host
        self._task = task
        self._task_attempt = task_attempt
        self._files: dict[str, tuple[pa.OSFile, BatchWriter]] = {}
        self._runs: dict[tuple[str, int], Run] = {}

    def add(self, to: str, rows: pa.RecordBatch, bucket: int = 0) -> None:
        """Append these rows to the run for a sink, or for a bucket of an exchange."""
        if not rows.num_rows:
            return
        name = f"{self._task}-{self._task_attempt}-{to}.arrow"
        try:
            if to not in self._files:
                file = pa.OSFile(str(self._folder / name), "wb")
                self._files[to] = file, BatchWriter(file, rows.schema, omits_zeros=True)
            self._files[to][1].write(rows, mark=bucket)
        except OSError as error:
            raise storage_error(self._folder, "write runs in", error) from error
        place = to, bucket
        run = self._runs.get(place)
        if run is None:
            keys = sum(column.startswith(ORDER) for column in rows.schema.names)
            run = Run(to, bucket, name, 0, 0, keys, self._host)
        self._runs[place] = replace(
            run,
            count=run.count + rows.num_rows,
            payload_bytes=run.payload_bytes + payload_bytes(rows.column("payload")),
        )

    def publish(self, manifest: Manifest, wide: Collection[str] = ()) -> Manifest:
        """Close the runs and publish the manifest with them. Returns the manifest that was published first.

        For the exchanges in `wide` the manifest has one run in place of one for each bucket.
        """
        published = self._folder / f"{self._task}.manifest"
        draft = self._folder / f"{self._task}-{self._task_attempt}.draft"
        runs = tuple(joined_runs(self._runs.values(), wide))
        whole = replace(manifest, attempt=self._task_attempt, runs=runs, host=self._host)
        try:
            for file, writer in self._files.values():
                writer.close()
                file.close()
            draft.write_bytes(_sealed(whole))
        except OSError as error:
            raise storage_error(self._folder, "write runs in", error) from error
        try:
            os.link(draft, published)
        except FileExistsError:
            first = _unsealed(published)
            if (first.first, first.last) != (manifest.first, manifest.last):
                raise StorageError(f"{published} is of another range than this task's", path=str(published)) from None
            return first
        finally:
            draft.unlink()
        return whole


def joined_runs(runs: Iterable[Run], wide: Collection[str]) -> Iterator[Run]:
    """Yield the runs. All runs for an exchange in `wide` are joined into one run."""
    joined: dict[str, Run] = {}
    for run in runs:
        if run.to not in wide:
            yield run
            continue
        so_far = joined.get(run.to, replace(run, bucket=EVERY_BUCKET, count=0, payload_bytes=0))
        joined[run.to] = replace(
            so_far, count=so_far.count + run.count, payload_bytes=so_far.payload_bytes + run.payload_bytes
        )
    yield from joined.values()


def _sealed(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest's file: its checksum, and its JSON."""
    text = manifest.to_json().encode()
    return b"%08x %s" % (crc32(text), text)


def _unsealed(path: Path) -> Manifest:
    checksum, _, text = path.read_bytes().partition(b" ")
    if checksum != b"%08x" % crc32(text):
        raise StorageError(f"the manifest {path} is damaged: it does not match its checksum", path=str(path))
    return Manifest.from_json(text.decode())


def payload_bytes(payload: pa.Array) -> int:
    """Return the bytes of the payloads of these rows."""
    # The offsets buffer gives the number of bytes between the first and the last row, without reading the data.
    offsets = payload.buffers()[1]
    ends = memoryview(offsets).cast("i")
    return int(ends[payload.offset + len(payload)] - ends[payload.offset])
