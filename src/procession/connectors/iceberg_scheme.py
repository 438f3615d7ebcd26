"""Parses the URLs of Iceberg tables in apps: `iceberg:WAREHOUSE/NAMESPACE.TABLE`,
`iceberg:NAMESPACE.TABLE?catalog=NAME`. Pure.

Invariant: as in `connectors/parquet_scheme`.
"""

from __future__ import annotations

from procession.connectors.parquet_scheme import PASSWORD_HINT, lake_arguments, lake_check
from procession.planner.connector import Connector, SinkTraits
from procession.planner.connector_url import ConnectorUrl

_check_options = lake_check(("catalog",), numbers=("compact_every", "file_bytes"))


def check_iceberg(url: ConnectorUrl) -> None:
    _check_options(url)
    if "." not in url.place.rpartition("/")[2].strip("."):
        url.refuse("names no table", "write iceberg:WAREHOUSE/NAMESPACE.TABLE, or iceberg:NAMESPACE.TABLE?catalog=NAME")


CONNECTOR = Connector(
    name="iceberg",
    form="iceberg:WAREHOUSE/NAMESPACE.TABLE",
    sink=SinkTraits(
        help="Append each epoch to an Iceberg table.",
        check=check_iceberg,
        arguments=lake_arguments,
        rollback="procession.connectors.iceberg_rollback:IcebergRollback",
    ),
    commands="procession.cli.lake_commands",
    modules=("pyiceberg", "sqlalchemy"),
    install="procession[iceberg]",
    password_hint=PASSWORD_HINT,
)
