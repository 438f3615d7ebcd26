"""Parses the URLs of Delta tables in apps: `delta:DIR` or `delta:s3://BUCKET/PREFIX`, with options. Pure.

Invariant: as in `connectors/parquet_scheme`.
"""

from __future__ import annotations

from procession.connectors.parquet_scheme import PASSWORD_HINT, lake_arguments, lake_check, store_modules
from procession.planner.connector import Connector, EpochLimits, SinkTraits
from procession.planner.connector_url import ConnectorUrl

MERGE_BYTES_MAX = 64 * 1024 * 1024
"""The largest epoch that is merged: all of its rows are in memory."""


def check_sink(url: ConnectorUrl) -> None:
    lake_check(("key", "delete_when"), numbers=("compact_every", "file_bytes"))(url)
    if "delete_when" in url.options and "key" not in url.options:
        url.refuse("deletes by key, but names none", "add key=COLUMN to its options")
    if "delete_when" in url.options and not all(url.options["delete_when"].partition("=")):
        url.refuse("does not say which records delete", "write delete_when=COLUMN=VALUE, such as delete_when=op=delete")


CONNECTOR = Connector(
    name="delta",
    form="delta:DIR-or-s3://BUCKET/PREFIX",
    sink=SinkTraits(
        help="Append each epoch to a Delta table, or merge it by key.",
        check=check_sink,
        arguments=lake_arguments,
        rollback="procession.connectors.delta_rollback:DeltaRollback",
        limits=lambda url: EpochLimits(bytes_max=MERGE_BYTES_MAX if "key" in url.options else None),
    ),
    commands="procession.cli.lake_commands",
    modules=("deltalake",),
    modules_for=store_modules,
    install="procession[delta]",
    password_hint=PASSWORD_HINT,
)
