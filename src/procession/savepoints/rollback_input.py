"""Provides the input of a rollback past commits: finds the later records, and sets the gateways back.

Invariant: the checks change nothing, and name every obstacle. There are two ways. Either the logs of the
gateways still have every row after the savepoint, and offer them again (`KeptInput`); the positions of producers then
stay. Or the sources send these records again (`RewoundInput`): the gateways report the positions of the savepoint to
them, and drop all existing rows. Sequence numbers never decrease: repeated records get new numbers, and later
rollbacks never read dropped rows (`REWOUND`). Each step can be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow.compute as pc

from procession import faults
from procession.commit.round_record import RoundRecord
from procession.commit.spark_log import parse_offsets
from procession.connectors.source_rewind import SourcePlace, SourceRewind
from procession.deployment.run_details import read_details
from procession.errors import ConfigError, ProcessionError
from procession.gateway import retired_file
from procession.gateway.confirmation import check_offered
from procession.gateway.gateway_directory import MemberFile, load_snapshot, save_snapshot
from procession.gateway.members import MemberStatus, members_of
from procession.gateway.retired_streams import entries
from procession.gateway.snapshot import Snapshot
from procession.planner.connector_registry import load, source_of
from procession.record import id_in_share
from procession.savepoints.savepoint import Savepoint, gateway_directories
from procession.savepoints.savepoint_create import REPLAYED, marked_end
from procession.storage.driver_claim import checkpoint_of
from procession.storage.durable import lock_directory, write_durably
from procession.storage.log import IngressLog
from procession.storage.log_ranges import FIRST_GATEWAY, LogOffset, numbered_from
from procession.storage.log_reader import LogReader
from procession.storage.recovery import recover_log
from procession.storage.segment import INGRESS, ORDERED, LogUse, SegmentIndex

REWOUND = "rewound.json"
"""File in a gateway's directory: the position up to which a rollback has dropped rows."""
FORMAT = 1
"""Format of that file, of `replayed.json` and of `rolled-back.json`."""
NAMED_MAX = 10
"""Maximum number of streams that an error names."""


@dataclass(frozen=True)
class FoundLog:
    """A log that is read from its files, without opening it."""

    segments: Sequence[SegmentIndex]

    @property
    def start_sequence(self) -> int:
        return self.segments[0].base if self.segments else 0

    @property
    def next_sequence(self) -> int:
        return self.segments[-1].end if self.segments else 0

    def offset(self, sequence: int) -> LogOffset:
        segment = next(segment for segment in reversed(self.segments) if segment.base <= sequence)
        return LogOffset(sequence, f"{segment.header.incarnation:016x}", f"{segment.checksum_at(sequence):016x}")


@dataclass(frozen=True)
class StoppedGateway:
    """The directory of a gateway that does not run."""

    name: str
    directory: Path
    snapshot: Snapshot

    @property
    def is_in_event_time(self) -> bool:
        return self.snapshot.point is not None

    @property
    def log_directory(self) -> Path:
        """The log that the driver reads."""
        return self.directory / ("ordered" if self.is_in_event_time else "log")

    @property
    def use(self) -> LogUse:
        return ORDERED if self.is_in_event_time else INGRESS

    def log(self) -> FoundLog:
        return FoundLog(recover_log(self.log_directory, self.use).segments)

    def streams_from(self, sequence: int) -> frozenset[int]:
        """Return the streams with rows in the log from this sequence number on."""
        log, reader = self.log(), LogReader(self.log_directory, self.use)
        start = max(sequence, log.start_sequence)
        try:
            found = (pc.unique(batch.column("stream_id")) for batch in reader.read(start, log.next_sequence))
            return frozenset(stream for streams in found for stream in streams.to_pylist())
        finally:
            reader.close()


