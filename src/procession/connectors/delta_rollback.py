"""Removes committed output of a Delta sink: writes a new version of the table with the files of an earlier one.

Invariant: readers see either all rows or those of the savepoint. The restored version and the token of the output are
one commit of the table's log. A table to which another writer has committed since is refused, because its rows would
be removed too. Versions that the table has removed (VACUUM) cannot be restored, and are refused by `check`.
"""

from __future__ import annotations

import json

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import TableNotFoundError

from procession.connectors.delta_table import (
    HISTORY_COMMITS_MAX,
    TRANSACTION,
    DeltaLakeTable,
    application,
    last_transaction,
)
from procession.connectors.parquet_output import FORMAT, transaction_number
from procession.connectors.sink_rollback import SinkPlace
from procession.storage.durable import write_durably

RESTORED = "procession.rollback"
HARMLESS = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END"})
"""Operations of other writers that do not change rows."""


class DeltaRollback:
    """The rollback of one output of a Delta sink."""

    def __init__(self, place: SinkPlace) -> None:
        self._place = place
        self._application = application(place.instance)
        self._lake = DeltaLakeTable(place.target)

    def check(self, end: int) -> None:
        with self._lake.translated_errors("read"):
            self._version(end)

    def perform(self, end: int, txn_id: str) -> None:
        place = self._place
        with place.opened() as txnlog:
            with self._lake.translated_errors("restore"):
                if (version := self._version(end)) is not None:
                    self._restore(version, end, txn_id)
            note = {"format": FORMAT, "upload": None, "last_start": -1}
            write_durably(place.directory / f"{place.instance}.upload", json.dumps(note).encode())
            txnlog.roll_back(end, txn_id)

    def _restore(self, version: int, end: int, txn_id: str) -> None:
        table = self._lake.opened()
        before = table.version()
        table.restore(
            version,
            commit_properties=CommitProperties(
                custom_metadata={RESTORED: str(version)},
                app_transactions=[
                    Transaction(self._application, end),
                    Transaction(last_transaction(self._place.instance), transaction_number(txn_id)),
                ],
            ),
        )
        self._lake.sync_versions(before)

    def _version(self, end: int) -> int | None:
        """Return the table version in which the output ended at this position. None if that is the current
        version."""
        try:
            table = self._lake.opened()
        except TableNotFoundError:
            if end:
                raise self._place.refusal("its table is gone.", "Restore the table from a copy.") from None
            return None
        if self._end(table) == end:
            return None
        for commit in table.history(HISTORY_COMMITS_MAX):
            version = int(commit["version"])
            table.load_as_version(version)
            if self._end(table) == end:
                self._check_files(table, version)
                return version
            is_ours = TRANSACTION in commit or RESTORED in commit
            if not is_ours and commit.get("operation") not in HARMLESS:
                raise self._place.refusal(
                    f"version {version} of {self._lake.url} is a {commit.get('operation')} by another writer.",
                    "Upgrade to a corrected program instead.",
                )
        raise self._place.refusal(
            f"none of the last {HISTORY_COMMITS_MAX:,} versions of {self._lake.url} ends at position {end:,}.",
            "Upgrade to a corrected program instead.",
        )

    def _check_files(self, table: DeltaTable, version: int) -> None:
        names = [str(name) for name in table.get_add_actions(flatten=True).column("path").to_pylist()]
        if lost := [name for name in names if not self._lake.store.has(name)]:
            raise self._place.refusal(
                f"{lost[0]} of version {version} is not in {self._lake.url} any more (VACUUM removes such files).",
                "Upgrade to a corrected program instead.",
            )

    def _end(self, table: DeltaTable) -> int:
        return table.transaction_version(self._application) or 0
