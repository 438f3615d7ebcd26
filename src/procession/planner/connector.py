"""A connector: describes a kind of source or sink that apps name by a URL. Pure.

Invariant: a connector is a value that is cheap to import. Only the program that the supervisor starts, `procession
source|sink NAME …`, needs a client library; the connector names the program and gives its arguments. So `explain` works
without the library.

To add a connector to this package, write `connectors/NAME_scheme.py` with `CONNECTOR = Connector(…)` and
`cli/NAME_commands.py` with the commands, and add its name to `planner/connector_registry`. Another package adds a
connector by an entry point of the group `procession.connectors`; see docs/how-to/connectors.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from procession.planner.connector_url import ConnectorUrl, parse_url


class Packing(Enum):
    """How records become the messages that a sink receives."""

    RECORDS = "one record per message"
    JOINED = "bytes of many records per message"
    BLOCKS = "a block of records per message"
    LANES = "a block of records with their order keys per message"


class EpochLimits(NamedTuple):
    """The largest epoch that a sink can commit in time. None: no limit."""

    records_max: int | None = None
    bytes_max: int | None = None


def accept(_: ConnectorUrl) -> None:
    """Accept every place and every option, as the check of a connector."""


def url_and_directory(url: ConnectorUrl, directory: Path) -> Sequence[str]:
    """Return the arguments of most programs: the URL, and a directory for the program."""
    return [url.text, str(directory)]


def no_arguments(_: ConnectorUrl, __: Path) -> Sequence[str]:
    return []


def no_limits(_: ConnectorUrl) -> EpochLimits:
    return EpochLimits()


def no_modules(_: ConnectorUrl) -> Sequence[str]:
    return ()


def no_note(_: ConnectorUrl, __: str) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class SinkTraits:
    """The sink of a connector: how its program starts, and the properties that the pipeline may rely on."""

    help: str
    """One sentence for `procession sink --help`."""
    check: Callable[[ConnectorUrl], None] = accept
    """Raises a PlanError, with a next step, if the URL is not valid for this sink: `url.refuse`,
    `url.check_options`."""
    arguments: Callable[[ConnectorUrl, Path], Sequence[str]] = url_and_directory
    """The arguments of `procession sink NAME` for a URL and the absolute directory of the sink's state, without
    secrets. The supervisor adds `--listen`, `--cookie-file`, `--tls-…` and, for blocks, `--records blocks`."""
    directory: Callable[[ConnectorUrl], str] | None = None
    """The directory of the sink's state, if the URL names it, relative to the directory where the pipeline is started.
    Sinks with the same directory share a process. None: a directory below the pipeline's, and one process per sink."""
    is_started: bool = True
    """Whether the supervisor starts the program. False: the user starts it, and the URL is its address."""
    is_authoritative: bool = True
    """Whether the sink's own log decides where its output ends."""
    packing: Packing = Packing.BLOCKS
    message_bytes_max: int = 256 * 1024
    """Maximum bytes of the records in a message after the first record. 0: one record per message."""
    knows_workers_left: bool = True
    """Whether the sink accepts WORKERS_LEFT even if the app does not request it."""
    is_repeatable: bool = False
    """Whether the sink accepts `idempotent=True`: the program has the option `--idempotent INSTANCE`."""
    limits: Callable[[ConnectorUrl], EpochLimits] = no_limits
    """The largest epoch that the sink can commit in time. It bounds the epochs of the pipeline."""
    order_note: Callable[[ConnectorUrl, str], str] = no_note
    """How the sink changes the pipeline's order ("total", "stream", "key", "none"), for `explain`. Empty: the sink
    keeps it."""
    writes_record_file: bool = False
    """Whether each output is one file of framed records in `directory`, so `Pipeline.run` and the dashboard can read
    it."""
    rollback: str = ""
    """MODULE:CLASS that rolls committed output back, as `connectors/sink_rollback` describes. Empty: this is
    impossible."""
    is_replicated: bool = False
    """Whether the program has the options `--replicas`, and keeps its directory on the replicas, too."""
    takes_order: bool = False
    """Whether the program has the option `--order`. The supervisor adds it, so that the sink can warn."""
    lanes: str = ""
    """MODULE:FUNCTION that opens the lanes at a URL for a merger (`sdk/lane_merge`). The program then takes lane blocks
    (`--records lanes`, or the packing is LANES). Empty: the sink takes no `lanes=N`."""


@dataclass(frozen=True, kw_only=True)
class SourceTraits:
    """The source of a connector."""

    help: str
    """One sentence for `procession source --help`."""
    check: Callable[[ConnectorUrl], None] = accept
    arguments: Callable[[ConnectorUrl, Path], Sequence[str]] = url_and_directory
    """The arguments of `procession source NAME` for a URL and the absolute directory of the source's state, without
    secrets. The supervisor adds `--to`, `--cookie-file`, `--source` and `--tls-…`."""
    ends: Callable[[ConnectorUrl], bool] = lambda _: False
    """Whether the source ends by itself. The run then ends when everything is committed."""
    streams: str = ""
    """MODULE:FUNCTION that returns the ids of the streams of a source that ends, for a URL. It may read directories."""
    declared: Callable[[ConnectorUrl], frozenset[int]] | None = None
    """Returns the ids of the streams, which event-time order needs before the start. None: the URL does not define
    them."""
    declared_arguments: Callable[[ConnectorUrl, Path], Sequence[str]] = no_arguments
    """Returns arguments to add in event-time order, so that the program sends exactly these streams."""
    endless_arguments: Sequence[str] = ()
    """Arguments to add if the app declares `ends=False`, so that a source that would end continues."""
    is_timed: bool = True
    """Whether its records have event times without `event_time_field`."""
    rewind: str = ""
    """MODULE:CLASS that tells whether committed records can be sent again, as `connectors/source_rewind` describes.
    Empty: they cannot."""


@dataclass(frozen=True, kw_only=True)
class Connector:
    """A kind of source, of sink, or of both."""

    name: str
    """Name of its commands: `procession source NAME`, `procession sink NAME`."""
    form: str
    """The URL as a user writes it: `kafka://HOST:PORT/TOPIC`."""
    sink: SinkTraits | None = None
    source: SourceTraits | None = None
    commands: str = ""
    """The module with its commands: functions `sink_NAME` and `source_NAME` for Typer (a `-` in the name is a `_`)."""
    modules: tuple[str, ...] = ()
    """Modules of other packages that its programs import."""
    modules_for: Callable[[ConnectorUrl], Sequence[str]] = no_modules
    """Returns further modules that its programs import for a URL, such as the client of an object store."""
    install: str = ""
    """The package to install with pip if a module is missing: `procession[kafka]`."""
    password_hint: str = ""
    """Where to put a password instead of the URL, for the error: "the environment variable PGPASSWORD"."""
    is_opaque: bool = False
    """Whether its URLs have no options: a `?` then belongs to the place."""

    def url(self, text: str) -> ConnectorUrl:
        """Parse a URL of this connector. Raises PlanError."""
        return parse_url(text, password_hint=self.password_hint, is_opaque=self.is_opaque)
