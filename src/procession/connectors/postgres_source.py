"""Reads the changes of PostgreSQL tables by logical decoding through SQL, each once.

Invariant: the slot advances only after a change is in the spool on disk. The source's position means: the first
`records` records of the spool are all transactions committed below `lsn`. Reading from `lsn` returns the same
changes again; those that the spool already has beyond `records` are skipped. Upstream:
`connectors/postgres_changes`, which decodes; downstream: `sdk/push_source`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import errors

from procession import faults
from procession.connectors.postgres_changes import Change, lsn_number, lsn_text
from procession.connectors.postgres_medium import PostgresMedium
from procession.connectors.postgres_position import PositionFile
from procession.connectors.postgres_slot import FETCH_ROWS, MESSAGES_MAX, ChangesOptions, ReplicationSlot
from procession.errors import StorageError
from procession.sdk.backlog import Spool
from procession.sdk.push_source import PushStream
from procession.sdk.source_records import Batch

SLOT_INTERVAL_S = 10.0
"""How often the slot is advanced if the tables do not change, so that the server can delete its log."""


class ChangesMedium(PostgresMedium):
    """Puts changes into the spool. With `is_ending`, stops at the end that the log had at the start."""

    def __init__(self, options: ChangesOptions, directory: Path, spool: Spool) -> None:
        super().__init__(options.url)
        self._options = options
        self._spool = spool
        self._slot = ReplicationSlot(options)
        self._file = PositionFile(directory)
        self._lsn = self._records = 0
        """The transactions below `_lsn` are the first `_records` records of the spool."""
        self._moved_s = 0.0
        self._upto: int | None = None
        """Position at which a source that ends stops; None for other sources."""

    def close(self) -> None:
        self._slot.close()

    def begin(self) -> None:
        confirmed = self._slot.open(is_new=not self._file.exists)
        found = self._file.read(self._slot.identity)
        if found is None:
            if self._spool.next_id:
                raise StorageError(
                    f"{self._spool.directory} has records, but the file position.json beside it is missing.",
                    next_step="Put position.json back, or begin again with a new --slot and a new directory.",
                )
            self._lsn, self._records = confirmed, 0
            self._save()
            return
        self._lsn, self._records = lsn_number(found["lsn"]), int(found["records"])
        if confirmed > self._lsn:
            raise StorageError(
                f"The replication slot {self._options.slot} has moved to {lsn_text(confirmed)}, but this source has"
                f" read up to {found['lsn']}: changes in between are missing.",
                next_step="Another program read or recreated the slot: begin again with a new --slot and directory.",
            )
        if confirmed < self._lsn:
            self._slot.advance(self._lsn)

    async def step(self, pushed: PushStream) -> bool:
        if self._options.is_ending and self._upto is None:
            self._upto = await self.call(self._slot.end_lsn)
        return await self._pass(pushed) and self._upto is not None and self._lsn >= self._upto

    def explain(self, error: psycopg.Error) -> Exception:
        if isinstance(error, errors.ObjectInUse):
            return StorageError(
                f"The replication slot {self._options.slot} is in use: {error.diag.message_primary}.",
                next_step="Stop the program that reads it, or give this one another --slot.",
            )
        return super().explain(error)

    async def _pass(self, pushed: PushStream) -> bool:
        """Read the slot once. Return whether everything up to now was read."""
        end = await self.call(self._slot.end_lsn)
        known = self._spool.next_id - self._records
        changes = self._slot.changes(end)
        last = 0
        try:
            while some := await self.call(lambda: list(islice(changes, FETCH_ROWS))):
                last = some[-1].commit_lsn
                skipped = min(known, len(some))
                known -= skipped
                if some[skipped:]:
                    await pushed.put(batch_of(some[skipped:]))
        finally:
            await self.call(changes.close)
        if known:
            raise StorageError(
                f"The spool {self._spool.directory} has {known} changes more than the database.",
                next_step="The database was restored from an old copy: begin again with a new --slot and directory.",
            )
        is_all = self._slot.messages < MESSAGES_MAX
        # The position of the last transaction is the start of its commit in the log. Later commits begin after that.
        reached = end if is_all else last + 1
        await pushed.flush()
        faults.point("source:postgres-before-position")
        await self._move(reached, has_records=self._spool.next_id > self._records, is_all=is_all)
        if is_all and not self._options.is_ending:
            await asyncio.sleep(self._options.poll_s)
        return is_all

    async def _move(self, lsn: int, *, has_records: bool, is_all: bool) -> None:
        loop = asyncio.get_running_loop()
        if lsn <= self._lsn:
            return
        if not has_records and is_all and not self._options.is_ending and loop.time() < self._moved_s + SLOT_INTERVAL_S:
            return
        self._moved_s = loop.time()
        self._lsn, self._records = lsn, self._spool.next_id
        await self.call(self._save)
        faults.point("source:postgres-before-advance")
        await self.call(self._slot.advance, lsn)

    def _save(self) -> None:
        self._file.write(self._slot.identity, lsn=lsn_text(self._lsn), records=self._records)


def batch_of(changes: Sequence[Change]) -> Batch:
    return Batch(
        np.arange(len(changes), dtype=np.uint64),
        np.array([change.committed_ns for change in changes], np.int64),
        pa.array([change.payload for change in changes], pa.binary()),
        pa.array([change.key for change in changes], pa.binary()),
    )
