"""Determines the states of a pipeline after an upgrade: committed states are kept, renamed, migrated or dropped.

Invariant: no existing file is changed or removed. Kept and renamed stages use the same files; migrated states are new
files, which are durable when `changed_states` returns. A new state version has the identity of the new program, so a
driver accepts it without further options. `planner/upgrade` decides what happens to each stage;
`commit/checkpoint_change` writes the record.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from procession.commit.round_record import RoundRecord
from procession.driver.redistributed_states import redistributed
from procession.driver.stage_states import keyed_versions
from procession.errors import PlanError
from procession.operators.clock_process import ClockProcess
from procession.operators.expiry import ExpiringState
from procession.operators.process import ProcessOperator
from procession.operators.value_codec import ValueCodec
from procession.planner.compatibility import StageIdentity
from procession.planner.plan import Plan
from procession.planner.upgrade import StageOutcome, StateOutcome, Upgrade, stage_outcomes
from procession.spark.task_state import StateEncoding
from procession.storage.durable import fsync_dir
from procession.storage.state_file import SCHEMA, StateFile, merged_pieces
from procession.storage.state_store import SUFFIX, write_file
from procession.storage.state_version import Files, StateVersion, file_prefix

TIMED = b"k"
"""Name prefix of a key's state in a stage that uses watermarks."""
PLACES: dict[type, int] = {ExpiringState: 1, ProcessOperator: 0, ClockProcess: 0}
"""Such a stage stores a tuple for each key: the user's state, and its expiry or timers. This is the position of the
state in the tuple."""
UPGRADED = 0
"""Attempt number in the names of migrated files. Attempts of tasks begin with 1, so the names differ."""


def outcomes_of(plan: Plan, last: RoundRecord, upgrade: Upgrade) -> list[StageOutcome]:
    """Return what happens to the state of each stage in this round record. Raises PlanError if the program cannot
    continue from the record."""
    for name, version in last.states.items():
        version.check_format(name)
    kept = {name: StageIdentity(version.kind, version.identity) for name, version in last.states.items()}
    tasks = {name: len(version.tasks) for name, version in last.states.items()}
    return stage_outcomes(plan, kept, tasks, upgrade, linecache.getlines)


def changed_states(
    plan: Plan, last: RoundRecord, upgrade: Upgrade, directory: Path, fence: int
) -> dict[str, StateVersion]:
    """Return the states of this round record as the new program needs them. `directory` has the state files; `fence`
    is the caller's fence, which no existing file has in its name. Raises PlanError if a function of `migrate` fails."""
    versions = dict(keyed_versions(plan).values())
    found: dict[str, StateVersion] = {}
    for outcome in outcomes_of(plan, last, upgrade):
        if outcome.outcome is StateOutcome.DROPPED:
            continue
        version = versions[outcome.stage]
        if outcome.before:
            tasks = last.states[outcome.before].tasks
            if outcome.outcome is StateOutcome.MIGRATED:
                migration = _Migration(
                    plan, outcome.stage, upgrade.migrate[outcome.stage], directory, fence, last.epoch
                )
                tasks = tuple(migration.files(task, files) for task, files in enumerate(tasks))
            if outcome.is_rewritten:
                values = ValueCodec(plan.graph.types)
                tasks = redistributed(outcome.stage, tasks, outcome.tasks, directory, fence, last.epoch, values)
            version = replace(version, tasks=tasks)
        found[outcome.stage] = version
    return found


class _Migration:
    """Applies a user's function to all states of a stage."""

    def __init__(
        self,
        plan: Plan,
        stage: str,
        function: Callable[[Any], Any],
        directory: Path,
        fence: int,
        epoch: int,
    ) -> None:
        values = ValueCodec(plan.graph.types)
        node = next(node for node in plan.graph.nodes if node.name == stage and node.operator is not None)
        self._place = PLACES.get(type(node.operator))
        self._decode = values.decoded_value
        self._encode = StateEncoding(stage, values, is_made_by_user=True)
        self._stage = stage
        self._function = function
        self._directory = directory
        self._prefix = (fence, stage, epoch)

    def files(self, task: int, files: Files) -> Files:
        """Return the migrated files of one task."""
        layers = [StateFile(self._directory / name) for name, _ in reversed(files)]
        if not layers:
            return ()
        fence, stage, epoch = self._prefix
        name = f"{file_prefix(fence, stage, task, epoch, UPGRADED)}-0{SUFFIX}"
        count = write_file(self._directory / name, map(self._piece, merged_pieces(layers, is_oldest=True)))
        fsync_dir(self._directory)
        return ((name, count),)

    def _piece(self, piece: pa.RecordBatch) -> pa.RecordBatch:
        keys = piece.column("key").to_pylist()
        states = list(self._states(zip(keys, piece.column("state").to_pylist(), strict=True)))
        columns = [piece.column("hash"), piece.column("key"), pa.array(states, pa.large_binary())]
        made = pa.record_batch(columns, schema=SCHEMA)
        return made.filter(made.column("state").is_valid())

    def _states(self, rows: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes | None]:
        for key, stored in rows:
            if self._place is None:
                state = self._called(self._decode(stored))
                yield None if state is None else self._encode(state)
            elif key.startswith(TIMED):
                held = list(self._decode(stored))
                if (state := held[self._place]) is not None:
                    held[self._place] = self._called(state)
                yield self._encode(held)
            else:
                yield stored

    def _called(self, state: Any) -> Any:
        try:
            return self._function(state)
        except Exception as error:  # the user's function may raise anything
            raise PlanError(
                f"the migrate function of stage {self._stage!r} raised {type(error).__name__}: {error}; the state was"
                f" {str(state)[:200]}",
                next_step="correct the function; nothing was changed",
                stage=self._stage,
            ) from error
