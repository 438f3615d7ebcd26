"""Reads the committed states of a pipeline's stages, while a driver may be writing them.

Invariant: the reader uses the version in the last committed round, and changes nothing. The files of a version never
change, but a driver may remove them. So all files are opened before the first is read; if a later round has replaced
them, its files are opened instead. Memory is bounded by the pieces of `storage/state_file`. Used by `procession
state`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from procession.commit.round_record import RoundRecord
from procession.errors import ConfigError, StorageError
from procession.operators.json_view import KEYS, VALUES, as_json
from procession.planner.keys import TAGS
from procession.storage.driver_claim import checkpoint_of
from procession.storage.state_file import StateFile, hashes_of, merged_pieces
from procession.verify.decisions import TRIES, DecisionReader

TIMED = b"k"
"""Name prefix of a key's state in a stage that uses watermarks; the key follows."""

FIRST_BYTES = np.array([*TAGS, TIMED[0]], np.uint8)
"""The first bytes of the names of keys. All other names belong to the stage itself, such as its timers."""


@dataclass(frozen=True)
class StageStates:
    """The states of one stage after a committed epoch. Its files are open."""

    stage: str
    kind: str
    epoch: int
    tasks: Sequence[Sequence[StateFile]]
    """The files of each task, the newest first. Tasks share no key."""

    @property
    def files(self) -> int:
        return sum(map(len, self.tasks))

    @property
    def size(self) -> int:
        """Return the size of the files in bytes."""
        return sum(file.size for files in self.tasks for file in files)

    def count(self) -> int:
        """Return the number of keys that have a state."""
        return sum(piece.num_rows for piece in self._pieces())

    def find(self, key: bytes) -> Any:
        """Return a list with the state of this encoded key as a view; empty if the key has no state."""
        names = [key, TIMED + key]
        hashes = hashes_of(names)
        for files in self.tasks:
            for file in files:
                for state in file.find(names, hashes).values():
                    return [] if state is None else [as_json(VALUES.decoded_value(state))]
        return []

    def scan(self) -> Iterator[dict[str, Any]]:
        """Yield all keys and their states as views, in no particular order."""
        for piece in self._pieces():
            for key, state in zip(piece.column("key").to_pylist(), piece.column("state").to_pylist(), strict=True):
                yield {
                    "key": as_json(KEYS.decode(key.removeprefix(TIMED))),
                    "state": as_json(VALUES.decoded_value(state)),
                }

    def _pieces(self) -> Iterator[pa.RecordBatch]:
        for files in self.tasks:
            for piece in merged_pieces(files, is_oldest=True) if files else ():
                first = pc.binary_slice(piece.column("key").cast(pa.binary()), 0, 1)
                tags = np.frombuffer(b"".join(first.to_pylist()), np.uint8)
                yield piece.filter(pa.array(np.isin(tags, FIRST_BYTES)))


def committed_states(directory: Path) -> dict[str, StageStates]:
    """Return the stages with states of the pipeline in this directory, after the last committed epoch. Raises
    ConfigError if there is no pipeline."""
    reader = DecisionReader(checkpoint_of(directory))
    for _ in range(TRIES):
        last = reader.last()
        try:
            return {} if last is None else _opened(last, directory / "state" / reader.id)
        except StorageError:
            if (now := reader.last()) is not None and last is not None and now.epoch == last.epoch:
                raise  # no later epoch has replaced the files
    raise ConfigError(f"The states in {directory} change faster than they can be opened.", next_step="Try again.")


def _opened(last: RoundRecord, states: Path) -> dict[str, StageStates]:
    for name, version in last.states.items():
        version.check_format(name)
    return {
        name: StageStates(
            name,
            version.kind,
            last.epoch,
            [[StateFile(states / file) for file, _ in reversed(files)] for files in version.tasks],
        )
        for name, version in last.states.items()
    }


def export(stage: StageStates, path: Path, rows: int = 10_000) -> int:
    """Write all keys and their states to a new Parquet file, as JSON text. Return the number of keys."""
    schema = pa.schema([("key", pa.string()), ("state", pa.string())])
    count = 0
    with path.open("xb") as file, pq.ParquetWriter(file, schema) as writer:
        batch: list[dict[str, str]] = []
        for entry in stage.scan():
            batch.append({name: json.dumps(view, ensure_ascii=False) for name, view in entry.items()})
            if len(batch) == rows:
                writer.write_batch(pa.RecordBatch.from_pylist(batch, schema))
                count, batch = count + len(batch), []
        writer.write_batch(pa.RecordBatch.from_pylist(batch, schema))
    return count + len(batch)
