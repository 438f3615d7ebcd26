"""The merger of lanes: reads the lanes of a sink and emits their records in the order of the sequential run.

Invariant: a turn is one epoch of all lanes, merged by the order key (`merge/kway`), one block of each lane at a time.
So memory does not depend on the size of an epoch. A turn counts only after a check: the lanes belong together, and no
lane has lost a record. `position` is where to continue; `sdk/merge_output` stores it with the output. Any number of
mergers may read the same lanes, because a merger never changes a lane.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, NamedTuple

import pyarrow as pa

from procession.errors import ConfigError, StorageError
from procession.format_number import check_format
from procession.merge.kway import merged as merged_paths
from procession.merge.lane_order import NOTHING, Emitted, LaneOrder, LaneTurn
from procession.sdk.lane_files import LaneReader, OpenLanes
from procession.sdk.lane_shards import KeyShard
from procession.wire.lane_blocks import Frontier, LaneIdentity

POSITION_FORMAT = 1
POLL_S = 0.02
"""Time between two polls of lanes that have nothing new."""


class MergedBatch(NamedTuple):
    """Records in order, with their key columns. The first `late_rows` records come after a record with a greater
    key."""

    epoch: int
    rows: pa.RecordBatch
    late_rows: int = 0


@dataclass(frozen=True, kw_only=True)
class MergeOptions:
    """Options of a merger.

    Args:
        is_following: Wait for more records. Otherwise end at the current end of the lanes.
        timeout_s: Pass over a lane that is silent for this time while other lanes have records. None: never.
        is_verifying: Check that every key is greater than the previous key.
        shard: Emit only the keys of this shard.
        covers: Read only these lanes of the sink, for a merger that writes a lane. None: all.
        poll_s: Time between two polls of lanes that have nothing new.
    """

    is_following: bool = False
    timeout_s: float | None = None
    is_verifying: bool = False
    shard: KeyShard | None = None
    covers: frozenset[int] | None = None
    poll_s: float = POLL_S


@dataclass
class MergeReport:
    """The progress of a merger."""

    records: int = 0
    epochs: int = 0
    waiting_for: tuple[str, ...] = ()
    """The lanes that the merger waits for while others have more."""
    passed_over: Counter[str] = field(default_factory=Counter)
    """Number of times that each lane was passed over."""
    inversions: Counter[str] = field(default_factory=Counter)
    """Number of records of each lane that came after a record with a greater key."""
    waited_s: dict[str, float] = field(default_factory=dict)
    """Total time that the merger waited for each lane, in seconds."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "records": self.records,
            "epochs": self.epochs,
            "waiting_for": list(self.waiting_for),
            "passed_over": dict(self.passed_over),
            "inversions": dict(self.inversions),
            "waited_s": {name: round(seconds, 3) for name, seconds in self.waited_s.items()},
        }


