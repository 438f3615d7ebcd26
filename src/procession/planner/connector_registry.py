"""The registry of connectors: finds the connector of a URL. Pure, except that it finds installed packages.

Invariant: a connector's module is imported when a URL or a command names it, and not before. A table in this module has
the connectors of this package, so they work from a plain checkout; pyproject.toml declares the same connectors as entry
points. Other packages add connectors by entry points of the group `procession.connectors`: the name is a scheme, the
value a `Connector`. They cannot replace a scheme of this package. Used by the planner, the supervisor, the driver and
the command line.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from procession.errors import ConfigError, PlanError
from procession.planner.connector import Connector, Packing, SinkTraits, SourceTraits
from procession.planner.connector_url import SCHEME, ConnectorUrl, without_secrets
from procession.record import stream_id

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "procession.connectors"

OURS = {
    "clock": "procession.planner.connector_registry:CLOCK",
    "file": "procession.planner.connector_registry:FILE",
    "kafka": "procession.connectors.kafka_scheme:CONNECTOR",
    "lanes": "procession.planner.connector_registry:LANES",
    "postgres": "procession.connectors.postgres_scheme:CONNECTOR",
    "postgresql": "procession.connectors.postgres_scheme:CONNECTOR",
    "parquet": "procession.connectors.parquet_scheme:CONNECTOR",
    "delta": "procession.connectors.delta_scheme:CONNECTOR",
    "iceberg": "procession.connectors.iceberg_scheme:CONNECTOR",
}
"""The schemes of this package, and the places of their connectors. A module that does not exist yet is omitted from
lists."""

FILES = "files"
"""The one stream of a source that reads files in event-time order."""

FILE = Connector(
    name="file",
    form="file:DIR",
    is_opaque=True,
    sink=SinkTraits(
        help="Write each output to one file.",
        arguments=lambda _, directory: [str(directory)],
        directory=lambda url: url.place,
        packing=Packing.JOINED,
        message_bytes_max=64 * 1024,
        is_repeatable=True,
        writes_record_file=True,
        rollback="procession.connectors.sink_rollback:FileRollback",
        is_replicated=True,
    ),
    source=SourceTraits(
        help="Send the records of files.",
        arguments=lambda url, _: [url.place],
        ends=lambda _: True,
        streams="procession.connectors.file_source:url_streams",
        declared=lambda _: frozenset({stream_id(FILES.encode())}),
        declared_arguments=lambda _, directory: ["--one-stream", FILES, "--state", str(directory)],
        endless_arguments=("--follow",),
        is_timed=False,
        rewind="procession.connectors.source_rewind:FileRewind",
    ),
)

LANES = Connector(
    name="lanes",
    form="lanes:DIR",
    is_opaque=True,
    sink=SinkTraits(
        help="Write sorted lanes to files, for mergers.",
        arguments=lambda _, directory: [str(directory)],
        directory=lambda url: url.place,
        packing=Packing.LANES,
        lanes="procession.sdk.lane_files:open_url",
        rollback="procession.connectors.sink_rollback:LaneRollback",
        is_replicated=True,
    ),
)

CLOCK_STREAM = "clock"


def _check_clock(url: ConnectorUrl) -> None:
    try:
        is_interval = 0.01 <= float(url.place) <= 3600
    except ValueError:
        is_interval = False
    if not is_interval:
        url.refuse("is not a clock", "write clock:SECONDS, with the seconds between two ticks, from 0.01 to 3600")


CLOCK = Connector(
    name="clock",
    form="clock:SECONDS",
    is_opaque=True,
    source=SourceTraits(
        help="Send the time at an interval, for timers by the clock.",
        check=_check_clock,
        arguments=lambda url, _: [url.place],
        declared=lambda _: frozenset({stream_id(CLOCK_STREAM.encode())}),
    ),
)

ADDRESS = Connector(
    name="address",
    form="HOST:PORT",
    sink=SinkTraits(
        help="A sink that the user starts.",
        is_started=False,
        is_authoritative=False,
        packing=Packing.RECORDS,
        message_bytes_max=0,
        knows_workers_left=False,
        is_repeatable=True,
    ),
)
_ADDRESS = re.compile(r"[^:\s]+:[0-9]{1,5}")


def connector_of(text: str) -> Connector | None:
    """Return the connector of a URL or an address. None: the scheme is unknown."""
    scheme = text.partition(":")[0].lower()
    if scheme != FILE.name and _ADDRESS.fullmatch(text):
        return ADDRESS  # a host may have the name of a scheme
    return connector_named(scheme) if SCHEME.fullmatch(scheme) and ":" in text else None


@cache
def connector_named(scheme: str) -> Connector | None:
    """Return the connector of a scheme. None: the scheme is unknown."""
    if scheme in OURS:
        return _ours(scheme)
    point = _plugged_in().get(scheme)
    return None if point is None else _loaded(point)


def connectors() -> list[Connector]:
    """Return all connectors, those of this package first. A connector that cannot be loaded is omitted, so that it does
    not break other work."""
    found: dict[str, Connector] = {}
    for scheme in OURS:
        connector = connector_named(scheme)
        if connector is not None:
            found[connector.name] = connector
    for _, point in sorted(_plugged_in().items()):
        try:
            connector = _loaded(point)
        except ConfigError:
            continue
        found.setdefault(connector.name, connector)
    return list(found.values())


def sink_of(text: str, owner: str) -> tuple[Connector, ConnectorUrl]:
    """Return the connector of a sink and its URL, checked. `owner` is the sink, for the error. Raises PlanError."""
    connector = _known(text, owner, "sink")
    if connector.sink is None:
        raise _one_way(connector, owner, "sink")
    url = ConnectorUrl(text, "", text) if connector is ADDRESS else connector.url(text)
    connector.sink.check(url)
    return connector, url


def source_of(text: str, owner: str) -> tuple[Connector, ConnectorUrl]:
    """Return the connector of a source and its URL, checked. `owner` is the source, for the error. Raises PlanError."""
    connector = _known(text, owner, "source")
    if connector.source is None:
        raise _one_way(connector, owner, "source")
    url = connector.url(text)
    connector.source.check(url)
    return connector, url


def check_installed(connector: Connector, owner: str, url: ConnectorUrl | None = None) -> None:
    """Raise ConfigError if a package is missing that the connector's programs need, for this URL if there is one. The
    error has the command that installs it."""
    needed = (*connector.modules, *(connector.modules_for(url) if url is not None else ()))
    missing = [name for name in needed if not _is_there(name)]
    if missing:
        raise ConfigError(
            f"{owner} needs the Python package {missing[0]!r}, which is not installed",
            next_step=f"run pip install '{connector.install or missing[0]}'",
        )


def load(reference: str) -> Any:
    """Return the object that MODULE:NAME stands for."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def _known(text: str, owner: str, what: str) -> Connector:
    connector = connector_of(text) if isinstance(text, str) else None
    if connector is ADDRESS and what == "source":  # no source is an address, so `clock:1` is a URL
        connector = connector_named(text.partition(":")[0].lower()) or ADDRESS
    if connector is None:
        forms = [scheme.form for scheme in (*connectors(), ADDRESS) if getattr(scheme, what) is not None]
        raise PlanError(
            f"{owner} names {without_secrets(str(text))!r}, whose scheme no connector has",
            next_step=f"write one of {', '.join(forms)}; or install the package that has this scheme",
        )
    return connector


