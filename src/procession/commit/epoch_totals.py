"""The totals of an epoch's manifests: its ranges in the logs, its states, and its counters.

Invariant: an epoch starts exactly where the last epoch ended, in every log; anything else is a StorageError. Its
counters are those of the previous epoch plus the counts of its tasks. They are committed with the epoch, so no record
is counted twice. `commit/performer` uses the totals; the round record stores them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from procession.errors import PlanError, StorageError
from procession.storage.run_store import Manifest, Run
from procession.storage.state_version import StateVersion

COUNTER = "counter "
"""Prefix of the name of an app's counter."""
COUNTERS_MAX = 1_000
"""Maximum number of counters of an app."""

LATE_AT = "late at "
"""Prefix of a stage's name in the counters: records that were later than the stage's watermark."""


def counted(
    before: Mapping[str, int],
    manifests: Sequence[Manifest],
    runs: Mapping[str, Sequence[Run]],
    stages: Mapping[int, tuple[str, Any]],
) -> dict[str, int]:
    """Return the counters after an epoch with these manifests and runs. `stages` are the stages that chains begin with.
    Without late records, there is no counter of late records."""
    found = Counter(before)
    found["records_in"] += sum(manifest.records for manifest in manifests)
    found["records_out"] += sum(run.count for sink_runs in runs.values() for run in sink_runs)
    for manifest in manifests:
        if manifest.late:
            found["late" if manifest.stage == 0 else LATE_AT + stages[manifest.stage][0]] += manifest.late
        for name, count in manifest.counts.items():
            found[COUNTER + name] += count
    names = [name for name in found if name.startswith(COUNTER)]
    if len(names) > COUNTERS_MAX:
        raise PlanError(
            f"the app has {len(names):,} counters, such as {names[-1].removeprefix(COUNTER)!r}",
            next_step=f"use at most {COUNTERS_MAX:,} names, none of them made from a record; nothing of"
            " this epoch is committed",
        )
    return dict(found)


def app_counters(counters: Mapping[str, int]) -> dict[str, int]:
    """Return the counters of the app, by their names, in order."""
    return {name.removeprefix(COUNTER): count for name, count in sorted(counters.items()) if name.startswith(COUNTER)}


def check_joined(epoch: int, manifests: Sequence[Manifest], end: int) -> None:
    """Raise StorageError unless each range begins at the end of the previous range, and the first at `end`."""
    for manifest in manifests:
        if manifest.first != end:
            raise StorageError(f"epoch {epoch} begins or continues at record {manifest.first}, not at {end}")
        end = manifest.last


def joined(epoch: int, manifests: Sequence[Manifest], starts: Mapping[str, int]) -> dict[str, int]:
    """Return the end of the epoch in the log of each gateway. Raises StorageError if there is a gap after the last
    epoch or between the epoch's pieces."""
    ends = dict(starts)
    for piece in (piece for manifest in manifests for piece in manifest.pieces):
        if piece.first != ends.get(piece.gateway, 0):
            position = f"epoch {epoch} begins or continues at record {piece.first} of {piece.gateway}"
            raise StorageError(f"{position}, not at {ends.get(piece.gateway, 0)}")
        ends[piece.gateway] = piece.last
    return ends


def versions_after(
    keyed: Mapping[int, tuple[str, StateVersion]], manifests: Sequence[Manifest]
) -> dict[str, StateVersion]:
    """Return the states that the tasks of each keyed stage have left, by partition. `keyed` maps each chain that begins
    with such a stage to its name and a version without files."""
    return {
        name: replace(
            version,
            tasks=tuple(
                manifest.states for manifest in manifests if manifest.stage == chain and manifest.states is not None
            ),
        )
        for chain, (name, version) in keyed.items()
    }
