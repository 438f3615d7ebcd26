"""Collects the streams of a pipeline's gateways, and prints them as a table or as JSON.

Invariant: this module only reads. An error names the gateway that does not answer, and a next step. Uses
`gateway/control_client`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from procession.address import parse_address
from procession.deployment.cookies import PIPELINES
from procession.deployment.run_claim import holder
from procession.errors import ConfigError, RoundError, UsageError
from procession.gateway.control_client import CLOSED, ControlClient
from procession.gateway.global_registry import LEADER
from procession.gateway.listen_address import ADDRESS_FILE
from procession.storage.driver_claim import CHECKPOINT
from procession.tls import ClientTls, complaint

COLUMNS = ("id", "name", "state", "owner", "committed", "seen", "lag", "rate")
LATE = "late"
"""An extra column with event-time order. In arrival order no record is late."""
COUNTED = (LATE, "frames", "bytes")
LEFT = frozenset({"name", "state", "owner"})
NAME_CHARS_MAX = 48
"""Maximum length of a name in the table. A longer name loses its beginning, because file names differ at the end."""

CERTIFICATES = "Check the certificates of both sides: --tls-ca here, --tls-cert there."
SPEAKS_TLS = "If it uses TLS, give --tls-ca; otherwise look at its log."

PARTS = (CHECKPOINT, "gateway")
"""The directory of a pipeline that was ever started contains one of these."""

CLEAR = "\x1b[H\x1b[2J"


def place(directory: Path | None, address: str | None) -> str | Path:
    """Return the gateway's address, or its directory. Raises UsageError or ConfigError if it cannot be determined."""
    if directory is not None and address is not None:
        raise UsageError("--dir and --gateway exclude each other.", next_step="Give one of them.")
    if address is not None:
        parse_address(address)
        return address
    if directory is None:
        directory = chosen_pipeline(
            None, "Start one, give its --dir, or the control address of its gateway: --gateway."
        )
    return _gateway_in(directory)


def _gateway_in(directory: Path) -> Path:
    for candidate in (directory / "gateway", directory):
        if (candidate / ADDRESS_FILE).is_file():
            return candidate
    raise ConfigError(
        f"No gateway was ever started in {directory}.",
        next_step="Give the --dir of a pipeline or gateway that runs, or its control address with --gateway.",
    )


def chosen_pipeline(directory: Path | None, next_step: str = "Start one, or give its --dir.") -> Path:
    """Return the given directory, or the directory of the only pipeline in `.procession`. Raises ConfigError or
    UsageError if there is no pipeline, or more than one. `next_step` is the advice if `.procession` has no
    pipeline."""
    found = sorted(path.parent.parent for path in PIPELINES.glob(f"*/gateway/{ADDRESS_FILE}"))
    named = ", ".join(map(str, found))
    if directory is not None:
        if not any((directory / part).exists() for part in PARTS) and holder(directory) is None:
            raise ConfigError(
                f"There is no pipeline in {directory}.",
                next_step=f"Give --dir one of: {named}." if found else "Give the --dir of a pipeline.",
            )
        return directory
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError(f"There is no pipeline in {PIPELINES}.", next_step=next_step)
    raise UsageError(f"There is more than one pipeline in {PIPELINES}.", next_step=f"Give --dir one of: {named}.")


def ask(at: str | Path, *, cookie: bytes, timeout_s: float, tls: ClientTls | None = None) -> list[dict[str, Any]]:
    """Return every stream of the pipeline, by id. A gateway that is not the leader returns only its own streams."""
    with _client(at, cookie, timeout_s, tls) as client:
        try:
            members = client.gateways()
        except ConfigError:  # it is not the leader
            members = []
    others = [member["control"] for member in members if member["name"] != LEADER and member["is_connected"]]
    return together([row for place in (at, *others) for row in _rows(place, cookie, timeout_s, tls)])


def retired(at: str | Path, *, cookie: bytes, timeout_s: float, tls: ClientTls | None = None) -> int:
    """Return the number of retired streams. Only the leader has any."""
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
        if (reason := complaint(cause)) is not None:
            raise ConfigError(f"The gateway at {at}: {reason}.", next_step=CERTIFICATES) from error
        if isinstance(cause, ConnectionResetError | BrokenPipeError) or str(cause) == CLOSED:
            raise ConfigError(f"The gateway at {at} closes the connection.", next_step=SPEAKS_TLS) from error
        raise ConfigError(
            f"No gateway answers at {at}.",
            next_step="Is the pipeline running? Give the --dir of one that is, or its address with --gateway.",
        ) from error


def together(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Combine the rows of streams that several gateways know because the stream moved.

    Use the row of the holder or, without a holder, the row with the highest position. Counters are added. The name
    comes from the gateway where the stream was opened."""
    known: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        known.setdefault(row["id"], []).append(row)
    return [_added_up(same) for _, same in sorted(known.items())]


def _added_up(same: list[dict[str, Any]]) -> dict[str, Any]:
    chosen = max(same, key=_weight)
    sums = {name: sum(row[name] for row in same) for name in COUNTED if chosen[name] is not None}
    return chosen | sums | {"name": chosen["name"] or max(row["name"] for row in same)}


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
    """Print the streams once, or every `every_s` seconds until Ctrl-C."""
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
    """Yield the lines of the table, and a line with totals and the number of retired streams."""
    columns = (*COLUMNS, LATE) if any(row[LATE] is not None for row in rows) else COLUMNS
    yield from aligned(columns, [[_cell(row, column) for column in columns] for row in rows], LEFT)
    yield _sum(rows) + (f", {retired_streams:,} more retired" if retired_streams else "")


def aligned(columns: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[str]) -> Iterator[str]:
    """Yield the lines of a table. The columns in `left` are aligned to the left, the others to the right."""
    cells = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (
            text.ljust(width) if column in left else text.rjust(width)
            for column, text, width in zip(columns, line, widths, strict=True)
        )
        yield "  ".join(padded).rstrip()


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
    counted = ", ".join(f"{sum(other == state for other in states):,} {state}" for state in sorted(set(states)))
    many = "1 stream" if len(rows) == 1 else f"{len(rows):,} streams"
    lag, rate = sum(row["lag"] for row in rows), sum(row["rate"] for row in rows)
    late = sum(row[LATE] or 0 for row in rows)
    total = f"{many}{f' ({counted})' if counted else ''}, lag {lag:,} records, {rate:,.0f} records/s"
    return f"{total}, {late:,} late" if late else total
