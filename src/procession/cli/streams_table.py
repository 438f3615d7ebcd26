"""Streams, as an operator sees them: the rows that the gateways of a pipeline give, as a table or as JSON.

The one rule: it only asks, and whoever does not answer is named, in one sentence with a next step. Before it
`procession streams`; after it `gateway/control_client`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from procession.address import parse_address
from procession.errors import ConfigError, RoundError, UsageError
from procession.gateway.control_client import CLOSED, ControlClient
from procession.gateway.global_registry import LEADER
from procession.gateway.listen_address import ADDRESS_FILE
from procession.tls import ClientTls, complaint

HOME = Path(".procession")
"""Where `procession run` keeps pipelines, if it is not told otherwise."""

COLUMNS = ("id", "name", "state", "owner", "committed", "seen", "lag", "rate")
LATE = "late"
"""One more column, where streams are in the order of event time: in that of arrival no record is late."""
COUNTED = (LATE, "frames", "bytes")
LEFT = frozenset({"name", "state", "owner"})
NAME_CHARS_MAX = 48
"""Of a longer name a table shows the end: that is where names of files differ."""

CERTIFICATES = "Check the certificates of both sides: --tls-ca here, --tls-cert there."
SPEAKS_TLS = "If it speaks TLS, give --tls-ca; else look at its log."

CLEAR = "\x1b[H\x1b[2J"


def place(directory: Path | None, address: str | None) -> str | Path:
    """Where to ask: an address, or the directory of a gateway. UsageError or ConfigError if that cannot be said."""
    if directory is not None and address is not None:
        raise UsageError("--dir and --gateway exclude each other.", next_step="Give one of them.")
    if address is not None:
        parse_address(address)
        return address
    return _gateway_in(directory if directory is not None else _only_pipeline())


def _gateway_in(directory: Path) -> Path:
    for candidate in (directory / "gateway", directory):
        if (candidate / ADDRESS_FILE).is_file():
            return candidate
    raise ConfigError(
        f"No gateway was ever started in {directory}.",
        next_step="Give the --dir of a pipeline or gateway that runs, or its control address with --gateway.",
    )


def _only_pipeline() -> Path:
    found = sorted(path.parent.parent for path in HOME.glob(f"*/gateway/{ADDRESS_FILE}"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError(
            f"There is no pipeline in {HOME}.",
            next_step="Start one, give its --dir, or the control address of its gateway with --gateway.",
        )
    named = ", ".join(map(str, found))
    raise UsageError(f"There is more than one pipeline in {HOME}.", next_step=f"Give --dir one of: {named}.")


def ask(at: str | Path, *, cookie: bytes, timeout_s: float, tls: ClientTls | None = None) -> list[dict[str, Any]]:
    """Every stream of the pipeline, in the order of their ids. Who does not lead is asked for its own streams only."""
    with _client(at, cookie, timeout_s, tls) as client:
        try:
            members = client.gateways()
        except ConfigError:  # it does not lead
            members = []
    others = [one["control"] for one in members if one["name"] != LEADER and one["is_connected"]]
    return together([row for place in (at, *others) for row in _rows(place, cookie, timeout_s, tls)])


def retired(at: str | Path, *, cookie: bytes, timeout_s: float, tls: ClientTls | None = None) -> int:
    """How many streams are retired. Who leads knows; the others keep none."""
    with _client(at, cookie, timeout_s, tls) as client:
        return int(client.status().get("streams_retired", 0))


def _rows(at: str | Path, cookie: bytes, timeout_s: float, tls: ClientTls | None = None) -> list[dict[str, Any]]:
    with _client(at, cookie, timeout_s, tls) as client:
        return list(client.streams())


@contextmanager
def _client(at: str | Path, cookie: bytes, timeout_s: float, tls: ClientTls | None = None) -> Iterator[ControlClient]:
    try:
        with ControlClient(at, cookie, timeout_s, tls=tls) as client:
            yield client
    except RoundError as error:
        cause = error.__cause__ or error
        if (trouble := complaint(cause)) is not None:
            raise ConfigError(f"The gateway at {at}: {trouble}.", next_step=CERTIFICATES) from error
        if isinstance(cause, ConnectionResetError | BrokenPipeError) or str(cause) == CLOSED:
            raise ConfigError(f"The gateway at {at} closes the connection.", next_step=SPEAKS_TLS) from error
        raise ConfigError(
            f"No gateway answers at {at}.",
            next_step="Is the pipeline running? Give the --dir of one that is, or its address with --gateway.",
        ) from error


def together(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Several gateways may know a stream that has moved: what its holder says counts, or else who knows most. What each
    has counted is added up: it knows only what it has taken. A name is known where the stream was opened."""
    known: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        known.setdefault(row["id"], []).append(row)
    return [_added_up(told) for _, told in sorted(known.items())]


