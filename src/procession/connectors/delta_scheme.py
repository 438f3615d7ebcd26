"""Delta tables as apps name them: `delta:DIR` or `delta:s3://BUCKET/PREFIX`, with options. Pure.

Invariant: as in `connectors/parquet_scheme`.
"""

from __future__ import annotations

from procession.connectors.parquet_scheme import PASSWORD_HINT, lake_arguments, lake_check
from procession.planner.connector import Connector, SinkTraits

CONNECTOR = Connector(
    name="delta",
    form="delta:DIR-or-s3://BUCKET/PREFIX",
    sink=SinkTraits(
        help="Append each epoch to a Delta table.",
        check=lake_check((), numbers=("compact_every", "file_bytes")),
        arguments=lake_arguments,
    ),
    commands="procession.cli.lake_commands",
    modules=("deltalake",),
    install="procession[delta]",
    password_hint=PASSWORD_HINT,
)