class LaneMerge:
    """Merges lanes. `turns` emits the records; `position` is where to continue after the last complete turn.

    Args:
        open_lanes: Opens the lanes.
        options: The options of the merger.
        position: The `position` of an earlier merger of these lanes.
        stop: An event that ends a merger that waits.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        open_lanes: OpenLanes,
        options: MergeOptions | None = None,
        position: Mapping[str, Any] | None = None,
        *,
        stop: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.report = MergeReport()
        self.identity: LaneIdentity | None = None
        """The identity of the first lane in the last turn. Framing and order are the same in all lanes."""
        self.covers: tuple[int, ...] = ()
        """The lanes of the sink that are read."""
        self.total = 0
        """Number of records of the last turn's epoch in all lanes of the sink."""
        self._open_lanes = open_lanes
        self._options = options or MergeOptions()
        self._stop = stop or threading.Event()
        self._clock = clock
        self._lanes: list[LaneReader] = []
        self._restored = _checked_position(position or {})
        self._emitted = Emitted(self._restored.get("greatest", ()))
        for counter, name in ((self.report.passed_over, "passed_over"), (self.report.inversions, "inversions")):
            counter.update(self._restored.get(name, {}))
        self.report.records, self.report.epochs = (int(self._restored.get(name, 0)) for name in ("records", "epochs"))
        self._turns = int(self._restored.get("turns", 0))
        self._order = LaneOrder(())

    @property
    def position(self) -> dict[str, Any]:
        """The position to continue from, as JSON. Valid between two turns."""
        if not self._lanes:
            return dict(self._restored)
        report = self.report
        return {
            "format": POSITION_FORMAT,
            "merged": self._order.merged,
            "at": {lane.name: lane.position for lane in self._lanes},
            "behind": [self._lanes[lane].name for lane in sorted(self._order.behind)],
            "greatest": list(self._emitted.greatest),
            "records": report.records,
            "epochs": report.epochs,
            "turns": self._turns,
            "passed_over": dict(report.passed_over),
            "inversions": dict(report.inversions),
        }

    def turns(self) -> Iterator[Iterator[MergedBatch]]:
        """Iterate the turns, each as an iterator of its records. Read a turn to its end before the next turn: only then
        is the turn checked and counted."""
        if not self._gather():
            return
        while (turn := self._next_turn()) is not None:
            yield self._records(turn)

    @property
    def merged(self) -> int:
        """The last epoch that was emitted."""
        return self._order.merged

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()

    # Which lanes

    def _gather(self) -> bool:
        """Open the lanes and wait until all are there. Returns False if there are no lanes or the merger was
        stopped."""
        at = self._restored.get("at", {})
        tried: Sequence[LaneReader] = ()
        while not self._stop.is_set():
            opened = self._open_lanes(at)
            for lane in tried:
                if lane not in opened:
                    lane.close()
            tried = opened
            for lane in opened:
                lane.merged = int(self._restored.get("merged", NOTHING))
            lanes = [lane for lane in opened if self._is_wanted(lane)]
            if at and not at.keys() <= {lane.name for lane in lanes}:
                raise ConfigError(
                    f"the position of this merger belongs to other lanes: {', '.join(sorted(at)[:3])}",
                    next_step="name the same lanes as before; or give another output, to merge from the beginning",
                )
            known = [lane.identity for lane in lanes if lane.poll() is not None and lane.identity is not None]
            problem = None
            if known:
                problem = self._missing(lanes, known)
            if at:
                problem, known = None, known or [LaneIdentity("", "", "", (), 0, "total")]
            if known and problem is None:
                self._begin([lane for lane in lanes if self._is_counted(lane, at)])
                return True
            if not self._options.is_following:
                if problem is not None:
                    raise problem
                return False
            self._pause()
        return False

    def _is_counted(self, lane: LaneReader, at: Mapping[str, int]) -> bool:
        """Whether the merger waits for this lane. A topic may have more partitions than lanes."""
        return lane.name in at if at else lane.identity is not None or self._options.timeout_s is not None

    def _is_wanted(self, lane: LaneReader) -> bool:
        lane.poll()
        identity, options = lane.identity, self._options
        if identity is None:
            return True
        if options.covers is not None and max(options.covers) >= identity.lanes:
            raise ConfigError(
                f"sink {identity.sink!r} has the lanes 0 to {identity.lanes - 1}, and no lane {max(options.covers)}",
                next_step="name lanes that the sink has",
            )
        if options.covers is not None and not options.covers & set(identity.covers):
            return False
        return options.shard is None or options.shard.is_in(identity)

    def _missing(self, lanes: Sequence[LaneReader], known: Sequence[LaneIdentity]) -> ConfigError | None:
        """Return why these lanes cannot be merged yet. None: they are all lanes of one output. Raises ConfigError if
        they can never be merged."""
        _check_group(known)
        wanted = set(range(known[0].lanes)) if self._options.covers is None else set(self._options.covers)
        if self._options.shard is not None:
            wanted = self._options.shard.lanes(known[0], wanted)
        found = Counter(number for identity in known for number in identity.covers)
        if doubled := [number for number, count in found.items() if count > 1]:
            raise ConfigError(
                f"lane {doubled[0]} of sink {known[0].sink!r} is given twice",
                next_step="name each lane once: the lanes of the sink, or those that mergers made of them",
            )
        missing = sorted(wanted - found.keys())
        has_silent = len(known) < len(lanes) and len(lanes) >= len(wanted) and self._options.timeout_s is not None
        if not missing or has_silent:
            return None
        shown = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        return ConfigError(
            f"of the {known[0].lanes} lanes of sink {known[0].sink!r} these are missing, or have no epoch yet: {shown}",
            next_step="name all places where lanes are; or wait for them with --follow",
        )

    def _begin(self, lanes: Sequence[LaneReader]) -> None:
        self._lanes = sorted(lanes, key=lambda lane: (lane.identity.covers if lane.identity else (), lane.name))
        names = [lane.name for lane in self._lanes]
        behind = [names.index(name) for name in self._restored.get("behind", ()) if name in names]
        self._order = LaneOrder(names, int(self._restored.get("merged", NOTHING)), behind)

    # Turns

    def _next_turn(self) -> LaneTurn | None:
        """Wait for the next turn. Returns None if no turn follows and the merger does not wait, or if it was
        stopped."""
        since_s: float | None = None
        timeout_s = self._options.timeout_s
        try:
            while not self._stop.is_set():
                heads = [lane.poll() for lane in self._lanes]
                now_s = self._clock()
                is_overdue = timeout_s is not None and since_s is not None and now_s - since_s >= timeout_s
                turn = self._order.next(heads, is_overdue=is_overdue)
                if turn is not None:
                    return turn
                waiting = self._order.waiting_for
                self.report.waiting_for = tuple(self._lanes[lane].name for lane in waiting)
                since_s = None if not waiting else now_s if since_s is None else since_s
                if not self._options.is_following and (timeout_s is None or not waiting):
                    return None
                self._pause()
                for name in self.report.waiting_for:
                    self.report.waited_s[name] = self.report.waited_s.get(name, 0.0) + self._clock() - now_s
            return None
        finally:
            if self._stop.is_set() or not self._order.waiting_for:
                self.report.waiting_for = ()

    def _records(self, turn: LaneTurn) -> Iterator[MergedBatch]:
        lanes = [self._lanes[lane] for lane in turn.lanes]
        counts = [0] * len(lanes)

        def counted(number: int, lane: LaneReader) -> Iterator[pa.RecordBatch]:
            for batch in lane.batches():
                counts[number] += batch.num_rows
                yield batch

        _check_group([lane.identity for lane in lanes if lane.identity is not None])
        given = 0
        for rows in merged_paths([counted(number, lane) for number, lane in enumerate(lanes)]):
            shown = rows if self._options.shard is None else self._options.shard.filtered(rows)
            late_rows = 0
            if turn.is_late:
                late_rows = self._emitted.late_rows(turn.epoch, shown)
                self.report.inversions[lanes[0].name] += late_rows
            elif self._options.is_verifying:
                self._verify(turn.epoch, rows)
            self._emitted.add(turn.epoch, rows)
            if shown.num_rows:
                given += shown.num_rows
                yield MergedBatch(turn.epoch, shown, late_rows)
        self._check_counts(turn, lanes, counts)
        self._order.turn_emitted(turn)
        self._turns += 1
        self.identity = lanes[0].identity
        self.report.records += given
        self.report.epochs += not turn.is_late
        self.report.passed_over.update(self._lanes[lane].name for lane in turn.passed)

    def _verify(self, epoch: int, rows: pa.RecordBatch) -> None:
        if (key := self._emitted.first_disorder(epoch, rows)) is not None:
            raise StorageError(
                f"The record with the order key {key[1:]} of epoch {key[0]} occurs twice or is out of order.",
                next_step="Restore the lanes from a copy, or run the pipeline again with a new place for its lanes.",
            )

    def _check_counts(self, turn: LaneTurn, lanes: Sequence[LaneReader], counts: Sequence[int]) -> None:
        frontiers = [lane.frontier for lane in lanes]
        assert all(frontier is not None and frontier.epoch == turn.epoch for frontier in frontiers)
        for lane, frontier, count in zip(lanes, frontiers, counts, strict=True):
            if frontier is not None and frontier.records != count:
                raise _gap(
                    turn.epoch, f"the lane {lane.name} has {count} records, its frontier says {frontier.records}"
                )
        _check_paths(turn.epoch, [frontier for frontier in frontiers if frontier is not None])
        first = frontiers[0]
        self.total = 0 if first is None else first.total
        is_whole = not turn.passed and not turn.is_late and not self._order.behind
        self.covers = tuple(sorted(number for lane in self._lanes for number in _covers(lane)))
        if is_whole and first is not None and len(self.covers) == first.identity.lanes and sum(counts) != first.total:
            raise _gap(turn.epoch, f"the lanes have {sum(counts)} records together, their frontiers say {first.total}")

    @property
    def is_ready(self) -> bool:
        """Whether another turn can be read at once."""
        return bool(self._lanes) and all(lane.poll() is not None for lane in self._lanes)

    def _pause(self) -> None:
        self._stop.wait(self._options.poll_s)


