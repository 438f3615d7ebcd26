"""Parses the PostgreSQL URLs of apps: `postgres://USER@HOST:PORT/DATABASE?table=TABLE&option=value`. Pure.

Invariant: an option of the URL is an option of the program, with the same name and meaning. Any other option must be a
parameter of libpq, and stays in the URL. Upstream: the planner; downstream: `cli/postgres_commands`. Imports no client
library.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

from procession.planner.connector import Connector, SinkTraits, SourceTraits
from procession.planner.connector_url import FLAG, LIST, NUMBER, TEXT, ConnectorUrl, OptionKind
from procession.record import stream_id

LIBPQ = frozenset(
    {"service", "host", "hostaddr", "port", "dbname", "user", "passfile", "connect_timeout", "target_session_attrs"}
    | {"sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "channel_binding", "gssencmode", "application_name"}
    | {"keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout"}
    | {"load_balance_hosts", "require_auth", "sslnegotiation", "ssl_min_protocol_version", "krbsrvname"}
)
"""Parameters that are passed on with the URL."""
SLOT = "procession"
"""The default name of a source's slot."""
_BOTH = {"lock_timeout_s": NUMBER, "database_patience_s": NUMBER, "session_pooler": FLAG}
SINK_OPTIONS: Mapping[str, OptionKind] = _BOTH | {
    "table": TEXT,
    "column": LIST,
    "key": LIST,
    "delete_when": TEXT,
    "dead_letters": TEXT,
    "mode": ("auto", "prepared", "token"),
    "format": ("json", "arrow"),
    "token_table": TEXT,
}
SOURCE_OPTIONS: Mapping[str, OptionKind] = {
    "table": LIST,
    "slot": TEXT,
    "publication": TEXT,
    "poll_column": TEXT,
    "poll_start": TEXT,
    "page_rows_max": NUMBER,
    "stop_at_end": FLAG,
    "stream": TEXT,
    "bytes_max": NUMBER,
    "lock_timeout_s": NUMBER,
    "database_patience_s": NUMBER,
}


def check_sink(url: ConnectorUrl) -> None:
    _check(url, SINK_OPTIONS)
    if not url.options.get("table"):
        url.refuse("names no table", "add table=TABLE to its options")
    if "delete_when" in url.options and "key" not in url.options:
        url.refuse("deletes by key, but names none", "add key=COLUMN to its options")
    if "delete_when" in url.options and not all(url.options["delete_when"].partition("=")):
        url.refuse("does not say which records delete", "write delete_when=COLUMN=VALUE, such as delete_when=op=delete")


def check_source(url: ConnectorUrl) -> None:
    _check(url, SOURCE_OPTIONS)
    if not url.options.get("table") and not url.options.get("publication"):
        url.refuse("names no table", "add table=TABLE,TABLE or publication=NAME to its options")
    if "poll_column" in url.options and "," in url.options.get("table", ","):
        url.refuse("polls, which reads one table", "add table=TABLE to its options")


def _check(url: ConnectorUrl, known: Mapping[str, OptionKind]) -> None:
    if not url.place.startswith("//"):
        url.refuse("is not a URL of a PostgreSQL database", "write postgres://USER@HOST:PORT/DATABASE")
    url.check_options(known.keys() | LIBPQ)
    url.check_values(known)


def program_arguments(url: ConnectorUrl, directory: Path, known: Mapping[str, OptionKind]) -> list[str]:
    """Return the program's arguments: the URL with the parameters of libpq, the directory, and the options."""
    parameters = {name: value for name, value in url.options.items() if name not in known}
    arguments = [url.text.partition("?")[0] + (f"?{urlencode(parameters)}" if parameters else ""), str(directory)]
    for name, value in url.options.items():
        option, kind = f"--{name.replace('_', '-')}", known.get(name)
        if kind == LIST:
            arguments += [word for part in value.split(",") for word in (option, part)]
        elif kind == FLAG:
            arguments += [option] if value == "true" else []
        elif kind is not None:
            arguments += [option, value]
    return arguments


def stream_name(stream: str, slot: str, table: str, poll_column: str) -> str:
    """Return the name of a source's stream, from its options."""
    return stream or (table if poll_column else slot)


def url_streams(url: ConnectorUrl) -> frozenset[int]:
    """Return the stream ids of a source of an app that ends."""
    given = url.options
    name = stream_name(
        given.get("stream", ""), given.get("slot", SLOT), given.get("table", ""), given.get("poll_column", "")
    )
    return frozenset({stream_id(name.encode())})


CONNECTOR = Connector(
    name="postgres",
    form="postgres://USER@HOST:PORT/DATABASE?table=TABLE",
    sink=SinkTraits(
        help="Write records to a table of PostgreSQL, each once.",
        check=check_sink,
        arguments=lambda url, directory: program_arguments(url, directory, SINK_OPTIONS),
    ),
    source=SourceTraits(
        help="Send the changes of tables of PostgreSQL, each once.",
        check=check_source,
        arguments=lambda url, directory: program_arguments(url, directory, SOURCE_OPTIONS),
        ends=lambda url: url.options.get("stop_at_end") == "true",
        streams="procession.connectors.postgres_scheme:url_streams",
        declared=url_streams,
    ),
    commands="procession.cli.postgres_commands",
    modules=("psycopg",),
    install="procession[postgres]",
    password_hint="the environment variable PGPASSWORD, or a file that PGPASSFILE names",
)
