"""Replaces and deletes rows of a Delta table by key, with one MERGE per epoch.

Invariant: if an epoch has several rows with the same key, the last row is used, and epochs are merged one after the
other. So the table is the same as if each record were applied separately, in the order of the output. Upstream:
`connectors/delta_table`; downstream: deltalake.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from procession.connectors.parquet_spool import FileFacts
from procession.errors import ConfigError, RecordError, UsageError

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

ROW = "procession_row"
"""Temporary column with the row number, used to find the last row of each key."""


@dataclass(frozen=True)
class MergeRule:
    """How rows are applied to a table.

    Args:
        key: The columns that identify a row.
        delete_column: The column that tells whether a row deletes; empty: no row deletes.
        delete_value: The text of that column in a row that deletes.
    """

    key: tuple[str, ...]
    delete_column: str = ""
    delete_value: str = ""

    @classmethod
    def parse(cls, key: str, delete_when: str = "") -> MergeRule | None:
        """Parse the options, such as `shop,hour` and `op=delete`. Return None if rows are only appended. Raises
        UsageError."""
        names = tuple(name.strip() for name in key.split(",")) if key else ()
        column, equals, value = delete_when.partition("=")
        if "" in names or len(set(names)) < len(names):
            raise UsageError(
                f"{key!r} is not a list of columns.", next_step="Write --key COLUMN or --key COLUMN,COLUMN."
            )
        if delete_when and not (column and equals and value):
            raise UsageError(f"{delete_when!r} is not a rule.", next_step="Write --delete-when COLUMN=VALUE.")
        if delete_when and not names:
            raise UsageError("--delete-when deletes by key, and there is no --key.", next_step="Add --key COLUMN.")
        return cls(names, column, value) if names else None

    def check_schema(self, schema: pa.Schema, url: str) -> None:
        """Raise ConfigError if the table lacks a column of the rule, or the column's type cannot be compared."""
        for name in filter(None, (*self.key, self.delete_column)):
            kind = schema.field(name).type if name in schema.names else None
            if kind is None or pa.types.is_nested(kind) or pa.types.is_floating(kind):
                found = "there is none" if kind is None else f"it is of type {kind}"
                raise ConfigError(
                    f"Rows of {url} cannot be found by the column {name!r}: {found}.",
                    next_step="Name columns of the table with --key and --delete-when, which are numbers or texts.",
                )

    def check_rows(self, facts: FileFacts) -> None:
        """Raise RecordError if a row has no key: it could not replace a row or be replaced."""
        nulls = json.loads(facts.statistics)["nullCount"]
        for name in self.key:
            if count := nulls.get(name, 0):
                raise RecordError(
                    f"{count} records have no value for the key column {name!r}.",
                    next_step="Let every record have a key, or leave such records out before the sink.",
                )

    def last_rows(self, rows: pa.Table) -> pa.Table:
        """Return the last row of each key."""
        numbered = rows.select(list(self.key)).append_column(ROW, pa.array(np.arange(len(rows))))
        last = numbered.group_by(list(self.key)).aggregate([(ROW, "max")]).column(f"{ROW}_max")
        return rows.take(pa.array(np.sort(last.to_numpy())))

    def merge(self, table: DeltaTable, rows: pa.Table, properties: CommitProperties) -> None:
        """Apply rows with different keys, in one commit."""
        same = " AND ".join(f"target.{_quoted(name)} = source.{_quoted(name)}" for name in self.key)
        merger = table.merge(rows, same, source_alias="source", target_alias="target", commit_properties=properties)
        if self.delete_column:
            value = self.delete_value.replace("'", "''")
            deletes = f"CAST(source.{_quoted(self.delete_column)} AS VARCHAR) IS NOT DISTINCT FROM '{value}'"
            merger = merger.when_matched_delete(predicate=deletes).when_matched_update_all()
            merger.when_not_matched_insert_all(predicate=f"NOT ({deletes})").execute()
            return
        merger.when_matched_update_all().when_not_matched_insert_all().execute()


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