def _covers(lane: LaneReader) -> tuple[int, ...]:
    return () if lane.identity is None else lane.identity.covers


def _check_group(known: Sequence[LaneIdentity]) -> None:
    """Raise ConfigError if these lanes do not belong to one output."""
    if others := [identity for identity in known[1:] if identity.group != known[0].group]:
        first, other = known[0], others[0]
        same = (first.pipeline, first.sink) == (other.pipeline, other.sink)
        what = "different runs of the pipeline" if same else f"sink {other.sink!r} of pipeline {other.pipeline!r}"
        raise ConfigError(
            f"lanes {first.covers} and {other.covers} do not belong together: the first is of sink {first.sink!r} of"
            f" pipeline {first.pipeline!r}, the second of {what}",
            next_step="name the lanes of one output",
        )


def _check_paths(epoch: int, frontiers: Sequence[Frontier]) -> None:
    """Raise ConfigError unless all lanes map the paths of this epoch to lanes in the same way, and every lane with
    records has a path."""
    first = frontiers[0].identity
    for identity, records in ((frontier.identity, frontier.records) for frontier in frontiers):
        if (identity.lanes, identity.order, identity.paths) != (first.lanes, first.order, first.paths):
            problem = (
                f"{identity.paths} paths in {identity.lanes} lanes by {identity.order!r}, and lanes {first.covers} have"
                f" {first.paths} in {first.lanes} by {first.order!r}"
            )
        elif records and first.order == "total" and first.paths and min(identity.covers) >= first.paths:
            problem = f"{records} records, but only the {first.paths} lanes below have paths"
        else:
            continue
        raise ConfigError(
            f"lanes {identity.covers} do not belong to the others in epoch {epoch}: they have {problem}",
            next_step="name the lanes of one output, and restore what was changed from a copy",
        )


def _gap(epoch: int, what: str) -> StorageError:
    return StorageError(
        f"Records of epoch {epoch} are lost: {what}.",
        next_step="Restore the lanes from a copy, or run the pipeline again with a new place for its lanes.",
    )


def _checked_position(position: Mapping[str, Any]) -> dict[str, Any]:
    if position:
        check_format(PurePath("The position of a merger"), position.get("format"), POSITION_FORMAT)
    return dict(position)
