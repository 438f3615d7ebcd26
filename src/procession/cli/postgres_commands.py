"""The commands `procession sink postgres` and `procession source postgres`.

As in `cli/main`, they only parse; `connectors/postgres_sink` and `connectors/postgres_source` do the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from procession.cli.command_options import with_groups
from procession.cli.sink_commands import Directory, Json, ReceiveOptions, Records, print_json
from procession.cli.source_commands import Acks, KeptBytes, SendOptions
from procession.exit_status import Status

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="The database: postgres://USER@HOST:PORT/DATABASE, or postgres:///?service=NAME. No password in it:"
        " set PGPASSWORD or PGPASSFILE.",
    ),
]
LockTimeout = Annotated[float, typer.Option(min=0.001, help="Seconds to wait for a lock in the database.")]
DatabasePatience = Annotated[float, typer.Option(min=0, help="Seconds to retry an unreachable server.")]
SessionPooler = Annotated[
    bool,
    typer.Option("--session-pooler", help="Accept a connection pooler. It must give each client its own session."),
]


@with_groups
def sink_postgres(
    url: Url,
    directory: Directory,
    table: Annotated[str, typer.Option(help="The table to write to, as TABLE or SCHEMA.TABLE. It must exist.")],
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN[=FIELD]",
            show_default="the field of each column's name; columns with a default only if they are named",
            help="The content of a column: a field such as price or after.price; or $payload, $key, $event_time,"
            " $position or $instance (repeatable).",
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="A column of a unique key (repeatable). A record then replaces the row of its key; without it, each"
            " record is a new row.",
        ),
    ] = None,
    delete_when: Annotated[
        str | None,
        typer.Option(metavar="FIELD=TEXT", help="Records that delete the row of their key, such as op=delete."),
    ] = None,
    dead_letters: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            show_default="stop with an error that names the record",
            help="Put refused records into this table, in the same transaction. It is created.",
        ),
    ] = None,
    mode: Annotated[
        Literal["auto", "prepared", "token"],
        typer.Option(
            help="prepared (PREPARE TRANSACTION before the vote), token (a transaction that stays open from the vote to"
            " the commit), or auto: prepared if max_prepared_transactions is above 0."
        ),
    ] = "auto",
    format_: Annotated[
        Literal["json", "arrow"],
        typer.Option("--format", help="What a record is: json (one object) or arrow (an Arrow table)."),
    ] = "json",
    records: Records = "messages",
    token_table: Annotated[
        str, typer.Option(help="Table for the committed end of each output. It is created.")
    ] = "procession_sink_tokens",
    lock_timeout_s: LockTimeout = 10.0,
    database_patience_s: DatabasePatience = 60.0,
    session_pooler: SessionPooler = False,
    as_json: Json = False,
    *,
    receive: ReceiveOptions,
) -> None:
    """Write records to a table of PostgreSQL 15 or newer, each once.

    The rows of an epoch appear together when the epoch is committed. Table, columns, types and rights are checked when
    the sink starts. The database must keep the table of tokens; DIR keeps the sink's transaction log.
    """
    from procession.connectors.postgres_rows import DeleteRule
    from procession.connectors.postgres_session import CommitMode, PostgresOptions
    from procession.connectors.postgres_sink import run_postgres_sink
    from procession.connectors.postgres_table import TableOptions
    from procession.sdk.record_blocks import RecordForm

    options = PostgresOptions(
        url,
        TableOptions(
            table,
            tuple(column or ()),
            tuple(name for names in key or () for name in names.split(",")),
            DeleteRule.parse(delete_when) if delete_when else None,
            dead_letters,
            is_arrow=format_ == "arrow",
        ),
        CommitMode(mode),
        token_table,
        lock_timeout_s,
        database_patience_s,
        session_pooler,
        RecordForm(records),
    )
    run_postgres_sink(
        directory,
        options,
        receive.listen,
        cookie=receive.cookie(),
        tls=receive.tls.load(),
        on_outcome=print_json if as_json else None,
    )


@with_groups
def source_postgres(
    url: Url,
    state: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The source's directory: its position, and uncommitted records."),
    ],
    table: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", show_default="those of the publication", help="A table to read (repeatable)."),
    ] = None,
    slot: Annotated[str, typer.Option(help="Replication slot of this source. It is created.")] = "procession",
    publication: Annotated[
        str,
        typer.Option(show_default="as the slot", help="Publication. It is created for the tables if it is missing."),
    ] = "",
    poll_column: Annotated[
        str,
        typer.Option(
            metavar="COLUMN",
            show_default="no: read changes",
            help="Read the rows of the one table in the order of this column, which must grow, instead of changes.",
        ),
    ] = "",
    poll_start: Annotated[
        str, typer.Option(metavar="VALUE", show_default="all rows", help="With --poll-column: only rows above this.")
    ] = "",
    page_rows_max: Annotated[
        int,
        typer.Option(
            min=1,
            help="With --poll-column: maximum number of rows with the same value, which are held in memory together.",
        ),
    ] = 100_000,
    poll_s: Annotated[
        float, typer.Option(min=0.001, help="Seconds between two polls for new changes or rows, if there were none.")
    ] = 0.2,
    stop_at_end: Annotated[
        bool,
        typer.Option(
            "--stop-at-end", help="End after the changes or rows that were committed when the source started."
        ),
    ] = False,
    stream: Annotated[
        str,
        typer.Option(show_default="the slot, or the table that is polled", help="Name of the stream."),
    ] = "",
    bytes_max: KeptBytes = None,
    lock_timeout_s: LockTimeout = 10.0,
    database_patience_s: DatabasePatience = 60.0,
    acks: Acks = None,
    *,
    send: SendOptions,
) -> None:
    """Send the changes of tables of PostgreSQL, each once, in the order of commits.

    A record is a JSON object: {"op": "insert", "table": "public.orders", "key": {…}, "after": {…}, …}. Its key is the
    row's key, its event time the time of the commit. The server needs wal_level=logical; the user needs REPLICATION,
    and CREATE in the database for the publication. The server keeps changes until they are in DIR: drop the slot
    (pg_drop_replication_slot) when the source is no longer used.
    """
    from procession.connectors.postgres_connection import checked_url
    from procession.connectors.postgres_polling import PollingMedium, PollingOptions
    from procession.connectors.postgres_scheme import stream_name
    from procession.connectors.postgres_slot import ChangesOptions
    from procession.connectors.postgres_source import ChangesMedium
    from procession.connectors.pushed_sources import SPOOL_BYTES_MAX, after_answer, run_pushed
    from procession.errors import UsageError
    from procession.sdk.backlog import Spool
    from procession.sdk.push_source import PushStream
    from procession.sdk.source_records import Stream

    tables = tuple(name for names in table or () for name in names.split(","))
    checked_url(url)
    if poll_column and len(tables) != 1:
        raise UsageError("Polling reads one table.", next_step="Name it with --table.")
    name = stream_name(stream, slot, tables[0] if tables else "", poll_column)
    options = send.load("postgres", name, acks=acks)
    state.mkdir(parents=True, exist_ok=True)
    spool = Spool(state / "spool")
    medium: ChangesMedium | PollingMedium
    if poll_column:
        polling = PollingOptions(
            url,
            tables[0],
            poll_column,
            poll_start,
            poll_s,
            stop_at_end,
            database_patience_s,
            lock_timeout_s,
            page_rows_max,
        )
        medium = PollingMedium(polling, state, spool)
    else:
        changes = ChangesOptions(
            url, tables, slot, publication, poll_s, stop_at_end, database_patience_s, lock_timeout_s
        )
        medium = ChangesMedium(changes, state, spool)
    try:
        medium.check()
    except BaseException:
        spool.close()
        raise
    pushed = PushStream(Stream.named(name), spool, bytes_max=bytes_max or SPOOL_BYTES_MAX)
    take_in = medium.take_in if spool.next_id else after_answer(medium.take_in)
    if not run_pushed(pushed, take_in, send.to, options, is_json=send.as_json):
        raise typer.Exit(Status.UNCLEAN)