@dataclass(frozen=True)
class LaterInput:
    """The facts for both ways: the savepoint, the last committed round, and the gateways of this machine."""

    directory: Path
    savepoint: Savepoint
    last: RoundRecord

    @cached_property
    def gateways(self) -> dict[str, StoppedGateway]:
        return {
            name: StoppedGateway(name, path, load_snapshot(path) or Snapshot())
            for name, path in gateway_directories(self.directory).items()
            if (path / "log").exists()
        }

    @cached_property
    def saved_offsets(self) -> tuple[bytes, dict[str, LogOffset]]:
        """Return Spark's offsets of the savepoint's epoch, as text and parsed."""
        path = checkpoint_of(self.savepoint.directory) / "offsets" / str(self.savepoint.epoch)
        data = path.read_bytes()
        return data, parse_offsets(data, path)

    def unusable(self) -> list[str]:
        """Return why gateways cannot be used: their directories are missing here, or they run."""
        named = {*self.last.offsets, *self.saved_offsets[1]}
        found = [f"the log of {name} is on another machine" for name in sorted(named - self.gateways.keys())]
        for name, gateway in self.gateways.items():
            try:
                lock_directory(gateway.directory / "log").close()
            except ProcessionError:
                found.append(f"{name} still runs")
        return found

    @cached_property
    def departed(self) -> frozenset[str]:
        """Return the gateways that have left the pipeline."""
        store = MemberFile(gateway_directories(self.directory)[FIRST_GATEWAY])
        data = store.load()
        known = {} if data is None else members_of(data, store.path)
        return frozenset(name for name, member in known.items() if member.standing is MemberStatus.LEFT)

    @cached_property
    def positions(self) -> dict[int, int]:
        """The committed message id of each stream, as the gateways know it now."""
        found: dict[int, int] = {}
        for gateway in self.gateways.values():
            known = _positions(gateway.snapshot, gateway.directory)
            found |= {stream: max(at, found.get(stream, at)) for stream, at in known.items()}
        return found

    @cached_property
    def saved_positions(self) -> dict[int, int]:
        return _positions(self.savepoint.snapshot, self.savepoint.directory / "gateway")

    @cached_property
    def later(self) -> dict[int, int]:
        """The streams with committed records after the savepoint, and their positions now."""
        saved = self.saved_positions
        return {stream: at for stream, at in self.positions.items() if stream not in saved or saved[stream] < at}

    def named(self, streams: Iterable[int]) -> str:
        """Return the names of these streams, for a sentence."""
        names = {
            stream: at.name for gateway in self.gateways.values() for stream, at in gateway.snapshot.streams.items()
        }
        shown = sorted(names.get(stream) or str(stream) for stream in streams)
        more = f" and {len(shown) - NAMED_MAX} more" if len(shown) > NAMED_MAX else ""
        return f"streams {', '.join(shown[:NAMED_MAX])}{more}" if shown else "all streams"


class TakenAgain(NamedTuple):
    """The amount of input that is processed again."""

    rows: int = 0
    """Number of rows of the logs."""
    streams: int = 0
    """Number of streams whose sources send records again."""


class InputAgain(Protocol):
    """A way to get the later records again."""

    name: str

    @property
    def offsets(self) -> bytes:
        """Return Spark's offsets of the last epoch after the rollback."""

    def problems(self) -> list[str]:
        """Return why this way is impossible; empty if it is possible. Changes nothing."""

    def prepare(self) -> None:
        """Prepare the input. Called before the checkpoint is changed."""

    def changed(self, record: RoundRecord) -> RoundRecord:
        """Return the record of the last epoch with its ends after the rollback."""

    def perform(self) -> TakenAgain:
        """Set the gateways back."""


