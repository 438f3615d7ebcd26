"""A connector of records for tests, as an installed package would provide it: `tape:DRIVE`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint

from procession.planner import connector_registry
from procession.planner.connector import Connector, EpochLimits, SinkTraits, SourceTraits
from procession.planner.connector_registry import GROUP

CONNECTOR = Connector(
    name="tape",
    form="tape:DRIVE",
    sink=SinkTraits(
        help="Write a tape.",
        check=lambda url: url.check_options({"speed", "records"}),
        limits=lambda url: EpochLimits(records_max=url.count("records")),
    ),
    source=SourceTraits(help="Read a tape."),
)


@contextmanager
def installed() -> Iterator[None]:
    """Make the connector available as if its package were installed."""
    point = EntryPoint("tape", f"{__name__}:CONNECTOR", GROUP)
    before, connector_registry._plugged_in = connector_registry._plugged_in, lambda: {"tape": point}  # type: ignore[assignment]
    connector_registry.connector_named.cache_clear()
    try:
        yield
    finally:
        connector_registry._plugged_in = before
        connector_registry.connector_named.cache_clear()
