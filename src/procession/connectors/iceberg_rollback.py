"""Removes committed output of an Iceberg sink: one commit removes the later files and sets the token.

Invariant: readers see either all rows or those of the savepoint: one commit of the catalog removes the files and
changes the token. Rows of other writers stay. The names of an output's files contain their positions. A table whose
files were compacted since is refused, because such a file may have rows from before and after the savepoint.
"""

from __future__ import annotations

import json
import re

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from procession.connectors.iceberg_table import IcebergLakeTable, open_iceberg, output_property, output_token
from procession.connectors.parquet_output import FORMAT, safe_name
from procession.connectors.sink_rollback import SinkPlace
from procession.sdk.transaction_log import TransactionTail
from procession.storage.durable import write_durably


class IcebergRollback:
    """The rollback of one output of an Iceberg sink."""

    def __init__(self, place: SinkPlace) -> None:
        self._place = place
        catalog = place.url.options.get("catalog", "")
        self._lake: IcebergLakeTable = open_iceberg(place.url.place if catalog else place.target, catalog)
        self._name = re.compile(rf"part-{re.escape(safe_name(place.instance))}-(\d{{20}})-")

    def check(self, end: int) -> None:
        table = self._lake.opened()
        held = 0 if table is None else output_token(table, self._place.instance).end
        if held < end:
            raise self._place.refusal(
                f"it holds {held:,} bytes, and {end:,} at the savepoint.", "Restore the table from a copy."
            )
        if table is None or held == end:
            return
        there = {start for start, _ in self._later(table, end)}
        for transaction in TransactionTail(self._place.txnlog).poll():
            if transaction.start < transaction.end and end <= transaction.start and transaction.start not in there:
                raise self._place.refusal(
                    f"the file with its output from position {transaction.start:,} on is not in {self._lake.url} any"
                    " more; files were compacted since.",
                    "Upgrade to a corrected program instead.",
                )

    def perform(self, end: int, txn_id: str) -> None:
        place = self._place
        with place.opened() as txnlog:
            table = self._lake.opened()
            if table is not None and output_token(table, place.instance).end != end:
                token = json.dumps({"end": end, "transaction": txn_id})
                with self._lake.translated_errors("restore"), table.transaction() as transaction:
                    if later := self._later(table, end):
                        with transaction.update_snapshot().overwrite() as snapshot:
                            for _, file in later:
                                snapshot.delete_data_file(file)
                    transaction.set_properties({output_property(place.instance): token})
            note = {"format": FORMAT, "upload": None, "last_start": -1}
            write_durably(place.directory / f"{place.instance}.upload", json.dumps(note).encode())
            txnlog.roll_back(end, txn_id)

    def _later(self, table: Table, end: int) -> list[tuple[int, DataFile]]:
        """Return the files of this output that begin at or after a position, each with its position."""
        found = []
        with self._lake.translated_errors("read"):
            for task in table.scan().plan_files():
                match = self._name.match(task.file.file_path.rpartition("/")[2])
                if match is not None and int(match[1]) >= end:
                    found.append((int(match[1]), task.file))
        return found