class KeptInput:
    """Uses the later records in the logs. Producers are not asked to send them again, because they may have dropped
    them."""

    name = "log"

    def __init__(self, input_: LaterInput) -> None:
        self._input = input_
        self.offsets, self._from = input_.saved_offsets

    def problems(self) -> list[str]:
        if found := self._input.unusable():
            return found
        gateways = self._input.gateways
        starts = {name: self._from.get(name, LogOffset()) for name in self._input.last.offsets}
        changed = {name: at for name, at in starts.items() if self._input.last.offsets[name] != at.sequence}
        if gone := sorted(changed.keys() & self._input.departed):
            return [f"{', '.join(gone)} has left the pipeline, and its log has later records"]
        try:
            for name, at in changed.items():
                gateway = gateways[name]
                if marked_end(gateway.directory / REWOUND) > at.sequence:
                    raise ConfigError("A rollback has left out rows of the log.", next_step="")
                check_offered(log := gateway.log(), at, name)
                if not log.start_sequence <= at.sequence <= self._input.last.offsets[name] <= log.next_sequence:
                    raise ConfigError(f"The log of {name} does not have all of it.", next_step="")
        except ProcessionError:
            return [
                f"the later records of {self._input.named(self._input.later)} are not in the log any more;"
                " `procession savepoint create --keep-input` keeps them"
            ]
        # In event-time order a row has the same position in any log.
        if len(changed) > 1 and not any(gateways[name].is_in_event_time for name in changed):
            found_in: dict[int, str] = {}
            moved: set[int] = set()
            for name, at in changed.items():
                for stream in gateways[name].streams_from(at.sequence):
                    if found_in.setdefault(stream, name) != name:
                        moved.add(stream)
            if moved:
                return [
                    f"{self._input.named(moved)} moved from one gateway to another since, so their order is not in the"
                    " logs"
                ]
        return []

    def prepare(self) -> None:
        """Do nothing: the logs do not change."""

    def changed(self, record: RoundRecord) -> RoundRecord:
        return record

    def perform(self) -> TakenAgain:
        rows = 0
        for name, gateway in self._input.gateways.items():
            start = self._from.get(name, LogOffset()).sequence
            end = max(marked_end(gateway.directory / REPLAYED), gateway.snapshot.end_sequence)
            if end > start:
                write_durably(gateway.directory / REPLAYED, json.dumps({"format": FORMAT, "end": end}).encode())
                faults.point("rollback:before-snapshot")
            save_snapshot(
                gateway.directory, replace(gateway.snapshot, epoch=self._input.last.epoch, end_sequence=start)
            )
            rows += max(0, end - start)
        return TakenAgain(rows=rows)