def _added_up(told: list[dict[str, Any]]) -> dict[str, Any]:
    chosen = max(told, key=_weight)
    sums = {name: sum(row[name] for row in told) for name in COUNTED if chosen[name] is not None}
    return chosen | sums | {"name": chosen["name"] or max(row["name"] for row in told)}


def _weight(row: Mapping[str, Any]) -> tuple[bool, int, bool]:
    return row["is_held"], -1 if row["seen"] is None else row["seen"], bool(row["name"])


def show(
    at: str | Path,
    *,
    cookie: bytes,
    timeout_s: float,
    every_s: float | None,
    as_json: bool,
    tls: ClientTls | None = None,
) -> None:
    """Print them once, or again every so many seconds until Ctrl-C."""
    while True:
        rows = ask(at, cookie=cookie, timeout_s=timeout_s, tls=tls)
        many = retired(at, cookie=cookie, timeout_s=timeout_s, tls=tls)
        if as_json:
            print(json.dumps({"streams": rows, "retired": many}), flush=True)
        else:
            is_screen = every_s is not None and sys.stdout.isatty()
            print((CLEAR if is_screen else "") + "\n".join(table(rows, many)), flush=True)
        if every_s is None:
            return
        try:
            time.sleep(every_s)
        except KeyboardInterrupt:
            return


def table(rows: Sequence[Mapping[str, Any]], retired_streams: int = 0) -> Iterator[str]:
    """The lines of a table, and one that adds up; with the number of streams that are retired, if there are any."""
    columns = (*COLUMNS, LATE) if any(row[LATE] is not None for row in rows) else COLUMNS
    cells = [columns, *(tuple(_cell(row, column) for column in columns) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (
            text.ljust(width) if column in LEFT else text.rjust(width)
            for column, text, width in zip(columns, line, widths, strict=True)
        )
        yield "  ".join(padded).rstrip()
    yield _sum(rows) + (f", {retired_streams:,} more retired" if retired_streams else "")


def _cell(row: Mapping[str, Any], column: str) -> str:
    value = row[column]
    if value is None:
        return "-"
    if column == "name":
        text = "".join(char if char.isprintable() else "?" for char in value)
        return text if len(text) <= NAME_CHARS_MAX else "…" + text[1 - NAME_CHARS_MAX :]
    return f"{value:,}" if column in ("lag", "rate", LATE) else str(value)


def _sum(rows: Sequence[Mapping[str, Any]]) -> str:
    states: Iterable[str] = [row["state"] for row in rows]
    counted = ", ".join(f"{sum(one == state for one in states):,} {state}" for state in sorted(set(states)))
    many = "1 stream" if len(rows) == 1 else f"{len(rows):,} streams"
    lag, rate = sum(row["lag"] for row in rows), sum(row["rate"] for row in rows)
    late = sum(row[LATE] or 0 for row in rows)
    told = f"{many}{f' ({counted})' if counted else ''}, lag {lag:,} records, {rate:,.0f} records/s"
    return f"{told}, {late:,} late" if late else told