def _one_way(connector: Connector, owner: str, what: str) -> PlanError:
    others = [scheme.form for scheme in connectors() if getattr(scheme, what) is not None]
    return PlanError(
        f"{owner} is a {connector.name} {what}, but there is no {what} for {connector.form}",
        next_step=f"write one of {', '.join(others)}",
    )


def _ours(scheme: str) -> Connector | None:
    module = OURS[scheme].partition(":")[0]
    if importlib.util.find_spec(module) is None:
        return None
    connector: Connector = load(OURS[scheme])
    return connector


@cache
def _plugged_in() -> dict[str, EntryPoint]:
    """Return the entry points of other packages, by scheme."""
    from importlib.metadata import entry_points  # imported late: Spark's workers and most commands never need it

    return {point.name.lower(): point for point in entry_points(group=GROUP) if point.name.lower() not in OURS}


def _loaded(point: EntryPoint) -> Connector:
    package = point.dist.name if point.dist is not None else point.module
    try:
        connector = point.load()
    except Exception as error:  # a module of another package may raise anything
        raise ConfigError(
            f"the connector {point.name!r} of the package {package} cannot be loaded: {type(error).__name__}: {error}",
            next_step="correct or uninstall that package",
        ) from error
    if not isinstance(connector, Connector):
        raise ConfigError(
            f"the entry point {point.name!r} of the package {package} is not a Connector",
            next_step="correct or uninstall that package",
        )
    return connector


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package does not exist
        return False
