"""Parses the URLs of Parquet directories in apps: `parquet:DIR` or `parquet:s3://BUCKET/PREFIX`, with options. Pure.

Invariant: an option of the URL is an option of the program `procession sink parquet`, with the same name and meaning.
`connectors/delta_scheme` and `connectors/iceberg_scheme` add their options to these. Upstream: the planner;
downstream: `cli/lake_commands`. Imports no client library.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from procession.planner.connector import Connector, SinkTraits
from procession.planner.connector_url import ConnectorUrl

ROW_OPTIONS = frozenset({"format", "schema", "key_column", "event_time_column", "position_column"})
STORES = ("s3", "file")
FORMATS = ("json", "arrow", "bytes")
PASSWORD_HINT = "environment variables such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


def lake_check(known: Collection[str], numbers: Collection[str] = ()) -> Callable[[ConnectorUrl], None]:
    """Return a function that checks a URL with these options and the options of all lake sinks."""

    def check(url: ConnectorUrl) -> None:
        url.check_options({*ROW_OPTIONS, *known, *numbers})
        store, is_remote, _ = url.place.partition("://")
        if is_remote and store not in STORES:
            url.refuse(f"names a store {store}://, which is not known", "give a path, or s3://BUCKET/PREFIX")
        if url.options.get("format", "json") not in FORMATS:
            url.refuse(f"has format={url.options['format']}", f"give format one of {', '.join(FORMATS)}")
        for name in numbers:
            url.count(name, 0)
        for name in {*ROW_OPTIONS, *known} & url.options.keys():
            if not url.options[name]:
                url.refuse(f"has an empty {name}", f"give {name} a value, or leave it out")

    return check


def lake_arguments(url: ConnectorUrl, directory: Path) -> Sequence[str]:
    """Return the program's arguments: the table's place, the sink's directory, and the options."""
    options = (word for name, value in url.options.items() for word in (f"--{name.replace('_', '-')}", value))
    return [url.place, str(directory), *options]


def store_modules(url: ConnectorUrl) -> Sequence[str]:
    """Return the modules of the object store's client, if the table is in an object store."""
    return ("obstore",) if url.place.startswith("s3://") else ()


CONNECTOR = Connector(
    name="parquet",
    form="parquet:DIR-or-s3://BUCKET/PREFIX",
    sink=SinkTraits(
        help="Write one Parquet file per epoch to a directory or to S3.",
        check=lake_check((), numbers=("epochs_per_file", "file_bytes")),
        arguments=lake_arguments,
    ),
    commands="procession.cli.lake_commands",
    modules_for=store_modules,
    install="procession[s3]",
    password_hint=PASSWORD_HINT,
)