class RewoundInput:
    """Lets the sources send the later records again. All existing rows of the logs are dropped."""

    name = "sources"

    def __init__(self, input_: LaterInput, files: Sequence[Path] = ()) -> None:
        """Use these `files` for streams of producers that the pipeline does not start."""
        self._input = input_
        self._files = files
        self._ends: dict[str, LogOffset] = {}

    def problems(self) -> list[str]:
        if found := self._input.unusable():
            return found
        gateways = self._input.gateways
        if any(gateway.is_in_event_time for gateway in gateways.values()):
            return ["the pipeline is in event-time order, whose sources cannot be read again from a savepoint"]
        if not self._input.savepoint.manifest["has_streams"]:
            return ["the savepoint does not know the committed positions of the streams"]
        later, saved = self._input.later, self._input.saved_positions
        waiting = {
            stream for gateway in gateways.values() for stream in gateway.streams_from(gateway.snapshot.end_sequence)
        }
        reasons, owners = self._sources()
        unknown = {stream for stream in later.keys() | waiting if stream not in owners}
        problems = []
        if unknown:
            what = f"no source that this pipeline starts sends {self._input.named(unknown)}"
            problems.append(f"{what} ({'; '.join(reasons)})" if reasons else what)
        for stream in sorted((later.keys() | waiting) - unknown):
            source, own_id = owners[stream]
            try:
                source.check(own_id, saved.get(stream), self._input.positions.get(stream))
            except ProcessionError as error:
                what = f"the later records of {self._input.named([stream])} cannot be read again"
                problems.append(f"{what}: {error.sentence.rstrip('.')}")
        return problems

    def _sources(self) -> tuple[list[str], dict[int, tuple[SourceRewind, int]]]:
        """Return why sources cannot be read again, and for each other stream its source and its id there."""
        details = read_details(self._input.directory)
        reasons: list[str] = []
        owners: dict[int, tuple[SourceRewind, int]] = {}
        files = [str(Path(path).absolute()) for path in [*details.get("inputs", []), *self._files]]
        for place in [
            *map(SourcePlace.of_file, files),
            *map(SourcePlace.of, details.get("source_places", {}).values()),
        ]:
            try:
                connector, url = source_of(place.url, f"source {place.source!r}")
                assert connector.source is not None
                if not connector.source.rewind:
                    reasons.append(f"source {place.source!r} ({connector.name}) cannot be read again")
                    continue
                source: SourceRewind = load(connector.source.rewind)(place, url)
            except ProcessionError as error:
                reasons.append(f"source {place.source!r}: {error.sentence.rstrip('.')}")
                continue
            for own_id in source.stream_ids:
                owners[own_id if place.share is None else id_in_share(place.share, own_id)] = source, own_id
        return reasons, owners

    def prepare(self) -> None:
        """Find the ends of the logs and make them durable. No row below them is offered again."""
        for name, gateway in self._input.gateways.items():
            with IngressLog(gateway.log_directory, committed_end=gateway.snapshot.end_sequence) as log:
                self._ends[name] = log.offset(log.next_sequence)
            end = {"format": FORMAT, "end": self._ends[name].sequence}
            write_durably(gateway.directory / REWOUND, json.dumps(end).encode())

    @property
    def offsets(self) -> bytes:
        """Return Spark's offsets of the last epoch, at the ends of the logs."""
        data, _ = self._input.saved_offsets
        *head, _ = data.decode().splitlines()
        return "\n".join([*head, json.dumps({name: at.as_json() for name, at in self._ends.items()})]).encode()

    def changed(self, record: RoundRecord) -> RoundRecord:
        ends = {name: at.sequence for name, at in self._ends.items()}
        number = numbered_from(ends)
        return replace(record, ends=ends, first=number, last=number)

    def perform(self) -> TakenAgain:
        streams = len(self._input.later)
        saved, saved_in = self._input.savepoint.snapshot, self._input.savepoint.directory / "gateway"
        for number, (name, gateway) in enumerate(reversed(self._input.gateways.items())):
            is_first = number == len(self._input.gateways) - 1
            now, end = gateway.snapshot, self._ends[name].sequence
            mark = saved.retired
            if is_first and mark is not None:
                data = retired_file.read(saved_in, mark)
                clock_s = mark.clock_s if now.retired is None else max(mark.clock_s, now.retired.clock_s)
                mark = mark._replace(number=_next_number(gateway.directory), clock_s=clock_s)
                write_durably(retired_file.path_of(gateway.directory, mark.number), data)
            known = {id_: at for id_, at in saved.streams.items() if is_first or id_ in now.streams}
            faults.point("rollback:before-snapshot")
            save_snapshot(
                gateway.directory,
                Snapshot(now.fence, self._input.last.epoch, end, end, known, retired=mark if is_first else None),
            )
        return TakenAgain(streams=streams)


def _positions(snapshot: Snapshot, directory: Path) -> dict[int, int]:
    """Return the positions of a snapshot and of the retired streams that it names."""
    retired = b"" if snapshot.retired is None else retired_file.read(directory, snapshot.retired)
    known = {stream: committed for stream, committed, _ in entries(retired)}
    return known | {stream: at.committed for stream, at in snapshot.streams.items()}


def _next_number(directory: Path) -> int:
    """Return the first unused number of a file of retired streams."""
    return next(number for number in count() if not retired_file.path_of(directory, number).exists())


def possible(ways: Sequence[InputAgain]) -> tuple[InputAgain | None, list[str]]:
    """Return the first way that is possible. Raises ConfigError with all problems if no way is possible."""
    problems: dict[str, None] = {}
    for way in ways:
        found = way.problems()
        if not found:
            return way, []
        problems |= dict.fromkeys(found)
    return None, list(problems)
